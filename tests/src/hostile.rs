//! Memory servers that misbehave, each in one way. At first they store pages as an honest server does. So the
//! misbehaviour begins when a program is in the middle of its work.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use hanare_wire::limits::RANGE_MAX;
use hanare_wire::payload::{Hello, NO_QUOTA, Role, Status, Welcome};
use hanare_wire::{ErrorCode, handshake};

/// Number of reads that are answered correctly before the misbehaviour begins.
const HONEST_READS: u32 = 40;
/// The grain in which pages are held: no part of a page of a redundant run is smaller.
const UNIT: usize = 1024;

/// The way in which a server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// The server never sends a byte.
    Silence,
    /// The server speaks another protocol.
    Garbage,
    /// The server speaks another version of the protocol.
    Version,
    /// The server closes every connection immediately.
    HangUp,
    /// The server answers status requests, but refuses the sessions that programs need.
    NoSessions,
    /// The server stops answering reads.
    ReadsStop,
    /// The server accepts write-backs, but does not acknowledge them.
    WritesStop,
    /// Instead of a page, the server sends bytes that are not a message.
    ReadsGarbage,
    /// The server closes the connection in the middle of a page.
    HalfPage,
    /// The server stops in the middle of a page and keeps the connection open.
    HalfPageSilence,
    /// Instead of the requested page, the server sends another page.
    OtherPage,
    /// The server sends the right page at half its length.
    ShortPage,
    /// The server sends pages before they are requested.
    Unasked,
    /// The server denies that it holds a page that was written to it.
    NotHeld,
    /// The server acknowledges a write-back that was never sent.
    OtherAck,
    /// After some pages, the server speaks another version of the protocol.
    VersionLater,
    /// The server flips one bit of each page.
    FlippedBit,
    /// The server sends the version of a page before the last one that was written to it.
    OlderPage,
    /// The server sends the bytes of the neighbour of each unit.
    SwappedPages,
}

/// A hostile server on a free port of the loopback. Its threads end with their connections, or with the test process.
pub struct Hostile {
    /// The address at which the server listens.
    pub address: String,
}

impl Hostile {
    /// Starts a server that misbehaves as `lie` says.
    pub fn start(lie: Lie) -> Hostile {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address").to_string();
        let held = Arc::new(Held::default());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let peer = Peer { stream, held: held.clone(), lie };
                // An error means that the client has closed the connection, as it should, so it is ignored.
                std::thread::spawn(move || peer.live());
            }
        });
        Hostile { address }
    }
}

/// The state that all connections share: the bytes of the pages by their unit, and the number of answered reads.
#[derive(Default)]
struct Held {
    units: Mutex<HashMap<u64, Versions>>,
    reads: AtomicU32,
}

/// The last two versions of a unit's bytes. `older` is empty if there was only one.
#[derive(Default)]
struct Versions {
    newest: Vec<u8>,
    older: Vec<u8>,
}

struct Peer {
    stream: TcpStream,
    held: Arc<Held>,
    lie: Lie,
}

impl Peer {
    fn live(mut self) -> io::Result<()> {
        match self.lie {
            Lie::Silence => return self.wait_for_the_end(),
            Lie::Garbage => {
                self.stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")?;
                return self.wait_for_the_end();
            }
            Lie::Version => {
                self.request()?;
                self.stream.write_all(&another_version())?;
                return self.wait_for_the_end();
            }
            Lie::HangUp => return Ok(()),
            _ => {}
        }
        self.welcome()?;
        loop {
            let (header, payload) = self.request()?;
            match header.kind {
                Kind::Read => self.read(header)?,
                Kind::Write => self.write(header, payload)?,
                Kind::Status => self.send(Kind::StatusReply, header.tag, &Status::default().encode())?,
                Kind::Ping => self.send(Kind::Pong, header.tag, &[])?,
                _ => self.send(Kind::Done, header.tag, &[])?,
            }
        }
    }

    fn welcome(&mut self) -> io::Result<()> {
        let (_, payload) = self.request()?;
        let hello = Hello::decode(&payload).ok_or(io::ErrorKind::InvalidData)?;
        if self.lie == Lie::NoSessions && hello.role == Role::Session {
            return self.send(Kind::Refused, 0, b"no sessions today");
        }
        let welcome = Welcome {
            session: if hello.role == Role::Session { 7 } else { 0 },
            token: [3; 16],
            capacity_bytes: 1 << 30,
            slot_size: hello.slot_size,
            payload_crc: hello.payload_crc,
            quota_bytes: NO_QUOTA,
            server_id: [7; 16],
        };
        self.send(Kind::Welcome, 0, &welcome.encode())?;
        if self.lie == Lie::Unasked && hello.role == Role::Session {
            self.data(1 << 40, 0, &[0; UNIT])?;
        }
        Ok(())
    }

