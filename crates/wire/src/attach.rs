//! The same-host link. The server stores the pages of a session in slots of equal size. The slots lie in files that the
//! server passes to the client.
//!
//! The client copies a page to or from its slot by itself, without a request. It sends requests only to get slots or to
//! return slots, many at a time. The client keeps the table that maps pages to slots.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::endpoint::Endpoint;
use crate::error::{ErrorCode, LinkError};
use crate::frame::{HEADER_BYTES, Header, Kind};
use crate::handshake::{ConnectOptions, Welcomed, connect, connect_through, send_control};
use crate::inbox::Inbox;
use crate::limits::{CONTROL_MAX, GRANT_RUNS_MAX, SILENT_SAME_HOST, slot_size_is_valid};
use crate::patience::patience;
use crate::payload::{GRANT_BYTES, Grant, Place, Role, TOKEN_BYTES};
use crate::read::server_error;
use crate::socket::{Progress, Socket};

/// Bit in the `code` of an ATTACHED frame. It says that the frame carries a third file, the spill file.
pub const ATTACHED_SPILL: u32 = 1;

/// A same-host session's files and its control connection. When this value is dropped or the client's process dies, the
/// server frees all memory of the session.
#[derive(Debug)]
pub struct Attachment {
    /// The file of the slots in memory. Its fixed size is the server's whole memory limit, so a client can map it once
    /// for all later slots. The client may use only slots that the server has granted.
    pub memfd: OwnedFd,
    /// Size of `memfd`, in bytes. The server grants slots anywhere in it.
    pub memory_bytes: u64,
    /// The spill file, which holds the slots on disk. `None` if the server has no spill directory. The file grows, so
    /// the client must not map it. It reads and writes the file with system calls.
    pub spill: Option<OwnedFd>,
    /// The server's door: a socket through which [`Attachment::open_through`] opens further links without the server's
    /// path.
    pub door: OwnedFd,
    /// Size of one slot, in bytes.
    pub slot_size: u32,
    /// The number of bytes that the server could hold for this session when the session was opened, in memory and spill
    /// file together.
    pub capacity_bytes: u64,
    /// How many more bytes the server could grant, as of its last answer.
    pub capacity_left_bytes: u64,
    identity: (u64, [u8; TOKEN_BYTES]),
    control: Socket,
    inbox: Inbox,
    tag: u64,
}

