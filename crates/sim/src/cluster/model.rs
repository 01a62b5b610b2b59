//! The model: every parameter of the paper, and every assumption that the paper leaves open. The shipped file
//! `default.toml` holds the defaults and describes each setting.

use hanare_paging::kinds::First;

use super::network::Network;
use super::references::Table;

/// The cost of the first reference to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstTouch {
    /// The reference costs nothing: the page reads as zeroes.
    Free,
    /// The reference costs a disk access: the page's bytes are in a file.
    Disk,
}

/// The frequency with which each page of a table is referenced.
#[derive(Clone, PartialEq, Debug)]
pub enum Frequencies {
    /// All pages are referenced equally often.
    Uniform,
    /// Page k is referenced in proportion to 1 / k raised to this power.
    Zipf(f64),
    /// Pages are referenced in proportion to these weights. A table with fewer pages uses the first weights.
    Weights {
        /// The file that the weights were read from.
        file: String,
        /// The weights.
        weights: Vec<f64>,
    },
}

/// Processes with equal parameters: a row of the paper's Table 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Number of processors that each process asks for. Each process has as many threads.
    pub processors: u32,
    /// Number of processes.
    pub count: u32,
    /// Number of private pages of each thread.
    pub private_pages: u32,
    /// Number of pages of each process that all its threads share.
    pub shared_pages: u32,
}

/// Rules for the choice of clusters that the paper leaves open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Whether clusters with most of the process's pages come first. If false, the leftmost clusters with any of its
    /// pages come first.
    pub prefer_most: bool,
    /// Whether a process under algo4 waits, possibly for ever, if its pages are on too few clusters. If false, the
    /// process is placed as in its first run.
    pub lost_waits: bool,
}

/// The weights that determine the urgency of a process (paper 5, section 3.2).
#[derive(Clone, PartialEq, Debug)]
pub struct Priority {
    /// Weight of a clock in which a thread waited on a processor. A clock in which the thread executed has weight 1.
    pub waiting: f64,
    /// Priority subtracted for each quantum that the process used.
    pub per_quantum: f64,
    /// The number of processors on which a quantum counts once. A quantum on twice as many processors counts twice.
    pub processors_unit: f64,
    /// Priority subtracted for each `pages_unit` pages in memory.
    pub per_pages: f64,
    /// Number of pages in memory that count as one unit.
    pub pages_unit: f64,
    /// Priority added if the process ran in the last quantum.
    pub ran_last: f64,
    /// Priority that a scheduler with `Info::weighs` adds if all pages that a process needs are on the clusters of its
    /// last run.
    pub near: f64,
}

/// All settings of a simulated machine and its processes.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// The tree between the clusters.
    pub network: Network,
    /// Number of pages in one memory.
    pub memory_pages: u32,
    /// Size of a page, in bytes. It appears only in the output.
    pub page_bytes: u32,
    /// Duration of a disk access, in clocks.
    pub disk_clk: u32,
    /// Number of clocks that a remote access takes for each level of the tree that it climbs.
    pub remote_clk: u32,
    /// Number of clocks that a message takes for each level of the tree that it climbs.
    pub communication_clk: u32,
    /// Number of clocks from the last arrival at a synchronisation until all threads continue.
    pub sync_clk: u32,
    /// Number of clocks for which a page transfer keeps each link of its path busy. If 0, links are never busy.
    pub link_clk: u32,
    /// Length of a quantum, in clocks.
    pub quantum_clk: u32,
    /// Number of effective quanta after which a process ends. The measurement ends when the first process ends.
    pub finish_quanta: u32,
    /// Number of quanta after which the measurement ends in any case.
    pub quanta_max: u32,
    /// Share of a thread's references that are to shared pages, in percent.
    pub shared_percent: u32,
    /// Share of references that are writes, in percent.
    pub write_percent: u32,
    /// Reference frequencies of shared pages.
    pub shared: Frequencies,
    /// Reference frequencies of a thread's own pages.
    pub private: Frequencies,
    /// Number of effective clocks between two synchronisations; 0 for no synchronisation.
    pub sync_every_clk: u32,
    /// Number of threads that synchronise together, as a random group. If 0, all threads of a process synchronise
    /// together.
    pub sync_threads: u32,
    /// The cost of the first reference to a page.
    pub first_touch: FirstTouch,
    /// Whether a write to a shared page waits until all copies have the written bytes.
    pub writers_wait: bool,
    /// The first criterion of method 3: the kind or the process.
    pub first: First,
    /// Number of evicted pages that a policy may still remember.
    pub history_pages: u32,
    /// The rules for the choice of clusters.
    pub rules: Rules,
    /// The weights that determine how urgent a process is.
    pub priority: Priority,
    /// Whether the order of arrival is random, drawn from the seed.
    pub arrival_shuffled: bool,
    /// The processes.
    pub processes: Vec<Group>,
}

impl Frequencies {
    /// Returns the weights of `pages` pages. Their sum is 1.
    pub(super) fn weights(&self, pages: u32) -> Vec<f64> {
        let weights: Vec<f64> = match self {
            Self::Uniform => vec![1.0; pages as usize],
            Self::Zipf(power) => (1..=pages).map(|k| f64::from(k).powf(-power)).collect(),
            Self::Weights { weights, .. } => weights.iter().copied().take(pages as usize).collect(),
        };
        let sum: f64 = weights.iter().sum();
        weights.into_iter().map(|weight| weight / sum).collect()
    }
}

impl Model {
    /// Returns the frequencies with which the threads of a process reference its pages.
    pub(super) fn table(&self, group: &Group) -> Table {
        let share = f64::from(self.shared_percent) / 100.0;
        // If a process has only shared or only private pages, all its references are to these pages.
        let share = match (group.shared_pages, group.private_pages) {
            (0, _) => 0.0,
            (_, 0) => 1.0,
            _ => share,
        };
        let scaled = |frequencies: &Frequencies, pages, by: f64| {
            frequencies.weights(pages).into_iter().map(move |weight| weight * by)
        };
        let shared = scaled(&self.shared, group.shared_pages, share);
        let weights: Vec<f64> = shared.chain(scaled(&self.private, group.private_pages, 1.0 - share)).collect();
        Table::new(&weights, self.write_percent)
    }
}
