//! Models of the message rings in `crates/dsm/src/live/post.rs`.

use std::rc::Rc;

use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::post::{Post, Rest, STRIDE};
use super::words::{Memory, Words};
use crate::coherence::Rank;
use crate::coherence::Urgency::{self, AtNextCall, AtNextLook, Now};

crate::table! {
    a_sleeping_rank_is_notified,
    a_computing_rank_is_notified_of_what_cannot_wait,
    two_writers_notify_one_rank,
    a_writer_without_room_goes_on,
    a_full_ring_hides_no_message,
}

/// The number of bytes that ranks have sent on a socket to notify another rank.
struct Notice {
    count: Mutex<u32>,
    change: Condvar,
}

impl Notice {
    fn new() -> Rc<Self> {
        Rc::new(Self { count: Mutex::new(0), change: Condvar::new() })
    }

    fn send(&self) {
        *self.count.lock().expect("no panic") += 1;
        self.change.notify_one();
    }

    fn wait(&self) {
        let mut count = self.count.lock().expect("no panic");
        while *count == 0 {
            count = self.change.wait(count).expect("no panic");
        }
        *count = 0;
    }
}

/// Makes memory with a message ring for each of two ranks.
fn memory() -> Rc<Memory> {
    let ring = |rank: usize| 4096 + rank * STRIDE;
    let words: Vec<usize> =
        [0].into_iter().chain((0..2).flat_map(|rank| [0, 64, 128].map(|at| ring(rank) + at))).collect();
    let plain: Vec<usize> = (0..2).flat_map(|rank| [0, 1].map(|at| ring(rank) + 4096 + at)).collect();
    Memory::new(&words, &[], &plain)
}

fn post(memory: &Rc<Memory>) -> Post {
    Post::over(Words(Rc::clone(memory)), 2)
}

/// Reads `count` bytes that the first `writers` ranks write. When the rings are empty, waits for a notification, as
/// `Engine::pump` does.
fn read(reader: &Post, writers: u16, count: usize, rest: Rest, notice: &Notice, room: &Notice) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        for writer in (0..writers).map(Rank) {
            if reader.take(writer, &mut out).expect("a ring that does not lie") {
                room.send();
            }
        }
        if out.len() == count {
            return out;
        }
        reader.lie_down(rest);
        // Checks the rings once more, because a rank may have written before it could see that this rank rests.
        if !(0..writers).any(|writer| reader.has(Rank(writer))) {
            notice.wait();
        }
        reader.get_up();
    }
}

/// Writes all of `bytes` as `Link::flush_by_post` does. Waits for room when the ring is full.
fn write(writer: &Post, rank: Rank, mut bytes: &[u8], urgency: Urgency, notice: &Notice, room: &Notice) {
    loop {
        let mut has_put = false;
        while !bytes.is_empty() {
            let count = writer.put(rank, bytes);
            bytes = &bytes[count..];
            has_put |= count > 0;
            if count == 0 {
                break;
            }
        }
        let is_full = !bytes.is_empty();
        let urgency = if is_full { Now } else { urgency };
        if (has_put || is_full) && writer.is_to_be_rung(urgency) {
            notice.send();
        }
        if !is_full {
            return;
        }
        room.wait();
    }
}

/// The messages of one rank in order, each with its urgency.
type Messages = &'static [(&'static [u8], Urgency)];

/// Runs one writing thread for each element of `ranks`, and a reader that reads all their messages. `rest` is what the
/// reader does while its rings are empty.
fn run(rest: Rest, ranks: &[Messages]) {
    let (memory, notice, room) = (memory(), Notice::new(), Notice::new());
    let writer = |(rank, messages): (u16, Messages)| {
        let (writer, notice, room) = (post(&memory), Rc::clone(&notice), Rc::clone(&room));
        thread::spawn(move || {
            for (bytes, urgency) in messages {
                write(&writer, Rank(rank), bytes, *urgency, &notice, &room);
            }
        })
    };
    let writers: Vec<_> = (0..).zip(ranks.iter().copied()).map(writer).collect();
    let all: Vec<u8> = ranks.iter().copied().flatten().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
    let mut read = read(&post(&memory), ranks.len() as u16, all.len(), rest, &notice, &room);
    if ranks.len() > 1 {
        read.sort_unstable();
    }
    assert_eq!(read, all);
    writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
}

/// A sleeping rank is notified of every message whose urgency is not `AtNextLook`.
fn a_sleeping_rank_is_notified() {
    run(Rest::Sleeps, &[&[(&[1], AtNextCall), (&[2], AtNextCall)]]);
}

/// A computing rank is notified of every message whose urgency is `Now`.
fn a_computing_rank_is_notified_of_what_cannot_wait() {
    run(Rest::Computes, &[&[(&[1], Now), (&[2], Now)]]);
}

/// One notification is enough for the messages of two writers: the reader finds the messages of both.
fn two_writers_notify_one_rank() {
    run(Rest::Sleeps, &[&[(&[1], Now)], &[(&[2], Now)]]);
}

/// All bytes of a message arrive in order through a ring that is too small for them. A writer that finds no room
/// continues later.
fn a_writer_without_room_goes_on() {
    run(Rest::Sleeps, &[&[(&[1, 2, 3], Now)]]);
}

/// A computing rank is notified of an urgent message even if the ring is full of messages that notify nobody.
fn a_full_ring_hides_no_message() {
    run(Rest::Computes, &[&[(&[1, 2], AtNextLook), (&[3], Now)]]);
}
