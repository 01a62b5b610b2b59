//! Polling on idle CPUs while base pages are faulted in one after another.
//!
//! An idle virtual CPU takes some 20 us to wake. That is several times the time to resolve a fault. The scheduler tends
//! to place a woken thread on an idle CPU. So while faults follow each other closely, pollers spin on the otherwise
//! idle CPUs, at the lowest priority (nice 19). Any other thread takes the CPU from a poller immediately, and woken
//! threads return to the CPUs on which they ran before. No poller spins longer than a millisecond after the last fault.
//!
//! The fault handler in the program notifies the pollers through the shared counters. The pollers are threads of the
//! command that started the program, and not of the program. In the program, they would keep its page tables loaded on
//! their CPUs. Each unmapped page would then need an interrupt to these CPUs (TLB shootdown).

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::thread::JoinHandle;

use hanare_sys::signal::SignalMask;
use hanare_sys::{futex, thread};

use hanare_sys::clock::now_ns;

/// Maximum number of CPUs that pollers keep awake. On a larger machine, module `together` helps instead: it keeps the
/// handler thread and the faulting thread on one CPU.
const POLLERS_MAX: usize = 3;
/// Longest time between two faults, in nanoseconds, at which the second fault counts as dense.
const DENSE_NS: u64 = 150_000;
/// Number of successive dense faults after which the pollers are notified.
const ENOUGH: u32 = 32;
/// Nanoseconds after the last fault at which the pollers stop.
const PATIENCE_NS: u64 = 1_000_000;
/// Pause instructions between two readings of the clock. Together they take about 2 us.
const PAUSES: u32 = 64;

/// The rate of faults on base pages: part of the shared counters.
#[repr(C)]
#[derive(Default)]
pub struct FaultRate {
    /// Time of the last fault on a base page, on CLOCK_MONOTONIC.
    last_ns: AtomicU64,
    /// Incremented to wake the pollers.
    wakeups: AtomicU32,
    /// Number of successive dense faults.
    dense: AtomicU32,
}

impl FaultRate {
    /// Notes a fault on a base page at this time.
    pub(crate) fn fault(&self, now_ns: u64) {
        let last = self.last_ns.swap(now_ns, Relaxed);
        if now_ns.saturating_sub(last) > DENSE_NS {
            self.dense.store(0, Relaxed);
        } else if self.dense.fetch_add(1, Relaxed) % ENOUGH == ENOUGH - 1 {
            // While all pollers spin, no thread waits on the futex, so this call costs little.
            self.notify();
        }
    }

    fn notify(&self) {
        self.wakeups.fetch_add(1, Release);
        futex::wake_shared(&self.wakeups);
    }
}

/// A source of the fault rate that decides whether idle CPUs poll.
pub trait HasFaultRate: Send + Sync + 'static {
    /// Returns the fault rate.
    fn fault_rate(&self) -> &FaultRate;
}

/// The poller threads for the programs that share one set of counters. The threads end when this value is dropped.
pub struct Pollers {
    counters: Arc<dyn HasFaultRate>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Pollers {
    /// Starts a poller for each CPU that this process may use, but leaves out one CPU for the thread that resolves
    /// faults. Starts at most three pollers.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(counters: Arc<dyn HasFaultRate>) -> io::Result<Self> {
        let mut pollers = Pollers { counters, stop: Arc::default(), threads: Vec::new() };
        let count = (thread::cpus_allowed() - 1).min(POLLERS_MAX);
        let _mask = SignalMask::block_all();
        for _ in 0..count {
            let (counters, stop) = (Arc::clone(&pollers.counters), Arc::clone(&pollers.stop));
            let builder = std::thread::Builder::new().name("hanare-poller".to_owned()).stack_size(64 << 10);
            pollers.threads.push(builder.spawn(move || keep_awake(counters.fault_rate(), &stop))?);
        }
        Ok(pollers)
    }
}

impl Drop for Pollers {
    fn drop(&mut self) {
        self.stop.store(true, Release);
        self.counters.fault_rate().notify();
        for thread in self.threads.drain(..) {
            // A poller cannot fail.
            let _ = thread.join();
        }
    }
}

/// The main function of a poller.
fn keep_awake(rate: &FaultRate, stop: &AtomicBool) {
    if !thread::set_last() {
        return;
    }
    loop {
        let heard = rate.wakeups.load(Acquire);
        if stop.load(Acquire) {
            return;
        }
        let since_last = || now_ns().saturating_sub(rate.last_ns.load(Relaxed));
        while since_last() < PATIENCE_NS && !stop.load(Relaxed) {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
        }
        futex::wait_shared(&rate.wakeups, heard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HasFaultRate for FaultRate {
        fn fault_rate(&self) -> &FaultRate {
            self
        }
    }

    #[test]
    fn only_a_row_of_dense_faults_notifies() {
        let rate = FaultRate::default();
        let notified = || rate.wakeups.load(Relaxed);
        let mut now = 1_000_000_000;
        for _ in 0..10 * ENOUGH {
            now += DENSE_NS + 1;
            rate.fault(now);
        }
        assert_eq!(notified(), 0, "faults far apart");
        for _ in 0..3 * ENOUGH {
            now += DENSE_NS;
            rate.fault(now);
        }
        assert_eq!(notified(), 3);
    }

    #[test]
    fn pollers_end_when_dropped_whether_they_spin_or_sleep() {
        let rate = Arc::new(FaultRate::default());
        drop(Pollers::start(Arc::<FaultRate>::clone(&rate)).unwrap());
        let pollers = Pollers::start(Arc::<FaultRate>::clone(&rate)).unwrap();
        // With this time of the last fault, the pollers spin until they are stopped.
        rate.last_ns.store(u64::MAX, Relaxed);
        rate.notify();
        drop(pollers);
    }
}
