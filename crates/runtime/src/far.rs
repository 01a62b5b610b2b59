//! Far memory of this process: what the preload library and the C API call.
//!
//! One engine a process, made by [`start`] and never taken down, since the program may touch far memory until its very
//! end. This room keeps the extents (which far bytes are allocated) and guards the engine's doors: signals are blocked
//! while a thread of the program is inside, and a forked child finds every door closed.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::mpsc;
use std::time::Duration;

use hanare_paging::{self as paging, ConfigError, Geometry, Pager, Space, policy, prefetch};
use hanare_sys::copy;
use hanare_sys::features::{Features, FeaturesError};
use hanare_sys::futex::LockCell;
use hanare_sys::map::{MapError, Prot};
use hanare_sys::signal::{self, SignalError, SignalMask};
use hanare_sys::thread::{self, CpuCell};
use hanare_sys::uffd::{Uffd, UffdError, feature};
use hanare_wire::{Key, KeyError, LinkError, Session, SessionOptions, Writer};

use crate::choose::{self, ChooseError};
use crate::engine::{Engine, Parts, Store, now_ns};
use crate::extents::Extents;
use crate::handler;
use crate::heap::{self, HeapError};
use crate::plan::{self, Plan, PlanError};
use crate::settings::{Local, Mode, Overcommit, PageSize, Settings, SettingsError};
use crate::stats::{Counters, Snapshot, Stats, StatsError, add, raise};
use crate::store::direct::{Direct, DirectError};
use crate::store::remote::{Opened, Remote};
use crate::tracing;
use crate::view::{Mechanism, OS_PAGE, Sizes, Span, View, ViewError};
use crate::windows::Windows;

mod places;

pub use places::{adopt, expel, make_hole, run};

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
    Direct(#[from] DirectError),
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
    #[error("cannot set up the heap: {0}")]
    Heap(#[from] HeapError),
    #[error("cannot start a thread: {0}; raise the limit on processes")]
    Thread(std::io::Error),
    #[error("far memory was started already in this process; start it once")]
    Again,
}

/// How long a new thread of Hanare's may take to run.
const THREAD_START_MAX: Duration = Duration::from_secs(10);

/// Far bytes from which it is worth a millisecond at the end to count the near ones.
const NEAR_COUNTED_MIN: u64 = 16 << 20;

struct State {
    engine: Engine,
    extents: LockCell<Extents>,
    /// What of the space is taken, in bytes: a copy that can be read without the lock.
    taken: AtomicU64,
    /// The part of it that no page of the program's can be in: what the heap took and has no block in, and the rest of a
    /// static array's last page.
    idle: AtomicU64,
    local: Local,
    overcommit: Overcommit,
    /// What allocations are rounded to.
    granularity: usize,
}

static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());
/// Kept apart from the state, for they answer in a forked child too.
static BASE: AtomicUsize = AtomicUsize::new(0);
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Where far memory is, once that is more than the reservation: null until there is a window or a hole.
static WINDOWS: AtomicPtr<Windows> = AtomicPtr::new(std::ptr::null_mut());
static THRESHOLD: AtomicUsize = AtomicUsize::new(usize::MAX);
static TRAP: AtomicI32 = AtomicI32::new(0);
static OWN_THREADS: AtomicUsize = AtomicUsize::new(0);
static PROGRAM_HANDLES_SIGNALS: AtomicBool = AtomicBool::new(false);
static THREAD_MODE: AtomicBool = AtomicBool::new(false);

thread_local! {
    static OWN: Cell<bool> = const { Cell::new(false) };
}

fn state() -> Option<&'static State> {
    // SAFETY: set once to a leaked box, or null.
    unsafe { STATE.load(Acquire).as_ref() }
}

/// The engine and the offset, if this address is its to serve.
pub(crate) fn engine_at(addr: usize) -> Option<(&'static Engine, usize)> {
    let engine = &state()?.engine;
    Some((engine, engine.view().offset_of(addr)?))
}

// ---- starting -------------------------------------------------------------------------------------------------------

