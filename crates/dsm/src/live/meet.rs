//! How ranks find each other and compare their settings. On one host, each rank has a socket in one directory. Across
//! hosts, each rank listens at a port of its own. All ranks know the address of rank 0, which sends them the other
//! addresses.
//!
//! A caller that is not a rank of the job is dropped (`reception`). A rank that was dropped by mistake connects again.

use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hanare_wire::KeyError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::fatal::{EXIT_LOST, EXIT_OWN};
use super::folder::{self, Folder, FolderError};
use super::job::{Job, Meet};
use super::join::HELLO_BYTES;
pub(super) use super::join::Join;
use super::line::Line;
use super::reception::{Door, Guard, Hello, Reception};
use super::tcp;
use crate::coherence::{Rank, RankSet};

/// Pause between two attempts to reach a rank that is not there yet.
const TRY_AGAIN: Duration = Duration::from_millis(2);
/// Pause between two checks for a lost rank.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Name of the file in the folder in which the launcher writes the number of a rank that has ended.
const ENDED: &str = "ended";

/// Why the ranks did not meet.
#[derive(Debug, thiserror::Error)]
pub(super) enum MeetError {
    /// The directory cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A socket could not be made.
    #[error("cannot meet the other ranks in {path}: {source}; check that the directory can be written")]
    Place {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This rank cannot accept connections.
    #[error(
        "rank {rank} cannot let other ranks in: {source}; raise the limit on descriptors ('ulimit -n'), or free memory"
    )]
    Shut {
        /// This rank.
        rank: Rank,
        /// The system's error.
        source: io::Error,
    },
    /// Rank 0 cannot be met at its address.
    #[error("cannot meet at {address}, where rank 0 is: {source}; set HANARE_RANK0=HOST:PORT to a free port there")]
    Address {
        /// The address as given or derived.
        address: String,
        /// The system's error.
        source: io::Error,
    },
    /// The links would leave the machine without protection.
    #[error(
        "{0} is another machine's or reachable from others, and links between ranks are not guarded without a key: set \
         HANARE_KEY_FILE to a key that all ranks have, or meet at an address of loopback, or set \
         HANARE_TRUSTED_NETWORK=yes where nobody else is on the network"
    )]
    Unguarded(SocketAddr),
    /// The key file cannot be used.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Some ranks did not arrive in time.
    #[error(
        "rank {rank} waited {seconds} s for {missing}; check that every rank was started, calls dsm_startup, and is \
             on this host"
    )]
    Missing {
        /// This rank.
        rank: Rank,
        /// The time waited.
        seconds: u64,
        /// The missing ranks.
        missing: String,
    },
    /// The settings of another rank of this job differ from this rank's.
    #[error(
        "rank {rank} differs from rank {other} in {what}; start the same program with the same settings everywhere"
    )]
    Differs {
        /// This rank.
        rank: Rank,
        /// The other rank.
        other: Rank,
        /// The setting that differs.
        what: &'static str,
    },
    /// A rank's number is already used.
    #[error("two processes say that they are rank {0}; give each process a HANARE_RANK of its own")]
    Twice(Rank),
    /// The process that answered is not a rank, or it is a rank of another release or user.
    #[error(
        "what answered rank {rank} where rank {other} should be is no rank of this user and this release of hanare; \
             use the same release everywhere, and an address or a directory that nothing else uses"
    )]
    Stranger {
        /// This rank.
        rank: Rank,
        /// The rank that should have answered.
        other: Rank,
    },
    /// A rank ended before all ranks had met.
    #[error("rank {rank} lost rank {other}: it ended before all ranks had met, or was killed; look at what it said")]
    Lost {
        /// This rank.
        rank: Rank,
        /// The other rank.
        other: Rank,
    },
}

impl MeetError {
    /// Returns the exit code for the error.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            MeetError::Lost { .. } => EXIT_LOST,
            _ => EXIT_OWN,
        }
    }
}

