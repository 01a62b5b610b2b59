//! The slots that a session holds and the bytes that it transfers, counted for its quota and for the operator.
//!
//! The counts are atomics, so a status request never waits for a lock that a session holds. A session's connections
//! charge slots under the lock of the session's table, so that together they never exceed the quota.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hanare_wire::payload::NO_QUOTA;
use hanare_wire::{Identity, SessionStatus, Transport};

/// A count of transferred bytes: the total, and the recent rate per second.
#[derive(Default)]
pub(crate) struct Meter {
    total: AtomicU64,
    seen: AtomicU64,
    per_s: AtomicU64,
}

impl Meter {
    pub(crate) fn add(&self, bytes: u64) {
        self.total.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    pub(crate) fn per_s(&self) -> u64 {
        self.per_s.load(Relaxed)
    }

    /// Sets the rate to the mean of the old rate and the rate since the last call. Only one thread calls this function.
    pub(crate) fn tick(&self, elapsed: Duration) {
        let total = self.total();
        let moved = total - self.seen.swap(total, Relaxed);
        let now = (moved as f64 / elapsed.as_secs_f64().max(1e-3)) as u64;
        self.per_s.store((self.per_s() + now) / 2, Relaxed);
    }
}

/// The owner of a new session, and how it connected.
#[derive(Clone, Copy)]
pub(crate) struct SessionOwner {
    pub(crate) client: Identity,
    pub(crate) transport: Transport,
    pub(crate) slot_size: u32,
    /// Maximum number of bytes that the session may hold. [`NO_QUOTA`] means no limit.
    pub(crate) quota_bytes: u64,
}

/// Number of free slots in the blocks and the spill file of a family: a session and its clones. Only this family may
/// use these slots.
#[derive(Clone, Default)]
pub(crate) struct Spare(Arc<AtomicU64>);

impl Spare {
    /// Counts `slots` slots that became free.
    pub(crate) fn more(&self, slots: u64) {
        self.0.fetch_add(slots, Relaxed);
    }

    /// Counts `slots` slots that are no longer free.
    pub(crate) fn less(&self, slots: u64) {
        self.0.fetch_sub(slots, Relaxed);
    }
}

/// One session's account.
pub(crate) struct Account {
    id: u64,
    owner: SessionOwner,
    since: Instant,
    slots: AtomicU64,
    spill_bytes: AtomicU64,
    spare: Spare,
    pub(crate) read: Meter,
    pub(crate) write: Meter,
}

impl Account {
    pub(crate) fn new(id: u64, owner: SessionOwner) -> Account {
        Account::in_family(id, owner, Spare::default())
    }

    /// Makes the account of a clone. `spare` counts the free slots that the clone shares with its family.
    pub(crate) fn in_family(id: u64, owner: SessionOwner, spare: Spare) -> Account {
        Account {
            id,
            owner,
            since: Instant::now(),
            slots: AtomicU64::new(0),
            spill_bytes: AtomicU64::new(0),
            spare,
            read: Meter::default(),
            write: Meter::default(),
        }
    }

    /// Returns how many more slots the quota allows.
    pub(crate) fn slots_allowed(&self) -> u64 {
        match self.owner.quota_bytes {
            NO_QUOTA => u64::MAX,
            quota => (quota / u64::from(self.owner.slot_size)).saturating_sub(self.slots.load(Relaxed)),
        }
    }

    /// Returns how many more bytes the session could store. `room_bytes` is the server's free space that any session
    /// may use.
    pub(crate) fn capacity_bytes(&self, room_bytes: u64) -> u64 {
        let slot = u64::from(self.owner.slot_size);
        let room = room_bytes.saturating_add(self.spare.0.load(Relaxed).saturating_mul(slot));
        room.min(self.slots_allowed().saturating_mul(slot))
    }

    /// Counts `slots` more slots as held by the session. `spill_bytes` is how many bytes of them lie in the spill file.
    pub(crate) fn charge(&self, slots: u64, spill_bytes: u64) {
        self.slots.fetch_add(slots, Relaxed);
        self.spill_bytes.fetch_add(spill_bytes, Relaxed);
    }

