//! Finds out whether another thread of this process has run, and whether the first thread has ended.
//!
//! The files under `/proc` stay open. To open one of them again would take the lowest free descriptor number for a moment,
//! while the program may count on getting that number.

use crate::descriptors;
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

/// Two open files under `/proc` (`schedstat` and `syscall`) that together can prove that one thread of this process has
/// not run.
///
/// An unchanged CPU time of the thread is no proof. On a virtual machine, the kernel subtracts the time during which
/// the host ran other work (stolen time). So a short run can count as zero.
#[derive(Debug)]
pub struct RunWatch {
    schedstat: OwnedFd,
    syscall: OwnedFd,
}

/// The number of times that a thread has been given a CPU since it began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrivals(u64);

impl RunWatch {
    /// Opens a watch of thread `tid`. Returns `None` if there is no such thread. Allocation-free.
    #[must_use]
    pub fn open(tid: i32) -> Option<Self> {
        let open = |name: &str| {
            let mut path = [0u8; 64];
            write!(&mut path[..], "/proc/self/task/{tid}/{name}\0").ok()?;
            let path = CStr::from_bytes_until_nul(&path).ok()?;
            rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok().map(descriptors::keep)
        };
        Some(Self { schedstat: open("schedstat")?, syscall: open("syscall")? })
    }

    /// Returns the thread's number of arrivals on a CPU if the thread runs on no CPU now. Returns `None` if the thread
    /// runs, or if it is in a system call that starts a process. Such a call may be waiting for a child that shares the
    /// thread's memory (vfork). As long as [`arrivals`](Self::arrivals) returns the same number, the thread has not run
    /// since this call. Makes two short system calls and allocates nothing. The watched thread must not be the calling
    /// thread.
    #[must_use]
    pub fn off_cpu(&self) -> Option<Arrivals> {
        // The number is read before the thread's state. If the thread arrives on a CPU after this line, a later call of
        // `arrivals` returns a larger number.
        let arrivals = self.arrivals()?;
        let mut text = [0u8; 256];
        let len = rustix::io::pread(&self.syscall, &mut text, 0).ok()?;
        waits_alone(&text[..len]).then_some(arrivals)
    }

    /// Returns the thread's number of arrivals on a CPU. Returns `None` if the thread has ended or the kernel does not
    /// count arrivals. Makes one short system call and allocates nothing.
    #[must_use]
    pub fn arrivals(&self) -> Option<Arrivals> {
        let mut text = [0u8; 128];
        let len = rustix::io::pread(&self.schedstat, &mut text, 0).ok()?;
        parse_arrivals(&text[..len])
    }
}

/// An open file under `/proc` (`stat`) that tells whether the first thread of this process has ended.
#[derive(Debug)]
pub struct EndWatch {
    stat: OwnedFd,
}

impl EndWatch {
    /// Opens a watch of this process's first thread. Returns `None` if `/proc` cannot be read. Allocation-free.
    #[must_use]
    pub fn open() -> Option<Self> {
        let stat = rustix::fs::open(c"/proc/self/stat", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { stat: descriptors::keep(stat) })
    }

    /// Returns the thread's exit status, as `wait` reports it. Returns `None` if the thread has not ended. Makes one
    /// short system call and allocates nothing.
    #[must_use]
    pub fn status(&self) -> Option<i32> {
        let mut text = [0u8; 1024];
        let len = rustix::io::pread(&self.stat, &mut text, 0).ok()?;
        super::ended_with(&text[..len])
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        // As for `RunWatch`: the number leaves Hanare's record first.
        descriptors::forget(self.stat.as_raw_fd());
    }
}

/// An open file under `/proc` (`statm`) that tells how much private memory this process has.
#[derive(Debug)]
pub struct MemoryWatch {
    statm: OwnedFd,
}

impl MemoryWatch {
    /// Opens a watch of this process. Returns `None` if `/proc` cannot be read. Allocation-free.
    #[must_use]
    pub fn open() -> Option<Self> {
        let statm = rustix::fs::open(c"/proc/self/statm", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { statm: descriptors::keep(statm) })
    }

    /// Returns the bytes of the process that are resident and belong to no file. Makes one short system call and
    /// allocates nothing.
    #[must_use]
    pub fn private_bytes(&self) -> Option<u64> {
        let mut text = [0u8; 256];
        let len = rustix::io::pread(&self.statm, &mut text, 0).ok()?;
        Some(private_pages(&text[..len])? * crate::map::page_size() as u64)
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        // As for `RunWatch`: the number leaves Hanare's record first.
        descriptors::forget(self.statm.as_raw_fd());
    }
}