/// The other ranks' introductions, and the connections to them. `None` for this rank itself.
pub(super) type Met = Vec<Option<(Join, Line)>>;

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
    let folder = Folder::open(place)?;
    let mine = folder.socket_of(job.rank);
    // Removes a socket that an earlier job of the same name has left behind.
    folder::remove(&mine).map_err(failed)?;
    let listener = UnixListener::bind(&mine).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    // Only processes of this user reach the folder, so its links need no key.
    let mut meeting = Meeting::new(job, Guard::User, join, patience);
    meeting.introduce(0..job.rank.0, &listener, |rank| folder.connect(rank))?;
    // All ranks that need this socket have connected. Without a launcher, each rank tries to remove the directory, and
    // the last one succeeds.
    folder::remove(&mine).map_err(failed)?;
    if job.launcher.is_none() {
        // Ignored: this fails while another rank's socket is in the directory. If the directory stays, the next job of
        // this name uses it.
        let _ = std::fs::remove_dir(place);
    }
    Ok(meeting.met)
}

/// The ranks that this rank has met.
pub(super) struct Meeting<'a> {
    job: &'a Job,
    pub(super) guard: Guard<'a>,
    pub(super) join: &'a Join,
    patience: Duration,
    pub(super) deadline: Instant,
    pub(super) met: Met,
    looked: Instant,
}

impl<'a> Meeting<'a> {
    /// Only ranks that `guard` lets in are met. With a key, what they say is encrypted.
    pub(super) fn new(job: &'a Job, guard: Guard<'a>, join: &'a Join, patience: Duration) -> Self {
        let met = (0..job.ranks).map(|_| None).collect();
        let now = Instant::now();
        Self { job, guard, join, patience, deadline: now + patience, met, looked: now }
    }

    /// Connects to the ranks `below`, answers the ranks above this rank, and then waits for the answers of `below`. So
    /// no cycle of ranks waits for each other.
    pub(super) fn introduce(
        &mut self,
        below: Range<u16>,
        door: &impl Door,
        connect: impl Fn(Rank) -> io::Result<OwnedFd>,
    ) -> Result<(), MeetError> {
        let hello = self.join.encode();
        let mut asked = Vec::new();
        for rank in below.clone().map(Rank) {
            asked.push(self.ask(&hello, || connect(rank))?);
        }
        let mut reception = Reception::new(door, self.guard, HELLO_BYTES, usize::from(self.job.ranks));
        for _ in self.job.rank.0 + 1..self.job.ranks {
            self.welcome(&mut reception)?;
        }
        for (rank, line) in below.map(Rank).zip(asked) {
            self.be_answered(rank, line, &hello, || connect(rank))?;
        }
        Ok(())
    }

    /// Connects to a rank and sends it this rank's introduction. Retries until the deadline, because that rank may not
    /// have started yet.
    pub(super) fn ask(&mut self, hello: &[u8], connect: impl Fn() -> io::Result<OwnedFd>) -> Result<Line, MeetError> {
        loop {
            // The other rank answers a handshake when it has asked the ranks below itself.
            let called = connect().and_then(|stream| Line::call(stream, self.guard.key(), self.deadline));
            if let Ok(mut line) = called
                && line.say(hello, self.deadline).is_ok()
            {
                return Ok(line);
            }
            self.is_in_time()?;
            std::thread::sleep(TRY_AGAIN);
        }
    }

    /// Waits for the answer of a rank that was asked. If the connection ends without an answer, asks again, because the
    /// other rank may have dropped the connection among many callers.
    pub(super) fn be_answered(
        &mut self,
        other: Rank,
        mut line: Line,
        hello: &[u8],
        connect: impl Fn() -> io::Result<OwnedFd>,
    ) -> Result<(), MeetError> {
        loop {
            let mut bytes = [0; HELLO_BYTES];
            if self.read(&mut line, &mut bytes)? {
                let stranger = MeetError::Stranger { rank: self.job.rank, other };
                let may_be = self.guard.may_be_rank(&line.stream).map_err(|source| self.shut(source))?;
                let is_gone = !may_be && has_hung_up(&line.stream);
                match Join::decode(&bytes) {
                    // The kernel does not tell whose a closed connection was. The other rank may have dropped it, or it has
                    // ended because the two differ. A difference ends this rank, too, whoever tells it.
                    Some(theirs) if is_gone && self.join.difference(&theirs).is_some() => {
                        return self.place(theirs, line);
                    }
                    _ if is_gone => {}
                    _ if !may_be => return Err(stranger),
                    // By chance, a connection to a free port of this host may be connected to itself. In this case the
                    // loop connects again.
                    Some(theirs) if theirs == *self.join => {}
                    Some(theirs) if theirs.rank == other || self.join.difference(&theirs).is_some() => {
                        return self.place(theirs, line);
                    }
                    _ => return Err(stranger),
                }
            }
            std::thread::sleep(TRY_AGAIN);
            line = self.ask(hello, &connect)?;
        }
    }

