//! Keeps the handler thread and the thread whose faults it serves on one CPU.
//!
//! Waking a thread on its own CPU costs about 2 us; waking one on an idle CPU costs an interrupt to it, some 20 us where
//! CPUs are virtual. The scheduler prefers the idle CPU each time, so with nothing else to do on the machine the two
//! threads would chase each other. The handler pins itself to the other's CPU; and once it sees that one move all the
//! same, it confines it for the length of each wake-up. That asks for the right to run first (SCHED_FIFO), so that the
//! thread is free again before it can look, and for a program of one thread, whose other threads cannot starve.

use hanare_sys::thread::{self, Confined, CpuCell, CpuWatch};

use crate::view::LiveView;

/// Faults between two looks at a thread whose CPU is dear to learn.
const LOOK_EVERY: u32 = 32;
/// Faults for which a thread that has moved is confined.
const CONFINE_FAULTS: u32 = 1024;

pub(crate) struct Together {
    first_thread: Option<CpuCell>,
    watch: Option<(i32, CpuWatch)>,
    faults: u32,
    /// The CPU the handler has pinned itself to.
    cpu: Option<usize>,
    /// Faults for which to go on confining.
    confine: u32,
    /// Whether the handler runs first; none once the kernel has refused it.
    first: Option<bool>,
}

impl Together {
    /// `first_thread` tells the CPU of the program's first thread.
    pub(crate) fn new(first_thread: Option<CpuCell>) -> Self {
        Self { first_thread, watch: None, faults: 0, cpu: None, confine: 0, first: Some(false) }
    }

    /// Comes to the CPU of a thread that waits for the answer to its fault. What is returned is to be dropped once it was
    /// answered, without waiting for anything.
    pub(crate) fn on_fault(&mut self, tid: i32, view: &LiveView, small: bool) -> Option<Confined> {
        if !small {
            // Moving a large page takes longer than any wake-up, and other threads must not wait for that.
            if self.first == Some(true) {
                self.first = thread::set_first(false).then_some(false);
            }
            return None;
        }
        self.faults = self.faults.wrapping_add(1);
        let moved = self.cpu_of(tid).filter(|cpu| self.cpu != Some(*cpu));
        // Several threads that fault in turn would have the handler move all the time.
        if let Some(cpu) = moved.filter(|_| self.faults % LOOK_EVERY == 1 || view.is_alone()) {
            if self.cpu.is_some() && self.first_thread.is_some_and(|cell| cell.cpu(tid).is_some()) {
                self.confine = CONFINE_FAULTS;
            }
            // Only speed is lost when the kernel refuses.
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
