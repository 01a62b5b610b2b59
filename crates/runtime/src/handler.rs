//! The traps: a handler thread that reads userfaultfd (thread mode), or a signal handler in the faulting thread (sigbus
//! and sigsegv mode). They only translate what the kernel says into faults of the engine.

use std::sync::atomic::{AtomicU32, Ordering::Acquire};
use std::time::Duration;

use hanare_sys::signal::{FaultInfo, Verdict};
use hanare_sys::uffd::{self, Uffd};
use hanare_sys::thread::{self, CpuWatch};
use hanare_sys::{futex, signal::SignalMask};
use hanare_wire::Wait;

use crate::engine::{Engine, Store, now_ns};
use crate::{accounts, far};

/// Faults after which the handler looks again on which CPU the faulting thread runs.
const FOLLOW_EVERY: u32 = 32;

/// Resolves a fault signal in the thread that touched.
pub(crate) fn on_signal(info: FaultInfo) -> Verdict {
    let Some(engine) = far::engine_at(info.addr) else { return Verdict::NotOurs };
    // In sigsegv mode the program's own protection traps like ours, and is the program's to handle.
    let offset = info.addr - engine.view().base();
    if info.signal == libc::SIGSEGV && !engine.view().permits(offset, info.write.unwrap_or(false)) {
        return Verdict::NotOurs;
    }
    engine.on_own_stack(|| engine.fault_here(info.addr, info.write));
    Verdict::Handled
}

/// The life of the handler thread.
pub(crate) fn run(engine: &'static Engine) {
    let _mask = SignalMask::block_all();
    let Some(uffd) = engine.view().uffd() else { return };
    let mut follow = Follow::default();
    loop {
        if serve(engine, uffd, &mut follow) == 0 {
            let _ = uffd.wait(None, Some(Duration::from_millis(500)));
        }
    }
}

/// Serves the faults that are there and those that come while they are served; returns how many.
fn serve(engine: &Engine, uffd: &Uffd, follow: &mut Follow) -> u32 {
    let mut served = 0;
    let mut events = [uffd::Event::EMPTY; uffd::EVENTS_PER_READ];
    loop {
        let count = uffd.read_events(&mut events);
        let started = now_ns();
        for event in &events[..count] {
            let uffd::Event::Fault { addr, write, wp, tid, .. } = *event else { continue };
            follow.fault_of(tid);
            let opened = engine.fault_there(addr, write || wp);
            finish_when_alone(engine, count);
            accounts::fault(engine.counters, opened, now_ns() - started);
            served += 1;
        }
        let awaited = match engine.store() {
            Store::Remote(remote) if remote.is_awaited() => {
                remote.pump(engine, Wait::Spin { iterations: 50 });
                true
            }
            _ => false,
        };
        if count == 0 && !awaited {
            return served;
        }
    }
}

/// A single fault is waited for here, so that its latency is known; several are served side by side.
fn finish_when_alone(engine: &Engine, faults: usize) {
    let Store::Remote(remote) = engine.store() else { return };
    let mut spins = 0;
    while faults == 1 && remote.is_awaited() && spins < 4 {
        remote.pump(engine, Wait::Spin { iterations: 50 });
        spins += 1;
    }
}

/// Keeps the handler on the CPU of the thread whose faults it serves: waking it there costs a tenth of waking it
/// elsewhere.
#[derive(Default)]
struct Follow {
    faults: u32,
    cpu: Option<usize>,
    watch: Option<(i32, CpuWatch)>,
}

impl Follow {
    fn fault_of(&mut self, tid: i32) {
        self.faults += 1;
        if self.faults % FOLLOW_EVERY != 1 {
            return;
        }
        if self.watch.as_ref().is_none_or(|(watched, _)| *watched != tid) {
            self.watch = CpuWatch::open(tid).map(|watch| (tid, watch));
        }
        let cpu = self.watch.as_ref().and_then(|(_, watch)| watch.cpu());
        if cpu.is_some() && cpu != self.cpu {
            self.cpu = cpu;
            // Only speed is lost when the kernel refuses.
            let _ = thread::set_affinity(cpu.as_slice());
        }
    }
}

/// Rung when the keeper has something to do at once.
pub(crate) static KEEPER_BELL: AtomicU32 = AtomicU32::new(0);

/// The life of the keeper: upkeep of the links, and counters that are never older than a tenth of a second.
pub(crate) fn keep(engine: &'static Engine) {
    let _mask = SignalMask::block_all();
    let mut published_ns = 0;
    loop {
        let heard = KEEPER_BELL.load(Acquire);
        let busy = matches!(engine.store(), Store::Remote(remote) if remote.is_reading());
        let _ = futex::wait(&KEEPER_BELL, heard, Some(Duration::from_millis(if busy { 1 } else { 20 })));
        engine.keep();
        if now_ns() - published_ns > 100_000_000 {
            engine.publish();
            published_ns = now_ns();
        }
    }
}

