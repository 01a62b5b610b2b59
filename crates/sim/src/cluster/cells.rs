//! Runs every combination of the settings with several seeds, in parallel on all processors.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::config::Config;
use super::memory::Replacement;
use super::model::Model;
use super::network::Network;
use super::run::{Outcome, RunError, Stepping, run};
use super::schedule::Info;

/// One combination of settings.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The network.
    pub network: Network,
    /// Number of clocks that a remote access takes for each level of the tree that it climbs.
    pub remote_cost_clk: u32,
    /// The replacement method.
    pub replacement: Replacement,
    /// The scheduler.
    pub scheduler: &'static Info,
}

/// The results of a cell over its seeds.
#[derive(Clone, Debug)]
pub struct Row {
    /// The cell.
    pub cell: Cell,
    /// The outcome of each seed.
    pub outcomes: Vec<Outcome>,
}

impl Row {
    /// Returns the mean over the seeds of the value that `of` reads from an outcome.
    #[must_use]
    pub fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(of).sum::<f64>() / self.outcomes.len().max(1) as f64
    }

    /// Returns the effective execution rate in percent, as the mean over the seeds.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.mean(|outcome| outcome.effective_percent)
    }

    /// Returns the standard deviation of the effective execution rate over the seeds, in points; 0 for one seed.
    #[must_use]
    pub fn spread(&self) -> f64 {
        let mean = self.rate();
        let squares: f64 = self.outcomes.iter().map(|outcome| (outcome.effective_percent - mean).powi(2)).sum();
        (squares / (self.outcomes.len().max(2) - 1) as f64).sqrt()
    }
}

/// Returns the cells of a configuration, ordered by network, remote cost, replacement and scheduler.
#[must_use]
pub fn cells(config: &Config) -> Vec<Cell> {
    let mut cells = Vec::new();
    for network in &config.networks {
        for &remote_cost_clk in &config.remote_costs {
            for replacement in &config.replacements {
                for scheduler in &config.schedulers {
                    let (network, replacement) = (network.clone(), replacement.clone());
                    cells.push(Cell { network, remote_cost_clk, replacement, scheduler });
                }
            }
        }
    }
    cells
}

/// A function that is called several times in a run. Its argument is the part done, from 0 to 1. If it returns false,
/// all runs stop.
pub type Progress<'a> = &'a (dyn Fn(f64) -> bool + Sync);

/// Runs all cells of a configuration, `jobs` runs at a time. [`Config::check`] must have accepted the configuration.
///
/// # Errors
/// Returns a [`RunError`] if a policy cannot be built, or if `progress` has stopped the runs.
pub fn run_all(config: &Config, jobs: usize, progress: Progress<'_>) -> Result<Vec<Row>, RunError> {
    let cells = cells(config);
    let (seeds, total) = (config.seeds as usize, cells.len() * config.seeds as usize);
    let next = AtomicUsize::new(0);
    let done = Mutex::new((vec![None; total], vec![0.0f64; total]));
    let lock = || done.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || {
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(cell) = cells.get(index / seeds) else { return };
            let report = |part: f64| {
                let mut done = lock();
                done.1[index] = part;
                let sum: f64 = done.1.iter().sum();
                drop(done);
                progress(sum / total as f64)
            };
            let seed = (index % seeds) as u64 + 1;
            let outcome = run(&cell.model(config), cell.scheduler, &cell.replacement, seed, Stepping::Events, &report);
            if outcome.is_err() {
                next.store(total, Relaxed);
            }
            lock().0[index] = Some(outcome);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.min(total) {
            scope.spawn(work);
        }
        work();
    });
    let (outcomes, _) = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failed = outcomes.iter().flatten().find_map(|outcome| outcome.as_ref().err());
    if let Some(error) = failed {
        return Err(error.clone());
    }
    let outcomes: Vec<Outcome> = outcomes.into_iter().flatten().flatten().collect();
    let rows = cells.into_iter().zip(outcomes.chunks(seeds));
    Ok(rows.map(|(cell, outcomes)| Row { cell, outcomes: outcomes.to_vec() }).collect())
}

impl Cell {
    /// Returns the model of this cell.
    #[must_use]
    pub fn model(&self, config: &Config) -> Model {
        Model { network: self.network.clone(), remote_clk: self.remote_cost_clk, ..config.model.clone() }
    }
}
