//! The same-host link. Each family of sessions (a session and its clones) has one memfd and one spill file. The server
//! passes the files to the clients, which copy pages to and from the files by themselves.
//!
//! The server grants runs of slots within its limits and takes them back. The server never reads the bytes of slots. A
//! clone is granted the same slots as its original session. Both sessions only read the shared slots, and write to
//! slots of their own. A slot becomes free when the last session that holds it releases it.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hanare_wire::limits::GRANT_RUNS_MAX;
use hanare_wire::payload::TOKEN_BYTES;
use hanare_wire::socket::Socket;
use hanare_wire::{Grant, LinkError, Place};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::account::{Account, SessionOwner};
use crate::extents::Extents;
use crate::registry::{HostMembership, Registry};
use crate::shared::Store;

/// The sessions that share one memfd and one spill file. These are a session that is not a clone, its clones, and the
/// clones of its clones.
pub(crate) struct Family {
    store: Arc<Store>,
    slot_size: u32,
    memfd: OwnedFd,
    spill: Option<File>,
    slots: Mutex<Slots>,
}

/// The free slots of a family's files, and the slots granted to each session.
struct Slots {
    free: Files,
    granted: HashMap<u64, Files>,
    /// Slots whose bytes could not be removed from their file. They count as used and are granted to no session until
    /// the family ends.
    stuck: Vec<(Place, u32)>,
}

/// A set of slots of the memfd, and a set of slots of the spill file.
#[derive(Clone, Default)]
struct Files {
    memory: Extents,
    spill: Extents,
}

impl Files {
    fn of(&mut self, place: Place) -> &mut Extents {
        match place {
            Place::Memory => &mut self.memory,
            Place::Spill => &mut self.spill,
        }
    }
}

/// A same-host session. Dropping it frees its slots that no other session of its family holds.
pub(crate) struct HostSession {
    membership: HostMembership,
    family: Arc<Family>,
    leaves_files: bool,
}

/// Why the server could not take back slots from a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ReturnError {
    /// The session does not hold the run.
    NotGranted,
    /// The bytes of the slots could not be removed from the file.
    Punch(Errno),
}

impl Family {
    fn new(slot_size: u32, store: &Arc<Store>) -> io::Result<Family> {
        let count = u32::try_from(store.memory.limit_bytes() / u64::from(slot_size)).unwrap_or(u32::MAX);
        let memfd = rustix::fs::memfd_create("hanare-slots", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        // The file has the size of the memory limit from the start, so that a client maps it only once. Parts without
        // granted slots take no memory. The seals forbid truncating the file, which would make accesses through a
        // mapping fail.
        rustix::fs::ftruncate(&memfd, u64::from(count) * u64::from(slot_size))?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let spill = store.spill.as_ref().map(|dir| dir.open_file()).transpose()?;
        let mut free = Files::default();
        if count > 0 {
            free.memory.insert(0, count);
        }
        if spill.is_some() {
            free.spill.insert(0, u32::MAX);
        }
        let slots = Mutex::new(Slots { free, granted: HashMap::new(), stuck: Vec::new() });
        Ok(Family { store: Arc::clone(store), slot_size, memfd, spill, slots })
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self, slots: u32) -> u64 {
        u64::from(slots) * u64::from(self.slot_size)
    }

    fn file(&self, place: Place) -> Option<BorrowedFd<'_>> {
        match place {
            Place::Memory => Some(self.memfd.as_fd()),
            Place::Spill => self.spill.as_ref().map(File::as_fd),
        }
    }

    /// Grants up to `wanted` slots in memory to the session `id`, and adds them to `runs`. Returns how many slots it
    /// granted.
    fn grant_memory(&self, slots: &mut Slots, id: u64, wanted: u32, runs: &mut Vec<Grant>) -> u32 {
        let reserved = self.store.memory.reserve(self.bytes(wanted), u64::from(self.slot_size));
        // At most `wanted` slots are reserved, so their number fits into 32 bits.
        let mut left = (reserved / u64::from(self.slot_size)) as u32;
        let mut granted = 0;
        while left > 0 && runs.len() < GRANT_RUNS_MAX {
            let Some((first_slot, count)) = slots.free.memory.take(left) else { break };
            // Allocates the memory of the slots now, so that the system charges it to this process instead of the
            // client. The client then never waits for memory, and gets no SIGBUS if the system runs out of memory.
            let (at, bytes) = (self.bytes(first_slot), self.bytes(count));
            let fill = || rustix::fs::fallocate(&self.memfd, FallocateFlags::empty(), at, bytes);
            if retry_on_intr(fill).is_err() {
                slots.free.memory.insert(first_slot, count);
                self.store.memory.refused(self.bytes(left));
                return granted;
            }
            slots.granted.entry(id).or_default().memory.insert(first_slot, count);
            runs.push(Grant { place: Place::Memory, first_slot, count });
            left -= count;
            granted += count;
        }
        self.store.memory.release(self.bytes(left));
        granted
    }