    /// Waits until a rank of this job connects, answers it, and adds it. Returns the rank's introduction with the bytes
    /// that follow it.
    pub(super) fn welcome<D: Door>(&mut self, reception: &mut Reception<'_, D>) -> Result<Hello, MeetError> {
        loop {
            let came = reception.next(Instant::now() + LOOK_AGAIN).map_err(|source| self.shut(source))?;
            let Some((hello, mut line)) = came else {
                self.is_in_time()?;
                continue;
            };
            // The answer is sent before the check, so that both sides learn of a difference. If the rank has hung up,
            // it connects again.
            let is_answered = line.say(&self.join.encode(), self.deadline).is_ok();
            let is_one_of_us = hello.join.job == self.join.job && hello.join.rank.0 < hello.join.ranks;
            if is_answered && is_one_of_us {
                self.place(hello.join, line)?;
                return Ok(hello);
            }
        }
    }

    /// Reads a message that fills `bytes`. Returns false if the connection ends before.
    pub(super) fn read(&mut self, line: &mut Line, bytes: &mut [u8]) -> Result<bool, MeetError> {
        let mut done = 0;
        loop {
            match line.hear(&mut bytes[done..], Instant::now() + LOOK_AGAIN) {
                Ok(count) if done + count == bytes.len() => return Ok(true),
                Ok(count) => done += count,
                Err(_) => return Ok(false),
            }
            self.is_in_time()?;
        }
    }

    /// Adds a rank to `met`. Fails if the rank's settings differ from this rank's, or if its number is already used.
    fn place(&mut self, theirs: Join, line: Line) -> Result<(), MeetError> {
        let (rank, other) = (self.job.rank, theirs.rank);
        if let Some(what) = self.join.difference(&theirs) {
            return Err(MeetError::Differs { rank, other, what });
        }
        match self.met.get_mut(usize::from(other.0)) {
            Some(slot) if slot.is_none() && other != rank => *slot = Some((theirs, line)),
            _ => return Err(MeetError::Twice(other)),
        }
        Ok(())
    }

    /// Fails after the deadline, or when a rank is known to be lost.
    pub(super) fn is_in_time(&mut self) -> Result<(), MeetError> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(self.missing());
        }
        if now.duration_since(self.looked) >= LOOK_AGAIN {
            self.looked = now;
            if let Some(other) = self.lost() {
                return Err(MeetError::Lost { rank: self.job.rank, other });
            }
        }
        Ok(())
    }

    /// Returns a rank whose connection has closed, or that the launcher reports as ended.
    fn lost(&self) -> Option<Rank> {
        let is_gone = |met: &Option<(Join, Line)>| met.as_ref().is_some_and(|(_, line)| has_hung_up(&line.stream));
        let gone = self.met.iter().position(is_gone).map(|rank| Rank(rank as u16));
        gone.or_else(|| match &self.job.meet {
            Some(Meet::Folder(place)) if self.job.launcher.is_some() => {
                std::fs::read_to_string(place.join(ENDED)).ok()?.trim().parse().ok().map(Rank)
            }
            _ => None,
        })
    }

    fn shut(&self, source: io::Error) -> MeetError {
        MeetError::Shut { rank: self.job.rank, source }
    }

    /// Returns the error that names the missing ranks.
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

/// Returns whether the other end of a connection is closed.
pub(super) fn has_hung_up(stream: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests;
