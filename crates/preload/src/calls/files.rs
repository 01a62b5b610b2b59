//! Calls that take paths or return file information.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem::transmute;

use hanare::far;
use libc::{dev_t, gid_t, mode_t, off_t, off64_t, size_t, ssize_t, timespec, timeval, uid_t, utimbuf};

use super::near::{
    Argument, changed_text, filled, filled_bytes, filled_elements, given, given_bytes, kernel_is_blind, text,
};
use super::own::is_hidden;
use super::{real, wrap};
use crate::answer::{errno, set_errno};

/// chroot(2). Far memory starts before, because the start opens files of `/proc`.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chroot(path: *const c_char) -> c_int {
    let Some(call) = real::chroot.get() else {
        set_errno(libc::ENOSYS);
        return -1;
    };
    far::will_be_confined(false);
    // SAFETY: under the contract of chroot(2), `path` is null or a path. `call` is the C library's `chroot`, which has
    // the type below.
    unsafe {
        let near = text(path);
        transmute::<*mut c_void, unsafe extern "C-unwind" fn(*const c_char) -> c_int>(call)(near.given())
    }
}

wrap! {
    creat(path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    creat64(path: *const c_char, mode: mode_t) -> c_int { path = text(path) }

    stat(path: *const c_char, to: *mut libc::stat) -> c_int { path = text(path), to = filled(to) }
    stat64(path: *const c_char, to: *mut libc::stat64) -> c_int { path = text(path), to = filled(to) }
    lstat(path: *const c_char, to: *mut libc::stat) -> c_int { path = text(path), to = filled(to) }
    lstat64(path: *const c_char, to: *mut libc::stat64) -> c_int { path = text(path), to = filled(to) }
    fstat(fd: c_int, to: *mut libc::stat) -> c_int { to = filled(to) }
    fstat64(fd: c_int, to: *mut libc::stat64) -> c_int { to = filled(to) }
    fstatat(dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        path = text(path), to = filled(to)
    }
    fstatat64(dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int) -> c_int {
        path = text(path), to = filled(to)
    }
    statx(dir: c_int, path: *const c_char, flags: c_int, mask: c_uint, to: *mut libc::statx) -> c_int {
        path = text(path), to = filled(to)
    }
    // Older C libraries export these calls under the following names.
    __xstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int { path = text(path), to = filled(to) }
    __xstat64(version: c_int, path: *const c_char, to: *mut libc::stat64) -> c_int { path = text(path), to = filled(to) }
    __lxstat(version: c_int, path: *const c_char, to: *mut libc::stat) -> c_int { path = text(path), to = filled(to) }
    __lxstat64(version: c_int, path: *const c_char, to: *mut libc::stat64) -> c_int { path = text(path), to = filled(to) }
    __fxstat(version: c_int, fd: c_int, to: *mut libc::stat) -> c_int { to = filled(to) }
    __fxstat64(version: c_int, fd: c_int, to: *mut libc::stat64) -> c_int { to = filled(to) }
    __fxstatat(version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat, flags: c_int) -> c_int {
        path = text(path), to = filled(to)
    }
    __fxstatat64(version: c_int, dir: c_int, path: *const c_char, to: *mut libc::stat64, flags: c_int) -> c_int {
        path = text(path), to = filled(to)
    }
    statfs(path: *const c_char, to: *mut libc::statfs) -> c_int { path = text(path), to = filled(to) }
    __statfs(path: *const c_char, to: *mut libc::statfs) -> c_int { path = text(path), to = filled(to) }
    statfs64(path: *const c_char, to: *mut libc::statfs64) -> c_int { path = text(path), to = filled(to) }
    fstatfs(fd: c_int, to: *mut libc::statfs) -> c_int { to = filled(to) }
    fstatfs64(fd: c_int, to: *mut libc::statfs64) -> c_int { to = filled(to) }
    statvfs(path: *const c_char, to: *mut libc::statvfs) -> c_int { path = text(path) }
    statvfs64(path: *const c_char, to: *mut libc::statvfs64) -> c_int { path = text(path) }

    access(path: *const c_char, mode: c_int) -> c_int { path = text(path) }
    faccessat(dir: c_int, path: *const c_char, mode: c_int, flags: c_int) -> c_int { path = text(path) }
    euidaccess(path: *const c_char, mode: c_int) -> c_int { path = text(path) }
    eaccess(path: *const c_char, mode: c_int) -> c_int { path = text(path) }
    readlink(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        path = text(path), to = filled_bytes(to, len)
    }
    __readlink_chk(path: *const c_char, to: *mut c_char, len: size_t, room: size_t) -> ssize_t {
        path = text(path), to = filled_bytes(to, len.min(room))
    }
    readlinkat(dir: c_int, path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        path = text(path), to = filled_bytes(to, len)
    }
    __readlinkat_chk(dir: c_int, path: *const c_char, to: *mut c_char, len: size_t, room: size_t) -> ssize_t {
        path = text(path), to = filled_bytes(to, len.min(room))
    }
    chdir(path: *const c_char) -> c_int { path = text(path) }
    unlink(path: *const c_char) -> c_int { path = text(path) }
    unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int { path = text(path) }
    remove(path: *const c_char) -> c_int { path = text(path) }
    rmdir(path: *const c_char) -> c_int { path = text(path) }
    mkdir(path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    rename(from: *const c_char, to: *const c_char) -> c_int { from = text(from), to = text(to) }
    renameat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int {
        from = text(from), to = text(to)
    }
    renameat2(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_uint) -> c_int {
        from = text(from), to = text(to)
    }
    link(from: *const c_char, to: *const c_char) -> c_int { from = text(from), to = text(to) }
    linkat(from_dir: c_int, from: *const c_char, to_dir: c_int, to: *const c_char, flags: c_int) -> c_int {
        from = text(from), to = text(to)
    }
    symlink(from: *const c_char, to: *const c_char) -> c_int { from = text(from), to = text(to) }
    symlinkat(from: *const c_char, to_dir: c_int, to: *const c_char) -> c_int { from = text(from), to = text(to) }
    chmod(path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    fchmodat(dir: c_int, path: *const c_char, mode: mode_t, flags: c_int) -> c_int { path = text(path) }
    chown(path: *const c_char, user: uid_t, group: gid_t) -> c_int { path = text(path) }
    truncate(path: *const c_char, len: off_t) -> c_int { path = text(path) }
    truncate64(path: *const c_char, len: off64_t) -> c_int { path = text(path) }
    utimensat(dir: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int {
        path = text(path), times = given_bytes(times, 2 * size_of::<timespec>())
    }
    utime(path: *const c_char, times: *const utimbuf) -> c_int { path = text(path), times = given(times) }
    utimes(path: *const c_char, times: *const timeval) -> c_int {
        path = text(path), times = given_bytes(times, 2 * size_of::<timeval>())
    }
    lutimes(path: *const c_char, times: *const timeval) -> c_int {
        path = text(path), times = given_bytes(times, 2 * size_of::<timeval>())
    }
    futimesat(dir: c_int, path: *const c_char, times: *const timeval) -> c_int {
        path = text(path), times = given_bytes(times, 2 * size_of::<timeval>())
    }
    futimes(fd: c_int, times: *const timeval) -> c_int { times = given_bytes(times, 2 * size_of::<timeval>()) }
    futimens(fd: c_int, times: *const timespec) -> c_int { times = given_bytes(times, 2 * size_of::<timespec>()) }
    lchown(path: *const c_char, user: uid_t, group: gid_t) -> c_int { path = text(path) }
    fchownat(dir: c_int, path: *const c_char, user: uid_t, group: gid_t, flags: c_int) -> c_int { path = text(path) }
    mkfifo(path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    mkfifoat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int { path = text(path) }
    mknod(path: *const c_char, mode: mode_t, device: dev_t) -> c_int { path = text(path) }
    mknodat(dir: c_int, path: *const c_char, mode: mode_t, device: dev_t) -> c_int { path = text(path) }
    pathconf(path: *const c_char, name: c_int) -> c_long { path = text(path) }
    inotify_add_watch(fd: c_int, path: *const c_char, mask: u32) -> c_int { path = text(path) }
    memfd_create(name: *const c_char, flags: c_uint) -> c_int { name = text(name) }
    eventfd_read(fd: c_int, to: *mut u64) -> c_int { to = filled(to) }
    getdents64(fd: c_int, to: *mut c_void, len: size_t) -> ssize_t { to = filled_elements(to.cast::<u8>(), len) }

    getxattr(path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        path = text(path), name = text(name), to = filled_elements(to.cast::<u8>(), len)
    }
    lgetxattr(path: *const c_char, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        path = text(path), name = text(name), to = filled_elements(to.cast::<u8>(), len)
    }
    fgetxattr(fd: c_int, name: *const c_char, to: *mut c_void, len: size_t) -> ssize_t {
        name = text(name), to = filled_elements(to.cast::<u8>(), len)
    }
    setxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        path = text(path), name = text(name), value = given_bytes(value, len)
    }
    lsetxattr(path: *const c_char, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        path = text(path), name = text(name), value = given_bytes(value, len)
    }
    fsetxattr(fd: c_int, name: *const c_char, value: *const c_void, len: size_t, flags: c_int) -> c_int {
        name = text(name), value = given_bytes(value, len)
    }
    listxattr(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        path = text(path), to = filled_elements(to, len)
    }
    llistxattr(path: *const c_char, to: *mut c_char, len: size_t) -> ssize_t {
        path = text(path), to = filled_elements(to, len)
    }
    flistxattr(fd: c_int, to: *mut c_char, len: size_t) -> ssize_t { to = filled_elements(to, len) }
    removexattr(path: *const c_char, name: *const c_char) -> c_int { path = text(path), name = text(name) }
    lremovexattr(path: *const c_char, name: *const c_char) -> c_int { path = text(path), name = text(name) }
    fremovexattr(fd: c_int, name: *const c_char) -> c_int { name = text(name) }

    mkstemp(template: *mut c_char) -> c_int { template = changed_text(template) }
    mkstemp64(template: *mut c_char) -> c_int { template = changed_text(template) }
}

/// Interposes a call that opens a path and returns a pointer.
macro_rules! open_text {
    ($($name:ident($path:ident: *const c_char $(, $more:ident: $type:ty)*))*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name($path: *const c_char $(, $more: $type)*) -> *mut c_void {
            type Call = unsafe extern "C-unwind" fn(*const c_char $(, $type)*) -> *mut c_void;
            let Some(call) = super::real::$name.get() else {
                set_errno(libc::ENOSYS);
                return std::ptr::null_mut();
            };
            // SAFETY: under the contract of the call, the path is null or a NUL-terminated string.
            let near = unsafe { text($path) };
            // SAFETY: `near` is null, far, or a NUL-terminated string, as `is_hidden` requires.
            if unsafe { is_hidden(libc::AT_FDCWD, near.pointer().cast()) } {
                set_errno(libc::EACCES);
                return std::ptr::null_mut();
            }
            // SAFETY: `call` is the C library's `$name`, which has the type `Call`. Its arguments are the caller's.
            unsafe { std::mem::transmute::<*mut c_void, Call>(call)(near.pointer().cast() $(, $more)*) }
        }
    )* };
}

open_text! {
    opendir(path: *const c_char)
    fopen(path: *const c_char, mode: *const c_char)
    fopen64(path: *const c_char, mode: *const c_char)
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn mkdtemp(template: *mut c_char) -> *mut c_char {
    type Call = unsafe extern "C-unwind" fn(*mut c_char) -> *mut c_char;
    let Some(call) = super::real::mkdtemp.get() else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: under the contract of mkdtemp(3), the template is a NUL-terminated string.
    let near = unsafe { changed_text(template) };
    // SAFETY: `call` is the C library's `mkdtemp`, which has the type `Call`.
    let made = unsafe { std::mem::transmute::<*mut c_void, Call>(call)(near.pointer().cast()) };
    if made.is_null() { made } else { template }
}

/// Calls `call` with a near copy of the buffer `to`. Returns the result of `call`, but `to` in place of the address of
/// the copy.
///
/// # Safety
/// `call` is `getcwd` or its checked variant. `to` is null or has room for `len` bytes.
unsafe fn working_directory(to: *mut c_char, len: size_t, call: impl Fn(*mut c_char) -> *mut c_char) -> *mut c_char {
    if to.is_null() || !kernel_is_blind() {
        return call(to);
    }
    let before = errno();
    // SAFETY: `to` is not null, so the caller promises that it has room for `len` bytes.
    let near = unsafe { filled_bytes(to, len) };
    let answer = call(near.pointer().cast());
    if answer.is_null() {
        return answer;
    }
    set_errno(before);
    to
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn getcwd(to: *mut c_char, len: size_t) -> *mut c_char {
    type Call = unsafe extern "C-unwind" fn(*mut c_char, size_t) -> *mut c_char;
    let Some(call) = super::real::getcwd.get() else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: under the contract of getcwd(3), `to` is null or has room for `len` bytes. `call` is the C library's
    // `getcwd`.
    unsafe { working_directory(to, len, |to| std::mem::transmute::<*mut c_void, Call>(call)(to, len)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __getcwd_chk(to: *mut c_char, len: size_t, room: size_t) -> *mut c_char {
    type Call = unsafe extern "C-unwind" fn(*mut c_char, size_t, size_t) -> *mut c_char;
    let Some(call) = super::real::__getcwd_chk.get() else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    let near_len = len.min(room);
    // SAFETY: under the contract of getcwd(3), `to` is null or has room for `near_len` bytes. `call` is the C library's
    // `__getcwd_chk`.
    unsafe { working_directory(to, near_len, |to| std::mem::transmute::<*mut c_void, Call>(call)(to, len, room)) }
}
