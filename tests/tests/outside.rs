//! Tests how far memory appears to other processes, as docs/debugging.md describes it. Zeroes must never appear in
//! place of evicted bytes.

use hanare_tests::{Place, built, mode_works, until};

/// A program that fills pages with different values, prints their addresses, and waits.
const PROGRAM: &str = "\
import ctypes, os, sys, time
size = 32 << 20
block = bytearray(size)
for at in range(0, size, 4096):
    block[at:at + 8] = (at // 4096 + 1).to_bytes(8, 'little')
where = ctypes.addressof((ctypes.c_char * size).from_buffer(block))
print(os.getpid(), where, size, file=sys.stderr, flush=True)
time.sleep(100)
";

/// A program that reads every 16th page of another process in two ways, and counts the results.
const LOOKER: &str = "\
import collections, ctypes, os, sys
pid, where, size = map(int, sys.argv[1:])
libc = ctypes.CDLL(None)
class Part(ctypes.Structure):
    _fields_ = [('at', ctypes.c_void_p), ('len', ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
def call(at):
    here, there = Part(ctypes.addressof(buffer), 8), Part(at, 8)
    got = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return buffer.raw if got == 8 else None
memory = os.open(f'/proc/{pid}/mem', os.O_RDONLY)
def file(at):
    try:
        return os.pread(memory, 8, at)
    except OSError:
        return None
for name, read in (('call', call), ('file', file)):
    seen = collections.Counter()
    for at in range(0, size, 16 * 4096):
        got = read(where + at)
        right = (at // 4096 + 1).to_bytes(8, 'little')
        seen['refused' if got is None else 'right' if got == right else 'wrong'] += 1
    print(name, seen['right'], seen['refused'], seen['wrong'])
";

/// Returns the numbers of right, refused and wrong pages: first for process_vm_readv, then for the file /proc/PID/mem.
fn look(mode: &str) -> [[u64; 3]; 2] {
    look_without(mode, "")
}

/// Does the work of [`look`], with the kernel features in `disable` switched off.
fn look_without(mode: &str, disable: &str) -> [[u64; 3]; 2] {
    let place = Place::new();
    let program = place.file("program.py", PROGRAM);
    let looker = place.file("looker.py", LOOKER);
    let mut command = place.hanare(["run", "--mode", mode, "--local", "8M", "--page-size", "16K", "--", "python3"]);
    let running = place.start(command.env("HANARE_DISABLE", disable).arg(&program));
    until("the program has said where its pages are", || running.said_so_far().ends_with('\n'));
    let said = running.said_so_far();
    let mut python = place.command("python3");
    let outcome = place.run(python.arg(&looker).args(said.split_whitespace()));
    outcome.assert_well(mode);
    let text = outcome.text();
    let mut rows = text.lines().map(|line| {
        let mut numbers = line.split(' ').skip(1).map(|word| word.parse().expect("a number"));
        std::array::from_fn(|_| numbers.next().expect("three numbers"))
    });
    std::array::from_fn(|_| rows.next().expect("two rows"))
}

#[test]
fn in_thread_mode_another_process_reads_pages_that_are_away() {
    if mode_works("thread") {
        let [call, file] = look("thread");
        assert!(call[0] == 512 && call[2] == 0, "{call:?}");
        assert_eq!(file[2], 0, "{file:?}");
    }
}

#[test]
fn in_sigbus_mode_another_process_is_refused_pages_that_are_away() {
    if mode_works("sigbus") {
        for [right, refused, wrong] in look("sigbus") {
            assert!(right > 50 && refused > 200 && wrong == 0, "{right} right, {refused} refused, {wrong} wrong");
        }
    }
}

#[test]
fn in_sigsegv_mode_another_process_call_is_refused_pages_that_are_away() {
    // docs/debugging.md describes what /proc/PID/mem shows in this mode.
    let [[right, refused, wrong], _] = look_without("sigsegv", "guards");
    assert!(right > 50 && refused > 200 && wrong == 0, "{right} right, {refused} refused, {wrong} wrong");
}

/// Guards against zeroes that another process reads in place of evicted bytes.
#[test]
fn in_sigsegv_mode_with_guards_another_process_is_refused_pages_that_are_away() {
    if hanare_sys::features::Features::probe(&hanare_sys::features::Disabled::default()).guards {
        for [right, refused, wrong] in look("sigsegv") {
            assert!(right > 50 && refused > 200 && wrong == 0, "{right} right, {refused} refused, {wrong} wrong");
        }
    }
}

/// Other processes write to pages that are evicted and fetched: processes that share the program's memory, and processes
/// that call process_vm_writev. The program has a single thread. Nothing in its process shows these writes.
#[test]
fn what_other_processes_write_is_not_lost() {
    const SKIPPED: i32 = 77;
    let place = Place::new();
    for mode in ["thread", "sigbus", "sigsegv"].into_iter().filter(|mode| mode_works(mode)) {
        for (page_size, local) in [("auto", "4M"), ("64K", "4M"), ("2M", "10M")] {
            for way in ["shares", "calls"] {
                let flags = ["--mode", mode, "--page-size", page_size, "--local", local];
                let mut command = place.hanare(["run"]);
                let outcome =
                    place.run(command.args(flags).arg("--").arg(built().workload("foreign")).args([way, "1"]));
                let is_well = outcome.code == Some(0) && outcome.text() == "ok foreign\n";
                assert!(is_well || outcome.code == Some(SKIPPED), "{way}, {flags:?}: {outcome:?}");
            }
        }
    }
    place.assert_nothing_left();
}

#[test]
fn a_run_that_dumps_core_says_what_the_core_lacks() {
    let place = Place::new();
    let program = place.file("program.py", PROGRAM.replace("time.sleep(100)", "time.sleep(1); os.abort()"));
    for (limit, told) in [("unlimited", true), ("0", false)] {
        let script = format!("ulimit -c {limit} && exec \"$@\"");
        let mut shell = place.command("sh");
        shell.args(["-c", &script, "sh"]).arg(hanare_tests::built().hanare());
        let outcome = place.run(shell.args(["run", "--local", "8M", "--", "python3"]).arg(&program));
        if outcome.stderr.contains("ulimit") {
            // This user may not change the limit on core files.
            continue;
        }
        assert_eq!(outcome.code, Some(134), "{outcome:?}");
        let says = outcome.stderr.contains("hanare: the core file lacks the program's ");
        // Some systems pass a core file to a program even if the limit is 0.
        assert!(says == told || limit == "0", "{limit}: {outcome:?}");
        place.assert_nothing_left();
    }
}
