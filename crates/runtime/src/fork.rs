//! Fork with its true meaning: the child sees the parent's memory as it was, and both go on paging.
//!
//! Before the fork the engine is brought to rest ([`crate::gate`]): every page is untouched, in view, or away and on a
//! server whole. Pages in view are the operating system's to share copy-on-write; those that are away the servers share,
//! by a clone of the session that the parent opens on the child's behalf. The child's pager is the parent's, as copied by
//! the fork; what it needs anew (trap, frames, links, threads) it has before it runs on, since a page that is away reads
//! as zeroes where nothing traps.
//!
//! Where nothing was ever away and the budget has room for all far bytes, none of that is needed: such a child is
//! *asleep*. A page that it accesses is there or is zeroes. It starts an engine when it allocates or frees far memory, or
//! never: most children execute another program.

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
/// How long a fork waits for what is under way. Servers that fall silent end the program before that.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// What becomes of the child.
enum Plan {
    /// There is no far memory, or none yet.
    Nothing,
    /// It sleeps.
    Asleep,
    /// It pages from the start.
    Awake(Links),
    /// It cannot share its parent's far memory, and why.
    Apart(String),
}

/// A fork between its beginning and its end.
struct Pending {
    plan: Plan,
    seat: Option<Seat>,
    mask: Unblocked,
}

/// One at a time: the gate is closed from [`before`] to [`in_parent`], and who closes it waits for whoever has.
static PENDING: LockCell<Option<Pending>> = LockCell::new(None);

/// Whether this thread's fork is the pending one, which its child knows by its copy. The fork of another thread may have
/// begun before there was far memory, and so without the gate: it must not end this one. Most forks find nothing to do, and
/// then write nothing either, which would cost them a page each.
static IS_PENDING: &Flag = &flags::FORKS;

/// What a child needs to start its engine.
struct Asleep {
    kept: Kept,
    view: Base,
    /// The parent's, to be taken over; none where nothing is away.
    store: Option<(Kind, Links)>,
    /// Opens a link to the private server, wherever this process goes meanwhile.
    door: Option<OwnedFd>,
    /// Tells which pages it accessed meanwhile, also where `/proc` is out of reach then.
    pagemap: Option<Pagemap>,
    extents: Extents,
    idle: u64,
    launch: Launch,
    seat: Option<Seat>,
}

static ASLEEP: AtomicPtr<Asleep> = AtomicPtr::new(std::ptr::null_mut());
/// The program before this process was forked asleep: a signal, in modes that have one.
static REASON: LockCell<String> = LockCell::new(String::new());
static PARENT: AtomicI32 = AtomicI32::new(0);

/// Descriptors that a child opens besides one for each of its parent's.
const CHILD_DESCRIPTORS: usize = 4;

/// Whether a forked child could have the descriptors that it needs to page. One that could not would be kept apart from its
/// parent's far memory; better the program is told that there can be no child now.
pub fn can_fork() -> bool {
    process::state().is_none() || room().is_some()
}

fn room() -> Option<descriptors::Room> {
    descriptors::Room::make(descriptors::count() + CHILD_DESCRIPTORS)
}

/// Before a fork, in the thread that forks. [`in_parent`] or [`in_child`] has to follow.
pub fn before() {
    if !process::has_begun() && ASLEEP.load(Acquire).is_null() {
        return;
    }
    let mask = SignalMask::block_all().keep();
    gate::close();
    let (plan, seat) = prepare();
    // SAFETY: asks a number.
    PARENT.store(unsafe { libc::getpid() }, Relaxed);
    *PENDING.lock() = Some(Pending { plan, seat, mask });
    IS_PENDING.set(true);
}

/// After a fork, in the parent, also when it failed.
pub fn in_parent() {
    if !was_pending() {
        return;
    }
    let Some(Pending { plan, mask, .. }) = PENDING.lock().take() else { return };
    if let Some(state) = process::state() {
        state.engine.view().end_fork();
    }
    // The child has its own copies of these links; the session ends with its last.
    drop(plan);
    gate::open();
    SignalMask::restore(mask);
}