    fn grant_spill(&self, slots: &mut Slots, id: u64, wanted: u32, runs: &mut Vec<Grant>) {
        let mut left = wanted;
        while left > 0 && runs.len() < GRANT_RUNS_MAX {
            let Some((first_slot, count)) = slots.free.spill.take(left) else { return };
            let count_claimed = self.claim_spill(first_slot, count);
            if count_claimed < count {
                slots.free.spill.insert(first_slot + count_claimed, count - count_claimed);
            }
            if count_claimed == 0 {
                return;
            }
            slots.granted.entry(id).or_default().spill.insert(first_slot, count_claimed);
            self.store.stats.spill_bytes.fetch_add(self.bytes(count_claimed), Relaxed);
            runs.push(Grant { place: Place::Spill, first_slot, count: count_claimed });
            left -= count_claimed;
        }
    }

    /// Claims disk space for the first slots of a run. If the disk has no space for the whole run, tries half as many
    /// slots, and so on. Returns for how many slots it claimed space.
    fn claim_spill(&self, first_slot: u32, count: u32) -> u32 {
        let (Some(dir), Some(file)) = (&self.store.spill, &self.spill) else { return 0 };
        let mut count = count;
        while count > 0 && !dir.claim(file, self.bytes(first_slot), self.bytes(count)) {
            count /= 2;
        }
        count
    }

    /// Empties and frees the slots of a run whose last holder has released them. Slots that cannot be emptied are not
    /// granted again.
    fn free(&self, slots: &mut Slots, place: Place, run: (u32, u32)) -> Result<(), Errno> {
        let mut result = Ok(());
        for (first, count) in unclaimed(&mut slots.granted, place, run) {
            match self.empty(place, self.bytes(first), self.bytes(count)) {
                Ok(()) => {
                    slots.free.of(place).insert(first, count);
                    self.uncount(place, u64::from(count));
                }
                Err(e) => {
                    slots.stuck.push((place, count));
                    result = Err(e);
                }
            }
        }
        result
    }

    /// Makes a part of a file read as zeroes. Punches a hole, which frees the part's space. In a spill file whose file
    /// system cannot punch holes, writes zeroes instead.
    fn empty(&self, place: Place, at: u64, bytes: u64) -> Result<(), Errno> {
        let Some(file) = self.file(place) else { return Ok(()) };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match (retry_on_intr(|| rustix::fs::fallocate(file, hole, at, bytes)), &self.spill) {
            (Err(Errno::OPNOTSUPP), Some(file)) if place == Place::Spill => write_zeroes(file, at, bytes),
            (result, _) => result,
        }
    }

    fn uncount(&self, place: Place, slots: u64) {
        let bytes = slots * u64::from(self.slot_size);
        self.store.stats.slots.fetch_sub(slots, Relaxed);
        match place {
            Place::Memory => self.store.memory.release(bytes),
            Place::Spill => {
                self.store.stats.spill_bytes.fetch_sub(bytes, Relaxed);
            }
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let stuck = std::mem::take(&mut self.slots().stuck);
        stuck.into_iter().for_each(|(place, count)| self.uncount(place, u64::from(count)));
    }
}

/// Writes zeroes to a part of a file, for file systems that cannot punch holes.
fn write_zeroes(file: &File, at: u64, bytes: u64) -> Result<(), Errno> {
    static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
    let mut done = 0;
    while done < bytes {
        let part = (bytes - done).min(ZEROES.len() as u64);
        file.write_all_at(&ZEROES[..part as usize], at + done)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        done += part;
    }
    Ok(())
}

/// Returns the parts `(first, count)` of a run that are granted to no session.
fn unclaimed(granted: &mut HashMap<u64, Files>, place: Place, run: (u32, u32)) -> Vec<(u32, u32)> {
    granted.values_mut().fold(vec![run], |parts, files| {
        let theirs = files.of(place);
        parts.into_iter().flat_map(|(first, count)| theirs.missing(first, count)).collect()
    })
}

impl HostSession {
    pub(crate) fn open(
        owner: SessionOwner,
        store: &Arc<Store>,
        registry: &Arc<Registry>,
        socket: &Arc<Socket>,
    ) -> io::Result<HostSession> {
        let family = Arc::new(Family::new(owner.slot_size, store)?);
        let membership = registry.open_host(owner, &family, socket).map_err(|e| io::Error::other(e.to_string()))?;
        Ok(HostSession { membership, family, leaves_files: false })
    }

