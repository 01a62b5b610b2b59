//! Far memory of this process: what the preload library and the C API call.
//!
//! One engine a process, made by [`start`] (or, after [`start_later`], by the first far allocation) and never taken down,
//! since the program may touch far memory until its very end. This room keeps the extents (which far bytes are
//! allocated) and guards the engine's doors: signals are blocked while a thread of the program is inside, and a fork waits
//! until everybody is out.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use std::time::Duration;

use hanare_paging::{self as paging, ConfigError, Geometry, Pager, Space, policy, prefetch};
use hanare_store::{Kind, Opened, Remote, Sender, Shape, Slots, SlotsError};
use hanare_sys::descriptors;
use hanare_sys::features::{Features, FeaturesError};
use hanare_sys::flags::OWN;
use hanare_sys::futex::{self, LockCell};
use hanare_sys::limits;
use hanare_sys::map::{MapError, Prot};
use hanare_sys::mark;
use hanare_sys::pagemap::PagemapError;
use hanare_sys::signal::{self, SignalError, SignalMask};
use hanare_sys::thread::{self, CpuCell};
use hanare_sys::uffd::{Uffd, UffdError, feature};
use hanare_sys::{Errno, copy};
use hanare_wire::{Key, KeyError, LinkError, Session, SessionOptions};

use crate::choose::{self, ChooseError};
use crate::counters::{Counters, Snapshot, add, raise};
use crate::engine::{Engine, Parts};
use crate::extents::Extents;
use crate::fatal::{self, EXIT_BEFORE};
use crate::fork;
use crate::gate;
use crate::handler;
use crate::heap::{self, HeapError};
use crate::plan::{self, Plan, PlanError};
use crate::promise::Refusal;
use crate::span::{OS_PAGE, Span};
use crate::stats::{Stats, StatsError};
use crate::tracing;
use crate::tree::Seat;
use crate::view::{LiveView, Mechanism, Program, Sizes, Still, View, ViewError};
use crate::windows::Windows;
use hanare_settings::{Environment, FAR_LARGE, Local, Mode, Overcommit, PageSize, Settings, SettingsError};
use hanare_sys::clock::now_ns;

mod places;
mod start;
mod threads;

pub use places::{ADOPTED_MAX, adopt, expel, is_hole, make_hole, run};
pub(crate) use places::{empty_holes, meets_hole};
use start::ready;
pub use start::{before_start, ensure_started, is_alone, is_dormant, rehearse, start, start_later};
pub(crate) use start::{join, open_doors, open_mechanism, open_store, set_state};
pub use threads::leaves;
pub(crate) use threads::left_alone;

/// Why far memory cannot be had.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Features(#[from] FeaturesError),
    #[error(transparent)]
    Choose(#[from] ChooseError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    View(#[from] ViewError),
    #[error(transparent)]
    Direct(#[from] SlotsError),
    #[error("{server}: {source}")]
    Server { server: String, source: LinkError },
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error(transparent)]
    Stats(#[from] StatsError),
    #[error(transparent)]
    Signal(#[from] SignalError),
    #[error("cannot open userfaultfd: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    #[error("cannot set up the engine: {0}; raise the limit on address space")]
    Map(#[from] MapError),
    #[error("the pager refuses its configuration ({0:?}); give a larger --local or a smaller HANARE_RESERVE")]
    Pager(ConfigError),
    #[error(
        "the hard limit on address space or data ('ulimit -H{name}') is {most} bytes, and far memory needs {wanted}; raise it, or \
         set only the soft one ('ulimit -S{name}'), or lower HANARE_RESERVE"
    )]
    Limit { name: &'static str, most: u64, wanted: u64 },
    #[error(
        "allocations below 128K become far (--far all or SIZE) only where system calls work on far pages, and in {mode} mode \
         they do not; leave --far large, or see 'hanare doctor' for how to get thread mode"
    )]
    Far { mode: Mode },
    #[error("cannot set up the heap: {0}")]
    Heap(#[from] HeapError),
    #[error(
        "cannot refuse asynchronous I/O to the program, which this trap mode cannot follow: {0}; choose another --mode"
    )]
    Filter(Errno),
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(std::io::Error),
    #[error("cannot see which pages are there: {0}")]
    Pagemap(PagemapError),
    #[error("far memory needs {0} file descriptors, and the program has used up its own; raise 'ulimit -Hn'")]
    Descriptors(usize),
    #[error("too many processes share this budget; start fewer at a time")]
    Members,
    #[error("far memory was started already in this process; start it once")]
    Again,
}

