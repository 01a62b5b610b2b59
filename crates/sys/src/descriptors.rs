//! Records the numbers of the descriptors that Hanare opens inside a program. Code that closes descriptors for the
//! program uses this record to spare them.
//!
//! Programs close descriptors that they did not open (`close_range`, a loop over all numbers, `dup2` onto a number).
//! Hanare's descriptors must survive that. So Hanare [keeps](keep) each one. It moves the descriptor to a high number,
//! makes it close-on-exec and records it in a table. The table has one bit for each number. A lookup in the table uses
//! no lock.
//!
//! A descriptor number belongs to one process. A forked child has a copy of its parent's table, but none of the
//! parent's engine. So a process uses the table only if it has the [mark](crate::mark), which a forked child lacks.

use crate::mark;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::*};

/// The count of descriptor numbers in the table. No descriptor is moved to a higher number, and higher numbers are not
/// recorded.
const NUMBERS: usize = 1 << 20;
const WORD_BITS: usize = u64::BITS as usize;
/// The search for a free high number begins below this number. Higher numbers would cost memory, because the kernel's
/// descriptor table has an entry for each number up to the highest open one.
const TOP: u64 = 1024;
/// The limit on descriptors while [`Room`] raises it. It is so high that some numbers are free even if the program uses
/// very many.
const RAISED: u64 = 1 << 19;
/// The lowest number that a descriptor is moved to. Lower numbers are the program's standard streams.
const LOWEST: u64 = 3;

static NOTED: [AtomicU64; NUMBERS / WORD_BITS] = [const { AtomicU64::new(0) }; NUMBERS / WORD_BITS];
/// The lowest number that was ever recorded.
static FIRST: AtomicI32 = AtomicI32::new(i32::MAX);
/// The highest number that was ever recorded.
static LAST: AtomicI32 = AtomicI32::new(-1);

fn word_of(fd: RawFd) -> Option<(&'static AtomicU64, u64)> {
    let number = usize::try_from(fd).ok().filter(|&number| number < NUMBERS)?;
    Some((&NOTED[number / WORD_BITS], 1 << (number % WORD_BITS)))
}

/// Moves one of Hanare's descriptors to a high number, makes it close-on-exec and records it. If no high number is
/// free, the descriptor keeps its number.
#[must_use]
pub fn keep(fd: OwnedFd) -> OwnedFd {
    let own = copy_high(&fd).unwrap_or(fd);
    // This call cannot fail for an open descriptor. Most descriptors are close-on-exec already.
    let closes = rustix::io::fcntl_setfd(&own, rustix::io::FdFlags::CLOEXEC);
    debug_assert!(closes.is_ok());
    if let Some((word, bit)) = word_of(own.as_raw_fd()) {
        FIRST.fetch_min(own.as_raw_fd(), AcqRel);
        LAST.fetch_max(own.as_raw_fd(), AcqRel);
        word.fetch_or(bit, AcqRel);
    }
    own
}

/// Returns a copy of the descriptor with a high number. Returns `None` if no such number is free.
fn copy_high(fd: impl AsFd) -> Option<OwnedFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(TOP).min(TOP);
    let least = [limit.saturating_sub(64), limit.saturating_sub(256), limit / 2];
    let copy = |&least: &u64| rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), least as RawFd).ok();
    least.iter().filter(|&&least| least >= LOWEST).find_map(copy)
}

/// Checks whether `more` descriptors can be opened now. The check must not open any, because another thread of the
/// program may rely on getting the lowest free number.
fn can_have(more: usize) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(i32::MAX as u64) as RawFd;
    let mut free = 0;
    let mut end = limit;
    while free < more && end > 0 && limit - end < LOOKED_AT_MAX {
        let start = (end - LOOKED_AT as RawFd).max(0);
        free += free_among(start, end);
        end = start;
    }
    free >= more
}

/// The count of descriptor numbers that one system call examines.
const LOOKED_AT: usize = 64;
/// The maximum count of descriptor numbers that one check examines.
const LOOKED_AT_MAX: RawFd = 4096;

