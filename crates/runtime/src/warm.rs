//! Keeps idle CPUs awake while small pages are faulted in one after the other.
//!
//! A virtual CPU that has gone idle takes some 20 us to wake, several times what serving a fault takes, and the scheduler
//! likes to put the thread it wakes on just that CPU. While faults come close together, warmers spin there at the lowest
//! priority (nice 19): whatever else wants to run takes the CPU from them at once, and wake-ups stay where they were.
//! Nobody spins longer than a millisecond after the last fault.
//!
//! The handler in the program gives the signal, through the shared counters; the warmers are threads of the command that
//! started it. In the program itself they would keep its page tables loaded on their CPUs, and each page taken out of
//! view would have to interrupt them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::thread::JoinHandle;

use hanare_sys::signal::SignalMask;
use hanare_sys::{futex, thread};

use crate::engine::now_ns;
use crate::stats::Stats;

/// Most CPUs that are kept awake. On a larger machine `together` does what can be done.
const WARMERS_MAX: usize = 3;
/// Faults closer together than this are dense.
const DENSE_NS: u64 = 150_000;
/// Dense faults in a row after which it is worth waking the warmers.
const ENOUGH: u32 = 32;
/// How long after the last fault the warmers give up.
const PATIENCE_NS: u64 = 1_000_000;
/// Pauses between two looks at the clock, about 2 us.
const PAUSES: u32 = 64;

/// What the handler tells the warmers: part of the shared counters.
#[repr(C)]
pub struct Signal {
    /// When the last small fault came, on CLOCK_MONOTONIC.
    last_ns: AtomicU64,
    /// Counted up to wake the warmers.
    bell: AtomicU32,
    /// Dense faults in a row.
    dense: AtomicU32,
}

impl Signal {
    /// A small page was faulted at this time.
    pub(crate) fn fault(&self, now_ns: u64) {
        let last = self.last_ns.swap(now_ns, Relaxed);
        if now_ns.saturating_sub(last) > DENSE_NS {
            self.dense.store(0, Relaxed);
        } else if self.dense.fetch_add(1, Relaxed) % ENOUGH == ENOUGH - 1 {
            // Warmers that spin already do not wait for this, and waking nobody costs little.
            self.ring();
        }
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Release);
        futex::wake_shared(&self.bell);
    }
}

/// Threads that keep CPUs awake for the programs on some counters, until this is dropped.
pub struct Warmers {
    stats: Arc<Stats>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Warmers {
    /// Starts one for each CPU this process may use but the one that serves a fault, and three at most.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(stats: &Arc<Stats>) -> io::Result<Self> {
        let mut warmers = Warmers { stats: Arc::clone(stats), stop: Arc::default(), threads: Vec::new() };
        let count = (thread::cpus_allowed() - 1).min(WARMERS_MAX);
        let _mask = SignalMask::block_all();
        for _ in 0..count {
            let (stats, stop) = (Arc::clone(stats), Arc::clone(&warmers.stop));
            let builder = std::thread::Builder::new().name("hanare-warmer".to_owned()).stack_size(64 << 10);
            warmers.threads.push(builder.spawn(move || keep_awake(&stats.warm, &stop))?);
        }
        Ok(warmers)
    }
}

impl Drop for Warmers {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        self.stats.warm.ring();
        for thread in self.threads.drain(..) {
            // A warmer has nothing that could fail.
            let _ = thread.join();
        }
    }
}

fn keep_awake(signal: &Signal, stop: &AtomicBool) {
    if !thread::set_last() {
        return;
    }
    loop {
        let heard = signal.bell.load(Acquire);
        if stop.load(Acquire) {
            return;
        }
        let since_last = || now_ns().saturating_sub(signal.last_ns.load(Relaxed));
        while since_last() < PATIENCE_NS && !stop.load(Relaxed) {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        futex::wait_shared(&signal.bell, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_row_of_dense_faults_rings() {
        let stats = Stats::attach(None, None).unwrap();
        let rung = || stats.warm.bell.load(Relaxed);
        let mut now = 1_000_000_000;
        for _ in 0..10 * ENOUGH {
            now += DENSE_NS + 1;
            stats.warm.fault(now);
        }
        assert_eq!(rung(), 0, "faults far apart");
        for _ in 0..3 * ENOUGH {
            now += DENSE_NS;
            stats.warm.fault(now);
        }
        assert_eq!(rung(), 3);
    }

    #[test]
    fn warmers_end_when_dropped_whether_they_spin_or_sleep() {
        let stats = Arc::new(Stats::attach(None, None).unwrap());
        drop(Warmers::start(&stats).unwrap());
        let warmers = Warmers::start(&stats).unwrap();
        // They would spin until then.
        stats.warm.last_ns.store(u64::MAX, Relaxed);
        stats.warm.ring();
        drop(warmers);
    }
}
