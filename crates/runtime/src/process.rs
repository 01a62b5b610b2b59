//! The state of this process: the engine, and the settings from which it was started. A process has at most one engine.
//! The engine runs until the process ends, because the program may access far memory until then.
//!
//! Calls by the program run through [`inside`], which blocks signals and enters the gate (the barrier that a fork
//! closes). A fork waits until all threads have left the gate. This module cannot start an engine itself. The modules
//! `start` and `fork` store a function here that starts the engine at its first use (see `dormant`).

use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering::*};

use hanare_sys::features::Features;
use hanare_sys::futex::LockCell;
use hanare_sys::signal::SignalMask;

use crate::counters::Snapshot;
use crate::engine::Engine;
use crate::extents::Extents;
use crate::kept::Kept;
use crate::plan::Plan;
use crate::spare::Share;
use crate::stats::Stats;
use crate::tree::Seat;
use crate::view::View;
use crate::{fatal, gate, hold, places, threads};
use hanare_paging as paging;
use hanare_settings::{Local, Mode, Settings};

mod bytes;
mod dormant;

pub(crate) use dormant::{Call, begins, close, has_begun, leave_to_first, threshold_is};
pub use dormant::{active, ensure_started, is_dormant, is_due, threshold};

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) extents: LockCell<Extents>,
    /// Number of allocated bytes in `extents`. This copy of the number can be read without the lock of `extents`.
    taken: AtomicU64,
    /// Number of allocated bytes that the program does not use. These bytes are the heap's address space without
    /// blocks, kept blocks, and the rest of the last page of each static array.
    idle: AtomicU64,
    /// Freed blocks that keep their pages, and the sum of their bytes. The sum can be read without the lock.
    pub(crate) kept: LockCell<Kept>,
    pub(crate) kept_bytes: AtomicU64,
    /// The budget, if it is a share of the far bytes.
    pub(crate) share: Share,
    /// Bytes of server room that are reserved for the heap and not yet used by it.
    heap_promised: AtomicU64,
    pub(crate) launch: Launch,
    /// This process' share of the budget that all processes of the run have together.
    pub(crate) seat: Seat,
    /// Bytes of a unit. Allocations are multiples of this size.
    pub(crate) granularity: usize,
    /// The locked ranges, if units are larger than the pages that the program locks. It is empty otherwise.
    pub(crate) locks: LockCell<Extents>,
}

/// The settings and choices from which an engine is started. A forked child uses the settings of its parent.
pub(crate) struct Launch {
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) mode: Mode,
    pub(crate) features: Features,
    pub(crate) counters: &'static Stats,
}

impl Launch {
    /// Returns the smallest budget with which the engine works, in bytes.
    pub(crate) fn least_bytes(&self) -> u64 {
        let pages = u64::from(paging::limits::BUDGET_PAGES_MIN);
        self.plan.overhead_bytes + pages * u64::from(self.plan.config.geometry.unit_bytes)
    }

    /// Returns the budget that all processes of the run share at first, in bytes. Returns 0 if each process has its own.
    pub(crate) fn whole_bytes(&self) -> u64 {
        if self.settings.slowdown.is_some() { self.most_bytes().min(hold::FIRST_BYTES) } else { self.most_bytes() }
    }

    /// Returns the largest budget that all processes of the run may share. Returns 0 if each process has its own.
    pub(crate) fn most_bytes(&self) -> u64 {
        if let Local::Bytes(bytes) = self.settings.local { bytes } else { 0 }
    }
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
static TRAP: AtomicI32 = AtomicI32::new(0);

impl State {
    /// Makes a state from an engine, the allocated parts of far memory, and the number of idle bytes in these parts.
    pub(crate) fn new(engine: Engine, (extents, idle): (Extents, u64), launch: Launch, seat: Seat) -> Self {
        let granularity = launch.plan.config.geometry.unit_bytes as usize;
        let (taken, idle) = (AtomicU64::new(0), AtomicU64::new(idle));
        let extents = LockCell::new(extents);
        let heap_promised = AtomicU64::new(0);
        let (kept, kept_bytes) = (LockCell::new(Kept::new()), AtomicU64::new(0));
        let locks = LockCell::new(Extents::new(0, launch.plan.reserve as u64));
        Self {
            engine,
            extents,
            taken,
            idle,
            kept,
            kept_bytes,
            share: Share::default(),
            heap_promised,
            launch,
            seat,
            granularity,
            locks,
        }
    }
}

/// Makes `state` the state of this process. `state` comes from a leaked box.
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
    // SAFETY: the pointer is null or comes from a leaked box. Only [`take`] frees this box, in a child that has no
    // other thread.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// Returns the state of this process. Starts the engine first if its start was deferred. Returns `None` if there is no
/// far memory.
#[inline]
pub(crate) fn ready() -> Option<&'static State> {
    dormant::bring_up_if_left();
    state()
}

/// Returns the state that a forked child inherited from its parent. Afterwards this process has no state. The threads
/// that used the parent's engine do not exist in the child.
pub(crate) fn take() -> Option<Box<State>> {
    let state = STATE.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: the pointer comes from a leaked box. The calling thread is the only thread of the child, and it holds no
    // reference to the state.
    (!state.is_null()).then(|| unsafe { Box::from_raw(state) })
}

/// Runs `work` inside the gate, with signals blocked. If the thread's stack is far, runs `work` on a stack in near
/// memory. A fault on the far stack could wait for a lock that the thread itself holds. So `work` must not borrow from
/// the thread's stack.
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

/// Returns the engine, and the offset of an address in far memory. Returns `None` if `addr` is not in far
/// memory, or if there is no engine.
pub(crate) fn engine_at(addr: usize) -> Option<(&'static Engine, usize)> {
    let engine = &state()?.engine;
    Some((engine, engine.view().offset_of(addr)?))
}

pub(crate) fn offset_of(addr: usize) -> Option<usize> {
    state()?.engine.view().offset_of(addr)
}

/// Returns the offset of an address in the reserved address space. Returns `None` for any other address, even for a far
/// address in a static array.
pub(crate) fn allocated_offset(addr: usize) -> Option<usize> {
    offset_of(addr).filter(|_| places::is_reserved(addr))
}

/// Returns the signal by which accesses trap. Returns `None` in thread mode.
pub fn trap_signal() -> Option<i32> {
    Some(TRAP.load(Relaxed)).filter(|&signal| signal != 0)
}

/// Notes that from now on accesses trap by this signal.
pub(crate) fn traps_by(signal: i32) {
    TRAP.store(signal, Release);
}

/// Checks whether this process is a child made by vfork. Such a child shares its parent's far memory until it executes
/// another program.
pub fn is_borrowed() -> bool {
    state().is_some() && threads::are_elsewhere()
}

/// Returns the present values of the counters. Returns `None` if there is no far memory.
pub fn snapshot() -> Option<Snapshot> {
    let state = ready()?;
    inside(move || {
        state.engine.publish();
        Some(state.engine.counters.snapshot())
    })
}
