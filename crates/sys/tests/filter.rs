//! Tests of the calls that a filter refuses. Each test installs its filter in a child process, because a filter cannot
//! be removed.

use hanare_sys::filter::{Refused, refuse};
use hanare_sys::{Errno, syscall};

/// Runs `look` in a child process, which exits with the result of `look`. Returns this exit code.
fn in_a_child(look: impl FnOnce() -> i32) -> i32 {
    // SAFETY: the child only runs `look`, which makes system calls, and then ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let answer = look();
        // SAFETY: `_exit` ends the child immediately and runs no exit handlers.
        unsafe { libc::_exit(answer) };
    }
    let mut status = 0;
    // SAFETY: `waitpid` waits for the child made above and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child was killed: {status:#x}");
    libc::WEXITSTATUS(status)
}

fn call(number: libc::c_long, args: [usize; 6]) -> Result<usize, i32> {
    // SAFETY: the callers pass integers and valid pointers, as each call expects.
    unsafe { syscall(number, args) }.map_err(|Errno(errno)| errno)
}

fn sets_up(number: libc::c_long) -> Result<usize, i32> {
    let mut params = [0_u8; 120];
    call(number, [1, params.as_mut_ptr() as usize, 0, 0, 0, 0])
}

/// Opens this test program's file by the given system call and flags.
fn opens(number: libc::c_long, flags: i32) -> Result<usize, i32> {
    let path = c"/proc/self/exe".as_ptr() as usize;
    match number {
        libc::SYS_openat => call(number, [libc::AT_FDCWD as usize, path, flags as usize, 0, 0, 0]),
        _ => call(number, [path, flags as usize, 0, 0, 0, 0]),
    }
}

#[test]
fn transfers_are_refused_and_nothing_else() {
    let answer = in_a_child(|| {
        if refuse(Refused::Transfers).is_err() || refuse(Refused::Transfers).is_err() {
            return 1;
        }
        let refused = [libc::SYS_io_uring_setup, libc::SYS_io_setup, libc::SYS_process_vm_writev];
        if refused.into_iter().any(|number| sets_up(number) != Err(libc::ENOSYS)) {
            return 2;
        }
        i32::from(opens(libc::SYS_openat, libc::O_RDONLY).is_err()) * 3
    });
    assert_eq!(answer, 0, "1: not installed, 2: not refused, 3: too much is refused");
}

/// Checks that a second filter can be installed when the inherited one refuses too little. This happens when a program
/// under Hanare starts Hanare again.
#[test]
fn direct_io_is_refused_under_a_filter_of_transfers() {
    let answer = in_a_child(|| {
        if refuse(Refused::Transfers).is_err() || refuse(Refused::TransfersAndDirectIo).is_err() {
            return 1;
        }
        if opens(libc::SYS_openat, libc::O_DIRECT) != Err(libc::EINVAL) {
            return 2;
        }
        i32::from(sets_up(libc::SYS_io_setup) != Err(libc::ENOSYS)) * 3
    });
    assert_eq!(answer, 0, "1: not installed, 2: direct I/O is not refused, 3: transfers are not");
}

#[test]
fn direct_io_is_refused_where_that_is_asked_for() {
    let answer = in_a_child(|| {
        if refuse(Refused::TransfersAndDirectIo).is_err() {
            return 1;
        }
        if sets_up(libc::SYS_io_setup) != Err(libc::ENOSYS) || sets_up(libc::SYS_openat2) != Err(libc::ENOSYS) {
            return 2;
        }
        for number in [
            libc::SYS_openat,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_open,
        ] {
            if opens(number, libc::O_DIRECT) != Err(libc::EINVAL) {
                return 3;
            }
            let Ok(fd) = opens(number, libc::O_RDONLY) else { return 4 };
            if call(libc::SYS_fcntl, [fd, libc::F_SETFL as usize, libc::O_DIRECT as usize, 0, 0, 0])
                != Err(libc::EINVAL)
            {
                return 5;
            }
            if call(libc::SYS_fcntl, [fd, libc::F_SETFL as usize, libc::O_NONBLOCK as usize, 0, 0, 0]).is_err() {
                return 6;
            }
        }
        0
    });
    assert_eq!(answer, 0, "the step that went wrong");
}
