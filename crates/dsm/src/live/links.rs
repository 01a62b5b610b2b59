//! The connections to other ranks. They send and receive whole frames, and never block.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::SendFlags;

use super::line::Line;
use super::post::Post;
use crate::coherence::{Rank, Urgency};
use hanare_wire::Opener;
use hanare_wire::frame::{FLAG_PAYLOAD_CRC, HEADER_BYTES, Header, Kind};
use hanare_wire::noise::Ends;

/// Number of bytes read from a connection at a time.
const READ_BYTES: usize = 64 << 10;

/// Why a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LinkError {
    /// The peer closed the connection, or died.
    Closed,
    /// The peer sent bytes that are not a frame.
    Garbage,
}

/// Received bytes. The frames in `bytes[taken..]` are not yet taken.
#[derive(Default)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    taken: usize,
}

/// Message rings by which frames travel between two ranks of one host. Their socket then carries only bytes that wake
/// the peer.
pub(super) struct Posts {
    /// This rank's message rings. The peer writes to the ring with the number `peer`.
    pub(super) own: Arc<Post>,
    pub(super) peer: Rank,
    /// The peer's message rings. This rank writes to the ring with the number `me`.
    pub(super) theirs: Post,
    pub(super) me: Rank,
}

/// One end of a connection to a rank.
pub(super) struct Link {
    stream: OwnedFd,
    /// The ends of the records, if the job has a key.
    ends: Option<Box<Ends>>,
    posts: Option<Posts>,
    inbox: Inbox,
    /// Frames to be sent. The first `sent` bytes of the first frame are sent already.
    outbox: VecDeque<Vec<u8>>,
    sent: usize,
    sequence: u64,
}

impl Link {
    /// Makes a link over a connection. Message rings are for lines that are not encrypted.
    pub(super) fn new(line: Line, posts: Option<Posts>) -> Result<Self, Errno> {
        let Line { stream, ends } = line;
        rustix::io::ioctl_fionbio(&stream, true)?;
        Ok(Self { stream, ends, posts, inbox: Inbox::default(), outbox: VecDeque::new(), sent: 0, sequence: 0 })
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Returns the number of the next frame.
    pub(super) fn next_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    /// Sends a frame now, or as soon as there is room. Returns the frame's buffer if the frame was sent immediately.
    /// `urgency` decides whether the peer is notified.
    pub(super) fn send(&mut self, frame: Vec<u8>, urgency: Urgency) -> Result<Option<Vec<u8>>, LinkError> {
        self.outbox.push_back(frame);
        if self.posts.is_some() { self.flush_by_post(urgency) } else { self.flush() }
    }

    /// Returns whether a frame is in the message ring. No event reports such frames.
    pub(super) fn has_post(&self) -> bool {
        self.posts.as_ref().is_some_and(|posts| posts.own.has(posts.peer))
    }

    /// Returns whether a frame of `bytes` bytes reaches the peer immediately if it is sent now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.outbox.is_empty() && self.posts.as_ref().is_some_and(|posts| posts.theirs.has_room(posts.me, bytes))
    }

    /// Returns whether the socket reports room for the queued frames. With message rings, the peer notifies this rank
    /// of room instead.
    pub(super) fn is_told_of_room(&self) -> bool {
        self.posts.is_none()
    }

    /// Returns whether frames are queued.
    pub(super) fn is_behind(&self) -> bool {
        !self.outbox.is_empty() || self.ends.as_ref().is_some_and(|ends| !ends.sealer.waiting().is_empty())
    }

    /// Notifies the peer with one byte, whose value has no meaning.
    fn ring(stream: &OwnedFd) -> Result<(), LinkError> {
        loop {
            return match rustix::net::send(stream, &[0], SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => continue,
                // The socket is already full of notification bytes.
                Ok(_) | Err(Errno::AGAIN) => Ok(()),
                // If there is no memory for a byte, the peer is not woken now. It checks its rings after its timeout.
                Err(Errno::NOBUFS | Errno::NOMEM) => Ok(()),
                Err(_) => Err(LinkError::Closed),
            };
        }
    }