/// After a fork, in the child.
pub fn in_child() {
    if !was_pending() {
        // Another thread was just about to start the engine. It does not exist here: whoever needs it starts it.
        gate::reset_if_closed();
        if process::state().is_some() {
            keep_apart(TOO_NEW);
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
        Plan::Asleep => fall_asleep(seat),
        Plan::Awake(links) => {
            if let Some(seat) = seat {
                seat.take(true);
            }
            if let Some(asleep) = taken_apart(Some(links), seat) {
                add(&asleep.launch.counters.forks, 1);
                if let Err(error) = wake(asleep) {
                    keep_apart(&error.to_string());
                }
            }
        }
        Plan::Apart(reason) => keep_apart(&reason),
    }
}

fn was_pending() -> bool {
    IS_PENDING.get() && IS_PENDING.replace(false)
}

// ---- before ---------------------------------------------------------------------------------------------------------

fn prepare() -> (Plan, Option<Seat>) {
    if let Some(promised) = promise_asleep() {
        return promised;
    }
    let Some(state) = process::state() else { return (Plan::Nothing, None) };
    if !heap::can_be_forked() {
        return (Plan::Apart(TOO_NEW.to_owned()), None);
    }
    let engine = &state.engine;
    let bytes = state.far_bytes();
    let seat = state.seat;
    let is_bare = bytes == 0 && !engine.has_written_back();
    if is_bare && engine.is_settled() {
        return (let_fork(engine).map_or_else(Plan::Apart, |()| Plan::Asleep), None);
    }
    // Whether the kernel's own fork gives the child everything.
    let is_in_view = || !engine.has_written_back() && engine.is_settled();
    engine.rest();
    // Such a child asks its page table what it accessed when it starts its engine.
    if is_in_view() && engine.view().is_inherited() && seat.whole().is_some() && Pagemap::is_in_reach() {
        let room = bytes.max(state.launch.least_bytes());
        if let Ok(promised) = seat.promise(room, engine.local_bytes(), false) {
            state.budget_is(seat.share());
            // A smaller budget sends pages away.
            if is_in_view() {
                if let Err(reason) = let_fork(engine) {
                    promised.withdraw();
                    return (Plan::Apart(reason), None);
                }
                return (Plan::Asleep, Some(promised));
            }
            promised.withdraw();
        }
    }
    let taken = spans(&state.extents.lock());
    match share(state, &taken) {
        Ok((links, promised)) => (Plan::Awake(links), Some(promised)),
        Err(reason) => (Plan::Apart(reason), None),
    }
}

/// Brings the engine to rest, makes room for the child and opens its links.
fn share(state: &'static State, taken: &[Span]) -> Result<(Links, Seat), String> {
    let engine = &state.engine;
    // Without it the links say what they lack.
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
            // Half each; what the two share is counted twice.
            let half = (both / 2).max(least);
            if !engine.come_to_rest(taken, leave, half, SETTLE_LIMIT) {
                return Err(slow());
            }
            let no_place = |_| "too many processes share the budget".to_owned();
            state.seat.promise(half, engine.local_bytes(), true).map_err(no_place)?
        }
    };
    state.budget_is(state.seat.share());
    // A smaller budget sends pages away.
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

/// Lets the child inherit what is in view.
fn let_fork(engine: &Engine) -> Result<(), String> {
    let answer = engine.view().let_fork(true);
    answer.map_err(|errno| format!("the kernel does not let it inherit far memory: {errno}"))
}

fn open_links(engine: &Engine) -> Result<Links, LinkError> {
    engine.store().clone_links()
}

/// The fork of a process that is asleep itself: its child sleeps as well, with as much room.
fn promise_asleep() -> Option<(Plan, Option<Seat>)> {
    // SAFETY: set to a leaked box or null, and taken only with the gate closed, as it is here.
    let asleep = unsafe { ASLEEP.load(Acquire).as_ref() }?;
    let Some(seat) = &asleep.seat else { return Some((Plan::Asleep, None)) };
    if Pagemap::is_in_reach()
        && let Ok(promised) = seat.promise(seat.share(), seat.share(), false)
    {
        return Some((Plan::Asleep, Some(promised)));
    }
    wake_up_inside();
    None
}

