//! Tests the allocator. Allocating and freeing must access no far page and cause no fault, for all sizes of blocks and
//! pages. Blocks must keep their bytes. A bad pointer must be reported and never used. (The DLM papers' allocator also
//! kept its bookkeeping outside the blocks, but its free took 291 times as long as malloc's.)

use hanare_tests::{Outcome, Place, built, figures, mode_works, system_calls_work_on_far_pages};

#[test]
fn allocating_and_freeing_touch_no_far_page_and_blocks_keep_their_bytes() {
    let place = Place::new();
    let blocks = built().workload("blocks");
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for page_size in ["auto", "64K", "2M"] {
            let flags = ["--local", "8M", "--mode", mode, "--page-size", page_size];
            let mut command = place.hanare(["run", "--stats-json", "json"]);
            let outcome = place.run(command.args(flags).arg("--").arg(&blocks));
            outcome.assert_well(&format!("{flags:?}"));
            assert!(outcome.text().starts_with("ok blocks"), "{outcome:?}");
            figures(&place.path("json")).assert_within_budget("blocks");
        }
    }
    place.assert_nothing_left();
}

/// A program that starts far memory by a call of the library forks while its threads allocate. Allocation must also
/// work in its children.
#[test]
fn programs_that_use_the_library_fork_without_waiting() {
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        let mut command = place.command(built().workload("blocks"));
        command.args(["forked", "--local", "8M", "--mode", mode]).env("HANARE_BIN", built().hanare());
        let outcome = place.run(&mut command);
        outcome.assert_well(mode);
        assert!(outcome.text().starts_with("ok blocks"), "{outcome:?}");
    }
    place.assert_nothing_left();
}

/// Threads make their first far allocations one after the other, and others fork, while far memory is being started. Each
/// block must be far. Children have far memory too, and no thread waits for ever.
#[test]
fn threads_allocate_and_fork_while_far_memory_starts() {
    let place = Place::new();
    let args = ["--ops", "2", "--size", "300K", "--apart", "100"];
    for (seed, threads) in (1..=16).zip([["128", "1"], ["60", "60"]].into_iter().cycle()) {
        let mut command = place.hanare(["run", "--local", "4G", "--"]);
        command.arg(built().workload("heap")).args(args);
        command.args(["--threads", threads[0], "--forkers", threads[1], "--seed", &seed.to_string()]);
        let outcome = place.run(&mut command);
        outcome.assert_well(&format!("seed {seed}"));
        assert!(outcome.text().starts_with(&format!("ok heap: {} threads", threads[0])), "{outcome:?}");
    }
    place.assert_nothing_left();
}

/// The program of the DLM paper on memory management runs alone and under `hanare run`. Freeing its far tree must cause
/// no fault.
#[test]
fn freeing_every_node_of_a_tree_that_is_far_takes_no_fault() {
    let place = Place::new();
    let tree = built().workload("rbtree");
    let args = ["--allocator", "dlm", "--away", "--json"];
    let mut alone = place.command(&tree);
    alone.args(["--local", "24M"]).args(args).env("HANARE_BIN", built().hanare());
    let mut run = place.hanare(["run", "--local", "24M", "--stats-json", "json", "--"]);
    run.arg(&tree).args(args);
    for mut command in [alone, run] {
        let outcome = place.run(&mut command);
        outcome.assert_well("rbtree");
        place.file("rbtree.json", &outcome.stdout);
        let told = figures(&place.path("rbtree.json"));
        assert!(told.number("nodes") > 390_000, "{outcome:?}");
        assert!(told.number("faults") > 100, "the tree was not far: {outcome:?}");
        assert_eq!(told.number("faults_in_release"), 0, "{outcome:?}");
    }
    let seen = figures(&place.path("json"));
    assert!(seen.number("bytes_out") >= 18 << 20, "the nodes were not away");
    assert!(seen.number("near_bytes") > 0, "near memory was not counted");
    place.assert_nothing_left();
}

