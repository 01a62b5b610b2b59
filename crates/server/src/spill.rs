//! The spill directory and its files. The server allocates slots in these files when memory is used up.
//!
//! A spill file is created without a name, or its name is removed immediately after its creation. So no file stays
//! behind, even if the server is killed. The server claims disk space before it grants a slot, and leaves a margin of
//! the disk to other programs.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{FallocateFlags, OFlags};
use rustix::io::{Errno, retry_on_intr};

/// Number of bytes by which a spill file grows. When the disk is nearly full, the file grows by one slot.
const GROWTH_BYTES: u64 = 16 << 20;

/// A directory for spill files.
pub(crate) struct SpillDir {
    path: PathBuf,
    margin_bytes: u64,
    /// Locked while space is claimed, so that two files do not claim the same free space.
    claim: Mutex<()>,
    /// Free bytes of the disk beyond the margin, as of the last call of [`SpillDir::free_bytes`].
    free_last: AtomicU64,
}

impl SpillDir {
    /// Checks that files can be created in the directory `path`, and returns it as a spill directory.
    pub(crate) fn new(path: &Path, margin_bytes: u64) -> io::Result<SpillDir> {
        let dir = SpillDir { path: path.to_owned(), margin_bytes, claim: Mutex::new(()), free_last: AtomicU64::new(0) };
        dir.free_bytes();
        dir.open_file().map(|_| dir)
    }

    /// Creates a file without a name.
    pub(crate) fn open_file(&self) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).mode(0o600);
        let unnamed = options.clone().custom_flags(OFlags::TMPFILE.bits() as i32).open(&self.path);
        match unnamed.as_ref().map_err(Errno::from_io_error) {
            // This file system or kernel does not support unnamed files.
            Err(Some(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL)) => self.open_and_unlink(&options),
            _ => unnamed,
        }
    }

    fn open_and_unlink(&self, options: &std::fs::OpenOptions) -> io::Result<File> {
        let random = hanare_wire::handshake::random::<8>().map_err(|e| io::Error::other(e.to_string()))?;
        let path = self.path.join(format!(".hanare-spill-{:016x}", u64::from_le_bytes(random)));
        let file = options.clone().create_new(true).open(&path)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Asks the file system for its free bytes, and returns how many of them lie beyond the margin.
    pub(crate) fn free_bytes(&self) -> u64 {
        let free = match retry_on_intr(|| rustix::fs::statvfs(&self.path)) {
            Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize).saturating_sub(self.margin_bytes),
            // If the file system reports an error, the disk counts as full.
            Err(_) => 0,
        };
        self.free_last.store(free, Relaxed);
        free
    }

    /// Returns the free bytes beyond the margin that [`SpillDir::free_bytes`] last found. Every claim of space calls
    /// that function.
    pub(crate) fn free_bytes_last(&self) -> u64 {
        self.free_last.load(Relaxed)
    }

    /// Claims disk space for `bytes` bytes of `file` at offset `at`. The bytes read as zeroes until they are written.
    /// Returns false when the disk has no room for them.
    pub(crate) fn claim(&self, file: &File, at: u64, bytes: u64) -> bool {
        let _alone = self.claim.lock().unwrap_or_else(PoisonError::into_inner);
        if self.free_bytes() < bytes {
            return false;
        }
        match retry_on_intr(|| rustix::fs::fallocate(file, FallocateFlags::empty(), at, bytes)) {
            Ok(()) => true,
            // This file system cannot claim space, so the check of `free_bytes` above must suffice.
            Err(Errno::OPNOTSUPP) => match file.metadata() {
                Ok(data) => file.set_len(data.len().max(at + bytes)).is_ok(),
                Err(_) => false,
            },
            Err(_) => false,
        }
    }
}

/// A run of adjacent slots of a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SpillRun {
    pub(crate) first: u32,
    pub(crate) count: u32,
    /// Whether the slots were used before and may hold old bytes.
    pub(crate) reused: bool,
}

/// The spill file of a family of sessions. Slot `n` begins at byte `n * slot_size`.
pub(crate) struct SpillFile {
    dir: Arc<SpillDir>,
    file: Arc<File>,
    slot_size: u32,
    /// Number of the first slot that was never handed out.
    carved: u32,
    /// Number of the first slot for which no disk space is claimed.
    claimed: u32,
    free: Vec<u32>,
}

impl SpillFile {
    pub(crate) fn open(dir: &Arc<SpillDir>, slot_size: u32) -> io::Result<SpillFile> {
        let file = Arc::new(dir.open_file()?);
        Ok(SpillFile { dir: Arc::clone(dir), file, slot_size, carved: 0, claimed: 0, free: Vec::new() })
    }

    pub(crate) fn file(&self) -> &Arc<File> {
        &self.file
    }

    pub(crate) fn free_slots(&self) -> u64 {
        self.free.len() as u64
    }

    /// Returns one freed slot if there is one. Otherwise returns up to `count` adjacent new slots. Returns `None` when
    /// the disk is full.
    pub(crate) fn take(&mut self, count: u32) -> Option<SpillRun> {
        if let Some(first) = self.free.pop() {
            return Some(SpillRun { first, count: 1, reused: true });
        }
        if self.carved == self.claimed {
            self.grow()?;
        }
        let run = SpillRun { first: self.carved, count: count.min(self.claimed - self.carved), reused: false };
        self.carved += run.count;
        Some(run)
    }

    pub(crate) fn give(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Claims disk space for [`GROWTH_BYTES`] bytes of slots or, if the disk is nearly full, for one slot. Returns
    /// `None` when the disk is full.
    fn grow(&mut self) -> Option<()> {
        let slot = u64::from(self.slot_size);
        for slots in [(GROWTH_BYTES / slot).max(1) as u32, 1] {
            let Some(claimed) = self.claimed.checked_add(slots) else { continue };
            if self.dir.claim(&self.file, u64::from(self.claimed) * slot, u64::from(slots) * slot) {
                self.claimed = claimed;
                return Some(());
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn files_have_no_name_and_slots_are_reused() {
        let temporary = tempfile::tempdir().expect("temporary directory");
        let dir = Arc::new(SpillDir::new(temporary.path(), 0).expect("a usable directory"));
        let mut spill = SpillFile::open(&dir, 4096).expect("a file");
        let fresh = spill.take(3).expect("room");
        assert_eq!(fresh, SpillRun { first: 0, count: 3, reused: false });
        spill.give(1);
        assert_eq!(spill.take(3).expect("a freed slot"), SpillRun { first: 1, count: 1, reused: true });
        assert_eq!(spill.take(1).expect("room").first, 3);
        let mut byte = [1];
        spill.file().read_exact_at(&mut byte, GROWTH_BYTES - 1).expect("the claimed space is in the file");
        assert_eq!(byte, [0]);
        assert_eq!(std::fs::read_dir(temporary.path()).expect("list").count(), 0);
    }

    #[test]
    fn a_margin_beyond_the_disk_means_no_room() {
        let temporary = tempfile::tempdir().expect("temporary directory");
        let dir = Arc::new(SpillDir::new(temporary.path(), u64::MAX).expect("a usable directory"));
        assert_eq!(dir.free_bytes(), 0);
        assert_eq!(SpillFile::open(&dir, 4096).expect("a file").take(1), None);
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let temporary = tempfile::tempdir().expect("temporary directory");
        assert!(SpillDir::new(&temporary.path().join("none"), 0).is_err());
    }
}
