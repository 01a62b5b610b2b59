//! Finds out whether the first thread of this process has ended, and how much private memory the process has.
//!
//! The files under `/proc` stay open. To open one of them again would take the lowest free descriptor number for a moment,
//! while the program may count on getting that number.

use crate::descriptors;
use rustix::fs::{Mode, OFlags};
use std::os::fd::{AsRawFd, OwnedFd};

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
        // The number must leave Hanare's record before the descriptor is closed. After the close, the program may open a
        // file of its own with this number.
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
        // The number must leave Hanare's record before the descriptor is closed. After the close, the program may open a
        // file of its own with this number.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
