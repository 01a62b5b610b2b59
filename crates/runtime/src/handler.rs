//! The traps: a handler thread that reads userfaultfd (thread mode), or a signal handler in the faulting thread (sigbus
//! and sigsegv mode). Both only translate the kernel's messages into faults of the engine.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use hanare_store::Polled;
use hanare_sys::signal::{FaultInfo, Verdict};
use hanare_sys::thread::CpuCell;
use hanare_sys::uffd::{self, Uffd};
use hanare_sys::{Errno, mark, signal::SignalMask};
use hanare_wire::Wait;

use crate::engine::Engine;
use crate::fatal::{self, EXIT_KERNEL};
use crate::span::OS_PAGE;
use crate::together::Together;
use crate::view::View;
use crate::watchdog::Waiting;
use crate::{accounts, gate, kernel, process, profile};
use hanare_sys::clock::now_ns;

/// Maximum number of faults that the handler keeps in its list while their pages are in transit. Further faults are
/// resolved too, but their recorded latency is too short.
const WAITING_MAX: usize = 256;
/// Maximum number of faults that wait for the turn of another thread. Further faults do not wait.
const ASIDE_MAX: usize = 256;
/// Number of waiting rounds, about 5 us each, in which the handler polls the link. In later rounds, it sleeps.
const ROUNDS_POLLING: u32 = 60;
/// Longest sleep of the handler while a page needs the answers of several servers. Slow answers are noticed after it.
const SLEEP: Duration = Duration::from_micros(200);
/// Number of rounds after which the handler stops waiting for the page of a fault. By then, the page must have arrived
/// and been evicted again between two rounds.
const ROUNDS_MAX: u32 = 10_000;
/// Number of rounds after which the handler registers a waiting fault with the watchdog.
const ROUNDS_UNWATCHED: u32 = 500;
/// Number of rounds between two wake-ups of a thread that still waits.
const ROUNDS_UNHEARD: u32 = 2_500;

/// Resolves a fault signal in the faulting thread.
pub(crate) fn on_signal(info: FaultInfo) -> Verdict {
    // A child created by a direct system call cannot page, because its links belong to its parent. The signal then ends
    // the child.
    if !mark::is_set() {
        return Verdict::NotOurs;
    }
    let _inside = gate::enter();
    let Some((engine, offset)) = process::engine_at(info.addr) else { return Verdict::NotOurs };
    // In sigsegv mode, an access that the program itself has forbidden (mprotect) traps too. That fault is left to the
    // program.
    if info.signal == libc::SIGSEGV && !engine.view().permits(offset, info.write.unwrap_or(false)) {
        return Verdict::NotOurs;
    }
    let since_ns = profile::begin();
    engine.on_own_stack(|| engine.fault_here(info.addr, info.write));
    profile::end(since_ns, Some(info.at), offset);
    Verdict::Handled
}

/// The main function of the handler thread.
pub(crate) fn run(engine: &'static Engine, first_thread: Option<CpuCell>) {
    let _mask = SignalMask::block_all();
    let Some(uffd) = engine.view().uffd() else { return };
    let mut handler = Handler {
        engine,
        watched: None,
        uffd,
        together: Together::new(first_thread),
        waiting: Vec::with_capacity(WAITING_MAX),
        aside: Vec::with_capacity(ASIDE_MAX),
    };
    let mut has_events = true;
    loop {
        let new = if has_events { handler.serve_new() } else { 0 };
        let served = new + handler.serve_aside();
        handler.settle();
        has_events = match handler.waiting.is_empty() {
            true if served > 0 => true,
            true => handler.idle(),
            false => handler.receive(),
        };
    }
}

struct Handler {
    engine: &'static Engine,
    /// The registration of the handler's wait with the watchdog. Present while a fault has waited for more than
    /// [`ROUNDS_UNWATCHED`] rounds.
    watched: Option<Waiting<'static>>,
    uffd: &'static Uffd,
    together: Together,
    /// Faults whose pages are in transit.
    waiting: Vec<Awaited>,
    /// Faults that wait for the turn of another thread.
    aside: Vec<Fault>,
}

