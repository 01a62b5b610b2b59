//! Programs that were built with a sanitizer. Those that could not end well are refused before they begin.

use hanare_tests::{Place, installed};

const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void) {
    char *block = malloc(16 << 20);
    memset(block, 7, 16 << 20);
    long sum = 0;
    for (long at = 0; at < 16 << 20; at++) sum += block[at];
    free(block);
    return printf("sum %ld\n", sum) > 0 ? 0 : 1;
}
"#;

/// Builds the program with a sanitizer. Returns `false` if the compiler lacks it, or the program does not run alone.
fn build(place: &Place, name: &str) -> bool {
    place.file("program.c", PROGRAM);
    let flag = format!("-fsanitize={name}");
    let compiled = place.run(place.command("cc").args(["-O1", &flag, "-o", name, "program.c"]));
    let works = compiled.code == Some(0) && place.run(&mut place.command(place.path(name))).code == Some(0);
    if !works {
        println!("skipped: programs with {flag} do not work here");
    }
    works
}

#[test]
fn those_that_stop_all_threads_or_take_its_signals_are_refused() {
    let place = Place::new();
    if !installed("cc", "gcc") {
        return;
    }
    for (name, line) in [("leak", "looks for leaks at its end"), ("thread", "is built with the thread sanitizer")] {
        if build(&place, name) {
            let mut command = place.hanare(["run", "--local", "4M", "--"]);
            place.run(command.arg(place.path(name))).assert_ended_by_us(125, line);
            place.assert_nothing_left();
        }
    }
}

#[test]
fn without_the_search_for_leaks_a_program_runs() {
    let place = Place::new();
    if !installed("cc", "gcc") || !build(&place, "leak") {
        return;
    }
    let mut command = place.hanare(["run", "--local", "4M", "--"]);
    let outcome = place.run(command.arg(place.path("leak")).env("LSAN_OPTIONS", "detect_leaks=0"));
    assert!(outcome.code == Some(0) && outcome.text() == "sum 117440512\n", "{outcome:?}");
    place.assert_nothing_left();
}
