//! Tests of the same-host link: grants, limits and returns. No session may read the slots of an unrelated session.

mod common;

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use common::{Client, MIB, SOON, TestServer};
use hanare_wire::{Attachment, ErrorCode, Grant, LinkError, Place};

/// Returns the file that `place` names: the session's memfd or its spill file.
fn file(attachment: &Attachment, place: Place) -> File {
    let fd = match place {
        Place::Memory => attachment.memfd.as_fd(),
        Place::Spill => attachment.spill.as_ref().expect("a spill file").as_fd(),
    };
    fd.try_clone_to_owned().expect("a descriptor").into()
}

fn slots(runs: &[Grant], place: Place) -> u64 {
    runs.iter().filter(|run| run.place == place).map(|run| u64::from(run.count)).sum()
}

/// Checks that every slot of the runs reads as zeroes. Then fills each slot with a word made of `salt` and the slot's
/// number, and reads all slots back.
fn use_slots(attachment: &Attachment, runs: &[Grant], salt: u64) {
    let size = u64::from(attachment.slot_size);
    let word = |run: &Grant, slot: u64| (salt << 40 | (run.place as u64) << 32 | slot).to_le_bytes();
    let numbers = |run: &Grant| u64::from(run.first_slot)..u64::from(run.first_slot) + u64::from(run.count);
    for run in runs {
        let file = file(attachment, run.place);
        for slot in numbers(run) {
            let mut old = vec![1; size as usize];
            file.read_exact_at(&mut old, slot * size).expect("the file covers its slots");
            assert!(old.iter().all(|byte| *byte == 0), "a granted slot must read as zeroes");
            file.write_all_at(&word(run, slot).repeat(size as usize / 8), slot * size).expect("written");
        }
    }
    for run in runs {
        let file = file(attachment, run.place);
        for slot in numbers(run) {
            let mut bytes = vec![0; size as usize];
            file.read_exact_at(&mut bytes, slot * size).expect("read");
            assert!(bytes.chunks(8).all(|chunk| chunk == word(run, slot)), "{run:?} slot {slot}");
        }
    }
}

#[test]
fn grants_hold_what_is_written_and_come_back_as_zeroes() {
    let server = TestServer::start(64 * MIB);
    let mut attachment = Attachment::open(&server.unix_path(), 65536).expect("attached");
    assert!(attachment.spill.is_none() && attachment.capacity_bytes == 64 * MIB);
    assert_eq!(
        File::from(attachment.memfd.try_clone().expect("a descriptor")).metadata().expect("size").len(),
        64 * MIB
    );
    let runs = attachment.grant(100).expect("granted");
    assert_eq!(slots(&runs, Place::Memory), 100);
    assert_eq!(runs.len(), 1, "a fresh file has one long run: {runs:?}");
    use_slots(&attachment, &runs, 1);
    let status = server.status();
    assert_eq!((status.sessions, status.slots, status.memory_bytes), (1, 100, 100 * 65536));

    attachment.give_back(runs[0].first_slot + 10, 20, Place::Memory).expect("taken back");
    attachment.give_back(runs[0].first_slot + 50, 5, Place::Memory).expect("taken back");
    assert_eq!(server.status().memory_bytes, 75 * 65536);
    let again = attachment.grant(25).expect("granted");
    let mut given: Vec<_> = again.iter().map(|run| (run.first_slot, run.count)).collect();
    given.sort_unstable();
    assert_eq!(given, [(10, 20), (50, 5)], "freed slots come first");
    use_slots(&attachment, &again, 2);
}

#[test]
fn memory_then_spill_then_full() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(8 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    let mut attachment = Attachment::open(&server.unix_path(), 1 << 20).expect("attached");
    let runs = attachment.grant(20).expect("granted");
    assert_eq!((slots(&runs, Place::Memory), slots(&runs, Place::Spill)), (8, 12));
    use_slots(&attachment, &runs, 3);
    let status = server.status();
    assert_eq!((status.slots, status.memory_bytes, status.spill_bytes), (20, 8 * MIB, 12 * MIB));
    assert_eq!(std::fs::read_dir(spill.path()).expect("list").count(), 0, "the spill file has no name");

    let of = |place| *runs.iter().find(|run| run.place == place).expect("such a run");
    let (memory, spilled) = (of(Place::Memory), of(Place::Spill));
    attachment.give_back(memory.first_slot, 1, Place::Memory).expect("taken back");
    attachment.give_back(spilled.first_slot, 2, Place::Spill).expect("taken back");
    let runs = attachment.grant(2).expect("granted");
    assert_eq!((slots(&runs, Place::Memory), slots(&runs, Place::Spill)), (1, 1));
    use_slots(&attachment, &runs, 4);

    // The server's memory is used up, so the pages of another session go to the spill file.
    let mut other = Client::open(&server.tcp, 4096);
    other.write(0, &[1; 4096]).expect("spilled");
    assert_eq!(server.status().memory_bytes, 8 * MIB);
}

