//! Calls refused by a filter, in a child: a filter is for good.

use hanare_sys::{Errno, filter, syscall};

#[test]
fn asynchronous_io_is_refused_and_nothing_else() {
    // SAFETY: the child makes system calls only, and ends without running anything of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let set_up = |number| {
            let mut params = [0_u8; 120];
            // SAFETY: room for a struct io_uring_params, all zeroes; for io_setup a context that is not zero.
            unsafe { syscall(number, [1, params.as_mut_ptr() as usize, 0, 0, 0, 0]) }
        };
        let refused = || {
            [libc::SYS_io_uring_setup, libc::SYS_io_setup]
                .iter()
                .all(|&number| set_up(number) == Err(Errno(libc::ENOSYS)))
        };
        let step = match filter::refuse_async_io().and_then(|()| filter::refuse_async_io()) {
            Err(_) => 2,
            Ok(()) if !refused() => 3,
            // SAFETY: asks a number.
            Ok(()) if unsafe { libc::getppid() } <= 0 => 4,
            Ok(()) => 0,
        };
        // SAFETY: ends the child.
        unsafe { libc::_exit(step) };
    }
    let mut status = 0;
    // SAFETY: a child of this test's, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 0, "2: not installed, 3: not refused, 4: too much is refused");
}
