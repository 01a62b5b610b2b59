//! Fork with its usual meaning: the child sees the parent's memory as it was, and both continue to page.
//!
//! Before the fork the engine is brought to rest ([`crate::gate`]): every page is untouched, in view, or evicted with
//! all its bytes on a server. The operating system shares pages in view copy-on-write. The servers share the evicted
//! pages, by a clone of the session that the parent opens on the child's behalf. The child's pager is the copy of the
//! parent's that the fork made. The child sets up its own trap, frames, links and threads before it continues, since an
//! evicted page reads as zeroes where nothing traps.
//!
//! None of that is needed if no page was ever evicted and the budget has room for all far bytes: such a child is
//! *dormant*. A page that it accesses is present or zeroes. It starts an engine when it allocates or frees far memory,
//! or never: most children execute another program.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::*};
use std::time::Duration;

use hanare_sys::descriptors;
use hanare_sys::flags::{self, Flag};
use hanare_sys::futex::LockCell;
use hanare_sys::map;
use hanare_sys::mark;
use hanare_sys::pagemap::Pagemap;
use hanare_sys::signal::{self, FaultInfo, SignalMask, Unblocked, Verdict};
use hanare_wire::LinkError;

use crate::counters::add;
use crate::engine::{Engine, Kept};
use crate::extents::Extents;
use crate::fatal::{self, EXIT_LOST};
use crate::process::{self, Launch, State};
use crate::span::Span;
use crate::start::{self, StartError};
use crate::tree::Seat;
use crate::view::Base;
use crate::{gate, heap, places, threads, tracing};
use hanare_store::{Kind, Links};

/// Why a child cannot share far memory that another thread has just set up.
const TOO_NEW: &str = "it was forked in the very moment in which far memory was set up";
/// Longest wait of a fork for pages in transit. A silent server ends the program sooner.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// How the child continues.
enum Plan {
    /// There is no far memory, or none yet.
    Nothing,
    /// Its engine is dormant.
    Dormant,
    /// It pages from the start.
    Running(Links),
    /// It cannot share its parent's far memory, for this reason.
    Detached(String),
}

/// A fork between its beginning and its end.
struct Pending {
    plan: Plan,
    seat: Option<Seat>,
    mask: Unblocked,
}

/// Only one fork is pending at a time: the gate is closed from [`before`] to [`in_parent`], and a thread that closes it
/// waits while another thread has it closed.
static PENDING: LockCell<Option<Pending>> = LockCell::new(None);

/// Whether this thread's fork is the pending one. The child reads its copy of the flag. A fork of another thread may
/// have begun without the gate, before there was far memory. The end of that fork must not end this one. Most forks
/// have nothing to do. They write nothing either, because a write would make the kernel copy a page.
static IS_PENDING: &Flag = &flags::FORKS;

/// What a child needs to start its engine later.
struct Dormant {
    kept: Kept,
    view: Base,
    /// The parent's store, to be taken over. `None` if no page is evicted.
    store: Option<(Kind, Links)>,
    /// The door to the private server. It works even if this process changes its root or user meanwhile.
    door: Option<OwnedFd>,
    /// The page table of this process, which shows the pages accessed meanwhile. Opened now, because `/proc` may be out
    /// of reach later.
    pagemap: Option<Pagemap>,
    extents: Extents,
    idle: u64,
    launch: Launch,
    seat: Option<Seat>,
}

static DORMANT: AtomicPtr<Dormant> = AtomicPtr::new(std::ptr::null_mut());
/// Why this child cannot access its parent's far memory.
static REASON: LockCell<String> = LockCell::new(String::new());
static PARENT: AtomicI32 = AtomicI32::new(0);

/// Descriptors that a child opens in addition to one for each of its parent's.
const CHILD_DESCRIPTORS: usize = 4;

/// Whether a forked child could have the descriptors that it needs to page. Without them it would lose its parent's far
/// memory. It is better that fork reports an error now.
pub fn can_fork() -> bool {
    process::state().is_none() || room().is_some()
}

fn room() -> Option<descriptors::Room> {
    descriptors::Room::make(descriptors::count() + CHILD_DESCRIPTORS)
}

