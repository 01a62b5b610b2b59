//! Where a blocked thread of this process is in the program's code.

use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::io::Write;

/// Returns the address of the instruction at which thread `tid` is blocked. Returns `None` if the thread runs, has
/// ended, or `/proc` does not tell.
///
/// The call opens a file, which takes the lowest free descriptor number for a moment. So only a thread with a
/// descriptor table of its own may call it ([`crate::descriptors::hold`]).
#[must_use]
pub fn place_of(tid: i32) -> Option<u64> {
    let mut path = [0_u8; 48];
    write!(&mut path[..], "/proc/self/task/{tid}/syscall").ok()?;
    let path = CStr::from_bytes_until_nul(&path).ok()?;
    let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut text = [0_u8; 256];
    let len = rustix::io::read(&file, &mut text).ok()?;
    last_address(text.get(..len)?)
}

/// Returns the last field of the kernel's line. The fields are the number of the system call or -1, its arguments if
/// there is one, the stack pointer, and the address of the instruction. The line is `running` if the thread runs.
fn last_address(line: &[u8]) -> Option<u64> {
    let line = std::str::from_utf8(line).ok()?;
    let (_, last) = line.trim_end().rsplit_once(' ')?;
    u64::from_str_radix(last.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_field_is_the_address() {
        assert_eq!(last_address(b"-1 0x7ffd0 0x55e1a\n"), Some(0x55e1a));
        assert_eq!(last_address(b"0 0x0 0x7f 0x400 0x0 0x0 0x0 0x7ffd0 0x7f2b\n"), Some(0x7f2b));
        for line in ["running\n", "", "-1 0x7ffd0 zz", "-1 0x7ffd0 0x", "\u{e9} 0x\n"] {
            assert_eq!(last_address(line.as_bytes()), None, "{line}");
        }
        assert_eq!(last_address(&[0xff, b' ', b'0', b'x', b'1']), None);
    }

    #[test]
    fn a_blocked_thread_is_in_the_c_library() {
        let (send, receive) = std::sync::mpsc::channel();
        let (hold, wait) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            send.send(crate::thread::gettid()).unwrap();
            wait.recv().unwrap_err();
        });
        let tid = receive.recv().unwrap();
        let place = (0..1000).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            place_of(tid)
        });
        assert!(place.is_some_and(|at| at > 4096), "{place:x?}");
        assert_eq!(place_of(i32::MAX), None);
        drop(hold);
        thread.join().unwrap();
    }
}
