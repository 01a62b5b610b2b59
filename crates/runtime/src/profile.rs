//! Where a run waits: which instructions, which allocations, which addresses. These records are in the memory of the
//! counters, behind them, and only if a page of the run or its JSON is wanted.
//!
//! All tables have a fixed size. A record takes its slot by one compare-and-exchange of its key, and adds to it by
//! relaxed atomics. So a fault may be recorded in a signal handler. A record that finds no slot is counted as lost.
//! `here` is this process' side, and `seen` is the reader's. This module does not know what a function is called.

mod here;
mod owners;
mod seen;

use std::sync::atomic::{AtomicU64, Ordering::*};

pub(crate) use here::{allocated, begin, end, grown_to, is_on, join, kept_for, waits_from, waits_until, watch};
pub use seen::{CellSeen, ProcessSeen, Seen, SiteKind, SiteSeen, WaitSeen};

/// Number of processes whose waits are recorded. A process counts again when it executes another program.
const PROCESSES: usize = 64;
/// Number of instructions that wait, over all processes.
const WAITS: usize = 4096;
/// Number of allocation sites, over all processes.
const SITES: usize = 1024;
/// Number of ranges that allocation sites have had.
const BLOCKS: usize = 4096;
/// Number of ranges of addresses whose faults are counted.
const CELLS: usize = 16384;
/// Number of slots in which a key is looked for.
const PROBES: usize = 16;
/// Return addresses of an allocation, the nearest caller first.
pub const FRAMES: usize = 8;
/// Bytes of far memory in a cell, as a power of two.
pub const CELL_SHIFT: u32 = 20;
/// Bytes of far memory in a cell that is used when the table is nearly full, as a power of two.
pub const WIDE_CELL_SHIFT: u32 = 26;
/// In a key, the bits of the process lie above this one.
const PROCESS_SHIFT: u32 = 56;
/// In the key of a cell, marks a wide one.
const WIDE: u64 = 1 << 55;

/// The records of a run.
#[repr(C)]
pub(crate) struct Profile {
    /// Number of processes that have asked for a slot.
    begun: AtomicU64,
    /// Records that found no slot.
    lost: AtomicU64,
    processes: [Process; PROCESSES],
    waits: [Wait; WAITS],
    sites: [Site; SITES],
    blocks: [Block; BLOCKS],
    cells: [Cell; CELLS],
}

/// A process with far memory.
#[repr(C)]
struct Process {
    /// 0 until the other fields are set.
    pid: AtomicU64,
    base: AtomicU64,
    len: AtomicU64,
}

/// An instruction that waited. The key has the process and the address.
#[repr(C)]
struct Wait {
    key: AtomicU64,
    ns: AtomicU64,
    faults: AtomicU64,
}

/// Where far memory was allocated. The key has the process and a digest of the frames.
#[repr(C)]
struct Site {
    key: AtomicU64,
    frames: [AtomicU64; FRAMES],
    allocations: AtomicU64,
    ns: AtomicU64,
    faults: AtomicU64,
}

/// A range of far memory that a site has or had. The key has the process and a digest of the site and the offset.
#[repr(C)]
struct Block {
    key: AtomicU64,
    /// Index of the site, plus 1. 0 until the other fields are set.
    site: AtomicU64,
    offset: AtomicU64,
    /// The largest length that the range had.
    len: AtomicU64,
}

/// Faults in a range of addresses. The key has the process and the range.
#[repr(C)]
struct Cell {
    key: AtomicU64,
    faults: AtomicU64,
}

/// A record with a key. A key of 0 stands for a free slot.
trait Keyed {
    fn key(&self) -> &AtomicU64;
}

macro_rules! keyed {
    ($($record:ident)*) => {
        $(impl Keyed for $record {
            fn key(&self) -> &AtomicU64 {
                &self.key
            }
        })*
    };
}
keyed! { Wait Site Block Cell }

/// Returns the key of what a process has. `of_process` keeps its lower bits.
fn key(process: u64, of_process: u64) -> u64 {
    (process + 1) << PROCESS_SHIFT | of_process & ((1 << PROCESS_SHIFT) - 1)
}

/// Returns the process in a key.
fn process_in(key: u64) -> usize {
    (key >> PROCESS_SHIFT).saturating_sub(1) as usize
}

/// Spreads the bits of a number.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ number >> 32
}

/// Returns the index of the slot of `key`, which is not 0. Takes a free slot if there is none yet. Returns `None` if all
/// slots in which the key may be are taken.
fn slot_of<T: Keyed>(table: &[T], key: u64) -> Option<usize> {
    let first = mixed(key) as usize;
    (0..PROBES.min(table.len())).map(|probe| first.wrapping_add(probe) % table.len()).find(|&index| {
        let word = table[index].key();
        match word.load(Relaxed) {
            0 => word.compare_exchange(0, key, Relaxed, Relaxed).map_or_else(|taken| taken == key, |_| true),
            taken => taken == key,
        }
    })
}

fn add(to: &AtomicU64, more: u64) {
    to.fetch_add(more, Relaxed);
}

impl Profile {
    /// Takes a slot for a process whose far memory is `len` bytes at `base`. Returns `None` if all are taken.
    fn join(&self, pid: u32, base: usize, len: usize) -> Option<u64> {
        let index = self.begun.fetch_add(1, Relaxed);
        let process = self.processes.get(usize::try_from(index).ok()?)?;
        process.base.store(base as u64, Relaxed);
        process.len.store(len as u64, Relaxed);
        // Publishes the other fields.
        process.pid.store(u64::from(pid), Release);
        Some(index)
    }

