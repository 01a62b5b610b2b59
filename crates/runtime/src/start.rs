//! Starts the engine of a process, immediately or at the first use of far memory. A forked child also starts its engine
//! by functions of this module.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::*};

use hanare_paging::policy;
use hanare_settings::{Brief, Environment, FAR_LARGE, Mode, PageSize, Settings, SettingsError, Slowdown};
use hanare_store::Worker;
use hanare_sys::clock::now_ns;
use hanare_sys::features::{CallTraps, Disabled, Features};
use hanare_sys::filter::{self, Refused};
use hanare_sys::{descriptors, limits, mark};

use crate::counters::{Counters, add};
use crate::engine::{Engine, Parts};
use crate::extents::Extents;
use crate::fatal::{self, EXIT_BEFORE};
use crate::plan::{self, Plan};
use crate::process::{self, Call, Launch, State, state};
use crate::stats::Stats;
use crate::tree::Seat;
use crate::{calls, choose, heap, keeper, load, places, profile, small, threads};

mod error;
mod parts;

pub use error::StartError;
pub(crate) use parts::{open_mechanism, open_store};
use parts::{open_pager, open_threads, open_trap, open_view, trap_by};

/// Maximum number of file descriptors that a start with a private server uses at a time.
const DESCRIPTORS: usize = 19;
/// Additional file descriptors for each memory server.
const DESCRIPTORS_PER_SERVER: usize = 3;

/// The environment from which a deferred start reads its settings. Null if the start is not deferred.
static LATER: AtomicPtr<Environment> = AtomicPtr::new(std::ptr::null_mut());
/// Whether the program may make every transfer until the deferred start, because the kernel moves pages.
static MOVES_EXPECTED: AtomicBool = AtomicBool::new(false);
/// The function that [`before_start`] has set.
static BEFORE_START: Call = Call::none();
/// The counters of this process. Null until they are mapped.
static COUNTERS: AtomicPtr<Stats> = AtomicPtr::new(std::ptr::null_mut());

/// Validates the settings, probes the kernel, and chooses the trap mode and the sizes. `serves_calls` tells whether the
/// process serves trapped system calls.
fn consider(settings: &Settings, serves_calls: bool) -> Result<(Features, Mode, Plan), StartError> {
    settings.validate()?;
    let features = Features::probe(&settings.disabled()?);
    let mode = choose::choose(settings.mode, &features, serves_calls)?;
    let direct = settings.private.is_some() && settings.servers.is_empty();
    let hides = policy::hides(&settings.policy).map_err(SettingsError::Choice)?;
    let plan = plan::plan(settings, mode, &features, direct, hides)?;
    Ok((features, mode, plan))
}

/// Returns an error if small allocations would be far and system calls cannot access far pages. The C library waits on
/// some small blocks in the kernel (condition variables). If such a block were far, the process would end.
fn check_far(settings: &Settings, mode: Mode, features: &Features) -> Result<(), StartError> {
    let reserve = usize::try_from(settings.reserve).unwrap_or(usize::MAX);
    if settings.far < FAR_LARGE && !choose::small_blocks_work(mode, features, reserve) {
        return Err(StartError::Far { mode });
    }
    Ok(())
}

/// Checks whether a process could start with these settings. Returns the trap mode that it would use if it serves system
/// calls.
///
/// # Errors
/// The reason why the process could not start ([`StartError`]).
pub fn rehearse(settings: &Settings) -> Result<Mode, StartError> {
    let (features, mode, plan) = consider(settings, true)?;
    check_far(settings, mode, &features)?;
    // Sigsegv mode maps shared memory twice, so it needs twice the address space.
    let is_shared = mode == Mode::Sigsegv;
    let wanted = plan.reserve as u64 * if is_shared { 2 } else { 1 };
    let limited = |kind| Some(limits::reach(kind)).filter(|&most| most < wanted);
    let told = |(name, most)| Err(StartError::Limit { name, most, wanted });
    if let Some(most) = limited(limits::Kind::Space) {
        return told(("v", most));
    }
    match limited(limits::Kind::Data).filter(|_| !is_shared) {
        Some(most) => told(("d", most)),
        None => Ok(mode),
    }
}

/// Sets up far memory for this process: reserves address space, opens the trap and the links to the servers, and
/// starts Hanare's threads.
///
/// # Errors
/// The reason why far memory cannot be started ([`StartError`]). Some unused address space may stay reserved.
pub fn start(settings: &Settings) -> Result<(), StartError> {
    start_if(settings, |_, _, _| Ok(()))
}

/// A function that checks whether the settings work with a trap mode on this machine.
type Check = fn(&Settings, Mode, &Features) -> Result<(), StartError>;

