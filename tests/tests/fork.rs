//! Tests the meaning of fork. A child sees its parent's memory as it was at the fork. Both continue to page within one
//! budget. If that is impossible, the child must end before it reads wrong bytes.

use std::process::Command;

use hanare_tests::{
    Figures, Place, Served, built, figures, mode_works, rounds, status, system_calls_work_on_far_pages, until,
};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

/// Runs `forks` and asserts that every word was right.
fn forks(place: &Place, options: &[&str], size: &str) -> Figures {
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "8M", "--stats-json"]);
    command.arg(&json).args(options).arg("--").arg(built().workload("forks")).arg(size);
    let outcome = place.run(&mut command);
    let what = options.join(" ");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with("ok forks: "), "{what}: {outcome:?}");
    let seen = figures(&json);
    assert!(seen.number("bytes_out") >= 4 << 20 && seen.number("forks") > 10, "{what}: hardly anything was shared");
    seen
}

#[test]
fn children_have_their_parents_memory() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["auto", "4K", "64K"] {
            for _ in 0..rounds() {
                let place = Place::new();
                let seen = forks(&place, &["--mode", mode, "--page-size", page_size], "8M");
                seen.assert_within_budget(&format!("{mode}, pages of {page_size}"));
                place.assert_nothing_left();
            }
        }
    }
}

/// Its memory is far, and it once had a thread, whose stack the C library keeps.
const WITH_A_THREAD: &str = "\
import os, threading
block = bytearray(24 << 20)
def touch(k):
    digest = 0
    for at in range(k, len(block), 4096):
        block[at] = (block[at] + k) & 255
        digest = (digest * 31 + block[at]) & 0xffffffff
    return digest
touch(1)
thread = threading.Thread(target=touch, args=(2,))
thread.start()
thread.join()
touch(3)
child = os.fork()
if child == 0:
    print('child', touch(4), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], touch(5))
";

/// A program at a fixed address that takes the address of `free` makes its own slot the one through which the C library calls
/// `free`. Debian's Python is one.
#[test]
fn a_child_starts_though_the_c_library_calls_through_the_programs_slots() {
    let python = "/usr/bin/python3";
    if !std::path::Path::new(python).exists() {
        return;
    }
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        std::fs::write(place.path("fork.py"), WITH_A_THREAD).expect("a file");
        let mut command = place.hanare(["run", "--local", "6M", "--mode", mode, "--", python]);
        let outcome = place.run(command.arg(place.path("fork.py")));
        outcome.assert_well(mode);
        assert_eq!(outcome.text(), "child 348520448\n0 1509392384\n", "{mode}");
        place.assert_nothing_left();
    }
}

/// A huge page covers its whole block, also memory that is not allocated. If a part of it is freed, base pages remain there.
/// A fork must bring these to rest, too, also those that are unmapped for reference sampling.
#[test]
fn pages_beside_the_allocated_memory_come_to_rest() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for seed in ["5", "6"] {
            let place = Place::new();
            let options = ["--mode", mode, "--local", "90%", "--policy", "clock", "--far", "large", "--no-warm"];
            let mut command = place.hanare(["run"]);
            command.args(options).arg("--").arg(built().workload("blend"));
            command.args(["--ops", "200", "--threads", "4", "--size", "4M", "--seed", seed]);
            let outcome = place.run(&mut command);
            outcome.assert_well(&format!("{mode}, seed {seed}"));
            assert!(outcome.text().starts_with("ok blend: "), "{mode}, seed {seed}: {outcome:?}");
            place.assert_nothing_left();
        }
    }
}

/// Slots lie anywhere in the memory of a private server, however little of it is left when a child starts. A
/// process is granted few slots ahead of need, so that the others have enough. If all children are there at a time, as on
/// a loaded machine, their words and their parents' need 72M.
#[test]
fn children_share_a_server_that_is_nearly_full() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "64K", "256K"] {
            let place = Place::new();
            let room = ["--memory", "96M", "--spill", "none"];
            forks(&place, &[&["--mode", mode, "--page-size", page_size], &room[..]].concat(), "8M");
            place.assert_nothing_left();
        }
    }
}