    fn flush_by_post(&mut self, urgency: Urgency) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(posts) = &self.posts else { return Ok(None) };
        let mut emptied = None;
        let mut has_put = false;
        while let Some(frame) = self.outbox.front() {
            let count = posts.theirs.put(posts.me, &frame[self.sent..]);
            has_put |= count > 0;
            self.sent += count;
            if self.sent < frame.len() {
                if count > 0 {
                    continue;
                }
                break;
            }
            self.sent = 0;
            emptied = self.outbox.pop_front();
        }
        // If the ring is full, the peer is notified even of frames that are not urgent. Otherwise the peer might never
        // empty a ring that holds only such frames.
        let is_full = !self.outbox.is_empty();
        let urgency = if is_full { Urgency::Now } else { urgency };
        if (has_put || is_full) && posts.theirs.is_to_be_rung(urgency) {
            Self::ring(&self.stream)?;
        }
        Ok(emptied)
    }

    /// Sends queued frames while there is room. Returns the last buffer that was emptied.
    pub(super) fn flush(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        if self.posts.is_some() {
            return self.flush_by_post(Urgency::Now);
        }
        if self.ends.is_some() {
            return self.flush_sealed();
        }
        let mut emptied = None;
        while let Some(frame) = self.outbox.front() {
            match rustix::net::send(&self.stream, &frame[self.sent..], SendFlags::NOSIGNAL) {
                Ok(count) if self.sent + count == frame.len() => {
                    self.sent = 0;
                    emptied = self.outbox.pop_front();
                }
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                // The rest is sent later, when there is room or memory.
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => break,
                Err(_) => return Err(LinkError::Closed),
            }
        }
        Ok(emptied)
    }

    /// Encrypts and sends queued frames while there is room. Returns the last buffer that was emptied.
    fn flush_sealed(&mut self) -> Result<Option<Vec<u8>>, LinkError> {
        let Some(Ends { sealer, .. }) = self.ends.as_deref_mut() else { return Ok(None) };
        let mut emptied = None;
        loop {
            while !sealer.waiting().is_empty() {
                match rustix::net::send(&self.stream, sealer.waiting(), SendFlags::NOSIGNAL) {
                    Ok(count) => sealer.sent(count),
                    Err(Errno::INTR) => {}
                    // The rest is sent later, when there is room or memory.
                    Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => return Ok(emptied),
                    Err(_) => return Err(LinkError::Closed),
                }
            }
            let Some(frame) = self.outbox.front() else { return Ok(emptied) };
            self.sent += sealer.seal(&[IoSlice::new(&frame[self.sent..])]).map_err(|_| LinkError::Closed)?;
            if self.sent == frame.len() {
                self.sent = 0;
                emptied = self.outbox.pop_front();
            }
        }
    }

    /// Reads the bytes that have arrived into the inbox. `told` says that the socket is readable. After an error, the
    /// whole frames that arrived before are still in the inbox.
    pub(super) fn fill(&mut self, told: bool) -> Result<(), LinkError> {
        let Inbox { bytes, taken } = &mut self.inbox;
        bytes.drain(..*taken);
        *taken = 0;
        if let Some(posts) = &self.posts {
            // The socket is read before the ring. If the socket reports the peer's end, the ring already holds all that
            // the peer wrote.
            let end = if told { Self::hear_rings(&self.stream) } else { Ok(()) };
            let wants_room = posts.own.take(posts.peer, bytes).map_err(|_| LinkError::Garbage)?;
            if wants_room && end.is_ok() {
                // Ignored: if the peer has ended, the next read of the socket reports that.
                let _ = Self::ring(&self.stream);
            }
            return end;
        }
        if let Some(Ends { opener, .. }) = self.ends.as_deref_mut() {
            return fill_opened(&self.stream, opener, bytes);
        }
        loop {
            bytes.reserve(READ_BYTES);
            let outcome = rustix::io::read(&self.stream, rustix::buffer::spare_capacity(bytes));
            match outcome {
                Ok(0) => return Err(LinkError::Closed),
                // The read returned less than requested, so no more has arrived yet.
                Ok(count) if count < READ_BYTES => return Ok(()),
                Ok(_) => {}
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(_) => return Err(LinkError::Closed),
            }
        }
    }

    /// Reads and drops the bytes that notified this rank.
    fn hear_rings(stream: &OwnedFd) -> Result<(), LinkError> {
        let mut bytes = [0; 512];
        loop {
            match rustix::io::read(stream, &mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) if count == bytes.len() => {}
                Ok(_) | Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(LinkError::Closed),
            }
        }
    }

    /// Takes the inbox out of the link, so that its frames can be processed while other frames are sent.
    /// [`Self::put_inbox`] puts it back.
    pub(super) fn take_inbox(&mut self) -> Inbox {
        std::mem::take(&mut self.inbox)
    }

    /// Puts the inbox back.
    pub(super) fn put_inbox(&mut self, inbox: Inbox) {
        self.inbox = inbox;
    }
}

