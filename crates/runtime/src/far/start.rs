//! Starting: at once, or by the first who needs far memory; a process' own, or a forked child's again.

use std::os::fd::BorrowedFd;

use hanare_sys::filter::{self, Refused};
use hanare_wire::Attachment;

use super::threads::own_thread;
use super::*;

/// Descriptors that a start needs at a time, with a private server.
const DESCRIPTORS: usize = 16;
const DESCRIPTORS_PER_SERVER: usize = 3;

fn consider(settings: &Settings) -> Result<(Features, Mode, Plan), StartError> {
    settings.validate()?;
    let features = Features::probe(&settings.disabled()?);
    let mode = choose::choose(settings.mode, &features)?;
    let direct = settings.private.is_some() && settings.servers.is_empty();
    let hides = policy::hides(&settings.policy).map_err(SettingsError::Choice)?;
    let plan = plan::plan(settings, mode, &features, direct, hides)?;
    Ok((features, mode, plan))
}

/// Small blocks stay near where the kernel cannot access far pages: they hold what the C library accesses with every signal
/// blocked (a new thread's number), or waits on in the kernel (condition variables), and would end the program.
fn check_far(settings: &Settings, mode: Mode, features: &Features) -> Result<(), StartError> {
    if settings.far < FAR_LARGE && !choose::system_calls_work(mode, features) {
        return Err(StartError::Far { mode });
    }
    Ok(())
}

/// Whether and how a process could start with these settings: the trap mode it would have.
///
/// # Errors
/// See [`StartError`].
pub fn rehearse(settings: &Settings) -> Result<Mode, StartError> {
    let (features, mode, plan) = consider(settings)?;
    check_far(settings, mode, &features)?;
    // Every page has two addresses there, in mappings that are shared.
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

/// Sets up far memory for this process: reservation, trap, links, threads.
///
/// # Errors
/// See [`StartError`]; nothing is left behind but unused address space.
pub fn start(settings: &Settings) -> Result<(), StartError> {
    start_if(settings, |_, _, _| Ok(()))
}

/// What there is to say against a mode on a machine.
type Check = fn(&Settings, Mode, &Features) -> Result<(), StartError>;

fn start_if(settings: &Settings, check: Check) -> Result<(), StartError> {
    if state().is_some() {
        return Err(StartError::Again);
    }
    HAS_BEGUN.store(true, Release);
    hanare_sys::refuse_on_purpose();
    let wanted = DESCRIPTORS + DESCRIPTORS_PER_SERVER * settings.servers.len();
    let _room = descriptors::Room::make(wanted).ok_or(StartError::Descriptors(wanted))?;
    hanare_wire::keep_descriptors_by(descriptors::keep);
    let (features, mode, plan) = consider(settings)?;
    check(settings, mode, &features)?;
    if let Some(refused) = refused_io(mode, &features) {
        filter::refuse(refused).map_err(StartError::Filter)?;
    }
    let counters = attach_counters(settings)?;
    name_choices(counters, settings, mode);
    let view = open_view(&plan, mode, &features)?;
    let (store, senders) = open_store(settings, &plan, None)?;
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
    BASE.store(base, Relaxed);
    LEN.store(len, Relaxed);
    // SAFETY: a plain function of a library that stays loaded; a full table costs the last tenth second of counts.
    unsafe { libc::atexit(at_exit) };
    set_state(engine, (Extents::new(plan.reserve as u64), 0), launch, seat, senders)?;
    heap::open(base, len)?;
    open_doors();
    Ok(())
}

/// What I/O the program cannot be left. Where it cannot be told that a transfer holds a page, the page may leave beneath the
/// transfer. So no page may be held beyond a call there, nor during one, save where calls are handed near copies.
fn refused_io(mode: Mode, features: &Features) -> Option<Refused> {
    match mode {
        Mode::Sigsegv => Some(Refused::AsyncIo),
        _ if features.move_ => None,
        Mode::Sigbus => Some(Refused::AsyncIo),
        Mode::Thread | Mode::Auto => Some(Refused::AsyncAndDirectIo),
    }
}

/// A place among the processes of the run.
pub(crate) fn join(launch: &Launch) -> Result<Seat, StartError> {
    let counters = launch.counters;
    counters.tree().join(counters, launch.whole_bytes(), launch.least_bytes()).ok_or(StartError::Members)
}

/// Makes an engine this process', with what of the space is taken and the idle part of it, and starts its trap and threads.
pub(crate) fn set_state(
    engine: Engine,
    (extents, idle): (Extents, u64),
    launch: Launch,
    seat: Seat,
    senders: Vec<Sender>,
) -> Result<(), StartError> {
    let granularity = launch.plan.config.geometry.unit_bytes as usize;
    let mode = launch.mode;
    let (taken, idle) = (AtomicU64::new(0), AtomicU64::new(idle));
    let extents = LockCell::new(extents);
    let heap_promised = AtomicU64::new(0);
    let state = Box::leak(Box::new(State { engine, extents, taken, idle, heap_promised, launch, seat, granularity }));
    state.engine.sit(seat);
    state.budget_is(seat.share());
    state.far_changed();
    mark::set()?;
    // What tells the number of threads is opened now: later the program may have used up all descriptors.
    let _ = thread::count();
    THREAD_MODE.store(mode == Mode::Thread, Relaxed);
    HOME.store(thread::first(), Relaxed);
    STATE.store(state, Release);
    add(&state.engine.counters.processes, 1);
    open_trap(state, mode)?;
    open_threads(state, senders)
}

/// Far memory can be had from now on.
pub(crate) fn open_doors() {
    if let Some(state) = state() {
        LATENT.store(false, Release);
        THRESHOLD.store(state.launch.settings.far, Release);
    }
}

/// Leaves the start to the first far allocation, which most programs that others execute never make: they are not to be
/// slowed down by what they do not use. Unless the settings say that a thread traps, the start is now: a program may take
/// the fault signal for itself before.
///
/// # Errors
/// See [`start`].
pub fn start_later(environment: Environment) -> Result<(), StartError> {
    let (mode, threshold, disabled) = Settings::brief(&environment)?;
    if mode != Mode::Thread {
        return start_now(&environment);
    }
    // Before the program opens a file: what it has open already could not be refused any more.
    if !Features::kernel_moves(&disabled) {
        filter::refuse(Refused::AsyncAndDirectIo).map_err(StartError::Filter)?;
    }
    LATER.store(Box::leak(Box::new(environment)), Release);
    LATENT.store(true, Release);
    THRESHOLD.store(threshold, Release);
    Ok(())
}

fn start_now(environment: &Environment) -> Result<(), StartError> {
    // SAFETY: null, or a plain function ([`before_start`]).
    if let Some(prepare) = unsafe { prepare_of(BEFORE_START.load(Acquire)) } {
        prepare();
    }
    start_if(&Settings::from_environment(environment)?, check_far)
}

/// The engine, started or woken up if need be. Signals are not blocked yet.
pub(super) fn ready() -> Option<&'static State> {
    if LATENT.load(Acquire) {
        bring_up();
    }
    state()
}

