//! Changes of user and groups. The C library makes every thread perform the system call, including Hanare's threads.
//! The thread that serves faults must not access far memory: it would wait for itself. So in every mode, a list of
//! groups is passed as a near copy. The call also runs on a near stack, because the C library stores the data for all
//! threads on the stack.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

use hanare::far;
use hanare_sys::{copy, stack};
use libc::{gid_t, size_t, uid_t};

use super::near::{Buffer, text};
use super::real;
use crate::answer::set_errno;
use crate::range::Range;

/// Most groups of a process: the kernel's limit.
const GROUPS_MAX: usize = 65536;

fn refused(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// Makes a call on a near stack. Starts far memory first: after the change, the process may have no right to open the
/// userfault descriptor or to reach its private server.
fn on_near_stack(call: impl FnOnce() -> c_int) -> c_int {
    far::ensure_started();
    let here = 0_u8;
    if !far::contains(&raw const here as usize) {
        return call();
    }
    let mut answer = -1;
    match stack::run_on_fresh(|| answer = call()) {
        Ok(()) => answer,
        Err(_) => refused(libc::ENOMEM),
    }
}

macro_rules! changes {
    ($($name:ident($($argument:ident: $type:ty),*))*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let Some(call) = real::$name.get() else { return refused(libc::ENOSYS) };
            // SAFETY: `call` is the C library's function of this name, which has this type.
            let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(call) };
            // SAFETY: `call` is the C library's function, and all arguments are plain numbers.
            on_near_stack(|| unsafe { call($($argument),*) })
        }
    )* };
}

changes! {
    setuid(user: uid_t)
    setgid(group: gid_t)
    seteuid(user: uid_t)
    setegid(group: gid_t)
    setreuid(real: uid_t, effective: uid_t)
    setregid(real: gid_t, effective: gid_t)
    setresuid(real: uid_t, effective: uid_t, saved: uid_t)
    setresgid(real: gid_t, effective: gid_t, saved: gid_t)
}

/// # Safety
/// `list` is near memory, valid for `count` groups, or an address that the kernel refuses.
unsafe fn set_groups(count: size_t, list: *const gid_t) -> c_int {
    type Call = unsafe extern "C" fn(size_t, *const gid_t) -> c_int;
    let Some(call) = real::setgroups.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's function of this type. The caller guarantees that `list` is near or refused.
    on_near_stack(|| unsafe { transmute::<*mut c_void, Call>(call)(count, list) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setgroups(count: size_t, list: *const gid_t) -> c_int {
    let bytes = count.min(GROUPS_MAX) * size_of::<gid_t>();
    let is_far = bytes > 0 && Range::covering(list as usize, bytes).is_some_and(Range::meets_far);
    if !is_far {
        // SAFETY: `list` is near, and the caller keeps the contract of setgroups(2).
        return unsafe { set_groups(count, list) };
    }
    let Some(buffer) = Buffer::new(bytes) else { return refused(libc::ENOMEM) };
    // SAFETY: the contract of setgroups(2) makes the list valid for `bytes`. The buffer has room for `bytes` and does
    // not overlap the list.
    unsafe {
        copy::copy(list.cast(), buffer.pointer(), bytes);
        set_groups(count, buffer.pointer().cast())
    }
}

/// Sets the groups as the C library's `initgroups` does. The C library's own function would keep the list in memory
/// from `malloc`, which may be far.
#[unsafe(no_mangle)]
unsafe extern "C" fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    let Some(buffer) = Buffer::new(GROUPS_MAX * size_of::<gid_t>()) else { return refused(libc::ENOMEM) };
    let list = buffer.pointer().cast::<gid_t>();
    let mut found = GROUPS_MAX as c_int;
    // SAFETY: the contract of initgroups(3) makes `user` a terminated string. `list` has room for `found` groups.
    unsafe {
        let user = text(user);
        // If the user has more groups than the kernel's limit, the further ones are left out.
        libc::getgrouplist(user.pointer().cast(), group, list, &raw mut found);
    }
    let mut count = usize::try_from(found).unwrap_or(0).min(GROUPS_MAX);
    loop {
        // SAFETY: `list` is a near buffer with room for `GROUPS_MAX` groups.
        let answer = unsafe { set_groups(count, list) };
        if answer == 0 || crate::answer::errno() != libc::EINVAL || count <= 1 {
            return answer;
        }
        count -= 1;
    }
}
