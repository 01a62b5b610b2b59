//! The C API of `include/dlmm.h`. It has the calls of the DLM papers, so that their programs compile unchanged, and a
//! few further calls.
//!
//! This module only converts pointers. The work is done by `far` (whole pages), `heap` (blocks) and `options` (the
//! command line). Every block is far, whatever its size. `HANARE_FAR`, the least size of a far block, applies only to
//! malloc: here the program asks for far memory explicitly.
//!
//! Under `hanare run`, the preload library provides the same functions, and its engine already runs. Then `dlm_startup`
//! only takes Hanare's options out of the program's arguments.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int, c_void};
use std::fmt::Display;
use std::os::fd::{AsFd, AsRawFd, IntoRawFd};
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

mod options;

use hanare_sys::memory::Memory;

use crate::counters;
use crate::stats::Stats;
use crate::{far, fatal, heap};
use hanare_settings::{Local, fits};
use hanare_store::private;
use options::Options;

const PAGE: usize = 4096;

/// `DLM_WILLNEED` of the header.
const ADVICE_WILL_NEED: c_int = 1;
/// `DLM_DISCARD` of the header.
const ADVICE_DISCARD: c_int = 2;

/// Whether `dlm_startup` started the engine. If so, `dlm_shutdown` must end it.
static STARTED_HERE: AtomicBool = AtomicBool::new(false);

/// Whether a message about a call before the start was printed.
static TOLD_TOO_EARLY: AtomicBool = AtomicBool::new(false);

fn fail(error: c_int) {
    // SAFETY: `__errno_location` returns the address of the calling thread's errno, which is always valid.
    unsafe { *libc::__errno_location() = error }
}

fn refuse(error: &dyn Display) -> ! {
    fatal::say(format_args!("{error}"));
    // SAFETY: `_exit` only ends the process and accesses no memory. The code 125 means that Hanare failed before the
    // program began its work.
    unsafe { libc::_exit(125) }
}

/// Starts far memory and takes Hanare's options out of the arguments. On a failure, ends the process with 125 and one
/// line on standard error. Returns 0.
///
/// # Safety
/// `argc` and `argv` are null, or point to the arguments of `main`: `*argv` holds `*argc` strings and then a null
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_startup(argc: *mut c_int, argv: *mut *mut *mut c_char) -> c_int {
    // SAFETY: the caller guarantees that `argc` and `argv` are null or point to the arguments of `main`.
    let options = match unsafe { take_options(argc, argv) } {
        Ok(options) => options,
        Err(error) => refuse(&error),
    };
    if far::active() {
        if !options.is_empty() && !STARTED_HERE.load(Ordering::Relaxed) {
            fatal::say(format_args!("started by 'hanare run', whose options hold; the program's own are ignored"));
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
    if let (Local::Bytes(bytes), Ok(memory)) = (settings.local, Memory::now()) {
        const WHAT: &str = "the local budget of";
        fits::check(WHAT, bytes, &memory).map_err(boxed)?;
        fits::warning(WHAT, bytes, &memory).inspect(|line| fatal::say(format_args!("{line}")));
    }
    if settings.servers.is_empty() && settings.private.is_none() {
        let (fd, _) = Stats::create().map_err(boxed)?;
        settings.private = Some(private::for_this_process(1, Some(fd.as_fd())).map_err(boxed)?);
        settings.stats_fd = Some(fd.as_raw_fd());
        // The process keeps the descriptor open. 'hanare top' and 'hanare park' find the counters by it.
        let _: c_int = fd.into_raw_fd();
    }
    settings.validate().map_err(boxed)?;
    // SAFETY: the three handlers are functions of this library, which is not unloaded while the engine runs.
    let registered = unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_forked_child)) };
    if registered != 0 {
        return Err(boxed(std::io::Error::from_raw_os_error(registered)));
    }
    far::start(&settings).map_err(boxed)
}

fn boxed(error: impl Display + 'static) -> Box<dyn Display> {
    Box::new(error)
}

