//! A store for tests. It often does what other stores do rarely. It completes reads late and out of order, in parts or
//! in place. It refuses reads as if too many were in progress. It ends writes late, becomes full, and becomes lost. A
//! seed determines all of this.
//!
//! The store also checks the code that uses it. It panics if units are read that are not held. It also panics if a
//! page's bytes change during its write, or if a store with work in progress is cloned.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard};

use hanare_paging::{FrameId, PageId};
use hanare_wire::LinkError;

use crate::{Ask, Begun, Polled, Read, Room, Saved, Store, StoreError, Take, Telling, Turn, Words, Write};

/// The faults of a store. The rates are in thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The rate of reads that are complete when `read` returns. A later poll completes the other reads.
    pub at_once: u64,
    /// The rate of reads that are refused ([`Begun::Full`]) while other reads are in progress.
    pub full: u64,
    /// The rate of polls that complete no read although some reads are in progress.
    pub slow: u64,
    /// Whether writes of pages in frames end later ([`Faulty::end_write`]).
    pub writes_later: bool,
    /// The maximum number of units that the store can hold.
    pub units_max: usize,
    /// The number of the first call that reports the store as lost. `None` if the store is never lost.
    pub lost_at: Option<u64>,
}

/// A store with faults, in the memory of this process.
pub struct Faulty {
    unit_bytes: usize,
    faults: Faults,
    state: Mutex<State>,
}

#[derive(Clone)]
struct State {
    random: u64,
    calls: u64,
    /// Whether the store has returned an error.
    has_failed: bool,
    /// Whether the last poll for rest found the store idle. Until it is polled for rest again or goes on, no write ends.
    rests: bool,
    held: BTreeMap<u32, Vec<u8>>,
    reads: Vec<Read>,
    queue: Vec<Queued>,
}

/// A write or a release that is not sent yet. Entries of the same units are sent in order.
#[derive(Clone)]
enum Queued {
    Write { page: PageId, frame: FrameId, at: usize, bytes: Vec<u8> },
    Release { unit: u32, count: u32 },
}

impl State {
    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

impl Faulty {
    /// Creates an empty store.
    #[must_use]
    pub fn new(unit_bytes: usize, faults: Faults, seed: u64) -> Self {
        let state = State {
            random: seed,
            calls: 0,
            has_failed: false,
            rests: false,
            held: BTreeMap::new(),
            reads: Vec::new(),
            queue: Vec::new(),
        };
        Self { unit_bytes, faults, state: Mutex::new(state) }
    }

    /// Makes a store with the same contents, as a clone of a session at a fork does.
    ///
    /// # Panics
    /// If a read or a write is in progress.
    #[must_use]
    pub fn cloned(&self) -> Self {
        let state = State { rests: false, ..self.state().clone() };
        assert!(state.reads.is_empty() && state.queue.is_empty(), "a store is cloned while something is under way");
        Self { unit_bytes: self.unit_bytes, faults: self.faults, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Checks whether the store has returned an error. If so, its user has a reason to stop.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.state().has_failed
    }

    /// Checks whether a read is in progress, or a write or release is not sent yet.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        let state = self.state();
        !state.reads.is_empty() || !state.queue.is_empty()
    }

    /// Returns the bytes of a unit. Returns `None` if the unit is not held.
    #[must_use]
    pub fn bytes_of(&self, unit: u32) -> Option<Vec<u8>> {
        self.state().held.get(&unit).cloned()
    }

    /// Sends one random entry of the queue, as a sender's thread would. Returns the page and frame of a write that has
    /// ended. Returns `None` if the queue is empty, the entry was a release, or the store rests.
    ///
    /// # Panics
    /// If the page has changed since its write began.
    pub fn end_write(&self) -> Option<(PageId, FrameId)> {
        let mut state = self.state();
        if state.queue.is_empty() || state.rests {
            return None;
        }
        let waiting = state.queue.len() as u64;
        let wanted = state.below(waiting) as usize;
        let index = self.first_of_same_units(&state.queue, wanted);
        match state.queue.remove(index) {
            Queued::Write { page, frame, at, bytes } => {
                // SAFETY: `at` is the address of these bytes. The caller of `write` keeps them there until the write
                // has ended.
                let now = unsafe { std::slice::from_raw_parts(at as *const u8, bytes.len()) };
                assert!(now == bytes, "page {} changed while it was written", page.0);
                self.hold(&mut state, page, &bytes);
                Some((page, frame))
            }
            Queued::Release { unit, count } => {
                (unit..unit + count).for_each(|unit| drop(state.held.remove(&unit)));
                None
            }
        }
    }

    /// Returns the index of the entry that must be sent before `wanted`, to keep the order of entries with common
    /// units. Returns `wanted` if there is no such entry.
    fn first_of_same_units(&self, queue: &[Queued], wanted: usize) -> usize {
        let units = |queued: &Queued| match queued {
            Queued::Write { page, bytes, .. } => page.0..page.0 + (bytes.len() / self.unit_bytes) as u32,
            Queued::Release { unit, count } => *unit..unit + count,
        };
        let mut index = wanted;
        while let Some(before) = (0..index).rev().find(|&before| {
            let (one, other) = (units(&queue[before]), units(&queue[index]));
            one.start < other.end && other.start < one.end
        }) {
            index = before;
        }
        index
    }

    fn hold(&self, state: &mut State, page: PageId, bytes: &[u8]) {
        for (unit, bytes) in (page.0..).zip(bytes.chunks(self.unit_bytes)) {
            state.held.insert(unit, bytes.to_vec());
        }
    }