#[test]
fn full_when_nothing_is_left_and_less_when_little_is() {
    let server = TestServer::start(8 * MIB);
    let mut first = Attachment::open(&server.unix_path(), 1 << 20).expect("attached");
    let mut second = Attachment::open(&server.unix_path(), 1 << 20).expect("attached");
    assert_eq!(slots(&first.grant(6).expect("granted"), Place::Memory), 6);
    assert_eq!(slots(&second.grant(6).expect("granted"), Place::Memory), 2, "the limit is the server's");
    assert!(matches!(second.grant(1), Err(LinkError::Full)));
    let far = Client::open(&server.unix, 4096).write(0, &[1; 4096]).expect("an answer");
    assert_eq!(far, hanare_wire::AckStatus::Full);
    drop(first);
    server.status_until(|status| status.memory_bytes == 2 * MIB);
    assert_eq!(slots(&second.grant(6).expect("granted"), Place::Memory), 6);
}

/// The slots of a client that has hung up are another client's at once, however late the thread of its session runs.
#[test]
fn a_client_has_the_slots_of_one_that_has_just_gone() {
    let server = TestServer::start(4 * MIB);
    let attach = || Attachment::open(&server.unix_path(), 65536).expect("attached");
    let mut last = attach();
    for round in 0..50 {
        assert_eq!(slots(&last.grant(64).expect("granted"), Place::Memory), 64, "round {round}");
        let mut next = attach();
        assert!(matches!(next.grant(1), Err(LinkError::Full)), "the server must be full");
        last = next;
    }
}

/// The server keeps the blocks of ended remote sessions for reuse. A grant must be able to use the memory of these
/// blocks.
#[test]
fn grants_get_the_memory_that_free_blocks_held() {
    let server = TestServer::start(8 * MIB);
    let mut far = Client::open(&server.tcp, 2 << 20);
    for n in 0..4 {
        far.write(n * 2 * MIB, &vec![1; 2 << 20]).expect("an answer");
    }
    drop(far);
    server.status_until(|status| status.memory_free_bytes == 8 * MIB);
    let mut attachment = Attachment::open(&server.unix_path(), 4096).expect("attached");
    assert_eq!(attachment.capacity_bytes, 8 * MIB);
    let runs = attachment.grant(1500).expect("granted");
    assert_eq!(slots(&runs, Place::Memory), 1500);
    use_slots(&attachment, &runs, 5);
    assert!(server.status().memory_bytes <= 8 * MIB);
}

#[test]
fn every_session_has_files_of_its_own() {
    let server = TestServer::start(8 * MIB);
    let mut first = Attachment::open(&server.unix_path(), 4096).expect("attached");
    let mut second = Attachment::open(&server.unix_path(), 4096).expect("attached");
    let (a, b) = (file(&first, Place::Memory), file(&second, Place::Memory));
    assert_ne!(a.metadata().expect("data").ino(), b.metadata().expect("data").ino());
    let (of_first, of_second) = (first.grant(4).expect("granted"), second.grant(4).expect("granted"));
    use_slots(&first, &of_first, 6);
    use_slots(&second, &of_second, 7);
    let mut byte = [0; 8];
    a.read_exact_at(&mut byte, 0).expect("read");
    assert_eq!(u64::from_le_bytes(byte) >> 40, 6);
    // The file's size is sealed, so a client can neither truncate the file nor grow it past the memory limit.
    assert!(a.set_len(4096).is_err() && a.set_len(16 * MIB).is_err());
}

