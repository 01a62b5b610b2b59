//! Encrypted and authenticated records: how the bytes of a link with a key travel.
//!
//! After the handshake ([`crate::noise`]) each direction of a connection is a stream of records. A record is the length of
//! its text (2 bytes, little-endian), the encrypted text, and a tag of 16 bytes. The tag covers the length too. Frames
//! lie in the texts one after the other, and may begin and end anywhere in a record.
//!
//! Each direction has a key of its own, and its records are numbered from 0. The number is the nonce, so it is not sent. A
//! record that was changed, left out, repeated, moved or taken from another connection does not open. The link then
//! ends.
//!
//! Nothing here allocates after construction.

use std::fmt;
use std::io::IoSlice;

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use crate::error::LinkError;
use crate::socket::Socket;

/// The longest text of a record, in bytes.
pub(crate) const RECORD_MAX: usize = 16 << 10;
const LENGTH_BYTES: usize = 2;
const TAG_BYTES: usize = 16;
/// Number of records of full length that are sealed, or received, in one system call.
const RECORDS_AT_ONCE: usize = 4;
const BUFFER_BYTES: usize = RECORDS_AT_ONCE * (LENGTH_BYTES + RECORD_MAX + TAG_BYTES);
const _: () = assert!(RECORD_MAX <= u16::MAX as usize);

/// The cipher of a link's records. Client and server take the one that is fast on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cipher {
    ChaCha20Poly1305 = 0,
    Aes256Gcm = 1,
}

impl Cipher {
    /// Returns the cipher that is fast on this CPU.
    pub(crate) fn fast_here() -> Cipher {
        #[cfg(target_arch = "x86_64")]
        let has_aes = std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let has_aes = std::arch::is_aarch64_feature_detected!("aes");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let has_aes = false;
        if has_aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 }
    }

    pub(crate) fn from_wire(number: u8) -> Option<Cipher> {
        [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm].into_iter().find(|cipher| *cipher as u8 == number)
    }
}

/// The key of one direction, and the number of its next record.
struct Direction {
    key: LessSafeKey,
    number: u64,
}

impl Direction {
    fn new(cipher: Cipher, key: &[u8; 32]) -> Direction {
        let algorithm = match cipher {
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Cipher::Aes256Gcm => &AES_256_GCM,
        };
        // The only error is a key of the wrong length, and both ciphers take 32 bytes.
        let key = UnboundKey::new(algorithm, key).expect("a key of 32 bytes");
        Direction { key: LessSafeKey::new(key), number: 0 }
    }

    /// Returns the next record's nonce. No number is used twice, because a connection ends before 2^64 records.
    fn nonce(&mut self) -> Nonce {
        let mut bytes = [0; 12];
        bytes[4..].copy_from_slice(&self.number.to_le_bytes());
        self.number += 1;
        Nonce::assume_unique_for_key(bytes)
    }
}