/// Checks the amount of near memory (memory that is never evicted), with the default page size and with base pages.
/// With base pages, the tables of the pager and of the policy are largest, because each base page needs an entry.
#[test]
fn memory_that_is_not_allocated_costs_little_near_memory() {
    for page_size in ["auto", "4K"] {
        let place = Place::new();
        let mut command =
            place.hanare(["run", "--local", "48M", "--page-size", page_size, "--stats-json", "json", "--"]);
        place.run(command.arg(built().workload("touch")).arg("96M")).assert_well("touch");
        let seen = figures(&place.path("json"));
        let (near, far) = (seen.number("near_bytes"), seen.number("far_bytes_peak"));
        assert!(near > 0 && near <= far / 4096 * 48, "{page_size}: {near} near bytes for {far} far ones");
    }
}

#[test]
fn a_program_of_small_blocks_gets_enomem_when_the_servers_are_full() {
    let place = Place::new();
    let mut command = place.hanare(["run", "--local", "4M", "--memory", "48M", "--spill", "none", "--"]);
    let outcome = place.run(command.arg(built().workload("blocks")).args(["many", "256M"]));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.text().contains("Cannot allocate memory"), "{outcome:?}");
    assert!(outcome.stderr.contains("refused (ENOMEM)") && outcome.stderr.lines().count() == 1, "{outcome:?}");
    place.assert_nothing_left();
}

#[test]
fn mistakes_end_with_a_line_that_names_the_pointer() {
    let place = Place::new();
    let blocks = built().workload("blocks");
    let mistakes = [
        ("double", "dlm_free(): double free"),
        ("double-late", "dlm_free(): double free"),
        ("double-large", "dlm_free(): invalid pointer"),
        ("gone", "dlm_free(): double free"),
        ("stack", "dlm_free(): invalid pointer"),
        ("heap", "dlm_free(): invalid pointer"),
        ("inside", "dlm_free(): invalid pointer"),
        ("inside-large", "dlm_free(): invalid pointer"),
        ("realloc", "dlm_realloc(): invalid pointer"),
    ];
    for (mistake, said) in mistakes {
        let mut command = place.command(&blocks);
        command.args([mistake, "--local", "8M"]).env("HANARE_BIN", built().hanare());
        assert_told(&place.run(&mut command), mistake, said);
        assert_told(&place.run(place.hanare(["run", "--local", "8M", "--"]).arg(&blocks).arg(mistake)), mistake, said);
    }
    place.assert_nothing_left();
}

/// Checks the two lines on standard error. The program prints the bad pointer, and Hanare's line must name the same
/// pointer.
#[track_caller]
fn assert_told(outcome: &Outcome, mistake: &str, said: &str) {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert!(outcome.code != Some(0) && lines.len() == 2, "{mistake}: {outcome:?}");
    assert!(lines[1].starts_with(&format!("hanare: {said}: {};", lines[0])), "{mistake}: {outcome:?}");
}

#[test]
fn calls_before_the_start_say_so_once() {
    let place = Place::new();
    let outcome = place.run(place.command(built().workload("blocks")).arg("early"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.starts_with("hanare: dlm_alloc() before dlm_startup()"), "{outcome:?}");
}

/// With `--far all`, even the smallest block is far. The programs must print the same as without Hanare.
#[test]
fn programs_run_with_every_allocation_far() {
    if !system_calls_work_on_far_pages() {
        return;
    }
    let place = Place::new();
    let vector = built().workload("vector").display().to_string();
    let heap = built().workload("heap").display().to_string();
    let sum = "with recursive c(x) as (select 1 union all select x + 1 from c where x < 100000) \
               select count(*), sum(x * x % 7) from (select x from c order by x % 1000, x)";
    let programs: [&[&str]; 3] =
        [&[&vector, "4M"], &[&heap, "--ops", "200", "--size", "256K"], &["sqlite3", ":memory:", sum]];
    for words in programs {
        let native = place.run(place.command(words[0]).args(&words[1..]));
        native.assert_well(words[0]);
        let mut command = place.hanare(["run", "--far", "all", "--local", "512K", "--stats-json", "json", "--"]);
        let far = place.run(command.args(words));
        far.assert_well(words[0]);
        assert_eq!(far.text(), native.text(), "{words:?}");
        figures(&place.path("json")).assert_paged(1 << 18, words[0]);
    }
    place.assert_nothing_left();
}