/// Reads the records that have arrived, and appends what is in them to `bytes`.
fn fill_opened(stream: &OwnedFd, opener: &mut Opener, bytes: &mut Vec<u8>) -> Result<(), LinkError> {
    loop {
        while let Some(length) = opener.next_length().map_err(|_| LinkError::Garbage)? {
            bytes.extend_from_slice(opener.open(length).map_err(|_| LinkError::Garbage)?);
        }
        let space = opener.space();
        let room = space.len();
        match rustix::io::read(stream, space) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(count) => {
                opener.filled(count);
                if count < room && opener.missing() > 0 {
                    return Ok(());
                }
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(_) => return Err(LinkError::Closed),
        }
    }
}

impl Inbox {
    /// Takes the next whole frame: its header and its payload. `None` if no whole frame has arrived.
    pub(super) fn frame(&mut self) -> Result<Option<(Header, &[u8])>, LinkError> {
        let Some(head) = self.bytes[self.taken..].first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let header = Header::decode(head).map_err(|_| LinkError::Garbage)?;
        if header.kind != Kind::BetweenRanks {
            return Err(LinkError::Garbage);
        }
        let first = self.taken + HEADER_BYTES;
        let range = first..first + header.payload_bytes();
        let Some(payload) = self.bytes.get(range.clone()) else { return Ok(None) };
        if header.flags & FLAG_PAYLOAD_CRC != 0 && crc32fast::hash(payload) != header.payload_crc {
            return Err(LinkError::Garbage);
        }
        self.taken = range.end;
        Ok(Some((header, payload)))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::post::Rest;
    use super::*;

    /// Makes two links that encrypt.
    fn sealed_pair() -> [Link; 2] {
        let key = hanare_wire::Key::new(b"0123456789abcdef").expect("a key");
        let (waiting, message) = hanare_wire::noise::begin(&key).expect("begun");
        let (theirs, message) = hanare_wire::noise::answer(&key, &message).expect("the same key");
        let ours = waiting.finish(&message).expect("the same key");
        let (near, far) = UnixStream::pair().expect("a pair");
        [(near, ours), (far, theirs)].map(|(stream, ends)| {
            let line = Line { stream: stream.into(), ends: Some(Box::new(ends)) };
            Link::new(line, None).expect("a link")
        })
    }

    #[test]
    fn encrypted_frames_arrive_whole_and_in_order_even_if_the_socket_is_full() {
        let [mut near, mut far] = sealed_pair();
        let sizes = [0, 10, 300_000, 5, 16_384, 700_000];
        for (tag, size) in sizes.iter().enumerate() {
            near.send(frame(tag as u64, &vec![tag as u8; *size]), Urgency::Now).expect("open");
        }
        assert!(near.is_behind(), "more than a socket holds");
        let mut came = Vec::new();
        for _ in 0..10_000 {
            far.fill(true).expect("open");
            let mut inbox = far.take_inbox();
            while let Some((header, payload)) = inbox.frame().expect("a frame") {
                assert!(payload.iter().all(|byte| u64::from(*byte) == header.tag));
                came.push((header.tag as usize, payload.len()));
            }
            far.put_inbox(inbox);
            if came.len() == sizes.len() {
                break;
            }
            near.flush().expect("open");
        }
        assert_eq!(came, sizes.into_iter().enumerate().collect::<Vec<_>>());
        assert!(!near.is_behind());
        drop(near);
        assert_eq!(far.fill(true), Err(LinkError::Closed));
    }

    #[test]
    fn a_changed_record_is_garbage() {
        let [mut near, _far] = sealed_pair();
        let (mut raw, other) = UnixStream::pair().expect("a pair");
        let Some(ends) = near.ends.take() else { panic!("an encrypted link") };
        let mut near = Link::new(Line { stream: other.into(), ends: Some(ends) }, None).expect("a link");
        raw.write_all(&[5, 0, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).expect("room");
        assert_eq!(near.fill(true), Err(LinkError::Garbage));
    }

    fn frame(tag: u64, payload: &[u8]) -> Vec<u8> {
        let mut header = Header::bare(Kind::BetweenRanks, tag);
        header.length = payload.len() as u32;
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn frames_come_out_whole_however_they_come_in() {
        let (mut far, near) = UnixStream::pair().expect("a pair");
        let mut link = Link::new(Line::plain(near.into()), None).expect("a link");
        let mut bytes = frame(1, &[]);
        bytes.extend(frame(2, &[7; 100_000]));
        bytes.extend(frame(3, b"end"));
        let mut tags = Vec::new();
        for piece in bytes.chunks(33_333) {
            far.write_all(piece).expect("room");
            link.fill(true).expect("open");
            let mut inbox = link.take_inbox();
            while let Some((header, payload)) = inbox.frame().expect("frames") {
                assert_eq!(payload.len(), header.length as usize);
                tags.push(header.tag);
            }
            link.put_inbox(inbox);
        }
        assert_eq!(tags, [1, 2, 3]);
    }

    #[test]
    fn a_message_is_announced_behind_a_ring_full_of_others() {
        let memory = hanare_sys::map::memfd("post", 4096 + Post::len_for(2)).expect("memory");
        let post = || Post::map(&memory, 4096, 2).expect("mapped");
        let (mut far, near) = UnixStream::pair().expect("a pair");
        far.set_nonblocking(true).expect("a mode");
        let posts = Posts { own: Arc::new(post()), peer: Rank(0), theirs: post(), me: Rank(1) };
        let mut link = Link::new(Line::plain(near.into()), Some(posts)).expect("a link");
        post().lie_down(Rest::Computes);
        let whole_ring = frame(1, &[0; (32 << 10) - HEADER_BYTES]);
        link.send(whole_ring, Urgency::AtNextLook).expect("open");
        assert!(!link.is_behind() && !link.has_room(1), "the ring is full");
        assert!(far.read(&mut [0]).is_err(), "nobody is notified of what is only to be found");
        link.send(frame(2, &[]), Urgency::Now).expect("open");
        assert!(link.is_behind());
        assert_eq!(far.read(&mut [0]).expect("a notification"), 1);
    }

    #[test]
    fn what_is_too_much_for_the_socket_goes_later() {
        let (far, near) = UnixStream::pair().expect("a pair");
        let (mut sender, mut receiver) = (
            Link::new(Line::plain(near.into()), None).expect("a link"),
            Link::new(Line::plain(far.into()), None).expect("a link"),
        );
        for tag in 0..20 {
            sender.send(frame(tag, &[tag as u8; 100_000]), Urgency::Now).expect("open");
        }
        assert!(sender.is_behind(), "two megabytes do not fit a socket");
        let mut next = 0;
        for _ in 0..1000 {
            receiver.fill(true).expect("open");
            let mut inbox = receiver.take_inbox();
            while let Some((header, _)) = inbox.frame().expect("frames") {
                assert_eq!(header.tag, next);
                next += 1;
            }
            receiver.put_inbox(inbox);
            sender.flush().expect("open");
        }
        assert_eq!((next, sender.is_behind()), (20, false));
    }

    #[test]
    fn the_end_and_garbage_are_told_apart() {
        let (far, near) = UnixStream::pair().expect("a pair");
        let mut link = Link::new(Line::plain(near.into()), None).expect("a link");
        (&far).write_all(&frame(5, b"x")).expect("room");
        drop(far);
        // The frame that arrived before the connection's end must still be there.
        let ended = link.fill(true).and_then(|()| link.fill(true));
        assert_eq!(ended, Err(LinkError::Closed));
        assert!(matches!(link.take_inbox().frame(), Ok(Some((_, b"x")))));
        let (mut far, near) = UnixStream::pair().expect("a pair");
        let mut link = Link::new(Line::plain(near.into()), None).expect("a link");
        far.write_all(&[9; 64]).expect("room");
        link.fill(true).expect("open");
        assert!(matches!(link.take_inbox().frame(), Err(LinkError::Garbage)));
    }
}
