//! The clock-by-clock engine: in every clock, each thread either executes or does not. This engine is too slow for use
//! and too simple to be wrong. The tests compare the event-skipping engine with it.

use std::collections::HashMap;
use std::ops::Range;

use super::state::{Moment, NONE, State};
use super::world::{Fault, History, World};

/// The history of every thread.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The effective clock of the last reference, by thread and page.
    references: HashMap<(u32, u32), u64>,
    /// The clock of the last write, by thread and page.
    writes: HashMap<(u32, u32), u64>,
}

impl History for Log {
    fn last(&self, _: &State<'_>, thread: u32, index: u32, range: Range<u64>) -> Option<u64> {
        self.references.get(&(thread, index)).copied().filter(|last| range.contains(last))
    }

    fn referenced(&self, state: &State<'_>, thread: u32, index: u32, range: Range<u64>) -> bool {
        self.last(state, thread, index, range).is_some()
    }

    fn wrote(&self, _: &State<'_>, thread: u32, index: u32, now: Moment, clocks: u64) -> bool {
        self.writes.get(&(thread, index)).is_some_and(|clock| clock + clocks > now.clock)
    }
}

impl Log {
    /// Lets the threads that have a processor execute up to clock `end`, exclusive.
    pub(super) fn quantum(&mut self, world: &mut World<'_>, begin: u64, end: u64, seed: u64) {
        for clock in begin..end {
            for cluster in 0..world.runners.len() as u32 {
                self.turn(world, Moment { clock, cluster }, seed);
            }
        }
    }

    fn turn(&mut self, world: &mut World<'_>, now: Moment, seed: u64) {
        let Some(runner) = &world.runners[now.cluster as usize] else { return };
        let thread = runner.thread;
        let found = &mut world.state.threads[thread as usize];
        if found.at_barrier || found.since > now.clock {
            return;
        }
        found.since = now.clock;
        let at = found.effective;
        let reference = found.references.at(at);
        if runner.ids[reference.page as usize] == NONE {
            let fault = world.fault(self, now, reference.page, reference.write);
            world.lost.clear();
            if let Fault::Wait(clock) | Fault::Retry(clock) = fault {
                world.state.threads[thread as usize].since = clock;
                return;
            }
        }
        if world.model.writers_wait && reference.write && world.state.threads[thread as usize].paid != at + 1 {
            let process = world.state.threads[thread as usize].process;
            let wait = world.update_wait(now.cluster, reference.page);
            if reference.page < world.state.processes[process as usize].shared_pages && wait > 0 {
                let found = &mut world.state.threads[thread as usize];
                (found.paid, found.since) = (at + 1, now.clock + wait);
                return;
            }
        }
        self.execute(world, now, thread, at, seed);
    }

    fn execute(&mut self, world: &mut World<'_>, now: Moment, thread: u32, at: u64, seed: u64) {
        let keep = world.keep_clk();
        let found = &mut world.state.threads[thread as usize];
        let reference = found.references.at(at);
        self.references.insert((thread, reference.page), at);
        if reference.write {
            self.writes.insert((thread, reference.page), now.clock);
        }
        found.close(at + 1, keep);
        found.since = now.clock + 1;
        let every = u64::from(world.model.sync_every_clk);
        if every > 0
            && (at + 1).is_multiple_of(every)
            && let Some(group) = world.arrive(thread, (at + 1) / every, seed)
        {
            world.release(&group, now.clock + 1 + u64::from(world.model.sync_clk));
        }
    }
}