    fn read(&mut self, asked: Header) -> io::Result<()> {
        let honest = self.held.reads.fetch_add(1, Relaxed) < HONEST_READS;
        let mut page = self.page(asked, honest);
        if self.lie == Lie::FlippedBit && !honest {
            page[asked.length as usize / 2 + 5] ^= 4;
        }
        let half = page.len() / 2;
        match self.lie {
            _ if honest => self.data(asked.tag, asked.offset, &page),
            Lie::ReadsStop => Ok(()),
            Lie::ReadsGarbage => self.stream.write_all(&[0xa5; 100]),
            Lie::VersionLater => self.stream.write_all(&another_version()),
            Lie::HalfPage | Lie::HalfPageSilence => {
                let header = Header::range(Kind::Data, asked.tag, asked.offset, page.len() as u32);
                self.stream.write_all(&header.encode())?;
                self.stream.write_all(&page[..half])?;
                if self.lie == Lie::HalfPage { Err(io::ErrorKind::BrokenPipe.into()) } else { self.wait_for_the_end() }
            }
            Lie::OtherPage => self.data(asked.tag ^ 1, asked.offset ^ UNIT as u64, &page),
            Lie::ShortPage => self.data(asked.tag, asked.offset, &page[..half]),
            Lie::NotHeld => {
                let header =
                    handshake::control_header(Kind::Error, asked.tag, ErrorCode::NotHeld as u32, b"never seen");
                self.stream.write_all(&header.encode())?;
                self.stream.write_all(b"never seen")
            }
            _ => self.data(asked.tag, asked.offset, &page),
        }
    }

    fn write(&mut self, given: Header, payload: Vec<u8>) -> io::Result<()> {
        {
            let mut units = self.held.units.lock().unwrap_or_else(PoisonError::into_inner);
            for (n, unit) in payload.chunks(UNIT).enumerate() {
                let versions = units.entry(given.offset / UNIT as u64 + n as u64).or_default();
                if versions.newest != unit {
                    versions.older = std::mem::replace(&mut versions.newest, unit.to_vec());
                }
            }
        }
        match self.lie {
            Lie::WritesStop => Ok(()),
            Lie::OtherAck => self.send(Kind::Done, given.tag + 1000, &[]),
            _ => self.send(Kind::Done, given.tag, &[]),
        }
    }

    fn page(&self, asked: Header, honest: bool) -> Vec<u8> {
        let lie = Some(self.lie).filter(|_| !honest);
        let swap = u64::from(lie == Some(Lie::SwappedPages));
        let bytes = |versions: &Versions| match lie {
            Some(Lie::OlderPage) if !versions.older.is_empty() => versions.older.clone(),
            _ => versions.newest.clone(),
        };
        let units = self.held.units.lock().unwrap_or_else(PoisonError::into_inner);
        let first = asked.offset / UNIT as u64;
        let wanted = first..first + u64::from(asked.length) / UNIT as u64;
        wanted.flat_map(|unit| units.get(&(unit ^ swap)).map_or_else(|| vec![0; UNIT], bytes)).collect()
    }

    fn request(&mut self) -> io::Result<(Header, Vec<u8>)> {
        let mut raw = [0; HEADER_BYTES];
        self.stream.read_exact(&mut raw)?;
        let header = Header::decode(&raw).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let mut payload = vec![0; header.payload_bytes().min(RANGE_MAX as usize)];
        self.stream.read_exact(&mut payload)?;
        Ok((header, payload))
    }

    fn send(&mut self, kind: Kind, tag: u64, payload: &[u8]) -> io::Result<()> {
        let mut header = handshake::control_header(kind, tag, 0, payload);
        if matches!(kind, Kind::Done | Kind::Pong) {
            // The free memory that the server reports, in bytes.
            header.offset = 1 << 30;
        }
        self.stream.write_all(&header.encode())?;
        self.stream.write_all(payload)
    }

    fn data(&mut self, tag: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let header = Header::range(Kind::Data, tag, offset, bytes.len() as u32);
        self.stream.write_all(&header.encode())?;
        self.stream.write_all(bytes)
    }

    fn wait_for_the_end(&mut self) -> io::Result<()> {
        io::copy(&mut self.stream, &mut io::sink()).map(drop)
    }
}

fn another_version() -> [u8; HEADER_BYTES] {
    let mut frame = Header::bare(Kind::Refused, 0).encode();
    frame[4] = 99;
    frame
}
