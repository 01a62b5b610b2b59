//! A connection between two ranks while they meet: plain, or encrypted with the job's key.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Instant;

use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use hanare_wire::handshake::control_header;
use hanare_wire::noise::{self, Ends, MESSAGE_BYTES};
use hanare_wire::{Key, LinkError};

use super::reception::{hear, read, say, wait_readable};

/// Size in bytes of the frame by which each side agrees on keys.
pub(super) const HANDSHAKE_BYTES: usize = HEADER_BYTES + MESSAGE_BYTES;

/// A connected, non-blocking socket, with the ends of its records if the job has a key.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) stream: OwnedFd,
    pub(super) ends: Option<Box<Ends>>,
}

impl Line {
    /// Makes a line that is not encrypted.
    pub(super) fn plain(stream: OwnedFd) -> Self {
        Self { stream, ends: None }
    }

    /// Makes the caller's end of a line. With a key, agrees with the other side before `until`.
    pub(super) fn call(stream: OwnedFd, key: Option<&Key>, until: Instant) -> io::Result<Self> {
        let Some(key) = key else { return Ok(Self::plain(stream)) };
        let (waiting, message) = noise::begin(key).map_err(other)?;
        say(&stream, &frame(&message), until)?;
        let mut answer = [0; HANDSHAKE_BYTES];
        if hear(&stream, &mut answer, until)? < answer.len() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let ends = waiting.finish(message_of(&answer)?).map_err(io::Error::other)?;
        Ok(Self { stream, ends: Some(Box::new(ends)) })
    }

    /// Answers a caller's handshake, and encrypts the line from then on. Sends without waiting: the first bytes of a
    /// connection always fit into its buffer.
    pub(super) fn answer(&mut self, key: &Key, handshake: &[u8; HANDSHAKE_BYTES]) -> io::Result<()> {
        let (ends, message) = noise::answer(key, message_of(handshake)?).map_err(io::Error::other)?;
        say(&self.stream, &frame(&message), Instant::now())?;
        self.ends = Some(Box::new(ends));
        Ok(())
    }

    /// Sends all bytes before `until`.
    pub(super) fn say(&mut self, bytes: &[u8], until: Instant) -> io::Result<()> {
        let Some(Ends { sealer, .. }) = self.ends.as_deref_mut() else { return say(&self.stream, bytes, until) };
        let mut done = 0;
        while done < bytes.len() {
            done += sealer.seal(&[IoSlice::new(&bytes[done..])]).map_err(other)?;
            let count = sealer.waiting().len();
            say(&self.stream, sealer.waiting(), until)?;
            sealer.sent(count);
        }
        Ok(())
    }

    /// Reads the bytes that have arrived, until `into` is full. Fails at the end of the connection.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(Ends { opener, .. }) = self.ends.as_deref_mut() else { return read(&self.stream, into) };
        let mut done = 0;
        while done < into.len() {
            match opener.next_length().map_err(other)? {
                Some(length) => {
                    // What is said at once is a text of its own, so no text goes over the end of `into`.
                    let place = into.get_mut(done..done + length).ok_or(io::ErrorKind::InvalidData)?;
                    place.copy_from_slice(opener.open(length).map_err(other)?);
                    done += length;
                }
                None => {
                    // Nothing is read beyond the record. Later records are for the link, which waits for the socket.
                    let missing = opener.missing();
                    match read(&self.stream, &mut opener.space()[..missing])? {
                        0 => break,
                        count => opener.filled(count),
                    }
                }
            }
        }
        Ok(done)
    }

    /// Reads until `into` is full or `until` has passed. Returns the number of bytes. Fails at the end of the
    /// connection.
    pub(super) fn hear(&mut self, into: &mut [u8], until: Instant) -> io::Result<usize> {
        let mut done = 0;
        loop {
            done += self.read(&mut into[done..])?;
            if done == into.len() || Instant::now() >= until {
                return Ok(done);
            }
            wait_readable(&self.stream, until)?;
        }
    }
}

fn other(error: LinkError) -> io::Error {
    io::Error::other(error.to_string())
}

fn frame(message: &[u8; MESSAGE_BYTES]) -> Vec<u8> {
    let mut frame = control_header(Kind::Noise, 0, 0, message).encode().to_vec();
    frame.extend_from_slice(message);
    frame
}

/// Returns the message in a frame of the handshake.
fn message_of(frame: &[u8; HANDSHAKE_BYTES]) -> io::Result<&[u8]> {
    let (head, message) = frame.split_first_chunk::<HEADER_BYTES>().ok_or(io::ErrorKind::InvalidData)?;
    let header = Header::decode(head).map_err(io::Error::other)?;
    let is_handshake = header.kind == Kind::Noise && header.payload_bytes() == MESSAGE_BYTES;
    if is_handshake { Ok(message) } else { Err(io::ErrorKind::InvalidData.into()) }
}
