//! Handler affinity: keeps the handler thread and the thread whose faults it resolves on one CPU.
//!
//! Waking a thread on the waker's own CPU costs about 2 us. Waking a thread on an idle CPU needs an interrupt to that
//! CPU, which costs some 20 us if CPUs are virtual. The scheduler prefers the idle CPU. So the handler pins itself to
//! the CPU of the faulting thread. If the faulting thread still moves to another CPU, the handler confines that thread
//! to the handler's CPU during each wake-up. Confining has two conditions. The handler must have the right to run first
//! (SCHED_FIFO), so that it can release the thread before the thread runs. The program must have only one thread, so
//! that no other thread can starve.

use hanare_sys::thread::{self, Confined, CpuCell, CpuWatch};

use crate::threads;

/// Number of faults between two checks of a thread's CPU, if the check is expensive.
const LOOK_EVERY: u32 = 32;
/// Number of faults for which a thread is confined after it has moved.
const CONFINE_FAULTS: u32 = 1024;

pub(crate) struct Together {
    first_thread: Option<CpuCell>,
    watch: Option<(i32, CpuWatch)>,
    faults: u32,
    /// The CPU to which the handler has pinned itself.
    cpu: Option<usize>,
    /// Number of further faults for which the faulting thread is confined.
    confine: u32,
    /// Whether the handler has the right to run first (SCHED_FIFO). `None` once the kernel has refused it.
    first: Option<bool>,
}

impl Together {
    /// Returns a state in which no thread is pinned or confined. `first_thread` reports the CPU of the program's first
    /// thread.
    pub(crate) fn new(first_thread: Option<CpuCell>) -> Self {
        Self { first_thread, watch: None, faults: 0, cpu: None, confine: 0, first: Some(false) }
    }

    /// Moves the handler thread to the CPU of thread `tid`, whose fault is about to be served.
    pub(crate) fn on_fault(&mut self, tid: i32, small: bool) {
        if !small {
            // Moving a large page takes longer than any wake-up. The handler gives up its right to run first, so that
            // other threads can run meanwhile.
            if self.first == Some(true) {
                self.first = thread::set_first(false).then_some(false);
            }
            return;
        }
        self.faults = self.faults.wrapping_add(1);
        let moved = self.cpu_of(tid).filter(|cpu| self.cpu != Some(*cpu));
        // If the program has several threads, the handler moves only every `LOOK_EVERY` faults. Otherwise it might move
        // with every fault.
        if let Some(cpu) = moved.filter(|_| self.faults % LOOK_EVERY == 1 || threads::is_alone()) {
            if self.cpu.is_some() && self.first_thread.is_some_and(|cell| cell.cpu(tid).is_some()) {
                self.confine = CONFINE_FAULTS;
            }
            // A refusal by the kernel costs only speed.
            if thread::set_affinity(&[cpu]).is_ok() {
                self.cpu = Some(cpu);
            }
        }
        let confine = self.confine > 0 && self.first.is_some() && threads::is_alone();
        if self.first == Some(!confine) {
            self.first = thread::set_first(confine).then_some(confine);
        }
    }

    /// May confine thread `tid`, whose page is about to be made accessible. The caller must drop the returned value after
    /// that and before it waits.
    pub(crate) fn confine(&mut self, tid: i32) -> Option<Confined> {
        if self.first != Some(true) || self.confine == 0 {
            return None;
        }
        self.confine -= 1;
        Confined::to(tid, self.cpu?)
    }

    fn cpu_of(&mut self, tid: i32) -> Option<usize> {
        if let Some(cpu) = self.first_thread.and_then(|cell| cell.cpu(tid)) {
            return Some(cpu);
        }
        if self.faults % LOOK_EVERY != 1 {
            return None;
        }
        if self.watch.as_ref().is_none_or(|(watched, _)| *watched != tid) {
            self.watch = CpuWatch::open(tid).map(|watch| (tid, watch));
        }
        self.watch.as_ref()?.1.cpu()
    }
}
