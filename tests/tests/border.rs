//! Guards the calls whose meaning on far memory is not the kernel's: each does what it does on near memory, or is refused
//! with an errno that programs expect. None is accepted and ignored where that shows.

use hanare_tests::{Place, built, figures, mode_works, system_calls_work_on_far_pages};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

fn works(mode: &str) -> bool {
    match mode {
        "thread" => system_calls_work_on_far_pages(),
        mode => mode_works(mode),
    }
}

/// The workload says the same as natively, in every mode and page size, while its pages leave.
fn same_everywhere(program: &str, paged_bytes: u64) {
    let place = Place::new();
    place.run(&mut place.command(built().workload(program))).assert_well(&format!("{program} natively"));
    for mode in MODES.into_iter().filter(|mode| works(mode)) {
        for page_size in ["auto", "4K", "64K", "2M"] {
            let json = place.path("json");
            let mut command =
                place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", page_size, "--stats-json"]);
            command.arg(&json).arg("--").arg(built().workload(program));
            let outcome = place.run(&mut command);
            let what = format!("{program} in {mode} mode with pages of {page_size}");
            outcome.assert_well(&what);
            assert!(outcome.text().starts_with(&format!("ok {program}: ")), "{what}: {outcome:?}");
            figures(&json).assert_paged(paged_bytes, &what);
        }
    }
    place.assert_nothing_left();
}

#[test]
fn advice_does_what_it_says_or_is_refused() {
    same_everywhere("advice", 12 << 20);
}

#[test]
fn pages_given_to_a_pipe_or_a_socket_stay_what_they_were() {
    same_everywhere("splice", 16 << 20);
}
