//! Accesses to the program's own memory through the kernel: `process_vm_readv` and `process_vm_writev` within this
//! process, and `/proc/self/mem`.
//!
//! In signal modes (sigbus and sigsegv), near (ordinary) copies replace the far pieces on both sides of a transfer. A
//! write to this process becomes a read with exchanged sides. A read does not pin the pages that it fills, and a filter
//! refuses `process_vm_writev` where the kernel cannot detect pinned pages.
//! `/proc/self/mem` has no such support: a read fails with EIO at an absent page, or ends before the absent page. In
//! sigsegv mode the file would show zeroes for absent pages, so it cannot be opened.

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::transmute;

use hanare::far;
use libc::{iovec, mode_t, pid_t, ssize_t};

use super::near::{kernel_is_blind, text};
use super::real;
use super::splice::Row;
use super::vectors::BUFFERS_MAX;
use crate::answer::{kernel, set_errno};

fn refused(error: c_int) -> ssize_t {
    set_errno(error);
    -1
}

type Transfer = unsafe extern "C-unwind" fn(pid_t, *const iovec, c_ulong, *const iovec, c_ulong, c_ulong) -> ssize_t;

/// One side of a transfer, which is a table of buffers. `is_here` is true if the buffers are in this process.
struct End {
    table: Vec<iovec>,
    is_here: bool,
}

impl End {
    /// # Safety
    /// `table` is a valid table of `count` buffers.
    unsafe fn new(table: *const iovec, count: c_ulong, is_here: bool) -> End {
        if count == 0 {
            return End { table: Vec::new(), is_here };
        }
        // SAFETY: the caller promises that `table` has `count` buffers. `count` is not 0, so `table` is not null.
        let table = unsafe { std::slice::from_raw_parts(table, count as usize) }.to_vec();
        End { table, is_here }
    }

    fn row(&self, writes: bool) -> Result<Row, c_int> {
        if self.is_here { Row::new(&self.table, usize::MAX, writes) } else { Ok(Row::of(&self.table)) }
    }
}

