//! The state of this process: the engine and the settings it was started from. A process has one engine and never takes
//! it down, since the program may access far memory until its very end.
//!
//! Calls of the program go through [`inside`]: signals are blocked while one of its threads is there, and a fork waits
//! until all threads are out. This module cannot start an engine. `start` and `fork` store a function here that does so
//! at the first use (`dormant`).

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::*};

use hanare_sys::features::Features;
use hanare_sys::futex::LockCell;
use hanare_sys::signal::SignalMask;

use crate::counters::Snapshot;
use crate::engine::Engine;
use crate::extents::Extents;
use crate::plan::Plan;
use crate::stats::Stats;
use crate::tree::Seat;
use crate::view::View;
use crate::{fatal, gate, places, threads};
use hanare_paging as paging;
use hanare_settings::{Local, Mode, Settings};

mod bytes;
mod dormant;

pub(crate) use dormant::{Call, begins, close, has_begun, leave_to_first, threshold_is};
pub use dormant::{active, ensure_started, is_dormant, is_due, threshold};

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) extents: LockCell<Extents>,
    /// Allocated bytes of the space: a copy that can be read without the lock.
    taken: AtomicU64,
    /// The part of it that holds no page of the program: ranges that the heap took and has no block in, and the rest of
    /// a static array's last page.
    idle: AtomicU64,
    /// Bytes reserved for the heap ahead of its use.
    heap_promised: AtomicU64,
    pub(crate) launch: Launch,
    /// The process' budget share among the processes of the run.
    pub(crate) seat: Seat,
    /// Bytes to which allocations are rounded.
    pub(crate) granularity: usize,
}

/// The choices from which an engine is started. A forked child starts from the same ones.
pub(crate) struct Launch {
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) mode: Mode,
    pub(crate) features: Features,
    pub(crate) counters: &'static Stats,
}

impl Launch {
    /// The least budget on which the engine works, in bytes.
    pub(crate) fn least_bytes(&self) -> u64 {
        let pages = u64::from(paging::limits::BUDGET_PAGES_MIN);
        self.plan.overhead_bytes + pages * u64::from(self.plan.config.geometry.unit_bytes)
    }

    /// The budget that all processes of the run share. 0 where each has its own.
    pub(crate) fn whole_bytes(&self) -> u64 {
        if let Local::Bytes(bytes) = self.settings.local { bytes } else { 0 }
    }
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
static TRAP: AtomicI32 = AtomicI32::new(0);

impl State {
    /// An engine, with the allocated parts of the space and the number of idle bytes in them.
    pub(crate) fn new(engine: Engine, (extents, idle): (Extents, u64), launch: Launch, seat: Seat) -> Self {
        let granularity = launch.plan.config.geometry.unit_bytes as usize;
        let (taken, idle) = (AtomicU64::new(0), AtomicU64::new(idle));
        let extents = LockCell::new(extents);
        let heap_promised = AtomicU64::new(0);
        Self { engine, extents, taken, idle, heap_promised, launch, seat, granularity }
    }
}

/// Makes a state, in a leaked box, the state of this process.
pub(crate) fn set(state: &'static mut State) -> &'static State {
    STATE.store(state, Release);
    state
}

/// Makes far memory available from now on.
pub(crate) fn open() {
    if let Some(state) = state() {
        dormant::open(state.launch.settings.far);
    }
}

pub(crate) fn state() -> Option<&'static State> {
    // SAFETY: a leaked box, or null; taken back only where no other thread exists ([`take`]).
    unsafe { STATE.load(Acquire).as_ref() }
}

/// The engine, started if necessary. Signals are not blocked yet.
#[inline]
pub(crate) fn ready() -> Option<&'static State> {
    dormant::bring_up_if_left();
    state()
}

/// In a forked child: takes the parent's engine, whose other users do not exist here.
pub(crate) fn take() -> Option<Box<State>> {
    let state = STATE.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: a leaked box; only the thread that forked is left, and it is not inside.
    (!state.is_null()).then(|| unsafe { Box::from_raw(state) })
}

/// Runs `work` inside the gate with signals blocked. A thread whose stack is far gets a near stack for that time, since
/// an access to its own far stack would wait for a lock that it holds itself. So `work` owns what it uses.
pub(crate) fn inside<T>(work: impl FnOnce() -> T) -> T {
    let _mask = SignalMask::block_all();
    let enter = move || {
        let _inside = gate::enter();
        work()
    };
    let here = 0_u8;
    let Some(state) = state().filter(|_| places::contains(&raw const here as usize)) else { return enter() };
    let mut answer = None;
    state.engine.on_near_stack(|| answer = Some(enter()));
    answer.unwrap_or_else(|| fatal::abort(format_args!("a near stack ran nothing; please report this line")))
}

/// The engine and the offset of an address, if the engine serves it.
pub(crate) fn engine_at(addr: usize) -> Option<(&'static Engine, usize)> {
    let engine = &state()?.engine;
    Some((engine, engine.view().offset_of(addr)?))
}

pub(crate) fn offset_of(addr: usize) -> Option<usize> {
    state()?.engine.view().offset_of(addr)
}

/// The offset of an address in the reservation. `None` elsewhere, also in static arrays.
pub(crate) fn allocated_offset(addr: usize) -> Option<usize> {
    offset_of(addr).filter(|_| places::is_reserved(addr))
}

/// The signal that traps accesses. `None` in thread mode.
pub fn trap_signal() -> Option<i32> {
    Some(TRAP.load(Relaxed)).filter(|&signal| signal != 0)
}

/// A signal traps accesses from now on.
pub(crate) fn traps_by(signal: i32) {
    TRAP.store(signal, Release);
}

/// Whether this is a child that shares its parent's far memory until it executes another program (vfork).
pub fn is_borrowed() -> bool {
    state().is_some() && threads::are_elsewhere()
}

/// The counters at this instant.
pub fn snapshot() -> Option<Snapshot> {
    let state = ready()?;
    inside(move || {
        state.engine.publish();
        Some(state.engine.counters.snapshot())
    })
}
