//! The same-host link: a memfd and a spill file for each session, handed to the client, who copies by itself.
//!
//! The server grants runs of slots within its limits and takes them back; it never looks at the bytes.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use hanare_wire::limits::GRANT_RUNS_MAX;
use hanare_wire::{Grant, Place};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use crate::account::{Account, Newcomer};
use crate::extents::Extents;
use crate::registry::{HostMembership, Registry};
use crate::shared::Store;

/// One file's slots.
struct Slots {
    free: Extents,
    granted: Extents,
}

impl Slots {
    fn new(count: u32) -> Slots {
        let mut free = Extents::default();
        if count > 0 {
            free.insert(0, count);
        }
        Slots { free, granted: Extents::default() }
    }
}

/// A same-host session. Dropping it gives all its memory back.
pub(crate) struct HostSession {
    store: Arc<Store>,
    membership: HostMembership,
    slot_size: u32,
    memfd: OwnedFd,
    spill: Option<File>,
    memory_slots: Slots,
    spill_slots: Slots,
}

/// Why slots could not be taken back.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReturnError {
    /// The run was not granted.
    NotGranted,
    /// The file would not let go of its bytes.
    Punch(rustix::io::Errno),
}

impl HostSession {
    pub(crate) fn open(newcomer: Newcomer, store: &Arc<Store>, registry: &Arc<Registry>) -> io::Result<HostSession> {
        let slot_size = newcomer.slot_size;
        let count = u32::try_from(store.memory.limit_bytes() / u64::from(slot_size)).unwrap_or(u32::MAX);
        let memfd = rustix::fs::memfd_create("hanare-slots", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // The whole limit at once, for holes cost nothing: the client maps it once, and the sealed size keeps it from
        // ever being cut under a mapping.
        rustix::fs::ftruncate(&memfd, u64::from(count) * u64::from(slot_size))?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let spill = store.spill.as_ref().map(|dir| dir.open_file()).transpose()?;
        let spill_count = if spill.is_some() { u32::MAX } else { 0 };
        Ok(HostSession {
            store: Arc::clone(store),
            membership: registry.open_host(newcomer),
            slot_size,
            memfd,
            spill,
            memory_slots: Slots::new(count),
            spill_slots: Slots::new(spill_count),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.membership.id()
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.membership.account
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    pub(crate) fn spill(&self) -> Option<BorrowedFd<'_>> {
        self.spill.as_ref().map(File::as_fd)
    }

    fn bytes(&self, slots: u32) -> u64 {
        u64::from(slots) * u64::from(self.slot_size)
    }

    /// Grants up to `wanted` slots within the quota, memory first; no run when nothing is left.
    pub(crate) fn grant(&mut self, wanted: u32) -> Vec<Grant> {
        let wanted = wanted.min(u32::try_from(self.account().slots_allowed()).unwrap_or(u32::MAX));
        let mut runs = Vec::new();
        let granted = self.grant_memory(wanted, &mut runs);
        self.grant_spill(wanted - granted, &mut runs);
        let slots: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        self.store.stats.slots.fetch_add(slots, Relaxed);
        let spilled = runs.iter().filter(|run| run.place == Place::Spill).map(|run| self.bytes(run.count)).sum();
        self.account().took(slots, spilled);
        runs
    }

    fn grant_memory(&mut self, wanted: u32, runs: &mut Vec<Grant>) -> u32 {
        let reserved = self.store.memory.reserve(self.bytes(wanted), u64::from(self.slot_size));
        // No more than `wanted`, so it fits.
        let mut left = (reserved / u64::from(self.slot_size)) as u32;
        let mut granted = 0;
        while left > 0 && runs.len() < GRANT_RUNS_MAX {
            let Some((first_slot, count)) = self.memory_slots.free.take(left) else { break };
            self.memory_slots.granted.insert(first_slot, count);
            // Filled here, so that this process and not the client is charged for the memory, and the client never waits
            // for it. Where the system refuses, the client's first touch fills it instead.
            let (at, bytes) = (self.bytes(first_slot), self.bytes(count));
            let _ = rustix::fs::fallocate(&self.memfd, FallocateFlags::empty(), at, bytes);
            runs.push(Grant { place: Place::Memory, first_slot, count });
            left -= count;
            granted += count;
        }
        self.store.memory.release(self.bytes(left));
        granted
    }

    fn grant_spill(&mut self, wanted: u32, runs: &mut Vec<Grant>) {
        let mut left = wanted;
        while left > 0 && runs.len() < GRANT_RUNS_MAX {
            let Some((first_slot, count)) = self.spill_slots.free.take(left) else { return };
            let count_claimed = self.claim_spill(first_slot, count);
            if count_claimed < count {
                self.spill_slots.free.insert(first_slot + count_claimed, count - count_claimed);
            }
            if count_claimed == 0 {
                return;
            }
            self.spill_slots.granted.insert(first_slot, count_claimed);
            self.store.stats.spill_bytes.fetch_add(self.bytes(count_claimed), Relaxed);
            runs.push(Grant { place: Place::Spill, first_slot, count: count_claimed });
            left -= count_claimed;
        }
    }

    /// Claims disk space for a run, or, near the disk's end, for what halving leaves of it.
    fn claim_spill(&self, first_slot: u32, count: u32) -> u32 {
        let (Some(dir), Some(file)) = (&self.store.spill, &self.spill) else { return 0 };
        let mut count = count;
        while count > 0 && !dir.claim(file, self.bytes(first_slot), self.bytes(count)) {
            count /= 2;
        }
        count
    }

    /// Takes a run back; its bytes are gone and read as zeroes when granted again.
    pub(crate) fn take_back(&mut self, run: Grant) -> Result<(), ReturnError> {
        let (slots, file) = match (run.place, &self.spill) {
            (Place::Memory, _) => (&mut self.memory_slots, self.memfd.as_fd()),
            (Place::Spill, Some(file)) => (&mut self.spill_slots, file.as_fd()),
            (Place::Spill, None) => return Err(ReturnError::NotGranted),
        };
        if !slots.granted.remove(run.first_slot, run.count) {
            return Err(ReturnError::NotGranted);
        }
        let size = u64::from(self.slot_size);
        let (at, bytes) = (u64::from(run.first_slot) * size, u64::from(run.count) * size);
        if let Err(e) = rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, bytes) {
            slots.granted.insert(run.first_slot, run.count);
            return Err(ReturnError::Punch(e));
        }
        slots.free.insert(run.first_slot, run.count);
        self.store.stats.slots.fetch_sub(u64::from(run.count), Relaxed);
        self.account().gave(u64::from(run.count), if run.place == Place::Spill { bytes } else { 0 });
        match run.place {
            Place::Memory => self.store.memory.release(bytes),
            Place::Spill => {
                self.store.stats.spill_bytes.fetch_sub(bytes, Relaxed);
            }
        }
        Ok(())
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        let (memory, spill) = (self.memory_slots.granted.total(), self.spill_slots.granted.total());
        let size = u64::from(self.slot_size);
        // The files are closed, not emptied: a client that has not yet noticed a stopping server, or a forked child that
        // still maps them, must not read zeroes. The kernel frees them with their last holder.
        self.store.memory.release(memory * size);
        self.store.stats.spill_bytes.fetch_sub(spill * size, Relaxed);
        self.store.stats.slots.fetch_sub(memory + spill, Relaxed);
    }
}
