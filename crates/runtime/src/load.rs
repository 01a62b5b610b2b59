//! The load of a run: how much time its threads spent on CPUs, and how much of its time it stood still for pages.
//!
//! Several threads may wait for pages at the same time, while others go on. The sum of their waits is then more than the
//! time that the run lost. It is divided by the number of threads that are active on average. A thread is active while it
//! computes or waits for a page.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hanare_sys::clock::cpu_ns;

use crate::counters::{Counters, add};

/// Time of a fault that lies outside the handler: the trap itself, and the way back to the program. In sigbus and sigsegv
/// mode, it is the delivery of a signal.
const SIGNAL_NS: u64 = 1_500;
/// The same in thread mode, where the kernel wakes the handler's thread and then the program's.
const WAKE_NS: u64 = 4_000;

/// Time on CPUs of this process that was published, or that was spent before the engine started.
static PUBLISHED_NS: AtomicU64 = AtomicU64::new(0);

/// Counts the time on CPUs from now on. A forked child calls this function, too: its clock begins anew.
pub(crate) fn begin() {
    PUBLISHED_NS.store(cpu_ns(), Relaxed);
}

/// Adds the time on CPUs since the last call to the counters.
pub(crate) fn publish(counters: &Counters) {
    let now = cpu_ns();
    add(&counters.cpu_ns, now.saturating_sub(PUBLISHED_NS.swap(now, Relaxed)));
}

/// Returns the time that one fault costs beside its handling, in a trap mode by its number in the counters.
#[must_use]
pub fn trap_ns(mode: u64) -> u64 {
    if mode == 1 { WAKE_NS } else { SIGNAL_NS }
}

/// The work and the waits of a run's threads in a time. All times are in the same unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// The time by the clock.
    pub wall: f64,
    /// Time on CPUs, of all threads.
    pub cpu: f64,
    /// Waits for pages, of all threads.
    pub waits: f64,
    /// Whether a thread spends its waits on a CPU, because it copies the page itself.
    pub waits_on_cpu: bool,
}

impl Load {
    /// Returns the number of threads that were active on average, at least 1.
    #[must_use]
    pub fn threads(&self) -> f64 {
        let active = if self.waits_on_cpu { self.cpu.max(self.waits) } else { self.cpu + self.waits };
        if self.wall > 0.0 { (active / self.wall).max(1.0) } else { 1.0 }
    }

    /// Returns the share of the time that the run stood still, from 0 to 0.99.
    #[must_use]
    pub fn stall_share(&self) -> f64 {
        if self.wall > 0.0 { (self.waits / self.threads() / self.wall).clamp(0.0, 0.99) } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_several_threads_are_shared_out() {
        let load = |cpu, waits, waits_on_cpu| Load { wall: 10.0, cpu, waits, waits_on_cpu };
        // One thread that waits half of its time, on a CPU or not.
        assert_eq!(load(10.0, 5.0, true).stall_share(), 0.5);
        assert_eq!(load(5.0, 5.0, false).stall_share(), 0.5);
        // Four threads that do the same.
        assert_eq!(load(40.0, 20.0, true).stall_share(), 0.5);
        assert_eq!(load(20.0, 20.0, false).stall_share(), 0.5);
        // A program that sleeps most of its time.
        assert_eq!(load(1.0, 1.0, false).stall_share(), 0.1);
        assert_eq!(load(0.0, 0.0, true).stall_share(), 0.0);
        assert_eq!(Load { wall: 0.0, cpu: 1.0, waits: 1.0, waits_on_cpu: true }.stall_share(), 0.0);
    }
}
