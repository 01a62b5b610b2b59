//! Guards the promise that a forked child never silently reads wrong bytes: it dies of a signal when it touches its
//! parent's far memory, and lives when it does not. Starting other programs works from a program that pages.

use hanare_tests::{Place, Served, built, figures, mode_works, rounds, system_calls_work_on_far_pages};

#[test]
fn children_never_read_wrong_bytes() {
    for mode in ["thread", "sigbus", "sigsegv"] {
        if !mode_works(mode) {
            continue;
        }
        for page_size in ["auto", "4K", "64K", "2M"] {
            for _ in 0..rounds() {
                let place = Place::new();
                let json = place.path("json");
                let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--page-size", page_size]);
                command.arg("--stats-json").arg(&json).arg("--").arg(built().workload("forks"));
                let outcome = place.run(command.arg("16M"));
                let what = format!("{mode}, pages of {page_size}");
                outcome.assert_well(&what);
                assert!(outcome.text().starts_with("ok forks: "), "{what}: {outcome:?}");
                figures(&json).assert_paged(4 << 20, &what);
                place.assert_nothing_left();
            }
        }
    }
}

#[test]
fn children_over_a_link() {
    for mode in ["thread", "sigbus", "sigsegv"] {
        if !mode_works(mode) {
            continue;
        }
        let place = Place::new();
        let server = Served::tcp(&place, "128M");
        let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--server", &server.address, "--"]);
        let outcome = place.run(command.arg(built().workload("forks")).arg("16M"));
        outcome.assert_well(mode);
        assert!(outcome.text().starts_with("ok forks: "), "{mode}: {outcome:?}");
        place.assert_nothing_left();
    }
}

#[test]
fn a_paging_python_starts_programs() {
    if !system_calls_work_on_far_pages() {
        return;
    }
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
    let json = place.path("json");
    let mut command = place.hanare(["run", "--local", "8M", "--stats-json"]);
    command.arg(&json).args(["--", "python3", "-c", script]);
    let outcome = place.run(&mut command);
    outcome.assert_well("python3 with children");
    assert_eq!(outcome.text(), "ok\n");
    let seen = figures(&json);
    seen.assert_paged(32 << 20, "python3 with children");
    assert!(seen.number("processes") > 20, "the children run under Hanare too");
    place.assert_nothing_left();
}
