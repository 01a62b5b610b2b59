//! Ends a rank that cannot continue, with one message and an exit code.

use std::io::Write;

/// Exit code if shared memory could not be started, or if the program misused a call.
pub const EXIT_OWN: i32 = 125;
/// Exit code if another rank was lost, or the ranks cannot continue together.
pub const EXIT_LOST: i32 = 122;

/// Returns the value of a system call, or ends this rank if the call failed.
pub(super) fn must<T>(what: &str, done: Result<T, impl Into<std::io::Error>>) -> T {
    done.unwrap_or_else(|error| {
        let error = error.into();
        die(EXIT_LOST, &format!("cannot {what}: {error}; free memory, and close no descriptors but the program's own"))
    })
}

/// Prints the reason on stderr and ends the process immediately, without running any code of the program.
#[allow(unsafe_code, reason = "ends the process without the program's exit handlers")]
pub fn die(code: i32, why: &str) -> ! {
    say(why);
    // SAFETY: `_exit` ends the process, so nothing is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Prints a line on stderr. Does nothing if stderr cannot be written.
pub fn say(what: &str) {
    let line = format!("hanare: {what}\n");
    // Ignored: there is no other place for the message.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