fn spans(extents: &Extents) -> Vec<Span> {
    extents.allocated().into_iter().map(|(offset, len)| Span { offset: offset as usize, len: len as usize }).collect()
}

// ---- in the child ---------------------------------------------------------------------------------------------------

/// Takes the parent's engine apart, or what it kept asleep. The child has no other thread, so nobody uses it.
fn taken_apart(links: Option<Links>, seat: Option<Seat>) -> Option<Asleep> {
    let state = process::take()?;
    let idle = state.idle();
    let State { engine, extents, launch, .. } = *state;
    let (kept, view, store) = engine.apart();
    let (store, door) = match links {
        Some(links) => (Some((store, links)), None),
        None => (None, store.into_door()),
    };
    Some(Asleep {
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

fn fall_asleep(seat: Option<Seat>) {
    let asleep = match taken_apart(None, seat) {
        Some(asleep) => asleep,
        None => {
            let before = ASLEEP.swap(std::ptr::null_mut(), AcqRel);
            if before.is_null() {
                return;
            }
            // SAFETY: a leaked box that nobody else has any more.
            Asleep { seat, ..*unsafe { Box::from_raw(before) } }
        }
    };
    if let Some(seat) = seat {
        seat.take(false);
        seat.set_local(seat.share());
        seat.set_far(asleep.extents.taken_bytes().saturating_sub(asleep.idle + asleep.view.idle_bytes() as u64));
    }
    // The program must not close these until the child starts its engine. Without the mark the child goes by paths.
    let door = asleep.door.filter(|_| mark::set().is_ok());
    let pagemap = Pagemap::open().ok().filter(|_| mark::is_set()).map(Pagemap::kept);
    let asleep = Asleep { door, pagemap, ..asleep };
    ASLEEP.store(Box::into_raw(Box::new(asleep)), Release);
    process::leave_to_first(wake_up_inside);
}

/// Wakes this process up if it is asleep. The gate is closed.
fn wake_up_inside() {
    let asleep = ASLEEP.swap(std::ptr::null_mut(), AcqRel);
    if asleep.is_null() {
        return;
    }
    // SAFETY: a leaked box, taken out just now by this thread alone.
    let asleep = *unsafe { Box::from_raw(asleep) };
    if let Err(error) = wake(asleep) {
        fatal::die(EXIT_LOST, format_args!("a forked child cannot begin to page: {error}"));
    }
}

/// Puts a child's engine together and lets it run.
fn wake(asleep: Asleep) -> Result<(), StartError> {
    let Asleep { mut kept, view, store, door, pagemap, extents, idle, launch, seat } = asleep;
    let _room = room();
    let mechanism = start::open_mechanism(&launch.plan, launch.mode, &launch.features)?;
    let was_asleep = store.is_none();
    let on_links = store.map(|(store, links)| store.on(links)).transpose()?.flatten();
    let (store, senders) = match on_links {
        Some(both) => both,
        // Nothing is away: the links are new ones.
        None => start::open_store(&launch.settings, &launch.plan, door.as_ref().map(AsFd::as_fd))?,
    };
    let view = view.again(mechanism, launch.features.process_madvise)?;
    let taken = spans(&extents);
    if was_asleep {
        // Failing to read one's own page table is failing to know what is there.
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
    // Their numbers are the program's again.
    for fd in [door.as_ref().map(AsFd::as_fd), pagemap.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        descriptors::forget(fd.as_raw_fd());
    }
    drop((door, pagemap));
    start::set_state(Engine::again(kept, view, store), (extents, idle), launch, seat, senders)?;
    process::open();
    Ok(())
}

/// The child goes on without its parent's far memory: touching it ends the child with a line, and never reads wrong
/// bytes.
fn keep_apart(reason: &str) {
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
        // Its fork began when there was no far memory.
        std::thread::spawn(in_parent).join().unwrap();
        assert!(was_pending() && !was_pending());
        let pending = PENDING.lock().take();
        SignalMask::restore(pending.expect("the other thread has taken it").mask);
    }
}
