//! The counters of a run, in memory that outlives the program.
//!
//! The command `hanare run` creates a memfd for the counters. The engine in the program adds to them. The command reads
//! them afterwards, however the program ended.

use std::fs::File;
use std::ops::Deref;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use hanare_sys::map::{self, MapError, Mapping};
use thiserror::Error;

use crate::counters::{Counters, MAGIC};
use crate::polling::{FaultRate, HasFaultRate};
use crate::profile::{CellSeen, ProcessSeen, Profile, Seen};
use crate::tree::Tree;
pub use crate::tree::{Parked, ProcessFigures};

/// Why there are no counters.
#[derive(Debug, Error)]
pub enum StatsError {
    /// The memory of the counters could not be mapped.
    #[error("cannot set up the counters: {0}")]
    Map(#[from] MapError),
    /// The memfd of the counters could not be written.
    #[error("cannot write the counters' memfd: {0}; check the memory that is left")]
    Write(#[from] std::io::Error),
    /// The file is of another release, or no counters.
    #[error("they are of another release of Hanare; use its own 'hanare'")]
    Foreign,
    /// The file could be shortened while this process reads it.
    #[error("their length is not sealed, so another process could end this one; 'hanare run' did not make them")]
    Unsealed,
}

/// The layout of the memfd.
#[repr(C)]
struct Shared {
    counters: Counters,
    tree: Tree,
}

/// The layout of a memfd with records of where the run waits.
#[repr(C)]
struct Recording {
    shared: Shared,
    profile: Profile,
}

/// The mapped counters of a run. Dropping this value unmaps the counters. An engine keeps them mapped until the process
/// ends.
pub struct Stats {
    mapping: Mapping,
    /// Whether the memory has room for records of where the run waits.
    records: bool,
}

impl Stats {
    /// Makes new counters in a memfd (close-on-exec) that a program can inherit.
    ///
    /// # Errors
    /// No memory or no file descriptor is left, or the kernel does not seal the memfd.
    pub fn create() -> Result<(OwnedFd, Self), StatsError> {
        Self::create_of(size_of::<Shared>())
    }

    /// Like [`Stats::create`], with room for records of where the run waits. A program that gets these counters records.
    ///
    /// # Errors
    /// No memory or no file descriptor is left.
    pub fn create_recording() -> Result<(OwnedFd, Self), StatsError> {
        Self::create_of(size_of::<Recording>())
    }

    fn create_of(len: usize) -> Result<(OwnedFd, Self), StatsError> {
        let file = File::from(map::memfd("hanare-stats", len as u64)?);
        file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
        let stats = Self::map_shared(&file)?;
        Ok((file.into(), stats))
    }

    /// Returns the table of the processes that share these counters, with their budget shares.
    pub(crate) fn tree(&self) -> &Tree {
        &self.shared().tree
    }

    /// Returns the figures of the processes with far memory.
    #[must_use]
    pub fn processes(&self) -> Vec<ProcessFigures> {
        self.tree().processes()
    }

    /// Asks a process to park its far memory ([`crate::far::park`]). Returns the number of the request, for
    /// [`Stats::parked`]. Returns `None` if the process has no far memory.
    #[must_use]
    pub fn ask_to_park(&self, pid: u32) -> Option<u64> {
        self.tree().ask_to_park(pid)
    }

    /// Returns what became of a request to park a process. `None` if the process no longer has far memory.
    #[must_use]
    pub fn parked(&self, pid: u32, request: u64) -> Option<Parked> {
        self.tree().parked(pid, request)
    }

    fn shared(&self) -> &Shared {
        // SAFETY: the mapping is page-aligned, readable and writable, at least as long as `Shared`, and lives as long
        // as `self`. `Shared` consists of atomics only. For these every bit pattern is valid, and other threads and
        // processes may change them at any time.
        unsafe { &*self.mapping.as_ptr().cast::<Shared>() }
    }

    /// Maps the counters in file descriptor `fd`. If `fd` holds no counters in this process, maps descriptor `fd` of
    /// process `pid`: the program may have closed or reused its own copy. If that fails too, makes new counters for
    /// this process and its children.
    ///
    /// # Errors
    /// No memory is left.
    pub fn attach(fd: Option<i32>, pid: Option<i32>) -> Result<Self, StatsError> {
        let elsewhere = || File::options().read(true).write(true).open(format!("/proc/{}/fd/{}", pid?, fd?)).ok();
        match fd.and_then(own_file).or_else(|| elsewhere().filter(are_counters)) {
            Some(file) => Ok(Self::map_shared(&file)?),
            None => Ok(Self::create()?.1),
        }
    }

    /// Maps the counters of another process, from a file that is readable and writable.
    ///
    /// # Errors
    /// The file holds no counters of this layout, or its length is not sealed, or no memory is left.
    pub fn open(file: &File) -> Result<Self, StatsError> {
        if !has_their_shape(file) {
            return Err(StatsError::Foreign);
        }
        // The process that holds the counters may be anybody's. If it could shorten them, it could end this one.
        if !map::has_sealed_length(file) {
            return Err(StatsError::Unsealed);
        }
        Ok(Self::map_shared(file)?)
    }

    fn map_shared(file: &File) -> Result<Self, MapError> {
        let records = file.metadata().is_ok_and(|meta| meta.len() == size_of::<Recording>() as u64);
        let len = if records { size_of::<Recording>() } else { size_of::<Shared>() };
        Ok(Stats { mapping: Mapping::shared(file.as_fd(), 0, len)?, records })
    }

    /// Returns the records of where the run waits. `None` if there are none.
    pub(crate) fn profile(&self) -> Option<&Profile> {
        // SAFETY: the mapping is page-aligned, readable and writable, and not unmapped before `self` is dropped. If
        // `records` is true, it has the length of a `Recording`. This type consists of atomics only. For these every
        // bit pattern is valid, and other threads and processes may change them at any time.
        self.records.then(|| unsafe { &(*self.mapping.as_ptr().cast::<Recording>()).profile })
    }

    /// Reads where the run has waited up to now. `None` if nothing is recorded.
    #[must_use]
    pub fn profile_seen(&self) -> Option<Seen> {
        self.profile().map(Profile::seen)
    }

    /// Reads the faults by address up to now. There are none if nothing is recorded.
    #[must_use]
    pub fn profile_cells(&self) -> Vec<CellSeen> {
        self.profile().map(Profile::cells_seen).unwrap_or_default()
    }

    /// Reads the processes that record, and the instructions at which their threads waited: the index of the process
    /// and the address.
    #[must_use]
    pub fn profile_places(&self) -> (Vec<ProcessSeen>, Vec<(usize, u64)>) {
        self.profile().map(|profile| (profile.processes_seen(), profile.places_seen())).unwrap_or_default()
    }
}

impl HasFaultRate for Stats {
    fn fault_rate(&self) -> &FaultRate {
        &self.fault_rate
    }
}

impl Deref for Stats {
    type Target = Counters;
    fn deref(&self) -> &Counters {
        &self.shared().counters
    }
}

/// Returns the file behind `fd` if it holds counters of this layout.
fn own_file(fd: i32) -> Option<File> {
    // SAFETY: `fcntl` with F_DUPFD_CLOEXEC takes and returns numbers only. It returns -1 if `fd` is no open descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return None;
    }
    // SAFETY: `copy` is a new open descriptor. Nothing else owns it, so the file may close it.
    Some(File::from(unsafe { OwnedFd::from_raw_fd(copy) })).filter(are_counters)
}

fn are_counters(file: &File) -> bool {
    has_their_shape(file) && map::has_sealed_length(file)
}

/// Checks whether a file begins like counters of this layout and has their length.
fn has_their_shape(file: &File) -> bool {
    let mut magic = [0; 8];
    let lens = [size_of::<Shared>() as u64, size_of::<Recording>() as u64];
    file.metadata().is_ok_and(|meta| meta.is_file() && lens.contains(&meta.len()))
        && file.read_exact_at(&mut magic, 0).is_ok()
        && u64::from_ne_bytes(magic) == MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{add, raise};
    use std::os::fd::AsRawFd;

    #[test]
    fn what_the_program_adds_the_parent_reads() {
        let (fd, parent) = Stats::create().unwrap();
        let program = Stats::attach(Some(fd.as_raw_fd()), None).unwrap();
        add(&program.pages_in, 3);
        add(&program.pages_in, 4);
        raise(&program.local_bytes_peak, 100);
        raise(&program.local_bytes_peak, 50);
        program.policy.set("lru");
        program.prefetch.set(&"x".repeat(80));
        program.fault_took(5_000);
        drop(program);
        let seen = parent.snapshot();
        assert_eq!((seen.pages_in, seen.local_bytes_peak, seen.faults_timed()), (7, 100, 1));
        assert_eq!((seen.policy.as_str(), seen.prefetch.len()), ("lru", 63));
        assert_eq!(seen.bytes_in, 0);
    }

    #[test]
    fn a_program_whose_descriptor_was_closed_finds_the_counters_all_the_same() {
        let (fd, parent) = Stats::create().unwrap();
        let own_pid = std::process::id() as i32;
        let program = Stats::attach(Some(fd.as_raw_fd()), Some(own_pid)).unwrap();
        add(&program.requests, 2);
        // Opens the descriptor through `/proc`, as a process does whose own copy is closed.
        let elsewhere = File::options().read(true).write(true).open(format!("/proc/{own_pid}/fd/{}", fd.as_raw_fd()));
        assert!(are_counters(&elsewhere.unwrap()));
        assert_eq!(parent.snapshot().requests, 2);
        assert_eq!(Stats::attach(Some(1_000_000), Some(own_pid)).unwrap().snapshot().requests, 0);
    }

    #[test]
    fn a_foreign_descriptor_gives_private_counters() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size_of::<Counters>() as u64).unwrap();
        for fd in [None, Some(file.as_raw_fd()), Some(1_000_000), Some(i32::MAX)] {
            let stats = Stats::attach(fd, None).unwrap();
            add(&stats.requests, 9);
            assert_eq!(stats.snapshot().requests, 9);
        }
        drop(file);
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "the foreign file was written to");
    }

    #[test]
    fn counters_that_could_be_shortened_are_refused() {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("hanare-stats", flags).unwrap());
        file.write_all_at(&MAGIC.to_ne_bytes(), 0).unwrap();
        assert!(matches!(Stats::open(&file), Err(StatsError::Foreign)));
        file.set_len(size_of::<Shared>() as u64).unwrap();
        assert!(matches!(Stats::open(&file), Err(StatsError::Unsealed)));
        assert!(!are_counters(&file));
        rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::SHRINK).unwrap();
        add(&Stats::open(&file).unwrap().requests, 5);
        assert_eq!(Stats::open(&file).unwrap().snapshot().requests, 5);
    }

    #[test]
    fn percentiles_of_a_known_distribution() {
        let stats = Stats::attach(None, None).unwrap();
        assert_eq!(stats.snapshot().percentile(0.5), 0);
        assert_eq!(stats.snapshot().slowest_ns(), 0);
        for ns in 1..=1000 {
            stats.fault_took(ns * 1000);
        }
        let seen = stats.snapshot();
        for (p, exact) in [(0.5, 500_000.0), (0.9, 900_000.0), (0.99, 990_000.0), (0.001, 1_000.0)] {
            let ratio = seen.percentile(p) as f64 / exact;
            assert!((0.8..=1.25).contains(&ratio), "p{p}: {ratio}");
        }
        assert!(seen.slowest_ns() >= 1_000_000 && seen.slowest_ns() <= 1_250_000);
        assert!(seen.percentile(1.0) <= seen.slowest_ns());
        assert!(seen.percentile(f64::NAN) > 0 && seen.percentile(-1.0) > 0 && seen.percentile(7.0) > 0);
    }
}