/// How the client reaches the server.
enum By<'a> {
    Path(&'a Path),
    Door(BorrowedFd<'a>),
}

impl Attachment {
    /// Opens a same-host session with the server that listens on the AF_UNIX socket `path`.
    pub fn open(path: &Path, slot_size: u32) -> Result<Attachment, LinkError> {
        Attachment::begin(By::Path(path), slot_size, None)
    }

    /// Opens a same-host session with the server to which this [door](Self::door) belongs. This works even if this
    /// process cannot reach the server's path, for example in another mount namespace or as another user.
    pub fn open_through(door: BorrowedFd<'_>, slot_size: u32) -> Result<Attachment, LinkError> {
        Attachment::begin(By::Door(door), slot_size, None)
    }

    /// Opens a new same-host session on the files of this session. Every slot granted to this session is granted to the
    /// new session too. Both sessions may read these slots, and neither session may write to them. The server frees a
    /// slot when both sessions have given it back.
    pub fn open_clone(&self) -> Result<Attachment, LinkError> {
        Attachment::begin(By::Door(self.door.as_fd()), self.slot_size, Some(self.identity))
    }

    fn begin(by: By<'_>, slot_size: u32, clone_of: Option<(u64, [u8; TOKEN_BYTES])>) -> Result<Attachment, LinkError> {
        if !slot_size_is_valid(slot_size) {
            return Err(LinkError::Misuse { what: "a slot is a power of two from 4 KiB to 2 MiB" });
        }
        let options = ConnectOptions {
            role: Role::Attach,
            slot_size,
            payload_crc: false,
            join: clone_of,
            clone: clone_of.is_some(),
            takes_over: false,
            key: None,
            // These timeouts are longer than the defaults, because a server on a loaded machine may have to wait a long
            // time for a CPU.
            connect_timeout: SILENT_SAME_HOST,
            silent_timeout: SILENT_SAME_HOST,
        };
        let Welcomed { socket, inbox, welcome } = match by {
            By::Path(path) => connect(&Endpoint::Unix(path.to_owned()), &options)?,
            By::Door(door) => connect_through(door, &options)?,
        };
        send_control(&socket, Kind::Attach, 0, &[])?;
        let mut raw = [0; HEADER_BYTES];
        let [memfd, door, spill] = socket.receive_files(&mut raw, &mut Progress::until(patience(SILENT_SAME_HOST)))?;
        let header = Header::decode(&raw)?;
        let has_spill = header.code & ATTACHED_SPILL != 0;
        match (memfd, door) {
            (Some(memfd), Some(door)) if header.kind == Kind::Attached && has_spill == spill.is_some() => {
                let capacity_bytes = welcome.capacity_bytes;
                let memory = File::from(memfd);
                let meta = memory.metadata();
                let meta = meta.map_err(|source| LinkError::Io { what: "asking for the size of the slots", source })?;
                Ok(Attachment {
                    memfd: memory.into(),
                    memory_bytes: meta.len(),
                    spill,
                    door,
                    slot_size,
                    capacity_bytes,
                    capacity_left_bytes: capacity_bytes,
                    identity: (welcome.session, welcome.token),
                    control: socket,
                    inbox,
                    tag: 0,
                })
            }
            _ => Err(LinkError::Garbage { what: "an answer to ATTACH without its files" }),
        }
    }

    /// Asks for `n_slots` more slots and waits for the answer. The returned runs hold from one to `n_slots` slots
    /// together. They hold fewer than `n_slots` if the server has fewer free slots, or if the free slots form more runs
    /// than fit into one frame. Fails with [`LinkError::Full`] if the server has no free slot, and with
    /// [`LinkError::OverQuota`] if the session's quota is used up. Granted slots read as zeroes until they are written.
    pub fn grant(&mut self, n_slots: u32) -> Result<Vec<Grant>, LinkError> {
        let mut runs = [Grant { place: Place::Memory, first_slot: 0, count: 0 }; GRANT_RUNS_MAX];
        let count = self.grant_into(n_slots, &mut runs)?;
        Ok(runs[..count].to_vec())
    }

    /// Like [`Attachment::grant`], but does not allocate. Writes the granted runs to `runs` and returns their number.
    pub fn grant_into(&mut self, n_slots: u32, runs: &mut [Grant; GRANT_RUNS_MAX]) -> Result<usize, LinkError> {
        let mut payload = [0; CONTROL_MAX];
        let length = self.ask(Kind::GrantRequest, Kind::Grant, &n_slots.to_le_bytes(), &mut payload)?;
        let garbage = || LinkError::Garbage { what: "a grant that makes no sense" };
        let mut count = 0;
        let mut slots = 0;
        for (into, run) in runs.iter_mut().zip(Grant::decode_runs(&payload[..length]).ok_or_else(garbage)?) {
            *into = run.filter(|run| self.has(run)).ok_or_else(garbage)?;
            slots += u64::from(into.count);
            count += 1;
        }
        if (1..=u64::from(n_slots)).contains(&slots) { Ok(count) } else { Err(garbage()) }
    }

    /// Checks whether the slots of a run lie in the files of this session.
    fn has(&self, run: &Grant) -> bool {
        let end = (u64::from(run.first_slot) + u64::from(run.count)) * u64::from(self.slot_size);
        match run.place {
            Place::Memory => end <= self.memory_bytes,
            Place::Spill => self.spill.is_some(),
        }
    }

    /// Gives back at most [`GRANT_RUNS_MAX`] runs of granted slots and waits for the server's answer. The bytes of
    /// these slots are lost, except those of slots that a clone of the session still holds. Does not allocate.
    pub fn give_back_runs(&mut self, runs: &[Grant]) -> Result<(), LinkError> {
        let mut payload = [0; GRANT_RUNS_MAX * GRANT_BYTES];
        if runs.is_empty() || runs.len() > GRANT_RUNS_MAX {
            return Err(LinkError::Misuse { what: "from 1 to 256 runs are given back at a time" });
        }
        for (into, run) in payload.chunks_exact_mut(GRANT_BYTES).zip(runs) {
            into.copy_from_slice(&run.encode());
        }
        self.ask(Kind::Return, Kind::Done, &payload[..runs.len() * GRANT_BYTES], &mut []).map(|_| ())
    }

    /// Like [`Attachment::give_back_runs`], for one run.
    pub fn give_back(&mut self, first_slot: u32, count: u32, place: Place) -> Result<(), LinkError> {
        self.give_back_runs(&[Grant { place, first_slot, count }])
    }

    /// Asks the server how many more bytes it could grant, and waits for the answer.
    pub fn capacity_left(&mut self) -> Result<u64, LinkError> {
        self.ask(Kind::Ping, Kind::Pong, &[], &mut [])?;
        Ok(self.capacity_left_bytes)
    }

    /// Checks whether the server's end of the control connection is still open. Sends nothing and does not wait.
    pub fn is_alive(&self) -> bool {
        self.control.is_open()
    }

    fn has_no_room(&mut self, error: LinkError) -> LinkError {
        self.capacity_left_bytes = 0;
        error
    }

    fn ask(&mut self, request: Kind, answer: Kind, payload: &[u8], into: &mut [u8]) -> Result<usize, LinkError> {
        self.tag += 1;
        send_control(&self.control, request, self.tag, payload)?;
        let mut progress = Progress::of(&self.control);
        // The loop receives only the header. If the answer is an ERROR, `into` may be too small for its text. So
        // `server_error` receives the text into its own buffer.
        let header = loop {
            if let Some(header) = self.inbox.header()? {
                break header;
            }
            if self.inbox.fill(&self.control)?.is_none() {
                progress.stalled(&self.control, crate::socket::Direction::Receive)?;
            }
        };
        match header.kind {
            Kind::Error => Err(match server_error(&header, &mut self.inbox, &self.control) {
                LinkError::Server { code: ErrorCode::Full, .. } => self.has_no_room(LinkError::Full),
                LinkError::Server { code: ErrorCode::OverQuota, .. } => self.has_no_room(LinkError::OverQuota),
                error => error,
            }),
            kind if kind == answer && header.tag == self.tag && header.payload_bytes() <= into.len() => {
                let into = &mut into[..header.payload_bytes()];
                self.inbox.receive_all(&self.control, into, &mut progress)?;
                crate::inbox::check_payload(&header, into)?;
                self.capacity_left_bytes = header.offset;
                Ok(into.len())
            }
            _ => Err(LinkError::Garbage { what: "a frame that answers no request of this link" }),
        }
    }
}

impl AsFd for Attachment {
    /// Returns the control connection. The descriptor becomes readable when the server closes the connection or dies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }
}