/// Far bytes from which it is worth a millisecond at the end to count the near ones.
const NEAR_COUNTED_MIN: u64 = 16 << 20;

/// What is promised to the heap at a time, in bytes.
const HEAP_AHEAD: u64 = 256 << 10;

pub(crate) struct State {
    pub(crate) engine: Engine,
    pub(crate) extents: LockCell<Extents>,
    /// What of the space is taken, in bytes: a copy that can be read without the lock.
    taken: AtomicU64,
    /// The part of it that no page of the program's can be in: what the heap took and has no block in, and the rest of a
    /// static array's last page.
    idle: AtomicU64,
    /// Bytes that have been promised to the heap ahead of its use of them.
    heap_promised: AtomicU64,
    pub(crate) launch: Launch,
    /// Its place among the processes of the run.
    pub(crate) seat: Seat,
    /// What allocations are rounded to.
    granularity: usize,
}

/// What an engine is started from, and a child's again.
pub(crate) struct Launch {
    pub(crate) settings: Settings,
    pub(crate) plan: Plan,
    pub(crate) mode: Mode,
    pub(crate) features: Features,
    pub(crate) counters: &'static Stats,
}

impl Launch {
    /// The least budget to get on with, in bytes.
    pub(crate) fn least_bytes(&self) -> u64 {
        let pages = u64::from(paging::limits::BUDGET_PAGES_MIN);
        self.plan.overhead_bytes + pages * u64::from(self.plan.config.geometry.unit_bytes)
    }

    /// The budget that all processes of the run share; 0 where each has its own.
    fn whole_bytes(&self) -> u64 {
        if let Local::Bytes(bytes) = self.settings.local { bytes } else { 0 }
    }
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
/// Kept apart from the state, for they answer in a forked child too.
static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Where far memory is, once that is more than the reservation: null until there is a window or a hole.
static WINDOWS: AtomicPtr<Windows> = AtomicPtr::new(std::ptr::null_mut());
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Most programs that others execute have a buffer or two of 128 KiB and end: starting far memory takes longer than they do.
const NEAR_FIRST: usize = 1 << 20;
/// Whether far memory is being started.
static IS_STARTING: AtomicBool = AtomicBool::new(false);
static NEAR_SO_FAR: AtomicUsize = AtomicUsize::new(0);
static TRAP: AtomicI32 = AtomicI32::new(0);
static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);
/// The thread whose touch the handler thread served last.
static LAST_TOUCHED: AtomicI32 = AtomicI32::new(0);
/// The process the engine is in, and so its first thread.
static HOME: AtomicI32 = AtomicI32::new(0);
/// The engine is to be started, or woken up, by who needs it first.
static LATENT: AtomicBool = AtomicBool::new(false);
static LATER: AtomicPtr<Environment> = AtomicPtr::new(std::ptr::null_mut());
/// What [`before_start`] was given.
static BEFORE_START: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
/// An engine was started, or is about to be.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
/// The counters of this process, mapped once.
static COUNTERS: AtomicPtr<Stats> = AtomicPtr::new(std::ptr::null_mut());
static THREAD_MODE: AtomicBool = AtomicBool::new(false);

pub(crate) fn state() -> Option<&'static State> {
    // SAFETY: a leaked box, or null; taken back only where nobody else exists ([`take_state`]).
    unsafe { STATE.load(Acquire).as_ref() }
}

/// The engine and the offset, if this address is its to serve.
pub(crate) fn engine_at(addr: usize) -> Option<(&'static Engine, usize)> {
    let engine = &state()?.engine;
    Some((engine, engine.view().offset_of(addr)?))
}

// ---- forking --------------------------------------------------------------------------------------------------------

pub use fork::{before as before_fork, can_fork, in_child as forked_child, in_parent as after_fork};

// ---- asking ---------------------------------------------------------------------------------------------------------

/// Whether far memory can be had now: false before the start, and in a forked child that cannot share its parent's.
#[inline]
pub fn active() -> bool {
    THRESHOLD.load(Relaxed) != usize::MAX
}