/// Sets up far memory for this process: reservation, trap, links, threads.
///
/// # Errors
/// See [`StartError`]; nothing is left behind but unused address space.
pub fn start(settings: &Settings) -> Result<(), StartError> {
    if state().is_some() {
        return Err(StartError::Again);
    }
    settings.validate()?;
    let features = Features::probe(&settings.disabled()?);
    let mode = choose::choose(settings.mode, &features)?;
    let direct = settings.private.is_some() && settings.servers.is_empty();
    let hides = policy::hides(&settings.policy).map_err(SettingsError::Choice)?;
    let plan = plan::plan(settings, mode, &features, direct, hides)?;
    let counters = open_counters(settings, mode)?;
    let view = open_view(&plan, mode, &features)?;
    let (store, writers) = open_store(settings, &plan)?;
    let pager = open_pager(settings, &plan, mode)?;
    let geometry = plan.config.geometry;
    let unit_bytes = geometry.unit_bytes as usize;
    let engine = Engine::new(Parts {
        view,
        store,
        pager,
        small_moves: plan.config.small.moves,
        unit_bytes,
        block_units: geometry.block_units,
        process_madvise: features.process_madvise,
        overhead_bytes: plan.overhead_bytes,
        counters,
    })?;
    let state = Box::leak(Box::new(State {
        extents: LockCell::new(Extents::new(plan.reserve as u64)),
        taken: AtomicU64::new(0),
        idle: AtomicU64::new(0),
        local: settings.local,
        overcommit: settings.overcommit,
        granularity: unit_bytes,
        engine,
    }));
    BASE.store(state.engine.view().base(), Relaxed);
    LEN.store(state.engine.view().len(), Relaxed);
    THREAD_MODE.store(mode == Mode::Thread, Relaxed);
    STATE.store(state, Release);
    open_trap(state, mode)?;
    open_threads(state, writers)?;
    heap::open(state.engine.view().base(), state.engine.view().len())?;
    // SAFETY: a plain function of a library that stays loaded; a full table costs the last tenth second of counts.
    unsafe { libc::atexit(at_exit) };
    THRESHOLD.store(settings.far, Release);
    Ok(())
}

extern "C" fn at_exit() {
    shutdown();
}

fn open_counters(settings: &Settings, mode: Mode) -> Result<&'static Counters, StartError> {
    let counters: &'static Stats = Box::leak(Box::new(Stats::attach(settings.stats_fd)?));
    counters.policy.set(&settings.policy);
    counters.prefetch.set(&settings.prefetch);
    let number = match mode {
        Mode::Sigbus => 2,
        Mode::Sigsegv => 3,
        Mode::Thread | Mode::Auto => 1,
    };
    counters.mode.store(number, Relaxed);
    let page = if let PageSize::Fixed(bytes) = settings.page_size { u64::from(bytes) } else { 0 };
    counters.page_size.store(page, Relaxed);
    add(&counters.processes, 1);
    let _ = counters.started_ns.compare_exchange(0, now_ns(), Relaxed, Relaxed);
    Ok(counters)
}

fn open_view(plan: &Plan, mode: Mode, features: &Features) -> Result<View, StartError> {
    let mechanism = if mode == Mode::Sigsegv {
        Mechanism::Protection
    } else {
        let trap = if mode == Mode::Sigbus { feature::SIGBUS } else { 0 };
        let tid = if features.thread_id { feature::THREAD_ID } else { 0 };
        let moving = if features.move_ { feature::MOVE } else { 0 };
        Mechanism::Uffd(Uffd::open(features.access, feature::WP | trap | tid | moving)?)
    };
    let config = plan.config;
    let unit = config.geometry.unit_bytes as usize;
    let sizes = Sizes {
        reserve: plan.reserve,
        unit,
        block: unit * config.geometry.block_units as usize,
        small_frames: config.small.frames as usize,
        wide_frames: config.wide.frames as usize,
    };
    Ok(View::new(mechanism, sizes, plan.huge, only_one_thread_runs)?)
}

fn open_store(settings: &Settings, plan: &Plan) -> Result<(Store, Vec<Writer>), StartError> {
    let units = plan.config.geometry.units;
    let unit = plan.config.geometry.unit_bytes as usize;
    if let (Some(path), true) = (&settings.private, settings.servers.is_empty()) {
        return Ok((
            Store::Direct(Direct::open(path, units, unit, plan.slot_bytes, &handler::KEEPER_BELL)?),
            Vec::new(),
        ));
    }
    let key = settings.key_file.as_deref().map(Key::from_file).transpose()?;
    let silent = Duration::from_secs(u64::from(settings.timeout_s));
    let mut opened = Vec::new();
    for server in &settings.servers {
        let mut options = SessionOptions::for_endpoint(&server.endpoint, plan.slot_bytes as u32);
        options.key = key.clone();
        options.silent_timeout = silent;
        let name = format!("memory server {}", server.endpoint);
        let session = Session::open(&server.endpoint, &options)
            .map_err(|source| StartError::Server { server: name.clone(), source })?;
        let there = session.info().capacity_bytes;
        opened.push(Opened { name, session, capacity_bytes: there, limit_bytes: server.capacity });
    }
    let bounce = plan.slot_bytes.max(paging::limits::RUN_BYTES_MAX as usize);
    let (remote, writers) = Remote::new(opened, units, unit, plan.slot_bytes, bounce, silent)?;
    Ok((Store::Remote(remote), writers))
}

