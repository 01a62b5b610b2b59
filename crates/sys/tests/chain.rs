//! Tests that a fault outside Hanare's memory has the same effect as without Hanare's handler. Every case runs in a new
//! process. For each case, a test starts this test program again, with the case's name in an environment variable.

mod common;

use common::*;
use hanare_sys::map::{self, Mapping, Prot, page_size};
use hanare_sys::signal::{self, FaultInfo, Verdict};
use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const CASE: &str = "HANARE_SYS_TEST_CASE";
const NOT_MAPPED: usize = 0x10;

static OWNED: AtomicUsize = AtomicUsize::new(0);
static ASKED: AtomicUsize = AtomicUsize::new(0);
static AT_START: AtomicU64 = AtomicU64::new(0);

/// The fault handler under test. It resolves faults in one page and refuses all other faults.
fn ours(fault: FaultInfo) -> Verdict {
    ASKED.fetch_add(1, Ordering::Relaxed);
    let addr = fault.addr & !(page_size() - 1);
    if addr != OWNED.load(Ordering::Relaxed) {
        return Verdict::NotOurs;
    }
    // SAFETY: the page belongs to this test, and no reference points into it.
    unsafe { map::protect(addr, page_size(), Prot::READ_WRITE) }.unwrap();
    Verdict::Handled
}

/// The program's own handler, with SA_SIGINFO. Exits with 40 if the signal, address and context are those that the kernel
/// would pass, and the mask is the kernel's without the trap's signal. Else exits with 41.
extern "C" fn programs_full(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: our handler passes on the siginfo that it got from the kernel, so `info` is valid.
    let addr = unsafe { (*info).si_addr() } as usize;
    let good = signal == libc::SIGSEGV && addr == NOT_MAPPED && !context.is_null();
    // The mask must be the union of the interrupted mask and the action's mask. The trap's signal stays open, because the
    // handler may access memory that traps.
    let mask = blocked();
    let expected = AT_START.load(Ordering::Relaxed) | 1u64 << (libc::SIGUSR1 - 1);
    // SAFETY: `_exit` ends the process immediately and runs no exit handlers.
    unsafe { libc::_exit(if good && mask == expected { 40 } else { 41 }) };
}

extern "C" fn programs_plain(signal: c_int) {
    // SAFETY: `_exit` ends the process immediately and runs no exit handlers.
    unsafe { libc::_exit(if signal == libc::SIGSEGV { 50 } else { 51 }) };
}

fn blocked() -> u64 {
    // SAFETY: a sigset_t may be all zeroes. The calls write only to the local `set`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        (1..65).filter(|signal| libc::sigismember(&raw const set, *signal) == 1).map(|s| 1 << (s - 1)).sum()
    }
}

fn action(handler: usize, flags: c_int) -> libc::sigaction {
    // SAFETY: a sigaction may be all zeroes. The calls write only to the signal set of the local `action`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        action
    }
}

fn set_kernel(action: &libc::sigaction) {
    // SAFETY: `action` is valid for SIGSEGV: its handler is SIG_DFL, SIG_IGN or a function of this test with the right
    // signature.
    let answer = unsafe { libc::sigaction(libc::SIGSEGV, action, std::ptr::null_mut()) };
    assert_eq!(answer, 0);
}

/// Returns the flags that a program reads back after it has set `action`, without Hanare's handler.
fn flags_without_ours(action: &libc::sigaction) -> c_int {
    set_kernel(action);
    // SAFETY: a sigaction may be all zeroes. The call only writes to the local value.
    unsafe {
        let mut seen: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGSEGV, std::ptr::null(), &raw mut seen), 0);
        seen.sa_flags
    }
}

/// Makes a page that traps and that the handler under test resolves. Each case first accesses this page, to show that
/// the handler works.
fn own_page() -> Mapping {
    let page = near(page_size(), 1);
    OWNED.store(page.addr(), Ordering::Relaxed);
    // SAFETY: the page belongs to this test, and no reference points into it.
    unsafe { map::protect(page.addr(), page.len(), Prot::NONE) }.unwrap();
    page
}

