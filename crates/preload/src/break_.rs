//! `brk` and `sbrk`, for programs whose own allocator calls them. The program gets a separate break in far memory. The
//! C library's `malloc` moves the kernel's break by an internal call that is not interposed. So the two breaks never
//! mix.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use hanare::far;

use crate::answer::{keeping_errno, set_errno, status};
use crate::heap::stays_near;
use crate::range::PAGE;

/// Address space reserved for the break, in bytes. The size is halved down to `ROOM_MIN` until the reservation
/// succeeds.
const ROOM: usize = 32 << 30;
const ROOM_MIN: usize = 64 << 20;

/// The value that a failed `sbrk` returns.
const FAILED: *mut c_void = usize::MAX as *mut c_void;

/// `START..END` is the address space reserved for the program's break, and `NOW` is the break. All three are 0 before
/// the reservation.
static START: AtomicUsize = AtomicUsize::new(0);
static NOW: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

static REAL_SBRK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static REAL_BRK: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the C library's `sbrk` and `brk`.
pub(crate) fn resolve() {
    // SAFETY: `dlsym` gets NUL-terminated names.
    unsafe {
        REAL_SBRK.store(libc::dlsym(libc::RTLD_NEXT, c"sbrk".as_ptr()), Ordering::Release);
        REAL_BRK.store(libc::dlsym(libc::RTLD_NEXT, c"brk".as_ptr()), Ordering::Release);
    }
}

/// Checks whether `brk` and `sbrk` move the break in far memory for the calling thread. For Hanare's own threads they
/// move the kernel's break. The first call reserves address space for the break. As in the C library, two threads must
/// not change the break at the same time. `growth` is the number of bytes that the break may move up.
fn is_far(growth: usize) -> bool {
    if far::is_own_thread() || far::active() && stays_near(growth) {
        return false;
    }
    let mut room = if far::active() { ROOM } else { 0 };
    while START.load(Ordering::Acquire) == 0 && room >= ROOM_MIN {
        let start = keeping_errno(|| far::reserve(room, PAGE)) as usize;
        if start != 0 {
            END.store(start + room, Ordering::Release);
            NOW.store(start, Ordering::Release);
            START.store(start, Ordering::Release);
        }
        room /= 2;
    }
    START.load(Ordering::Acquire) != 0
}

/// Moves the break and returns its previous value.
fn move_to(wanted: usize) -> Result<usize, c_int> {
    let (start, now, end) = (START.load(Ordering::Acquire), NOW.load(Ordering::Acquire), END.load(Ordering::Acquire));
    if !(start..=end).contains(&wanted) {
        return Err(libc::ENOMEM);
    }
    let (old, new) = (now.next_multiple_of(PAGE), wanted.next_multiple_of(PAGE));
    if new > old {
        // SAFETY: the program does not yet use the memory between the old and the new break.
        unsafe { far::protect(old, new - old, libc::PROT_READ | libc::PROT_WRITE) }?;
    } else if new < old {
        // SAFETY: the program gives up the memory between the new and the old break.
        unsafe {
            far::discard(new, old - new);
            far::protect(new, old - new, libc::PROT_NONE)?;
        }
    }
    NOW.store(wanted, Ordering::Release);
    Ok(now)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn sbrk(increment: libc::intptr_t) -> *mut c_void {
    if is_far(increment.max(0) as usize) {
        let wanted = NOW.load(Ordering::Acquire).checked_add_signed(increment).unwrap_or(usize::MAX);
        return match keeping_errno(|| move_to(wanted)) {
            Ok(before) => before as *mut c_void,
            Err(error) => {
                set_errno(error);
                FAILED
            }
        };
    }
    if REAL_SBRK.load(Ordering::Acquire).is_null() {
        resolve();
    }
    let real = REAL_SBRK.load(Ordering::Acquire);
    if real.is_null() {
        set_errno(libc::ENOMEM);
        return FAILED;
    }
    // SAFETY: `real` is the C library's `sbrk`, which has the type below. The caller keeps the contract of sbrk(2).
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(libc::intptr_t) -> *mut c_void>(real)(increment) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn brk(addr: *mut c_void) -> c_int {
    // SAFETY: the call only tells the break.
    let growth = (addr as usize).saturating_sub(unsafe { sbrk(0) } as usize);
    if is_far(growth) {
        return status(keeping_errno(|| move_to(addr as usize)).map(drop));
    }
    if REAL_BRK.load(Ordering::Acquire).is_null() {
        resolve();
    }
    let real = REAL_BRK.load(Ordering::Acquire);
    if real.is_null() {
        return status(Err(libc::ENOMEM));
    }
    // SAFETY: `real` is the C library's `brk`, which has the type below. The caller keeps the contract of brk(2).
    unsafe { transmute::<*mut c_void, unsafe extern "C" fn(*mut c_void) -> c_int>(real)(addr) }
}
