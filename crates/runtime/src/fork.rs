//! Fork with its usual meaning: the child sees the parent's memory as it was, and both continue to page.
//!
//! Before the fork, [`crate::gate`] (the fork barrier) is closed and the engine is brought to rest. Then each page was
//! never accessed, is mapped for the program, or is evicted with all its bytes on a server. The operating system shares
//! the mapped pages copy-on-write. The servers share the evicted pages through a clone of the session, which the parent
//! opens on the child's behalf. The child inherits a copy of the parent's pager. Before the child continues, it sets up
//! its own trap, page frames, links to the servers and threads. Without a trap, an evicted page would read as zeroes.
//!
//! A child needs none of this if no page was ever evicted and its budget share has room for all far bytes. Such a child
//! is *dormant*: it has no running engine, because every page that it accesses is either present or still zero. A
//! dormant child starts its engine when it first allocates or frees far memory. Most children never do, because they
//! execute another program.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering::*};
use std::time::Duration;

use hanare_sys::Errno;
use hanare_sys::descriptors;
use hanare_sys::flags::{self, Flag};
use hanare_sys::futex::LockCell;
use hanare_sys::map;
use hanare_sys::mark;
use hanare_sys::pagemap::Pagemap;
use hanare_sys::signal::{self, FaultInfo, SignalMask, Unblocked, Verdict};
use hanare_sys::stack;
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

/// The reason reported if another thread of the parent was just setting up far memory at the fork.
const TOO_NEW: &str = "it was forked in the very moment in which far memory was set up";
/// Longest time that a fork waits for pages in transit. If a server does not answer, the run ends earlier.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);

/// How a forked child continues.
enum Plan {
    /// The parent has no far memory: it has no engine and is not dormant.
    Nothing,
    /// The child is dormant: it starts its engine at its first use of far memory.
    Dormant,
    /// The child starts its engine immediately, with these links to the servers.
    Running(Links),
    /// The child cannot use its parent's far memory, for this reason.
    Detached(String),
}

/// A fork that has been prepared by [`before`] and not yet ended by [`in_parent`] or [`in_child`].
struct Pending {
    plan: Plan,
    seat: Option<Seat>,
    mask: Unblocked,
}

/// The pending fork. There is at most one: the gate is closed from [`before`] to [`in_parent`], and only one thread can
/// have it closed.
static PENDING: LockCell<Option<Pending>> = LockCell::new(None);

/// Whether the pending fork is a fork of the calling thread. The child has a copy of its parent's flag. Without the
/// flag, the wrong thread could end the pending fork: a thread whose own fork began without closing the gate, before
/// there was far memory. A fork that needs no preparation leaves the flag unwritten, because a write would make the
/// kernel copy a page.
static IS_PENDING: &Flag = &flags::FORKS;

/// The parts from which a dormant child (one without a running engine) starts its engine later.
struct Dormant {
    kept: Kept,
    view: Base,
    /// The parent's store (the record of evicted pages) with links for the child. `None` if no page is evicted.
    store: Option<(Kind, Links)>,
    /// The descriptor that opens new links to the private server. The descriptor works even if the process changes its
    /// root directory or user before the engine starts.
    door: Option<OwnedFd>,
    /// The page table of this process. At the start of the engine it shows which pages were accessed. It is opened in
    /// advance, because `/proc` may be out of reach later.
    pagemap: Option<Pagemap>,
    extents: Extents,
    /// Allocated bytes that the program does not use.
    idle: u64,
    launch: Launch,
    /// The child's budget share. `None` if the child gets a share only when it starts its engine.
    seat: Option<Seat>,
}

/// Points to a leaked box with the parts of this process' engine while the process is dormant. Otherwise null.
static DORMANT: AtomicPtr<Dormant> = AtomicPtr::new(std::ptr::null_mut());
/// Why this child cannot access its parent's far memory.
static REASON: LockCell<String> = LockCell::new(String::new());
/// Process id of the parent.
static PARENT: AtomicI32 = AtomicI32::new(0);

