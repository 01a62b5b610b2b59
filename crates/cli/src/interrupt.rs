//! The signals that end a long command of Hanare's own, such as a simulation. The command looks for them between its
//! steps, and then cleans up. `hanare run` passes signals on to its program instead; see [`crate::signals`].

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Notes SIGINT, SIGTERM and SIGHUP.
pub(crate) struct Interrupt(Arc<AtomicUsize>);

impl Interrupt {
    /// Notes the signals from now on. They no longer end the process.
    pub(crate) fn install() -> io::Result<Self> {
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(signal, Arc::clone(&caught), signal as usize)?;
        }
        Ok(Self(caught))
    }

    /// Returns the signal that arrived last, if one did.
    pub(crate) fn signal(&self) -> Option<i32> {
        let signal = self.0.load(Relaxed) as i32;
        (signal > 0).then_some(signal)
    }
}

/// Returns the exit code of a command that a signal has ended: 128 plus the signal's number, as in a shell.
pub(crate) fn exit_code(signal: i32) -> u8 {
    128 + signal as u8
}
