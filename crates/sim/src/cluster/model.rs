//! The model: every parameter of the paper, and every assumption that it leaves open. The defaults come from the
//! shipped file, `default.toml`, which describes each setting.

use hanare_paging::kinds::First;

use super::network::Network;
use super::references::Table;

/// The cost of the first reference to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstTouch {
    /// No cost: the page reads as zeroes.
    Free,
    /// A disk access: its bytes are in a file.
    Disk,
}

/// How often each page of a table is referenced.
#[derive(Clone, PartialEq, Debug)]
pub enum Frequencies {
    /// All pages are referenced equally often.
    Uniform,
    /// Page k is referenced in proportion to 1 / k raised to this power.
    Zipf(f64),
    /// Pages are referenced in proportion to these weights. A table with fewer pages uses the first ones.
    Weights {
        /// The file they came from.
        file: String,
        /// The weights.
        weights: Vec<f64>,
    },
}

/// Processes that are alike: a row of the paper's Table 2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Processors that each process asks for, which is also the number of its threads.
    pub processors: u32,
    /// Number of processes.
    pub count: u32,
    /// Private pages of each thread.
    pub private_pages: u32,
    /// Pages of each process that all its threads share.
    pub shared_pages: u32,
}

/// What the paper leaves open about choosing clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Whether to take the clusters with most of the process's pages first, instead of the leftmost with any.
    pub prefer_most: bool,
    /// Whether, under algo4, a process with pages on too few clusters waits, possibly for ever, or is placed anew.
    pub lost_waits: bool,
}

/// The urgency of a process: paper 5, section 3.2, after its reference 2.
#[derive(Clone, PartialEq, Debug)]
pub struct Priority {
    /// Weight of a clock in which a thread was on a processor and waited. A clock in which it executed has weight 1.
    pub waiting: f64,
    /// Priority subtracted for each quantum used.
    pub per_quantum: f64,
    /// A quantum is weighted by the process's processors divided by this number.
    pub processors_unit: f64,
    /// Priority subtracted for each `pages_unit` pages in memory.
    pub per_pages: f64,
    /// Pages in memory that count as one unit.
    pub pages_unit: f64,
    /// Priority added if the process ran in the last quantum.
    pub ran_last: f64,
    /// Priority that our page-weighing schedulers add if all pages that the process needs are where it ran last.
    pub near: f64,
}

/// All settings of a simulated machine and its processes.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// The tree between the clusters.
    pub network: Network,
    /// Pages in one memory.
    pub memory_pages: u32,
    /// Bytes of one page. Used only in the output.
    pub page_bytes: u32,
    /// Clocks of a disk access.
    pub disk_clk: u32,
    /// Clocks of a remote access, for each level of the tree.
    pub remote_clk: u32,
    /// Clocks of a message, for each level of the tree.
    pub communication_clk: u32,
    /// Clocks from the last arrival at a synchronisation until all threads go on.
    pub sync_clk: u32,
    /// Clocks for which a transferred page keeps each link of its path busy; 0 for links without limit.
    pub link_clk: u32,
    /// Clocks of a quantum.
    pub quantum_clk: u32,
    /// Effective quanta after which a process ends. The measurement ends when the first process does.
    pub finish_quanta: u32,
    /// Quanta after which the measurement ends in any case.
    pub quanta_max: u32,
    /// Percent of a thread's references to shared pages.
    pub shared_percent: u32,
    /// Percent of references that write.
    pub write_percent: u32,
    /// Reference frequencies of shared pages.
    pub shared: Frequencies,
    /// Reference frequencies of a thread's own pages.
    pub private: Frequencies,
    /// Effective clocks between two synchronisations; 0 for none.
    pub sync_every_clk: u32,
    /// Threads in one random group of a synchronisation; 0 for all threads of a process.
    pub sync_threads: u32,
    /// The cost of the first reference to a page.
    pub first_touch: FirstTouch,
    /// Whether a write to a shared page waits until all copies have it.
    pub writers_wait: bool,
    /// The first criterion of method 3: the kind or the process.
    pub first: First,
    /// Pages that have left and that a policy may still remember.
    pub history_pages: u32,
    /// How clusters are chosen.
    pub rules: Rules,
    /// How urgent processes are.
    pub priority: Priority,
    /// Whether the seed determines the order of arrival at random.
    pub arrival_shuffled: bool,
    /// The processes.
    pub processes: Vec<Group>,
}

impl Frequencies {
    /// The weights of `pages` pages. Their sum is 1.
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
    /// How often the threads of a process reference its pages.
    pub(super) fn table(&self, group: &Group) -> Table {
        let share = f64::from(self.shared_percent) / 100.0;
        // A process with only one sort of pages references no others.
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