/// Whether far memory was started in this process, or in the one it was forked from.
pub fn is_started() -> bool {
    LEN.load(Relaxed) != 0
}

/// Whether an address is far (also in a forked child, where it leads nowhere).
#[inline]
pub fn contains(addr: usize) -> bool {
    // SAFETY: null, or leaked.
    match unsafe { WINDOWS.load(Acquire).as_ref() } {
        None => is_reserved(addr),
        Some(windows) => windows.offset_of(addr).is_some(),
    }
}

/// Whether an address lies in the reservation, where allocations are.
fn is_reserved(addr: usize) -> bool {
    addr.wrapping_sub(BASE.load(Relaxed)) < LEN.load(Relaxed)
}

/// The smallest allocation that becomes far, in bytes; 0 when all are.
#[inline]
pub fn threshold() -> usize {
    THRESHOLD.load(Relaxed)
}

/// Whether an allocation of `size`, large enough to be far, is to be far already: with the default threshold a process has
/// [`NEAR_FIRST`] bytes near before far memory is started for it.
#[inline]
pub fn is_due(size: usize) -> bool {
    !LATENT.load(Relaxed) || is_due_by(size)
}

#[cold]
fn is_due_by(size: usize) -> bool {
    // A thread of Hanare's allocates a little before it is known as one, and the start waits for it.
    if IS_STARTING.load(Acquire) && size < FAR_LARGE {
        return false;
    }
    threshold() != FAR_LARGE || NEAR_SO_FAR.fetch_add(size.min(NEAR_FIRST), Relaxed).saturating_add(size) > NEAR_FIRST
}

/// Whether this is one of Hanare's own threads, whose allocations stay near.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// The signal that traps touches; none in thread mode.
pub fn trap_signal() -> Option<i32> {
    Some(TRAP.load(Relaxed)).filter(|&signal| signal != 0)
}

/// Whether this is a child that shares its parent's far memory until it executes something (vfork).
pub fn is_borrowed() -> bool {
    state().is_some() && HOME.load(Relaxed) != thread::first()
}

/// A touch of this thread's is about to be served.
pub(crate) fn touched_by(tid: i32) {
    LAST_TOUCHED.store(tid, Relaxed);
}

/// Length of the far allocation that starts here, though its first page may have become the kernel's.
pub fn allocation(addr: usize) -> Option<usize> {
    let state = ready().filter(|_| is_reserved(addr))?;
    inside(move || state.extents.lock().allocation((addr - BASE.load(Relaxed)) as u64).map(|len| len as usize))
}

/// The counters at this instant.
pub fn snapshot() -> Option<Snapshot> {
    let state = ready()?;
    inside(move || {
        state.engine.publish();
        Some(state.engine.counters.snapshot())
    })
}

/// Runs `work` inside the gate with signals blocked. A thread whose stack is far gets a near one for that long: an access to a
/// page of its own stack would wait for a lock that it holds itself. So `work` owns what it uses.
fn inside<T>(work: impl FnOnce() -> T) -> T {
    let _mask = SignalMask::block_all();
    let enter = move || {
        let _inside = gate::enter();
        work()
    };
    let here = 0_u8;
    let Some(state) = state().filter(|_| contains(&raw const here as usize)) else { return enter() };
    let mut answer = None;
    state.engine.on_near_stack(|| answer = Some(enter()));
    answer.unwrap_or_else(|| fatal::abort(format_args!("a near stack ran nothing; please report this line")))
}

fn offset_of(addr: usize) -> Option<usize> {
    state()?.engine.view().offset_of(addr)
}

/// The offset of an allocation of [`alloc`]; `None` elsewhere, also in static arrays.
fn allocated_offset(addr: usize) -> Option<usize> {
    offset_of(addr).filter(|_| is_reserved(addr))
}

// ---- allocating -----------------------------------------------------------------------------------------------------

/// Allocates zeroed far memory, whole pages; null when there is none left, or when the memory servers have no room for it
/// (see [`hanare_settings::Overcommit`]). Touches nothing.
pub fn alloc(len: usize, align: usize) -> *mut u8 {
    let overcommit = ready().map_or(Overcommit::Always, |state| state.launch.settings.overcommit);
    alloc_by(len, align, overcommit)
}