/// Returns the difference of the second and the third number of a `statm` file: all resident pages, without those of
/// files and of shared memory.
fn private_pages(statm: &[u8]) -> Option<u64> {
    let mut numbers = std::str::from_utf8(statm).ok()?.split_ascii_whitespace().skip(1);
    let mut next = || numbers.next()?.parse::<u64>().ok();
    next()?.checked_sub(next()?)
}

impl Drop for RunWatch {
    fn drop(&mut self) {
        // The numbers must leave Hanare's record before the descriptors are closed. After the close, the program may
        // open its own files with these numbers.
        for fd in [&self.schedstat, &self.syscall] {
            descriptors::forget(fd.as_raw_fd());
        }
    }
}

/// Returns the third number of a `schedstat` file, which says how often the thread was given a CPU. Returns `None` if
/// the number is 0, because then the kernel does not count.
fn parse_arrivals(schedstat: &[u8]) -> Option<Arrivals> {
    let number: u64 = std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(2)?.parse().ok()?;
    (number > 0).then_some(Arrivals(number))
}

/// Checks, by the text of a thread's `syscall` file, that the thread is not on a CPU and not in a system call that
/// starts a process. The kernel writes `running` for a thread on a CPU. For other threads it writes the number of the
/// system call, or -1 for a page fault.
fn waits_alone(syscall: &[u8]) -> bool {
    #[cfg(target_arch = "x86_64")]
    const STARTING: [i64; 4] = [libc::SYS_clone, libc::SYS_clone3, libc::SYS_fork, libc::SYS_vfork];
    #[cfg(not(target_arch = "x86_64"))]
    const STARTING: [i64; 2] = [libc::SYS_clone, libc::SYS_clone3];
    let first = std::str::from_utf8(syscall).ok().and_then(|text| text.split_ascii_whitespace().next());
    first.and_then(|word| word.parse().ok()).is_some_and(|number: i64| !STARTING.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::gettid;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    #[test]
    fn private_memory_grows_with_what_is_written() {
        assert_eq!(private_pages(b"900 700 300 10 0 100 0\n"), Some(400));
        assert_eq!((private_pages(b"900 7"), private_pages(b"")), (None, None));
        let watch = MemoryWatch::open().expect("/proc");
        let before = watch.private_bytes().expect("a number");
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        let after = watch.private_bytes().expect("a number");
        assert!(after > before + (24 << 20), "{before} before and {after} after {} bytes", block.len());
    }

    #[test]
    fn only_a_thread_that_runs_arrives_on_a_cpu() {
        let (tell, tid) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            tell.send(gettid()).unwrap();
            while wait.recv().is_ok() {
                tell.send(0).unwrap();
            }
        });
        let watch = RunWatch::open(tid.recv().unwrap()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        for _ in 0..1000 {
            // The thread may wait for a short time before it reaches the long sleep in `recv`. So the test waits until
            // the number no longer changes.
            let mut before = watch.off_cpu();
            while before.is_none() || watch.arrivals() != before {
                assert!(Instant::now() < deadline, "the thread waits for nothing else");
                std::thread::yield_now();
                before = watch.off_cpu();
            }
            go.send(()).unwrap();
            assert_eq!(tid.recv(), Ok(0));
            // The thread has run, even if only for a short time, so its number must have changed. It may still be on
            // its CPU.
            assert_ne!(watch.arrivals(), before);
        }
        drop(go);
        other.join().unwrap();
        while watch.off_cpu().is_some() {
            assert!(Instant::now() < deadline, "the thread has ended");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_thread_on_its_cpu_is_not_off_it() {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (tell, tid) = mpsc::channel();
            let stop = &stop;
            scope.spawn(move || {
                tell.send(gettid()).unwrap();
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
            let watch = RunWatch::open(tid.recv().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(20));
            let seen = (0..100).filter_map(|_| watch.off_cpu()).count();
            stop.store(true, Ordering::Relaxed);
            assert_eq!(seen, 0);
        });
    }

    #[test]
    fn the_files_of_a_thread_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_arrivals(b"12 34 56\n"), Some(Arrivals(56)));
        assert_eq!(parse_arrivals(b"0 0 0\n"), None, "a kernel that does not count");
        assert_eq!(parse_arrivals(b"12 34"), None);
        assert!(waits_alone(b"-1 0x7ffd 0x55d5\n"), "in a page fault");
        assert!(waits_alone(b"0 0x3 0x7f36 0x20000 0x22 0xffffffff 0x0 0x7fff 0x7f36\n"), "in read");
        assert!(!waits_alone(b"running\n") && !waits_alone(b""));
        assert!(!waits_alone(format!("{} 0x4111 0x0", libc::SYS_clone).as_bytes()));
        assert!(!waits_alone(format!("{} 0x4111 0x0", libc::SYS_clone3).as_bytes()));
    }
}