/// When a session ends, the server no longer counts its slots. But a process that still has the session's files open
/// must find the bytes in them. Such a process is a forked child, or a client that has not noticed yet that the server
/// stops.
#[test]
fn a_session_that_ends_is_counted_no_more_and_its_files_keep_their_bytes() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(8 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    let mut attachment = Attachment::open(&server.unix_path(), 1 << 20).expect("attached");
    let runs = attachment.grant(10).expect("granted");
    use_slots(&attachment, &runs, 8);
    let kept = file(&attachment, Place::Memory);
    drop(attachment);
    let status = server.status_until(|status| status.sessions == 0);
    assert_eq!((status.slots, status.memory_bytes, status.spill_bytes), (0, 0, 0));
    let mut word = [0; 8];
    kept.read_exact_at(&mut word, 0).expect("read");
    assert_eq!(u64::from_le_bytes(word) >> 40, 8);
}

#[test]
fn wrong_returns_are_refused_and_the_link_goes_on() {
    let server = TestServer::start(8 * MIB);
    let mut attachment = Attachment::open(&server.unix_path(), 4096).expect("attached");
    let runs = attachment.grant(10).expect("granted");
    let first = runs[0].first_slot;
    for (slot, count, place) in
        [(first + 5, 6, Place::Memory), (first + 100, 1, Place::Memory), (first, 1, Place::Spill)]
    {
        let error = attachment.give_back(slot, count, place).expect_err("not granted");
        assert!(matches!(error, LinkError::Server { code: ErrorCode::BadRange, .. }), "{error:?}");
    }
    attachment.give_back(first, 10, Place::Memory).expect("taken back");
    let error = attachment.give_back(first, 10, Place::Memory).expect_err("given back twice");
    assert!(matches!(error, LinkError::Server { code: ErrorCode::BadRange, .. }), "{error:?}");
    assert_eq!(server.status().memory_bytes, 0);
    assert_eq!(slots(&attachment.grant(10).expect("granted"), Place::Memory), 10);
}

/// If all free runs are small, a grant may need more runs than a frame can carry. The server must then grant fewer
/// slots, and keep the others free.
#[test]
fn a_grant_of_many_small_runs_is_cut_short() {
    let server = TestServer::start(4 * MIB);
    let mut attachment = Attachment::open(&server.unix_path(), 4096).expect("attached");
    let all = attachment.grant(1024).expect("granted");
    assert_eq!(slots(&all, Place::Memory), 1024);
    for slot in (0..1024).step_by(2) {
        attachment.give_back(slot, 1, Place::Memory).expect("taken back");
    }
    let some = attachment.grant(512).expect("granted");
    assert_eq!((some.len(), slots(&some, Place::Memory)), (256, 256));
    assert_eq!(server.status().memory_bytes, (512 + 256) * 4096);
    assert_eq!(slots(&attachment.grant(512).expect("granted"), Place::Memory), 256);
    assert!(matches!(attachment.grant(1), Err(LinkError::Full)));
}

