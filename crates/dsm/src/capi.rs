//! The C API. `include/dsm.h` documents each call.
//!
//! A failed call prints one line and ends this rank, and then the other ranks end too. A program could not continue
//! sensibly after, for example, a failed barrier. Only `dsm_alloc` returns an error: the region has no room.
#![allow(unsafe_code, reason = "the edge to C")]

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::coherence::{Event, Misuse, Outcome, Placement, Rank, Reduction};
use crate::limits::VALUES_MAX;
use crate::live::{self, Counts, EXIT_OWN, Job, Live, die};

const PAGE: usize = 4096;

static LIVE: OnceLock<&'static Live> = OnceLock::new();
static OVER: AtomicBool = AtomicBool::new(false);

/// The C type `struct dsm_placement`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DsmPlacement {
    kind: c_int,
    rank: c_int,
    block: usize,
    owners: *const c_int,
    count: usize,
}

/// The C type `struct dsm_stats`.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct DsmStats {
    barriers: u64,
    barrier_ns: u64,
    update_ns: u64,
    read_faults: u64,
    write_faults: u64,
    fault_ns: u64,
    share_ns: u64,
    page_shares: u64,
    page_updates: u64,
    invalidations: u64,
    twins: u64,
    diffs: u64,
    flushes: u64,
    homes_moved: u64,
    locks: u64,
    frames_sent: u64,
    bytes_sent: u64,
    pages_dropped: u64,
    pages_out: u64,
    pages_out_written: u64,
    pages_back: u64,
    bytes_out: u64,
    bytes_back: u64,
    local_bytes_peak: u64,
}

impl DsmStats {
    fn of(counts: &Counts) -> Self {
        let machine = &counts.machine;
        Self {
            barriers: machine.barriers,
            barrier_ns: counts.barrier_ns,
            update_ns: counts.update_ns,
            read_faults: machine.read_faults,
            write_faults: machine.write_faults,
            fault_ns: counts.fault_ns,
            share_ns: counts.share_ns,
            page_shares: machine.pages_fetched,
            page_updates: machine.pages_updated,
            invalidations: machine.pages_invalidated,
            twins: machine.twins,
            diffs: machine.pages_flushed,
            flushes: machine.flushes,
            homes_moved: machine.homes_moved,
            locks: machine.locks,
            frames_sent: counts.frames_sent,
            bytes_sent: counts.bytes_sent,
            pages_dropped: machine.pages_dropped,
            pages_out: counts.moved.out,
            pages_out_written: counts.moved.written,
            pages_back: counts.moved.back,
            bytes_out: counts.moved.written * PAGE as u64,
            bytes_back: counts.moved.back * PAGE as u64,
            local_bytes_peak: counts.moved.peak * PAGE as u64,
        }
    }

    /// Returns the counts as a JSON object, with the names of `struct dsm_stats`.
    fn to_json(self, rank: Rank) -> String {
        let fields = [
            ("rank", u64::from(rank.0)),
            ("barriers", self.barriers),
            ("barrier_ns", self.barrier_ns),
            ("update_ns", self.update_ns),
            ("read_faults", self.read_faults),
            ("write_faults", self.write_faults),
            ("fault_ns", self.fault_ns),
            ("share_ns", self.share_ns),
            ("page_shares", self.page_shares),
            ("page_updates", self.page_updates),
            ("invalidations", self.invalidations),
            ("twins", self.twins),
            ("diffs", self.diffs),
            ("flushes", self.flushes),
            ("homes_moved", self.homes_moved),
            ("locks", self.locks),
            ("frames_sent", self.frames_sent),
            ("bytes_sent", self.bytes_sent),
            ("pages_dropped", self.pages_dropped),
            ("pages_out", self.pages_out),
            ("pages_out_written", self.pages_out_written),
            ("pages_back", self.pages_back),
            ("bytes_out", self.bytes_out),
            ("bytes_back", self.bytes_back),
            ("local_bytes_peak", self.local_bytes_peak),
        ];
        let mut json = String::from("{");
        for (index, (name, value)) in fields.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            let _ = write!(json, "{comma}\"{name}\":{value}");
        }
        json.push('}');
        json
    }
}

