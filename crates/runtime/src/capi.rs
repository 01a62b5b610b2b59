//! The C API of `include/dlmm.h`: the DLM papers' calls, so that their programs compile unchanged, and two of ours.
//!
//! The C edge of the runtime: pointers come in and go out here, and what they mean is decided by `far` (whole pages),
//! `small` (blocks below a page or two) and `options` (the command line). Every block is far, whatever its size; the
//! threshold is for programs that never asked for far memory.
//!
//! Under `hanare run` the preload library carries these very functions and its engine already runs: `dlm_startup` then
//! only takes its options out of the arguments.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

mod options;
mod small;

use crate::{far, private, stats};
use options::Options;
use small::{EXTENT, Freed, SMALL_MAX, SmallBlocks};

const PAGE: usize = 4096;

/// A moved block is copied in pieces of this size, each discarded behind the copy, so that moving a block does not need
/// room for two of it.
const MOVE_PIECE: usize = 2 << 20;

/// `DLM_WILLNEED` of the header.
const ADVICE_WILL_NEED: c_int = 1;
/// `DLM_DISCARD` of the header.
const ADVICE_DISCARD: c_int = 2;

static SMALL: Mutex<SmallBlocks> = Mutex::new(SmallBlocks::new());

/// Whether `dlm_startup` started the engine, so that `dlm_shutdown` is to end it.
static STARTED_HERE: AtomicBool = AtomicBool::new(false);

fn small() -> MutexGuard<'static, SmallBlocks> {
    // Nothing in the lock's scope panics; were it to, its tables would still be consistent call by call.
    SMALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn fail(error: c_int) {
    // SAFETY: the location of the calling thread's errno is always valid.
    unsafe { *libc::__errno_location() = error }
}

fn refuse(error: &dyn Display) -> ! {
    eprintln!("hanare: {error}");
    // SAFETY: ends the process at once; 125 is Hanare's own error before the program's work began.
    unsafe { libc::_exit(125) }
}

/// Starts far memory and takes Hanare's options out of the arguments. Ends the process with 125 and one line on standard
/// error when that cannot be done. Returns 0.
///
/// # Safety
/// `argc` and `argv` are null or `main`'s, with `*argc` strings in `*argv` and a null after them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_startup(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int {
    // SAFETY: the caller's promise.
    let options = match unsafe { take_options(argc, argv) } {
        Ok(options) => options,
        Err(error) => refuse(&error),
    };
    if far::active() {
        if !options.is_empty() && !STARTED_HERE.load(Ordering::Relaxed) {
            eprintln!("hanare: started by 'hanare run', whose options hold; the program's own are ignored");
        }
        return 0;
    }
    if let Err(error) = start(options) {
        refuse(&*error);
    }
    STARTED_HERE.store(true, Ordering::Relaxed);
    0
}

fn start(options: Options) -> Result<(), Box<dyn Display>> {
    let mut settings = options.settings(|name| std::env::var_os(name)).map_err(boxed)?;
    if settings.servers.is_empty() && settings.private.is_none() {
        settings.private = Some(private::spawn().map_err(boxed)?);
    }
    settings.validate().map_err(boxed)?;
    // SAFETY: the handler is a plain function of a library that is not unloaded while the engine runs.
    let registered = unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    if registered != 0 {
        return Err(boxed(std::io::Error::from_raw_os_error(registered)));
    }
    far::start(&settings).map_err(boxed)
}

fn boxed(error: impl Display + 'static) -> Box<dyn Display> {
    Box::new(error)
}

extern "C" fn in_forked_child() {
    far::forked_child();
}

/// # Safety
/// As [`dlm_startup`].
unsafe fn take_options(argc: *mut c_int, argv: *mut *mut *mut c_char) -> Result<Options, options::OptionsError> {
    if argc.is_null() || argv.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the caller's promise: `count` strings that live as long as the process.
    let pointers: Vec<*mut c_char> = unsafe {
        let count = usize::try_from(*argc).unwrap_or(0);
        (0..count).map(|at| *(*argv).add(at)).collect()
    };
    let text = |&word: &*mut c_char| {
        // SAFETY: as above.
        let bytes = unsafe { CStr::from_ptr(word) }.to_bytes();
        OsStr::from_bytes(bytes).to_owned()
    };
    let words: Vec<OsString> = pointers.iter().map(text).collect();
    let (options, kept) = Options::take(&words)?;
    if kept.len() < words.len() {
        // SAFETY: the array had room for more words than are written back, and a null behind them.
        unsafe {
            for (to, &from) in kept.iter().enumerate() {
                *(*argv).add(to) = pointers[from];
            }
            *(*argv).add(kept.len()) = null_mut();
            *argc = kept.len() as c_int;
        }
    }
    Ok(options)
}