#[test]
fn a_dead_server_is_noticed() {
    let server = TestServer::start(8 * MIB);
    let mut attachment = Attachment::open(&server.unix_path(), 4096).expect("attached");
    assert!(attachment.is_alive());
    server.stop.stop();
    server.join();
    assert!(!attachment.is_alive());
    assert!(matches!(attachment.grant(1), Err(LinkError::Closed)));
    let mut ready = [rustix::event::PollFd::new(&attachment, rustix::event::PollFlags::IN)];
    let timeout = rustix::event::Timespec { tv_sec: SOON.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(rustix::event::poll(&mut ready, Some(&timeout)), Ok(1));
}

/// A clone is granted the slots of its original session. A slot must become free when both sessions have given it back
/// or ended.
#[test]
fn a_clone_is_granted_what_its_original_is() {
    let spill = tempfile::tempdir().expect("temporary directory");
    let server = TestServer::start_with(4 * MIB, |config| {
        config.spill = Some(spill.path().to_owned());
        config.spill_margin = 0;
    });
    let mut parent = Attachment::open(&server.unix_path(), 65536).expect("attached");
    let runs = parent.grant(80).expect("granted");
    assert_eq!((slots(&runs, Place::Memory), slots(&runs, Place::Spill)), (64, 16));
    use_slots(&parent, &runs, 1);
    let mut child = parent.open_clone().expect("a clone");
    assert_eq!((server.status().sessions, server.status().slots), (2, 80));
    assert_eq!(child.memory_bytes, 4 << 20, "the slots lie anywhere in the file, though no memory is left");
    for run in &runs {
        let word = |slot: u64| (1 << 40 | (run.place as u64) << 32 | slot).to_le_bytes();
        let (last, mut bytes) = (u64::from(run.first_slot + run.count) - 1, vec![0; 65536]);
        file(&child, run.place).read_exact_at(&mut bytes, last * 65536).expect("read");
        assert!(bytes.chunks(8).all(|chunk| chunk == word(last)), "the clone sees its original's bytes");
    }
    // A slot that the parent gives back remains granted to the child, and keeps its bytes.
    let (memory, spilled) = (runs[0], *runs.last().expect("a run"));
    parent.give_back_runs(&[Grant { count: 10, ..memory }, Grant { count: 2, ..spilled }]).expect("taken back");
    assert!(parent.give_back(memory.first_slot, 1, Place::Memory).is_err(), "it is the parent's no more");
    assert_eq!(server.status().slots, 80);
    let mut bytes = vec![0; 65536];
    file(&child, Place::Memory).read_exact_at(&mut bytes, u64::from(memory.first_slot) * 65536).expect("read");
    assert!(bytes.iter().any(|byte| *byte != 0));
    child.give_back(memory.first_slot, 4, Place::Memory).expect("taken back");
    assert_eq!(server.status().slots, 76);
    let again = child.grant(4).expect("granted");
    assert_eq!(slots(&again, Place::Memory), 4, "freed slots of the family come first");
    use_slots(&child, &again, 2);
    // When the parent ends, the child keeps the slots that both sessions were granted.
    drop(parent);
    server.status_until(|status| status.sessions == 1);
    assert_eq!(server.status().slots, 80);
    file(&child, Place::Spill).read_exact_at(&mut bytes, u64::from(spilled.first_slot) * 65536).expect("read");
    assert!(bytes.iter().any(|byte| *byte != 0));
    let grandchild = child.open_clone().expect("a clone");
    let own = child.grant(3).expect("granted");
    assert_eq!(server.status().slots, 83);
    drop(child);
    let status = server.status_until(|status| status.sessions == 1);
    assert_eq!(status.slots, 83 - slots(&own, Place::Spill) - slots(&own, Place::Memory));
    drop(grandchild);
    let status = server.status_until(|status| status.sessions == 0);
    assert_eq!((status.slots, status.memory_bytes, status.spill_bytes), (0, 0, 0));
}

/// A client may lose access to the server's path, for example by chroot. It must be able to open further links through
/// the door (a socket pair) of an existing link.
#[test]
fn a_link_leads_to_further_ones_where_the_path_is_gone() {
    let server = TestServer::start(64 * MIB);
    let mut first = Attachment::open(&server.unix_path(), 65536).expect("attached");
    let runs = first.grant(3).expect("granted");
    std::fs::remove_file(server.unix_path()).expect("the path was there");
    let mut clone = first.open_clone().expect("a clone");
    clone.give_back_runs(&runs).expect("granted to the clone, too");
    let mut other = Attachment::open_through(clone.door.as_fd(), 4096).expect("a session of its own");
    let runs = other.grant(2).expect("granted");
    use_slots(&other, &runs, 5);
    server.stop.stop();
    server.join();
    let error = Attachment::open_through(first.door.as_fd(), 4096).expect_err("nobody is behind the door");
    assert!(matches!(error, LinkError::Closed), "{error:?}");
}

/// The server must ignore invalid messages that a client sends through the door (the socket pair that opens further
/// links).
#[test]
fn a_door_takes_nonsense() {
    let server = TestServer::start(64 * MIB);
    let first = Attachment::open(&server.unix_path(), 4096).expect("attached");
    let null = File::open("/dev/null").expect("a file");
    let send = |bytes: &[u8], files: &[std::os::fd::BorrowedFd<'_>]| {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(files.is_empty() || control.push(rustix::net::SendAncillaryMessage::ScmRights(files)));
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&first.door, &[std::io::IoSlice::new(bytes)], &mut control, flags).expect("sent");
    };
    for _ in 0..20 {
        send(b"x", &[]);
        send(b"long", &[null.as_fd()]);
        send(b"", &[null.as_fd(), first.memfd.as_fd()]);
    }
    let second = first.open_clone().expect("a clone");
    assert!(first.is_alive() && second.is_alive());
}