/// A fault of a thread of the program.
#[derive(Clone, Copy)]
struct Fault {
    thread: i32,
    addr: usize,
    write: bool,
    since_ns: u64,
}

#[derive(Clone, Copy)]
struct Awaited {
    fault: Fault,
    unit: u32,
    rounds: u32,
}

impl Handler {
    /// Submits the new faults to the engine, or puts them aside. Returns their number.
    fn serve_new(&mut self) -> usize {
        let mut events = [uffd::Event::EMPTY; uffd::EVENTS_PER_READ];
        let count = self.uffd.read_events(&mut events).unwrap_or_else(|errno| lost_trap(errno));
        let _inside = (count > 0).then(gate::enter);
        let mut since_ns = now_ns();
        let _busy = (count > 0).then(|| self.engine.waits.begin(since_ns));
        for event in &events[..count] {
            let uffd::Event::Fault { addr, write, wp, tid, .. } = *event else { continue };
            let fault = Fault { thread: tid, addr, write: write || wp, since_ns };
            if self.aside.len() < ASIDE_MAX && self.engine.turns.until(tid, since_ns, since_ns).is_some() {
                self.aside.push(fault);
            } else {
                since_ns = self.serve(fault);
            }
        }
        count
    }

    /// Submits the faults that need not wait for the turn of another thread any longer. Returns their number.
    fn serve_aside(&mut self) -> usize {
        let (mut served, mut at) = (0, 0);
        while let Some(&fault) = self.aside.get(at) {
            if self.engine.turns.until(fault.thread, fault.since_ns, now_ns()).is_some() {
                at += 1;
                continue;
            }
            self.aside.remove(at);
            let _inside = gate::enter();
            let _busy = self.engine.waits.begin(now_ns());
            self.serve(fault);
            served += 1;
        }
        served
    }

    /// Submits a fault to the engine. Returns the time at which the fault is resolved, or its page is in transit.
    fn serve(&mut self, fault: Fault) -> u64 {
        let Fault { thread, addr, write, since_ns } = fault;
        profile::waits_from(thread);
        let small = self.engine.is_small(addr);
        // Frequent faults that are counted here make idle CPUs poll. With a memory server on this host, these CPUs
        // must not poll, because the server needs them to answer. So faults are counted only with a private server.
        if small && !self.engine.store().writes_later() {
            self.engine.counters.fault_rate.fault(since_ns);
        }
        self.together.on_fault(thread, small);
        let _together = if self.engine.store().is_split() { None } else { self.together.confine(thread) };
        let Some((unit, opened)) = self.engine.fault_there(thread, addr, write) else {
            // After the access, the program mapped something else at this address. So the address is no longer far,
            // and the woken thread accesses the new mapping.
            kernel::insist("wake a thread", || self.uffd.wake(addr & !(OS_PAGE - 1), OS_PAGE));
            profile::waits_until(thread);
            return since_ns;
        };
        if self.engine.is_accessible(unit, write) || self.waiting.len() == WAITING_MAX {
            let now = now_ns();
            self.engine.turns.end(thread, now);
            accounts::fault(self.engine.counters, &self.engine.swap_ns, opened, now - since_ns);
            resolved(self.engine, &fault);
            profile::waits_until(thread);
            return now;
        }
        self.waiting.push(Awaited { fault, unit, rounds: 0 });
        since_ns
    }

