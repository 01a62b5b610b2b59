//! Tests of the meeting: ranks come in any order, among strangers, with other keys and other settings.

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
    let all = [first, meet_one(1), meet_one(2)];
    // A rank keeps its links until its program ends. Others may not have looked yet whose they are.
    let all = all.map(|met| met.join().expect("no panic").expect("strangers are nobody's business"));
    assert!(all.iter().all(|met| met.iter().flatten().count() == 2));
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
        assert!(said.contains(part) && said.contains("remove it") && error.exit_code() == EXIT_OWN, "{name}: {said}");
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
    let by_tcp = Some(Meet::Address(address()));
    for meet in [job(0, 2, &folder).meet, by_tcp] {
        let first = Job { meet: meet.clone(), ..job(0, 2, &folder) };
        let other = Job { meet, protocol: Protocol::Update, ..job(1, 2, &folder) };
        for met in all(vec![first, other], Duration::from_secs(20)) {
            let said = met.expect_err("they differ").to_string();
            assert!(said.contains("differs") && said.contains("protocol"), "{said}");
        }
    }
}