fn open_pager(settings: &Settings, plan: &Plan, mode: Mode) -> Result<Pager, StartError> {
    let Geometry { units, block_units, .. } = plan.config.geometry;
    let space = Space { units, block_units, seed: settings.seed };
    let mut policy = policy::build(&settings.policy, space).map_err(SettingsError::Choice)?;
    if let Some(path) = &settings.trace {
        policy = tracing::record(policy, path, settings, plan, mode)?;
    }
    let prefetcher = prefetch::build(&settings.prefetch, space).map_err(SettingsError::Choice)?;
    Pager::new(&plan.config, policy, prefetcher).map_err(StartError::Pager)
}

fn open_trap(state: &'static State, mode: Mode) -> Result<(), StartError> {
    let signal = match mode {
        Mode::Sigbus => libc::SIGBUS,
        Mode::Sigsegv => libc::SIGSEGV,
        Mode::Thread | Mode::Auto => {
            let first_thread = CpuCell::of_first_thread();
            return own_thread("hanare-pager", move || handler::run(&state.engine, first_thread));
        }
    };
    TRAP.store(signal, Release);
    Ok(signal::install(signal, handler::on_signal)?)
}

fn open_threads(state: &'static State, writers: Vec<Writer>) -> Result<(), StartError> {
    own_thread("hanare-keeper", || handler::keep(&state.engine))?;
    for (index, writer) in writers.into_iter().enumerate() {
        own_thread("hanare-writer", move || {
            let _mask = SignalMask::block_all();
            if let Store::Remote(remote) = state.engine.store() {
                remote.run_writer(&state.engine, index, writer);
            }
        })?;
    }
    Ok(())
}

/// Starts a thread of Hanare's and waits until it is known as such: what the standard library allocates for it before is
/// to be near, and once far memory is active only [`is_own_thread`] sees to that.
fn own_thread(name: &str, life: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    OWN_THREADS.fetch_add(1, Relaxed);
    // The new thread inherits the mask, so no signal of the program's ever runs its handler there.
    let _mask = SignalMask::block_all();
    let (known, is_known) = mpsc::sync_channel(1);
    let builder = std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10);
    let started = builder.spawn(move || {
        OWN.set(true);
        // The starter waits, or gave up and ends the process.
        let _ = known.send(());
        drop(known);
        life();
    });
    started.map_err(StartError::Thread)?;
    let late = |_| StartError::Thread(std::io::ErrorKind::TimedOut.into());
    is_known.recv_timeout(THREAD_START_MAX).map_err(late)
}

/// Whether a single thread of the program exists.
pub fn is_alone() -> bool {
    thread::count() <= OWN_THREADS.load(Relaxed) + 1
}

/// Whether only the thread that waits for the pager can be running code of the program: then no write can slip in
/// between moving a page into view and protecting it. In thread mode a signal handler of the program's could run on the
/// waiting thread.
fn only_one_thread_runs() -> bool {
    is_alone() && !(THREAD_MODE.load(Relaxed) && PROGRAM_HANDLES_SIGNALS.load(Relaxed))
}

// ---- asking ---------------------------------------------------------------------------------------------------------

/// Whether far memory can be had now: false before the start and in a forked child.
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

/// Whether this is one of Hanare's own threads, whose allocations stay near.
pub fn is_own_thread() -> bool {
    OWN.get()
}

/// The signal that traps touches; none in thread mode.
pub fn trap_signal() -> Option<i32> {
    Some(TRAP.load(Relaxed)).filter(|&signal| signal != 0)
}

/// The program installed a signal handler.
pub fn program_handles_signals() {
    PROGRAM_HANDLES_SIGNALS.store(true, Relaxed);
}

/// Length of the far allocation that starts here.
pub fn allocation(addr: usize) -> Option<usize> {
    let state = state()?;
    let _mask = SignalMask::block_all();
    state.extents.lock().allocation(allocated_offset(addr)? as u64).map(|len| len as usize)
}

