//! The features and limits of this machine on which tests depend.

use std::ffi::OsString;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

use hanare::choose;
use hanare_settings::Mode;
use hanare_sys::features::{CallTraps, Disabled, Features};

use crate::{PATIENCE, built};

/// Returns how often a test repeats that finds a bug only by chance. `HANARE_TEST_ROUNDS` sets the number; the default
/// is 1.
pub fn rounds() -> u32 {
    match std::env::var("HANARE_TEST_ROUNDS") {
        Ok(text) => text.parse().expect("HANARE_TEST_ROUNDS is a number"),
        Err(_) => 1,
    }
}

/// Whether programs run at their full size, which takes minutes. `HANARE_TEST_FULL=1` asks for the full size.
pub fn is_full() -> bool {
    std::env::var_os("HANARE_TEST_FULL").is_some_and(|wish| wish == "1")
}

/// Returns the longest time that one program may run.
pub fn patience() -> Duration {
    if is_full() { 10 * PATIENCE } else { PATIENCE }
}

/// Whether a program is installed. If it is not, prints the package that contains it.
pub fn installed(program: &str, package: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !there {
        println!("skipped: there is no {program}; apt-get install {package}");
    }
    there
}

/// Returns different ports that are free at the time of the call.
pub fn free_ports<const N: usize>() -> [u16; N] {
    let listeners: [TcpListener; N] = std::array::from_fn(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners.map(|listener| listener.local_addr().expect("its address").port())
}

/// Whether the kernel's accesses to far pages trap here, so that programs can make system calls on far pages. This
/// needs userfaultfd. If they do not trap, prints a line, because the test then checks nothing.
pub fn system_calls_work_on_far_pages() -> bool {
    let works = choose::system_calls_work(Mode::Thread, &Features::probe(&Disabled::default()));
    if !works {
        println!("skipped: this user's userfaultfd traps no system call; see 'hanare doctor'");
    }
    works
}

/// Checks whether both traps for system calls in sigbus mode work here. If not, prints a line.
pub fn system_calls_are_trapped() -> bool {
    let both = CallTraps { filter: true, dispatch: true };
    let are_trapped = Features::probe(&Disabled::default()).calls == both;
    if !are_trapped {
        println!("this user's system calls cannot be trapped; see 'hanare doctor'");
    }
    are_trapped
}

/// Returns a python that can import numpy. If there is none, prints a line.
pub fn python_with_numpy() -> Option<OsString> {
    python_with("numpy")
}

/// Returns a python that can import a module: `HANARE_TEST_PYTHON`, `target/venv`, or `python3`. If there is none,
/// prints a line.
pub fn python_with(module: &str) -> Option<OsString> {
    let wish = std::env::var_os("HANARE_TEST_PYTHON");
    let venvs = [built().target.join("venv/bin/python"), built().root.join("target/venv/bin/python")];
    let candidates = wish.into_iter().chain(venvs.map(Into::into)).chain(["python3".into()]);
    let found = candidates.into_iter().find(|python| {
        let mut import = Command::new(python);
        import.arg("-c").arg(format!("import {module}")).stdout(Stdio::null()).stderr(Stdio::null());
        import.status().is_ok_and(|status| status.success())
    });
    if found.is_none() {
        println!("skipped: no python imports {module}; name one with HANARE_TEST_PYTHON, or run 'make python'");
    }
    found
}

/// Whether this trap mode works on this machine. Prints a line if it does not.
pub fn mode_works(mode: &str) -> bool {
    let mode: Mode = mode.parse().expect("a mode");
    let obstacle = choose::obstacle(mode, &Features::probe(&Disabled::default()));
    if let Some(obstacle) = obstacle {
        println!("skipped: mode {mode}: {obstacle}; see 'hanare doctor'");
    }
    obstacle.is_none()
}