    /// Removes the faults whose pages have arrived. Every [`ROUNDS_UNHEARD`] rounds, wakes a thread that still waits,
    /// so that it faults again. The page may have arrived and been evicted again between two rounds.
    fn settle(&mut self) {
        let engine = self.engine;
        let mut most = 0;
        self.waiting.retain_mut(|waiting| {
            waiting.rounds += 1;
            most = most.max(waiting.rounds);
            let Fault { thread, write, since_ns, .. } = waiting.fault;
            let done = engine.is_accessible(waiting.unit, write);
            if done {
                let now = now_ns();
                engine.turns.end(thread, now);
                accounts::fault(engine.counters, &engine.swap_ns, false, now - since_ns);
                resolved(engine, &waiting.fault);
            } else if waiting.rounds.is_multiple_of(ROUNDS_UNHEARD) {
                engine.wake_unit(waiting.unit);
            }
            let goes_on = !done && waiting.rounds < ROUNDS_MAX;
            if !goes_on {
                profile::waits_until(waiting.fault.thread);
            }
            goes_on
        });
        if most > ROUNDS_UNWATCHED {
            self.watched.get_or_insert_with(|| engine.waits.begin(now_ns()));
        } else if self.waiting.is_empty() || most < ROUNDS_UNWATCHED {
            self.watched = None;
        }
    }

    /// Sleeps until a new fault is reported, a prefetched page arrives, a turn ends, or a time limit passes. Receives the
    /// pages that have arrived, if there is no new fault. Returns whether there may be one.
    fn idle(&self) -> bool {
        let mut arriving = self.engine.store().arriving().peekable();
        let limit = if arriving.peek().is_some() { Duration::from_millis(2) } else { Duration::from_millis(500) };
        let now = now_ns();
        let turn = self.aside.iter().find_map(|fault| self.engine.turns.until(fault.thread, fault.since_ns, now));
        let timeout = turn.map_or(limit, |until| limit.min(Duration::from_nanos(until - now)));
        let ready = self.wait(arriving, timeout);
        if !ready.events {
            self.engine.receive(Wait::Now);
        }
        ready.events
    }

    /// Receives the pages of the waiting faults. Polls in the first rounds, and sleeps in later ones. Each sleep is
    /// short, so that a new fault does not wait long. Sleeps in the first rounds, too, if a page needs the answers of several
    /// servers. Returns whether there may be a new fault.
    fn receive(&mut self) -> bool {
        if self.engine.store().is_split() {
            let ready = self.wait(self.engine.store().arriving(), SLEEP);
            if ready.other || !ready.events {
                let _together = match self.waiting[..] {
                    [Awaited { fault, .. }] => self.together.confine(fault.thread),
                    _ => None,
                };
                self.engine.receive(Wait::Now);
            }
            return ready.events;
        }
        let rounds = self.waiting.iter().map(|waiting| waiting.rounds).min().unwrap_or(0);
        let wait = match rounds < ROUNDS_POLLING {
            true => Wait::Spin { iterations: 20 },
            false => Wait::Block { timeout: Duration::from_millis(1) },
        };
        match self.engine.receive(wait) {
            Polled::Received => return true,
            Polled::Busy if rounds < ROUNDS_POLLING => return true,
            Polled::Busy | Polled::Idle => {}
        }
        self.wait([], Duration::from_micros(200));
        true
    }

    fn wait<'a>(&'a self, arriving: impl IntoIterator<Item = BorrowedFd<'a>>, timeout: Duration) -> uffd::Ready {
        self.uffd.wait(arriving, Some(timeout)).unwrap_or_else(|errno| lost_trap(errno))
    }
}

/// Records a fault that is resolved.
fn resolved(engine: &Engine, fault: &Fault) {
    if profile::is_on()
        && let Some(offset) = engine.view().offset_of(fault.addr)
    {
        profile::end(Some(fault.since_ns), None, offset);
    }
}

/// Ends the run because the userfaultfd is closed. Without it no fault is resolved, and evicted pages would read as
/// zeroes.
pub(crate) fn lost_trap(errno: Errno) -> ! {
    let advice = "a system call of the program's own closed it; have it close descriptors by the C library";
    fatal::die(EXIT_KERNEL, format_args!("userfaultfd is lost ({errno}): {advice}"))
}
