//! Tests the pages that transfers pin. Direct I/O, io_uring, libaio and other processes read and write far memory while
//! its pages are evicted and fetched. No block may get wrong bytes. Unsupported calls are refused with an errno.

use hanare_tests::{Outcome, Place, Served, built, mode_works};

const KINDS: [&str; 6] = ["pread", "write", "uring", "uring-fixed", "aio", "vmwrite"];
/// Exit code of the workload if the kernel lacks the tested call.
const SKIPPED: i32 = 77;

/// Returns a directory on a disk, where files accept O_DIRECT. The directory for temporary files may be in memory,
/// where they do not.
fn on_disk(place: &Place) -> String {
    let folder = if std::path::Path::new("/var/tmp").is_dir() { "/var/tmp".into() } else { place.path(".") };
    folder.to_str().expect("a plain path").to_owned()
}

fn run(flags: &[&str], disable: &str, kind: &str) -> Outcome {
    run_within("12M", flags, disable, kind)
}

fn run_within(local: &str, flags: &[&str], disable: &str, kind: &str) -> Outcome {
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", local]);
    command.args(flags).env("HANARE_DISABLE", disable).arg("--").arg(built().workload("direct"));
    let outcome = place.run(command.arg(on_disk(&place)).args(["--kind", kind, "--mb", "32", "--seconds", "1"]));
    place.assert_nothing_left();
    outcome
}

fn assert_right(outcome: &Outcome, what: &str) {
    assert!(matches!(outcome.code, Some(0 | SKIPPED)), "{what}: {outcome:?}");
}

#[test]
fn transfers_into_far_memory_leave_no_wrong_block() {
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "64K", "auto"] {
            for kind in KINDS {
                let outcome = run(&["--mode", mode, "--page-size", page_size], "", kind);
                assert_right(&outcome, &format!("{kind}, {mode} mode, {page_size} pages"));
            }
        }
    }
}

/// The program may begin transfers before far memory starts, if the kernel can tell which pages they hold. If the kernel
/// then refuses to move pages, no transfer can be followed. Once, such a run went on and lost what other processes wrote.
#[test]
fn who_relies_on_moves_ends_where_the_kernel_refuses_them() {
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        let place = Place::new();
        let mut command = place.hanare(["run", "--local", "3M", "--mode", mode, "--"]);
        command.env("HANARE_TEST_REFUSE", "1:1000:move").arg(built().workload("direct"));
        let outcome =
            place.run(command.arg(on_disk(&place)).args(["--kind", "vmwrite", "--mb", "32", "--seconds", "1"]));
        let is_named = outcome.stderr.contains("the kernel moved pages when the program began");
        assert!(outcome.code == Some(125) && is_named, "{mode}: {outcome:?}");
        place.assert_nothing_left();
    }
}

/// Some policies unmap pages to sample references. The bytes of the unmapped pages are in frames, next to frames with
/// bytes that came from a server. Checks that transfers that pin pages stay right with such policies.
#[test]
fn hidden_pages_are_none_that_transfers_hold() {
    let server = Place::new();
    let served = Served::tcp(&server, "256M");
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        for policy in ["clock", "nru-swaps"] {
            for kind in ["uring", "uring-fixed"] {
                let flags = ["--mode", mode, "--page-size", "auto", "--policy", policy, "--server", &served.address];
                let outcome = run_within("4M", &flags, "", kind);
                assert_right(&outcome, &format!("{kind}, {mode} mode, {policy}"));
            }
        }
    }
}

/// The kernel reads the pages of a zero-copy send later, without pinning them. They leave the view meanwhile, and their
/// memory must not get other bytes.
#[test]
fn zero_copy_sends_give_the_bytes_that_were_sent() {
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv", "auto"].into_iter().filter(|&mode| mode == "auto" || mode_works(mode)) {
        for page_size in ["auto", "64K", "2M"] {
            let mut command = place.hanare(["run", "--local", "12M", "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("uring")).arg("send"));
            assert_right(&outcome, &format!("{mode} mode, {page_size} pages"));
        }
    }
    place.assert_nothing_left();
}

/// Hanare does not see which pages io_uring drops (docs/limits.md). An access to such a page must not wait for ever.
#[test]
fn what_io_uring_drops_ends_the_run() {
    let place = Place::new();
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "64K"] {
            let mut command = place.hanare(["run", "--local", "64M", "--mode", mode, "--page-size", page_size, "--"]);
            let outcome = place.run(command.arg(built().workload("uring")).arg("drop"));
            let is_named = outcome.code == Some(123) && outcome.stderr.contains(" of far memory is gone: ");
            assert!(is_named || outcome.code == Some(SKIPPED), "{mode}, {page_size}: {outcome:?}");
        }
    }
    place.assert_nothing_left();
}

/// If the kernel cannot move pages, Hanare cannot detect pinned pages. So it must refuse the calls that would pin
/// pages.
#[test]
fn without_move_what_would_hold_pages_is_refused_and_no_block_is_wrong() {
    for mode in ["thread", "sigbus"].into_iter().filter(|mode| mode_works(mode)) {
        for kind in ["uring", "aio", "pread", "vmwrite"] {
            let outcome = run(&["--mode", mode, "--page-size", "4K"], "move", kind);
            assert_right(&outcome, &format!("{kind}, {mode} mode without MOVE"));
            let refused = kind != "pread" || mode == "thread";
            assert_eq!(outcome.code == Some(SKIPPED), refused, "{kind} in {mode} mode: {}", outcome.text());
        }
    }
}