/// The sending end of a connection: seals bytes into records, and holds the records until the socket takes them.
pub struct Sealer {
    direction: Direction,
    records: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Sealer {
    pub(crate) fn new(cipher: Cipher, key: &[u8; 32]) -> Sealer {
        let records = vec![0; BUFFER_BYTES].into_boxed_slice();
        Sealer { direction: Direction::new(cipher, key), records, start: 0, end: 0 }
    }

    /// Returns the sealed bytes that the socket has not taken.
    pub fn waiting(&self) -> &[u8] {
        &self.records[self.start..self.end]
    }

    /// Notes that the socket has taken `count` of the waiting bytes.
    pub fn sent(&mut self, count: usize) {
        self.start += count;
    }

    /// Seals the first bytes of `pieces`, as many as fit into the buffer. No earlier record may wait. Returns the number
    /// of sealed bytes.
    ///
    /// # Errors
    /// The cipher refuses, which does not happen with texts of this length.
    pub fn seal(&mut self, pieces: &[IoSlice<'_>]) -> Result<usize, LinkError> {
        debug_assert!(self.waiting().is_empty(), "records leave in their order");
        (self.start, self.end) = (0, 0);
        let mut sealed = 0;
        for _ in 0..RECORDS_AT_ONCE {
            let (length_at, text_at) = (self.end, self.end + LENGTH_BYTES);
            let length = gather(pieces, sealed, &mut self.records[text_at..text_at + RECORD_MAX]);
            if length == 0 {
                break;
            }
            let nonce = self.direction.nonce();
            let raw_length = (length as u16).to_le_bytes();
            let text = &mut self.records[text_at..text_at + length];
            let tag = self.direction.key.seal_in_place_separate_tag(nonce, Aad::from(raw_length), text);
            let tag = tag.map_err(|_| LinkError::Misuse { what: "a record that cannot be encrypted" })?;
            self.records[length_at..text_at].copy_from_slice(&raw_length);
            self.records[text_at + length..][..TAG_BYTES].copy_from_slice(tag.as_ref());
            self.end = text_at + length + TAG_BYTES;
            sealed += length;
        }
        Ok(sealed)
    }
}

/// Copies the bytes of `pieces` after the first `skip` ones to `into`, as many as fit. Returns their number.
fn gather(pieces: &[IoSlice<'_>], mut skip: usize, into: &mut [u8]) -> usize {
    let mut done = 0;
    for piece in pieces {
        let from = &piece[skip.min(piece.len())..];
        skip -= piece.len() - from.len();
        let count = from.len().min(into.len() - done);
        into[done..done + count].copy_from_slice(&from[..count]);
        done += count;
    }
    done
}

/// The receiving end of a connection: receives records and opens them.
pub struct Opener {
    direction: Direction,
    records: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Opener {
    pub(crate) fn new(cipher: Cipher, key: &[u8; 32]) -> Opener {
        let records = vec![0; BUFFER_BYTES].into_boxed_slice();
        Opener { direction: Direction::new(cipher, key), records, start: 0, end: 0 }
    }

    /// Receives bytes of records, without waiting. Returns `None` if none have arrived.
    pub(crate) fn receive(&mut self, socket: &Socket) -> Result<Option<usize>, LinkError> {
        let received = socket.receive(self.space())?;
        self.filled(received.unwrap_or(0));
        Ok(received)
    }

    /// Returns how many bytes of the next record are missing. While its length is not here, these are the bytes of the
    /// length.
    pub fn missing(&self) -> usize {
        let waiting = &self.records[self.start..self.end];
        match waiting.first_chunk::<LENGTH_BYTES>() {
            Some(raw) => {
                let bytes = LENGTH_BYTES + usize::from(u16::from_le_bytes(*raw)) + TAG_BYTES;
                bytes.saturating_sub(waiting.len()).min(BUFFER_BYTES - waiting.len())
            }
            None => LENGTH_BYTES - waiting.len(),
        }
    }

    /// Returns space for received bytes. It is empty only while a whole record is here.
    pub fn space(&mut self) -> &mut [u8] {
        self.records.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        &mut self.records[self.end..]
    }

    /// Notes that `count` bytes were received into the beginning of [`Self::space`].
    pub fn filled(&mut self, count: usize) {
        self.end = (self.end + count).min(self.records.len());
    }

    /// Returns the length of the next record's text, or `None` if the record is not here as a whole.
    ///
    /// # Errors
    /// The peer sent a record of an impossible length.
    pub fn next_length(&self) -> Result<Option<usize>, LinkError> {
        let waiting = &self.records[self.start..self.end];
        let Some(raw) = waiting.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*raw));
        // A longer record would never be here as a whole, and an empty one is never sent.
        if !(1..=RECORD_MAX).contains(&length) {
            return Err(LinkError::Garbage { what: "a record of an impossible length" });
        }
        Ok((waiting.len() >= LENGTH_BYTES + length + TAG_BYTES).then_some(length))
    }

    /// Opens the next record, of which [`Self::next_length`] has returned `length`. Returns its text.
    ///
    /// # Errors
    /// The record is not the one that the peer sealed next.
    pub fn open(&mut self, length: usize) -> Result<&[u8], LinkError> {
        let nonce = self.direction.nonce();
        let at = self.start + LENGTH_BYTES;
        self.start = at + length + TAG_BYTES;
        let text_and_tag = &mut self.records[at..self.start];
        let text = self.direction.key.open_in_place(nonce, Aad::from((length as u16).to_le_bytes()), text_and_tag);
        let changed = LinkError::Garbage { what: "a record that was changed on its way, or is not the next one" };
        text.map(|text| &*text).map_err(|_| changed)
    }
}

// Both types hold keys, so nothing of them is printed.

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener(..)")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    const KEY: [u8; 32] = [7; 32];

    /// Seals `text` and returns its records.
    fn records(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let (mut done, mut records) = (0, Vec::new());
        while done < text.len() {
            done += sealer.seal(&[IoSlice::new(&text[done..])]).expect("sealed");
            records.extend_from_slice(sealer.waiting());
            sealer.sent(sealer.waiting().len());
        }
        records
    }

    /// Sends raw bytes to an opener, and returns what it opens, or the error.
    fn opened(raw: &[u8]) -> Result<Vec<u8>, LinkError> {
        let (near, mut far) = UnixStream::pair().expect("a pair");
        let socket = Socket::new(near.into(), None).expect("a socket");
        let mut opener = Opener::new(Cipher::Aes256Gcm, &KEY);
        let mut text = Vec::new();
        for part in raw.chunks(20_000) {
            far.write_all(part).expect("room");
            while opener.receive(&socket)?.is_some() {
                while let Some(length) = opener.next_length()? {
                    text.extend_from_slice(opener.open(length)?);
                }
            }
        }
        Ok(text)
    }

    fn long_text() -> Vec<u8> {
        (0..200_000_u32).map(|n| (n % 251) as u8).collect()
    }

    #[test]
    fn texts_of_any_length_go_there_and_back() {
        for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
            let mut sealer = Sealer::new(cipher, &KEY);
            let raw = records(&mut sealer, b"a secret text");
            assert!(!raw.windows(6).any(|bytes| bytes == b"secret"));
        }
        let mut sealer = Sealer::new(Cipher::Aes256Gcm, &KEY);
        let mut raw = records(&mut sealer, b"short");
        raw.extend(records(&mut sealer, &long_text()));
        assert_eq!(opened(&raw).expect("all of it"), [b"short".as_slice(), &long_text()].concat());
    }

