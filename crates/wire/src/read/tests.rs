//! Tests of payloads that are received into pieces.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use super::*;
use crate::frame::FLAG_PAYLOAD_CRC;
use crate::limits::SMALL_PAGE;
use crate::records::{Cipher, Opener, Sealer};

const KEY: [u8; 32] = [7; 32];
const PIECE: usize = 512;
/// The distance between two pieces. The bytes between them must stay as they are.
const STRIDE: usize = 700;
const UNTOUCHED: u8 = 0xee;

fn payload(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|at| (at * 7 % 251) as u8 ^ seed).collect()
}

/// Returns the frame of a reply with this payload.
fn reply(tag: u64, payload: &[u8], has_sum: bool) -> Vec<u8> {
    let (flags, payload_crc) = if has_sum { (FLAG_PAYLOAD_CRC, crc32fast::hash(payload)) } else { (0, 0) };
    let header = Header::range(Kind::Data, tag, 0, payload.len() as u32);
    [&Header { flags, payload_crc, ..header }.encode(), payload].concat()
}

/// Receives what `frames` hold, which arrive `chunk` bytes at a time, on a link with or without a key.
fn with_replies(frames: Vec<u8>, chunk: usize, has_key: bool, has_sum: bool, test: impl FnOnce(&mut ReadReplies)) {
    let (near, mut far) = UnixStream::pair().expect("a pair");
    let socket = Socket::new(near.into(), Some(Duration::from_secs(20))).expect("a socket");
    let mut inbox = Inbox::default();
    let mut raw = frames;
    if has_key {
        inbox.open_with(Opener::new(Cipher::Aes256Gcm, &KEY));
        raw = sealed(&raw);
    }
    let (_requests, mut replies) = halves(socket, inbox, has_sum);
    let sender = thread::spawn(move || raw.chunks(chunk).for_each(|some| far.write_all(some).expect("room")));
    test(&mut replies);
    sender.join().expect("no panic");
}

fn sealed(text: &[u8]) -> Vec<u8> {
    let mut sealer = Sealer::new(Cipher::Aes256Gcm, &KEY);
    let (mut done, mut records) = (0, Vec::new());
    while done < text.len() {
        done += sealer.seal(&[IoSlice::new(&text[done..])]).expect("sealed");
        records.extend_from_slice(sealer.waiting());
        sealer.sent(sealer.waiting().len());
    }
    records
}

/// Receives one reply into pieces of a buffer, 64 at a time, and checks every byte of the buffer.
fn check_reply(replies: &mut ReadReplies, tag: u64, wanted: &[u8]) {
    let header = replies.try_header(Wait::Block { timeout: Duration::from_secs(20) }).expect("a reply");
    assert_eq!(header, Some(ReplyHeader { tag, offset: 0, len: wanted.len() as u32 }));
    let mut buffer = vec![UNTOUCHED; wanted.len() / PIECE * STRIDE];
    for some in buffer.chunks_mut(STRIDE * PIECES_MAX) {
        let mut pieces: Vec<_> = some.chunks_mut(STRIDE).map(|place| IoSliceMut::new(&mut place[..PIECE])).collect();
        replies.receive_pieces(&mut pieces).expect("the payload");
    }
    for (place, piece) in buffer.chunks(STRIDE).zip(wanted.chunks(PIECE)) {
        assert!(place[..PIECE] == *piece && place[PIECE..].iter().all(|byte| *byte == UNTOUCHED));
    }
}

#[test]
fn payloads_of_any_length_land_in_their_pieces_and_the_next_ones_stay_whole() {
    let lengths = [PIECE, 3 * PIECE, SMALL_PAGE + PIECE, 64 * PIECE, 65 * PIECE, 200 * PIECE];
    for (has_key, has_sum) in [(false, false), (false, true), (true, false)] {
        for chunk in [509, 4096, 1 << 20] {
            let payloads: Vec<Vec<u8>> = lengths.iter().zip(0..).map(|(len, seed)| payload(*len, seed)).collect();
            let frames = payloads.iter().zip(0..).flat_map(|(payload, tag)| reply(tag, payload, has_sum)).collect();
            with_replies(frames, chunk, has_key, has_sum, |replies| {
                payloads.iter().zip(0..).for_each(|(payload, tag)| check_reply(replies, tag, payload));
                assert_eq!(replies.try_header(Wait::Now).ok().flatten(), None);
            });
        }
    }
}

#[test]
fn a_checksum_covers_all_pieces() {
    for wrong in [0, PIECE - 1, PIECE, 2 * PIECE + 3, 3 * PIECE - 1] {
        let mut frame = reply(1, &payload(3 * PIECE, 0), true);
        frame[HEADER_BYTES + wrong] ^= 4;
        with_replies(frame, 1 << 20, false, true, |replies| {
            replies.try_header(Wait::Block { timeout: Duration::from_secs(20) }).expect("a reply");
            let (mut first, mut rest) = ([0; PIECE], [0; 2 * PIECE]);
            replies.receive_pieces(&mut [IoSliceMut::new(&mut first)]).expect("the sum is not due yet");
            let error = replies.receive_pieces(&mut [IoSliceMut::new(&mut rest)]).expect_err("a damaged payload");
            assert!(matches!(error, LinkError::Garbage { .. }), "{error:?}");
        });
    }
}

#[test]
fn pieces_take_no_more_than_the_payload() {
    let frames = [reply(1, &payload(2 * PIECE, 1), false), reply(2, &payload(PIECE, 2), false)].concat();
    with_replies(frames, 1 << 20, false, false, |replies| {
        let misuse = |result: Result<(), LinkError>| assert!(matches!(result, Err(LinkError::Misuse { .. })));
        let mut page = [0; 3 * PIECE];
        misuse(replies.receive_pieces(&mut [IoSliceMut::new(&mut page[..PIECE])]));
        replies.try_header(Wait::Block { timeout: Duration::from_secs(20) }).expect("a reply");
        misuse(replies.receive_pieces(&mut [IoSliceMut::new(&mut page)]));
        misuse(
            replies
                .receive_pieces(&mut [const { [0_u8; 1] }; PIECES_MAX + 1].each_mut().map(|one| IoSliceMut::new(one))),
        );
        replies.receive_pieces(&mut [IoSliceMut::new(&mut page[..PIECE])]).expect("half of it");
        misuse(replies.receive_payload(&mut page[..2 * PIECE]));
        assert!(replies.try_header(Wait::Now).is_err(), "half of the payload is left");
        replies.receive_pieces(&mut [IoSliceMut::new(&mut page[PIECE..2 * PIECE])]).expect("the rest");
        assert_eq!(page[..2 * PIECE], payload(2 * PIECE, 1));
        assert!(replies.holds_more(), "the second reply came with the first");
        check_reply(replies, 2, &payload(PIECE, 2));
        assert!(!replies.holds_more());
    });
}
