//! Runs one cell: a machine, a scheduler and a replacement method, until the first process ends.

use super::clocked::Log;
use super::engine::{Engine, FromStrings};
use super::memory::Replacement;
use super::model::Model;
use super::references::Table;
use super::schedule::Info;
use super::world::{Counts, World};

/// The way in which the simulation advances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stepping {
    /// The simulation advances from event to event.
    Events,
    /// The simulation advances clock by clock. The results are the same, but the run is slow.
    Clocks,
}

/// The result of one run.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// Effective clocks of all threads, in percent of the clocks of all processors (paper 5, 3.1 and 4).
    pub effective_percent: f64,
    /// Number of quanta until the first process reached its effective quanta. If no process did, this is the largest
    /// number allowed.
    pub quanta: u32,
    /// Whether any process completed its effective quanta.
    pub finished: bool,
    /// Clocks for which processors had a thread, in percent of the clocks of all processors.
    pub placed_percent: f64,
    /// Fairness of the division of processor time: Jain's index of processor-clocks over the processes. It is 1 if all
    /// processes had the same time.
    pub fairness: f64,
    /// The counters.
    pub counts: Counts,
    /// Effective clocks of each thread.
    pub effective_clk: Vec<u64>,
}

/// Why a run has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RunError {
    /// The policy cannot be built.
    Policy(String),
    /// The caller stopped the run.
    Stopped,
}

impl std::fmt::Display for RunError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Policy(text) => f.write_str(text),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for RunError {}

/// Runs one machine. Between quanta, calls `progress` with the part done, from 0 to 1. If `progress` returns false, the
/// run stops.
///
/// # Errors
/// Returns a [`RunError`] if the policy cannot be built, or if `progress` has stopped the run.
pub fn run(
    model: &Model,
    scheduler: &'static Info,
    replacement: &Replacement,
    seed: u64,
    stepping: Stepping,
    progress: &dyn Fn(f64) -> bool,
) -> Result<Outcome, RunError> {
    let tables: Vec<Table> = model.processes.iter().map(|group| model.table(group)).collect();
    let world = World::new(model, &tables, replacement, scheduler, seed);
    let mut world = world.map_err(|error| RunError::Policy(error.to_string()))?;
    let (mut engine, mut log) = (Engine::new(model.network.clusters()), Log::default());
    let quantum_clk = u64::from(model.quantum_clk);
    let (mut quanta, mut finished) = (0, false);
    while !finished && quanta < model.quanta_max {
        let begin = u64::from(quanta) * quantum_clk;
        let end = begin + quantum_clk;
        world.begin_quantum(begin, seed);
        match stepping {
            Stepping::Events => {
                engine.quantum(&mut world, end, seed);
                world.end_quantum(&FromStrings, end);
            }
            Stepping::Clocks => {
                log.quantum(&mut world, begin, end, seed);
                world.end_quantum(&log, end);
            }
        }
        quanta += 1;
        let part = furthest(model, &world);
        finished = part >= 1.0;
        if !progress(part.max(f64::from(quanta) / f64::from(model.quanta_max)).min(1.0)) {
            return Err(RunError::Stopped);
        }
    }
    Ok(outcome(model, &world, quanta, finished))
}

/// Returns the progress of the process that is furthest, as a fraction of the effective quanta after which a process
/// ends. If the fraction is 1 or more, that process has ended.
fn furthest(model: &Model, world: &World<'_>) -> f64 {
    let needed = u64::from(model.finish_quanta) * u64::from(model.quantum_clk);
    let parts = world.state.processes.iter().map(|process| {
        let (first, count) = (process.first_thread as usize, process.processors as usize);
        let threads = &world.state.threads[first..first + count];
        threads.iter().map(|thread| thread.effective).sum::<u64>() as f64 / (needed * count as u64) as f64
    });
    parts.fold(0.0, f64::max)
}

fn outcome(model: &Model, world: &World<'_>, quanta: u32, finished: bool) -> Outcome {
    let effective_clk: Vec<u64> = world.state.threads.iter().map(|thread| thread.effective).collect();
    let all = f64::from(quanta) * f64::from(model.quantum_clk) * f64::from(model.network.clusters());
    let used: Vec<f64> = world.state.processes.iter().map(|p| f64::from(p.quanta) * f64::from(p.processors)).collect();
    let (sum, squares) = (used.iter().sum::<f64>(), used.iter().map(|used| used * used).sum::<f64>());
    Outcome {
        effective_percent: 100.0 * effective_clk.iter().sum::<u64>() as f64 / all.max(1.0),
        quanta,
        finished,
        placed_percent: 100.0 * world.counts.placed_clk as f64 / all.max(1.0),
        fairness: if squares > 0.0 { sum * sum / (squares * used.len() as f64) } else { 1.0 },
        counts: world.counts,
        effective_clk,
    }
}