/// Whether far memory is still to be started by the first who needs it.
pub fn is_dormant() -> bool {
    LATENT.load(Acquire)
}

/// Starts far memory now if that was left to the first who needs it.
pub fn ensure_started() {
    let _ = ready();
}

/// `prepare` is called before far memory starts in this process by [`start_later`].
pub fn before_start(prepare: fn()) {
    BEFORE_START.store(prepare as *mut (), Release);
}

/// # Safety
/// `pointer` is null or was a `fn()`.
unsafe fn prepare_of(pointer: *mut ()) -> Option<fn()> {
    // SAFETY: the caller's promise.
    (!pointer.is_null()).then(|| unsafe { std::mem::transmute::<*mut (), fn()>(pointer) })
}

#[cold]
fn bring_up() {
    if OWN.get() {
        return;
    }
    let _mask = SignalMask::block_all();
    gate::close();
    if LATENT.load(Acquire) {
        // What is allocated on the way is near.
        OWN.set(true);
        IS_STARTING.store(true, Release);
        HAS_BEGUN.store(true, Release);
        fork::wake_up_inside();
        // Kept until it is done: a child forked meanwhile by another thread has to start by itself.
        let later = LATER.load(Acquire);
        // SAFETY: a leaked box, or null.
        if let Some(environment) = unsafe { later.as_ref() }
            && state().is_none()
            && let Err(error) = start_now(environment)
        {
            fatal::die(EXIT_BEFORE, format_args!("{error}"));
        }
        OWN.set(false);
        LATENT.store(false, Release);
        IS_STARTING.store(false, Release);
    }
    gate::open();
}

extern "C" fn at_exit() {
    shutdown();
}

/// The counters of the run.
fn attach_counters(settings: &Settings) -> Result<&'static Stats, StartError> {
    // SAFETY: set once to a leaked box, or null.
    if let Some(counters) = unsafe { COUNTERS.load(Acquire).as_ref() } {
        return Ok(counters);
    }
    let counters = Box::leak(Box::new(Stats::attach(settings.stats_fd, settings.stats_pid)?));
    COUNTERS.store(counters, Release);
    counters.tree().executed(counters);
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