/// Why a child cannot use far memory if the pager does not come to rest.
const SLOW: &str = "what was on its way to the memory servers did not arrive";
/// Maximum number of times that a fork divides the available budget. After that the child gets its half even beyond it.
const HALVES_MAX: u32 = 8;
/// Number of descriptors that a child opens in addition to one for each recorded descriptor of its parent.
const CHILD_DESCRIPTORS: usize = 4;

/// Returns whether a forked child could open all descriptors that paging needs. If not, the caller makes the fork fail,
/// because the child would lose its parent's far memory.
pub fn can_fork() -> bool {
    let mut can = true;
    if process::state().is_some() {
        on_roomy_stack(|| can = room().is_some());
    }
    can
}

/// Raises the limit on open descriptors if a child would exceed it. Dropping the returned value restores the limit.
/// Returns `None` if the limit cannot be raised far enough.
fn room() -> Option<descriptors::Room> {
    descriptors::Room::make(descriptors::count() + CHILD_DESCRIPTORS)
}

/// Prepares a fork. The thread that forks must call it before the fork. After the fork, the parent must call
/// [`in_parent`], and the child must call [`in_child`].
pub fn before() {
    if !process::has_begun() && DORMANT.load(Acquire).is_null() {
        return;
    }
    if stack_is_far() {
        fatal::abort(format_args!(
            "a function of the C library forks on a stack in far memory, which its child could not read; call fork itself"
        ));
    }
    let mask = SignalMask::block_all().keep();
    on_roomy_stack(|| {
        gate::close();
        if !heap::can_be_forked() {
            // The heap was opened while this thread waited at the gate. A thread that waits there now may hold a lock
            // of the heap.
            gate::open();
            heap::lock_for_fork();
            gate::close();
        }
        let (plan, mut seat) = prepare();
        seat.iter_mut().for_each(Seat::forks);
        // SAFETY: `getpid` has no preconditions.
        PARENT.store(unsafe { libc::getpid() }, Relaxed);
        *PENDING.lock() = Some(Pending { plan, seat, mask });
        IS_PENDING.set(true);
    });
}

/// Returns whether the calling thread runs on a stack in far memory. While a thread forks, its stack must stay present,
/// because the child's first accesses do not trap. So such a thread must fork on another stack.
pub fn stack_is_far() -> bool {
    let here = 0_u8;
    places::contains(&raw const here as usize)
}

/// Runs `work` on a stack that is made for it. The program's stack may have room for a fork of its own only. If there is
/// no memory for another stack, `work` runs on the program's.
fn on_roomy_stack(work: impl FnOnce()) {
    let mut work = Some(work);
    let ran = stack::run_on_fresh(|| work.take().into_iter().for_each(|work| work()));
    if ran.is_err() {
        work.take().into_iter().for_each(|work| work());
    }
}

/// Ends a fork in the parent. Call it after the fork, even if the fork failed.
pub fn in_parent() {
    if !was_pending() {
        return;
    }
    let Some(Pending { plan, mask, .. }) = PENDING.lock().take() else { return };
    on_roomy_stack(|| {
        if let Some(state) = process::state() {
            state.engine.view().end_fork();
            state.engine.go_on();
        }
        // Closes the parent's copies of the child's links. Otherwise the child's session would not end with the child.
        drop(plan);
        gate::open();
    });
    SignalMask::restore(mask);
}

/// Ends a fork in the child. Call it after the fork.
pub fn in_child() {
    if !was_pending() {
        // This fork was not prepared, because the parent had no far memory when the fork began. At that time, another
        // thread of the parent may have been starting the engine. That thread does not exist in the child. If it had
        // not completed the engine, the child's first use of far memory starts an engine. If it had, the child cannot
        // use far memory.
        gate::reset_if_closed();
        if process::state().is_some() {
            claim_far();
            on_roomy_stack(|| detach(TOO_NEW));
        }
        return;
    }
    let Some(Pending { plan, seat, mask }) = PENDING.lock().take() else { return };
    fatal::name_process();
    if let Plan::Detached(_) = plan {
        claim_far();
    }
    on_roomy_stack(|| {
        tracing::forked();
        threads::forked(|| go_on(plan, seat));
        gate::reset();
    });
    SignalMask::restore(mask);
}

