//! Tests what the traps of system calls in sigbus mode leave to others: programs that a run starts without Hanare's
//! library, programs in Go, tracers and debuggers.

use std::process::Command;
use std::time::Duration;

use hanare_tests::{Outcome, Place, built, figures, installed, mode_works, until};

/// A program that passes tables of pointers to the kernel, as those calls do that a filter cannot look into.
const STATIC: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/uio.h>
#include <unistd.h>
int main(void) {
    int ends[2];
    char a[3] = {0}, b[4] = {0};
    struct iovec out[2] = {{"far", 3}, {"away", 4}}, in[2] = {{a, 3}, {b, 4}};
    sigset_t all;
    sigfillset(&all);
    if (pipe(ends) || writev(ends[1], out, 2) != 7 || readv(ends[0], in, 2) != 7) return 1;
    if (sigprocmask(SIG_BLOCK, &all, NULL)) return 2;
    return printf("%.3s %.4s\n", a, b) == 9 ? 0 : 3;
}
"#;

/// A program that writes a block of C's from Go, reads it back, and checks it.
const GO: &str = r#"
package main

// #include <stdlib.h>
// #include <string.h>
import "C"
import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

const size = 24 << 20

func must(ok bool, what string, err error) {
	if !ok {
		fmt.Println("wrong:", what, err)
		os.Exit(1)
	}
}

func main() {
	block := C.malloc(size)
	bytes := unsafe.Slice((*byte)(block), size)
	for i := range bytes {
		bytes[i] = byte(i*7 + i>>12)
	}
	file, err := os.CreateTemp("", "far")
	must(err == nil, "a file", err)
	defer os.Remove(file.Name())
	done := make(chan int)
	for part := 0; part < 4; part++ {
		go func() {
			n, err := syscall.Pwrite(int(file.Fd()), bytes[part*size/4:(part+1)*size/4], int64(part*size/4))
			must(err == nil, "written", err)
			done <- n
		}()
	}
	for part := 0; part < 4; part++ {
		must(<-done == size/4, "written as a whole", nil)
	}
	C.memset(block, 0, size)
	for at := 0; at < size; {
		n, err := syscall.Pread(int(file.Fd()), bytes[at:min(at+3<<20, size)], int64(at))
		must(err == nil && n > 0, "read", err)
		at += n
	}
	for i := range bytes {
		must(bytes[i] == byte(i*7+i>>12), "a byte", nil)
	}
	runtime.GC()
	fmt.Println("ok go")
}
"#;

