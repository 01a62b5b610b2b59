//! Guards against a policy or a prefetcher that makes the engine lose or tear a word. Every policy runs with every
//! prefetcher, in every trap mode. The workload checks every word that it reads.

use hanare_settings::{POLICIES, PREFETCHERS};
use hanare_tests::{Place, built, figures, mode_works};

/// The sizes of the array, of the budget and of a page. The pages are small, so that a policy can choose among many
/// pages.
const SIZES: [&str; 3] = ["8M", "2M", "16K"];

/// Runs two threads that read and write at random, with this mode, policy and prefetcher.
fn check(mode: &str, policy: &str, prefetch: &str) {
    let place = Place::new();
    let json = place.path("json");
    let [size, local, page_size] = SIZES;
    let mut command = place.hanare(["run", "--local", local, "--mode", mode, "--page-size", page_size]);
    command.args(["--policy", policy, "--prefetch", prefetch, "--stats-json"]).arg(&json);
    command.arg("--").arg(built().workload("threads")).args(["--threads", "2", "--size", size, "--ops", "400"]);
    let outcome = place.run(&mut command);
    let what = format!("mode {mode}, policy {policy}, prefetcher {prefetch}");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with("ok threads: "), "{what}: {outcome:?}");
    let seen = figures(&json);
    assert_eq!(seen.mode(), mode, "{what}");
    seen.assert_paged(1 << 20, &what);
    place.assert_nothing_left();
}

/// Runs every policy with every prefetcher in one mode, with default settings.
fn all_in(mode: &str) {
    if !mode_works(mode) {
        return;
    }
    for policy in POLICIES {
        for prefetch in PREFETCHERS {
            check(mode, policy.name, prefetch.name);
        }
    }
}

#[test]
fn thread_mode() {
    all_in("thread");
}

#[test]
fn sigbus_mode() {
    all_in("sigbus");
}

#[test]
fn sigsegv_mode() {
    all_in("sigsegv");
}
