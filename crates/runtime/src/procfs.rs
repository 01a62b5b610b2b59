//! Tells from `/proc` whether a process runs, and whether it still runs the same program. Nothing here allocates
//! memory.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

/// Returns the address where this process' stack begins. 0 if `/proc` cannot be read.
pub(crate) fn own_stack() -> u64 {
    static OWN: AtomicU64 = AtomicU64::new(0);
    if OWN.load(Relaxed) == 0 {
        // A forked child may use its parent's value, because its stack begins at the same address.
        OWN.store(process(own_pid()).map_or(0, |process| process.stack), Relaxed);
    }
    OWN.load(Relaxed)
}

/// Returns whether a process exists, is no zombie, and still runs the program whose stack begins at `stack`. If `stack`
/// is 0, the process may run any program. If `/proc` tells nothing about the process, returns whether its pid is in
/// use.
///
/// For the calling process, and for a pid that is not in use, the function opens no file. An open file would take the
/// lowest free descriptor number for a moment, while the program may count on getting that number.
pub(crate) fn is_running(pid: u32, stack: u64) -> bool {
    if pid == own_pid() {
        return stack == 0 || own_stack() == 0 || own_stack() == stack;
    }
    // SAFETY: `kill` with signal 0 only checks whether the process exists. It sends no signal.
    let answer = unsafe { libc::kill(pid as i32, 0) };
    let exists = answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH);
    exists
        && process(pid).is_none_or(|process| match process.state {
            // The first thread of a process may end before the others. Then the process looks like a zombie, but it
            // runs as long as it has more threads.
            b'Z' | b'X' => process.threads > 1,
            _ => stack == 0 || process.stack == stack,
        })
}

struct Process {
    state: u8,
    threads: u64,
    stack: u64,
}

/// Reads the state of a process from `/proc/PID/stat`. Returns `None` if the file cannot be read or parsed.
fn process(pid: u32) -> Option<Process> {
    use std::io::Write;
    let mut path = [0_u8; 32];
    write!(&mut path[..], "/proc/{pid}/stat").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let mut text = [0_u8; 1024];
    // SAFETY: `path` ends with a null byte. `read` writes at most `text.len()` bytes to `text`. `close` gets the
    // descriptor that `open` returned here.
    let len = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        if file >= 0 {
            libc::close(file);
        }
        usize::try_from(len).ok()?
    };
    // The second field is the program's name in parentheses and may hold any bytes, also `)`. So the third field begins
    // behind the last `)`.
    let behind = text[..len].iter().rposition(|&byte| byte == b')')? + 2;
    let mut fields = text.get(behind..len)?.split(|&byte| byte == b' ');
    let state = *fields.next()?.first()?;
    let mut number = |skipped| std::str::from_utf8(fields.nth(skipped)?).ok()?.parse().ok();
    let (threads, stack) = (number(16)?, number(7)?);
    Some(Process { state, threads, stack })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_sys::clock::now_ns;

    /// Longest time, in nanoseconds, in which a process starts or ends on a busy machine.
    const SOON_NS: u64 = 30_000_000_000;

    #[test]
    fn a_process_whose_first_thread_ended_is_running() {
        // The first thread ends by itself and becomes a zombie. A second thread runs until the process is killed.
        const SCRIPT: &str = "import ctypes, os, threading, time\n\
            threading.Thread(target=lambda: (time.sleep(60), os._exit(0))).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut child = std::process::Command::new("python3").args(["-c", SCRIPT]).spawn().unwrap();
        let end_ns = now_ns() + SOON_NS;
        while process(child.id()).unwrap().state != b'Z' {
            assert!(now_ns() < end_ns, "the first thread did not end");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(is_running(child.id(), 0));
        child.kill().unwrap();
        let end_ns = now_ns() + SOON_NS;
        while is_running(child.id(), 0) {
            assert!(now_ns() < end_ns, "a zombie that nobody waited for counts as running");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.wait().unwrap();
    }

    #[test]
    fn a_program_executed_in_a_members_place_is_not_the_member() {
        let me = process(own_pid()).unwrap();
        assert!(is_running(own_pid(), own_stack()));
        assert!(me.stack == 0 || !is_running(own_pid(), me.stack + 16));
        assert!(!is_running(u32::MAX / 2, 0));
    }
}
