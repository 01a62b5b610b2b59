//! The state that all threads of a server share: the store, its counters, and the stop signal.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};

use std::time::{Duration, Instant};

use hanare_wire::Status;
use hanare_wire::payload::{NO_QUOTA, pack_release};
use rustix::io::retry_on_intr;

use crate::account::{Account, Meter};
use crate::memory::{Available, Memory};
use crate::spill::SpillDir;

/// The source of all slots, and the counters of the slots in use.
pub(crate) struct Store {
    pub(crate) memory: Memory,
    pub(crate) spill: Option<Arc<SpillDir>>,
    pub(crate) stats: Stats,
    /// Maximum number of bytes that each session may hold. [`NO_QUOTA`] means no limit.
    pub(crate) client_quota_bytes: u64,
    since: Instant,
}

/// The server's counters. [`Status`] documents what they count.
#[derive(Default)]
pub(crate) struct Stats {
    pub(crate) slots: AtomicU64,
    pub(crate) slots_free: AtomicU64,
    pub(crate) slots_reused: AtomicU64,
    pub(crate) spill_bytes: AtomicU64,
    pub(crate) read: Meter,
    pub(crate) write: Meter,
}

impl Store {
    pub(crate) fn new(
        memory_limit_bytes: u64,
        available: Option<Available>,
        spill: Option<SpillDir>,
        client_quota: Option<u64>,
    ) -> Arc<Store> {
        Arc::new(Store {
            memory: Memory::new(memory_limit_bytes, available),
            spill: spill.map(Arc::new),
            stats: Stats::default(),
            client_quota_bytes: client_quota.unwrap_or(NO_QUOTA),
            since: Instant::now(),
        })
    }

    /// Returns how many more bytes the server could store for a session. Asks the system and the disk for their free
    /// space.
    pub(crate) fn capacity_bytes(&self, account: &Account) -> u64 {
        self.memory.look();
        account.capacity_bytes(self.memory.room_bytes().saturating_add(self.spill_free_bytes()))
    }

    /// Returns how many more bytes the server could store for a session. Uses the last known values, and asks neither
    /// the system nor the disk.
    pub(crate) fn capacity_hint(&self, account: &Account) -> u64 {
        let spill = self.spill.as_ref().map_or(0, |dir| dir.free_bytes_last());
        account.capacity_bytes(self.memory.room_bytes().saturating_add(spill))
    }

    /// Updates the transfer rates and the values of free memory and disk space. `elapsed` is the time since the last
    /// update.
    pub(crate) fn tick(&self, elapsed: Duration) {
        self.stats.read.tick(elapsed);
        self.stats.write.tick(elapsed);
        self.memory.look();
        self.spill_free_bytes();
    }

    fn spill_free_bytes(&self) -> u64 {
        self.spill.as_ref().map_or(0, |dir| dir.free_bytes())
    }

    /// Returns the status of a server with `sessions` open sessions, without the server's identity.
    pub(crate) fn status(&self, sessions: u64) -> Status {
        let (memory_bytes, memory_free_bytes) = self.memory.used_and_free_bytes();
        Status {
            sessions,
            slots: self.stats.slots.load(Relaxed),
            slots_free: self.stats.slots_free.load(Relaxed),
            slots_reused: self.stats.slots_reused.load(Relaxed),
            memory_limit_bytes: self.memory.limit_bytes(),
            memory_bytes,
            memory_free_bytes,
            spill_bytes: self.stats.spill_bytes.load(Relaxed),
            spill_free_bytes: self.spill_free_bytes(),
            read_bytes: self.stats.read.total(),
            write_bytes: self.stats.write.total(),
            read_bytes_per_s: self.stats.read.per_s(),
            write_bytes_per_s: self.stats.write.per_s(),
            client_quota_bytes: self.client_quota_bytes,
            uptime_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            release: pack_release(env!("CARGO_PKG_VERSION")),
            is_short_of_memory: self.memory.is_short().into(),
            server_id: 0,
        }
    }
}

/// The signal that makes every thread of the server end. The descriptor is readable from the signal on.
pub(crate) struct Stop {
    flag: AtomicBool,
    /// Set before the server shuts connections down that do not end by themselves.
    severs: AtomicBool,
    event: OwnedFd,
}

impl Stop {
    pub(crate) fn new() -> rustix::io::Result<Stop> {
        use rustix::event::EventfdFlags;
        let event = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Stop { flag: AtomicBool::new(false), severs: AtomicBool::new(false), event })
    }

    pub(crate) fn stop(&self) {
        self.flag.store(true, Release);
        // `write` fails only after 2^64 - 2 calls, when the counter would overflow. The descriptor is readable even
        // then.
        let (Ok(_) | Err(_)) = retry_on_intr(|| rustix::io::write(&self.event, &1u64.to_ne_bytes()));
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.flag.load(Acquire)
    }

    /// Records that the stopping server shuts connections down from now on.
    pub(crate) fn sever(&self) {
        self.severs.store(true, Release);
    }

    pub(crate) fn severs(&self) -> bool {
        self.severs.load(Acquire)
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.event.as_fd()
    }
}
