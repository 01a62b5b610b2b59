//! Fair service: a client with few requests does not wait for a client with many.
//!
//! Each connection has a thread, and the system shares the CPUs among threads. So a client with long ranges or many
//! connections would get more than its share. While several sessions are served, the server therefore moves long ranges
//! in pieces. A piece may move only while its session holds a turn, and there are only a few turns. A free turn goes to
//! the waiting session that was served least. After each piece, the thread lets other threads run. Short ranges need no
//! turn, and a session that is served alone needs no turn either.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Largest length in bytes of a range that needs no turn.
const SHORT_BYTES: usize = 64 << 10;
/// Largest length in bytes of a piece of a long range.
const PIECE_BYTES: usize = 128 << 10;
/// After two successive requests from different sessions, the server counts as serving several sessions for this time.
const SHARED_TIME: Duration = Duration::from_millis(100);

/// The turns that all sessions of a server share.
pub(crate) struct Turns {
    start: Instant,
    /// Number of the session that was served last. 0 before the first request.
    last: AtomicU64,
    /// Time when `last` last changed from one session to another, in microseconds since `start`. 0 means never.
    changed_us: AtomicU64,
    /// Maximum number of pieces of long ranges that may move at the same time while several sessions are served.
    turns_max: usize,
    queue: Mutex<Queue>,
    next: Condvar,
}

#[derive(Default)]
struct Queue {
    taken: usize,
    /// How much was served to each session in pieces, by session number. Contains the sessions that wait for a turn,
    /// hold a turn, or were served more than `floor` bytes.
    served: BTreeMap<u64, Share>,
    /// Byte count with which a new session begins: the highest count with which any session received a turn. With a
    /// lower count, a new session would receive all turns until its count reached the counts of the other sessions.
    floor: u64,
}

#[derive(Clone, Copy, Default)]
struct Share {
    bytes: u64,
    waiting: usize,
    holding: usize,
}

/// A turn for one piece. It ends when this value is dropped.
pub(crate) struct Turn<'a> {
    turns: &'a Turns,
    session: u64,
    /// Bytes of the piece that have not been moved.
    unused: u64,
}

impl Turns {
    pub(crate) fn new() -> Turns {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::with(cpus.div_ceil(2))
    }