    #[test]
    fn pieces_are_gathered_over_their_borders() {
        let pieces = [b"ab".as_slice(), b"", b"cde", b"f"].map(IoSlice::new);
        for skip in 0..=6 {
            for room in 0..=6 {
                let mut into = [0; 6];
                let count = gather(&pieces, skip, &mut into[..room]);
                assert_eq!(into[..count], b"abcdef"[skip..][..count]);
                assert_eq!(count, room.min(6 - skip));
            }
        }
    }

    #[test]
    fn each_flipped_bit_ends_the_link() {
        let raw = records(&mut Sealer::new(Cipher::Aes256Gcm, &KEY), b"sixteen letters.");
        for bit in 0..raw.len() * 8 {
            let mut damaged = raw.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A longer length makes the opener wait for the rest, which never comes.
            assert!(matches!(opened(&damaged).as_deref(), Err(_) | Ok([])), "bit {bit}");
        }
    }

    #[test]
    fn records_open_once_and_in_their_order_only() {
        let mut sealer = Sealer::new(Cipher::Aes256Gcm, &KEY);
        let [first, second, third] = [b"first", b"secnd", b"third"].map(|text| records(&mut sealer, text));
        assert!(opened(&[&first[..], &second, &third].concat()).is_ok());
        assert!(opened(&[&first[..], &first].concat()).is_err(), "repeated");
        assert!(opened(&[&second[..], &first].concat()).is_err(), "in another order");
        assert!(opened(&[&first[..], &third].concat()).is_err(), "one left out");
        let other = records(&mut Sealer::new(Cipher::Aes256Gcm, &[8; 32]), b"first");
        assert!(opened(&other).is_err(), "of another connection");
        assert!(opened(&[0, 0, 1, 2]).is_err(), "an empty record");
        assert!(opened(&[255; 4]).is_err(), "too long");
    }
}
