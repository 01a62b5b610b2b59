//! How ranks find each other and compare what they are. On one host each has a socket in one directory; across hosts each
//! listens at a port of its own, and rank 0, whose address all know, tells everyone the others'.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::job::{Job, Meet, Transfer};
use super::tcp;
use crate::coherence::{Protocol, Rank, RankSet};

/// The message by which ranks introduce themselves.
const JOIN: u32 = 32;
const JOIN_BYTES: usize = 40;
/// Between two looks for a rank that is not there yet.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Why the ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeetError {
    /// The directory or a socket could not be made.
    #[error("cannot meet the other ranks in {path}: {source}; check that the directory can be written")]
    Place {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Rank 0 cannot be met at its address.
    #[error("cannot meet at {address}, where rank 0 is: {source}; set HANARE_RANK0=HOST:PORT to a free port there")]
    Address {
        /// As it was given or derived.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Links that would leave the machine.
    #[error(
        "{0} is another machine's or reachable from others, and links between ranks are not guarded: meet at an address \
         of loopback, or set HANARE_TRUSTED_NETWORK=yes where nobody else is on the network"
    )]
    Unguarded(SocketAddr),
    /// Not everyone came.
    #[error(
        "rank {rank} waited {seconds} s for {missing}; check that every rank was started, calls dsm_startup, and is \
             on this host"
    )]
    Missing {
        /// This rank.
        rank: Rank,
        /// How long.
        seconds: u64,
        /// Who did not come.
        missing: String,
    },
    /// A rank that is not of this job.
    #[error(
        "rank {rank} differs from rank {other} in {what}; start the same program with the same settings everywhere"
    )]
    Differs {
        /// This rank.
        rank: Rank,
        /// The other.
        other: Rank,
        /// In what.
        what: &'static str,
    },
    /// Not a rank at all, or one of another release.
    #[error("what came to meet rank {rank} is no rank of this release of hanare; use the same release everywhere")]
    Stranger {
        /// This rank.
        rank: Rank,
    },
}

/// What a rank says of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Join {
    pub(super) rank: Rank,
    pub(super) ranks: u16,
    pub(super) settings: [u8; 4],
    pub(super) region_bytes: u64,
    pub(super) program: u64,
    /// Where its memory is: process number, and descriptor there.
    pub(super) process: u32,
    pub(super) memory: u32,
}