fn run_case(case: &str) {
    AT_START.store(blocked(), Ordering::Relaxed);
    let full = action(programs_full as *const () as usize, libc::SA_SIGINFO);
    let plain = action(programs_plain as *const () as usize, 0);
    let default = action(libc::SIG_DFL, 0);
    let ignore = action(libc::SIG_IGN, 0);
    let flags = flags_without_ours(&full);
    set_kernel(if case == "before" { &full } else { &default });
    signal::install(libc::SIGSEGV, ours).unwrap();
    signal::install(libc::SIGSEGV, ours).unwrap();
    // SAFETY: the actions contain handlers of this test with the right signatures.
    let set = |action: &libc::sigaction| unsafe { signal::set_chained(libc::SIGSEGV, *action) }.unwrap();
    match case {
        "before" => assert_eq!(signal::chained(libc::SIGSEGV).unwrap().sa_sigaction, full.sa_sigaction),
        "after" => {
            assert_eq!(set(&full).sa_sigaction, libc::SIG_DFL);
            let old = set(&full);
            assert_eq!((old.sa_sigaction, old.sa_flags), (full.sa_sigaction, flags));
            // SAFETY: `old.sa_mask` is a valid signal set, which the call only reads.
            let member = unsafe { libc::sigismember(&raw const old.sa_mask, libc::SIGUSR1) };
            assert_eq!(member, 1);
        }
        "plain" => drop(set(&plain)),
        "ignored" | "ignored_sent" => drop(set(&ignore)),
        "default" | "default_sent" => {}
        "uninstalled" => {
            set(&full);
            signal::uninstall(libc::SIGSEGV).unwrap();
            // There is no trap any more, so the kernel blocks the signal while its handler runs.
            AT_START.fetch_or(1 << (libc::SIGSEGV - 1), Ordering::Relaxed);
        }
        other => panic!("no case {other}"),
    }
    if case != "uninstalled" {
        let page = own_page();
        check(page.addr(), page.len(), 1);
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }
    if case.ends_with("_sent") {
        // SAFETY: `raise` takes only an integer and sends a signal to this thread.
        unsafe { libc::raise(libc::SIGSEGV) };
        std::process::exit(if ASKED.load(Ordering::Relaxed) == 1 { 60 } else { 61 });
    }
    read(NOT_MAPPED);
    std::process::exit(99);
}

/// Runs the case that the environment variable names, in a process that `start` has started. In the ordinary test run,
/// this test does nothing.
#[test]
fn child() {
    if let Ok(case) = std::env::var(CASE) {
        run_case(&case);
    }
}

fn start(case: &str) -> ExitStatus {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(CASE, case)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let start = std::time::Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if start.elapsed() > PATIENCE {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("case {case} hung");
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_handler_installed_before_ours_is_called() {
    assert_eq!(start("before").code(), Some(40));
}

#[test]
fn a_handler_the_program_set_later_is_called() {
    assert_eq!(start("after").code(), Some(40));
}

#[test]
fn a_plain_handler_is_called() {
    assert_eq!(start("plain").code(), Some(50));
}

#[test]
fn without_a_handler_the_process_dies_of_the_signal() {
    assert_eq!(start("default").signal(), Some(libc::SIGSEGV));
    assert_eq!(start("default_sent").signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_fault_cannot_be_ignored_but_a_sent_signal_can() {
    assert_eq!(start("ignored").signal(), Some(libc::SIGSEGV));
    assert_eq!(start("ignored_sent").code(), Some(60), "a sent signal never reaches our handler");
}

#[test]
fn uninstalling_gives_the_signal_back() {
    assert_eq!(start("uninstalled").code(), Some(40));
}
