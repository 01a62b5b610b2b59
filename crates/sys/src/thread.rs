//! Threads of this process: identity, CPUs, number.

use crate::futex::LockCell;
use crate::raw::Errno;
use rustix::fs::{Mode, OFlags};
use rustix::thread::CpuSet;
use std::io::Write;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// The kernel's id of the calling thread.
#[must_use]
pub fn gettid() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// The CPUs of the first thread that asked for a change, before that change: what the user (taskset,
/// the batch system) allows this process.
static ALLOWED: LockCell<Option<CpuSet>> = LockCell::new(None);

/// Answers the allowed CPUs and remembers them the first time.
fn allowed() -> Result<CpuSet, Errno> {
    let mut allowed = ALLOWED.lock();
    if let Some(set) = *allowed {
        return Ok(set);
    }
    let set = rustix::thread::sched_getaffinity(None)?;
    *allowed = Some(set);
    Ok(set)
}

/// Lets the calling thread run on these CPUs only.
///
/// # Errors
/// `EINVAL` when none of them is there, or one is beyond 1023.
pub fn set_affinity(cpus: &[usize]) -> Result<(), Errno> {
    allowed()?;
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno(libc::EINVAL));
        }
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(Errno::from)
}

/// Lets the calling thread run on every CPU this process was allowed before this module changed
/// anything; a user's taskset is kept.
///
/// # Errors
/// The kernel's.
pub fn set_affinity_all() -> Result<(), Errno> {
    rustix::thread::sched_setaffinity(None, &allowed()?).map_err(Errno::from)
}

/// How many CPUs this process was allowed before this module changed anything; at least 1.
#[must_use]
pub fn cpus_allowed() -> usize {
    allowed().map_or(1, |set| (set.count() as usize).max(1))
}

/// The CPU the calling thread runs on at this moment.
#[must_use]
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// The CPU thread `tid` of this process ran on last; `None` when there is no such thread.
/// Allocation-free. Opening the file is most of its cost: who asks often keeps a [`CpuWatch`].
#[must_use]
pub fn cpu_of(tid: i32) -> Option<usize> {
    CpuWatch::open(tid)?.cpu()
}

/// Tells again and again on which CPU one thread of this process ran last.
#[derive(Debug)]
pub struct CpuWatch {
    stat: OwnedFd,
}

impl CpuWatch {
    /// Watches thread `tid`; `None` when there is no such thread. Allocation-free.
    #[must_use]
    pub fn open(tid: i32) -> Option<Self> {
        let mut path = [0u8; 64];
        write!(&mut path[..], "/proc/self/task/{tid}/stat\0").ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let stat = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { stat })
    }

    /// The CPU it ran on last; `None` when the thread has ended. Allocation-free.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        let mut text = [0u8; 1024];
        let len = rustix::io::pread(&self.stat, &mut text, 0).ok()?;
        parse_stat_cpu(&text[..len])
    }
}

/// Field 39 (`processor`) of a stat line, see `proc_pid_stat(5)`. The name in field 2 may hold
/// anything, so counting starts behind the last parenthesis, with field 3.
fn parse_stat_cpu(stat: &[u8]) -> Option<usize> {
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let field = stat[behind_name..].split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(39 - 3)?;
    std::str::from_utf8(field).ok()?.trim_end().parse().ok()
}

/// The descriptor that [`count`] keeps, its process and its inode: a fork or a program that closes
/// descriptors it did not open is noticed by a mismatch, and the descriptor opened anew.
static TASK_FD: AtomicI32 = AtomicI32::new(-1);
static TASK_PID: AtomicI32 = AtomicI32::new(0);
static TASK_INODE: AtomicU64 = AtomicU64::new(0);

/// How many threads this process has; at least 1. Two short system calls and no allocation.
#[must_use]
pub fn count() -> usize {
    count_by_kept_fd().or_else(count_by_new_fd).unwrap_or(1)
}

fn count_by_kept_fd() -> Option<usize> {
    let fd = TASK_FD.load(Ordering::Acquire);
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    if fd < 0 || TASK_PID.load(Ordering::Relaxed) != pid {
        return None;
    }
    // SAFETY: used for one fstat only. If the program closed or reused the number, fstat fails or
    // the inode differs.
    let stat = rustix::fs::fstat(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    (stat.st_ino == TASK_INODE.load(Ordering::Relaxed)).then(|| threads_of(stat.st_nlink))
}

/// Opens the directory and keeps it. A descriptor kept before is not closed: its number may be the
/// program's by now. When two threads get here at once, one mismatch and one more opening at worst
/// follow.
fn count_by_new_fd() -> Option<usize> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    TASK_INODE.store(stat.st_ino, Ordering::Relaxed);
    TASK_PID.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
    TASK_FD.store(fd.into_raw_fd(), Ordering::Release);
    Some(threads_of(stat.st_nlink))
}

/// A task directory has a link for each thread besides its own two.
fn threads_of(links: impl Into<u64>) -> usize {
    (links.into().saturating_sub(2) as usize).max(1)
}

/// Names the calling thread as `ps -L` and `top -H` show it; cut to 15 bytes.
pub fn set_name(name: &str) {
    let mut bytes = [0u8; 16];
    let len = name.len().min(15);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    if let Ok(name) = std::ffi::CStr::from_bytes_until_nul(&bytes) {
        // Only ever decoration: a refusal changes nothing.
        let _ = rustix::thread::set_name(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_name_with_spaces_and_parentheses_does_not_shift_fields() {
        let mut line = String::from("77 (a) b (c) S");
        for field in 4..=52 {
            line.push_str(&format!(" {field}"));
        }
        assert_eq!(parse_stat_cpu(line.as_bytes()), Some(39));
        assert_eq!(parse_stat_cpu(b"77 (short) S 1 2"), None);
        assert_eq!(parse_stat_cpu(b""), None);
    }
}
