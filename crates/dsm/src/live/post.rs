//! The message rings by which ranks of one host exchange frames in shared memory. No system call is needed while both
//! ranks check their rings.
//!
//! A rank's message rings lie in its memfd behind the region. A word in front of the rings says whether the rank checks
//! them. There is a separate ring for each rank that may write to this rank. If the reader does not check its rings,
//! the writer notifies it with one byte on their socket. A reader that computes is notified only of urgent messages
//! ([`Urgency`]). A reader that has made room notifies a writer that waits for room. The socket also reports the end of
//! a rank.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::coherence::{Rank, Urgency};
use crate::sync::atomic::{AtomicU32, Ordering, fence};
use crate::sync::sized;

/// Number of bytes in front of the rings. The first word is `LOOKS`, or a value of [`Rest`].
const HEAD_BYTES: usize = 4096;
/// Maximum number of bytes that a ring holds.
const RING_BYTES: usize = sized(32 << 10, 2);
/// Offsets of three words in a ring: the count of bytes taken, the count of bytes put, and whether the writer waits for
/// room. Each word has its own cache line.
const TAKEN: usize = 0;
const PUT: usize = 64;
const WANTS_ROOM: usize = 128;
/// Offset of the data bytes from the start of a ring.
const BYTES: usize = 4096;
pub(super) const STRIDE: usize = BYTES + RING_BYTES;

/// Value of the first word while the rank checks its rings.
const LOOKS: u32 = 0;

/// The reason why a rank does not check its rings. The value is stored in the first word in front of the rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Rest {
    /// The rank sleeps until another rank notifies it.
    Sleeps = 1,
    /// The rank runs its program. It checks its rings before it next sleeps.
    Computes = 2,
}

/// The counts of a ring are invalid: they claim more bytes than the ring holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Torn;

/// The message rings of one rank.
pub(super) struct Post {
    words: Words,
    ranks: u16,
}

impl Post {
    /// Returns the size in bytes of one rank's message rings, if there are `ranks` ranks.
    pub(super) fn len_for(ranks: u16) -> u64 {
        (HEAD_BYTES + usize::from(ranks) * STRIDE) as u64
    }

    /// Maps the message rings behind a region of `region_bytes` bytes.
    pub(super) fn map(memory: impl AsFd, region_bytes: u64, ranks: u16) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, region_bytes, Self::len_for(ranks) as usize)?, ranks))
    }

    /// Uses `words` as the message rings of a rank.
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

    /// Notes that this rank stops checking its rings, so that writers notify this rank. The caller must then check
    /// every ring once more.
    pub(super) fn lie_down(&self, rest: Rest) {
        self.word(0).store(rest as u32, Ordering::SeqCst);
    }

    /// Notes that this rank checks its rings.
    pub(super) fn get_up(&self) {
        self.word(0).store(LOOKS, Ordering::Relaxed);
    }

    /// Called after a write to a ring. Returns whether the writer must notify the reader. If so, marks the reader as
    /// checking its rings, so that no other writer notifies the reader too.
    pub(super) fn is_to_be_rung(&self, urgency: Urgency) -> bool {
        if urgency == Urgency::AtNextLook {
            return false;
        }
        // Usually the word is only read, so that it stays in the caches of all writers.
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

    /// Returns whether `from` has written bytes that are not yet taken.
    pub(super) fn has(&self, from: Rank) -> bool {
        let ring = self.ring(from);
        self.word(ring + PUT).load(Ordering::SeqCst) != self.word(ring + TAKEN).load(Ordering::Relaxed)
    }

    /// Writes as many of the bytes as fit. Returns the number of bytes written.
    pub(super) fn put(&self, from: Rank, bytes: &[u8]) -> usize {
        let ring = self.ring(from);
        let put = self.word(ring + PUT).load(Ordering::Relaxed);
        let mut room = self.room(ring, put);
        if room == 0 {
            self.word(ring + WANTS_ROOM).store(1, Ordering::SeqCst);
            // The reader may have made room before it could see `WANTS_ROOM`.
            room = self.room(ring, put);
        }
        let count = room.min(bytes.len());
        let at = put as usize % RING_BYTES;
        let first = count.min(RING_BYTES - at);
        // The bytes are written in two pieces if they wrap around the ring's end. The reader accesses no bytes beyond
        // the count `PUT`.
        self.words.write(ring + BYTES + at, &bytes[..first]);
        self.words.write(ring + BYTES, &bytes[first..count]);
        self.word(ring + PUT).store(put.wrapping_add(count as u32), Ordering::SeqCst);
        count
    }

    /// Returns whether `bytes` bytes fit into the ring now.
    pub(super) fn has_room(&self, from: Rank, bytes: usize) -> bool {
        let ring = self.ring(from);
        self.room(ring, self.word(ring + PUT).load(Ordering::Relaxed)) >= bytes
    }

    fn room(&self, ring: usize, put: u32) -> usize {
        let used = put.wrapping_sub(self.word(ring + TAKEN).load(Ordering::SeqCst)) as usize;
        // A reader that claims to have taken more bytes than were put is broken. It receives no more bytes.
        RING_BYTES.saturating_sub(used)
    }

    /// Appends to `into` the bytes that `from` has written. Returns whether the writer waits for room, which this call
    /// has made.
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
        // The bytes are read in two pieces if they wrap around the ring's end. The writer changes no bytes before the
        // count `PUT`.
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