/// Prepares a fork. Call it in the thread that forks; [`in_parent`] or [`in_child`] must follow.
pub fn before() {
    if !process::has_begun() && DORMANT.load(Acquire).is_null() {
        return;
    }
    let mask = SignalMask::block_all().keep();
    gate::close();
    let (plan, seat) = prepare();
    seat.iter().for_each(Seat::forks);
    // SAFETY: getpid has no conditions.
    PARENT.store(unsafe { libc::getpid() }, Relaxed);
    *PENDING.lock() = Some(Pending { plan, seat, mask });
    IS_PENDING.set(true);
}

/// Ends a fork in the parent. Call it after the fork, even if the fork failed.
pub fn in_parent() {
    if !was_pending() {
        return;
    }
    let Some(Pending { plan, mask, .. }) = PENDING.lock().take() else { return };
    if let Some(state) = process::state() {
        state.engine.view().end_fork();
    }
    // The child has its own copies of these links. The session ends with its last link.
    drop(plan);
    gate::open();
    SignalMask::restore(mask);
}

/// Ends a fork in the child. Call it after the fork.
pub fn in_child() {
    if !was_pending() {
        // In the parent, another thread was about to start the engine. That thread does not exist here, so the first
        // use of far memory starts it.
        gate::reset_if_closed();
        if process::state().is_some() {
            detach(TOO_NEW);
        }
        return;
    }
    let Some(Pending { plan, seat, mask }) = PENDING.lock().take() else { return };
    tracing::forked();
    threads::forked(|| go_on(plan, seat));
    gate::reset();
    SignalMask::restore(mask);
}

fn go_on(plan: Plan, seat: Option<Seat>) {
    match plan {
        Plan::Nothing => {}
        Plan::Dormant => stay_dormant(seat),
        Plan::Running(links) => {
            if let Some(seat) = seat {
                seat.take(true);
            }
            if let Some(dormant) = taken_apart(Some(links), seat) {
                add(&dormant.launch.counters.forks, 1);
                if let Err(error) = start_engine(dormant) {
                    detach(&error.to_string());
                }
            }
        }
        Plan::Detached(reason) => detach(&reason),
    }
}

fn was_pending() -> bool {
    IS_PENDING.get() && IS_PENDING.replace(false)
}

// ---- before ---------------------------------------------------------------------------------------------------------

fn prepare() -> (Plan, Option<Seat>) {
    if let Some(promised) = plan_dormant() {
        return promised;
    }
    let Some(state) = process::state() else { return (Plan::Nothing, None) };
    if !heap::can_be_forked() {
        return (Plan::Detached(TOO_NEW.to_owned()), None);
    }
    let engine = &state.engine;
    let bytes = state.far_bytes();
    let seat = state.seat;
    let is_bare = bytes == 0 && !engine.has_written_back();
    if is_bare && engine.is_settled() {
        return (let_fork(engine).map_or_else(Plan::Detached, |()| Plan::Dormant), None);
    }
    // Whether the kernel's own fork gives the child all pages.
    let is_in_view = || !engine.has_written_back() && engine.is_settled();
    engine.rest();
    // A dormant child that starts its engine later reads from its page table which pages it accessed.
    if is_in_view() && engine.view().is_inherited() && seat.whole().is_some() && Pagemap::is_in_reach() {
        let room = bytes.max(state.launch.least_bytes());
        if let Ok(promised) = seat.promise(room, engine.local_bytes(), false) {
            state.budget_is(seat.share());
            // A smaller budget evicts pages.
            if is_in_view() {
                if let Err(reason) = let_fork(engine) {
                    promised.withdraw();
                    return (Plan::Detached(reason), None);
                }
                return (Plan::Dormant, Some(promised));
            }
            promised.withdraw();
        }
    }
    let taken = spans(&state.extents.lock());
    match share(state, &taken) {
        Ok((links, promised)) => (Plan::Running(links), Some(promised)),
        Err(reason) => (Plan::Detached(reason), None),
    }
}

