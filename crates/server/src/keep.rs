//! Keeps sessions in a directory over a planned restart of the server.
//!
//! The server writes each session to a file of its own when it stops, and reads the files back when it starts. A file
//! gets its name when it is complete and on the disk. The server serves no client before it has removed the files that
//! it has read. So a file that is there holds the last contents of its session, and never older ones.
//!
//! The directory also has the server's identity. Clients compare it, so that they never take another server for theirs.
//! Files with other names are left alone.

mod format;

use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hanare_wire::handshake::random;
use hanare_wire::payload::SERVER_ID_BYTES;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use self::format::{Header, Reader, Writer, damaged};
use crate::account::{Account, SessionOwner};
use crate::connection::ServerState;
use crate::listen::{Log, ServerError};
use crate::pool::{GROUP, NoSlot, Place, Run};
use crate::session::{Found, Session};

/// The name of the file with the server's identity in hexadecimal digits.
const IDENTITY: &str = "identity.hanare";
/// The end of the name of a file that is not complete.
const PART: &str = ".part";
/// The highest number of a session that has a file. No server begins so many sessions, and later sessions need higher
/// numbers.
const NUMBER_MAX: u64 = u64::MAX >> 1;
/// Bytes of a file that are read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A directory for kept sessions, which no other server uses at the same time.
pub(crate) struct Keep {
    path: PathBuf,
    server_id: [u8; SERVER_ID_BYTES],
    /// The file with the identity. It is locked while the server runs.
    _locked: File,
}

/// The slots that sessions of one family share and that are in a file, each with the number of the file's session.
type Written = HashMap<Place, u64>;

impl Keep {
    /// Opens the directory, and makes it if it is not there. Reads the server's identity, or chooses one.
    pub(crate) fn open(path: &Path) -> io::Result<Keep> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let (server_id, locked) = identity(&path.join(IDENTITY))?;
        let keep = Keep { path: path.to_owned(), server_id, _locked: locked };
        // An earlier server has left these, because it was killed while it kept its sessions.
        for path in keep.numbers(PART)?.into_values() {
            if path.symlink_metadata()?.is_file() {
                std::fs::remove_file(path)?;
            }
        }
        Ok(keep)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn server_id(&self) -> [u8; SERVER_ID_BYTES] {
        self.server_id
    }

    fn file(&self, session: u64) -> PathBuf {
        self.path.join(format!("session-{session}.hanare"))
    }

    fn part(&self, session: u64) -> PathBuf {
        self.path.join(format!("session-{session}.hanare{PART}"))
    }

