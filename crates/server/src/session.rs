//! A session: the far space of one client process. All connections of the session use the same far space.

use std::fs::File;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hanare_wire::payload::TOKEN_BYTES;

use crate::account::Account;
use crate::pool::{Group, NoSlot, Place, Run, Taken};
use crate::shared::Store;
use crate::table::Table;

/// Where a part of far space lies.
pub(crate) enum Found<T> {
    /// The part lies in memory. The value is the result of the access.
    Memory(T),
    /// The part lies in the spill file: `bytes` bytes at offset `at`.
    Spill { file: Arc<File>, at: u64, bytes: usize },
    /// No slot holds the part, which is `bytes` bytes long.
    Absent { bytes: usize },
}

/// A session's identity and slots.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) token: [u8; TOKEN_BYTES],
    pub(crate) slot_size: u32,
    account: Arc<Account>,
    table: Mutex<Table>,
    /// How often a connection has taken the session over.
    takeovers: AtomicU64,
    /// Whether the registry holds the session. The registry changes this under its lock.
    held: AtomicBool,
}

impl Session {
    pub(crate) fn new(
        id: u64,
        token: [u8; TOKEN_BYTES],
        slot_size: u32,
        store: Arc<Store>,
        account: Arc<Account>,
    ) -> Session {
        let table = Mutex::new(Table::new(store, slot_size, Arc::clone(&account)));
        Session::with(id, token, slot_size, account, table)
    }

    fn with(id: u64, token: [u8; TOKEN_BYTES], slot_size: u32, account: Arc<Account>, table: Mutex<Table>) -> Session {
        Session { id, token, slot_size, account, table, takeovers: AtomicU64::new(0), held: AtomicBool::new(false) }
    }

    /// Makes a session that begins with the contents of this session.
    pub(crate) fn cloned(&self, id: u64, token: [u8; TOKEN_BYTES], account: Arc<Account>) -> Session {
        let table = Mutex::new(self.table().cloned(Arc::clone(&account)));
        Session::with(id, token, self.slot_size, account, table)
    }

    /// Makes an empty session of this session's family.
    pub(crate) fn beside(&self, id: u64, token: [u8; TOKEN_BYTES], account: Arc<Account>) -> Session {
        let table = Mutex::new(self.table().beside(Arc::clone(&account)));
        Session::with(id, token, self.slot_size, account, table)
    }

    pub(crate) fn account(&self) -> &Arc<Account> {
        &self.account
    }

    pub(crate) fn takeovers(&self) -> u64 {
        self.takeovers.load(Acquire)
    }

    pub(crate) fn take_over(&self) {
        self.takeovers.fetch_add(1, AcqRel);
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held.load(Relaxed)
    }

    pub(crate) fn set_held(&self, held: bool) {
        self.held.store(held, Relaxed);
    }

    /// Returns a number that all sessions of one family have, and no other session at the same time.
    pub(crate) fn family(&self) -> usize {
        self.table().family()
    }

    /// Returns the numbers of the groups that hold any slot, in ascending order.
    pub(crate) fn groups(&self) -> Vec<u64> {
        self.table().groups()
    }

    /// Returns the places of a group, and the bits of those that another session holds too.
    pub(crate) fn group(&self, number: u64) -> (Group, u64) {
        self.table().group(number)
    }

    /// Makes this session hold a slot that `other`, a session of the same family, holds. Returns false if `other` does
    /// not hold it.
    pub(crate) fn share_with(&self, other: &Session, slot: u64) -> bool {
        let place = other.table().place(slot);
        if place == Place::Absent || other.family() != self.family() {
            return false;
        }
        self.table().share(slot, place);
        true
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        self.table().holds(offset, bytes)
    }

