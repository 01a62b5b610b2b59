//! Tests which signals a started program ignores.

use hanare_sys::signal::ignore_in;
use std::process::Command;

/// Returns the signals that a program ignores which is started with `signals` ignored.
fn ignored(signals: u64) -> u64 {
    let mut command = Command::new("grep");
    ignore_in(&mut command, signals);
    let output = command.args(["SigIgn", "/proc/self/status"]).output().expect("grep runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mask = text.strip_prefix("SigIgn:").expect("a line of masks").trim();
    u64::from_str_radix(mask, 16).expect("a mask")
}

/// The C library's `posix_spawn` ignores the library's own signals in each program that it starts, this one perhaps.
#[test]
fn a_started_program_ignores_the_named_signals_only() {
    let by_default = [0u64; 4];
    for signal in [32, 33] {
        // SAFETY: the kernel reads a local action. No thread of this process is cancelled or changes its user.
        let set =
            unsafe { hanare_sys::syscall(libc::SYS_rt_sigaction, [signal, by_default.as_ptr() as usize, 0, 8, 0, 0]) };
        assert_eq!(set, Ok(0));
    }
    let before = ignored(0);
    assert_eq!(before & 0x1_8000_0000, 0, "{before:#x}");
    let named = 1 << (libc::SIGUSR1 - 1) | 1 << (libc::SIGHUP - 1);
    assert_eq!(ignored(named), before | named);
}
