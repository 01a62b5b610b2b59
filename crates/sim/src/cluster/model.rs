//! What is simulated: every parameter of the paper and every assumption it leaves open, with the defaults of the shipped
//! file (`default.toml`, where each is described).

use hanare_paging::kinds::First;

use super::network::Network;
use super::references::Table;

/// What the first touch of a page costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstTouch {
    /// Nothing: it reads as zeroes.
    Free,
    /// A disk access: its bytes are in a file.
    Disk,
}

/// How often each page of a table is touched.
#[derive(Clone, PartialEq, Debug)]
pub enum Frequencies {
    /// All alike.
    Uniform,
    /// Page k as often as 1 / k to this power.
    Zipf(f64),
    /// These weights, of which a table takes the first.
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
    /// Processors that each asks for, and threads it has.
    pub processors: u32,
    /// How many there are.
    pub count: u32,
    /// Pages that each thread has for itself.
    pub private_pages: u32,
    /// Pages that each process shares among its threads.
    pub shared_pages: u32,
}

/// What the paper leaves open about how clusters are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Whether, of clusters with own pages, those with most are taken first, or the leftmost.
    pub prefer_most: bool,
    /// Whether under algo4 a process with pages on too few clusters waits, possibly for ever, or is placed anew.
    pub lost_waits: bool,
}

/// How urgent a process is: paper 5, section 3.2, after its reference 2.
#[derive(Clone, PartialEq, Debug)]
pub struct Priority {
    /// What a clock counts in which a thread was on a processor and waited, beside 1 for one in which it executed.
    pub waiting: f64,
    /// Subtracted for each quantum used.
    pub per_quantum: f64,
    /// Processors for which a quantum counts once.
    pub processors_unit: f64,
    /// Subtracted for each `pages_unit` pages that it has in memory.
    pub per_pages: f64,
    /// Pages in memory that count once.
    pub pages_unit: f64,
    /// Added when it ran in the last quantum.
    pub ran_last: f64,
    /// Added, by schedulers of ours that weigh pages, when all pages it needs are where it ran last.
    pub near: f64,
}

/// All settings of a simulated machine and what runs on it.
#[derive(Clone, PartialEq, Debug)]
pub struct Model {
    /// The tree between the clusters.
    pub network: Network,
    /// Pages of one memory.
    pub memory_pages: u32,
    /// Bytes of one page; only shown.
    pub page_bytes: u32,
    /// Clocks of a disk access.
    pub disk_clk: u32,
    /// Clocks of a remote access, a level.
    pub remote_clk: u32,
    /// Clocks of a message, a level.
    pub communication_clk: u32,
    /// Clocks from the last arrival at a synchronisation to when all go on.
    pub sync_clk: u32,
    /// Clocks for which a transferred page keeps each link of its way busy; 0: links are never busy.
    pub link_clk: u32,
    /// Clocks of a quantum.
    pub quantum_clk: u32,
    /// Effective quanta after which a process ends, and with it the measurement.
    pub finish_quanta: u32,
    /// Quanta after which the measurement ends whatever happens.
    pub quanta_max: u32,
    /// Percent of a thread's references to shared pages.
    pub shared_percent: u32,
    /// Percent of references that write.
    pub write_percent: u32,
    /// Frequencies of shared pages.
    pub shared: Frequencies,
    /// Frequencies of a thread's own pages.
    pub private: Frequencies,
    /// Effective clocks between two synchronisations; 0 for none.
    pub sync_every_clk: u32,
    /// Threads in one random group of a synchronisation; 0 for all of a process.
    pub sync_threads: u32,
    /// What the first touch costs.
    pub first_touch: FirstTouch,
    /// Whether a write to a shared page waits until all copies have it.
    pub writers_wait: bool,
    /// Whether kind or process ranks first in method 3.
    pub first: First,
    /// Pages that left whose history a policy may keep.
    pub history_pages: u32,
    /// How clusters are chosen.
    pub rules: Rules,
    /// How urgent processes are.
    pub priority: Priority,
    /// Whether the order of arrival is drawn by the seed.
    pub arrival_shuffled: bool,
    /// What runs.
    pub processes: Vec<Group>,
}

impl Frequencies {
    /// The weights of so many pages, which sum up to 1.
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
    /// How often the threads of a process touch its pages.
    pub(super) fn table(&self, group: &Group) -> Table {
        let share = f64::from(self.shared_percent) / 100.0;
        // A process that has pages of one sort only touches no others.
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
