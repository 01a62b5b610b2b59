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
                match Join::decode(&bytes) {
                    // The kernel does not tell whose a closed connection was. The other rank may have dropped it.
                    _ if !may_be && has_hung_up(&line.stream) => {}
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
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use hanare_wire::frame::HEADER_BYTES;

    use super::super::reception::say;
    use super::*;
    use crate::coherence::Protocol;

    /// Makes the settings of a rank that meets in the folder `place`.
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

    /// Returns an address of this host with a port that was just free.
    fn address() -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        listener.local_addr().expect("an address").to_string()
    }

    #[test]
    fn everyone_meets_everyone() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("ranks");
        check((0..5).map(|rank| job(rank, 5, &folder)).collect());
        let address = Some(Meet::Address(address()));
        check((0..5).map(|rank| Job { meet: address.clone(), ..job(rank, 5, &folder) }).collect());
    }

    #[test]
    fn ranks_with_one_key_meet_by_tcp_and_others_do_not() {
        let place = tempfile::tempdir().expect("a directory");
        let key = |name: &str, text: &str| {
            let path = place.path().join(name);
            std::fs::write(&path, text).expect("a key");
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("its mode");
            Some(path)
        };
        let (right, wrong) = (key("right", "0123456789abcdef"), key("wrong", "0123456789abcdeF"));
        let by_tcp = |rank, ranks, address: &String, key: &Option<PathBuf>| {
            let meet = Some(Meet::Address(address.clone()));
            Job { meet, key: key.clone(), ..job(rank, ranks, place.path()) }
        };
        let meeting = address();
        check((0..5).map(|rank| by_tcp(rank, 5, &meeting, &right)).collect());
        for other in [wrong, None] {
            let meeting = address();
            let jobs = vec![by_tcp(0, 2, &meeting, &right), by_tcp(1, 2, &meeting, &other)];
            for met in all(jobs, Duration::from_millis(700)) {
                let said = met.expect_err("they have not the same key").to_string();
                assert!(said.contains("waited") || said.contains("is no rank of this user"), "{said}");
            }
        }
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
    fn strangers_are_dropped_and_the_ranks_meet() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("ranks");
        let address = address();
        let in_folder = |rank| job(rank, 3, &folder);
        let by_tcp = |rank| Job { meet: Some(Meet::Address(address.clone())), ..in_folder(rank) };
        let (path, at) = (folder.join("0"), address.clone());
        check_among_strangers(&in_folder, move || UnixStream::connect(&path).map(OwnedFd::from));
        check_among_strangers(&by_tcp, move || TcpStream::connect(&at).map(OwnedFd::from));
    }

    /// Starts rank 0, then lets strangers connect, then starts the other ranks. Checks that all ranks meet.
    fn check_among_strangers(job: &dyn Fn(u16) -> Job, connect: impl Fn() -> io::Result<OwnedFd>) {
        let began = Instant::now();
        let patience = Duration::from_secs(20);
        let meet_one = |rank: u16| {
            let job = job(rank);
            std::thread::spawn(move || meet(&job, &Join::of(&job, rank.into()), patience))
        };
        let first = meet_one(0);
        let hello = Join::of(&job(1), 1);
        let big = Join { rank: Rank(60_000), ranks: 65_000, region_bytes: u64::MAX, job: 1, ..hello };
        let mut long = hello.encode();
        long[..HEADER_BYTES].fill(0xff);
        let said: [&[u8]; 6] = [
            &[],
            b"GET / HTTP/1.0\r\n\r\n",
            &hello.encode()[..40],
            &Join { job: 77, ..hello }.encode(),
            &big.encode(),
            &long,
        ];
        let mut strangers = Vec::new();
        for turn in 0..200 {
            let stream = (0..2000).find_map(|_| {
                let stream = connect().ok();
                stream.is_none().then(|| std::thread::sleep(Duration::from_millis(1)));
                stream
            });
            let stream = stream.expect("rank 0 is there");
            // Rank 0 may drop a stranger while the stranger sends. It must not drop the first stranger.
            let is_said = say(&stream, said[turn % said.len()], Instant::now()).is_ok();
            assert!(is_said || turn > 0);
            strangers.push(stream);
        }
        let others = [meet_one(1), meet_one(2)];
        for met in [first].into_iter().chain(others) {
            let met = met.join().expect("no panic").expect("strangers are nobody's business");
            assert_eq!(met.iter().flatten().count(), 2);
        }
        assert!(began.elapsed() < Duration::from_secs(10), "nobody waits for strangers: {:?}", began.elapsed());
        drop(strangers);
        assert!(connect().is_err(), "nobody listens any more");
    }

    #[test]
    fn ranks_of_another_job_are_told_so_and_disturb_nobody() {
        let place = tempfile::tempdir().expect("a directory");
        let address = Some(Meet::Address(address()));
        let of = |rank, number| Job { meet: address.clone(), number, ..job(rank, 2, place.path()) };
        let patience = Duration::from_secs(20);
        let first = std::thread::spawn({
            let job = of(0, 5);
            move || meet(&job, &Join::of(&job, 0), patience)
        });
        let other = of(1, 6);
        let said = meet(&other, &Join::of(&other, 0), patience).expect_err("another job").to_string();
        assert!(said.contains("rank 1 differs from rank 0 in the job"), "{said}");
        let right = of(1, 5);
        assert!(meet(&right, &Join::of(&right, 0), patience).is_ok());
        assert!(first.join().expect("no panic").is_ok());
    }

    #[test]
    fn a_rank_that_ends_among_those_that_meet_is_lost() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("ranks");
        let met = all(vec![job(0, 3, &folder), Job { ranks: 3, ..job(1, 3, &folder) }], Duration::from_secs(1));
        assert!(met.iter().all(Result::is_err), "rank 2 does not come");
        let first = std::thread::spawn({
            let job = job(0, 3, &folder);
            move || meet(&job, &Join::of(&job, 0), Duration::from_secs(20))
        });
        // Rank 1 gives up before rank 0 does.
        let second = job(1, 3, &folder);
        let began = Instant::now();
        meet(&second, &Join::of(&second, 0), Duration::from_millis(500)).expect_err("rank 2 does not come");
        let lost = first.join().expect("no panic").expect_err("rank 1 is gone");
        assert_eq!(lost.exit_code(), EXIT_LOST);
        assert!(lost.to_string().contains("rank 0 lost rank 1"), "{lost}");
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn what_the_launcher_says_of_a_rank_ends_the_wait() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("ranks");
        Folder::open(&folder).expect("a folder");
        let first = Job { launcher: Some(1), ..job(0, 2, &folder) };
        std::fs::write(folder.join(ENDED), "1\n").expect("a note");
        let lost = meet(&first, &Join::of(&first, 0), Duration::from_secs(20)).expect_err("rank 1 has ended");
        assert!(lost.to_string().contains("rank 0 lost rank 1"), "{lost}");
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
        let place = tempfile::tempdir().expect("a directory");
        let path = |name: &str| place.path().join(name);
        for (name, mode) in [("open", 0o777), ("group", 0o750), ("own", 0o700)] {
            std::fs::DirBuilder::new().create(path(name)).expect("a directory");
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(mode)).expect("its mode");
        }
        std::fs::DirBuilder::new().mode(0o700).create(path("theirs")).expect("a directory");
        // Only root can change a directory's owner, so only root can test this case.
        let is_given = std::os::unix::fs::chown(path("theirs"), Some(65_534), None).is_ok();
        symlink(path("own"), path("link")).expect("a link");
        std::fs::write(path("file"), "").expect("a file");
        for (name, part) in [
            ("open", Some("has mode 0777")),
            ("group", Some("has mode 0750")),
            ("theirs", is_given.then_some("belongs to user 65534")),
            ("link", Some("symbolic link")),
            ("file", Some("no directory")),
        ] {
            let Some(part) = part else { continue };
            let first = job(0, 2, &path(name));
            let error = meet(&first, &Join::of(&first, 0), Duration::from_millis(50)).expect_err(name);
            let said = error.to_string();
            assert!(
                said.contains(part) && said.contains("remove it") && error.exit_code() == EXIT_OWN,
                "{name}: {said}"
            );
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let place = tempfile::tempdir().expect("a directory");
        let folder = place.path().join("ranks");
        let met = all(vec![job(0, 3, &folder), job(2, 3, &folder)], Duration::from_millis(300));
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
        let folder = place.path().join("ranks");
        let mut other = job(1, 2, &folder);
        other.protocol = Protocol::Update;
        for met in all(vec![job(0, 2, &folder), other], Duration::from_secs(20)) {
            let said = met.expect_err("they differ").to_string();
            assert!(said.contains("differs") && said.contains("protocol"), "{said}");
        }
    }
}
