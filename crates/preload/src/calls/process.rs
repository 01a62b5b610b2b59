//! Calls about the system and about processes, and calls that start programs. A call that starts a program gets near
//! (ordinary) copies of its whole argument and environment lists.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::mem::transmute;

use libc::{
    gid_t, pid_t, pthread_t, rusage, sched_param, size_t, sysinfo as SystemInformation, timespec, timex, tms, uid_t,
    utsname,
};

use super::again::repeated;
use super::limits::Carried;
use super::near::{
    Buffer, Near, filled, filled_bytes, filled_elements, given, is_far, kernel_is_blind, long_text, text,
};
use super::{real, wrap};
use crate::answer::{keeping_errno, say, set_errno};
use crate::signals;
use hanare::far;
use hanare_sys::limits;
use hanare_sys::signal::Executing;

wrap! {
    uname(to: *mut utsname) -> c_int { to = filled(to) }
    sysinfo(to: *mut SystemInformation) -> c_int { to = filled(to) }
    times(to: *mut tms) -> libc::clock_t { to = filled(to) }
    getrusage(who: c_int, to: *mut rusage) -> c_int { to = filled(to) }
    getresuid(real: *mut uid_t, effective: *mut uid_t, saved: *mut uid_t) -> c_int {
        real = filled(real), effective = filled(effective), saved = filled(saved)
    }
    getresgid(real: *mut gid_t, effective: *mut gid_t, saved: *mut gid_t) -> c_int {
        real = filled(real), effective = filled(effective), saved = filled(saved)
    }
    getgroups(count: c_int, list: *mut gid_t) -> c_int {
        list = filled_elements(list, usize::try_from(count).unwrap_or(0))
    }
    sched_getparam(process: pid_t, to: *mut sched_param) -> c_int { to = filled(to) }
    sched_setparam(process: pid_t, parameter: *const sched_param) -> c_int { parameter = given(parameter) }
    sched_setscheduler(process: pid_t, policy: c_int, parameter: *const sched_param) -> c_int {
        parameter = given(parameter)
    }
    sched_rr_get_interval(process: pid_t, to: *mut timespec) -> c_int { to = filled(to) }
    pthread_getname_np(thread: pthread_t, name: *mut c_char, len: size_t) -> c_int { name = filled_bytes(name, len) }
    pthread_setname_np(thread: pthread_t, name: *const c_char) -> c_int { name = text(name) }
    adjtimex(values: *mut timex) -> c_int { values = filled(values) }
    clock_adjtime(clock: libc::clockid_t, values: *mut timex) -> c_int { values = filled(values) }
    system(command: *const c_char) -> c_int { command = long_text(command) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE {
    type Call = unsafe extern "C-unwind" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    let Some(call) = real::popen.get() else {
        set_errno(libc::ENOSYS);
        return std::ptr::null_mut();
    };
    // SAFETY: under the contract of popen(3), both strings are NUL-terminated. `call` is the C library's `popen`, which
    // has the type `Call`.
    unsafe {
        let command = long_text(command);
        transmute::<*mut c_void, Call>(call)(command.pointer().cast(), mode)
    }
}

/// A list of pointers to strings, which ends with a null pointer.
type List = *const *const c_char;

/// A near list of strings. It is the original list, or a copy of the list and of all its strings.
struct Strings {
    original: List,
    copy: Option<Buffer>,
}

impl Strings {
    /// # Safety
    /// `list` is null or valid.
    unsafe fn new(list: List) -> Strings {
        let mut strings = Strings { original: list, copy: None };
        if list.is_null() || !kernel_is_blind() {
            return strings;
        }
        // SAFETY: the caller promises that `list` is valid if it is not null.
        let (count, bytes, far) = unsafe { measure(list) };
        let table = (count + 1) * size_of::<usize>();
        if !far {
            return strings;
        }
        strings.copy = Buffer::new(table + bytes);
        if let Some(buffer) = &strings.copy {
            // SAFETY: the list has `count` strings, and the buffer has room for the table and the strings.
            unsafe { copy_list(list, count, buffer.pointer().cast(), buffer.pointer().add(table)) };
        }
        strings
    }

    fn pointer(&self) -> List {
        self.copy.as_ref().map_or(self.original, |buffer| buffer.pointer().cast_const().cast())
    }
}

/// Returns the number of strings, their total length in bytes with the final NULs, and whether any part of the list is
/// far.
///
/// # Safety
/// `list` is valid.
unsafe fn measure(list: List) -> (usize, usize, bool) {
    let (mut count, mut bytes, mut far) = (0, 0, false);
    loop {
        // SAFETY: `list` is valid up to its final null, and the loop ends there.
        let place = unsafe { list.add(count) };
        far |= is_far(place.cast(), size_of::<usize>());
        // SAFETY: `place` is an entry of a valid list.
        let string = unsafe { place.read() };
        if string.is_null() {
            return (count, bytes, far);
        }
        // SAFETY: the strings of a valid list are NUL-terminated.
        let len = unsafe { libc::strlen(string) } + 1;
        far |= is_far(string.cast(), len);
        (count, bytes) = (count + 1, bytes + len);
    }
}

/// # Safety
/// `list` has `count` strings. `table` has room for `count + 1` pointers, and `bytes` has room for all strings.
unsafe fn copy_list(list: List, count: usize, table: *mut *const c_char, mut bytes: *mut u8) {
    for index in 0..count {
        // SAFETY: `index` is below `count`, and the caller promises room for each string and its pointer.
        unsafe {
            let string = list.add(index).read();
            let len = libc::strlen(string) + 1;
            hanare_sys::copy::copy(string.cast(), bytes, len);
            table.add(index).write(bytes.cast());
            bytes = bytes.add(len);
        }
    }
    // SAFETY: the caller promises that `table` has room for `count + 1` pointers.
    unsafe { table.add(count).write(std::ptr::null()) };
}

/// Makes a call that executes another program. During the call, the kernel's soft limits are the limits that the
/// program set, because the executed program inherits them. So are the mask and the ignored signals.
fn execute(call: impl FnOnce() -> c_int) -> c_int {
    limits::executing();
    let handed_on = handing_on();
    let answer = call();
    drop(handed_on);
    limits::executing_failed();
    answer
}

/// Hands on the program's mask and ignored signals to an executed program. Other threads of the program could access far
/// memory while the trap's signal is ignored. A child of vfork has actions of its own.
fn handing_on() -> Option<Executing> {
    let kept = signals::kept();
    (kept != 0).then(|| Executing::begin(kept, || keeping_errno(|| far::is_borrowed() || far::is_alone())))
}

fn refused() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execve(path: *const c_char, arguments: List, environment: List) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const c_char, List, List) -> c_int;
    let Some(call) = real::execve.get() else { return refused() };
    // SAFETY: the caller keeps the contract of execve(2). `call` is the C library's `execve`, which has the type
    // `Call`.
    unsafe {
        let carried = Carried::new(environment);
        let environment = carried.as_ref().map_or(environment, Carried::list);
        let (path, arguments, environment) = (text(path), Strings::new(arguments), Strings::new(environment));
        let call = transmute::<*mut c_void, Call>(call);
        execute(|| call(path.pointer().cast(), arguments.pointer(), environment.pointer()))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvpe(path: *const c_char, arguments: List, environment: List) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const c_char, List, List) -> c_int;
    let Some(call) = real::execvpe.get() else { return refused() };
    // SAFETY: the caller keeps the contract of execvpe(3). `call` is the C library's `execvpe`, which has the type
    // `Call`.
    unsafe {
        let carried = Carried::new(environment);
        let environment = carried.as_ref().map_or(environment, Carried::list);
        let (path, arguments, environment) = (text(path), Strings::new(arguments), Strings::new(environment));
        let call = transmute::<*mut c_void, Call>(call);
        execute(|| call(path.pointer().cast(), arguments.pointer(), environment.pointer()))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fexecve(fd: c_int, arguments: List, environment: List) -> c_int {
    type Call = unsafe extern "C-unwind" fn(c_int, List, List) -> c_int;
    let Some(call) = real::fexecve.get() else { return refused() };
    // SAFETY: the caller keeps the contract of fexecve(3). `call` is the C library's `fexecve`, which has the type
    // `Call`.
    unsafe {
        let carried = Carried::new(environment);
        let environment = carried.as_ref().map_or(environment, Carried::list);
        let (arguments, environment) = (Strings::new(arguments), Strings::new(environment));
        let call = transmute::<*mut c_void, Call>(call);
        execute(|| call(fd, arguments.pointer(), environment.pointer()))
    }
}

/// execveat(2). The C library's function is the system call alone, and older versions have none.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller keeps the contract of execveat(2). Near copies replace far arguments.
    unsafe {
        let carried = Carried::new(environment);
        let environment = carried.as_ref().map_or(environment, Carried::list);
        let (path, arguments, environment) = (text(path), Strings::new(arguments), Strings::new(environment));
        let (path, lists) = (path.pointer() as usize, [&arguments, &environment].map(|list| list.pointer() as usize));
        execute(|| repeated(libc::SYS_execveat, [dir as usize, path, lists[0], lists[1], flags as usize, 0]) as c_int)
    }
}

unsafe extern "C" {
    /// The C library's variable that points to the environment. The program may have set it to a list of its own. The
    /// name is not `environ`, because ISO C lets a program define another variable with that name.
    static mut __environ: List;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execv(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller keeps the contract of execv(3), and `__environ` is a valid list.
    unsafe { execve(path, arguments, __environ) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn execvp(path: *const c_char, arguments: List) -> c_int {
    // SAFETY: the caller keeps the contract of execvp(3), and `__environ` is a valid list.
    unsafe { execvpe(path, arguments, __environ) }
}

/// ptrace(2). In signal modes (sigbus and sigsegv), a child that shares its parent's memory until it executes (vfork)
/// must not be traced. The child would stop at the trap signal until its parent lets it continue. But the parent does
/// not run before the child executes. So the child ends here with a message.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ptrace(request: c_uint, process: pid_t, addr: *mut c_void, data: *mut c_void) -> c_long {
    type Call = unsafe extern "C-unwind" fn(c_uint, pid_t, *mut c_void, *mut c_void) -> c_long;
    let Some(call) = real::ptrace.get() else { return c_long::from(refused()) };
    if request == libc::PTRACE_TRACEME && far::trap_signal().is_some() && far::is_borrowed() {
        say(format_args!(
            "hanare: a child that shares far memory cannot be traced where the trap is a signal; run debuggers with --mode thread\n"
        ));
        // SAFETY: `_exit` ends only the child. Its parent goes on.
        unsafe { libc::_exit(125) };
    }
    // SAFETY: `call` is the C library's `ptrace`, which has the type `Call`. Its arguments are the caller's.
    unsafe { transmute::<*mut c_void, Call>(call)(request, process, addr, data) }
}

/// Interposes a call with a variable number of arguments as a jump to the C function `$counted`. Only C can read such
/// arguments.
macro_rules! variadic {
    ($name:ident, $counted:ident) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name() -> c_int {
            unsafe extern "C-unwind" {
                fn $counted() -> c_int;
            }
            #[cfg(target_arch = "x86_64")]
            std::arch::naked_asm!("jmp {}", sym $counted);
            #[cfg(target_arch = "aarch64")]
            std::arch::naked_asm!("b {}", sym $counted);
        }
    };
}

variadic!(execl, hanare_execl);
variadic!(execlp, hanare_execlp);
variadic!(execle, hanare_execle);

type Spawn = unsafe extern "C-unwind" fn(*mut pid_t, *const c_char, *const c_void, *const c_void, List, List) -> c_int;

/// Starts a process. Until the child executes, it shares this process's memory. Every signal is blocked during that
/// time, so no access to far memory can trap. So everything that the child reads must be near, including the
/// attributes.
///
/// # Safety
/// The caller keeps the contract of posix_spawn(3). `real` is a function of the same type.
unsafe fn spawn(
    real: &real::Real,
    process: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    let Some(call) = real.get() else { return libc::ENOSYS };
    // SAFETY: the caller keeps the contract of posix_spawn(3). `call` is the C library's `posix_spawn` or
    // `posix_spawnp`, which has the type `Spawn`.
    unsafe {
        let carried = Carried::new(environment);
        let environment = carried.as_ref().map_or(environment, Carried::list);
        let (path, arguments, environment) = (text(path), Strings::new(arguments), Strings::new(environment));
        // The C library writes the process number while signals are blocked, so that an access to far memory could not
        // trap.
        let process: Near<'_> = filled(process);
        let actions: Near<'_> = given(actions.cast::<libc::posix_spawn_file_actions_t>());
        let attributes: Near<'_> = given(attributes.cast::<libc::posix_spawnattr_t>());
        let _handed_on = handing_on();
        transmute::<*mut c_void, Spawn>(call)(
            process.pointer().cast(),
            path.pointer().cast(),
            actions.pointer(),
            attributes.pointer(),
            arguments.pointer(),
            environment.pointer(),
        )
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawn(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: the caller keeps the contract of posix_spawn(3).
    unsafe { spawn(&real::posix_spawn, process, path, actions, attributes, arguments, environment) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn posix_spawnp(
    process: *mut pid_t,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: List,
    environment: List,
) -> c_int {
    // SAFETY: the caller keeps the contract of posix_spawnp(3).
    unsafe { spawn(&real::posix_spawnp, process, path, actions, attributes, arguments, environment) }
}
