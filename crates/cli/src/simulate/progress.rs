//! How far it is, on a terminal, once it takes long.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One line on standard error that is written over again and again.
pub(super) struct Progress {
    began: Instant,
    terminal: bool,
    told: Mutex<Option<Instant>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), terminal: io::stderr().is_terminal(), told: Mutex::new(None) }
    }

    /// This part is done, from 0 to 1.
    pub(super) fn tell(&self, part: f64) {
        const SILENT: Duration = Duration::from_secs(2);
        const PAUSE: Duration = Duration::from_millis(200);
        if !self.terminal || self.began.elapsed() < SILENT {
            return;
        }
        let Ok(mut told) = self.told.try_lock() else { return };
        if told.is_none_or(|told| told.elapsed() >= PAUSE) {
            *told = Some(Instant::now());
            let _ = write!(io::stderr(), "\rhanare: simulated {:.0} %", (100.0 * part).floor());
        }
    }

    /// Leaves the line as if nothing had been told.
    pub(super) fn clear(&self) {
        if self.told.lock().is_ok_and(|told| told.is_some()) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