fn compile(place: &Place, compiler: &mut Command) {
    let outcome = place.run(compiler);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

fn static_program(place: &Place) -> std::path::PathBuf {
    let (source, program) = (place.file("static.c", STATIC), place.path("static"));
    compile(place, place.command("gcc").args(["-O1", "-static", "-o"]).arg(&program).arg(&source));
    program
}

fn run(place: &Place, script: &str) -> Outcome {
    let mut command = place.hanare(["run", "--mode", "sigbus", "--local", "8M", "--", "sh", "-c", script]);
    place.run(&mut command)
}

#[test]
fn programs_without_the_library_run_as_ever() {
    if !mode_works("sigbus") || !installed("gcc", "gcc") {
        return;
    }
    let place = Place::new();
    let program = static_program(&place);
    let program = program.display();
    let script = format!("{program} && exec env -u LD_PRELOAD {program}");
    let outcome = run(&place, &script);
    outcome.assert_well("static programs");
    assert_eq!(outcome.text(), "far away\nfar away\n");
    let dynamic = built().workload("streams");
    let outcome = run(&place, &format!("exec env -u LD_PRELOAD {}", dynamic.display()));
    outcome.assert_well("a dynamic program without the library");
    place.assert_nothing_left();
}

#[test]
fn a_run_does_not_take_the_means_to_gain_privileges() {
    if !mode_works("sigbus") {
        return;
    }
    let place = Place::new();
    let outcome = run(&place, "grep NoNewPrivs /proc/self/status");
    let natively = place.run(place.command("grep").args(["NoNewPrivs", "/proc/self/status"]));
    assert_eq!((outcome.code, outcome.text()), (Some(0), natively.text()));
    // As root: a program of root's with the set-user-id bit, started by another user.
    let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
    if !is_root || !installed("gcc", "gcc") || !installed("setpriv", "util-linux") {
        return;
    }
    let source =
        place.file("who.c", "#include <stdio.h>\n#include <unistd.h>\nint main(void){printf(\"%d\\n\",geteuid());}");
    let program = place.path("who");
    compile(&place, place.command("gcc").arg("-o").arg(&program).arg(&source));
    compile(&place, place.command("chmod").arg("4755").arg(&program));
    let script = format!("exec env -u LD_PRELOAD setpriv --reuid=65534 --clear-groups {}", program.display());
    let natively = place.run(place.command("sh").args(["-c", &script]));
    let outcome = run(&place, &script);
    assert_eq!((outcome.code, outcome.text()), (natively.code, natively.text()), "{outcome:?}");
}

#[test]
fn runs_within_runs_work() {
    if !mode_works("sigbus") {
        return;
    }
    let place = Place::new();
    let inner = built().workload("instructions");
    let mut command = place.hanare(["run", "--mode", "sigbus", "--local", "64M", "--"]);
    command.arg(built().hanare()).args(["run", "--mode", "sigbus", "--local", "8M", "--"]).arg(inner);
    place.run(&mut command).assert_well("a run within a run");
    place.assert_nothing_left();
}

#[test]
fn each_trap_alone_serves_what_it_sees() {
    if !mode_works("sigbus") {
        return;
    }
    for disable in ["filter", "dispatch", "filter,dispatch"] {
        let place = Place::new();
        let mut command = place.hanare(["run", "--mode", "sigbus", "--local", "8M", "--"]);
        command.env("HANARE_DISABLE", disable).arg(built().workload("calls"));
        place.run(&mut command).assert_well(disable);
    }
}

#[test]
fn a_go_program_passes_far_blocks_of_c_to_its_own_calls() {
    if !mode_works("sigbus") || !installed("go", "golang-go") || !installed("gcc", "gcc") {
        return;
    }
    let place = Place::new();
    let (source, program, cache, json) =
        (place.file("far.go", GO), place.path("go-program"), place.path("cache"), place.path("json"));
    let mut compiler = place.command("go");
    compiler.env("GOCACHE", &cache).env("CGO_ENABLED", "1").env("GO111MODULE", "off");
    let built = place.run(compiler.args(["build", "-o"]).arg(&program).arg(&source));
    if built.code != Some(0) {
        println!("skipped: this Go does not build programs with C: {built:?}");
        return;
    }
    let mut command = place.hanare(["run", "--mode", "sigbus", "--local", "8M", "--stats-json"]);
    let outcome = place.run(command.arg(&json).arg("--").arg(&program));
    outcome.assert_well("a Go program");
    assert_eq!(outcome.text(), "ok go\n");
    figures(&json).assert_paged(16 << 20, "a Go program");
}

#[test]
fn tracers_and_debuggers_see_a_program_that_goes_on() {
    if !mode_works("sigbus") {
        return;
    }
    if installed("strace", "strace") {
        let place = Place::new();
        let mut tracer = place.command("strace");
        tracer.args(["-f", "-o"]).arg(place.path("trace")).arg(built().hanare());
        tracer.args(["run", "--mode", "sigbus", "--local", "8M", "--"]).arg(built().workload("streams"));
        place.run(&mut tracer).assert_well("under strace");
    }
    if installed("gdb", "gdb") {
        let place = Place::new();
        let debugged = place.path("debugged");
        std::fs::write(&debugged, "").unwrap();
        let touch = built().workload("touch");
        let script = format!("echo $$ >&2; exec {} 32M --while {}", touch.display(), debugged.display());
        let mut command = place.hanare(["run", "--mode", "sigbus", "--local", "8M", "--", "sh", "-c", &script]);
        let mut running = place.start(&mut command);
        until("the program has said its number", || running.said_so_far().ends_with('\n'));
        let program = running.said_so_far();
        for _ in 0..2 {
            let mut debugger = place.command("gdb");
            let outcome = place.run(debugger.args(["-batch", "-nx", "-ex", "bt", "-p", program.trim()]));
            assert!(outcome.code == Some(0) && outcome.text().contains("#0"), "{outcome:?}");
            assert!(running.runs(), "the program ended under the debugger");
        }
        std::fs::remove_file(&debugged).unwrap();
        let outcome = running.finish(Duration::from_secs(60));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
    }
}