/// Allocates zeroed far memory that nobody promises to have room for, as mmap does with MAP_NORESERVE.
pub fn alloc_unpromised(len: usize, align: usize) -> *mut u8 {
    alloc_by(len, align, Overcommit::Always)
}

fn alloc_by(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let start = take(len, align, overcommit);
    if let Some(state) = state().filter(|_| !start.is_null()) {
        inside(move || state.far_changed());
    }
    start
}

/// Takes a range, and leaves it to the caller to account for it.
fn take(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let Some(state) = ready().filter(|_| active()) else { return std::ptr::null_mut() };
    inside(move || {
        let (len, align) = (len.max(1).next_multiple_of(state.granularity), align.max(state.granularity));
        if !state.promises(len, overcommit, Refusal::Told) {
            return std::ptr::null_mut();
        }
        let Some(offset) = state.extents.lock().alloc(len as u64, align as u64) else { return std::ptr::null_mut() };
        (BASE.load(Relaxed) + offset as usize) as *mut u8
    })
}

/// Takes addresses of far memory again that were given back, as a fixed mapping there does. What is taken already stays so.
///
/// # Errors
/// `ENOMEM` when nobody has room for it.
pub fn claim(addr: usize, len: usize) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), allocated_offset(addr)) else { return Ok(()) };
    inside(move || {
        let free = state.extents.lock().free_bytes_in(offset as u64, len as u64) as usize;
        if free > 0 {
            if !state.promises(free, state.launch.settings.overcommit, Refusal::Told) {
                return Err(libc::ENOMEM);
            }
            state.extents.lock().claim(offset as u64, len as u64);
            state.far_changed();
        }
        Ok(())
    })
}

/// Frees the far allocation that starts here; false when there is none. Nothing is fetched.
///
/// # Safety
/// The caller owns the allocation, if there is one, and gives it up: nobody uses or borrows it any more.
pub unsafe fn free(addr: usize) -> bool {
    let Some(state) = ready().filter(|_| active() && is_reserved(addr)) else { return false };
    // As in `allocation`.
    let offset = addr - BASE.load(Relaxed);
    inside(move || {
        let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
        state.forget_whole(offset, len as usize);
        empty_holes(addr, len as usize);
        state.give_back(offset, len as usize);
        state.far_changed();
        true
    })
}

/// Takes address space for the heap: none of it counts as far bytes until [`heap_uses`] says so.
pub(crate) fn take_for_heap(len: usize, align: usize) -> Option<usize> {
    let state = ready().filter(|_| active())?;
    inside(move || {
        let offset = state.extents.lock().alloc(len as u64, align as u64)?;
        state.idle.fetch_add(len as u64, Relaxed);
        state.far_changed();
        Some(BASE.load(Relaxed) + offset as usize)
    })
}

/// The heap wants to have blocks in `len` more bytes of what it took; false when the memory servers have no
/// room for them (see [`hanare_settings::Overcommit`]).
pub(crate) fn heap_uses(len: usize) -> bool {
    let Some(state) = ready() else { return false };
    if !state.promises_heap(len) {
        return false;
    }
    state.idle.fetch_sub(len as u64, Relaxed);
    state.count_far(state.taken.load(Relaxed));
    true
}

/// The heap has no blocks in this range any more, and it is to read as zeroes; false, and nothing was done, when the
/// range is not of whole pages of Hanare's.
///
/// # Safety
/// The caller owns the range and gives it up: nobody uses or borrows it any more.
pub(crate) unsafe fn heap_forgets(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    if !offset.is_multiple_of(state.granularity) || !len.is_multiple_of(state.granularity) {
        return false;
    }
    // SAFETY: passed on from the caller.
    unsafe { heap_discards(addr, len) };
    inside(move || {
        state.idle.fetch_add(len as u64, Relaxed);
        state.count_far(state.taken.load(Relaxed));
        true
    })
}

/// The heap does not need what is in this range.
///
/// # Safety
/// The caller owns the range and gives up what it holds: nobody borrows it or relies on its bytes.
pub(crate) unsafe fn heap_discards(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return };
    inside(move || {
        state.discard_whole(offset, len);
    })
}