fn live(call: &str) -> &'static Live {
    match LIVE.get() {
        Some(live) if !OVER.load(Ordering::Acquire) => live,
        Some(live) => {
            let rank = live.job().rank;
            die(EXIT_OWN, &format!("rank {rank}: {call} was called after dsm_shutdown; make no calls after it"))
        }
        None => die(EXIT_OWN, &format!("{call} was called before dsm_startup; call dsm_startup first")),
    }
}

fn refuse(call: &str, misuse: Misuse) -> ! {
    let rank = LIVE.get().map_or(Rank(0), |live| live.job().rank);
    die(EXIT_OWN, &format!("rank {rank}: {call}: {misuse}"))
}

fn make(call: &str, event: Event<'_>) -> Outcome {
    live(call).call(event).unwrap_or_else(|misuse| refuse(call, misuse))
}

/// See `include/dsm.h`. The function ignores its arguments, because all settings come from the environment.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_startup(_argc: *mut c_int, _argv: *mut *mut *mut c_char) -> c_int {
    if LIVE.get().is_some() {
        die(EXIT_OWN, "dsm_startup was called twice; call it once");
    }
    let job = Job::from_env(|name| std::env::var(name).ok()).unwrap_or_else(|error| die(EXIT_OWN, &error.to_string()));
    end_with_launcher(&job);
    let live = Live::start(job).unwrap_or_else(|error| die(error.code, &error.why));
    // Ignored: this fails only if two threads call `dsm_startup` at the same time, which `dsm.h` forbids.
    let _ = LIVE.set(live);
    0
}

/// Makes this rank end when its launcher is killed.
fn end_with_launcher(job: &Job) {
    let Some(launcher) = job.launcher else { return };
    // SAFETY: `prctl` and `getppid` pass only numbers and access no memory.
    let parent = unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
        libc::getppid()
    };
    // If a wrapper (a shell, a debugger) started this rank, the parent is the wrapper and not the launcher. This rank
    // must not end with the wrapper, so the signal is switched off.
    if parent != launcher {
        // SAFETY: `prctl` passes only numbers and accesses no memory.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, 0) };
    }
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_shutdown() {
    let live = live("dsm_shutdown");
    make("dsm_shutdown", Event::Shutdown);
    leave_counts(live);
    OVER.store(true, Ordering::Release);
    live.end();
}

