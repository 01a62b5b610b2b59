//! Records what happens in this process.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::{futex, thread, unwind};

use super::seen::SiteKind;
use super::{FRAMES, Profile, add, owners};

/// Blocks of at least this size, in bytes, have a site of their own.
const SITE_MIN: usize = 1 << 20;
/// Number of threads whose waits the sampler can see at a time.
const WAITING: usize = 64;
/// The shortest time between two looks of the sampler.
const LOOK_MIN: Duration = Duration::from_millis(4);
/// Differences of this time are added at random, so that the looks do not keep step with the program.
const LOOK_STEPS: u64 = 8;

/// The records of the run. Null if nothing is recorded in this process.
static PROFILE: AtomicPtr<Profile> = AtomicPtr::new(std::ptr::null_mut());
/// The slot of this process.
static PROCESS: AtomicU64 = AtomicU64::new(0);
/// The threads whose faults the handler thread resolves now. 0 stands for none.
static THREADS: [AtomicI32; WAITING] = [const { AtomicI32::new(0) }; WAITING];

/// Whether the unwinder works.
static UNWINDS: AtomicBool = AtomicBool::new(false);

fn profile() -> Option<&'static Profile> {
    // SAFETY: the pointer is null or comes from a reference that is valid until the process ends.
    unsafe { PROFILE.load(Acquire).as_ref() }
}

/// Whether this process records anything.
pub(crate) fn is_on() -> bool {
    !PROFILE.load(Relaxed).is_null()
}

/// Begins to record in this process, whose far memory is `len` bytes at `base`. A forked child joins again.
pub(crate) fn join(profile: Option<&'static Profile>, base: usize, len: usize) {
    PROFILE.store(std::ptr::null_mut(), Release);
    let Some(profile) = profile else { return };
    let Some(process) = profile.join(std::process::id(), base, len) else { return };
    THREADS.iter().for_each(|thread| thread.store(0, Relaxed));
    PROCESS.store(process, Relaxed);
    owners::open(len);
    // The first call may load the unwinder's library. Later, another thread could be loading one, and wait for this one.
    if !UNWINDS.load(Relaxed) && unwind::calls_no_program() {
        UNWINDS.store(unwind::callers(&mut [0; FRAMES]) > 0, Relaxed);
    }
    PROFILE.store(std::ptr::from_ref(profile).cast_mut(), Release);
}

/// Returns the present time if something is recorded. It is for [`end`].
#[inline]
pub(crate) fn begin() -> Option<u64> {
    is_on().then(now_ns)
}

/// Records a fault that began at `since_ns`, at an offset of far memory. `at` is the instruction that caused it, if it is
/// known.
#[inline]
pub(crate) fn end(since_ns: Option<u64>, at: Option<usize>, offset: usize) {
    if let Some(since_ns) = since_ns {
        record(since_ns, at, offset);
    }
}

#[cold]
fn record(since_ns: u64, at: Option<usize>, offset: usize) {
    let Some(profile) = profile() else { return };
    let (process, ns) = (PROCESS.load(Relaxed), now_ns().saturating_sub(since_ns));
    // The first fault at an offset without an owner finds the site of other memory.
    let owner = owners::of(offset).or_else(|| profile.site(process, &[SiteKind::Other as u64]));
    profile.faulted(process, offset, owner, ns);
    if let Some(at) = at {
        profile.waited(process, at as u64, ns);
    }
}

// ---- allocations ----------------------------------------------------------------------------------------------------

/// Records that the caller of Hanare's code has allocated far memory at an offset. Not for the fault path.
pub(crate) fn allocated(offset: usize, len: usize) {
    let Some(profile) = profile() else { return };
    if len < SITE_MIN {
        return kept_for(SiteKind::Small, offset, len);
    }
    let mut frames = [0; FRAMES];
    let count = if UNWINDS.load(Relaxed) { unwind::callers(&mut frames) } else { 0 };
    match count {
        0 => kept_for(SiteKind::Other, offset, len),
        _ => own(profile, &frames[..count], offset, len),
    }
}

/// Records that far memory at an offset is for something that is no large block.
pub(crate) fn kept_for(kind: SiteKind, offset: usize, len: usize) {
    if let Some(profile) = profile() {
        own(profile, &[kind as u64], offset, len);
    }
}

fn own(profile: &Profile, frames: &[u64], offset: usize, len: usize) {
    let process = PROCESS.load(Relaxed);
    let Some(site) = profile.site(process, frames) else { return };
    add(&profile.sites[site].allocations, 1);
    profile.block(process, site, offset, len);
    owners::set(offset, len, site);
}

/// Records that the allocation at an offset has grown to `len` bytes.
pub(crate) fn grown_to(offset: usize, len: usize) {
    if let (Some(profile), Some(site)) = (profile(), owners::of(offset)) {
        profile.block(PROCESS.load(Relaxed), site, offset, len);
        owners::set(offset, len, site);
    }
}

// ---- the sampler of thread mode -------------------------------------------------------------------------------------

/// Notes that the handler thread resolves a fault of this thread from now on.
#[inline]
pub(crate) fn waits_from(thread: i32) {
    if is_on() {
        THREADS[thread as usize % WAITING].store(thread, Relaxed);
    }
}

/// Notes that the fault of this thread is resolved.
#[inline]
pub(crate) fn waits_until(thread: i32) {
    if is_on() {
        // Ignored: another thread with the same slot has come after this one.
        let _ = THREADS[thread as usize % WAITING].compare_exchange(thread, 0, Relaxed, Relaxed);
    }
}

/// Samples at which instructions the noted threads wait, until the process ends. The messages of
/// userfaultfd do not tell. Returns if nothing is recorded. The calling thread has a descriptor table of its own.
///
/// Each look adds the time since the last one to each instruction at which a thread waits. So an instruction gets, on
/// average, the time that threads waited there.
pub(crate) fn watch() {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let (mut last_ns, mut random) = (now_ns(), now_ns());
    while let Some(profile) = profile() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Ignored: the look may come early.
        let _ = futex::wait(&NEVER, 0, Some(LOOK_MIN + Duration::from_millis((random >> 33) % LOOK_STEPS)));
        let now = now_ns();
        for noted in &THREADS {
            let thread = noted.load(Relaxed);
            if thread != 0
                && let Some(at) = thread::place_of(thread)
                && noted.load(Relaxed) == thread
            {
                profile.waited(PROCESS.load(Relaxed), at, now - last_ns);
            }
        }
        last_ns = now;
    }
}
