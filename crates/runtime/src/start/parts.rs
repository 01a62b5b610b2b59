//! Opens the parts of an engine: its trap, view, store and pager, and the threads that run for it.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use hanare_paging::{Geometry, Pager, Space, policy, prefetch};
use hanare_settings::{Mode, OnLoss, Settings, SettingsError};
use hanare_store::{Copies, Guarding, Kind, OpenError, Shape, Target, Worker};
use hanare_sys::features::Features;
use hanare_sys::signal::{self, SignalMask};
use hanare_sys::thread::CpuCell;
use hanare_sys::uffd::{Uffd, feature};
use hanare_sys::{descriptors, futex};

use super::StartError;
use crate::keeper::UPKEEP_WANTED;
use crate::plan::Plan;
use crate::process::{self, State};
use crate::threads::{self, own_thread};
use crate::view::{Abilities, LiveView, Mechanism, Sizes};
use crate::{calls, handler, keeper, profile, tracing};

/// How long a process that starts waits for a server that is away, if the run waits for lost servers.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// The pause between two attempts to reach such a server.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Opens the mechanism by which accesses trap. Accesses do not trap before the view registers its memory.
pub(crate) fn open_mechanism(plan: &Plan, mode: Mode, features: &Features) -> Result<Mechanism, StartError> {
    if mode == Mode::Sigsegv {
        return Ok(Mechanism::Protection(plan.protection(features)));
    }
    let trap = if mode == Mode::Sigbus { feature::SIGBUS } else { 0 };
    let tid = if features.thread_id { feature::THREAD_ID } else { 0 };
    let moving = if features.move_ { feature::MOVE } else { 0 };
    Ok(Mechanism::Uffd(Uffd::open(features.access, feature::WP | trap | tid | moving)?))
}

pub(super) fn open_view(plan: &Plan, mode: Mode, features: &Features) -> Result<LiveView, StartError> {
    let mechanism = open_mechanism(plan, mode, features)?;
    let config = plan.config;
    let unit = config.geometry.unit_bytes as usize;
    let sizes = Sizes {
        reserve: plan.reserve,
        place: calls::place(mode, features, plan.reserve),
        unit,
        block: unit * config.geometry.block_units as usize,
        small_frames: config.small.frames as usize,
        wide_frames: config.wide.frames as usize,
        aside_units: plan.aside_units(mode, features),
    };
    let able = Abilities { huge: plan.huge, batches: features.process_madvise, frees_tables: features.frees_tables };
    Ok(LiveView::new(mechanism, sizes, able)?)
}

/// Returns how the settings guard pages that leave this process.
fn guarding(settings: &Settings) -> Guarding {
    // The words were read when the settings were validated.
    let is_unchecked = settings.disabled().is_ok_and(|disabled| disabled.checks);
    match (settings.seals(), is_unchecked) {
        (true, _) => Guarding::Seals,
        (false, true) => Guarding::Nothing,
        (false, false) => Guarding::Sums,
    }
}

/// Opens the store. `door` is the descriptor that leads to the private server, if this process inherited one from its
/// parent.
pub(crate) fn open_store(
    settings: &Settings,
    plan: &Plan,
    door: Option<BorrowedFd<'_>>,
) -> Result<(Kind, Vec<Worker>), OpenError> {
    let shape = Shape {
        units: plan.config.geometry.units,
        unit_bytes: plan.config.geometry.unit_bytes as usize,
        slot_bytes: plan.slot_bytes,
        small_frames: plan.config.small.frames,
        wide_frames: plan.config.wide.frames,
        guarding: guarding(settings),
    };
    let target = match (&settings.private, settings.servers.is_empty(), door) {
        (Some(_), true, Some(door)) => return Ok((Kind::open_through(door, shape, &UPKEEP_WANTED)?, Vec::new())),
        (Some(socket), true, None) => Target::Private(socket.clone()),
        _ => Target::Servers {
            servers: settings.servers.clone(),
            key: settings.key_file.clone(),
            timeout_s: settings.timeout_s,
            copies: Copies { redundancy: settings.redundancy, allow_same_host: settings.allow_same_host },
        },
    };
    if settings.on_loss == OnLoss::End {
        return Kind::open(&target, shape, 1, &UPKEEP_WANTED);
    }
    let end = Instant::now() + AWAY_MAX;
    loop {
        match Kind::open(&target, shape, 1, &UPKEEP_WANTED) {
            // A child or an executed program may start while the server is away.
            Err(error) if error.may_pass() && Instant::now() < end => std::thread::sleep(TRY_AGAIN),
            opened => return opened.map(|(store, workers)| (store.waiting(), workers)),
        }
    }
}

pub(super) fn open_pager(settings: &Settings, plan: &Plan, mode: Mode) -> Result<Pager, StartError> {
    let Geometry { units, block_units, .. } = plan.config.geometry;
    let space = Space { units, block_units, seed: settings.seed, hides: plan.hides() };
    let mut policy = policy::build(&settings.policy, space).map_err(SettingsError::Choice)?;
    if let Some(path) = &settings.trace {
        policy = tracing::record(policy, path, settings, plan, mode)?;
    }
    let prefetcher = prefetch::build(&settings.prefetch, space).map_err(SettingsError::Choice)?;
    let mut pager = Pager::new(&plan.config, policy, prefetcher).map_err(StartError::Pager)?;
    if settings.fit {
        pager.count_reuse();
    }
    Ok(pager)
}

pub(super) fn open_trap(state: &'static State, mode: Mode) -> Result<(), StartError> {
    let signal = match mode {
        Mode::Sigbus => libc::SIGBUS,
        Mode::Sigsegv => libc::SIGSEGV,
        Mode::Thread | Mode::Auto => {
            give_signals_back()?;
            let first_thread = CpuCell::of_first_thread();
            let life = move || handler::run(&state.engine, first_thread);
            return own_thread(c"hanare-pager", life).map_err(StartError::Thread);
        }
    };
    trap_by(signal)
}

/// Makes accesses trap by a signal. Without an engine, the program's own action for the signal applies.
pub(super) fn trap_by(signal: i32) -> Result<(), StartError> {
    process::traps_by(signal);
    Ok(signal::install(signal, handler::on_signal)?)
}

/// Gives the program the signal back that [`trap_by`] has taken for a start in another mode.
fn give_signals_back() -> Result<(), StartError> {
    if let Some(signal) = process::trap_signal() {
        process::traps_by(0);
        signal::uninstall(signal)?;
    }
    Ok(())
}

pub(super) fn open_threads(state: &'static State, workers: Vec<Worker>) -> std::io::Result<()> {
    own_thread(c"hanare-keeper", || keeper::keep(&state.engine))?;
    for worker in workers {
        own_thread(worker.name(), move || {
            let _mask = SignalMask::block_all();
            state.engine.run_worker(worker);
        })?;
    }
    match state.engine.view().uffd() {
        Some(_) => own_thread(c"hanare-holder", hold_descriptors),
        None => Ok(()),
    }
}

/// The main function of the holder thread, which keeps a second descriptor of userfaultfd open. If the program closes
/// Hanare's descriptor by a direct system call, absent pages still trap. The keeper (the thread that maintains the
/// links to the servers) notices the loss. Without the holder thread, the program would read zeroes from absent pages.
fn hold_descriptors() {
    let _mask = SignalMask::block_all();
    if descriptors::hold() {
        profile::watch();
        static NEVER: AtomicU32 = AtomicU32::new(0);
        loop {
            let _ = futex::wait(&NEVER, 0, None);
        }
    }
    // The kernel cannot make a separate descriptor table for this thread, so the thread ends.
    threads::ends();
}
