//! Tests sealed pages (`--seal`) on live programs. Words stay right, also in forked children, with servers and with a
//! private server. And no server has a byte of the program, neither in its memory nor in its files.

use std::fs::File;
use std::os::unix::fs::FileExt;

use hanare_tests::{Place, Running, Served, built, mode_works, status, until};

/// The text with which the workload `secret` fills its memory.
const SECRET: &[u8] = b"what no memory server may see |\n";
const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];
/// The number of bytes that are searched at once.
const PIECE: usize = 1 << 20;
/// The maximum number of bytes of a mapping or file that are searched. Files and reservations may be large and empty.
const SEARCHED_MAX: u64 = 256 << 20;

/// Counts the occurrences of the secret in bytes.
fn hits_in(bytes: &[u8]) -> usize {
    let mut found = 0;
    let mut at = 0;
    while let Some(next) = bytes[at..].iter().position(|&byte| byte == SECRET[0]) {
        at += next;
        found += usize::from(bytes[at..].starts_with(SECRET));
        at += 1;
    }
    found
}

/// Counts the occurrences of the secret in a range of a file. Stops where the file cannot be read.
fn hits_at(file: &File, from: u64, to: u64) -> usize {
    let mut bytes = vec![0; PIECE];
    let mut found = 0;
    let mut at = from;
    let to = to.min(from + SEARCHED_MAX);
    while at < to {
        let want = bytes.len().min((to - at) as usize);
        match file.read_at(&mut bytes[..want], at) {
            Ok(count) if count > 0 => {
                found += hits_in(&bytes[..count]);
                at += count as u64;
            }
            // Some mappings cannot be read, and a file may end early.
            Ok(_) | Err(_) => break,
        }
    }
    found
}

/// Counts the occurrences of the secret in all that a process has: its memory and its open files.
fn hits(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process of this test's");
    let memory = File::open(format!("/proc/{pid}/mem")).expect("a process of this test's");
    let ranges = maps.lines().filter_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let is_readable = rest.starts_with('r') && !rest.contains("[v");
        let number = |text| u64::from_str_radix(text, 16).ok();
        is_readable.then_some((number(from)?, number(to)?))
    });
    let in_memory: usize = ranges.map(|(from, to)| hits_at(&memory, from, to)).sum();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").flatten();
    let regular = files.filter_map(|file| {
        let meta = std::fs::metadata(file.path()).ok().filter(std::fs::Metadata::is_file)?;
        Some((File::open(file.path()).ok()?, meta.len()))
    });
    in_memory + regular.map(|(file, len)| hits_at(&file, 0, len)).sum::<usize>()
}

/// Starts a program, and waits until it has written `ok NAME`.
fn keep_a_secret(place: &Place, flags: &[&str], name: &str, args: &str) -> Running {
    let json = place.path("live");
    let mut command = place.hanare(["run", "--local", "4M", "--no-warm"]);
    command.args(flags).arg("--").arg("sh").arg("-c");
    // The shell executes the workload with its output in a file, which tells that the secret was used.
    let script = format!("exec {} {args} > {}", built().workload(name).display(), json.display());
    let mut run = place.start(command.arg(script));
    until("the secret is written", || {
        assert!(run.runs(), "it ended: {}", run.said_so_far());
        std::fs::read_to_string(&json).is_ok_and(|text| text == format!("ok {name}\n"))
    });
    run
}

#[test]
fn a_server_has_no_byte_of_sealed_pages() {
    for (seal, is_seen) in [("off", true), ("on", false), ("auto", true)] {
        let place = Place::new();
        // The first server spills most of its pages to a file.
        let spill = place.path("");
        let mut command = place.hanare(["serve", "--memory", "8M", "--listen", "127.0.0.1:0", "--spill"]);
        command.arg(&spill);
        let servers = [Served::with(&place, command), Served::tcp(&place, "64M")];
        let [one, two] = [&servers[0], &servers[1]].map(|server| format!("{}=24M", server.address));
        let run = keep_a_secret(&place, &["--seal", seal, "--server", &one, "--server", &two], "secret", "32M");
        for server in &servers {
            assert!(status(&server.address).write_bytes > 4 << 20, "few pages are there");
            let found = hits(server.pid());
            assert!(if is_seen { found > 50_000 } else { found == 0 }, "--seal {seal}: {found} times");
        }
        drop(run);
    }
}

#[test]
fn a_private_server_and_its_spill_file_have_no_byte_of_sealed_pages() {
    for (seal, is_seen) in [("off", true), ("on", false)] {
        let place = Place::new();
        let spill = place.path("").display().to_string();
        let run = keep_a_secret(&place, &["--seal", seal, "--memory", "8M", "--spill", &spill], "secret", "32M");
        let server = place.private_server().expect("the private server");
        let found = hits(server as u32);
        assert!(if is_seen { found > 500_000 } else { found == 0 }, "--seal {seal}: {found} times");
        drop(run);
        place.assert_nothing_left();
    }
}