/// Gives back any page-aligned part of far allocations, as munmap does.
///
/// # Safety
/// The caller owns the range and gives it up: nobody uses or borrows it any more.
pub unsafe fn release(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    if !is_reserved(addr) {
        // Of a static array the pages go, and its place stays taken.
        // SAFETY: passed on from the caller.
        unsafe { discard(addr, len) };
        return inside(move || {
            state.engine.view().set_access(Span { offset, len }, Prot::NONE);
            state.far_changed();
        });
    }
    state.zero_edges(offset, len);
    inside(move || {
        state.forget_whole(offset, len);
        state.extents.lock().release(offset as u64, len as u64);
        state.far_changed();
    })
}

/// Makes a range read as zeroes, as MADV_DONTNEED does, and frees its pages everywhere.
///
/// # Safety
/// The caller owns the range and gives up what it holds: nobody borrows it or relies on its bytes.
pub unsafe fn discard(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    state.zero_edges(offset, len);
    inside(move || {
        state.discard_whole(offset, len);
    })
}

/// Grows or shrinks a far allocation where it lies; false when it cannot grow there.
///
/// # Safety
/// The caller owns the allocation, and nobody uses or borrows what lies beyond the new length.
pub unsafe fn resize(addr: usize, new_len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), allocated_offset(addr)) else { return false };
    inside(move || {
        let new_len = new_len.max(1).next_multiple_of(state.granularity);
        let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
        let len = len as usize;
        if new_len < len {
            state.forget_whole(offset + new_len, len - new_len);
            state.give_back(offset + new_len, len - new_len);
        } else if new_len > len {
            let grown = state.promises(new_len - len, state.launch.settings.overcommit, Refusal::Told)
                && state.extents.lock().grow_in_place(offset as u64, new_len as u64);
            if !grown {
                return false;
            }
        }
        state.far_changed();
        true
    })
}

/// Changes the program's access to a range, as mprotect does.
///
/// # Errors
/// The errno of the refusal; `ENOMEM` when part of the range is not allocated.
///
/// # Safety
/// The caller owns the range, and nobody borrows of it what the new access forbids.
pub unsafe fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return Err(libc::ENOMEM) };
    inside(move || {
        if !state.extents.lock().covers(offset as u64, len as u64) {
            return Err(libc::ENOMEM);
        }
        let answer = state.engine.view().restrict(Span { offset, len }, prot);
        state.far_changed();
        answer
    })
}

/// As [`alloc`], for memory that is not accessible until [`protect`] says so, which costs nothing of the budget until then.
/// Null also for more than a quarter of what is left.
pub fn reserve(len: usize, align: usize) -> *mut u8 {
    let left = ready().map_or(0, |state| {
        inside(move || LEN.load(Relaxed).saturating_sub(state.extents.lock().taken_bytes() as usize))
    });
    let start = if len <= left / 4 { take(len, align, Overcommit::Always) } else { std::ptr::null_mut() };
    // SAFETY: an allocation that nobody else has yet.
    if start.is_null() || unsafe { protect(start as usize, len, libc::PROT_NONE) }.is_ok() {
        return start;
    }
    // SAFETY: as above.
    unsafe { free(start as usize) };
    std::ptr::null_mut()
}

/// Whether all of a far range is allocated.
pub fn is_allocated(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.extents.lock().covers(offset as u64, len as u64))
}

/// Whether the program left itself write access to a far address.
pub fn is_writable(addr: usize) -> bool {
    permits(addr, true)
}

/// Whether the program left itself read access to a far address.
pub fn is_readable(addr: usize) -> bool {
    permits(addr, false)
}

fn permits(addr: usize, write: bool) -> bool {
    let (Some(state), Some(offset)) = (ready(), offset_of(addr)) else { return false };
    inside(move || state.engine.view().permits(offset, write))
}

/// Up to where, from `at`, the program left itself the access to read (or to write) its far memory. Near memory counts as
/// open: the kernel looks after it.
pub fn open_until(at: usize, end: usize, write: bool) -> usize {
    let Some(state) = ready().filter(|state| state.engine.view().has_restrictions()) else { return end };
    inside(move || {
        let view = state.engine.view();
        let mut next = at;
        while next < end {
            if view.offset_of(next).is_some_and(|offset| !view.permits(offset, write)) {
                return next;
            }
            next = (next | (crate::span::OS_PAGE - 1)).saturating_add(1);
        }
        end
    })
}

