//! How the ranks of one host find each other: each has a socket in one directory, and they compare what they are.

use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hanare_wire::frame::{HEADER_BYTES, Header, Kind};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::job::{Job, Transfer};
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

/// Connects this rank with all others. Returns what each said, and the connection; none for itself.
pub(super) fn meet(job: &Job, join: &Join, patience: Duration) -> Result<Vec<Option<(Join, UnixStream)>>, MeetError> {
    let Some(place) = job.meet.as_deref().filter(|_| job.ranks > 1) else { return Ok(vec![None]) };
    let deadline = Instant::now() + patience;
    let failed = |source| MeetError::Place { path: place.to_owned(), source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(place).map_err(failed)?;
    let mine = socket_of(place, job.rank);
    // Left by a rank of an earlier job of the same name.
    let _ = std::fs::remove_file(&mine);
    let listener = UnixListener::bind(&mine).map_err(failed)?;
    let mut met: Vec<Option<(Join, UnixStream)>> = (0..job.ranks).map(|_| None).collect();
    let mut asked = Vec::new();
    for rank in (0..job.rank.0).map(Rank) {
        let mut stream = connect(&socket_of(place, rank), deadline).ok_or_else(|| missing(job, &met, patience))?;
        stream.write_all(&join.encode()).map_err(|_| MeetError::Stranger { rank: job.rank })?;
        asked.push(stream);
    }
    for _ in job.rank.0 + 1..job.ranks {
        let mut stream = accept(&listener, deadline).ok_or_else(|| missing(job, &met, patience))?;
        let theirs = take(job, &mut stream, deadline)?;
        // Answered before it is judged, so that both sides learn of a difference.
        stream.write_all(&join.encode()).map_err(|_| MeetError::Stranger { rank: job.rank })?;
        place_at(job, join, theirs, stream, &mut met)?;
    }
    for mut stream in asked {
        let theirs = take(job, &mut stream, deadline)?;
        place_at(job, join, theirs, stream, &mut met)?;
    }
    // Everyone who needs it has connected. The directory goes with the last socket, unless the launcher keeps it.
    let _ = std::fs::remove_file(&mine);
    if job.launcher.is_none() {
        let _ = std::fs::remove_dir(place);
    }
    Ok(met)
}

fn socket_of(place: &Path, rank: Rank) -> PathBuf {
    place.join(rank.0.to_string())
}

fn place_at(
    job: &Job,
    mine: &Join,
    theirs: Join,
    stream: UnixStream,
    met: &mut [Option<(Join, UnixStream)>],
) -> Result<(), MeetError> {
    let (rank, other) = (job.rank, theirs.rank);
    if let Some(what) = mine.difference(&theirs) {
        return Err(MeetError::Differs { rank, other, what });
    }
    match met.get_mut(usize::from(other.0)) {
        Some(slot) if slot.is_none() && other != rank => *slot = Some((theirs, stream)),
        _ => return Err(MeetError::Differs { rank, other, what: "its number, which another rank has too" }),
    }
    Ok(())
}

fn missing(job: &Job, met: &[Option<(Join, UnixStream)>], patience: Duration) -> MeetError {
    let mut ranks = RankSet::EMPTY;
    for rank in (0..job.ranks).map(Rank) {
        if met[usize::from(rank.0)].is_none() && rank != job.rank {
            ranks.insert(rank);
        }
    }
    let names: Vec<String> = ranks.iter().take(8).map(|rank| rank.to_string()).collect();
    let more = if ranks.len() > 8 { " and others" } else { "" };
    let missing = format!("ranks {}{more}", names.join(", "));
    MeetError::Missing { rank: job.rank, seconds: patience.as_secs(), missing }
}

fn connect(path: &Path, deadline: Instant) -> Option<UnixStream> {
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Some(stream),
            Err(_) if Instant::now() >= deadline => return None,
            Err(_) => std::thread::sleep(LOOK_AGAIN),
        }
    }
}

fn accept(listener: &UnixListener, deadline: Instant) -> Option<UnixStream> {
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok()?;
    match poll(&mut fds, Some(&left)) {
        Ok(count) if count > 0 => listener.accept().ok().map(|(stream, _)| stream),
        _ => None,
    }
}

fn take(job: &Job, stream: &mut UnixStream, deadline: Instant) -> Result<Join, MeetError> {
    let stranger = MeetError::Stranger { rank: job.rank };
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    if stream.set_read_timeout(Some(left)).is_err() {
        return Err(stranger);
    }
    let mut bytes = [0; HEADER_BYTES + JOIN_BYTES];
    stream.read_exact(&mut bytes).map_err(|_| MeetError::Stranger { rank: job.rank })?;
    Join::decode(&bytes).ok_or(stranger)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(rank: u16, ranks: u16, place: &Path) -> Job {
        let mut job = Job::from_env(|_| None).expect("nothing is set");
        (job.rank, job.ranks, job.meet) = (Rank(rank), ranks, Some(place.to_owned()));
        job
    }

    type Met = Result<Vec<Option<(Join, UnixStream)>>, MeetError>;

    fn all(jobs: Vec<Job>, patience: Duration) -> Vec<Met> {
        let meet_one = |job: Job| std::thread::spawn(move || meet(&job, &Join::of(&job, job.rank.0.into()), patience));
        let threads: Vec<_> = jobs.into_iter().map(meet_one).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    #[test]
    fn everyone_meets_everyone() {
        let place = tempfile::tempdir().expect("a directory");
        let met = all((0..5).map(|rank| job(rank, 5, place.path())).collect(), Duration::from_secs(20));
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
