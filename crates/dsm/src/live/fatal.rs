//! The end of a rank that cannot continue: one message, an exit code, nothing else.

use std::io::Write;

/// Exit code when shared memory could not be started, or was called wrongly.
pub const EXIT_OWN: i32 = 125;
/// Exit code when another rank was lost, or the ranks cannot continue together.
pub const EXIT_LOST: i32 = 122;

/// The value of a system call. Ends this rank if the call failed.
pub(super) fn must<T>(what: &str, done: Result<T, impl Into<std::io::Error>>) -> T {
    done.unwrap_or_else(|error| {
        let error = error.into();
        die(EXIT_LOST, &format!("cannot {what}: {error}; free memory, and close no descriptors but the program's own"))
    })
}

/// Prints the reason on stderr and ends the process at once, without running any code of the program.
#[allow(unsafe_code, reason = "ends the process without the program's exit handlers")]
pub fn die(code: i32, why: &str) -> ! {
    say(why);
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Prints a line on stderr, which may be closed or on a full disk.
pub fn say(what: &str) {
    let line = format!("hanare: {what}\n");
    // Ignored: there is no other place for the message.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
