//! System calls that reach the kernel without the interposed functions, in sigbus mode: those of the program's own
//! instructions, and those inside the C library. `hanare_sys::calls` traps them (SIGSYS) in the calling thread. The
//! handler here serves a trapped call as if the program had called `syscall`.
//!
//! The handler runs under the mask of the trapped thread, and holds no lock during a call that may wait. So a signal
//! interrupts such a call as it would natively: the program's handler runs, and the call ends with EINTR or goes on.
//!
//! Some calls change what the kernel restores when the handler returns. They are served in its saved registers: masks,
//! alternate stacks, the end of a signal handler. A call that begins a thread is executed by the program's own
//! instruction, because the new one continues behind it on another stack. Until its next fault, the calling thread is
//! not dispatched.

use std::ffi::{c_int, c_long};
use std::ptr::null;

use hanare::far;
use hanare_sys::calls::{self, Call};
use hanare_sys::features::CallTraps;
use hanare_sys::flags::SERVED;

use crate::answer::{errno, set_errno, unfiltered};
use crate::calls::again::{by_number, repeated};
use crate::code::{LIBRARY, LINKER, OWN};
use crate::{go, masks, signals};

/// Sets the wanted traps, and returns those that are set now. The filter may follow later, in the middle of an allocation:
/// nothing is looked up then.
pub(crate) fn begin(wanted: CallTraps) -> CallTraps {
    if far::call_traps().dispatch {
        return CallTraps { filter: wanted.filter && calls::filter().is_ok(), dispatch: true };
    }
    let Some(returns) = signals::restorer().filter(|&code| LIBRARY.contains(code)) else { return CallTraps::default() };
    // Go's goroutines have small stacks. Go requires that every handler runs on the alternate stack.
    // SAFETY: `returns` is the C library's code that ends signal handlers.
    if unsafe { calls::trap_into(serve, go::is_there(), returns) }.is_err() {
        return CallTraps::default();
    }
    // Go's runtime makes its calls itself, about memory that is never far. So its calls are not dispatched.
    let dispatch = wanted.dispatch && !go::is_there() && pass_from_library() && calls::dispatch().is_ok();
    CallTraps { filter: wanted.filter && calls::filter().is_ok(), dispatch }
}

/// Prepares for the goroutines of a library in Go that is loaded later. They make calls on small stacks.
pub(crate) fn leave_go_alone() {
    if calls::is_never_dispatched() || !far::call_traps().dispatch {
        return;
    }
    calls::never_dispatch();
    if let Some(returns) = signals::restorer() {
        // Ignored: if the kernel refuses, the handler stays as it is.
        // SAFETY: `returns` is the C library's code that ends signal handlers, because the handler is installed.
        let _ = unsafe { calls::trap_into(serve, true, returns) };
    }
}

fn pass_from_library() -> bool {
    // SAFETY: `dlsym` gets a NUL-terminated name. The C library is never unloaded.
    unsafe {
        let function = libc::dlsym(libc::RTLD_NEXT, c"getppid".as_ptr());
        calls::pass_from(LIBRARY.range(), function as usize).is_ok()
    }
}

/// Dispatches the calls of a new thread, or of the first thread of a forked child, as those of the program's other
/// threads.
pub(crate) fn watch_this_thread() {
    // After the program has set a filter of its own, that filter could refuse this call by ending the process.
    if far::call_traps().dispatch && !signals::has_filter() {
        // Ignored: without dispatch, a call on an absent page fails with EFAULT.
        let _ = calls::dispatch();
    }
}

unsafe extern "C-unwind" fn serve(call: &mut Call) {
    let (number, args, origin) = (call.number(), call.arguments(), call.origin());
    match number {
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_vfork if !copies_memory(number, args) => {
            calls::suspend();
            call.repeat();
        }
        _ if calls::is_never_dispatched() && call.is_dispatched() => {
            calls::suspend();
            call.repeat();
        }
        // SAFETY: the program makes this call to leave its handler. Nothing of this handler is needed after that.
        libc::SYS_rt_sigreturn => unsafe { call.return_from_signal() },
        // SAFETY: the caller's arguments belong to this call.
        _ if OWN.contains(origin) => call.answer(unsafe { own(number, args) }),
        // SAFETY: the caller's arguments belong to this call.
        libc::SYS_rt_sigprocmask => unsafe { change_mask(call, args) },
        // SAFETY: the caller's arguments belong to this call.
        libc::SYS_sigaltstack => unsafe { change_stack(call, args) },
        _ => {
            set_errno(0);
            // A served function may have passed a far argument on to the C library, for example one without bytes.
            let key = [number as usize + 1, args.into_iter().find(|&word| is_inside(word)).unwrap_or(0)];
            let before = SERVED.replace(key);
            let is_again = LIBRARY.contains(origin) && key[1] != 0 && before == key;
            // The dynamic linker holds locks that the served functions may need.
            // SAFETY: the caller's arguments belong to this call.
            let value = unsafe {
                if is_again || LINKER.contains(origin) { repeated(number, args) } else { by_number(number, args) }
            };
            let _ = SERVED.replace(before);
            call.answer(if value == -1 { -c_long::from(errno()) } else { value });
        }
    }
}

/// Returns whether a word lies in the addresses that the filter looks for.
fn is_inside(word: usize) -> bool {
    word.wrapping_sub(calls::WINDOW_BASE) < calls::WINDOW_LEN
}

/// Returns whether a call of the clone family makes a child with a copy of the caller's memory and stack. Such a child
/// can return from the handler too.
fn copies_memory(number: c_long, args: [usize; 6]) -> bool {
    number == libc::SYS_clone && args[0] & libc::CLONE_VM as usize == 0 && args[1] == 0
}

/// Makes a call of Hanare's own code.
///
/// # Safety
/// The arguments are valid for the call.
unsafe fn own(number: c_long, args: [usize; 6]) -> c_long {
    // SAFETY: the caller promises valid arguments.
    match unsafe { calls::pass(number, args) } {
        Ok(value) => value as c_long,
        Err(error) => -c_long::from(error.0),
    }
}

/// # Safety
/// The arguments belong to the system call rt_sigprocmask.
unsafe fn change_mask(call: &mut Call, [how, set, old, len, ..]: [usize; 6]) {
    // SAFETY: the caller promises the arguments of this call.
    let changed = unsafe { masks::change_mask_by_number(how as c_int, set, old, len) };
    match changed {
        Ok(mask) => {
            *call.mask() = mask;
            call.answer(0);
        }
        Err(error) => call.answer(-c_long::from(error)),
    }
}

/// # Safety
/// The arguments belong to the system call sigaltstack.
unsafe fn change_stack(call: &mut Call, args: [usize; 6]) {
    // SAFETY: the caller promises the arguments of this call. The second call writes to the context, which is near.
    let now = unsafe {
        let answer = crate::calls::stack::sigaltstack(args[0] as *const _, args[1] as *mut _);
        let told = std::ptr::from_mut(call.signal_stack()) as usize;
        (
            if answer == 0 { 0 } else { -c_long::from(errno()) },
            unfiltered(libc::SYS_sigaltstack, [null::<u8>() as usize, told, 0, 0, 0, 0]),
        )
    };
    // Ignored: the kernel refuses only a bad pointer.
    let _ = now.1;
    call.answer(now.0);
}