/// Ends far memory. All of it is gone afterwards. Under `hanare run` the program's other memory is far too, so nothing
/// ends there but with the program.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_shutdown() {
    if STARTED_HERE.swap(false, Ordering::Relaxed) && far::active() {
        far::shutdown();
    }
}

/// `size` bytes of far memory, aligned as malloc's; null with errno when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_alloc(size: usize) -> *mut c_void {
    alloc(size).map_or(null_mut(), |(addr, _)| addr as *mut c_void)
}

/// `count * size` zeroed bytes of far memory.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_calloc(count: usize, size: usize) -> *mut c_void {
    let Some(total) = count.checked_mul(size) else {
        fail(libc::ENOMEM);
        return null_mut();
    };
    let Some((addr, zero)) = alloc(total) else {
        return null_mut();
    };
    let block = addr as *mut u8;
    if !zero {
        // SAFETY: a block of at least `total` bytes that nobody else has yet.
        unsafe { block.write_bytes(0, total) };
    }
    block.cast()
}

/// A new block's address, and whether it is known to be zero.
fn alloc(size: usize) -> Option<(usize, bool)> {
    if !far::active() || size > isize::MAX as usize {
        fail(libc::ENOMEM);
        return None;
    }
    let got = if size <= SMALL_MAX {
        let block = small().alloc(size.max(1), || pages(EXTENT, EXTENT));
        block.map(|block| (block.addr, block.fresh))
    } else {
        pages(size, PAGE).map(|addr| (addr, true))
    };
    if got.is_none() {
        fail(libc::ENOMEM);
    }
    got
}

fn pages(len: usize, align: usize) -> Option<usize> {
    let addr = far::alloc(len, align);
    (!addr.is_null()).then_some(addr as usize)
}

/// The bytes the block at `addr` may use.
fn usable(addr: usize) -> Option<usize> {
    if !far::contains(addr) {
        return None;
    }
    let in_extent = small().size_of(addr);
    in_extent.or_else(|| far::allocation(addr))
}

/// Gives a block back; nothing of it is fetched. Null is nothing.
///
/// # Safety
/// `block` is null or a live block of these calls that nobody uses afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_free(block: *mut c_void) {
    let addr = block as usize;
    if block.is_null() || !far::active() {
        // After the end, and in a forked child, there is nothing to give back to.
        return;
    }
    let freed = if far::contains(addr) { small().free(addr) } else { Freed::NotABlock };
    let done = match freed {
        Freed::Slot => true,
        Freed::Extent(base) => far::free(base),
        Freed::NotSmall => far::free(addr),
        Freed::NotABlock => false,
    };
    if !done {
        abort_on(block, "dlm_free");
    }
}

/// Ends the process as the C library does when it is handed a pointer it never gave out.
fn abort_on(block: *mut c_void, call: &str) -> ! {
    eprintln!(
        "hanare: {call}: {block:p} is not a live block of dlm_alloc; the program freed it twice or computed it wrongly"
    );
    std::process::abort()
}

/// Changes a block's size, moving it when it must; its bytes up to the smaller size stay. Null with errno, and the block
/// as it was, when there is no room. As realloc, null allocates and size 0 frees.
///
/// # Safety
/// `block` is null or a live block of these calls that nobody else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return dlm_alloc(size);
    }
    if size == 0 {
        // SAFETY: the caller's promise.
        unsafe { dlm_free(block) };
        return null_mut();
    }
    if !far::active() {
        fail(libc::ENOMEM);
        return null_mut();
    }
    let Some(old) = usable(block as usize) else {
        abort_on(block, "dlm_realloc");
    };
    let stays = match (old <= SMALL_MAX, size <= SMALL_MAX) {
        (true, true) => size <= old && size > old / 2,
        (false, false) => far::resize(block as usize, size),
        _ => false,
    };
    if stays {
        return block;
    }
    let new = dlm_alloc(size);
    if !new.is_null() {
        // SAFETY: both blocks hold these bytes and are distinct; the old one is given up.
        unsafe {
            move_bytes(block.cast(), new.cast(), old.min(size));
            dlm_free(block);
        }
    }
    new
}

/// Copies a block, discarding whole pieces of the source behind the copy.
///
/// # Safety
/// Both are valid for `len` bytes and distinct, and nobody reads the source afterwards.
unsafe fn move_bytes(from: *mut u8, to: *mut u8, len: usize) {
    let mut done = 0;
    while done < len {
        let piece = MOVE_PIECE.min(len - done);
        // SAFETY: `done + piece` is at most `len`.
        unsafe { to.add(done).copy_from_nonoverlapping(from.add(done), piece) };
        if piece == MOVE_PIECE {
            // Only a block of whole pages is that long, so the piece is whole pages of its own.
            far::discard(from as usize + done, piece);
        }
        done += piece;
    }
}