/// The counters at this instant.
pub fn snapshot() -> Option<Snapshot> {
    let state = state()?;
    let _mask = SignalMask::block_all();
    state.engine.publish();
    Some(state.engine.counters.snapshot())
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
/// (see [`crate::settings::Overcommit`]). Touches nothing.
pub fn alloc(len: usize, align: usize) -> *mut u8 {
    let overcommit = state().map_or(Overcommit::Always, |state| state.overcommit);
    alloc_by(len, align, overcommit)
}

/// Allocates zeroed far memory that nobody promises to have room for, as mmap does with MAP_NORESERVE.
pub fn alloc_unpromised(len: usize, align: usize) -> *mut u8 {
    alloc_by(len, align, Overcommit::Always)
}

fn alloc_by(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let start = take(len, align, overcommit);
    if let Some(state) = state().filter(|_| !start.is_null()) {
        let _mask = SignalMask::block_all();
        state.far_changed();
    }
    start
}

/// Takes a range, and leaves it to the caller to account for it.
fn take(len: usize, align: usize, overcommit: Overcommit) -> *mut u8 {
    let Some(state) = state().filter(|_| active()) else { return std::ptr::null_mut() };
    let _mask = SignalMask::block_all();
    let (len, align) = (len.max(1).next_multiple_of(state.granularity), align.max(state.granularity));
    if !state.promises(len, overcommit) {
        return std::ptr::null_mut();
    }
    let Some(offset) = state.extents.lock().alloc(len as u64, align as u64) else { return std::ptr::null_mut() };
    (BASE.load(Relaxed) + offset as usize) as *mut u8
}

/// Frees the far allocation that starts here; false when there is none. Nothing is fetched.
pub fn free(addr: usize) -> bool {
    let (Some(state), Some(offset)) = (state().filter(|_| active()), allocated_offset(addr)) else { return false };
    let _mask = SignalMask::block_all();
    let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
    state.forget_whole(offset, len as usize);
    state.give_back(offset, len as usize);
    state.far_changed();
    true
}

/// Takes address space for the heap: none of it counts as far bytes until [`heap_uses`] says so.
pub(crate) fn take_for_heap(len: usize, align: usize) -> Option<usize> {
    let state = state().filter(|_| active())?;
    let _mask = SignalMask::block_all();
    let offset = state.extents.lock().alloc(len as u64, align as u64)?;
    state.idle.fetch_add(len as u64, Relaxed);
    state.far_changed();
    Some(BASE.load(Relaxed) + offset as usize)
}

/// The heap wants to have blocks in `len` more bytes of what it took; false when the memory servers have no
/// room for them (see [`crate::settings::Overcommit`]).
pub(crate) fn heap_uses(len: usize) -> bool {
    let Some(state) = state() else { return false };
    let _mask = SignalMask::block_all();
    if !state.promises(len, state.overcommit) {
        return false;
    }
    state.idle.fetch_sub(len as u64, Relaxed);
    state.count_far(state.taken.load(Relaxed));
    true
}

/// The heap has no blocks in this range any more, and it is to read as zeroes; false, and nothing was done, when the
/// range is not of whole pages of Hanare's.
pub(crate) fn heap_forgets(addr: usize, len: usize) -> bool {
    let (Some(state), Some(offset)) = (state(), offset_of(addr)) else { return false };
    if !offset.is_multiple_of(state.granularity) || !len.is_multiple_of(state.granularity) {
        return false;
    }
    heap_discards(addr, len);
    state.idle.fetch_add(len as u64, Relaxed);
    state.count_far(state.taken.load(Relaxed));
    true
}

/// The heap does not need what is in this range.
pub(crate) fn heap_discards(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (state(), offset_of(addr)) else { return };
    let _mask = SignalMask::block_all();
    state.discard_whole(offset, len);
}

/// Gives back any page-aligned part of far allocations, as munmap does.
pub fn release(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (state().filter(|_| active()), offset_of(addr)) else { return };
    if !is_reserved(addr) {
        // Of a static array the pages go, and its place stays taken.
        discard(addr, len);
        let _ = protect(addr, len, libc::PROT_NONE);
        return;
    }
    state.zero_edges(offset, len);
    let _mask = SignalMask::block_all();
    state.forget_whole(offset, len);
    state.extents.lock().release(offset as u64, len as u64);
    state.far_changed();
}

/// Makes a range read as zeroes, as MADV_DONTNEED does, and frees its pages everywhere.
pub fn discard(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (state().filter(|_| active()), offset_of(addr)) else { return };
    state.zero_edges(offset, len);
    let _mask = SignalMask::block_all();
    state.discard_whole(offset, len);
}

/// Grows or shrinks a far allocation where it lies; false when it cannot grow there.
pub fn resize(addr: usize, new_len: usize) -> bool {
    let (Some(state), Some(offset)) = (state().filter(|_| active()), allocated_offset(addr)) else { return false };
    let _mask = SignalMask::block_all();
    let new_len = new_len.max(1).next_multiple_of(state.granularity);
    let Some(len) = state.extents.lock().allocation(offset as u64) else { return false };
    let len = len as usize;
    if new_len < len {
        state.forget_whole(offset + new_len, len - new_len);
        state.give_back(offset + new_len, len - new_len);
    } else if new_len > len {
        let grown = state.promises(new_len - len, state.overcommit)
            && state.extents.lock().grow_in_place(offset as u64, new_len as u64);
        if !grown {
            return false;
        }
    }
    state.far_changed();
    true
}

/// Changes the program's access to a range, as mprotect does.
///
/// # Errors
/// The errno of the refusal; `ENOMEM` when part of the range is not allocated.
pub fn protect(addr: usize, len: usize, prot: i32) -> Result<(), i32> {
    let (Some(state), Some(offset)) = (state(), offset_of(addr)) else { return Err(libc::ENOMEM) };
    let _mask = SignalMask::block_all();
    if !state.extents.lock().covers(offset as u64, len as u64) {
        return Err(libc::ENOMEM);
    }
    let answer = state.engine.view().restrict(Span { offset, len }, prot);
    state.far_changed();
    answer
}

/// As [`alloc`], for memory that is not accessible until [`protect`] says so, which costs nothing of the budget until then.
/// Null also for more than a quarter of what is left.
pub fn reserve(len: usize, align: usize) -> *mut u8 {
    let left = state().map_or(0, |state| {
        let _mask = SignalMask::block_all();
        LEN.load(Relaxed).saturating_sub(state.extents.lock().taken_bytes() as usize)
    });
    let start = if len <= left / 4 { take(len, align, Overcommit::Always) } else { std::ptr::null_mut() };
    if start.is_null() || protect(start as usize, len, libc::PROT_NONE).is_ok() {
        return start;
    }
    free(start as usize);
    std::ptr::null_mut()
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
    let (Some(state), Some(offset)) = (state(), offset_of(addr)) else { return false };
    let _mask = SignalMask::block_all();
    state.engine.view().permits(offset, write)
}

/// Fetches a range ahead of its use, as far as there is room.
pub fn will_need(addr: usize, len: usize) {
    let (Some(state), Some(offset)) = (state().filter(|_| active()), offset_of(addr)) else { return };
    let _mask = SignalMask::block_all();
    state.engine.will_need(offset, len);
}

impl State {
    /// Whether so many more bytes can be promised.
    fn promises(&self, more: usize, overcommit: Overcommit) -> bool {
        // More than can be addressed fails by itself, and is nothing to tell of the servers.
        if more > LEN.load(Relaxed) {
            return false;
        }
        let allocated = self.extents.lock().taken_bytes();
        self.engine.promises(more as u64, allocated, overcommit)
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
                let _ = view.restrict(page, Prot::READ_WRITE.0);
            }
            // SAFETY: far memory of the caller's, who gives these bytes up.
            view.windows().runs(page, |addr, part| unsafe { copy::zero(addr as *mut u8, part.len) });
            if left != Prot::READ_WRITE {
                let _ = view.restrict(page, left.0);
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
        let idle = self.idle.load(Relaxed) + self.engine.view().idle_bytes() as u64;
        let far = taken.saturating_sub(idle);
        self.engine.counters.far_bytes.store(far, Relaxed);
        raise(&self.engine.counters.far_bytes_peak, far);
        if let Local::Percent(percent) = self.local {
            let _mask = SignalMask::block_all();
            self.engine.set_budget(far / 100 * u64::from(percent));
        }
    }
}

// ---- ending ---------------------------------------------------------------------------------------------------------

/// In a forked child: far memory is not there, nothing may come to lie in its place, and new memory is near.
pub fn forked_child() {
    if let Some(state) = state() {
        THRESHOLD.store(usize::MAX, Release);
        STATE.store(std::ptr::null_mut(), Release);
        state.engine.view().forbid();
    }
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