fn start_if(settings: &Settings, check: Check) -> Result<(), StartError> {
    if state().is_some() {
        return Err(StartError::Again);
    }
    process::begins();
    hanare_sys::refuse_on_purpose();
    let wanted = DESCRIPTORS + DESCRIPTORS_PER_SERVER * settings.servers.len();
    let _room =
        descriptors::Room::make(wanted).ok_or_else(|| StartError::Descriptors { wanted, used: descriptors::used() })?;
    hanare_wire::keep_descriptors_by(descriptors::keep);
    let serves_calls = calls::suit_signals() && calls::call_traps().dispatch;
    let (features, mode, plan) = consider(settings, serves_calls)?;
    check(settings, mode, &features)?;
    if let Some(refused) = refused_transfers(mode, &features) {
        // Files opened for direct I/O, rings for asynchronous I/O, and children that write to this process may be there
        // already. No filter can refuse their transfers any more.
        if MOVES_EXPECTED.load(Relaxed) {
            return Err(StartError::Unmoved { mode });
        }
        filter::refuse(refused).map_err(StartError::Filter)?;
    }
    let counters = attach_counters(settings)?;
    name_choices(counters, settings, mode);
    let view = open_view(&plan, mode, &features)?;
    let (store, workers) = open_store(settings, &plan, None)?;
    let pager = open_pager(settings, &plan, mode)?;
    let geometry = plan.config.geometry;
    let engine = Engine::new(Parts {
        view,
        store,
        pager,
        small_moves: plan.config.small.moves,
        unit_bytes: geometry.unit_bytes as usize,
        block_units: geometry.block_units,
        overhead_bytes: plan.overhead_bytes,
        units_max: plan.units_max,
        traps_by_signal: mode != Mode::Thread,
        counters,
    })?;
    let launch = Launch { settings: settings.clone(), plan, mode, features, counters };
    let seat = join(&launch)?;
    let (base, len) = (engine.view().base(), engine.view().len());
    places::are_reserved(base, len);
    calls::trap(mode, &launch.features, (base, len));
    if mode == Mode::Sigbus && !calls::call_traps().filter {
        if settings.far < FAR_LARGE || small::are_far() {
            return Err(StartError::Far { mode });
        }
        small::no_limit();
    }
    // If the C library's table of exit functions is full, `at_exit` never runs. The counters then miss the last tenth
    // of a second.
    // SAFETY: `at_exit` is a plain function, and the library that contains it stays loaded.
    unsafe { libc::atexit(at_exit) };
    set_state(engine, (Extents::new(base as u64, plan.reserve as u64), 0), launch, seat, workers)?;
    heap::open(base, len)?;
    process::open();
    Ok(())
}

/// Returns the calls that the program must not make. If the kernel cannot detect transfers, a page could be evicted
/// during a transfer. In this case asynchronous I/O and `process_vm_writev` are refused. In thread mode direct I/O is
/// refused too. In the other modes direct I/O goes through copies in near memory.
fn refused_transfers(mode: Mode, features: &Features) -> Option<Refused> {
    match mode {
        Mode::Sigsegv => Some(Refused::Transfers),
        _ if features.move_ => None,
        Mode::Sigbus => Some(Refused::Transfers),
        Mode::Thread | Mode::Auto => Some(Refused::TransfersAndDirectIo),
    }
}

/// Acquires a budget share for this process among the processes of the run.
pub(crate) fn join(launch: &Launch) -> Result<Seat, StartError> {
    let counters = launch.counters;
    counters.tree().join(counters, launch.whole_bytes(), launch.least_bytes()).ok_or(StartError::Members)
}

/// Makes `engine` the engine of this process, and starts its trap and its threads. `taken` has the allocated extents
/// and the number of idle bytes in them.
pub(crate) fn set_state(
    engine: Engine,
    taken: (Extents, u64),
    launch: Launch,
    seat: Seat,
    workers: Vec<Worker>,
) -> Result<(), StartError> {
    let mode = launch.mode;
    load::begin();
    name_pages(&launch);
    let state = Box::leak(Box::new(State::new(engine, taken, launch, seat)));
    state.engine.sit(seat);
    state.budget_is(seat.share());
    state.far_changed();
    profile::join(state.launch.counters.profile(), places::base(), places::len());
    mark::set()?;
    threads::are_home();
    let state = process::set(state);
    add(&state.engine.counters.processes, 1);
    open_trap(state, mode)?;
    open_threads(state, workers).map_err(StartError::Thread)
}

/// Notes what the run was asked for, and what its counts by depth mean.
fn name_pages(launch: &Launch) {
    let (counters, config) = (launch.counters, launch.plan.config);
    counters.base_bytes.store(u64::from(config.geometry.unit_bytes), Relaxed);
    counters.huge_units.store(u64::from(config.geometry.block_units), Relaxed);
    counters.store_is_direct.store(u64::from(config.direct), Relaxed);
    let slowdown = launch.settings.slowdown.map_or(0, Slowdown::thousandths);
    counters.slowdown.store(u64::from(slowdown), Relaxed);
    // The first of the processes begins with this budget.
    let _ = counters.held_bytes.compare_exchange(0, launch.whole_bytes(), Relaxed, Relaxed);
}

