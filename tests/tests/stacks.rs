//! Tests programs that manage stacks and memory themselves. In a Go program with C, Go's memory is never evicted, and C
//! blocks are far. Coroutines run on far stacks. In modes in which accesses trap by a signal, far stacks end the
//! program, and the command must explain the reason.

use std::path::PathBuf;

use hanare_tests::{Place, built, figures, installed, mode_works};

const MODES: [&str; 3] = ["thread", "sigbus", "sigsegv"];

/// A program whose goroutines grow their stacks, fill maps and free memory. The program also reads and writes far C
/// blocks from Go.
const GO: &str = r##"
package main

// #include <stdint.h>
// #include <stdlib.h>
// static void fill(uint64_t *words, size_t n, uint64_t seed) { for (size_t i = 0; i < n; i++) words[i] = seed * (2 * i + 1); }
// static size_t wrong(uint64_t *words, size_t n, uint64_t seed) {
//     size_t bad = 0;
//     for (size_t i = 0; i < n; i++) bad += words[i] != seed * (2 * i + 1);
//     return bad;
// }
import "C"
import ("fmt"; "runtime/debug"; "sync"; "unsafe")

const words = 1 << 20

func deep(n int) int { var there [64]int; there[n%64] = n; if n == 0 { return 0 }; return deep(n-1) + there[n%64] }

func part(seed int, sums []int) {
	block := (*C.uint64_t)(C.malloc(words * 8))
	C.fill(block, words, C.uint64_t(seed))
	seen := map[int][]int{}
	for i := 0; i < 60000; i++ { seen[i%977] = append(seen[i%977], i) }
	there := unsafe.Slice((*uint64)(unsafe.Pointer(block)), words)
	for i := 0; i < words; i += 256 {
		if there[i] != uint64(seed)*uint64(2*i+1) { panic("a wrong word") }
		there[i] = uint64(seed+1) * uint64(2*i+1)
	}
	debug.FreeOSMemory()
	sums[seed-1] = int(C.wrong(block, words, C.uint64_t(seed))) + len(seen) + deep(20000)
	C.free(unsafe.Pointer(block))
}

func main() {
	sums := make([]int, 6)
	var all sync.WaitGroup
	for seed := 1; seed <= 6; seed++ { all.Add(1); go func() { defer all.Done(); part(seed, sums) }() }
	all.Wait()
	fmt.Println("ok go:", sums)
}
"##;

/// Builds a Go program from `text` with these flags. If Go is not installed, prints a line and returns `None`.
fn go_program(place: &Place, text: &str, flags: &[&str]) -> Option<PathBuf> {
    if !installed("go", "golang-go") || !installed("cc", "gcc") {
        return None;
    }
    let (source, program) = (place.file("main.go", text), place.path("program"));
    let mut command = place.command("go");
    command.arg("build").args(flags).arg("-o").arg(&program).arg(source);
    command.env("CGO_ENABLED", "1").env("GOCACHE", built().target.join("go-cache")).env("GOFLAGS", "-mod=mod");
    place.run(&mut command).assert_well("go build");
    Some(program)
}

#[test]
fn go_with_c_runs_in_every_mode() {
    let place = Place::new();
    for flags in [&[][..], &["-ldflags=-buildid= -s -w"]] {
        let Some(program) = go_program(&place, GO, flags) else { return };
        let native = place.run(&mut place.command(&program));
        native.assert_well("natively");
        for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
            let json = place.path("json");
            let mut command = place.hanare(["run", "--local", "4M", "--mode", mode, "--stats-json"]);
            let outcome = place.run(command.arg(&json).arg("--").arg(&program));
            let what = format!("{mode}, {flags:?}");
            outcome.assert_well(&what);
            assert_eq!(outcome.text(), native.text(), "{what}");
            // How much comes back depends on how Go schedules its goroutines and when it collects garbage.
            figures(&json).assert_paged(2 << 20, &what);
        }
    }
    place.assert_nothing_left();
}

#[test]
fn a_library_in_go_can_be_loaded_later() {
    let text = "package main\nimport \"C\"\n//export Count\nfunc Count(n C.int) C.int {\n\tseen := map[int][]int{}\n\
                \tfor i := 0; i < int(n); i++ { seen[i%1000] = append(seen[i%1000], i) }\n\treturn C.int(len(seen))\n}\n\
                func main() {}\n";
    let place = Place::new();
    if !installed("python3", "python3") {
        return;
    }
    let Some(library) = go_program(&place, text, &["-buildmode=c-shared"]) else { return };
    let script = format!("import ctypes\nprint(ctypes.CDLL({:?}).Count(300000))", library.display().to_string());
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let mut command = place.hanare(["run", "--local", "16M", "--mode", mode, "--", "python3", "-c", &script]);
        let outcome = place.run(&mut command);
        outcome.assert_well(mode);
        assert_eq!(outcome.text(), "1000\n", "{mode}");
    }
}

/// Where accesses trap by a signal, each thread has a near stack for the handler. So a coroutine's stack can be far.
#[test]
fn far_stacks_of_coroutines_work_in_every_mode() {
    let place = Place::new();
    for mode in MODES.into_iter().filter(|mode| mode_works(mode)) {
        let mut command = place.hanare(["run", "--local", "8M", "--mode", mode, "--"]);
        let outcome = place.run(command.arg(built().workload("coroutine")));
        outcome.assert_well(mode);
        assert_eq!(outcome.text(), "ok coroutine: 24 coroutines, 8 turns\n");
    }
    place.assert_nothing_left();
}