    /// Opens a clone of the session `of`. The clone is granted the same slots as `of`. Returns `None` if `of` is not
    /// open, or if `token` or the slot size differs from that of `of`.
    pub(crate) fn open_clone(
        owner: SessionOwner,
        of: u64,
        token: &[u8; TOKEN_BYTES],
        registry: &Arc<Registry>,
        socket: &Arc<Socket>,
    ) -> Result<Option<HostSession>, LinkError> {
        let family = registry.host_family(of, token).filter(|family| family.slot_size == owner.slot_size);
        let Some(family) = family else { return Ok(None) };
        let membership = registry.open_host(owner, &family, socket)?;
        let mut slots = family.slots();
        let granted = slots.granted.get(&of).cloned().unwrap_or_default();
        let spilled = granted.spill.total() * u64::from(family.slot_size);
        membership.account.charge(granted.memory.total() + granted.spill.total(), spilled);
        slots.granted.insert(membership.id(), granted);
        drop(slots);
        Ok(Some(HostSession { membership, family, leaves_files: false }))
    }

    /// Returns the session's number and token.
    pub(crate) fn identity(&self) -> (u64, [u8; TOKEN_BYTES]) {
        (self.membership.id(), self.membership.token)
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.membership.account
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.family.memfd.as_fd()
    }

    pub(crate) fn spill(&self) -> Option<BorrowedFd<'_>> {
        self.family.file(Place::Spill)
    }

    /// Makes the session keep the bytes of its slots when it ends. This is called when the server stops, because the
    /// client may use the slots until it notices the stop.
    pub(crate) fn leave_files(&mut self) {
        self.leaves_files = true;
    }

    /// Grants up to `wanted` slots within the quota, first in memory and then in the spill file. Returns the granted
    /// runs, or an empty list when no slot is left.
    pub(crate) fn grant(&mut self, wanted: u32) -> Vec<Grant> {
        let wanted = wanted.min(u32::try_from(self.account().slots_allowed()).unwrap_or(u32::MAX));
        let mut runs = Vec::new();
        let mut slots = self.family.slots();
        let id = self.membership.id();
        let granted = self.family.grant_memory(&mut slots, id, wanted, &mut runs);
        self.family.grant_spill(&mut slots, id, wanted - granted, &mut runs);
        let slots: u64 = runs.iter().map(|run| u64::from(run.count)).sum();
        self.family.store.stats.slots.fetch_add(slots, Relaxed);
        let spilled: u64 = runs.iter().filter(|run| run.place == Place::Spill).map(|run| u64::from(run.count)).sum();
        self.account().charge(slots, spilled * u64::from(self.family.slot_size));
        runs
    }

    /// Takes a run of slots back from the session. Empties the slots that no other session of the family holds, so that
    /// they read as zeroes when they are granted again.
    pub(crate) fn take_back(&mut self, run: Grant) -> Result<(), ReturnError> {
        let mut slots = self.family.slots();
        let mine = slots.granted.entry(self.membership.id()).or_default().of(run.place);
        if !mine.remove(run.first_slot, run.count) {
            return Err(ReturnError::NotGranted);
        }
        let spilled = if run.place == Place::Spill { self.family.bytes(run.count) } else { 0 };
        self.account().uncharge(u64::from(run.count), spilled);
        self.family.free(&mut slots, run.place, (run.first_slot, run.count)).map_err(ReturnError::Punch)
    }
}

impl Drop for HostSession {
    fn drop(&mut self) {
        let mut slots = self.family.slots();
        let Some(mut mine) = slots.granted.remove(&self.membership.id()) else { return };
        // The slots of a family's last session are not emptied, because a process that still maps the files must not
        // read zeroes. The kernel frees the files when their last descriptor or mapping is gone.
        let empties = !self.leaves_files && !slots.granted.is_empty();
        for place in [Place::Memory, Place::Spill] {
            for run in mine.of(place).runs() {
                if empties {
                    // The client is gone, so an error cannot be reported to it. `Family::free` records the slots that
                    // could not be emptied.
                    let (Ok(()) | Err(_)) = self.family.free(&mut slots, place, run);
                } else {
                    let count = unclaimed(&mut slots.granted, place, run).iter().map(|(_, n)| u64::from(*n)).sum();
                    self.family.uncount(place, count);
                }
            }
        }
    }
}
