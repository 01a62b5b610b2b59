//! Ends a run that cannot continue, with one message and an exit code.

use std::fmt::{self, Write};
use std::sync::atomic::{
    AtomicBool, AtomicI32,
    Ordering::{AcqRel, Relaxed, Release},
};

pub(crate) use hanare_store::EXIT_LOST;

/// Exit code when the kernel keeps refusing a call that paging needs, or when the run hangs.
pub(crate) const EXIT_KERNEL: i32 = 123;
/// Exit code when far memory could not be started.
pub(crate) const EXIT_BEFORE: i32 = 125;

/// A message in a buffer on the stack. A run may end while a fault is being resolved, and then no memory may be
/// allocated.
struct Line {
    bytes: [u8; 512],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = self.bytes.len() - 1 - self.len;
        let part = &text.as_bytes()[..text.len().min(room)];
        self.bytes[self.len..self.len + part.len()].copy_from_slice(part);
        self.len += part.len();
        Ok(())
    }
}

/// Whether a thread is printing its message.
static SAID: AtomicBool = AtomicBool::new(false);

/// The number of this process if its news name it. Otherwise 0.
static NAMED: AtomicI32 = AtomicI32::new(0);

/// Makes the news of this process name it from now on. Each process of a run calls this but the first, because several
/// may tell the same.
pub(crate) fn name_process() {
    // SAFETY: `getpid` has no preconditions.
    NAMED.store(unsafe { libc::getpid() }, Relaxed);
}

/// Prints a piece of news, as [`say`] does. Where there are several processes, the line says which of them it is from.
pub(crate) fn tell(news: fmt::Arguments<'_>) {
    match NAMED.load(Relaxed) {
        0 => say(news),
        process => say(format_args!("process {process}: {news}")),
    }
}

/// Prints the reason on stderr and aborts, as the C library does when it is passed a pointer that it never returned.
pub(crate) fn abort(why: fmt::Arguments<'_>) -> ! {
    say(why);
    std::process::abort()
}

/// Prints one line on stderr. Allocates nothing.
pub(crate) fn say(why: fmt::Arguments<'_>) {
    let mut line = Line { bytes: [0; 512], len: 0 };
    // Ignored: a message that does not fit is cut, which is no error.
    let _ = write!(line, "hanare: {why}");
    line.bytes[line.len] = b'\n';
    // SAFETY: `write` reads `line.len + 1` initialised bytes of `line.bytes`, and is async-signal-safe.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.len + 1) };
}

/// Prints the reason on stderr and ends the process immediately, without running any code of the program. If several
/// threads call this at the same time, only one of them prints.
pub(crate) fn die(code: i32, why: fmt::Arguments<'_>) -> ! {
    #[cfg(test)]
    ended::unwind(code, why);
    while SAID.swap(true, AcqRel) {
        // SAFETY: `usleep` only suspends this thread. Normally the printing thread ends the process during this time.
        unsafe { libc::usleep(1_000_000) };
        // The process still exists, so the printing thread was delayed. This thread prints its message too, because two
        // messages are better than none.
        SAID.store(false, Release);
    }
    say(why);
    // SAFETY: `_exit` ends the process without running its exit handlers, and is async-signal-safe.
    unsafe { libc::_exit(code) }
}

/// Lets a test inspect the end of a run. In such a test, [`die`] unwinds instead of ending the process.
#[cfg(test)]
pub(crate) mod ended {
    use std::cell::Cell;
    use std::fmt;

    /// The end of a run: its exit code and its message.
    #[derive(Debug)]
    pub(crate) struct Ended(pub(crate) i32, pub(crate) String);

    thread_local! {
        static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes `die` on this thread unwind with [`Ended`] from now on.
    pub(crate) fn catch() {
        IS_CAUGHT.set(true);
    }

    pub(super) fn unwind(code: i32, why: fmt::Arguments<'_>) {
        if IS_CAUGHT.get() {
            std::panic::resume_unwind(Box::new(Ended(code, why.to_string())));
        }
    }
}