    /// Returns the numbers of the sessions that have a file here, in ascending order, with the files. The file's names have
    /// `end` after the usual name.
    fn numbers(&self, end: &str) -> io::Result<BTreeMap<u64, PathBuf>> {
        let mut found = BTreeMap::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("session-")?.strip_suffix(end));
            let number = number.and_then(|name| name.strip_suffix(".hanare")?.parse().ok());
            // A number with another spelling, such as 007, is not a name that a server gives.
            if let Some(number) = number
                && number <= NUMBER_MAX
                && name.to_str() == Some(format!("session-{number}.hanare{end}").as_str())
            {
                found.insert(number, entry.path());
            }
        }
        Ok(found)
    }

    /// Makes sure that new, renamed and removed files are so on the disk.
    fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    // ---- at the end of a server -------------------------------------------------------------------------------------

    /// Writes each session to its file. A session that cannot be kept leaves no file.
    pub(crate) fn save(&self, sessions: &[Arc<Session>], log: &Log) -> Result<(), ServerError> {
        let mut families: HashMap<usize, (u64, Written)> = HashMap::new();
        let mut first_error = None;
        let mut lost = 0;
        for session in sessions {
            let (first, written) = families.entry(session.family()).or_insert_with(|| (session.id, Written::default()));
            if let Err(e) = self.save_one(session, *first, written) {
                // Ignored: the file may not even have been made.
                let _ = std::fs::remove_file(self.part(session.id));
                lost += 1;
                first_error = first_error.or(Some(e));
                // The rest of the family needs another file to come first.
                if *first == session.id {
                    families.remove(&session.family());
                }
            }
        }
        if let Err(e) = self.sync() {
            lost = sessions.len();
            first_error = first_error.or(Some(e));
        }
        let all = sessions.len();
        match first_error {
            Some(source) => Err(ServerError::NotKept { path: self.path.clone(), lost, all, source }),
            None => {
                if all > 0 {
                    log(&format!("kept {} in {}", count(all), self.path.display()));
                }
                Ok(())
            }
        }
    }

    fn save_one(&self, session: &Session, family: u64, written: &mut Written) -> io::Result<()> {
        let part = self.part(session.id);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
        let owner = session.account().owner();
        let header = Header {
            slot_size: session.slot_size,
            session: session.id,
            token: session.token,
            server_id: self.server_id,
            family,
            quota_bytes: owner.quota_bytes,
            transport: owner.transport,
            client: owner.client,
        };
        let mut writer = Writer::new(file, &header)?;
        let mut own = Vec::new();
        let mut bytes = vec![0; session.slot_size as usize];
        for number in session.groups() {
            let (places, shared) = session.group(number);
            for (index, place) in places.iter().enumerate().filter(|(_, place)| **place != Place::Absent) {
                let slot = number * GROUP + index as u64;
                let is_shared = shared >> index & 1 == 1;
                if let Some(from) = written.get(place).filter(|_| is_shared) {
                    writer.slot_of(slot, *from)?;
                    continue;
                }
                load(session, slot, &mut bytes)?;
                writer.slot(slot, &bytes)?;
                if is_shared {
                    own.push(*place);
                }
            }
        }
        writer.end()?.sync_all()?;
        std::fs::rename(&part, self.file(session.id))?;
        written.extend(own.into_iter().map(|place| (place, session.id)));
        Ok(())
    }

    // ---- at the start of a server -----------------------------------------------------------------------------------

    /// Reads the kept sessions back, and removes their files. A file that cannot be used stays, and one line of the log
    /// says why. Returns false if the server is to stop meanwhile: then all files stay. If this fails after files were
    /// removed, their sessions are in the registry.
    pub(crate) fn restore(&self, state: &ServerState, log: &Log) -> io::Result<bool> {
        let files = self.numbers("")?;
        // The client of a file that cannot be used must not meet another session of the same number.
        state.registry.skip(files.keys().next_back().copied().unwrap_or(0));
        let mut sessions = BTreeMap::new();
        for (&number, path) in &files {
            match self.read(path, number, &sessions, state) {
                Ok(Some(session)) => _ = sessions.insert(number, session),
                Ok(None) => return Ok(false),
                Err(e) => {
                    let is_cut = e.kind() == io::ErrorKind::UnexpectedEof;
                    let why = if is_cut { "it is cut".to_owned() } else { e.to_string() };
                    log(&format!("{}: {why}; the file stays, and the session's client is refused", path.display()));
                }
            }
        }
        sessions.retain(|&number, _| match std::fs::remove_file(self.file(number)) {
            Ok(()) => true,
            Err(e) => {
                let path = self.file(number);
                log(&format!("{}: it cannot be removed ({e}); the session's client is refused", path.display()));
                false
            }
        });
        if !sessions.is_empty() {
            log(&format!("took {} back from {}", count(sessions.len()), self.path.display()));
        }
        state.registry.adopt(sessions.into_values().map(Arc::new));
        self.sync()?;
        Ok(true)
    }

    /// Reads the session of a file. `sessions` are those that were read before. Returns `None` if the server is to
    /// stop.
    fn read(
        &self,
        path: &Path,
        number: u64,
        sessions: &BTreeMap<u64, Session>,
        state: &ServerState,
    ) -> io::Result<Option<Session>> {
        // Opening a pipe would wait for its writer.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        if !file.metadata()?.is_file() {
            return Err(damaged("it is not a file"));
        }
        let mut reader = Reader::new(BufReader::with_capacity(BUFFER_BYTES, file))?;
        let header = reader.header();
        if header.session != number {
            return Err(damaged("it has another session than its name says"));
        }
        if header.server_id != self.server_id {
            return Err(damaged("another server has written it"));
        }
        let session = empty(&header, sessions, state)?;
        let mut bytes = vec![0; header.slot_size as usize];
        while let Some((slot, from)) = reader.next_slot(&mut bytes)? {
            if state.stop.is_stopping() {
                return Ok(None);
            }
            match from {
                None => store(&session, slot, &bytes)?,
                Some(from) if sessions.get(&from).is_some_and(|other| session.share_with(other, slot)) => {}
                Some(from) => return Err(other_missing(from)),
            }
        }
        Ok(Some(session))
    }
}

