//! The end of a rank that cannot go on: one line, an exit code, nothing else.

use std::io::Write;

/// Shared memory could not be started, or was called wrongly.
pub const EXIT_OWN: i32 = 125;
/// Another rank was lost, or the ranks cannot go on together.
pub const EXIT_LOST: i32 = 122;

/// The value of a system call without which this rank cannot go on.
pub(super) fn must<T>(what: &str, done: Result<T, impl Into<std::io::Error>>) -> T {
    done.unwrap_or_else(|error| {
        let error = error.into();
        die(EXIT_LOST, &format!("cannot {what}: {error}; free memory, and close no descriptors but the program's own"))
    })
}

/// Says why on stderr and ends the process at once, without running anything of the program's.
#[allow(unsafe_code, reason = "ends the process without the program's exit handlers")]
pub fn die(code: i32, why: &str) -> ! {
    say(why);
    // SAFETY: ends the process; nothing of it is used afterwards.
    unsafe { libc::_exit(code) }
}

/// Prints a line on stderr, which may be closed or on a full disk.
pub fn say(what: &str) {
    let line = format!("hanare: {what}\n");
    // Ignored: there is nobody left to be told.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
