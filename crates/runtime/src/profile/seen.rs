//! Reads the records of a run, while processes add to them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::*;

use super::{CELL_SHIFT, Keyed, PROCESS_SHIFT, PROCESSES, Profile, WIDE, WIDE_CELL_SHIFT, process_in};

/// Frames below this number are a [`SiteKind`]. No code is at such an address.
const KINDS_MAX: u64 = 4096;

/// A kind of allocation site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum SiteKind {
    /// Code that allocated large blocks.
    Call = 0,
    /// Blocks that are too small to have a site of their own.
    Small = 1,
    /// Static arrays.
    Arrays = 2,
    /// Everything else.
    Other = 3,
}

/// A process with far memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSeen {
    /// The process' number, as the process sees it.
    pub pid: u32,
    /// Address of its far memory.
    pub base: u64,
    /// Bytes of address space of its far memory.
    pub len: u64,
}

/// An instruction at which threads waited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSeen {
    /// Index of the process.
    pub process: usize,
    /// The instruction's address.
    pub at: u64,
    /// Time of the waits. In thread mode it is estimated from samples.
    pub ns: u64,
    /// Number of faults, or of samples.
    pub faults: u64,
}

/// Code that allocated far memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteSeen {
    /// Index of the process.
    pub process: usize,
    /// Its kind.
    pub kind: SiteKind,
    /// Return addresses, the nearest caller first. Empty unless `kind` is `Call`.
    pub frames: Vec<u64>,
    /// Number of allocations.
    pub allocations: u64,
    /// The ranges of far memory that it has had: offset and length in bytes.
    pub ranges: Vec<(u64, u64)>,
    /// Time that threads waited for its pages.
    pub ns: u64,
    /// Number of faults on its pages.
    pub faults: u64,
}

/// Faults in a range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellSeen {
    /// A number that stays the same for this range and process.
    pub id: u32,
    /// Index of the process.
    pub process: usize,
    /// Offset of the range in the process' far memory.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u64,
    /// Number of faults up to now.
    pub faults: u64,
}

/// The records of a run up to now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The processes, in the order in which they began.
    pub processes: Vec<ProcessSeen>,
    /// Number of further processes, whose waits are not recorded.
    pub processes_left_out: u64,
    /// Where threads waited.
    pub waits: Vec<WaitSeen>,
    /// The sites for whose pages they waited.
    pub sites: Vec<SiteSeen>,
    /// Number of records that found no room.
    pub lost: u64,
}

/// Returns the taken slots of a table with their indexes and keys.
fn taken<T: Keyed>(table: &[T]) -> impl Iterator<Item = (usize, u64, &T)> {
    table.iter().enumerate().map(|(index, it)| (index, it.key().load(Relaxed), it)).filter(|(_, key, _)| *key != 0)
}

impl Profile {
    /// Reads everything but the cells.
    pub(crate) fn seen(&self) -> Seen {
        let waits = taken(&self.waits).map(|(_, key, it)| WaitSeen {
            process: process_in(key),
            at: key & ((1 << PROCESS_SHIFT) - 1),
            ns: it.ns.load(Relaxed),
            faults: it.faults.load(Relaxed),
        });
        Seen {
            processes: self.processes_seen(),
            processes_left_out: self.begun.load(Relaxed).saturating_sub(PROCESSES as u64),
            waits: waits.collect(),
            sites: self.sites_seen(),
            lost: self.lost.load(Relaxed),
        }
    }

    /// Reads the processes. The list ends at one that has just begun.
    pub(crate) fn processes_seen(&self) -> Vec<ProcessSeen> {
        let seen = self.processes.iter().map_while(|it| {
            // The other fields are set before.
            let pid = u32::try_from(it.pid.load(Acquire)).ok().filter(|&pid| pid != 0)?;
            Some(ProcessSeen { pid, base: it.base.load(Relaxed), len: it.len.load(Relaxed) })
        });
        seen.collect()
    }

    /// Reads the addresses of the instructions at which threads of a process waited.
    pub(crate) fn places_seen(&self) -> Vec<(usize, u64)> {
        let places = taken(&self.waits).map(|(_, key, _)| (process_in(key), key & ((1 << PROCESS_SHIFT) - 1)));
        places.collect()
    }

    /// Reads the faults by address.
    pub(crate) fn cells_seen(&self) -> Vec<CellSeen> {
        let cells = taken(&self.cells).map(|(index, key, it)| {
            let (number, shift) = (key & (WIDE - 1), if key & WIDE == 0 { CELL_SHIFT } else { WIDE_CELL_SHIFT });
            CellSeen {
                id: index as u32,
                process: process_in(key),
                offset: number.checked_mul(1 << shift).unwrap_or(0),
                len: 1 << shift,
                faults: it.faults.load(Relaxed),
            }
        });
        cells.collect()
    }

    fn sites_seen(&self) -> Vec<SiteSeen> {
        let mut ranges: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
        for (_, _, block) in taken(&self.blocks) {
            // The other fields are set before.
            if let Some(site) = (block.site.load(Acquire) as usize).checked_sub(1) {
                ranges.entry(site).or_default().push((block.offset.load(Relaxed), block.len.load(Relaxed)));
            }
        }
        let site = |(index, key, it): (usize, u64, &super::Site)| {
            let frames = it.frames.iter().map(|frame| frame.load(Acquire)).take_while(|&frame| frame != 0);
            let frames: Vec<u64> = frames.collect();
            let kind = match frames.first() {
                None => return None,
                Some(&first) if first >= KINDS_MAX => SiteKind::Call,
                Some(&first) if first == SiteKind::Small as u64 => SiteKind::Small,
                Some(&first) if first == SiteKind::Arrays as u64 => SiteKind::Arrays,
                Some(_) => SiteKind::Other,
            };
            let mut ranges = ranges.remove(&index).unwrap_or_default();
            ranges.sort_unstable();
            Some(SiteSeen {
                process: process_in(key),
                kind,
                frames: if kind == SiteKind::Call { frames } else { Vec::new() },
                allocations: it.allocations.load(Relaxed),
                ranges,
                ns: it.ns.load(Relaxed),
                faults: it.faults.load(Relaxed),
            })
        };
        taken(&self.sites).filter_map(site).collect()
    }
}