/// Brings the engine to rest, makes room for the child and opens its links.
fn share(state: &'static State, taken: &[Span]) -> Result<(Links, Seat), String> {
    let engine = &state.engine;
    // If no room can be made, opening the links reports what is missing.
    let _room = room();
    let slow = || "what was on its way to the memory servers did not arrive".to_owned();
    let leave = !engine.view().is_inherited();
    if !engine.come_to_rest(taken, leave, u64::MAX, SETTLE_LIMIT) {
        return Err(slow());
    }
    let least = state.launch.least_bytes();
    let room = || (engine.local_bytes() + engine.local_bytes() / 4).max(least);
    let promised = match state.seat.promise(room(), engine.local_bytes(), false) {
        Ok(promised) => promised,
        Err(both) => {
            // Parent and child get half of the budget each. Pages that both share are counted twice.
            let half = (both / 2).max(least);
            if !engine.come_to_rest(taken, leave, half, SETTLE_LIMIT) {
                return Err(slow());
            }
            let no_place = |_| "too many processes share the budget".to_owned();
            state.seat.promise(half, engine.local_bytes(), true).map_err(no_place)?
        }
    };
    state.budget_is(state.seat.share());
    // A smaller budget evicts pages.
    if !engine.is_settled() && !engine.come_to_rest(taken, leave, u64::MAX, SETTLE_LIMIT) {
        promised.withdraw();
        return Err(slow());
    }
    let opened = open_links(engine)
        .map_err(|error| format!("its memory server does not share: {error}"))
        .and_then(|links| let_fork(engine).map(|()| links));
    match opened {
        Ok(links) => Ok((links, promised)),
        Err(reason) => {
            promised.withdraw();
            Err(reason)
        }
    }
}

/// Lets the child inherit the pages in view.
fn let_fork(engine: &Engine) -> Result<(), String> {
    let answer = engine.view().let_fork(true);
    answer.map_err(|errno| format!("the kernel does not let it inherit far memory: {errno}"))
}

fn open_links(engine: &Engine) -> Result<Links, LinkError> {
    engine.store().clone_links()
}

/// Plans the fork of a dormant process: its child is dormant too, with the same room.
fn plan_dormant() -> Option<(Plan, Option<Seat>)> {
    // SAFETY: set to a leaked box or null, and taken only with the gate closed, as it is here.
    let dormant = unsafe { DORMANT.load(Acquire).as_ref() }?;
    let Some(seat) = &dormant.seat else { return Some((Plan::Dormant, None)) };
    if Pagemap::is_in_reach()
        && let Ok(promised) = seat.promise(seat.share(), seat.share(), false)
    {
        return Some((Plan::Dormant, Some(promised)));
    }
    start_dormant();
    None
}

fn spans(extents: &Extents) -> Vec<Span> {
    extents.allocated().into_iter().map(|(offset, len)| Span { offset: offset as usize, len: len as usize }).collect()
}

// ---- in the child ---------------------------------------------------------------------------------------------------

/// Takes the parent's engine apart. The child has no other thread, so nothing uses the engine.
fn taken_apart(links: Option<Links>, seat: Option<Seat>) -> Option<Dormant> {
    let state = process::take()?;
    let idle = state.idle();
    let State { engine, extents, launch, .. } = *state;
    let (kept, view, store) = engine.apart();
    let (store, door) = match links {
        Some(links) => (Some((store, links)), None),
        None => (None, store.into_door()),
    };
    Some(Dormant {
        kept,
        view: view.without_trap(),
        store,
        door,
        pagemap: None,
        extents: extents.into_inner(),
        idle,
        launch,
        seat,
    })
}

fn stay_dormant(seat: Option<Seat>) {
    let dormant = match taken_apart(None, seat) {
        Some(dormant) => dormant,
        None => {
            let before = DORMANT.swap(std::ptr::null_mut(), AcqRel);
            if before.is_null() {
                return;
            }
            // SAFETY: a leaked box that nobody else has any more.
            Dormant { seat, ..*unsafe { Box::from_raw(before) } }
        }
    };
    if let Some(seat) = seat {
        seat.take(false);
        seat.set_local(seat.share());
        seat.set_far(dormant.extents.taken_bytes().saturating_sub(dormant.idle + dormant.view.idle_bytes() as u64));
    }
    // Recorded descriptors, which the program cannot close before the child starts its engine. If the mark cannot be
    // set, the child opens them by path later.
    let door = dormant.door.filter(|_| mark::set().is_ok());
    let pagemap = Pagemap::open().ok().filter(|_| mark::is_set()).map(Pagemap::kept);
    let dormant = Dormant { door, pagemap, ..dormant };
    DORMANT.store(Box::into_raw(Box::new(dormant)), Release);
    process::leave_to_first(start_dormant);
}