    /// Calls `copy` with the session's bytes from `offset` on, if they are in memory. `copy` receives the bytes that
    /// are adjacent in one block, at most `bytes_max`. `copy` must not block.
    ///
    /// The block is locked before the table is unlocked. A freed block's next owner has to lock the block too, so
    /// `copy` never sees the bytes of another session.
    pub(crate) fn with_memory<T>(&self, offset: u64, bytes_max: usize, copy: impl FnOnce(&mut [u8]) -> T) -> Found<T> {
        let table = self.table();
        match table.run_at(offset, bytes_max) {
            Run::Absent { bytes } => Found::Absent { bytes },
            Run::Spill { file, at, bytes } => Found::Spill { file, at, bytes },
            Run::Memory { block, at, bytes } => {
                let mut block = block.lock();
                drop(table);
                Found::Memory(copy(&mut block[at..at + bytes]))
            }
        }
    }

    /// Like [`Session::with_memory`], but `change` may write to the bytes. If a clone also holds the slot at `offset`,
    /// returns an error without a call of `change`. The error is the number of bytes from `offset` on that lie in slots
    /// which a clone also holds.
    pub(crate) fn with_own_memory<T>(
        &self,
        offset: u64,
        bytes_max: usize,
        change: impl FnOnce(&mut [u8]) -> T,
    ) -> Result<Found<T>, usize> {
        let table = self.table();
        Ok(match table.own_run_at(offset, bytes_max)? {
            Run::Absent { bytes } => Found::Absent { bytes },
            Run::Spill { file, at, bytes } => Found::Spill { file, at, bytes },
            Run::Memory { block, at, bytes } => {
                let mut block = block.lock();
                drop(table);
                Found::Memory(change(&mut block[at..at + bytes]))
            }
        })
    }

    /// Allocates slots for bytes that are about to arrive. No session can read the slots before [`Session::insert`].
    pub(crate) fn take(&self, count: usize) -> Result<Taken, NoSlot> {
        self.table().take(count)
    }

    pub(crate) fn insert(&self, slot: u64, taken: &Taken) {
        self.table().insert(slot, taken);
    }

    pub(crate) fn give_back(&self, taken: &Taken) {
        self.table().give_back(taken);
    }

    /// Gives the memory of free slots back to the system, for at most `blocks_max` blocks. Chooses blocks that are at
    /// least half free and in which no slot was freed for `idle`. Returns the number of these blocks.
    pub(crate) fn trim(&self, idle: Duration, blocks_max: usize) -> usize {
        let mut trimmed = 0;
        // The loop unlocks the table after each block, so other threads wait at most while one block is copied.
        while trimmed < blocks_max && self.table().trim_one(idle) {
            trimmed += 1;
        }
        trimmed
    }

    /// Frees the slots that lie wholly within the range. Unlocks the table after each group, so that other connections
    /// can use it.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            at = self.table().discard_group(at, end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::account::SessionOwner;
    use hanare_wire::payload::NO_QUOTA;
    use hanare_wire::{Identity, Transport};

    #[test]
    fn blocks_that_are_mostly_free_are_thinned_once() {
        let store = Store::new(64 << 20, None, None, None);
        let owner = SessionOwner {
            client: Identity::unknown(),
            transport: Transport::Tcp,
            slot_size: 4096,
            quota_bytes: NO_QUOTA,
        };
        let session = Session::new(1, [0; TOKEN_BYTES], 4096, store, Arc::new(Account::new(1, owner)));
        for slot in 0..512 {
            let taken = session.take(1).expect("room");
            session.insert(slot, &taken);
        }
        let fill = |slot: u64| session.with_memory(slot * 4096, 4096, |bytes| bytes.fill(slot as u8));
        (0..512).for_each(|slot| assert!(matches!(fill(slot), Found::Memory(()))));
        session.discard(0, 200 * 4096);
        assert_eq!(session.trim(Duration::ZERO, 9), 0, "more than half is in use");
        session.discard(200 * 4096, 100 * 4096);
        assert_eq!(session.trim(Duration::from_secs(3600), 9), 0, "not free for long");
        assert_eq!((session.trim(Duration::ZERO, 9), session.trim(Duration::ZERO, 9)), (1, 0));
        for slot in 300..512 {
            let same = session.with_memory(slot * 4096, 4096, |bytes| bytes.iter().all(|byte| *byte == slot as u8));
            assert!(matches!(same, Found::Memory(true)), "slot {slot}");
        }
    }
}
