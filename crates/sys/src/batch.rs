//! Drops many page ranges of this process in one system call.
//!
//! One `process_madvise(self, MADV_DONTNEED)` (Linux 6.13) causes fewer TLB shoot-downs than one `madvise` for each
//! range. If the kernel lacks this call, the batch drops its ranges by `madvise`, one by one.

use crate::descriptors;
use crate::map::{self, Advice};
use crate::raw::{self, Errno};
use crate::refuse::{self, Call};
use std::os::fd::{AsRawFd, OwnedFd};

/// The maximum number of ranges in a batch.
pub const BATCH_RANGES_MAX: usize = 512;

/// Ranges of this process's memory whose pages are dropped together. A batch holds 8 KiB of plain data and a
/// descriptor, so reuse a batch instead of making a new one each time. `push` and `flush` are allocation-free and
/// async-signal-safe. When a batch value goes out of scope, its ranges that were not flushed keep their pages.
#[derive(Debug)]
pub struct DontNeedBatch {
    ranges: [Range; BATCH_RANGES_MAX],
    count: usize,
    /// A pidfd of this process. `None` means that ranges are dropped one by one.
    process: Option<OwnedFd>,
}

/// The kernel's `struct iovec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Range {
    addr: usize,
    len: usize,
}

impl DontNeedBatch {
    /// Returns an empty batch. `use_process_madvise` says whether the kernel can drop many ranges in one call
    /// ([`crate::features::Features::process_madvise`]). If the kernel refuses that call later, the batch drops ranges
    /// one by one.
    #[must_use]
    pub fn new(use_process_madvise: bool) -> Self {
        let open = || {
            let pid = rustix::process::getpid();
            rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok().map(descriptors::keep)
        };
        let process = if use_process_madvise { open() } else { None };
        Self { ranges: [Range { addr: 0, len: 0 }; BATCH_RANGES_MAX], count: 0, process }
    }

    /// Adds a range of whole pages, and merges it with the previous range if the two are adjacent. Returns `false` when
    /// the batch is full. The caller then flushes the batch and pushes the range again.
    #[must_use = "a full batch did not take the range"]
    pub fn push(&mut self, addr: usize, len: usize) -> bool {
        let last = self.ranges[..self.count].last_mut();
        if let Some(last) = last.filter(|last| last.addr + last.len == addr) {
            last.len += len;
            return true;
        }
        if self.count == BATCH_RANGES_MAX {
            return false;
        }
        self.ranges[self.count] = Range { addr, len };
        self.count += 1;
        true
    }

    /// Returns the number of ranges in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Checks whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Checks whether the batch holds the maximum number of ranges. A full batch accepts only a range that is adjacent
    /// to the last one.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == BATCH_RANGES_MAX
    }

    /// Checks whether one system call drops all ranges of the batch.
    #[must_use]
    pub fn uses_process_madvise(&self) -> bool {
        self.process.is_some()
    }

    /// Removes the ranges without dropping them.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Drops the pages of all ranges and empties the batch. Calls `refused` with the address, length and errno of each
    /// range that the kernel did not drop. The errno is `ENOMEM` if part of the range is not mapped. A refused range
    /// does not prevent the other ranges from being dropped.
    ///
    /// # Safety
    /// The contents of the ranges are destroyed, so the caller must own them.
    pub unsafe fn flush(&mut self, mut refused: impl FnMut(usize, usize, Errno)) {
        let mut next = 0;
        while next < self.count {
            // SAFETY: the caller owns the contents of every pushed range, so they may be destroyed.
            let together = unsafe { self.drop_together(next) };
            if let Ok(bytes @ 1..) = together {
                next += skip(&mut self.ranges[next..self.count], bytes);
                continue;
            }
            let Range { addr, len } = self.ranges[next];
            // SAFETY: the caller owns the contents of every pushed range, so they may be destroyed.
            match (together, unsafe { map::advise(addr, len, Advice::DontNeed) }) {
                // The kernel refused to drop this range by `madvise` too.
                (_, Err(errno)) => refused(addr, len, errno),
                (Ok(_) | Err(Errno(libc::EINTR | libc::EAGAIN | libc::ENOMEM)), Ok(())) => {}
                // The kernel dropped the range by `madvise` but refused `process_madvise`. Possible causes: the kernel
                // lacks or forbids `process_madvise`, or this is a forked child and the pidfd names its parent. The
                // batch never calls `process_madvise` again.
                (Err(_), Ok(())) => self.process = None,
            }
            next += 1;
        }
        self.count = 0;
    }

    /// Drops ranges from index `next` on in one call, and returns the number of dropped bytes. If the result is 0, the
    /// caller must drop the first range alone.
    ///
    /// # Safety
    /// The contents of the ranges are destroyed, so the caller must own them.
    unsafe fn drop_together(&self, next: usize) -> Result<usize, Errno> {
        let Some(process) = &self.process else {
            return Ok(0);
        };
        let ranges = &self.ranges[next..self.count];
        let advice = libc::MADV_DONTNEED as usize;
        refuse::draw(Call::AdviseMany)?;
        let args = [process.as_raw_fd() as usize, ranges.as_ptr() as usize, ranges.len(), advice, 0, 0];
        // SAFETY: the kernel only reads `ranges`, which have the layout of iovecs. The caller owns the memory that
        // these iovecs name, so its contents may be destroyed.
        unsafe { raw::syscall(libc::SYS_process_madvise, args) }
    }
}

/// Skips the first `bytes` bytes of the ranges. Returns the number of ranges that are skipped completely. If the next
/// range is skipped in part, removes that part from the range.
fn skip(ranges: &mut [Range], mut bytes: usize) -> usize {
    for (index, range) in ranges.iter_mut().enumerate() {
        if bytes < range.len {
            range.addr += bytes;
            range.len -= bytes;
            return index;
        }
        bytes -= range.len;
    }
    ranges.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_answer_leaves_exactly_the_rest() {
        let ranges = [(0x1000, 0x1000), (0x3000, 0x3000), (0x8000, 0x1000)];
        let after = |bytes| {
            let mut left = ranges.map(|(addr, len)| Range { addr, len });
            let whole = skip(&mut left, bytes);
            left[whole..].iter().map(|range| (range.addr, range.len)).collect::<Vec<_>>()
        };
        assert_eq!(after(0x1000), ranges[1..]);
        assert_eq!(after(0x2000), [(0x4000, 0x2000), (0x8000, 0x1000)]);
        assert_eq!(after(0x4000), ranges[2..]);
        assert_eq!(after(0x5000), []);
    }
}