/// If memory was never evicted, a child inherits it through the kernel's own fork. At the fork, no page of this memory
/// may be unmapped, neither for reference sampling nor because the processes now share the budget.
#[test]
fn children_inherit_what_never_left() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "64K", "256K"] {
            for policy in ["clock", "nru-swaps", "auto"] {
                let place = Place::new();
                let options = ["--mode", mode, "--page-size", page_size, "--policy", policy];
                let mut command = place.hanare(["run", "--local", "24M"]);
                let outcome = place.run(command.args(options).arg("--").arg(built().workload("forks")).arg("2M"));
                outcome.assert_well(&options.join(" "));
                assert!(outcome.text().starts_with("ok forks: "), "{options:?}: {outcome:?}");
                place.assert_nothing_left();
            }
        }
    }
}

/// Forks with little stack, on a far stack, and with mappings that end within a page of the pager.
#[test]
fn forks_need_no_more_stack_than_natively_and_copy_the_last_part_of_a_page() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for (which, page_size) in [
            ("stacks", "auto"),
            ("far", "auto"),
            ("parted", "auto"),
            ("parted", "16K"),
            ("parted", "64K"),
            ("parted", "2M"),
        ] {
            if which == "far" && (mode != "thread" || !system_calls_work_on_far_pages()) {
                continue;
            }
            let local = if which == "far" { "4M" } else { "16M" };
            let mut command = place.hanare(["run", "--local", local, "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("forked")).arg(which));
            let what = format!("{which} in {mode} mode with pages of {page_size}");
            outcome.assert_well(&what);
            assert_eq!(outcome.text(), format!("ok forked: {which}\n"), "{what}");
        }
    }
    place.assert_nothing_left();
}

/// The memory server has ended just before the fork. The child's own mappings must not lie where its parent's far memory
/// is, because the child closes this range. The parent may notice the end before its fork, so there are several tries.
#[test]
fn a_child_that_cannot_have_its_parents_memory_runs_without_it() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let mut lived = false;
        for _ in 0..20 {
            let mut command = place.hanare(["run", "--local", "16M", "--mode", mode, "--"]);
            let outcome = place.run(command.arg(built().workload("forked")).arg("lost"));
            assert!(!outcome.text().contains("wrong") && outcome.stderr.contains("hanare: "), "{mode}: {outcome:?}");
            lived = outcome.text().starts_with("a child without its parent's memory runs\n")
                && outcome.stderr.contains("cannot use its parent's far memory: ");
            if lived {
                break;
            }
        }
        assert!(lived, "{mode}: each parent noticed the end of its server before its fork");
    }
}

/// Blocks and mappings change at random, in parents and in children. Every word is checked.
#[test]
fn blocks_and_mappings_that_change_at_random_keep_their_words() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for (page_size, seed) in ["auto", "4K", "64K", "2M"].into_iter().zip(1..) {
            for round in 0..rounds() {
                let mut command =
                    place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", page_size, "--"]);
                command.arg(built().workload("blend")).args(["--seed", &(seed + 10 * round).to_string()]);
                let outcome = place.run(&mut command);
                let what = format!("round {round} in {mode} mode with pages of {page_size}");
                outcome.assert_well(&what);
                assert!(outcome.text().starts_with("ok blend: "), "{what}: {outcome:?}");
            }
        }
    }
    place.assert_nothing_left();
}

/// A new thread reads some data of the C library before its first function runs. So this data must be in memory when
/// Hanare's own threads start in a child.
#[test]
fn children_of_programs_with_a_locale() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let far: &[&str] = if mode == "thread" { &["large", "4K", "all"] } else { &["large"] };
        for far in far {
            let place = Place::new();
            let options = ["--mode", mode, "--far", far];
            let mut command = place.hanare(["run", "--local", "4M"]);
            let outcome = place.run(command.args(options).arg("--").arg(built().workload("locales")));
            outcome.assert_well(&options.join(" "));
            assert!(outcome.text().starts_with("ok locales: "), "{options:?}: {outcome:?}");
            place.assert_nothing_left();
        }
    }
}

/// Clean pages that parent and child share are write-protected. If the pager unmaps such a page, it must not wait for a
/// write fault that only the pager itself could resolve.
#[test]
fn pages_shared_with_children_are_hidden() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let options = ["--mode", mode, "--page-size", "256K", "--policy", "clock"];
        let mut command = place.hanare(["run", "--local", "24M"]);
        let outcome = place.run(command.args(options).arg("--").arg(built().workload("forks")).arg("16M"));
        outcome.assert_well(&options.join(" "));
        place.assert_nothing_left();
    }
}

