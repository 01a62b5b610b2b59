//! A session: one client process' far space, shared by its connections.

use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hanare_wire::payload::TOKEN_BYTES;

use crate::shared::Store;
use crate::table::{Run, Table, Taken};

/// What was found at a place of far space.
pub(crate) enum Found<T> {
    /// It lies in memory, and this came of it.
    Memory(T),
    /// It lies in the spill file: that many bytes at that position.
    Spill { file: Arc<File>, at: u64, bytes: usize },
    /// It was never written, for this many bytes.
    Absent { bytes: usize },
}

/// A session's identity and slots.
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) token: [u8; TOKEN_BYTES],
    pub(crate) slot_size: u32,
    table: Mutex<Table>,
}

impl Session {
    pub(crate) fn new(id: u64, token: [u8; TOKEN_BYTES], slot_size: u32, store: Arc<Store>) -> Session {
        Session { id, token, slot_size, table: Mutex::new(Table::new(store, slot_size)) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        self.table().holds(offset, bytes)
    }

    /// Gives `copy` the bytes from `offset` that lie together in memory, at most `bytes_max`. It must not wait.
    ///
    /// The block is locked before the table is let go, and a freed block's next owner has to lock it too, so that
    /// `copy` never meets the bytes of another session.
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

    /// Takes slots for bytes about to arrive; they are seen by nobody until [`Session::insert`].
    pub(crate) fn take(&self, count: usize) -> Option<Taken> {
        self.table().take(count)
    }

    pub(crate) fn insert(&self, slot: u64, taken: &Taken) {
        self.table().insert(slot, taken);
    }

    pub(crate) fn give_back(&self, taken: &Taken) {
        self.table().give_back(taken);
    }

    /// Frees the slots wholly within the range, letting other connections in now and then.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        let end = offset + bytes;
        let mut at = offset;
        while at < end {
            at = self.table().discard_group(at, end);
        }
    }
}
