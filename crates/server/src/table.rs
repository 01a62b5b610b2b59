//! The table of a session: which slot holds which part of its far space.
//!
//! Slot `n` of far space begins at byte `n * slot_size`. A slot enters the table when its bytes have arrived, so no
//! client can read the old bytes of a reused slot. A slot that a clone holds too is never written. The session stores
//! the new bytes in another slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::account::Account;
use crate::pool::{GROUP, Group, NoSlot, Place, Pool, Run, Taken};
use crate::shared::Store;

/// A session's slots.
pub(crate) struct Table {
    /// The pool of slots that this session and its clones (sessions of forked processes) share. A thread must hold
    /// the pool's lock to share a group of slots, or to end its sharing.
    pool: Arc<Mutex<Pool>>,
    /// The account of all slots that this session holds, including those that a clone holds too.
    account: Arc<Account>,
    slot_size: usize,
    groups: HashMap<u64, Arc<Group>>,
}

fn locked(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Checks whether a clone shares this group. The caller must hold the pool's lock, or another thread may change the
/// answer.
fn is_common(group: &Arc<Group>) -> bool {
    Arc::strong_count(group) > 1
}

impl Table {
    pub(crate) fn new(store: Arc<Store>, slot_size: u32, account: Arc<Account>) -> Table {
        let pool = Arc::new(Mutex::new(Pool::new(store, slot_size, account.spare().clone())));
        Table { pool, account, slot_size: slot_size as usize, groups: HashMap::new() }
    }

    /// Makes the table of a clone, with the current contents of this table.
    pub(crate) fn cloned(&self, account: Arc<Account>) -> Table {
        let pool = locked(&self.pool);
        let groups = self.groups.clone();
        drop(pool);
        let (slots, spilled) =
            groups.values().flat_map(|group| group.iter()).fold((0, 0), |(slots, spilled), place| {
                (slots + u64::from(*place != Place::Absent), spilled + u64::from(matches!(place, Place::Spill { .. })))
            });
        account.charge(slots, spilled * self.slot_size as u64);
        Table { pool: Arc::clone(&self.pool), account, slot_size: self.slot_size, groups }
    }

    /// Makes an empty table on the same pool.
    pub(crate) fn beside(&self, account: Arc<Account>) -> Table {
        Table { pool: Arc::clone(&self.pool), account, slot_size: self.slot_size, groups: HashMap::new() }
    }

    /// Returns a number that all tables on one pool have, and no other table at the same time.
    pub(crate) fn family(&self) -> usize {
        Arc::as_ptr(&self.pool) as usize
    }

    /// Returns the numbers of the groups, in ascending order.
    pub(crate) fn groups(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.groups.keys().copied().collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the places of a group, and the bits of those that another table holds too.
    pub(crate) fn group(&self, number: u64) -> (Group, u64) {
        let Some(group) = self.groups.get(&number) else { return ([Place::Absent; GROUP as usize], 0) };
        let pool = locked(&self.pool);
        let is_shared = |place: Place| place != Place::Absent && (is_common(group) || pool.is_shared(place));
        let shared = group.iter().rev().fold(0, |bits, place| bits << 1 | u64::from(is_shared(*place)));
        (**group, shared)
    }

    /// Makes the session hold a slot that another session of the family holds at `place`.
    pub(crate) fn share(&mut self, slot: u64, place: Place) {
        let mut pool = locked(&self.pool);
        pool.share(place);
        let old = replace(&mut self.groups, &mut pool, slot, place);
        self.uncharge(old);
        self.account.charge(1, self.spilled_bytes(place));
    }

    fn spilled_bytes(&self, place: Place) -> u64 {
        if matches!(place, Place::Spill { .. }) { self.slot_size as u64 } else { 0 }
    }

    pub(crate) fn place(&self, slot: u64) -> Place {
        self.groups.get(&(slot / GROUP)).map_or(Place::Absent, |group| group[(slot % GROUP) as usize])
    }

    fn is_shared(&self, pool: &Pool, slot: u64) -> bool {
        let Some(group) = self.groups.get(&(slot / GROUP)) else { return false };
        match group[(slot % GROUP) as usize] {
            Place::Absent => false,
            place => is_common(group) || pool.is_shared(place),
        }
    }

    /// Checks whether the session holds every slot that the range overlaps.
    pub(crate) fn holds(&self, offset: u64, bytes: u64) -> bool {
        let size = self.slot_size as u64;
        (offset / size..=(offset + bytes - 1) / size).all(|slot| self.place(slot) != Place::Absent)
    }

    /// Returns where the bytes from `offset` on are stored. The run has at most `bytes_max` bytes, and is shorter if
    /// the bytes are not adjacent. The caller must not write to the run.
    pub(crate) fn run_at(&self, offset: u64, bytes_max: usize) -> Run {
        let (first, within, bytes) = self.run_while(offset, bytes_max, |_| true);
        locked(&self.pool).run(first, within, bytes)
    }

    /// Returns a run like [`Table::run_at`], to which the caller may write. If a clone also holds the slot at `offset`,
    /// returns an error. The error is the number of bytes from `offset` on that lie in slots which a clone also holds.
    pub(crate) fn own_run_at(&self, offset: u64, bytes_max: usize) -> Result<Run, usize> {
        let pool = locked(&self.pool);
        let size = self.slot_size as u64;
        let (first, within) = (offset / size, (offset % size) as usize);
        if self.is_shared(&pool, first) {
            let mut count = 1;
            while count * self.slot_size - within < bytes_max && self.is_shared(&pool, first + count as u64) {
                count += 1;
            }
            return Err(bytes_max.min(count * self.slot_size - within));
        }
        let (place, within, bytes) = self.run_while(offset, bytes_max, |slot| !self.is_shared(&pool, slot));
        Ok(pool.run(place, within, bytes))
    }

    /// Returns the place of the slot at `offset`, the offset within the slot, and the length in bytes of a run. The run
    /// ends before the first later slot that is not stored adjacently, or for which `fit` returns false. The run has at
    /// most `bytes_max` bytes.
    fn run_while(&self, offset: u64, bytes_max: usize, fit: impl Fn(u64) -> bool) -> (Place, usize, usize) {
        let size = self.slot_size as u64;
        let (slot, within) = (offset / size, (offset % size) as usize);
        let first = self.place(slot);
        let mut count = 1;
        while count * self.slot_size - within < bytes_max
            && self.place(slot + count as u64) == Pool::next_to(first, count)
            && fit(slot + count as u64)
        {
            count += 1;
        }
        (first, within, bytes_max.min(count * self.slot_size - within))
    }

    /// Allocates up to `count` adjacent slots within the quota. No entry of the table names these slots yet.
    pub(crate) fn take(&mut self, count: usize) -> Result<Taken, NoSlot> {
        let count = count.min(usize::try_from(self.account.slots_allowed()).unwrap_or(usize::MAX));
        if count == 0 {
            return Err(NoSlot::OverQuota);
        }
        let taken = locked(&self.pool).take(count).ok_or(NoSlot::Full)?;
        self.account.charge(taken.count as u64, taken.count as u64 * self.spilled_bytes(taken.first));
        Ok(taken)
    }

    /// Makes the slots `taken` the session's slots from number `slot` on. Their bytes must have arrived. Releases the
    /// slots that had these numbers before.
    pub(crate) fn insert(&mut self, slot: u64, taken: &Taken) {
        let mut pool = locked(&self.pool);
        for n in 0..taken.count {
            let old = replace(&mut self.groups, &mut pool, slot + n as u64, Pool::next_to(taken.first, n));
            self.uncharge(old);
        }
    }

    /// Frees slots that were allocated but not entered into the table.
    pub(crate) fn give_back(&mut self, taken: &Taken) {
        let mut pool = locked(&self.pool);
        for n in 0..taken.count {
            let place = Pool::next_to(taken.first, n);
            pool.free(place);
            self.uncharge(place);
        }
    }

    fn uncharge(&self, place: Place) {
        if place != Place::Absent {
            self.account.uncharge(1, self.spilled_bytes(place));
        }
    }

    /// Releases the slots of one group that lie wholly between `offset` and `end`. The group is that of the first such
    /// slot. Returns the offset at which to continue, so that the caller can unlock the table between groups.
    pub(crate) fn discard_group(&mut self, offset: u64, end: u64) -> u64 {
        let size = self.slot_size as u64;
        let (from, to) = (offset.div_ceil(size), end / size);
        let group_end = ((from / GROUP + 1) * GROUP).min(to);
        if self.groups.contains_key(&(from / GROUP)) {
            let mut pool = locked(&self.pool);
            for slot in from..group_end {
                let old = replace(&mut self.groups, &mut pool, slot, Place::Absent);
                self.uncharge(old);
            }
            if self.groups.get(&(from / GROUP)).is_some_and(|group| group.iter().all(|place| *place == Place::Absent)) {
                self.groups.remove(&(from / GROUP));
            }
        }
        if group_end >= to { end } else { group_end * size }
    }

    /// Gives the memory of one block's free slots back to the system, by [`Pool::trim_one`]. Returns false if no block
    /// qualifies.
    pub(crate) fn trim_one(&mut self, idle: Duration) -> bool {
        locked(&self.pool).trim_one(idle)
    }
}

/// Sets the place of the session's slot `slot`. Releases the slot's old place and returns it. Copies the group first if
/// a clone shares it.
fn replace(groups: &mut HashMap<u64, Arc<Group>>, pool: &mut Pool, slot: u64, place: Place) -> Place {
    let group = groups.entry(slot / GROUP).or_insert_with(|| Arc::new([Place::Absent; GROUP as usize]));
    if is_common(group) {
        group.iter().for_each(|place| pool.share(*place));
    }
    // The pool is locked, so `make_mut` copies the group exactly when `is_common` returned true.
    let old = std::mem::replace(&mut Arc::make_mut(group)[(slot % GROUP) as usize], place);
    pool.free(old);
    old
}

impl Drop for Table {
    /// Releases all slots of the session, because the session has ended. Slots that a clone also holds stay in use.
    fn drop(&mut self) {
        let mut pool = locked(&self.pool);
        for group in std::mem::take(&mut self.groups).into_values() {
            if let Some(group) = Arc::into_inner(group) {
                group.into_iter().for_each(|place| pool.free(place));
            }
        }
    }
}