/// Returns how many of the numbers `start..end` are free. The range has at most [`LOOKED_AT`] numbers. A descriptor
/// that was opened with O_PATH wrongly counts as free. So the result is too high if the program has opened files with
/// O_PATH.
fn free_among(start: RawFd, end: RawFd) -> usize {
    let mut asked = [const { libc::pollfd { fd: -1, events: 0, revents: 0 } }; LOOKED_AT];
    let count = asked.iter_mut().zip(start..end).map(|(entry, fd)| entry.fd = fd).count();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let args = [asked.as_mut_ptr() as usize, count, &raw const now as usize, 0, 0, 0];
    // SAFETY: `asked` and `now` are local variables that outlive the call. The kernel writes only to `asked`.
    match unsafe { crate::syscall(libc::SYS_ppoll, args) } {
        Ok(_) => asked[..count].iter().filter(|entry| entry.revents & libc::POLLNVAL != 0).count(),
        Err(_) => 0,
    }
}

/// Returns how many descriptors are open below the limit. It opens none itself, because there may be no free number.
#[must_use]
pub fn used() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX).min(NUMBERS as u64) as RawFd;
    let starts = (0..limit).step_by(LOOKED_AT);
    starts.map(|start| (start, limit.min(start + LOOKED_AT as RawFd))).map(used_among).sum()
}

fn used_among((start, end): (RawFd, RawFd)) -> usize {
    (end - start) as usize - free_among(start, end)
}

/// Room for Hanare's descriptors in a process that has used up its own limit. While this value lives, the process may
/// have a higher limit on descriptors. When it is dropped, the old limit returns. Descriptors above the old limit then
/// stay open.
#[derive(Debug)]
pub struct Room {
    before: Option<Rlimit>,
}

impl Room {
    /// Makes room for `more` descriptors, and raises the program's limit if necessary. Returns `None` if the hard limit
    /// is too low.
    #[must_use]
    pub fn make(more: usize) -> Option<Self> {
        if can_have(more) {
            return Some(Self { before: None });
        }
        let before = getrlimit(Resource::Nofile);
        let current = before.maximum.unwrap_or(RAISED).min(RAISED).max(before.current.unwrap_or(RAISED));
        let raised = Rlimit { current: Some(current), ..before };
        setrlimit(Resource::Nofile, raised).ok()?;
        let room = Self { before: Some(before) };
        can_have(more).then_some(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            // This call cannot fail, because a process may always lower its own limit.
            let lowered = setrlimit(Resource::Nofile, before);
            debug_assert!(lowered.is_ok());
        }
    }
}

/// Removes a descriptor from the table. Its owner is about to close it. Returns false if the descriptor was not
/// recorded.
pub fn forget(fd: RawFd) -> bool {
    word_of(fd).is_some_and(|(word, bit)| word.fetch_and(!bit, AcqRel) & bit != 0)
}

/// Checks whether a number is one of Hanare's descriptors in this process.
#[inline]
#[must_use]
pub fn is_own(fd: RawFd) -> bool {
    fd >= FIRST.load(Acquire) && is_noted(fd) && mark::is_set()
}

fn is_noted(fd: RawFd) -> bool {
    word_of(fd).is_some_and(|(word, bit)| word.load(Acquire) & bit != 0)
}

/// Calls `visit` for the numbers `first..=last` except Hanare's own descriptors. Each call gets a range with both ends
/// included, in ascending order. Stops at the first error.
///
/// # Errors
/// The error of `visit`.
pub fn others<E>(first: u32, last: u32, mut visit: impl FnMut(u32, u32) -> Result<(), E>) -> Result<(), E> {
    let mut from = first;
    if mark::is_set() {
        let low = i64::from(FIRST.load(Acquire)).max(i64::from(first));
        let high = i64::from(LAST.load(Acquire)).min(i64::from(last));
        for number in low..=high {
            if !is_noted(number as RawFd) {
                continue;
            }
            let own = number as u32;
            if own > from {
                visit(from, own - 1)?;
            }
            from = own + 1;
        }
    }
    if from <= last { visit(from, last) } else { Ok(()) }
}

