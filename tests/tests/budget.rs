//! Tests `--local`. In a memory cgroup, a program writes and checks far more memory than its budget. The cgroup holds
//! little more than the budget and has no swap. If Hanare kept memory beyond the budget, the kernel would kill the
//! program.
//!
//! The cgroup contains the program but not its memory server. On the same-host link, the memory of the slots (the
//! server's units of memory) is also charged to the server, because the server fills the pages of the memfd.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hanare_tests::{Outcome, Place, Served, built, figures, until};

const MIB: u64 = 1 << 20;

/// A memory cgroup for one test. It is removed when this value is dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    /// Makes a cgroup that holds `bytes` bytes and has no swap. If that fails, prints the reason.
    fn new(name: &str, bytes: u64) -> Option<Cgroup> {
        let name = format!("hanare-test-{name}-{}", std::process::id());
        let (v1, v2) = (Path::new("/sys/fs/cgroup/memory"), Path::new("/sys/fs/cgroup"));
        let made = match v1.is_dir() {
            true => Cgroup::make(v1.join(name), "memory.limit_in_bytes", bytes, ("memory.swappiness", "0")),
            false => Cgroup::make(v2.join(name), "memory.max", bytes, ("memory.swap.max", "0")),
        };
        made.map_err(|error| println!("skipped: no memory cgroup can be made: {error}")).ok()
    }

    fn make(path: PathBuf, limit: &str, bytes: u64, no_swap: (&str, &str)) -> std::io::Result<Cgroup> {
        std::fs::create_dir(&path)?;
        let group = Cgroup(path);
        std::fs::write(group.0.join(limit), bytes.to_string())?;
        std::fs::write(group.0.join(no_swap.0), no_swap.1)?;
        Ok(group)
    }

    /// Returns the largest number of bytes that the cgroup has held, if the kernel reports it.
    fn peak_bytes(&self) -> Option<u64> {
        let read = |name| std::fs::read_to_string(self.0.join(name)).ok();
        let text = read("memory.max_usage_in_bytes").or_else(|| read("memory.peak"))?;
        text.trim().parse().ok()
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The kernel may remove the last process from the cgroup only after the wait for the process has returned.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Runs the workload `touch` with `size` MiB and a budget of `local` MiB, in a cgroup of `local + spare` MiB.
fn fits(name: &str, size: u64, local: u64, spare: u64, flags: &[&str]) {
    let Some(group) = Cgroup::new(name, (local + spare) * MIB) else { return };
    let place = Place::new();
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", &format!("{local}M"), "--stats-json"]);
    command.arg(&json).args(flags).args(["--", "sh", "-c", "echo $$ > \"$1\" && exec \"$2\" \"$3\"", "sh"]);
    command.arg(group.0.join("cgroup.procs")).arg(built().workload("touch")).arg(format!("{size}M"));
    let outcome: Outcome = place.run(&mut command);
    let what = format!("{size} MiB under {local} in a cgroup of {} {flags:?}", local + spare);
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with("ok touch: "), "{what}: {outcome:?}");
    let seen = figures(&json);
    seen.assert_paged((size - local) * MIB, &what);
    assert_eq!(seen.number("local_bytes_budget"), local * MIB, "{what}");
    let peak = group.peak_bytes();
    println!("{what}: {:?} MiB at the peak", peak.map(|bytes| bytes / MIB));
    // The program used most of its budget in the cgroup. This shows that it really ran there.
    assert!(peak.is_none_or(|bytes| bytes > local * MIB / 2), "{what}: only {peak:?} bytes were charged");
    place.assert_nothing_left();
    until("the cgroup is empty", || std::fs::read_to_string(group.0.join("cgroup.procs")).is_ok_and(|p| p.is_empty()));
}

#[test]
fn a_program_eight_times_its_budget_is_not_killed() {
    fits("same-host", 256, 32, 64, &[]);
}

#[test]
fn nor_in_the_other_modes_and_page_sizes() {
    for (n, flags) in [["--page-size", "4K"], ["--page-size", "2M"], ["--mode", "sigsegv"]].iter().enumerate() {
        fits(&format!("other{n}"), 128, 32, 64, flags);
    }
}

#[test]
fn nor_over_tcp() {
    let place = Place::new();
    let server = Served::tcp(&place, "512M");
    for (n, page_size) in ["auto", "4K", "2M"].into_iter().enumerate() {
        fits(&format!("tcp{n}"), 128, 32, 64, &["--server", &server.address, "--page-size", page_size]);
    }
}

#[test]
fn the_cgroup_does_kill() {
    // Without Hanare, the same program must be killed. This shows that the other tests can fail.
    let Some(group) = Cgroup::new("native", 96 * MIB) else { return };
    let place = Place::new();
    let mut command = place.command("sh");
    command.args(["-c", "echo $$ > \"$1\" && exec \"$2\" 256M", "sh"]);
    command.arg(group.0.join("cgroup.procs")).arg(built().workload("touch"));
    let outcome = place.run(&mut command);
    assert_ne!(outcome.code, Some(0), "256 MiB fit into 96: {outcome:?}");
}

/// The test at the size that the specification names. It runs only with `HANARE_TEST_FULL=1`.
#[test]
fn a_gibibyte_under_128_mib() {
    if std::env::var_os("HANARE_TEST_FULL").is_none() {
        println!("skipped: the full size runs with HANARE_TEST_FULL=1");
        return;
    }
    fits("full", 1024, 128, 96, &[]);
    let place = Place::new();
    let server = Served::tcp(&place, "2G");
    fits("full-tcp", 1024, 128, 96, &["--server", &server.address]);
}
