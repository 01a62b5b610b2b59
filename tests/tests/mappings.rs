//! Guards against a run that ends because it has too many mappings. If each page traps by its own protection, the
//! kernel splits mappings. Their number is limited (vm.max_map_count).

use std::time::Duration;

use hanare_tests::{Place, Served, built, figures};

const LIMIT: Duration = Duration::from_secs(300);

/// Accesses 131,072 pages at random, with half of their 512 MiB local. The number of boundaries between resident and
/// evicted pages reaches the limit on mappings.
fn pages_at_random(flags: &[&str], disable: &str) {
    let place = Place::new();
    let json = place.path("json");
    let mut command = place.hanare(["run", "--mode", "sigsegv", "--page-size", "4K", "--stats-json"]);
    command.arg(&json).args(flags).arg("--").arg(built().workload("touch")).args(["512M", "--random"]);
    let outcome = place.start(command.env("HANARE_DISABLE", disable)).finish(LIMIT);
    let what = format!("{flags:?}, without {disable:?}");
    outcome.assert_well(&what);
    assert!(outcome.text().starts_with("ok touch: "), "{what}: {outcome:?}");
    figures(&json).assert_paged(128 << 20, &what);
    place.assert_nothing_left();
}

#[test]
fn small_pages_touched_at_random_never_use_up_the_mappings() {
    pages_at_random(&["--local", "50%"], "");
}

#[test]
fn nor_do_they_where_the_kernel_has_no_guards() {
    pages_at_random(&["--local", "50%"], "guards");
    pages_at_random(&["--local", "256M"], "guards");
}

/// With a link to a server, clean pages are write-protected while there are enough mappings, so that the pager knows
/// which pages are dirty.
#[test]
fn nor_do_they_over_a_link() {
    let place = Place::new();
    let served = Served::unix(&place, "600M", "s");
    pages_at_random(&["--local", "256M", "--server", &served.address], "");
}
