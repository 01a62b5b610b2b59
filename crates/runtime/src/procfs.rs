//! Which processes run, and which program they run, as /proc tells. Nothing is allocated.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) fn own_pid() -> u32 {
    std::process::id()
}

/// Where this process' stack begins.
pub(crate) fn own_stack() -> u64 {
    static OWN: AtomicU64 = AtomicU64::new(0);
    if OWN.load(Relaxed) == 0 {
        // A forked child has its parent's stack, so this holds there too.
        OWN.store(process(own_pid()).map_or(0, |process| process.stack), Relaxed);
    }
    OWN.load(Relaxed)
}

/// Whether a process is there and not merely waiting to be forgotten by its parent, and still runs the program whose
/// stack begins there (0: any).
pub(crate) fn is_running(pid: u32, stack: u64) -> bool {
    match process(pid) {
        // The first thread of a process may end before the others: it is a zombie without a stack, and the process runs.
        Some(process) if matches!(process.state, b'Z' | b'X') => process.threads > 1,
        Some(process) => stack == 0 || process.stack == stack,
        // What cannot be read is not known to be gone.
        None => {
            // SAFETY: asks whether there is such a process; sends nothing.
            let answer = unsafe { libc::kill(pid as i32, 0) };
            answer == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
        }
    }
}

struct Process {
    state: u8,
    threads: u64,
    stack: u64,
}

/// What /proc tells of a process; nothing is allocated.
fn process(pid: u32) -> Option<Process> {
    use std::io::Write;
    let mut path = [0_u8; 32];
    write!(&mut path[..], "/proc/{pid}/stat").ok()?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
    let mut text = [0_u8; 1024];
    // SAFETY: a terminated name, and a buffer of ours with its length; the descriptor is closed by who opened it.
    let len = unsafe {
        let file = libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        let len = libc::read(file, text.as_mut_ptr().cast(), text.len());
        if file >= 0 {
            libc::close(file);
        }
        usize::try_from(len).ok()?
    };
    // The name in parentheses may hold anything; the fields behind it are numbered from 3.
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

    /// Longest time in which a process that waits for a CPU starts or ends.
    const SOON_NS: u64 = 30_000_000_000;

    #[test]
    fn a_process_whose_first_thread_ended_is_running() {
        // The first thread ends by itself and is a zombie; another goes on until it is killed.
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