/// Makes the session of a file, without its slots.
fn empty(header: &Header, sessions: &BTreeMap<u64, Session>, state: &ServerState) -> io::Result<Session> {
    let owner = SessionOwner {
        client: header.client,
        transport: header.transport,
        slot_size: header.slot_size,
        quota_bytes: header.quota_bytes,
    };
    let (number, token) = (header.session, header.token);
    if header.family == number {
        let account = Arc::new(Account::new(number, owner));
        return Ok(Session::new(number, token, header.slot_size, Arc::clone(&state.store), account));
    }
    let first = sessions.get(&header.family).filter(|first| first.slot_size == header.slot_size);
    let first = first.ok_or_else(|| other_missing(header.family))?;
    let account = Arc::new(Account::in_family(number, owner, first.account().spare().clone()));
    Ok(first.beside(number, token, account))
}

fn other_missing(session: u64) -> io::Error {
    damaged(&format!("it shares slots with session {session}, which is not back"))
}

/// Copies the bytes of a session's slot into `bytes`.
fn load(session: &Session, slot: u64, bytes: &mut [u8]) -> io::Result<()> {
    let offset = slot * bytes.len() as u64;
    match session.with_memory(offset, bytes.len(), |held| bytes.copy_from_slice(held)) {
        Found::Memory(()) => Ok(()),
        Found::Spill { file, at, .. } => file.read_exact_at(bytes, at),
        Found::Absent { .. } => Err(io::Error::other("a slot was discarded meanwhile")),
    }
}

/// Makes `bytes` the contents of a session's slot.
fn store(session: &Session, slot: u64, bytes: &[u8]) -> io::Result<()> {
    let taken = session.take(1).map_err(|e| match e {
        NoSlot::Full => io::Error::other("it has no room in this server; give more --memory or a --spill directory"),
        NoSlot::OverQuota => damaged("it holds more than its quota"),
    })?;
    let stored = match &taken.run {
        Run::Memory { block, at, .. } => {
            block.lock()[*at..*at + bytes.len()].copy_from_slice(bytes);
            Ok(())
        }
        Run::Spill { file, at, .. } => file.write_all_at(bytes, *at),
        Run::Absent { .. } => Err(io::Error::other("a slot without a place")),
    };
    match stored {
        Ok(()) => session.insert(slot, &taken),
        Err(_) => session.give_back(&taken),
    }
    stored
}

/// Returns the server's identity from its file, and locks the file. If there is no file, makes one with random bytes.
fn identity(path: &Path) -> io::Result<([u8; SERVER_ID_BYTES], File)> {
    let made = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
    let mut file = match made {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => OpenOptions::new().read(true).write(true).open(path)?,
        made => made?,
    };
    if !file.metadata()?.is_file() {
        return Err(damaged(&format!("{IDENTITY} in it is not a file")));
    }
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|e| match e {
        Errno::WOULDBLOCK => io::Error::new(io::ErrorKind::ResourceBusy, "another server uses it"),
        e => e.into(),
    })?;
    let mut text = Vec::new();
    Read::by_ref(&mut file).take(64).read_to_end(&mut text)?;
    if text.is_empty() {
        let id: [u8; SERVER_ID_BYTES] = random().map_err(io::Error::other)?;
        let digits: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        file.write_all(format!("{digits}\n").as_bytes())?;
        file.sync_all()?;
        return Ok((id, file));
    }
    let digits = std::str::from_utf8(&text).ok().map(str::trim_end).filter(|text| text.len() == 2 * SERVER_ID_BYTES);
    let id = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let id = id.and_then(|text| u128::from_str_radix(text, 16).ok()).map(u128::to_be_bytes);
    let what = format!("{IDENTITY} in it is damaged; remove it, and the sessions that were kept are lost");
    Ok((id.ok_or_else(|| damaged(&what))?, file))
}

fn count(sessions: usize) -> String {
    if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") }
}