/// Says what the program will do with `[addr, addr + len)`. 0, or -1 with errno.
///
/// # Safety
/// With `DLM_DISCARD` the program gives up the contents of the range, which lies in one of its blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_advise(addr: *mut c_void, len: usize, advice: c_int) -> c_int {
    let start = addr as usize;
    let end = match start.checked_add(len) {
        Some(end) if far::active() && (len == 0 || (far::contains(start) && far::contains(end - 1))) => end,
        _ => {
            fail(libc::EINVAL);
            return -1;
        }
    };
    match advice {
        ADVICE_WILL_NEED => {
            let from = start & !(PAGE - 1);
            far::will_need(from, end.next_multiple_of(PAGE) - from);
        }
        ADVICE_DISCARD => {
            // Only pages that lie inside entirely: what shares a page with the range keeps its bytes.
            let (from, to) = (start.next_multiple_of(PAGE), end & !(PAGE - 1));
            if from < to {
                far::discard(from, to - from);
            }
        }
        _ => {
            fail(libc::EINVAL);
            return -1;
        }
    }
    0
}

/// `struct dlm_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DlmStats {
    /// Bytes the budget allows locally.
    pub local_bytes_budget: u64,
    /// Bytes local now.
    pub local_bytes: u64,
    /// Most bytes ever local.
    pub local_bytes_peak: u64,
    /// Bytes allocated far now.
    pub far_bytes: u64,
    /// Most bytes ever allocated far.
    pub far_bytes_peak: u64,
    /// Touches that had to be answered, of every kind.
    pub faults: u64,
    /// Pages fetched from memory servers.
    pub pages_in: u64,
    /// Bytes fetched from memory servers.
    pub bytes_in: u64,
    /// Pages written back to memory servers.
    pub pages_out: u64,
    /// Bytes written back to memory servers.
    pub bytes_out: u64,
    /// Pages fetched ahead of need.
    pub prefetch_pages: u64,
    /// Of those, pages that were then used.
    pub prefetch_used: u64,
    /// Nanoseconds the program's threads waited for pages.
    pub swap_ns: u64,
}

impl From<&stats::Snapshot> for DlmStats {
    fn from(now: &stats::Snapshot) -> DlmStats {
        DlmStats {
            local_bytes_budget: now.budget_bytes,
            local_bytes: now.local_bytes,
            local_bytes_peak: now.local_bytes_peak,
            far_bytes: now.far_bytes,
            far_bytes_peak: now.far_bytes_peak,
            faults: now.faults_read
                + now.faults_write
                + now.faults_first_write
                + now.faults_zero
                + now.faults_rescued
                + now.faults_waited,
            pages_in: now.pages_in,
            bytes_in: now.bytes_in,
            pages_out: now.pages_out,
            bytes_out: now.bytes_out,
            prefetch_pages: now.prefetch_pages,
            prefetch_used: now.prefetch_used,
            swap_ns: now.swap_ns,
        }
    }
}

/// Copies the counters of this run. 0, or -1 with errno before `dlm_startup`.
///
/// # Safety
/// `out` is a valid place for a `struct dlm_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_stats(out: *mut DlmStats) -> c_int {
    match far::snapshot() {
        Some(now) if !out.is_null() => {
            // SAFETY: the caller's promise.
            unsafe { out.write(DlmStats::from(&now)) };
            0
        }
        _ => {
            fail(libc::EINVAL);
            -1
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = include_str!("../../../include/dlmm.h");

    #[test]
    fn the_header_declares_the_same_struct() {
        let body = HEADER.split("struct dlm_stats {").nth(1).expect("declared");
        let body = body.split("};").next().expect("closed");
        let declared: Vec<&str> = body
            .lines()
            .filter_map(|line| line.trim().strip_prefix("uint64_t "))
            .filter_map(|line| line.split(';').next())
            .collect();
        let debug = format!("{:?}", DlmStats::default());
        let fields = debug.trim_start_matches("DlmStats { ").trim_end_matches(" }");
        let fields: Vec<&str> = fields.split(", ").filter_map(|field| field.split(':').next()).collect();
        assert_eq!(declared, fields);
        assert_eq!(size_of::<DlmStats>(), 8 * fields.len());
    }

    #[test]
    fn the_header_defines_the_same_advice() {
        for (name, value) in [("WILLNEED", ADVICE_WILL_NEED), ("DISCARD", ADVICE_DISCARD)] {
            assert!(HEADER.contains(&format!("#define DLM_{name} {value} ")), "{name}");
        }
    }

    #[test]
    fn before_startup_there_is_no_far_memory() {
        let mut here = 0u64;
        let mut stats = DlmStats::default();
        // SAFETY: null, and a place of the test's own.
        unsafe {
            dlm_free(null_mut());
            assert_eq!(dlm_advise((&raw mut here).cast(), 8, ADVICE_WILL_NEED), -1);
            assert_eq!(dlm_stats(&raw mut stats), -1);
        }
        assert!(dlm_alloc(10).is_null() && dlm_calloc(usize::MAX, 2).is_null());
    }
}