    fn with(turns_max: usize) -> Turns {
        Turns {
            start: Instant::now(),
            last: AtomicU64::new(0),
            changed_us: AtomicU64::new(0),
            turns_max,
            queue: Mutex::default(),
            next: Condvar::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_us(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    /// Records that a request of this session is served now.
    pub(crate) fn note(&self, session: u64) {
        if self.last.load(Relaxed) != session && self.last.swap(session, Relaxed) != 0 {
            // The time is at least 1, because 0 means "never".
            self.changed_us.store(self.now_us().max(1), Relaxed);
        }
    }

    /// Checks whether more than one session is being served.
    fn serves_several(&self) -> bool {
        let changed_us = self.changed_us.load(Relaxed);
        changed_us != 0 && self.now_us().saturating_sub(changed_us) < SHARED_TIME.as_micros() as u64
    }

    /// Returns how many of `bytes` bytes may be moved now, and the turn for them if they need one. May wait until other
    /// sessions have moved their pieces. No thread waits for its client while it holds a turn, so the wait is short.
    pub(crate) fn take(&self, session: u64, bytes: usize) -> (usize, Option<Turn<'_>>) {
        if bytes <= SHORT_BYTES || !self.serves_several() {
            return (bytes, None);
        }
        let piece = bytes.min(PIECE_BYTES);
        let mut queue = self.queue();
        queue.come(session);
        while !queue.may_take(session, self.turns_max) {
            queue = self.next.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.hold(session, piece as u64);
        (piece, Some(Turn { turns: self, session, unused: piece as u64 }))
    }
}

impl Turn<'_> {
    /// Ends `turn`, if it is not `None`, after `moved` bytes of its piece. The rest of the piece does not count as
    /// served.
    pub(crate) fn end(turn: Option<Self>, moved: usize) {
        if let Some(mut turn) = turn {
            turn.unused = turn.unused.saturating_sub(moved as u64);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.queue().leave(self.session, self.unused);
        self.turns.next.notify_all();
        // Lets other threads run that are ready to run.
        std::thread::yield_now();
    }
}

impl Queue {
    fn come(&mut self, session: u64) {
        let floor = self.floor;
        let share = self.served.entry(session).or_default();
        share.bytes = share.bytes.max(floor);
        share.waiting += 1;
    }

    /// Checks whether a turn is free and no waiting session was served less than `session`.
    fn may_take(&self, session: u64, turns_max: usize) -> bool {
        let of = |share: &Share| share.bytes;
        let mine = self.served.get(&session).map_or(0, of);
        let least =
            self.served.iter().filter(|(_, share)| share.waiting > 0).map(|(id, share)| (share.bytes, *id)).min();
        self.taken < turns_max && least.is_none_or(|least| (mine, session) <= least)
    }

    fn hold(&mut self, session: u64, bytes: u64) {
        self.taken += 1;
        if let Some(share) = self.served.get_mut(&session) {
            share.waiting -= 1;
            share.holding += 1;
            self.floor = self.floor.max(share.bytes);
            share.bytes += bytes;
        }
    }

    fn leave(&mut self, session: u64, unused: u64) {
        self.taken -= 1;
        if let Some(share) = self.served.get_mut(&session) {
            share.holding -= 1;
            share.bytes = share.bytes.saturating_sub(unused);
        }
        // A session that was served no more than `floor` would start from `floor` again, so its entry is not needed.
        let floor = self.floor;
        self.served.retain(|_, share| share.waiting + share.holding > 0 || share.bytes > floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIECE: u64 = PIECE_BYTES as u64;

    fn company(turns: &Turns) {
        turns.note(1);
        turns.note(2);
    }

    #[test]
    fn who_is_alone_or_asks_for_little_needs_no_turn() {
        let turns = Turns::with(1);
        for _ in 0..3 {
            turns.note(7);
            let (bytes, turn) = turns.take(7, 4 << 20);
            assert!(bytes == 4 << 20 && turn.is_none());
        }
        company(&turns);
        let (bytes, turn) = turns.take(1, 4 << 20);
        assert!(bytes == PIECE_BYTES && turn.is_some());
        let (bytes, short) = turns.take(2, SHORT_BYTES);
        assert!(bytes == SHORT_BYTES && short.is_none(), "a short range waits for nobody");
    }

    #[test]
    fn the_least_served_session_is_next() {
        let mut queue = Queue::default();
        for session in [1, 1, 1, 2] {
            queue.come(session);
        }
        let mut order = Vec::new();
        for _ in 0..4 {
            let next = [1, 2].into_iter().find(|session| {
                queue.served.get(session).is_some_and(|share| share.waiting > 0) && queue.may_take(*session, 1)
            });
            let next = next.expect("somebody is next");
            queue.hold(next, PIECE);
            assert!(!queue.may_take(1, 1) && !queue.may_take(2, 1), "there is one turn");
            queue.leave(next, 0);
            order.push(next);
        }
        assert_eq!(order, [1, 2, 1, 1], "three connections get one session no more than its part");
    }

    #[test]
    fn who_comes_late_gets_no_more_than_its_part() {
        let mut queue = Queue::default();
        for _ in 0..100 {
            queue.come(1);
            queue.hold(1, PIECE);
            queue.leave(1, 0);
        }
        let mut served = [0, 0];
        queue.come(1);
        queue.come(2);
        for _ in 0..10 {
            let next = if queue.may_take(1, 1) { 1 } else { 2 };
            queue.hold(next, PIECE);
            queue.leave(next, 0);
            queue.come(next);
            served[next as usize - 1] += 1;
        }
        assert_eq!(served, [5, 5]);
    }

    #[test]
    fn threads_take_turns_and_none_waits_for_ever() {
        let turns = Turns::with(1);
        std::thread::scope(|scope| {
            for session in 1..=4 {
                let turns = &turns;
                scope.spawn(move || {
                    for _ in 0..200 {
                        turns.note(session);
                        let (bytes, turn) = turns.take(session, 1 << 20);
                        Turn::end(turn, bytes / 2);
                    }
                });
            }
        });
        let queue = turns.queue();
        assert!(queue.taken == 0 && queue.served.values().all(|share| share.waiting + share.holding == 0));
    }
}
