//! Frames between ranks of one host, through the memory they share: no system call while both look.
//!
//! Behind the region in each rank's memfd lies its *post*: a word that says whether the rank looks, and a ring of bytes for
//! each rank that may write to it. A writer that finds the rank asleep rings, with one byte on the socket between the two;
//! where the rank computes, only when what it wrote cannot wait until it comes to look by itself ([`Urgency`]). So does a reader when it has made room that the writer waits for. The socket also tells when a rank is gone.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::coherence::{Rank, Urgency};
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::sized;

/// Bytes in front of the rings; the first word says whether the rank sleeps.
const HEAD_BYTES: usize = 4096;
/// Bytes a ring holds.
const RING_BYTES: usize = sized(32 << 10, 2);
/// Words of a ring, each in a cache line of its own: bytes taken, bytes put, and whether the writer waits for room.
const TAKEN: usize = 0;
const PUT: usize = 64;
const WANTS_ROOM: usize = 128;
/// Where the bytes begin.
const BYTES: usize = 4096;
pub(super) const STRIDE: usize = BYTES + RING_BYTES;

/// What the first word says of a rank that looks.
const LOOKS: u32 = 0;

/// Why a rank does not look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Rest {
    /// It waits for others.
    Sleeps = 1,
    /// It does not, and looks before it ever does.
    Computes = 2,
}

/// What lies in a ring makes no sense.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Torn;

/// The post of one rank.
pub(super) struct Post {
    words: Words,
    ranks: u16,
}

impl Post {
    /// Bytes of the post of a rank among so many.
    pub(super) fn len_for(ranks: u16) -> u64 {
        (HEAD_BYTES + usize::from(ranks) * STRIDE) as u64
    }