extern "C" fn before_fork() {
    crate::heap::lock_for_fork();
    far::before_fork();
}

extern "C" fn after_fork() {
    far::after_fork();
}

extern "C" fn in_forked_child() {
    far::forked_child();
}

/// Takes Hanare's options out of the program's arguments and returns them.
///
/// # Safety
/// `argc` and `argv` are as [`dlm_startup`] requires them.
unsafe fn take_options(argc: *mut c_int, argv: *mut *mut *mut c_char) -> Result<Options, options::OptionsError> {
    if argc.is_null() || argv.is_null() {
        return Ok(Options::default());
    }
    // SAFETY: the caller guarantees that `*argv` holds `*argc` strings, which live until the process ends.
    let pointers: Vec<*mut c_char> = unsafe {
        let count = usize::try_from(*argc).unwrap_or(0);
        (0..count).map(|at| *(*argv).add(at)).collect()
    };
    let text = |&word: &*mut c_char| {
        // SAFETY: `word` is one of the strings in `*argv`, and ends with a null byte.
        let bytes = unsafe { CStr::from_ptr(word) }.to_bytes();
        OsStr::from_bytes(bytes).to_owned()
    };
    let words: Vec<OsString> = pointers.iter().map(text).collect();
    let (options, kept) = Options::take(&words)?;
    if kept.len() < words.len() {
        // SAFETY: `*argv` has room for all original words and a null pointer. Fewer words are written back.
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

/// Ends the use of far memory and publishes the final counters. The memory itself stays until the process ends. Under
/// `hanare run`, does nothing, because far memory must last as long as the program.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_shutdown() {
    if STARTED_HERE.swap(false, Ordering::Relaxed) && far::active() {
        far::shutdown();
    }
}

/// Allocates `size` bytes of far memory, aligned as by malloc. Returns null and sets errno if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_alloc(size: usize) -> *mut c_void {
    if ready("dlm_alloc()") { heap::alloc(size, 1, false).cast() } else { null_mut() }
}

/// Allocates `count * size` zeroed bytes of far memory. Returns null and sets errno if there is no room.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_calloc(count: usize, size: usize) -> *mut c_void {
    if !ready("dlm_calloc()") {
        return null_mut();
    }
    // If the product overflows, it saturates to a size for which there is never room.
    heap::alloc(count.saturating_mul(size), 1, true).cast()
}

/// Returns whether blocks can be allocated. If not, sets errno. Prints one message if `dlm_startup` was not called
/// before.
fn ready(call: &'static str) -> bool {
    far::active() || is_too_early(call)
}

/// Sets errno and returns false. Prints a message if far memory was never started. This function is separate from
/// [`ready`], so that successful calls need no stack space for the message.
#[cold]
#[inline(never)]
fn is_too_early(call: &'static str) -> bool {
    if !far::is_started() && !TOLD_TOO_EARLY.swap(true, Ordering::Relaxed) {
        fatal::say(format_args!("{call} before dlm_startup(): no memory is far yet; call dlm_startup() first"));
    }
    fail(libc::ENOMEM);
    false
}

/// Frees a block without fetching its pages. Does nothing if `block` is null.
///
/// # Safety
/// `block` is null or a live block of this API that nothing uses afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_free(block: *mut c_void) {
    // A forked child that cannot use its parent's far memory has nothing to free. Before far memory is started, no
    // pointer is valid, and `heap::free` below reports the error.
    if block.is_null() || (!far::active() && far::is_started()) {
        return;
    }
    // SAFETY: the caller guarantees that nothing uses the block afterwards.
    if let Err(error) = unsafe { heap::free(block as usize) } {
        heap::abort_on("dlm_free()", block as usize, error);
    }
}

