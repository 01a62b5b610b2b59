//! Calls that change the user or the groups of the process. For such a call, the C library makes every thread do the
//! system call, including Hanare's own threads. Hanare's threads must not access far memory: the thread that serves
//! faults would wait for itself. The C library keeps the data for all threads on the caller's stack. So this module
//! runs the call on a near stack (in ordinary memory), and passes a near copy of a list of groups. Both happen in every
//! mode.

use std::ffi::{c_char, c_int, c_long, c_void};
use std::mem::transmute;

use hanare::far;
use hanare_sys::{copy, stack, thread};
use libc::{gid_t, size_t, uid_t};

use super::near::{Buffer, text};
use super::real;
use crate::answer::{kernel, set_errno};
use crate::range::Range;

/// Maximum number of groups in a list. This is the kernel's limit.
const GROUPS_MAX: usize = 65536;

fn refused(error: c_int) -> c_int {
    set_errno(error);
    -1
}

/// Makes a call on a near stack. If the start of far memory was deferred, starts far memory first, because the call may
/// take away the right to set up fault handling or to reach the private server.
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

/// The capabilities that the calls of this module need: CAP_SETGID and CAP_SETUID.
const RIGHTS: u64 = 1 << 6 | 1 << 7;

/// Whether this thread has a right that Hanare's threads lack. A program may keep capabilities when it gives up root, but
/// it can do so for the calling thread only. The C library ends the process if a call succeeds in some threads only.
fn only_this_thread_may() -> bool {
    let (mine, theirs) = (thread::capabilities(0), far::an_own_thread().and_then(thread::capabilities));
    mine.zip(theirs).is_some_and(|(mine, theirs)| mine & !theirs & RIGHTS != 0) && far::is_alone()
}

/// Makes the system call in this thread only.
///
/// # Safety
/// The arguments are valid for the call.
unsafe fn alone(number: c_long, args: [usize; 6]) -> c_int {
    // SAFETY: the caller promises valid arguments.
    unsafe { kernel(number, args) }.map_or_else(refused, |_| 0)
}

/// An id that stays as it is.
const SAME: u32 = u32::MAX;

macro_rules! changes {
    ($($name:ident($($argument:ident: $type:ty),*) = $number:ident($($word:expr),*))*) => { $(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            let Some(call) = real::$name.get() else { return refused(libc::ENOSYS) };
            // SAFETY: `call` is the C library's `$name`, which has the type below.
            let call = unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(call) };
            on_near_stack(|| {
                if only_this_thread_may() {
                    let mut args = [0; 6];
                    args.iter_mut().zip([$($word),*]).for_each(|(arg, word)| *arg = word as usize);
                    // SAFETY: the arguments are plain numbers.
                    return unsafe { alone(libc::$number, args) };
                }
                // SAFETY: the arguments are plain numbers.
                unsafe { call($($argument),*) }
            })
        }
    )* };
}

changes! {
    setuid(user: uid_t) = SYS_setuid(user)
    setgid(group: gid_t) = SYS_setgid(group)
    seteuid(user: uid_t) = SYS_setresuid(SAME, user, SAME)
    setegid(group: gid_t) = SYS_setresgid(SAME, group, SAME)
    setreuid(real: uid_t, effective: uid_t) = SYS_setreuid(real, effective)
    setregid(real: gid_t, effective: gid_t) = SYS_setregid(real, effective)
    setresuid(real: uid_t, effective: uid_t, saved: uid_t) = SYS_setresuid(real, effective, saved)
    setresgid(real: gid_t, effective: gid_t, saved: gid_t) = SYS_setresgid(real, effective, saved)
}

/// # Safety
/// `list` is in near memory and has `count` groups, or the kernel refuses the arguments as invalid.
unsafe fn set_groups(count: size_t, list: *const gid_t) -> c_int {
    type Call = unsafe extern "C" fn(size_t, *const gid_t) -> c_int;
    let Some(call) = real::setgroups.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `setgroups`, which has the type `Call`. The caller promises that the list is
    // valid.
    on_near_stack(|| unsafe {
        if only_this_thread_may() {
            return alone(libc::SYS_setgroups, [count, list as usize, 0, 0, 0, 0]);
        }
        transmute::<*mut c_void, Call>(call)(count, list)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn setgroups(count: size_t, list: *const gid_t) -> c_int {
    let bytes = count.min(GROUPS_MAX) * size_of::<gid_t>();
    let is_far = bytes > 0 && Range::covering(list as usize, bytes).is_some_and(Range::meets_far);
    if !is_far {
        // SAFETY: under the contract of setgroups(2), `list` has `count` groups. No byte of the list is far, so
        // Hanare's own threads can read it.
        return unsafe { set_groups(count, list) };
    }
    let Some(buffer) = Buffer::new(bytes) else { return refused(libc::ENOMEM) };
    // SAFETY: under the contract of setgroups(2), the list is valid for `bytes` bytes. The buffer has room for them and
    // does not overlap the list.
    unsafe {
        copy::copy(list.cast(), buffer.pointer(), bytes);
        set_groups(count, buffer.pointer().cast())
    }
}

/// initgroups(3), with the list of groups in near memory. The C library's own function would allocate the list with
/// `malloc`, so the list could be far.
#[unsafe(no_mangle)]
unsafe extern "C" fn initgroups(user: *const c_char, group: gid_t) -> c_int {
    let Some(buffer) = Buffer::new(GROUPS_MAX * size_of::<gid_t>()) else { return refused(libc::ENOMEM) };
    let list = buffer.pointer().cast::<gid_t>();
    let mut found = GROUPS_MAX as c_int;
    // SAFETY: under the contract of initgroups(3), `user` is a NUL-terminated string. `list` has room for `found`
    // groups.
    unsafe {
        let user = text(user);
        // Groups beyond the kernel's limit are left out.
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