/// Defers the start to the first far allocation. A program that never allocates far memory then need not wait for a
/// start. Far memory starts now in sigsegv mode, and in sigbus mode without both traps for system calls: what threads do
/// before the start could not be corrected. So it does if no mode is given, because `hanare run` has not checked the
/// settings then. If this process has no right to reach the private server, the start is deferred in each mode, and
/// ends the process if it fails again.
///
/// # Errors
/// The reason why far memory cannot be started ([`StartError`]).
pub fn start_later(environment: Environment) -> Result<(), StartError> {
    let Brief { mode, far: threshold, near, disabled } = Settings::brief(&environment)?;
    let deferred = deferred_mode(mode, &disabled)?;
    if deferred.is_none() {
        match start_now(&environment) {
            // The program was executed after its process gave up root. It may never use far memory.
            Err(error) if error.is_denied() => {}
            ended => return ended,
        }
    }
    // This system call filter must be in force before the program opens a file. Direct I/O on a file that is already
    // open cannot be refused.
    if !Features::kernel_moves(&disabled) {
        let refused = if deferred == Some(Mode::Thread) { Refused::TransfersAndDirectIo } else { Refused::Transfers };
        filter::refuse(refused).map_err(StartError::Filter)?;
    } else {
        MOVES_EXPECTED.store(true, Relaxed);
    }
    LATER.store(Box::leak(Box::new(environment)), Release);
    process::leave_to_first(start_left);
    process::threshold_is(threshold);
    // Where system calls fail on far memory, small blocks must be near.
    if deferred.is_some() && near > 0 && threshold > 0 {
        small::limit(near);
    }
    Ok(())
}

/// Returns the trap mode of a start that can be deferred, and prepares it. Returns `None` if the start cannot be deferred.
fn deferred_mode(asked: Option<Mode>, disabled: &Disabled) -> Result<Option<Mode>, StartError> {
    Ok(match asked {
        Some(Mode::Thread) => Some(Mode::Thread),
        Some(Mode::Sigbus) if prepare_signals(disabled)? => Some(Mode::Sigbus),
        Some(Mode::Auto) if calls::suit_signals() && prepare_signals(disabled)? => Some(Mode::Sigbus),
        Some(Mode::Auto) => {
            let mode = choose::choose(Mode::Auto, &Features::probe(disabled), false)?;
            Some(mode).filter(|&mode| mode == Mode::Thread)
        }
        Some(Mode::Sigbus | Mode::Sigsegv) | None => None,
    })
}

/// Prepares a start in sigbus mode that is deferred: the actions of the two signals, and the trap that each thread needs
/// from its beginning on. The program can no longer block these signals, nor take their actions away. Returns false, and
/// changes nothing, if not both traps for system calls can be set.
fn prepare_signals(disabled: &Disabled) -> Result<bool, StartError> {
    let both = CallTraps { filter: true, dispatch: true };
    if CallTraps::probe(disabled) != both || !calls::trap_early() {
        return Ok(false);
    }
    trap_by(libc::SIGBUS).map(|()| true)
}

/// Carries out the start that [`start_later`] deferred. Ends the process if the start fails.
fn start_left() {
    // SAFETY: the pointer is null or comes from `Box::leak`, so the environment is never freed.
    if let Some(environment) = unsafe { LATER.load(Acquire).as_ref() }
        && state().is_none()
        && let Err(error) = start_now(environment)
    {
        let advice = "; it was executed as another user than the run, so name a server with --server";
        fatal::die(EXIT_BEFORE, format_args!("{error}{}", if error.is_denied() { advice } else { "" }));
    }
}

fn start_now(environment: &Environment) -> Result<(), StartError> {
    if let Some(prepare) = BEFORE_START.get() {
        prepare();
    }
    start_if(&Settings::from_environment(environment)?, check_far)
}

/// Sets a function that runs before the start that [`start_later`] defers or carries out.
pub fn before_start(prepare: fn()) {
    BEFORE_START.set(prepare);
}

extern "C" fn at_exit() {
    keeper::shutdown();
}

/// Maps the counters of the run, if they are not mapped yet, and returns them.
fn attach_counters(settings: &Settings) -> Result<&'static Stats, StartError> {
    // SAFETY: the pointer is null or comes from `Box::leak`, so the counters are never freed.
    if let Some(counters) = unsafe { COUNTERS.load(Acquire).as_ref() } {
        return Ok(counters);
    }
    let counters = Box::leak(Box::new(Stats::attach(settings.stats_fd, settings.stats_pid)?));
    COUNTERS.store(counters, Release);
    counters.tree().executed(counters);
    // `hanare run` starts one process. Each other process has one before it, which may tell the same news.
    if settings.stats_pid.is_some_and(|run| run.cast_unsigned() != std::os::unix::process::parent_id()) {
        fatal::name_process();
    }
    Ok(counters)
}

fn name_choices(counters: &Counters, settings: &Settings, mode: Mode) {
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
    let _ = counters.started_ns.compare_exchange(0, now_ns(), Relaxed, Relaxed);
}