/// Changes the size of a block, and moves it if necessary. The bytes up to the smaller size are kept. If there is no
/// room, leaves the block unchanged, returns null and sets errno. Like realloc, allocates a block if `block` is null,
/// and frees the block if `size` is 0.
///
/// # Safety
/// `block` is null or a live block of this API that nothing else uses during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_realloc(block: *mut c_void, size: usize) -> *mut c_void {
    if block.is_null() {
        return dlm_alloc(size);
    }
    if size == 0 {
        // SAFETY: `block` is a live block of this API. A caller that passes a size of 0 does not use the block
        // afterwards.
        unsafe { dlm_free(block) };
        return null_mut();
    }
    if !ready("dlm_realloc()") {
        return null_mut();
    }
    // SAFETY: the caller guarantees that nothing else uses the block during the call.
    match unsafe { heap::resize(block as usize, size) } {
        Ok(block) => block.cast(),
        Err(error) => heap::abort_on("dlm_realloc()", block as usize, error),
    }
}

/// Applies the program's advice about how it will use `[addr, addr + len)`. Returns 0, or -1 with errno EINVAL.
///
/// # Safety
/// With `DLM_DISCARD`, the range lies in a block of the caller, and its contents are lost.
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
            // Only whole pages inside the range are discarded: the pages at its edges may hold other data.
            let (from, to) = (start.next_multiple_of(PAGE), end & !(PAGE - 1));
            if from < to {
                // SAFETY: these pages lie in the range, and the caller agrees to lose the contents of the range.
                unsafe { far::discard(from, to - from) };
            }
        }
        _ => {
            fail(libc::EINVAL);
            return -1;
        }
    }
    0
}

/// Sends the far memory of this process away until it is accessed again. Returns 0, or -1 with errno EINVAL if far memory
/// is not running, or ENOSPC if the memory servers have no room for it.
#[unsafe(no_mangle)]
pub extern "C" fn dlm_park() -> c_int {
    let error = match far::park() {
        Ok(_) => return 0,
        Err(far::ParkError::NotFar) => libc::EINVAL,
        Err(far::ParkError::NoRoom) => libc::ENOSPC,
    };
    fail(error);
    -1
}

/// `struct dlm_stats` of the header.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DlmStats {
    /// The budget for local memory, in bytes.
    pub local_bytes_budget: u64,
    /// Bytes in local memory now.
    pub local_bytes: u64,
    /// Maximum number of bytes that were in local memory at any time.
    pub local_bytes_peak: u64,
    /// Bytes of far memory allocated now.
    pub far_bytes: u64,
    /// Maximum number of bytes of far memory that were allocated at any time.
    pub far_bytes_peak: u64,
    /// Accesses that trapped, except accesses to pages that were only unmapped for reference sampling.
    pub faults: u64,
    /// Pages fetched from memory servers.
    pub pages_in: u64,
    /// Bytes fetched from memory servers.
    pub bytes_in: u64,
    /// Pages written back to memory servers.
    pub pages_out: u64,
    /// Bytes written back to memory servers.
    pub bytes_out: u64,
    /// Pages prefetched.
    pub prefetch_pages: u64,
    /// Prefetched pages that the program then accessed.
    pub prefetch_used: u64,
    /// Nanoseconds for which the program's threads waited for pages.
    pub swap_ns: u64,
}

impl From<&counters::Snapshot> for DlmStats {
    fn from(now: &counters::Snapshot) -> DlmStats {
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

/// Copies the counters of this run to `out`. Returns 0. Returns -1 and sets errno if far memory is not running or `out`
/// is null.
///
/// # Safety
/// `out` is null or points to memory for a `struct dlm_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dlm_stats(out: *mut DlmStats) -> c_int {
    match far::snapshot() {
        Some(now) if !out.is_null() => {
            // SAFETY: `out` is not null, so the caller guarantees that it points to memory for the struct.
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
        // SAFETY: `dlm_free` accepts null. The other pointers refer to `here` and `stats`, which are variables of this
        // test.
        unsafe {
            dlm_free(null_mut());
            assert_eq!(dlm_advise((&raw mut here).cast(), 8, ADVICE_WILL_NEED), -1);
            assert_eq!(dlm_stats(&raw mut stats), -1);
        }
        assert!(dlm_alloc(10).is_null() && dlm_calloc(usize::MAX, 2).is_null());
    }
}
