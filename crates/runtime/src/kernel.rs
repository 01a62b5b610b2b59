//! Retries kernel calls that paging cannot do without.
//!
//! A call is repeated until the kernel grants it. If the kernel keeps refusing, the run ends with a message. Nothing
//! here allocates memory, so the fault path may use this module.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hanare_sys::{Errno, futex};

use crate::fatal::{self, EXIT_KERNEL};

/// Number of successive refusals after which each further attempt waits first.
const TRIES_AT_ONCE: u32 = 64;
/// Length of the wait before an attempt, in milliseconds.
const PAUSE_MS: u64 = 1;
/// Number of successive refusals after which the run ends. By then, the waits between attempts add up to 5 s.
const TRIES_MAX: u32 = TRIES_AT_ONCE + 5_000;

/// Counts the successive refusals of one call.
pub(crate) struct Patience {
    what: &'static str,
    tries: u32,
}

impl Patience {
    /// Starts to count the refusals of a call. `what` says what the call does. If the run ends because of them, its
    /// message reads "the kernel does not {what}".
    pub(crate) fn to(what: &'static str) -> Self {
        Self { what, tries: 0 }
    }

    /// Counts a refusal. After many refusals, waits before it returns. Ends the run if a retry cannot succeed, or if
    /// the call was refused too often.
    #[cold]
    pub(crate) fn refused(&mut self, errno: Errno) {
        self.tries += 1;
        // These errors mean that the program closed the descriptor, so a retry cannot succeed.
        let is_final = matches!(errno.0, libc::EBADF | libc::ENOTTY);
        if is_final || self.tries > TRIES_MAX {
            fatal::die(EXIT_KERNEL, format_args!("the kernel does not {}: {errno}; {}", self.what, advice(errno)));
        }
        if self.tries > TRIES_AT_ONCE {
            let nobody = AtomicU32::new(0);
            // The wait only passes time: nobody wakes it, and its result does not matter.
            futex::wait(&nobody, 0, Some(Duration::from_millis(PAUSE_MS)));
        }
    }

    /// Returns the number of successive refusals so far.
    pub(crate) fn tries(&self) -> u32 {
        self.tries
    }

    /// Resets the count after the kernel has granted the call, in full or in part.
    pub(crate) fn progressed(&mut self) {
        self.tries = 0;
    }
}

/// Repeats a call until the kernel grants it, and returns its result. Ends the run after too many refusals.
#[inline]
pub(crate) fn insist<T>(what: &'static str, mut call: impl FnMut() -> Result<T, Errno>) -> T {
    match call() {
        Ok(value) => value,
        Err(errno) => insist_on(what, errno, call),
    }
}

#[cold]
fn insist_on<T>(what: &'static str, first: Errno, mut call: impl FnMut() -> Result<T, Errno>) -> T {
    let mut patience = Patience::to(what);
    let mut errno = first;
    loop {
        patience.refused(errno);
        match call() {
            Ok(value) => return value,
            Err(again) => errno = again,
        }
    }
}

/// Returns advice to the user about a refusal.
pub(crate) fn advice(errno: Errno) -> &'static str {
    match errno.0 {
        libc::ENOMEM => "raise the limit on memory or vm.max_map_count, or lower --local",
        libc::EMFILE | libc::ENFILE => "raise the limit on open files ('ulimit -n')",
        libc::EBADF | libc::ENOTTY => "the program closed a descriptor of Hanare's by a system call of its own",
        libc::EPERM | libc::EACCES => "a security filter forbids it; see 'hanare doctor'",
        _ => "please report this line",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_made_until_it_is_granted() {
        let mut left = 200;
        let answer = insist("do it", || {
            left -= 1;
            if left > 0 { Err(Errno(libc::EAGAIN)) } else { Ok(7) }
        });
        assert_eq!((answer, left), (7, 0));
    }
}