    /// Counts a call. Returns an error from the call with number [`Faults::lost_at`] on.
    fn called(&self, state: &mut State) -> Result<(), StoreError<'_>> {
        state.calls += 1;
        if self.faults.lost_at.is_some_and(|at| state.calls >= at) {
            state.has_failed = true;
            return Err(StoreError::Lost { server: "a faulty store", source: LinkError::Closed });
        }
        Ok(())
    }

    fn bytes_of_read(state: &State, read: &Read, unit_bytes: usize) -> Vec<u8> {
        let units = read.bytes / unit_bytes as u32;
        let held = |unit| state.held.get(&unit).unwrap_or_else(|| panic!("unit {unit} is read but not held"));
        (read.page.0..read.page.0 + units).flat_map(held).copied().collect()
    }

    /// Passes the bytes of a read to `take`, in place or in parts.
    fn hand_over(&self, mut state: MutexGuard<'_, State>, read: &Read, take: &mut dyn Take) {
        let bytes = Self::bytes_of_read(&state, read, self.unit_bytes);
        let pieces = 1 + state.below(3) as usize;
        drop(state);
        if let Some(place) = take.place(read) {
            // SAFETY: `place` is memory for all bytes of the read, and no other code accesses it.
            unsafe { place.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            return take.placed(read);
        }
        let units = bytes.len() / self.unit_bytes;
        let step = units.div_ceil(pieces) * self.unit_bytes;
        for (at, part) in (0..).step_by(step).zip(bytes.chunks(step)) {
            // SAFETY: `part` is inside `bytes`, which belongs to this call.
            unsafe { take.part(read, at, part.as_ptr(), part.len()) };
        }
    }

    fn receive(&self, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        let mut state = self.state();
        if state.reads.is_empty() {
            return Ok(Polled::Idle);
        }
        self.called(&mut state)?;
        if state.chance(self.faults.slow) {
            return Ok(Polled::Received);
        }
        let reading = state.reads.len() as u64;
        let index = state.below(reading) as usize;
        let read = state.reads.swap_remove(index);
        self.hand_over(state, &read, take);
        take.arrived(&read);
        Ok(Polled::Received)
    }
}

impl Store for Faulty {
    fn read(&self, read: &Read, take: &mut dyn Take) -> Result<Begun, StoreError<'_>> {
        let mut state = self.state();
        self.called(&mut state)?;
        if !state.reads.is_empty() && state.chance(self.faults.full) {
            return Ok(Begun::Full);
        }
        // A read of a unit that is not held must panic in this call and not in a later poll. So this statement reads
        // the bytes already here.
        drop(Self::bytes_of_read(&state, read, self.unit_bytes));
        if state.chance(self.faults.at_once) {
            self.hand_over(state, read, take);
            return Ok(Begun::Done);
        }
        state.reads.push(*read);
        Ok(Begun::Later)
    }

    unsafe fn write(&self, write: &Write, fill: &mut dyn FnMut(*mut u8)) -> Result<Saved, StoreError<'_>> {
        let mut state = self.state();
        self.called(&mut state)?;
        let mut bytes = vec![0; write.bytes as usize];
        match write.at {
            // SAFETY: `at` is the address of the page's bytes, as the caller of `write` promises.
            Some(at) => unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(at, bytes.len()) },
            None => fill(bytes.as_mut_ptr()),
        }
        let new = |unit: &u32| !state.held.contains_key(unit);
        let units = write.page.0..write.page.0 + write.bytes / self.unit_bytes as u32;
        if state.held.len() + units.clone().filter(new).count() > self.faults.units_max {
            state.has_failed = true;
            return Err(StoreError::Full(Telling(self, Words::NoRoom)));
        }
        if write.may_be_same {
            let held = |unit: u32| state.held.get(&unit).map(Vec::as_slice);
            if units.zip(bytes.chunks(self.unit_bytes)).all(|(unit, bytes)| held(unit) == Some(bytes)) {
                return Ok(Saved::Same);
            }
        }
        match (write.frame, write.at) {
            (Some(frame), Some(at)) if self.faults.writes_later => {
                state.queue.push(Queued::Write { page: write.page, frame, at: at as usize, bytes });
                Ok(Saved::Later)
            }
            _ => {
                self.hold(&mut state, write.page, &bytes);
                Ok(Saved::Done)
            }
        }
    }

    fn release(&self, unit: u32, count: u32) {
        let mut state = self.state();
        if self.faults.writes_later {
            state.queue.push(Queued::Release { unit, count });
        } else {
            (unit..unit + count).for_each(|unit| drop(state.held.remove(&unit)));
        }
    }

    fn room(&self, _ask: Ask) -> Room {
        let capacity_bytes = self.faults.units_max as u64 * self.unit_bytes as u64;
        Room { capacity_bytes, placed_bytes: None, known_ns: 0 }
    }

    fn poll(&self, turn: Turn, take: &mut dyn Take) -> Result<Polled, StoreError<'_>> {
        match turn {
            Turn::Receive(_) => self.receive(take),
            Turn::Upkeep | Turn::Unmap => Ok(Polled::Idle),
            Turn::GoOn => {
                self.state().rests = false;
                Ok(Polled::Idle)
            }
            Turn::Rest => {
                let is_busy = self.is_busy();
                self.state().rests = !is_busy;
                Ok(if is_busy { Polled::Busy } else { Polled::Idle })
            }
        }
    }

    fn tell(&self, what: Words, out: &mut dyn fmt::Write) -> fmt::Result {
        match what {
            Words::Stand => write!(out, "; {} reads under way", self.state().reads.len()),
            Words::NoRoom => out.write_str("the faulty store is full"),
            Words::News => Ok(()),
        }
    }
}

impl fmt::Debug for Faulty {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Faulty").field("faults", &self.faults).finish_non_exhaustive()
    }
}