/// The trap, not yet in place.
pub(crate) fn open_mechanism(plan: &Plan, mode: Mode, features: &Features) -> Result<Mechanism, StartError> {
    if mode == Mode::Sigsegv {
        return Ok(Mechanism::Protection(plan.protection(features)));
    }
    let trap = if mode == Mode::Sigbus { feature::SIGBUS } else { 0 };
    let tid = if features.thread_id { feature::THREAD_ID } else { 0 };
    let moving = if features.move_ { feature::MOVE } else { 0 };
    Ok(Mechanism::Uffd(Uffd::open(features.access, feature::WP | trap | tid | moving)?))
}

fn open_view(plan: &Plan, mode: Mode, features: &Features) -> Result<LiveView, StartError> {
    let mechanism = open_mechanism(plan, mode, features)?;
    let config = plan.config;
    let unit = config.geometry.unit_bytes as usize;
    let sizes = Sizes {
        reserve: plan.reserve,
        unit,
        block: unit * config.geometry.block_units as usize,
        small_frames: config.small.frames as usize,
        wide_frames: config.wide.frames as usize,
        aside_units: plan.aside_units(mode, features),
    };
    Ok(LiveView::new(mechanism, sizes, plan.huge, features.process_madvise, Program { is_alone, still })?)
}

/// Opens the links to the servers; the private server's through its door where the process has that from its parent.
pub(crate) fn open_store(
    settings: &Settings,
    plan: &Plan,
    door: Option<BorrowedFd<'_>>,
) -> Result<(Kind, Vec<Sender>), StartError> {
    let units = plan.config.geometry.units;
    let unit = plan.config.geometry.unit_bytes as usize;
    if let (Some(path), true) = (&settings.private, settings.servers.is_empty()) {
        let slot_bytes = plan.slot_bytes as u32;
        let link = match door {
            Some(door) => Attachment::open_through(door, slot_bytes),
            None => Attachment::open(path, slot_bytes),
        };
        let slots = Slots::new(link.map_err(SlotsError::Link)?, units, unit, &handler::KEEPER_BELL)?;
        return Ok((Kind::Slots(Box::new(slots)), Vec::new()));
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
        opened.push(Opened { name, session, options, capacity_bytes: there, limit_bytes: server.capacity });
    }
    let bounce = plan.slot_bytes.max(paging::limits::RUN_BYTES_MAX as usize);
    let shape = Shape {
        units,
        unit_bytes: unit,
        slot_bytes: plan.slot_bytes,
        small_frames: plan.config.small.frames,
        wide_frames: plan.config.wide.frames,
    };
    let (remote, senders) = Remote::new(opened, shape, bounce, silent)?;
    Ok((Kind::Remote(Box::new(remote)), senders))
}

fn open_pager(settings: &Settings, plan: &Plan, mode: Mode) -> Result<Pager, StartError> {
    let Geometry { units, block_units, .. } = plan.config.geometry;
    let space = Space { units, block_units, seed: settings.seed, hides: plan.hides() };
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
            return own_thread(c"hanare-pager", move || handler::run(&state.engine, first_thread));
        }
    };
    TRAP.store(signal, Release);
    Ok(signal::install(signal, handler::on_signal)?)
}

fn open_threads(state: &'static State, senders: Vec<Sender>) -> Result<(), StartError> {
    own_thread(c"hanare-keeper", || handler::keep(&state.engine))?;
    for sender in senders {
        own_thread(c"hanare-writer", move || {
            let _mask = SignalMask::block_all();
            state.engine.run_sender(sender);
        })?;
    }
    match state.engine.view().uffd() {
        Some(_) => own_thread(c"hanare-holder", hold_descriptors),
        None => Ok(()),
    }
}

/// The life of the holder: it keeps userfaultfd open when the program closes it by a system call of its own. The kernel would
/// give absent pages as zeroes then, without a trap; so they trap, and the engine notices what it has lost.
fn hold_descriptors() {
    let _mask = SignalMask::block_all();
    if descriptors::hold() {
        static NEVER: AtomicU32 = AtomicU32::new(0);
        loop {
            let _ = futex::wait(&NEVER, 0, None);
        }
    }
    // The kernel has no private tables for threads: this one is of no use.
    OWN_THREADS.fetch_sub(1, Relaxed);
}

/// Whether a single thread of the program exists.
pub fn is_alone() -> bool {
    thread::count() <= OWN_THREADS.load(Relaxed) + 1
}

/// How the program can be seen not to run: its only thread is the first one, which is here or waits for the pager. None where
/// others may run too. A child that shares its parent's memory until it executes something (vfork) has no thread here,
/// but its touches are seen, and it is another process.
fn still() -> Option<Still> {
    let home = HOME.load(Relaxed);
    if !OWN.get() {
        return (thread::gettid() == home && is_alone()).then_some(Still::Here);
    }
    let waits = !THREAD_MODE.load(Relaxed) || LAST_TOUCHED.load(Relaxed) == home;
    if !waits || !is_alone() {
        return None;
    }
    thread::run_ns(home).map(|ns| Still::Ran { tid: home, ns })
}
