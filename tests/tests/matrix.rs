//! Guards against lost, torn and stale words. Eight threads read and write one array at random. The budget is a quarter
//! of the array's size. The test covers every trap mode and every page size, with each kernel feature switched off in
//! turn. Every word that a thread reads is compared with the last word written there. `HANARE_TEST_ROUNDS` multiplies
//! the number of runs.

use hanare_tests::{Place, Served, built, figures, is_full, mode_works, rounds};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];
const PAGE_SIZES: [&str; 7] = ["4K", "16K", "64K", "256K", "1M", "2M", "auto"];

/// The settings of one run, and the kernel features that are switched off.
#[derive(Debug)]
struct Cell<'a> {
    mode: &'a str,
    page_size: &'a str,
    share: bool,
    disable: &'a str,
}

impl Cell<'_> {
    /// Returns the number of accesses of each thread. The number is large enough to evict and fetch every page often,
    /// and small enough that the slowest run takes only seconds.
    fn ops(&self) -> u32 {
        match (self.mode, self.page_size) {
            ("sigsegv", "2M") => 100,
            ("sigsegv", "1M") => 200,
            ("sigsegv", "256K") => 600,
            ("sigsegv", _) => 1500,
            (_, "2M" | "1M") => 600,
            _ => 3000,
        }
    }

    /// Returns the sizes of the array and of the budget. The budget is about a quarter of the array and at least five
    /// pages, because it also bounds the copies of pages that leave.
    fn sizes(&self) -> (&str, &str) {
        match self.page_size {
            "2M" => ("32M", "10M"),
            "1M" => ("16M", "5M"),
            _ => ("16M", "4M"),
        }
    }

    /// Runs the workload with these settings and `flags`. `expected` is the trap mode that the run must have used.
    fn run(&self, flags: &[&str], expected: &str) {
        for round in 0..rounds() {
            let place = Place::new();
            let json = place.path("json");
            let (size, local) = self.sizes();
            let mut command =
                place.hanare(["run", "--local", local, "--mode", self.mode, "--page-size", self.page_size]);
            command.args(flags).arg("--stats-json").arg(&json).arg("--").arg(built().workload("threads"));
            command.args(["--threads", "8", "--size", size, "--ops", &self.ops().to_string()]);
            command.args(["--seed", &(round + 1).to_string()]).args(self.share.then_some("--share"));
            let outcome = place.run(command.env("HANARE_DISABLE", self.disable));
            let what = format!("{self:?} {flags:?}, round {round}");
            outcome.assert_well(&what);
            assert!(outcome.text().starts_with("ok threads: "), "{what}: {outcome:?}");
            let seen = figures(&json);
            assert_eq!(seen.mode(), expected, "{what}");
            seen.assert_paged(8 << 20, &what);
            place.assert_nothing_left();
        }
    }
}

/// Runs the workload at every page size. In one run, each thread has its own pages. In the other, the threads share
/// pages. With a feature switched off, only `HANARE_TEST_FULL=1` has both runs at every page size: otherwise every second
/// page size has shared pages, and the next feature has them at the other page sizes.
fn every_page_size(mode: &str, expected: &str, disabled: &[&str]) {
    for (row, disable) in disabled.iter().copied().enumerate() {
        for (column, page_size) in PAGE_SIZES.into_iter().enumerate() {
            for share in [false, true] {
                if disable.is_empty() || is_full() || share == ((row + column) % 2 == 0) {
                    Cell { mode, page_size, share, disable }.run(&[], expected);
                }
            }
        }
    }
}

#[test]
fn thread_mode() {
    if !mode_works("thread") {
        return;
    }
    let disabled = ["", "move", "wp_async", "process_madvise", "thp", "pagemap_scan", "user_mode_only", "move,thp"];
    every_page_size("thread", "thread", &disabled);
}

#[test]
fn sigbus_mode() {
    if !mode_works("sigbus") {
        return;
    }
    let disabled = ["", "move", "wp_async", "process_madvise", "thp", "pagemap_scan", "kernel_faults", "move,thp"];
    every_page_size("sigbus", "sigbus", &disabled);
}

#[test]
fn sigsegv_mode() {
    let disabled = ["", "guards", "process_madvise", "thp"];
    every_page_size("sigsegv", "sigsegv", &disabled);
}

#[test]
fn without_userfaultfd_the_last_resort_is_chosen() {
    for disable in ["userfaultfd", "wp", "kernel_faults,user_mode_only"] {
        for share in [false, true] {
            Cell { mode: "auto", page_size: "auto", share, disable }.run(&[], "sigsegv");
            Cell { mode: "auto", page_size: "4K", share, disable }.run(&[], "sigsegv");
        }
    }
    if mode_works("sigbus") {
        Cell { mode: "auto", page_size: "auto", share: true, disable: "kernel_faults" }.run(&[], "sigbus");
    }
}

#[test]
fn over_links() {
    let place = Place::new();
    let (tcp, unix) = (Served::tcp(&place, "128M"), Served::unix(&place, "128M", "s"));
    let one = ["--server", tcp.address.as_str()];
    let both = [one[0], one[1], "--server", unix.address.as_str()];
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in PAGE_SIZES {
            // Over a link, pages of 16K are fetched in runs of several pages. If the kernel cannot move frames, pages
            // of every size are fetched in runs.
            Cell { mode, page_size, share: true, disable: "" }.run(&one, mode);
            Cell { mode, page_size, share: false, disable: "move,guards" }.run(&both, mode);
        }
    }
}

#[test]
fn policies_and_prefetchers_over_a_link() {
    let place = Place::new();
    let server = Served::tcp(&place, "64M");
    for policy in ["fifo", "simple", "lru"] {
        for prefetch in ["none", "sequential"] {
            let flags = ["--server", &server.address, "--policy", policy, "--prefetch", prefetch];
            for page_size in ["4K", "auto"] {
                Cell { mode: "sigsegv", page_size, share: false, disable: "" }.run(&flags, "sigsegv");
                if mode_works("thread") {
                    Cell { mode: "thread", page_size, share: true, disable: "" }.run(&flags, "thread");
                }
            }
        }
    }
}

/// Tests the time between a page's arrival and its protection. A signal handler runs while its thread waits for a page,
/// and the handler writes to that page.
#[test]
fn signals_write_to_the_page_that_is_waited_for() {
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["4K", "64K", "256K", "auto"] {
            let place = Place::new();
            let json = place.path("json");
            let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", page_size]);
            command.arg("--stats-json").arg(&json).arg("--").arg(built().workload("signals"));
            let outcome = place.run(command.args(["32M", "--signals", "4000"]));
            let what = format!("{mode}, pages of {page_size}");
            outcome.assert_well(&what);
            assert!(outcome.text().starts_with("ok signals: "), "{what}: {outcome:?}");
            figures(&json).assert_paged(32 << 20, &what);
            place.assert_nothing_left();
        }
    }
}