    /// Counts `slots` slots as no longer held by the session. `spill_bytes` is how many bytes of them lie in the spill
    /// file.
    pub(crate) fn uncharge(&self, slots: u64, spill_bytes: u64) {
        self.slots.fetch_sub(slots, Relaxed);
        self.spill_bytes.fetch_sub(spill_bytes, Relaxed);
    }

    pub(crate) fn owner(&self) -> &SessionOwner {
        &self.owner
    }

    pub(crate) fn spare(&self) -> &Spare {
        &self.spare
    }

    /// Returns the line for the log about the begin of the session.
    pub(crate) fn began(&self) -> String {
        let slot_size = self.owner.slot_size;
        let link = self.owner.transport.name();
        format!("session {}: {} began by {link}, slots of {slot_size} bytes", self.id, self.client())
    }

    /// Returns the line for the log about the end of the session.
    pub(crate) fn ended(&self) -> String {
        const MIB: f64 = (1 << 20) as f64;
        let [read, written] = [&self.read, &self.write].map(|meter| meter.total() as f64 / MIB);
        let seconds = self.since.elapsed().as_secs_f64();
        let (id, client) = (self.id, self.client());
        let ended = format!("session {id}: {client} ended after {seconds:.1} s");
        match self.owner.transport {
            // The client copied the pages by itself.
            Transport::SameHost => ended,
            _ => format!("{ended}; read {read:.1} MiB, wrote {written:.1} MiB"),
        }
    }

    fn client(&self) -> String {
        let Identity { pid, program, host } = self.owner.client;
        format!("{}[{pid}]@{}", program.as_str(), host.as_str())
    }

    pub(crate) fn tick(&self, elapsed: Duration) {
        self.read.tick(elapsed);
        self.write.tick(elapsed);
    }

    pub(crate) fn status(&self, connections: u64) -> SessionStatus {
        SessionStatus {
            session: self.id,
            client: self.owner.client,
            transport: self.owner.transport,
            connections,
            slot_bytes: u64::from(self.owner.slot_size),
            slots: self.slots.load(Relaxed),
            spill_bytes: self.spill_bytes.load(Relaxed),
            quota_bytes: Some(self.owner.quota_bytes).filter(|quota| *quota != NO_QUOTA),
            read_bytes: self.read.total(),
            write_bytes: self.write.total(),
            read_bytes_per_s: self.read.per_s(),
            write_bytes_per_s: self.write.per_s(),
            age_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(quota_bytes: u64) -> Account {
        let owner =
            SessionOwner { client: Identity::unknown(), transport: Transport::Tcp, slot_size: 4096, quota_bytes };
        Account::new(1, owner)
    }

    #[test]
    fn a_quota_allows_whole_slots_and_no_more() {
        let account = account(3 * 4096 + 5);
        assert_eq!((account.slots_allowed(), account.capacity_bytes(1 << 30)), (3, 3 * 4096));
        account.charge(2, 4096);
        assert_eq!((account.slots_allowed(), account.capacity_bytes(0)), (1, 0));
        account.spare().more(5);
        assert_eq!(account.capacity_bytes(0), 4096, "its own free slots, within the quota");
        account.uncharge(1, 0);
        assert_eq!(account.status(1).bytes(), 4096);
    }

    #[test]
    fn without_a_quota_the_room_is_all() {
        assert_eq!(account(NO_QUOTA).capacity_bytes(12345), 12345);
        assert_eq!(account(NO_QUOTA).status(1).quota_bytes, None);
    }

    #[test]
    fn rates_come_and_go() {
        let meter = Meter::default();
        meter.add(1000);
        meter.tick(Duration::from_secs(1));
        assert_eq!((meter.total(), meter.per_s()), (1000, 500));
        for _ in 0..20 {
            meter.tick(Duration::from_secs(1));
        }
        assert_eq!((meter.total(), meter.per_s()), (1000, 0));
    }
}