#[test]
fn sealed_programs_keep_their_words() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let servers = [Served::tcp(&place, "128M"), Served::tcp(&place, "128M")];
        let named = ["--server", &servers[0].address, "--server", &servers[1].address];
        let spill = place.path("").display().to_string();
        let private = ["--memory", "16M", "--spill", &spill];
        // Large pages in random order would move far more than the program has.
        let (by_page, in_order) = (&["--random"][..], &[] as &[&str]);
        for (page_size, store, order) in [
            ("auto", &named[..], by_page),
            ("4K", &private, by_page),
            ("64K", &named, in_order),
            ("2M", &private, in_order),
        ] {
            let mut command = place.hanare(["run", "--seal", "on", "--local", "8M", "--mode", mode]);
            command.args(["--page-size", page_size]).args(store).arg("--").arg(built().workload("touch"));
            let outcome = place.run(command.args(["24M", "--passes", "2"]).args(order));
            outcome.assert_well(&format!("{mode}, {page_size}, {store:?}"));
            assert!(outcome.text().starts_with("ok touch"), "{outcome:?}");
        }
        place.assert_nothing_left();
    }
}

/// A child has another key than its parent. It reads its parent's pages, and neither reads what the other writes.
#[test]
fn children_read_the_sealed_pages_of_their_parents() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let server = Served::tcp(&place, "256M");
        for store in [&["--server", server.address.as_str()][..], &[]] {
            // One mode suffices for the private server, whose slots are the same in each.
            if store.is_empty() && mode != "sigsegv" {
                continue;
            }
            let mut command = place.hanare(["run", "--seal", "on", "--local", "8M", "--mode", mode]);
            let outcome = place.run(command.args(store).arg("--").arg(built().workload("forks")).arg("8M"));
            outcome.assert_well(&format!("{mode}, {store:?}"));
            assert!(outcome.text().starts_with("ok forks: "), "{outcome:?}");
        }
        place.assert_nothing_left();
    }
}

#[test]
fn ranks_with_sealed_pages_have_their_results() {
    let place = Place::new();
    let server = Served::tcp(&place, "64M");
    for store in [&["--server", server.address.as_str()][..], &[]] {
        let mut command = place.command(built().hanare());
        command.args(["launch", "-n", "2", "--local", "256K", "--seal", "on"]).args(store).arg("--");
        command.arg(built().workload("laplace")).args(["-n", "510", "-i", "3", "--verify", "--json"]);
        let outcome = place.run(&mut command);
        assert!(outcome.code == Some(0) && outcome.stderr.contains(": verified\n"), "{store:?}: {outcome:?}");
    }
}

#[test]
fn locked_memory_stays_in_the_process() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for (how, page_size, is_seen) in [
            ("mlock", "4K", false),
            ("mlock", "auto", false),
            ("mlock2", "64K", false),
            ("number", "4K", false),
            ("dontdump", "auto", false),
            ("moved", "auto", false),
            ("moved", "64K", false),
            ("neighbour", "64K", false),
            ("within", "4K", false),
            ("within", "auto", false),
            ("unlocked", "4K", true),
            ("all", "auto", true),
            ("none", "4K", true),
        ] {
            let place = Place::new();
            let server = Served::tcp(&place, "64M");
            let server_flags = ["--page-size", page_size, "--seal", "off", "--server", &server.address];
            // Under FIFO, pages that are not locked leave soon, whatever the program does.
            let policy = if is_seen { "fifo" } else { "auto" };
            let flags = [&["--mode", mode, "--policy", policy][..], &server_flags].concat();
            // The text that moves grows to twice its size.
            let size = if how == "moved" { "256K" } else { "512K" };
            let run = keep_a_secret(&place, &flags, "locked", &format!("{how} {size}"));
            assert!(status(&server.address).write_bytes > 12 << 20, "few pages are there");
            let found = hits(server.pid());
            let what = format!("{mode}, {how}, {page_size}: {found} times");
            assert!(if is_seen { found > 1_000 } else { found == 0 }, "{what}");
            drop(run);
        }
    }
}

#[test]
fn a_child_goes_on_with_locked_memory() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let run = keep_a_secret(&place, &["--mode", mode], "locked", "child 512K");
        drop(run);
        place.assert_nothing_left();
    }
}

#[test]
fn too_much_locked_memory_is_refused_unless_it_is_sealed() {
    let place = Place::new();
    let run = |seal: &str| {
        let mut command = place.hanare(["run", "--local", "4M", "--no-warm", "--seal", seal, "--"]);
        place.run(command.arg(built().workload("locked")).args(["mlock", "2M"]))
    };
    let refused = run("off");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.text().contains("Cannot allocate memory"), "{refused:?}");
    drop(keep_a_secret(&place, &["--seal", "on"], "locked", "unlocked 2M"));
}