/// The budget is less than four pages for each process. Every process gets four pages nevertheless.
#[test]
fn children_with_hardly_any_pages() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        forks(&place, &["--mode", mode, "--page-size", "2M"], "8M");
        place.assert_nothing_left();
    }
}

#[test]
fn children_over_links() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let servers =
            [Served::tcp(&place, "256M"), Served::tcp(&place, "256M"), Served::unix(&place, "256M", "socket")];
        let address = |n: usize| servers[n].address.as_str();
        let unix = address(2).trim_start_matches("unix:");
        forks(&place, &["--mode", mode, "--page-size", "4K", "--server", address(0)], "8M");
        forks(&place, &["--mode", mode, "--server", address(0), "--server", address(1)], "8M");
        forks(&place, &["--mode", mode, "--page-size", "64K", "--server", unix], "8M");
        for n in 0..3 {
            until("the servers are rid of every session", || status(address(n)).sessions == 0);
            assert_eq!(status(address(n)).slots, 0);
        }
        place.assert_nothing_left();
    }
}

/// The server must keep the memory that children share until the last child has ended, and must then free it. This also
/// holds if the last child is killed.
#[test]
fn a_killed_child_leaves_nothing_on_a_server() {
    let place = Place::new();
    let server = Served::tcp(&place, "256M");
    let mut command = place.hanare(["run", "--local", "4M", "--server", &server.address, "--"]);
    command.arg(built().workload("forks")).args(["16M", "--killed"]);
    let outcome = place.run(&mut command);
    outcome.assert_well("a killed child");
    assert!(outcome.text().starts_with("ok killed"), "{outcome:?}");
    until("the server is rid of every session", || status(&server.address).sessions == 0);
    assert_eq!(status(&server.address).slots, 0);
}

/// A child that outlives its parent and the `hanare` command must keep its memory. The command writes its report before
/// the child ends. The private server ends with the child.
#[test]
fn a_child_outlives_the_command() {
    for (mode, local) in [("thread", "4M"), ("thread", "64M"), ("sigsegv", "4M")] {
        if !mode_works(mode) {
            continue;
        }
        let place = Place::new();
        let (go, said) = (place.path("go"), place.path("said"));
        let mut command = place.hanare(["run", "--local", local, "--mode", mode, "--"]);
        command.arg(built().workload("forks")).args(["16M", "--outlive"]).arg(&go).arg(&said);
        let outcome = place.run(&mut command);
        outcome.assert_well("the parent");
        assert_eq!(outcome.text(), "the parent ends\n");
        assert!(place.private_server().is_some() && !said.exists());
        place.file("go", "");
        until("the child has said its word", || std::fs::read(&said).is_ok_and(|word| !word.is_empty()));
        assert_eq!(std::fs::read_to_string(&said).expect("the child's word"), "ok\n", "{mode}, {local}");
        place.assert_nothing_left();
    }
}

/// If a process executes another program, that program pages its own memory and shares the one budget. This must also
/// work if the process has closed all descriptors except the standard ones.
#[test]
fn programs_that_are_executed_share_the_budget() {
    if !mode_works("thread") {
        return;
    }
    let place = Place::new();
    let json = place.path("json");
    let touch = built().workload("touch");
    let script = format!(
        "for n in 1 2 3; do (exec 3>&- 100>&- 101>&-; exec {} 24M --seed $n) & done; wait; for n in 1 2 3 4 5 6 7 8 9; do \
         true | cat; done; exec {} 24M",
        touch.display(),
        touch.display()
    );
    let mut command = place.hanare(["run", "--local", "8M", "--mode", "thread", "--stats-json"]);
    let outcome = place.run(command.arg(&json).args(["--", "bash", "-c", &script]));
    outcome.assert_well("programs side by side");
    assert_eq!(outcome.text().matches("ok touch").count(), 4, "{outcome:?}");
    let seen = figures(&json);
    assert_eq!(seen.number("processes"), 4, "those that have far memory, and no other");
    assert!(seen.number("far_bytes_peak") >= 24 << 20);
    seen.assert_paged(64 << 20, "programs side by side");
    place.assert_nothing_left();
}