/// Returns the number of recorded descriptors.
#[must_use]
pub fn count() -> usize {
    (FIRST.load(Acquire).max(0)..=LAST.load(Acquire)).filter(|&fd| is_noted(fd)).count()
}

/// Makes a separate descriptor table for the calling thread, with copies of Hanare's descriptors only. The copies stay
/// open while the thread lives, even if the program closes the originals by direct system calls. Returns false if the
/// kernel refuses. Then the thread's table has not changed.
#[must_use]
pub fn hold() -> bool {
    let mut apart = false;
    let closed = others(0, u32::MAX, |first, last| {
        let flags = libc::CLOSE_RANGE_UNSHARE as usize;
        // SAFETY: the call takes only integers. The first call gives this thread its own table and closes descriptors
        // only there. If the first call fails, no other call follows. So the descriptors of other threads stay open.
        unsafe { crate::syscall(libc::SYS_close_range, [first as usize, last as usize, flags, 0, 0, 0]) }.map(|_| {
            apart = true;
        })
    });
    closed.is_ok() && apart
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(first: u32, last: u32) -> Vec<(u32, u32)> {
        let mut seen = Vec::new();
        let all: Result<(), ()> = others(first, last, |a, b| {
            seen.push((a, b));
            Ok(())
        });
        assert!(all.is_ok());
        seen
    }

    /// One test makes all checks. Parallel tests would disturb each other, because the whole process has only one
    /// table.
    #[test]
    fn kept_descriptors_are_high_close_on_exec_and_skipped() {
        mark::set().unwrap();
        let fd = keep(rustix::fs::open(c"/", rustix::fs::OFlags::RDONLY, rustix::fs::Mode::empty()).unwrap());
        let number = fd.as_raw_fd();
        assert!(number > 200 && is_own(number) && !is_own(number - 200) && count() >= 1, "{number}");
        assert_eq!(rustix::io::fcntl_getfd(&fd).unwrap(), rustix::io::FdFlags::CLOEXEC);
        let at = number as u32;
        let around = ranges(3, u32::MAX);
        assert!(around.iter().all(|&(first, last)| first <= last && !(first..=last).contains(&at)), "{around:?}");
        assert_eq!((around.first().unwrap().0, around.last().unwrap().1), (3, u32::MAX));
        assert_eq!(ranges(at, at), []);
        let held = std::thread::scope(|scope| {
            let look = || {
                let apart = hold();
                let own = rustix::io::fcntl_getfd(&fd).is_ok();
                // SAFETY: F_GETFD only reads the flags of descriptor 0.
                (apart, own, unsafe { libc::fcntl(0, libc::F_GETFD) })
            };
            scope.spawn(look).join().unwrap()
        });
        assert_eq!(held, (true, true, -1));
        // SAFETY: F_GETFD only reads the flags of descriptor 0.
        assert_ne!(unsafe { libc::fcntl(0, libc::F_GETFD) }, -1, "the others keep theirs");
        assert_eq!((free_among(number, number + 1), free_among(-2, 0)), (0, 0));
        assert!(can_have(8) && !can_have(1 << 30) && Room::make(8).is_some());
        let before = used();
        let more: Vec<OwnedFd> = (0..70).map(|_| rustix::io::dup(&fd).unwrap()).collect();
        assert!(before >= 4 && used() == before + 70, "{before} and {}", used());
        drop(more);
        assert!(forget(number) && !is_own(number) && !forget(number));
        assert!(!is_own(-1) && !is_own(i32::MAX));
        let fd = keep(fd);
        // SAFETY: this clone without flags works like fork, and the child only exits.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } as i32;
        if child == 0 {
            // SAFETY: `_exit` ends the child immediately and runs no exit handlers.
            unsafe { libc::_exit(i32::from(is_own(fd.as_raw_fd()))) };
        }
        let mut status = -1;
        // SAFETY: `waitpid` waits for the child made above and writes to `status`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "a child has none of its parent's");
        forget(fd.as_raw_fd());
    }
}