/// Writes this rank's counts where its launcher looks for them. A launcher takes a rank without counts for one that never
/// shared memory.
pub fn leave_counts(live: &Live) {
    let Some(folder) = &live.job().counts else { return };
    let rank = live.job().rank;
    let json = DsmStats::of(&live.counts()).to_json(rank);
    if let Err(error) = std::fs::write(folder.join(format!("{rank}.json")), json) {
        live::say(&format!("rank {rank}: cannot write its counts to {}: {error}", folder.display()));
    }
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_rank() -> c_int {
    c_int::from(live("dsm_rank").job().rank.0)
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_size() -> c_int {
    c_int::from(live("dsm_size").job().ranks)
}

fn pages_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

fn rank_of(number: c_int) -> Rank {
    // An invalid number becomes a number beyond all ranks, which the coherence machine refuses with a message.
    Rank(u16::try_from(number).unwrap_or(u16::MAX))
}

/// Returns the placement for the coherence machine. `None` if its kind is unknown, or if its block size is not a
/// multiple of a page.
///
/// # Safety
/// `owners` points to `count` numbers, or is null.
unsafe fn placement_of(placement: DsmPlacement) -> Option<Placement> {
    let block = placement.block;
    let blocks_fit = block > 0 && block.is_multiple_of(PAGE);
    Some(match placement.kind {
        0 => Placement::Block,
        1 if blocks_fit => Placement::Cyclic(pages_of(block)),
        2 => Placement::One(rank_of(placement.rank)),
        3 => Placement::FirstTouch,
        4 | 5 if blocks_fit && !placement.owners.is_null() => {
            let number = |index| {
                // SAFETY: `index` is below `count`, and `owners` points to `count` numbers, as the caller promises.
                unsafe { placement.owners.add(index).read() }
            };
            Placement::Owners {
                pages: pages_of(block),
                whole: placement.kind == 5,
                owners: (0..placement.count).map(|n| rank_of(number(n))).collect(),
            }
        }
        _ => return None,
    })
}

/// See `include/dsm.h`.
///
/// # Safety
/// The placement's `owners` points to its `count` numbers, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsm_alloc(size: usize, placement: DsmPlacement) -> *mut c_void {
    let live = live("dsm_alloc");
    // SAFETY: `owners` points to `count` numbers or is null, as the caller promises.
    let Some(placement) = (unsafe { placement_of(placement) }) else {
        die(
            EXIT_OWN,
            &format!(
                "rank {}: dsm_alloc: the placement is unknown, or its block is not a multiple of {PAGE} bytes",
                live.job().rank
            ),
        )
    };
    match make("dsm_alloc", Event::Alloc { pages: pages_of(size), placement: &placement }) {
        Outcome::Allocated { first } => std::ptr::with_exposed_provenance_mut(live.address_of(first)),
        _ => {
            // SAFETY: `__errno_location` returns a valid pointer to this thread's own errno.
            unsafe { *libc::__errno_location() = libc::ENOMEM };
            std::ptr::null_mut()
        }
    }
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_free(block: *mut c_void) {
    let live = live("dsm_free");
    match live.page_at(block.addr()) {
        Some(first) => _ = make("dsm_free", Event::Free { first }),
        None => refuse("dsm_free", Misuse::NotAnAllocation(u32::MAX)),
    }
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_barrier() {
    make("dsm_barrier", Event::Barrier);
}

fn lock_of(number: c_int) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_lock(lock: c_int) {
    make("dsm_lock", Event::Acquire { lock: lock_of(lock) });
}

/// See `include/dsm.h`.
#[unsafe(no_mangle)]
pub extern "C" fn dsm_unlock(lock: c_int) {
    make("dsm_unlock", Event::Release { lock: lock_of(lock) });
}

/// See `include/dsm.h`.
///
/// # Safety
/// `values` points to `count` numbers of 8 bytes, for reading and writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsm_reduce(operation: c_int, values: *mut c_void, count: usize) {
    let live = live("dsm_reduce");
    let reduction = u64::try_from(operation).ok().and_then(Reduction::from_detail);
    let Some(reduction) = reduction else {
        die(EXIT_OWN, &format!("rank {}: dsm_reduce: there is no operation {operation}; see dsm.h", live.job().rank))
    };
    if count > VALUES_MAX {
        refuse("dsm_reduce", Misuse::BadReduction(count));
    }
    // The call works on a copy of the values. `values` may lie in shared memory, and page faults there are not resolved
    // during a call.
    // SAFETY: `values` points to `count` numbers, as the caller promises.
    let mine: Vec<u64> = (0..count).map(|n| unsafe { values.cast::<u64>().add(n).read_unaligned() }).collect();
    if let Outcome::Reduced { values: all } = make("dsm_reduce", Event::Reduce { reduction, values: &mine }) {
        for (n, value) in all.into_iter().enumerate().take(count) {
            // SAFETY: `values` points to `count` numbers, as the caller promises, and `n` is below `count`.
            unsafe { values.cast::<u64>().add(n).write_unaligned(value) };
        }
    }
}

/// See `include/dsm.h`.
///
/// # Safety
/// `stats` points to a `struct dsm_stats` for writing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dsm_stats(stats: *mut DsmStats) {
    let counts = DsmStats::of(&live("dsm_stats").counts());
    // SAFETY: `stats` points to a `struct dsm_stats`, as the caller promises. The struct may lie in shared memory. The
    // engine is unlocked here, so a page fault on the struct can be resolved.
    unsafe { stats.write(counts) };
}