/// Starts the engine of this process if it is dormant. The gate is closed.
fn start_dormant() {
    let dormant = DORMANT.swap(std::ptr::null_mut(), AcqRel);
    if dormant.is_null() {
        return;
    }
    // SAFETY: a leaked box, taken out just now by this thread alone.
    let dormant = *unsafe { Box::from_raw(dormant) };
    if let Err(error) = start_engine(dormant) {
        fatal::die(EXIT_LOST, format_args!("a forked child cannot begin to page: {error}"));
    }
}

/// Assembles a child's engine and starts it.
fn start_engine(dormant: Dormant) -> Result<(), StartError> {
    let Dormant { mut kept, view, store, door, pagemap, extents, idle, launch, seat } = dormant;
    let _room = room();
    let mechanism = start::open_mechanism(&launch.plan, launch.mode, &launch.features)?;
    let was_dormant = store.is_none();
    let on_links = store.map(|(store, links)| store.on(links)).transpose()?.flatten();
    let (store, senders) = match on_links {
        Some(both) => both,
        // No page is evicted, so the child opens new links.
        None => start::open_store(&launch.settings, &launch.plan, door.as_ref().map(AsFd::as_fd))?,
    };
    let view = view.again(mechanism, launch.features.process_madvise)?;
    let taken = spans(&extents);
    if was_dormant {
        // Without the page table, it is unknown which pages are present.
        let now = if pagemap.is_none() && !taken.is_empty() { Some(Pagemap::open()) } else { None };
        let now = now.transpose().map_err(StartError::Pagemap)?;
        if let Some(pagemap) = pagemap.as_ref().or(now.as_ref()) {
            kept.adopt_present(&view, &taken, pagemap).map_err(StartError::Pagemap)?;
        }
    } else {
        kept.protect_clean(&view, &taken);
    }
    let seat = match seat {
        Some(seat) => seat,
        None => start::join(&launch)?,
    };
    seat.begin(true);
    // From here on, the program may use their numbers.
    for fd in [door.as_ref().map(AsFd::as_fd), pagemap.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        descriptors::forget(fd.as_raw_fd());
    }
    drop((door, pagemap));
    start::set_state(Engine::again(kept, view, store), (extents, idle), launch, seat, senders)?;
    process::open();
    Ok(())
}

/// Leaves the child without its parent's far memory. An access to it ends the child with a message, and never reads
/// wrong bytes.
fn detach(reason: &str) {
    let _ = process::take().map(std::mem::forget);
    reason.clone_into(&mut REASON.lock());
    process::close();
    for (addr, len) in places::ranges() {
        // SAFETY: the range is the parent's far memory, which this process must not see.
        if unsafe { map::replace_with_none(addr, len) }.is_err() {
            on_touch_end(reason);
        }
    }
    if signal::install(libc::SIGSEGV, on_touch).is_err() {
        on_touch_end(reason);
    }
}

fn on_touch(info: FaultInfo) -> Verdict {
    if !places::contains(info.addr) {
        return Verdict::NotOurs;
    }
    on_touch_end(&REASON.lock())
}

fn on_touch_end(reason: &str) -> ! {
    fatal::die(
        EXIT_LOST,
        format_args!("a forked child of process {} cannot use its parent's far memory: {reason}", PARENT.load(Relaxed)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_thread_that_forks_ends_its_fork() {
        let mask = SignalMask::block_all().keep();
        *PENDING.lock() = Some(Pending { plan: Plan::Nothing, seat: None, mask });
        IS_PENDING.set(true);
        // A thread whose fork began before there was far memory.
        std::thread::spawn(in_parent).join().unwrap();
        assert!(was_pending() && !was_pending());
        let pending = PENDING.lock().take();
        SignalMask::restore(pending.expect("the other thread has taken it").mask);
    }
}
