//! Handler affinity: keeps the handler thread and the thread whose faults it resolves on one CPU.
//!
//! Waking a thread on its own CPU costs about 2 us. Waking one on an idle CPU costs an interrupt to that CPU, some 20
//! us where CPUs are virtual. The scheduler prefers the idle CPU each time, so on an otherwise idle machine the two
//! threads would move after each other. The handler pins itself to the other thread's CPU. If that thread moves even
//! so, the handler confines it for the length of each wake-up. Confining has two conditions. The handler must have the
//! right to run first (SCHED_FIFO), so that the thread is free again before it runs. The program must have one thread
//! only, so that no other thread can starve.

use hanare_sys::thread::{self, Confined, CpuCell, CpuWatch};

use crate::view::LiveView;

/// Faults between two checks of a thread's CPU, where finding it out is expensive.
const LOOK_EVERY: u32 = 32;
/// Faults for which a thread that has moved stays confined.
const CONFINE_FAULTS: u32 = 1024;

pub(crate) struct Together {
    first_thread: Option<CpuCell>,
    watch: Option<(i32, CpuWatch)>,
    faults: u32,
    /// The CPU the handler has pinned itself to.
    cpu: Option<usize>,
    /// Faults for which confining continues.
    confine: u32,
    /// Whether the handler has the right to run first (SCHED_FIFO). `None` once the kernel has refused it.
    first: Option<bool>,
}

impl Together {
    /// `first_thread` reports the CPU of the program's first thread.
    pub(crate) fn new(first_thread: Option<CpuCell>) -> Self {
        Self { first_thread, watch: None, faults: 0, cpu: None, confine: 0, first: Some(false) }
    }

    /// Moves to the CPU of a thread that waits for its fault to be resolved. Drop the returned value once the fault is
    /// resolved, before any wait.
    pub(crate) fn on_fault(&mut self, tid: i32, view: &LiveView, small: bool) -> Option<Confined> {
        if !small {
            // Moving a large page takes longer than any wake-up, and other threads must not wait for it.
            if self.first == Some(true) {
                self.first = thread::set_first(false).then_some(false);
            }
            return None;
        }
        self.faults = self.faults.wrapping_add(1);
        let moved = self.cpu_of(tid).filter(|cpu| self.cpu != Some(*cpu));
        // With several faulting threads, the handler would move with every fault.
        if let Some(cpu) = moved.filter(|_| self.faults % LOOK_EVERY == 1 || view.is_alone()) {
            if self.cpu.is_some() && self.first_thread.is_some_and(|cell| cell.cpu(tid).is_some()) {
                self.confine = CONFINE_FAULTS;
            }
            // A refusal by the kernel costs only speed.
            if thread::set_affinity(&[cpu]).is_ok() {
                self.cpu = Some(cpu);
            }
        }
        let confine = self.confine > 0 && self.first.is_some() && view.is_alone();
        if self.first == Some(!confine) {
            self.first = thread::set_first(confine).then_some(confine);
        }
        if self.first != Some(true) {
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