/// Fetches a range ahead of its use, as far as there is room.
pub fn will_need(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (ready().filter(|_| active()), offset_of(addr)) else { return };
    inside(move || {
        state.engine.will_need(offset, len);
    })
}

impl State {
    /// Whether so many more bytes can be promised.
    fn promises(&self, more: usize, overcommit: Overcommit, refusal: Refusal) -> bool {
        // More than can be addressed fails by itself, and is nothing to tell of the servers.
        if more > LEN.load(Relaxed) {
            return false;
        }
        if !limits::has_room(more) {
            return false;
        }
        let allocated = self.taken.load(Relaxed).saturating_sub(self.idle.load(Relaxed));
        self.engine.promises(more as u64, allocated, overcommit, refusal)
    }

    /// The same for the heap, which uses little at a time: most calls are answered from what was promised ahead.
    fn promises_heap(&self, more: usize) -> bool {
        let take = |promised: u64| promised.checked_sub(more as u64);
        if self.heap_promised.fetch_update(Relaxed, Relaxed, take).is_ok() {
            return true;
        }
        inside(move || {
            let overcommit = self.launch.settings.overcommit;
            let ahead = more
                .checked_add(HEAP_AHEAD as usize)
                .is_some_and(|bytes| self.promises(bytes, overcommit, Refusal::Silent));
            self.heap_promised.store(if ahead { HEAP_AHEAD } else { 0 }, Relaxed);
            ahead || self.promises(more, overcommit, Refusal::Told)
        })
    }

    /// The whole units inside a byte range.
    fn whole_units(&self, offset: usize, len: usize) -> (usize, usize) {
        let unit = self.granularity;
        (offset.next_multiple_of(unit), (offset + len) / unit * unit)
    }

    fn discard_whole(&self, offset: usize, len: usize) {
        let (first, end) = self.whole_units(offset, len);
        if first < end {
            self.engine.discard((first / self.granularity) as u32, (end / self.granularity) as u32);
        }
    }

    /// Discards whole units and gives freed memory its usual access back.
    fn forget_whole(&self, offset: usize, len: usize) {
        self.discard_whole(offset, len);
        self.engine.view().unrestrict(Span { offset, len });
    }

    /// Zeroes the parts of units that a range covers only partly, through the program's view. Signals must not be
    /// blocked: this faults as the program would.
    fn zero_edges(&self, offset: usize, len: usize) {
        let (first, end) = self.whole_units(offset, len);
        let edges =
            if first > end { [(offset, len), (0, 0)] } else { [(offset, first - offset), (end, offset + len - end)] };
        for (offset, len) in edges {
            let touched = |state: &Self| {
                let _mask = SignalMask::block_all();
                !state.engine.is_untouched((offset / state.granularity) as u32)
            };
            if len > 0 && touched(self) {
                self.zero_pages(offset, len);
            }
        }
    }

    /// Zeroes pages of the operating system in place, whatever access the program left itself to them.
    fn zero_pages(&self, offset: usize, len: usize) {
        let view = self.engine.view();
        for offset in (offset..offset + len).step_by(OS_PAGE) {
            let page = Span { offset, len: OS_PAGE };
            let left = view.access(offset);
            if left != Prot::READ_WRITE {
                view.set_access(page, Prot::READ_WRITE);
            }
            // SAFETY: far memory of the caller's, who gives these bytes up.
            view.windows().runs(page, |addr, part| unsafe { copy::zero(addr as *mut u8, part.len) });
            if left != Prot::READ_WRITE {
                view.set_access(page, left);
            }
        }
    }

    /// Makes a range free to be allocated again, save for holes in it, which are no longer ours to give.
    fn give_back(&self, offset: usize, len: usize) {
        let windows = self.engine.view().windows();
        windows.runs(Span { offset, len }, |_, part| {
            self.extents.lock().release(part.offset as u64, part.len as u64);
        });
    }

    /// After the extents changed.
    fn far_changed(&self) {
        let taken = self.extents.lock().taken_bytes();
        self.taken.store(taken, Relaxed);
        self.count_far(taken);
    }