/// Carries out `plan` in the child: starts its engine, makes the child dormant, or makes far memory inaccessible.
fn go_on(plan: Plan, seat: Option<Seat>) {
    match plan {
        Plan::Nothing => {}
        Plan::Dormant => stay_dormant(seat),
        Plan::Running(links) => {
            // Without a reservation, the child joins the others as a new process does.
            let seat = seat.filter(|seat| seat.take(true));
            if let Some(dormant) = taken_apart(Some(links), seat) {
                add(&dormant.launch.counters.forks, 1);
                if let Err(error) = start_engine(dormant) {
                    let reason = error.to_string();
                    close_far(&reason);
                    detach(&reason);
                }
            }
        }
        Plan::Detached(reason) => detach(&reason),
    }
}

/// Clears the flag `IS_PENDING` of the calling thread. Returns whether it was set.
fn was_pending() -> bool {
    IS_PENDING.get() && IS_PENDING.replace(false)
}

// ---- before ---------------------------------------------------------------------------------------------------------

/// Decides how the child will continue, and reserves its budget share if it needs one.
fn prepare() -> (Plan, Option<Seat>) {
    if let Some(promised) = plan_dormant() {
        return promised;
    }
    let Some(state) = process::state() else { return (Plan::Nothing, None) };
    let engine = &state.engine;
    state.return_all();
    let bytes = state.far_bytes();
    let seat = state.seat;
    let is_bare = bytes == 0 && !engine.has_written_back();
    if is_bare && engine.is_settled() {
        return (let_fork(engine).map_or_else(Plan::Detached, |()| Plan::Dormant), None);
    }
    // True if the kernel's fork gives the child all pages: none is evicted and none is in transit.
    let is_in_view = || !engine.has_written_back() && engine.is_settled();
    engine.rest();
    // The child can be dormant only if it can read its own page table. When it starts its engine, it learns from the
    // table which pages it has accessed.
    if is_in_view() && engine.view().is_inherited() && seat.whole().is_some() && Pagemap::is_in_reach() {
        let room = bytes.max(state.launch.least_bytes());
        if let Ok(promised) = seat.promise(room, engine.local_bytes(), false) {
            state.budget_is(seat.share());
            // The reservation has made the budget of this process smaller. This may have evicted pages, so the
            // condition is checked again.
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
    let taken = engine.in_use(state.extents.lock().spans());
    match share(state, &taken) {
        Ok((links, promised)) => (Plan::Running(links), Some(promised)),
        Err(reason) => (Plan::Detached(reason), None),
    }
}

/// Brings the engine to rest, reserves a budget share for the child and opens the child's links to the servers. The
/// error is the reason why the child cannot use far memory.
fn share(state: &'static State, taken: &[Span]) -> Result<(Links, Seat), String> {
    let engine = &state.engine;
    // `room` raises the limit on descriptors. If it cannot, `open_links` below fails and returns the error.
    let _room = room();
    let leave = !engine.view().is_inherited();
    if !comes_to_rest(engine, taken, leave, u64::MAX) {
        return Err(SLOW.to_owned());
    }
    let least = state.launch.least_bytes();
    let room = || (engine.local_bytes() + engine.local_bytes() / 4).max(least);
    let promised = match state.seat.promise(room(), engine.local_bytes(), false) {
        Ok(promised) => promised,
        Err(both) => promise_half(state, both, |half| comes_to_rest(engine, taken, leave, half))?,
    };
    state.budget_is(state.seat.share());
    // The smaller budget may have evicted pages. These pages must arrive at the servers before the fork.
    if !engine.is_settled() && !comes_to_rest(engine, taken, leave, u64::MAX) {
        promised.withdraw();
        return Err(SLOW.to_owned());
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

/// Brings the engine to rest, as [`Engine::come_to_rest`] does within [`SETTLE_LIMIT`]. Time in which the run waits for a
/// memory server does not count.
fn comes_to_rest(engine: &Engine, taken: &[Span], leave: bool, local_max: u64) -> bool {
    loop {
        let turns = engine.store().turns();
        if engine.come_to_rest(taken, leave, local_max, SETTLE_LIMIT) {
            return true;
        }
        if engine.store().turns() == turns && !engine.store().is_waiting() {
            return false;
        }
    }
}

/// Reserves half of the available budget, `both` bytes, for the child. A page that parent and child use counts for each of
/// them. `shrink` makes this process use no more than a number of bytes, which takes a while. Other processes may claim free
/// bytes meanwhile. Then the halves become smaller, down to the least share, which a child gets even beyond the budget.
fn promise_half(state: &State, mut both: u64, shrink: impl Fn(u64) -> bool) -> Result<Seat, String> {
    let least = state.launch.least_bytes();
    for tries in 1.. {
        let half = (both / 2).max(least);
        if !shrink(half) {
            return Err(SLOW.to_owned());
        }
        match state.seat.promise(half, state.engine.local_bytes(), half == least || tries == HALVES_MAX) {
            Ok(promised) => return Ok(promised),
            Err(less) if less > 0 && tries < HALVES_MAX => both = less,
            Err(_) => break,
        }
    }
    Err("too many processes share the budget".to_owned())
}

/// Lets the child inherit the mapped pages of far memory. If the kernel refuses, the child inherits none of them.
fn let_fork(engine: &Engine) -> Result<(), String> {
    engine.view().let_fork(true).map_err(|errno| {
        engine.view().end_fork();
        format!("the kernel does not let it inherit far memory: {errno}")
    })
}

fn open_links(engine: &Engine) -> Result<Links, LinkError> {
    engine.store().clone_links()
}

/// Plans the fork of a dormant process. Its child is dormant too and gets a budget share of the same size. If that is
/// not possible, starts the engine of this process and returns `None`. Returns `None` also if the process is not
/// dormant.
fn plan_dormant() -> Option<(Plan, Option<Seat>)> {
    // SAFETY: `DORMANT` is null or points to a leaked box. Only a thread that has closed the gate frees this box. This
    // thread has the gate closed, so the box stays valid here.
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

// ---- in the child ---------------------------------------------------------------------------------------------------

/// Takes the child's copy of the engine apart. No thread uses that copy, because the child has only this thread.
/// Returns `None` if there is no engine.
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

/// Makes this child dormant. Its parent had an engine, or was dormant too.
fn stay_dormant(seat: Option<Seat>) {
    // Without a reservation, this child counts for the shared budget only after it has started its engine.
    let seat = seat.filter(|seat| seat.take(false));
    let dormant = match taken_apart(None, seat) {
        Some(dormant) => dormant,
        None => {
            let before = DORMANT.swap(std::ptr::null_mut(), AcqRel);
            if before.is_null() {
                return;
            }
            // SAFETY: `before` points to a leaked box. The swap took the only pointer to this box, so nothing else uses
            // or frees it.
            Dormant { seat, ..*unsafe { Box::from_raw(before) } }
        }
    };
    if let Some(seat) = seat {
        seat.set_local(seat.share());
        seat.set_far(dormant.extents.taken_bytes().saturating_sub(dormant.idle + dormant.view.idle_bytes() as u64));
    }
    // Both descriptors are recorded as Hanare's, so that the program cannot close them before the child starts its
    // engine. The record is valid only in a process that has called `mark::set`. If that call fails, neither descriptor
    // is kept, and the child opens new ones by path later.
    let door = dormant.door.filter(|_| mark::set().is_ok());
    let pagemap = Pagemap::open().ok().filter(|_| mark::is_set()).map(Pagemap::kept);
    let dormant = Dormant { door, pagemap, ..dormant };
    DORMANT.store(Box::into_raw(Box::new(dormant)), Release);
    process::leave_to_first(start_dormant);
}

/// Starts the engine of this process if the process is dormant. The caller has closed the gate.
fn start_dormant() {
    let dormant = DORMANT.swap(std::ptr::null_mut(), AcqRel);
    if dormant.is_null() {
        return;
    }
    // SAFETY: `dormant` points to a leaked box. The swap took the only pointer to this box, so nothing else uses or
    // frees it.
    let dormant = *unsafe { Box::from_raw(dormant) };
    if let Err(error) = start_engine(dormant) {
        fatal::die(EXIT_LOST, format_args!("a forked child cannot begin to page: {error}"));
    }
}

/// Assembles a child's engine from its parts and starts it.
fn start_engine(dormant: Dormant) -> Result<(), StartError> {
    let Dormant { mut kept, view, store, door, pagemap, extents, idle, launch, seat } = dormant;
    let _room = room();
    let mechanism = start::open_mechanism(&launch.plan, launch.mode, &launch.features)?;
    let was_dormant = store.is_none();
    let on_links = store.map(|(store, links)| store.on(links)).transpose()?.flatten();
    let (store, workers) = match on_links {
        Some(both) => both,
        // The parent opened no links for the child, because no page is evicted. The child opens its own.
        None => start::open_store(&launch.settings, &launch.plan, door.as_ref().map(AsFd::as_fd))?,
    };
    let view = view.again(mechanism)?;
    let taken = extents.spans();
    if was_dormant {
        // Opens the page table if it was not opened at the fork. It is needed because only the page table tells which
        // pages are present.
        let now = if pagemap.is_none() && !taken.is_empty() { Some(Pagemap::open()) } else { None };
        let now = now.transpose().map_err(StartError::Pagemap)?;
        if let Some(pagemap) = pagemap.as_ref().or(now.as_ref()) {
            kept.adopt_present(&view, &taken, pagemap).map_err(StartError::Pagemap)?;
        }
    } else {
        kept.protect_clean(&view, &kept.in_use(taken));
    }
    let seat = match seat {
        Some(seat) => seat,
        None => start::join(&launch)?,
    };
    seat.begin(true);
    // Removes both descriptors from the record and closes them. From here on, the program may reuse their numbers.
    for fd in [door.as_ref().map(AsFd::as_fd), pagemap.as_ref().map(AsFd::as_fd)].into_iter().flatten() {
        descriptors::forget(fd.as_raw_fd());
    }
    drop((door, pagemap));
    start::set_state(Engine::again(kept, view, store), (extents, idle), launch, seat, workers)?;
    process::open();
    Ok(())
}

/// Makes an access to far memory end this child with a message, so that the child never reads wrong bytes. The range of
/// far memory must be inaccessible already.
fn detach(reason: &str) {
    let _ = process::take().map(std::mem::forget);
    reason.clone_into(&mut REASON.lock());
    process::close();
    if signal::install(libc::SIGSEGV, on_touch).is_err() {
        on_touch_end(reason);
    }
}

/// Makes far memory inaccessible, in a child that has inherited it.
fn close_far(reason: &str) {
    places::each_range(|addr, len| {
        // SAFETY: the range is a part of far memory, which this child has inherited as a whole and must not use. So the
        // call replaces nothing that the child may access.
        if unsafe { map::replace_with_none(addr, len) }.is_err() {
            on_touch_end(reason);
        }
    });
}

/// Makes far memory inaccessible, in a child that has not inherited it. In such a child nothing is mapped in its range,
/// so the kernel would place the child's next mappings there. The caller has mapped nothing yet. Other handlers of the
/// fork may have. Their mappings stay.
fn claim_far() {
    places::each_range(|addr, len| {
        let (mut at, end, mut step) = (addr, addr + len, len);
        while at < end {
            step = step.min(end - at);
            match map::claim(at, step) {
                Ok(()) => (at, step) = (at + step, 2 * step),
                // The mapping of a single page is another handler's.
                Err(Errno(libc::EEXIST)) if step <= map::page_size() => at += step,
                Err(Errno(libc::EEXIST)) => step = (step / 2).next_multiple_of(map::page_size()),
                Err(errno) => on_touch_end(&format!("its range cannot be closed: {errno}")),
            }
        }
    });
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
        // The spawned thread acts as a thread whose fork began before there was far memory.
        std::thread::spawn(in_parent).join().unwrap();
        assert!(was_pending() && !was_pending());
        let pending = PENDING.lock().take();
        SignalMask::restore(pending.expect("the other thread has taken it").mask);
    }
}