    /// Records a wait of `ns` at the instruction at `at`.
    fn waited(&self, process: u64, at: u64, ns: u64) {
        match slot_of(&self.waits, key(process, at)) {
            Some(slot) => {
                add(&self.waits[slot].ns, ns);
                add(&self.waits[slot].faults, 1);
            }
            None => add(&self.lost, 1),
        }
    }

    /// Records a fault of `ns` at an offset of far memory, which `owner` has allocated.
    fn faulted(&self, process: u64, offset: usize, owner: Option<usize>, ns: u64) {
        let (cell, wide) = ((offset >> CELL_SHIFT) as u64, (offset >> WIDE_CELL_SHIFT) as u64 | WIDE);
        let slot = slot_of(&self.cells, key(process, cell)).or_else(|| slot_of(&self.cells, key(process, wide)));
        match slot {
            Some(slot) => add(&self.cells[slot].faults, 1),
            None => add(&self.lost, 1),
        }
        if let Some(site) = owner.and_then(|index| self.sites.get(index)) {
            add(&site.ns, ns);
            add(&site.faults, 1);
        }
    }

    /// Returns the index of the site with these frames. A site with one small number as a frame is a [`SiteKind`].
    fn site(&self, process: u64, frames: &[u64]) -> Option<usize> {
        let digest = frames.iter().fold(0, |digest: u64, &frame| mixed(digest.rotate_left(7) ^ frame));
        let index = slot_of(&self.sites, key(process, digest));
        match index {
            // Threads that meet here store the same frames.
            Some(index) => {
                self.sites[index].frames.iter().zip(frames).for_each(|(to, &frame)| to.store(frame, Release))
            }
            None => add(&self.lost, 1),
        }
        index
    }

    /// Records that a site has a range of far memory.
    fn block(&self, process: u64, site: usize, offset: usize, len: usize) {
        let digest = mixed((site as u64).rotate_left(48) ^ offset as u64);
        match slot_of(&self.blocks, key(process, digest)) {
            Some(slot) => {
                let block = &self.blocks[slot];
                block.offset.store(offset as u64, Relaxed);
                block.len.fetch_max(len as u64, Relaxed);
                // Publishes the other fields.
                block.site.store(site as u64 + 1, Release);
            }
            None => add(&self.lost, 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stats;

    #[test]
    fn what_is_recorded_is_seen() {
        let (_, stats) = Stats::create_recording().unwrap();
        let profile = stats.profile().unwrap();
        let process = profile.join(77, 0x1000, 1 << 30).unwrap();
        let site = profile.site(process, &[0x5500, 0x6600]).unwrap();
        assert_eq!(profile.site(process, &[0x5500, 0x6600]), Some(site));
        assert_ne!(profile.site(process, &[0x6600, 0x5500]), Some(site));
        profile.block(process, site, 3 << 20, 5 << 20);
        profile.block(process, site, 3 << 20, 4 << 20);
        profile.waited(process, 0x7fff_1234_5678, 10);
        profile.waited(process, 0x7fff_1234_5678, 20);
        profile.faulted(process, (3 << 20) + 5, Some(site), 30);
        profile.faulted(process, 1 << 40, None, 1);
        let seen = stats.profile_seen().unwrap();
        assert_eq!(seen.processes, [ProcessSeen { pid: 77, base: 0x1000, len: 1 << 30 }]);
        assert_eq!(seen.waits, [WaitSeen { process: 0, at: 0x7fff_1234_5678, ns: 30, faults: 2 }]);
        let owner = seen.sites.iter().find(|it| it.ns > 0).unwrap();
        assert_eq!((owner.kind, owner.frames.as_slice(), owner.faults), (SiteKind::Call, &[0x5500, 0x6600][..], 1));
        assert_eq!(owner.ranges, [(3 << 20, 5 << 20)]);
        let mut cells: Vec<_> = stats.profile_cells().iter().map(|it| (it.offset, it.len, it.faults)).collect();
        cells.sort_unstable();
        assert_eq!(cells, [(3 << 20, 1 << 20, 1), (1 << 40, 1 << 20, 1)]);
        assert_eq!(seen.lost, 0);
        assert!(Stats::create().unwrap().1.profile().is_none(), "nothing is recorded if nobody asks");
    }

    #[test]
    fn full_tables_lose_records_and_say_so() {
        let (_, stats) = Stats::create_recording().unwrap();
        let profile = stats.profile().unwrap();
        for nth in 0..2 * CELLS {
            profile.waited(1, nth as u64, 1);
            profile.faulted(1, nth << CELL_SHIFT, None, 1);
        }
        let (seen, cells) = (stats.profile_seen().unwrap(), stats.profile_cells());
        let waits: u64 = seen.waits.iter().map(|it| it.faults).sum();
        let faults: u64 = cells.iter().map(|it| it.faults).sum();
        assert!(seen.waits.len() > WAITS * 3 / 4, "{}", seen.waits.len());
        assert!(cells.iter().any(|it| it.len == 1 << WIDE_CELL_SHIFT));
        assert_eq!(waits + faults + seen.lost, 4 * CELLS as u64);
        for pid in 0..PROCESSES as u32 + 3 {
            assert_eq!(profile.join(pid + 1, 0, 0).is_some(), (pid as usize) < PROCESSES);
        }
        assert_eq!(stats.profile_seen().unwrap().processes_left_out, 3);
    }
}