    /// After the far bytes changed: counters, and a budget that is a share of them.
    fn count_far(&self, taken: u64) {
        let far = self.far_bytes_of(taken);
        self.seat.set_far(far);
        self.lend(taken, far);
        if let Local::Percent(percent) = self.launch.settings.local {
            let _mask = SignalMask::block_all();
            self.engine.set_budget(self.launch.plan.budget_of_share(far, percent));
        }
    }

    /// What of the far bytes the program's limits are to count. Static arrays lie in mappings that were the program's before.
    /// What it closed is address space, and data neither for the kernel nor here.
    fn lend(&self, taken: u64, far: u64) {
        let space = taken.saturating_sub(self.idle.load(Relaxed) + places::adopted_bytes());
        let data = if self.launch.mode == Mode::Sigsegv { far } else { space };
        limits::lend(space, data);
    }

    /// Far memory that the program can touch.
    pub(crate) fn far_bytes(&self) -> u64 {
        self.far_bytes_of(self.taken.load(Relaxed))
    }

    fn far_bytes_of(&self, taken: u64) -> u64 {
        taken.saturating_sub(self.idle.load(Relaxed) + self.engine.view().idle_bytes() as u64)
    }

    /// The idle part of what is taken.
    pub(crate) fn idle(&self) -> u64 {
        self.idle.load(Relaxed)
    }

    /// This process' share of the budget is so many bytes now.
    pub(crate) fn budget_is(&self, share: u64) {
        if self.seat.whole().is_some() {
            self.engine.set_budget(share.saturating_sub(self.launch.plan.overhead_bytes));
        }
    }

    /// Now and then: a fair share among the processes of the run. By a thread that is inside the gate, see [`Seat::balance`].
    fn balance(&self) {
        let wants = self.far_bytes() + 2 * self.launch.least_bytes();
        self.seat.balance(wants, |share| {
            self.budget_is(share);
            self.engine.local_bytes()
        });
    }
}

// ---- ending ---------------------------------------------------------------------------------------------------------

/// What is to be done now and then, by a thread of Hanare's own that is inside the gate.
pub(crate) fn keep() {
    if let Some(state) = state() {
        state.engine.keep();
        tracing::flush();
        state.balance();
    }
}

/// In a forked child, where none of Hanare's threads exist. What is done here allocates near memory.
pub(crate) fn forked(work: impl FnOnce()) {
    OWN_THREADS.store(0, Relaxed);
    threads::forget_all();
    let before = OWN.replace(true);
    work();
    OWN.set(before);
}

/// In a forked child: takes the parent's engine, whose other users do not exist here.
pub(crate) fn take_state() -> Option<Box<State>> {
    let state = STATE.swap(std::ptr::null_mut(), AcqRel);
    // SAFETY: a leaked box; only the thread that forked is left, and it is in no door.
    (!state.is_null()).then(|| unsafe { Box::from_raw(state) })
}

/// Whether there is an engine, or about to be.
pub(crate) fn has_begun() -> bool {
    HAS_BEGUN.load(Acquire)
}

/// The engine is brought up by who needs it first.
pub(crate) fn is_latent(latent: bool) {
    LATENT.store(latent, Release);
}

/// No far memory is to be had any more. The ranges where it was.
pub(crate) fn close_doors() -> Vec<(usize, usize)> {
    LATENT.store(false, Release);
    THRESHOLD.store(usize::MAX, Release);
    let whole = Span { offset: 0, len: LEN.load(Relaxed) };
    // SAFETY: null, or leaked.
    let Some(windows) = (unsafe { WINDOWS.load(Acquire).as_ref() }) else {
        return vec![(BASE.load(Relaxed), whole.len)];
    };
    let mut ranges = Vec::new();
    windows.runs(whole, |addr, part| ranges.push((addr, part.len)));
    ranges
}

/// Brings the shared counters up to date at the end of a run. Far memory stays usable: destructors may still touch it.
pub fn shutdown() {
    if let Some(state) = state() {
        let _mask = SignalMask::block_all();
        tracing::finish();
        state.engine.publish();
        if state.engine.counters.far_bytes_peak.load(Relaxed) >= NEAR_COUNTED_MIN {
            raise(&state.engine.counters.near_bytes, heap::near_bytes());
        }
        state.engine.counters.ended_ns.store(now_ns(), Relaxed);
    }
}