#[test]
fn a_thousand_children() {
    let place = Place::new();
    let script = "for n in {1..500}; do x=$(echo $n); /bin/true; [ $x = $n ] || exit 9; done; echo ok";
    let outcome = place.run(place.hanare(["run", "--local", "8M", "--"]).args(["bash", "-c", script]));
    outcome.assert_well("bash");
    assert_eq!(outcome.text(), "ok\n");
    place.assert_nothing_left();
}

fn python(place: &Place, script: &str) -> Option<Figures> {
    if !system_calls_work_on_far_pages() || Command::new("python3").arg("-c").arg("").status().is_err() {
        return None;
    }
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "8M", "--stats-json"]);
    command.arg(&json).args(["--", "python3", "-c", script]);
    let outcome = place.run(&mut command);
    outcome.assert_well("python3 with children");
    assert_eq!(outcome.text(), "ok\n");
    Some(figures(&json))
}

#[test]
fn a_paging_python_starts_programs() {
    let script = "\
import os, subprocess, sys
far = bytearray(b'hanare! ' * (4 << 20))
assert os.system('exit 3') == 3 << 8
for use_posix_spawn in (False, True):
    subprocess._USE_POSIX_SPAWN = use_posix_spawn
    for n in range(10):
        said = subprocess.run(['sh', '-c', 'tr a-z A-Z; echo end'], input=b'word %d\\n' % n, stdout=subprocess.PIPE)
        assert (said.returncode, said.stdout) == (0, b'WORD %d\\nend\\n' % n), said
child = subprocess.run([sys.executable, '-c', 'x = bytearray(b\"x\" * (24 << 20)); print(x.count(b\"x\"))'], stdout=subprocess.PIPE)
assert child.stdout == b'%d\\n' % (24 << 20), child
cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert cat.communicate(far)[0] == far
assert far.count(b'hanare! ') == 4 << 20
print('ok')
";
    let place = Place::new();
    let Some(seen) = python(&place, script) else { return };
    seen.assert_paged(32 << 20, "python3 with children");
    assert!(seen.number("processes") >= 2, "the child that has far memory pages, too");
    place.assert_nothing_left();
}

#[test]
fn python_multiprocessing_by_fork() {
    let script = "\
import multiprocessing, os, random
far = bytearray(24 << 20)
for at in range(0, len(far), 4096):
    far[at:at + 8] = at.to_bytes(8, 'little')
def check(seed):
    dice = random.Random(seed)
    for _ in range(2000):
        at = dice.randrange(len(far) // 4096) * 4096
        assert far[at:at + 8] == at.to_bytes(8, 'little'), at
        far[at + 8:at + 16] = seed.to_bytes(8, 'little')
        assert far[at + 8:at + 16] == seed.to_bytes(8, 'little')
    return seed * seed
context = multiprocessing.get_context('fork')
with context.Pool(3) as pool:
    assert pool.map(check, range(1, 13)) == [n * n for n in range(1, 13)]
assert all(far[at:at + 16] == at.to_bytes(8, 'little') + bytes(8) for at in range(0, len(far), 4096))
print('ok')
";
    let place = Place::new();
    let Some(seen) = python(&place, script) else { return };
    seen.assert_paged(16 << 20, "multiprocessing");
    assert!(seen.number("forks") >= 3);
    place.assert_nothing_left();
}

/// A process may change its root to a directory without the private server's socket, `/dev` and `/proc`. It may do so
/// before or after it forks. Its children must still reach their memory.
#[test]
fn children_have_their_memory_where_no_path_leads_to_its_server() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may take another root");
        return;
    }
    let program = built().workload("elsewhere");
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for way in ["chroot", "mounts", "noproc", "chroot-child", "mounts-child", "noproc-child"] {
            // A program whose memory fits into the budget never evicts a page. Its child is then dormant: the child
            // starts to page only when it allocates.
            for (local, size) in [("4M", "16M"), ("64M", "2M")] {
                let place = Place::new();
                let mut command = place.hanare(["run", "--local", local, "--mode", mode, "--"]);
                let outcome = place.run(command.arg(&program).args([way, size]));
                let what = format!("{mode}, {way}, {local}");
                outcome.assert_well(&what);
                let text = outcome.text();
                assert!(text == format!("ok elsewhere: {way}\n") || text == "skip\n", "{what}: {outcome:?}");
                place.assert_nothing_left();
            }
        }
    }
}