    /// The post behind a region of so many bytes.
    pub(super) fn map(memory: impl AsFd, region_bytes: u64, ranks: u16) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, region_bytes, Self::len_for(ranks) as usize)?, ranks))
    }

    /// The post in this memory.
    pub(super) fn over(words: Words, ranks: u16) -> Self {
        Self { words, ranks }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.words.word(offset)
    }

    fn ring(&self, from: Rank) -> usize {
        assert!(from.0 < self.ranks, "a ring for each rank");
        HEAD_BYTES + usize::from(from.0) * STRIDE
    }

    /// Its rank is about to rest: whoever writes from now on rings. It has to look into every ring once more.
    pub(super) fn lie_down(&self, rest: Rest) {
        self.word(0).store(rest as u32, Ordering::SeqCst);
    }

    /// Its rank looks.
    pub(super) fn get_up(&self) {
        self.word(0).store(LOOKS, Ordering::Relaxed);
    }

    /// For a writer, after it wrote: whether it has to ring.
    pub(super) fn is_to_be_rung(&self, urgency: Urgency) -> bool {
        if urgency == Urgency::AtNextLook {
            return false;
        }
        // Only read, as a rule: the word lies in the caches of all who write.
        fence(Ordering::SeqCst);
        let bell = self.word(0);
        let mut now = bell.load(Ordering::Relaxed);
        while now != LOOKS && !(urgency == Urgency::AtNextCall && now == Rest::Computes as u32) {
            match bell.compare_exchange_weak(now, LOOKS, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Whether a rank has written what is not yet taken.
    pub(super) fn has(&self, from: Rank) -> bool {
        let ring = self.ring(from);
        self.word(ring + PUT).load(Ordering::SeqCst) != self.word(ring + TAKEN).load(Ordering::Relaxed)
    }

    /// Writes as much as there is room for; returns how much.
    pub(super) fn put(&self, from: Rank, bytes: &[u8]) -> usize {
        let ring = self.ring(from);
        let put = self.word(ring + PUT).load(Ordering::Relaxed);
        let mut room = self.room(ring, put);
        if room == 0 {
            self.word(ring + WANTS_ROOM).store(1, Ordering::SeqCst);
            // The reader may have made some before it could see that.
            room = self.room(ring, put);
        }
        let count = room.min(bytes.len());
        let at = put as usize % RING_BYTES;
        let first = count.min(RING_BYTES - at);
        // Both pieces lie in the ring, and the reader accesses nothing beyond `PUT`.
        self.words.write(ring + BYTES + at, &bytes[..first]);
        self.words.write(ring + BYTES, &bytes[first..count]);
        self.word(ring + PUT).store(put.wrapping_add(count as u32), Ordering::SeqCst);
        count
    }

    /// Whether so many bytes can be written at once.
    pub(super) fn has_room(&self, from: Rank, bytes: usize) -> bool {
        let ring = self.ring(from);
        self.room(ring, self.word(ring + PUT).load(Ordering::Relaxed)) >= bytes
    }

    fn room(&self, ring: usize, put: u32) -> usize {
        let used = put.wrapping_sub(self.word(ring + TAKEN).load(Ordering::SeqCst)) as usize;
        // A reader that took what was never put has lost its mind: it gets nothing more.
        RING_BYTES.saturating_sub(used)
    }

    /// Appends what a rank has written to `into`; says whether the writer waits for the room that is there now.
    pub(super) fn take(&self, from: Rank, into: &mut Vec<u8>) -> Result<bool, Torn> {
        let ring = self.ring(from);
        let taken = self.word(ring + TAKEN).load(Ordering::Relaxed);
        let put = self.word(ring + PUT).load(Ordering::SeqCst);
        let count = put.wrapping_sub(taken) as usize;
        if count > RING_BYTES {
            return Err(Torn);
        }
        if count == 0 {
            return Ok(false);
        }
        let at = taken as usize % RING_BYTES;
        let first = count.min(RING_BYTES - at);
        into.reserve(count);
        // Both pieces lie in the ring, and the writer changes nothing up to `PUT`.
        self.words.append_to(into, ring + BYTES + at, first);
        self.words.append_to(into, ring + BYTES, count - first);
        self.word(ring + TAKEN).store(put, Ordering::SeqCst);
        let wanted = self.word(ring + WANTS_ROOM);
        Ok(wanted.load(Ordering::SeqCst) != 0 && wanted.swap(0, Ordering::SeqCst) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Post, Post) {
        let memory = hanare_sys::map::memfd("post", 4096 + Post::len_for(2)).expect("memory");
        (Post::map(&memory, 4096, 2).expect("mapped"), Post::map(&memory, 4096, 2).expect("mapped"))
    }

    #[test]
    fn bytes_come_out_in_order_however_they_went_in() {
        let (writer, reader) = pair();
        let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 / 3) as u8).collect();
        let mut out = Vec::new();
        let thread = std::thread::spawn({
            let bytes = bytes.clone();
            move || {
                let (mut sent, mut step) = (0, 1);
                while sent < bytes.len() {
                    step = step * 5 % 7919;
                    let end = (sent + step).min(bytes.len());
                    sent += writer.put(Rank(1), &bytes[sent..end]);
                    std::thread::yield_now();
                }
            }
        });
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while out.len() < bytes.len() && std::time::Instant::now() < deadline {
            reader.take(Rank(1), &mut out).expect("whole");
        }
        thread.join().expect("it wrote all");
        assert!(out == bytes && !reader.has(Rank(1)) && !reader.has(Rank(0)));
    }

    #[test]
    fn a_writer_without_room_and_a_sleeping_reader_are_told_of() {
        let (writer, reader) = pair();
        let mut out = Vec::new();
        assert_eq!(writer.put(Rank(1), &[7; RING_BYTES]), RING_BYTES);
        assert_eq!(reader.take(Rank(1), &mut out), Ok(false), "nobody waits yet");
        assert_eq!(writer.put(Rank(1), &[8; RING_BYTES + 5]), RING_BYTES);
        assert_eq!(writer.put(Rank(1), &[9; 5]), 0);
        assert_eq!(reader.take(Rank(1), &mut out), Ok(true));
        assert_eq!(out.len(), 2 * RING_BYTES);
        assert!(!writer.is_to_be_rung(Urgency::Now));
        for rest in [Rest::Sleeps, Rest::Computes] {
            reader.lie_down(rest);
            assert!(!writer.is_to_be_rung(Urgency::AtNextLook), "what is only to be found wakes nobody");
            assert!(writer.is_to_be_rung(Urgency::Now) && !writer.is_to_be_rung(Urgency::Now), "once is enough");
            reader.lie_down(rest);
            assert_eq!(
                writer.is_to_be_rung(Urgency::AtNextCall),
                rest == Rest::Sleeps,
                "what can wait disturbs nobody that computes"
            );
            assert_eq!(writer.is_to_be_rung(Urgency::Now), rest == Rest::Computes, "what cannot does");
            reader.lie_down(rest);
            reader.get_up();
            assert!(!writer.is_to_be_rung(Urgency::Now));
        }
    }

    #[test]
    fn a_ring_that_lies_is_refused() {
        let (writer, reader) = pair();
        let ring = writer.ring(Rank(0));
        writer.word(ring + PUT).store(RING_BYTES as u32 + 1, Ordering::SeqCst);
        assert_eq!(reader.take(Rank(0), &mut Vec::new()), Err(Torn));
        writer.word(ring + TAKEN).store(u32::MAX / 2, Ordering::SeqCst);
        assert_eq!(writer.put(Rank(0), &[1]), 0);
    }
}