impl Join {
    pub(super) fn of(job: &Job, memory: i32) -> Self {
        let protocol = match job.protocol {
            Protocol::Invalidate => 1,
            Protocol::Update => 2,
            Protocol::Adaptive => 3,
        };
        Self {
            rank: job.rank,
            ranks: job.ranks,
            settings: [protocol, u8::from(job.migrate), u8::from(job.transfer == Transfer::ZeroCopy), 0],
            region_bytes: job.region_bytes,
            program: program_number(),
            process: std::process::id(),
            memory: memory as u32,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut header = Header::bare(Kind::BetweenRanks, 0);
        (header.length, header.code) = (JOIN_BYTES as u32, JOIN);
        let mut bytes = header.encode().to_vec();
        bytes.extend_from_slice(&self.rank.0.to_le_bytes());
        bytes.extend_from_slice(&self.ranks.to_le_bytes());
        bytes.extend_from_slice(&self.settings);
        bytes.extend_from_slice(&self.region_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.program.to_le_bytes());
        bytes.extend_from_slice(&self.process.to_le_bytes());
        bytes.extend_from_slice(&self.memory.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES + JOIN_BYTES]) -> Option<Self> {
        let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let header = Header::decode(head).ok()?;
        if header.kind != Kind::BetweenRanks || header.code != JOIN || header.length as usize != JOIN_BYTES {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([body[at], body[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Some(Self {
            rank: Rank(u16_at(0)),
            ranks: u16_at(2),
            settings: [body[4], body[5], body[6], body[7]],
            region_bytes: u64_at(8),
            program: u64_at(16),
            process: u32_at(24),
            memory: u32_at(28),
        })
    }

    /// In what another rank differs that must be equal.
    fn difference(&self, other: &Self) -> Option<&'static str> {
        [
            (self.ranks != other.ranks, "the number of ranks"),
            (self.settings != other.settings, "protocol, home policy or transfer"),
            (self.region_bytes != other.region_bytes, "the size of the shared region"),
            (self.program != other.program, "the program"),
        ]
        .into_iter()
        .find_map(|(differs, what)| differs.then_some(what))
    }
}

/// A number that differs when programs differ: of the executable's length and its first and last bytes (FNV-1a).
fn program_number() -> u64 {
    let bytes = std::fs::read("/proc/self/exe").unwrap_or_default();
    let ends = bytes.iter().take(1 << 16).chain(bytes.iter().rev().take(1 << 16));
    let start = 0xcbf2_9ce4_8422_2325 ^ bytes.len() as u64;
    ends.fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A connection over which ranks introduce themselves.
pub(super) trait Socket: Read + Write + Into<OwnedFd> {
    /// Reads fail when nothing came for so long.
    fn limit(&self, patience: Duration) -> io::Result<()>;
}

impl Socket for UnixStream {
    fn limit(&self, patience: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(patience))
    }
}

/// What the other ranks said, and the connections to them; none for this rank itself.
pub(super) type Met = Vec<Option<(Join, OwnedFd)>>;

/// Connects this rank with all others.
pub(super) fn meet(job: &Job, join: &Join, patience: Duration) -> Result<Met, MeetError> {
    match &job.meet {
        Some(Meet::Folder(place)) if job.ranks > 1 => meet_in(place, job, join, patience),
        Some(Meet::Address(address)) if job.ranks > 1 => tcp::meet_at(address, job, join, patience),
        _ => Ok(vec![None]),
    }
}

fn meet_in(place: &Path, job: &Job, join: &Join, patience: Duration) -> Result<Met, MeetError> {
    let failed = |source| MeetError::Place { path: place.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place).map_err(failed)?;
    let mine = socket_of(place, job.rank);
    // Left by a rank of an earlier job of the same name.
    let _ = std::fs::remove_file(&mine);
    let listener = UnixListener::bind(&mine).map_err(failed)?;
    let mut meeting = Meeting::new(job, join, patience);
    let deadline = meeting.deadline;
    meeting.introduce(
        0..job.rank.0,
        |rank| connect(deadline, || UnixStream::connect(socket_of(place, rank))),
        || is_ready(&listener, deadline).then(|| listener.accept().ok().map(|(stream, _)| stream)).flatten(),
    )?;
    // Everyone who needs it has connected. The directory goes with the last socket, unless the launcher keeps it.
    let _ = std::fs::remove_file(&mine);
    if job.launcher.is_none() {
        let _ = std::fs::remove_dir(place);
    }
    Ok(meeting.met)
}

/// This rank's account of whom it has met.
pub(super) struct Meeting<'a> {
    job: &'a Job,
    join: &'a Join,
    patience: Duration,
    pub(super) deadline: Instant,
    pub(super) met: Met,
}

impl<'a> Meeting<'a> {
    pub(super) fn new(job: &'a Job, join: &'a Join, patience: Duration) -> Self {
        let met = (0..job.ranks).map(|_| None).collect();
        Self { job, join, patience, deadline: Instant::now() + patience, met }
    }

    /// Connects to the ranks of a range, and waits for those above this one.
    pub(super) fn introduce<S: Socket>(
        &mut self,
        below: Range<u16>,
        mut connect: impl FnMut(Rank) -> Option<S>,
        mut accept: impl FnMut() -> Option<S>,
    ) -> Result<(), MeetError> {
        let mut asked = Vec::new();
        for rank in below.map(Rank) {
            let mut stream = connect(rank).ok_or_else(|| self.missing())?;
            self.say(&mut stream)?;
            asked.push(stream);
        }
        for _ in self.job.rank.0 + 1..self.job.ranks {
            let mut stream = accept().ok_or_else(|| self.missing())?;
            let theirs = self.hear(&mut stream)?;
            // Answered before it is judged, so that both sides learn of a difference.
            self.say(&mut stream)?;
            self.place(theirs, stream)?;
        }
        for mut stream in asked {
            let theirs = self.hear(&mut stream)?;
            self.place(theirs, stream)?;
        }
        Ok(())
    }

    pub(super) fn say(&self, stream: &mut impl Socket) -> Result<(), MeetError> {
        stream.write_all(&self.join.encode()).map_err(|_| self.stranger())
    }

    pub(super) fn hear(&self, stream: &mut impl Socket) -> Result<Join, MeetError> {
        let mut bytes = [0; HEADER_BYTES + JOIN_BYTES];
        self.read(stream, &mut bytes)?;
        Join::decode(&bytes).ok_or_else(|| self.stranger())
    }

    pub(super) fn read(&self, stream: &mut impl Socket, bytes: &mut [u8]) -> Result<(), MeetError> {
        let left = self.deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        stream.limit(left).and_then(|()| stream.read_exact(bytes)).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => self.missing(),
            _ => self.stranger(),
        })
    }

    /// Takes a rank in, if it is one of this job.
    pub(super) fn place(&mut self, theirs: Join, stream: impl Socket) -> Result<(), MeetError> {
        let (rank, other) = (self.job.rank, theirs.rank);
        if let Some(what) = self.join.difference(&theirs) {
            return Err(MeetError::Differs { rank, other, what });
        }
        match self.met.get_mut(usize::from(other.0)) {
            Some(slot) if slot.is_none() && other != rank => *slot = Some((theirs, stream.into())),
            _ => return Err(MeetError::Differs { rank, other, what: "its number, which another rank has too" }),
        }
        Ok(())
    }

    pub(super) fn stranger(&self) -> MeetError {
        MeetError::Stranger { rank: self.job.rank }
    }

    /// Who did not come.
    pub(super) fn missing(&self) -> MeetError {
        let mut ranks = RankSet::EMPTY;
        for rank in (0..self.job.ranks).map(Rank) {
            if self.met[usize::from(rank.0)].is_none() && rank != self.job.rank {
                ranks.insert(rank);
            }
        }
        let names: Vec<String> = ranks.iter().take(8).map(|rank| rank.to_string()).collect();
        let more = if ranks.len() > 8 { " and others" } else { "" };
        let missing = format!("ranks {}{more}", names.join(", "));
        MeetError::Missing { rank: self.job.rank, seconds: self.patience.as_secs(), missing }
    }
}

fn socket_of(place: &Path, rank: Rank) -> PathBuf {
    place.join(rank.0.to_string())
}

/// Connects, again and again until the deadline: who is to answer may not have begun.
pub(super) fn connect<S>(deadline: Instant, mut once: impl FnMut() -> io::Result<S>) -> Option<S> {
    loop {
        match once() {
            Ok(stream) => return Some(stream),
            Err(_) if Instant::now() >= deadline => return None,
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

/// Waits until somebody has connected.
pub(super) fn is_ready(listener: &impl AsFd, deadline: Instant) -> bool {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
    left.is_some_and(|left| poll(&mut fds, Some(&left)).is_ok_and(|count| count > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rank: u16, ranks: u16, place: &Path) -> Job {
        let mut job = Job::from_env(|_| None).expect("nothing is set");
        (job.rank, job.ranks, job.meet) = (Rank(rank), ranks, Some(Meet::Folder(place.to_owned())));
        job
    }

    fn all(jobs: Vec<Job>, patience: Duration) -> Vec<Result<Met, MeetError>> {
        let meet_one = |job: Job| std::thread::spawn(move || meet(&job, &Join::of(&job, job.rank.0.into()), patience));
        let threads: Vec<_> = jobs.into_iter().map(meet_one).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    /// A port that was free a moment ago.
    fn address() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").to_string()
    }

    #[test]
    fn everyone_meets_everyone() {
        let place = tempfile::tempdir().expect("a directory");
        check((0..5).map(|rank| job(rank, 5, place.path())).collect());
        let address = Some(Meet::Address(address()));
        check((0..5).map(|rank| Job { meet: address.clone(), ..job(rank, 5, place.path()) }).collect());
    }

    fn check(jobs: Vec<Job>) {
        let met = all(jobs, Duration::from_secs(20));
        for (rank, met) in met.into_iter().enumerate() {
            let met = met.expect("all are there");
            let others: Vec<usize> = (0..5).filter(|other| met[*other].is_some()).collect();
            assert_eq!(others, (0..5).filter(|other| *other != rank).collect::<Vec<_>>());
            assert!((0..5).all(|other| met[other].as_ref().is_none_or(|(join, _)| join.memory as usize == other)));
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let place = tempfile::tempdir().expect("a directory");
        let met = all(vec![job(0, 3, place.path()), job(2, 3, place.path())], Duration::from_millis(300));
        let said: Vec<String> = met.into_iter().map(|met| met.expect_err("one is missing").to_string()).collect();
        assert!(said[1].contains("rank 2 waited") && said[1].contains("1"), "{said:?}");
        assert!(said[0].contains("ranks 1") || said[0].contains("rank 0"), "{said:?}");
    }

    #[test]
    fn links_do_not_leave_the_machine_unasked() {
        let mut job = job(0, 2, Path::new("/"));
        job.meet = Some(Meet::Address("192.0.2.1:9".to_owned()));
        let said = meet(&job, &Join::of(&job, 0), Duration::from_secs(1)).expect_err("unguarded").to_string();
        assert!(said.contains("192.0.2.1:9") && said.contains("HANARE_TRUSTED_NETWORK"), "{said}");
    }

    #[test]
    fn ranks_with_other_settings_are_told_so_on_both_sides() {
        let place = tempfile::tempdir().expect("a directory");
        let mut other = job(1, 2, place.path());
        other.protocol = Protocol::Update;
        for met in all(vec![job(0, 2, place.path()), other], Duration::from_secs(20)) {
            let said = met.expect_err("they differ").to_string();
            assert!(said.contains("differs") && said.contains("protocol"), "{said}");
        }
    }
}