/// Moves bytes between this process and `process`: to `process` if `writes` is true, and otherwise to this process.
///
/// # Safety
/// The caller keeps the contract of process_vm_readv(2). `real` is a function of the same type.
unsafe fn transfer(
    real: &real::Real,
    process: pid_t,
    (local, local_count): (*const iovec, c_ulong),
    (remote, remote_count): (*const iovec, c_ulong),
    flags: c_ulong,
    writes: bool,
) -> ssize_t {
    let Some(call) = real.get() else { return refused(libc::ENOSYS) };
    // SAFETY: the caller promises that `real` has the type `Transfer`.
    let call = unsafe { transmute::<*mut c_void, Transfer>(call) };
    let is_too_long = [local_count, remote_count].into_iter().any(|count| count as usize > BUFFERS_MAX);
    if !kernel_is_blind() || is_too_long {
        // SAFETY: the caller keeps the contract of the call.
        return unsafe { call(process, local, local_count, remote, remote_count, flags) };
    }
    // SAFETY: under the contract of the call, both tables are valid.
    let (here, there) = unsafe {
        (End::new(local, local_count, true), End::new(remote, remote_count, process as u32 == std::process::id()))
    };
    // A write goes to another process, so it changes no memory here.
    let (here, there) = match (here.row(!writes), there.row(false)) {
        (Ok(here), Ok(there)) => (here, there),
        (Err(error), _) | (_, Err(error)) => return refused(error),
    };
    let (near, far) = (here.buffers(), there.buffers());
    // SAFETY: the caller keeps the contract of the call, and near memory replaces far memory.
    let answer =
        unsafe { call(process, near.as_ptr(), near.len() as c_ulong, far.as_ptr(), far.len() as c_ulong, flags) };
    if answer > 0 && !writes {
        here.take_back(answer as usize);
    }
    answer
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn process_vm_readv(
    process: pid_t,
    local: *const iovec,
    local_count: c_ulong,
    remote: *const iovec,
    remote_count: c_ulong,
    flags: c_ulong,
) -> ssize_t {
    let (here, there) = ((local, local_count), (remote, remote_count));
    // SAFETY: the caller keeps the contract of process_vm_readv(2).
    unsafe { transfer(&real::process_vm_readv, process, here, there, flags, false) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn process_vm_writev(
    process: pid_t,
    local: *const iovec,
    local_count: c_ulong,
    remote: *const iovec,
    remote_count: c_ulong,
    flags: c_ulong,
) -> ssize_t {
    let (here, there) = ((local, local_count), (remote, remote_count));
    if process as u32 == std::process::id() {
        // SAFETY: both tables are of this process, and the caller keeps the contract of process_vm_writev(2).
        return unsafe { transfer(&real::process_vm_readv, process, there, here, flags, false) };
    }
    // SAFETY: the caller keeps the contract of process_vm_writev(2).
    unsafe { transfer(&real::process_vm_writev, process, here, there, flags, true) }
}

// ---- files ----------------------------------------------------------------------------------------------------------

/// Checks whether a path leads to this process's memory file in sigsegv mode. In this mode the file would show zeroes
/// for absent pages. The callers pass near copies of far paths. A path that is still far is one that the program may
/// not read, so it leads to no file.
///
/// # Safety
/// `path` is null, far, or a NUL-terminated text.
pub(crate) unsafe fn is_hidden(dir: c_int, path: *const c_char) -> bool {
    if far::trap_signal() != Some(libc::SIGSEGV) || path.is_null() || far::contains(path as usize) {
        return false;
    }
    // SAFETY: `path` is neither null nor far, so it is a NUL-terminated text.
    let name = unsafe { CStr::from_ptr(path) }.to_bytes();
    let is_named_so = name == b"mem" || name.ends_with(b"/mem");
    // SAFETY: `path` is neither null nor far, so it is a NUL-terminated text.
    is_named_so && unsafe { place(dir, path) }.is_some_and(|place| is_own_memory(&place))
}

/// Returns the path of the file that `path` leads to, without symbolic links.
///
/// # Safety
/// `path` is a NUL-terminated text.
unsafe fn place(dir: c_int, path: *const c_char) -> Option<Vec<u8>> {
    // SAFETY: the caller promises that `path` is NUL-terminated.
    let near = unsafe { text(path) };
    let flags = (libc::O_PATH | libc::O_CLOEXEC) as usize;
    // SAFETY: the path is near and NUL-terminated. The descriptor (O_PATH) gives no access to the file, and is closed
    // below.
    let fd = unsafe { kernel(libc::SYS_openat, [dir as usize, near.pointer() as usize, flags, 0, 0, 0]) }.ok()?;
    let link = std::ffi::CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let mut place = vec![0u8; 4096];
    let (link, to) = (link.as_ptr() as usize, place.as_mut_ptr() as usize);
    // SAFETY: `link` is NUL-terminated, `to` is a local buffer of `place.len()` bytes, and `fd` belongs to this
    // function.
    let len = unsafe {
        let len = kernel(libc::SYS_readlinkat, [libc::AT_FDCWD as usize, link, to, place.len(), 0, 0]);
        kernel(libc::SYS_close, [fd, 0, 0, 0, 0, 0]).ok()?;
        len.ok()?
    };
    place.truncate(len);
    Some(place)
}

/// Checks whether a path is `/proc/PID/mem` of this process, or is below `/proc/PID/task/`, where the memory files of
/// its threads are.
fn is_own_memory(place: &[u8]) -> bool {
    let own = format!("/proc/{}/", std::process::id());
    place.strip_prefix(own.as_bytes()).is_some_and(|rest| rest == b"mem" || rest.starts_with(b"task/"))
}

// The C prototypes of the first six calls are variadic, but a variadic mode is in the same register as a fixed one.
// The last four calls are checked variants.
macro_rules! opening {
    ($($name:ident($([$dir:ident: $number:ty])? path $(, $mode:ident: $type:ty)?))*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            $($dir: $number,)? path: *const c_char, flags: c_int $(, $mode: $type)?
        ) -> c_int {
            type Call = unsafe extern "C-unwind" fn($($number,)? *const c_char, c_int $(, $type)?) -> c_int;
            let Some(call) = real::$name.get() else { return refused(libc::ENOSYS) as c_int };
            #[allow(unused_mut, unused_assignments)] // without `dir`, a path begins at the working directory
            let mut dir = libc::AT_FDCWD;
            $(dir = $dir;)?
            // SAFETY: under the contract of open(2), the path is a NUL-terminated string. `call` is the C library's
            // `$name`, which has the type `Call`.
            unsafe {
                let near = text(path);
                if is_hidden(dir, near.pointer().cast()) {
                    return refused(libc::EACCES) as c_int;
                }
                transmute::<*mut c_void, Call>(call)($($dir,)? near.pointer().cast(), flags $(, $mode)?)
            }
        }
    )* };
}

opening! {
    open(path, mode: mode_t)
    open64(path, mode: mode_t)
    __open(path, mode: mode_t)
    __open64(path, mode: mode_t)
    openat([dir: c_int] path, mode: mode_t)
    openat64([dir: c_int] path, mode: mode_t)
    __open_2(path)
    __open64_2(path)
    __openat_2([dir: c_int] path)
    __openat64_2([dir: c_int] path)
}
