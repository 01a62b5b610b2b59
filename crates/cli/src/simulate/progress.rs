//! Progress of a long simulation, shown on a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// A progress line on standard error. Each update overwrites the line.
pub(super) struct Progress {
    began: Instant,
    terminal: bool,
    shown: Mutex<Option<Instant>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), terminal: io::stderr().is_terminal(), shown: Mutex::new(None) }
    }

    /// Shows the fraction of the work that is finished.
    pub(super) fn show(&self, part: f64) {
        const SILENT: Duration = Duration::from_secs(2);
        const PAUSE: Duration = Duration::from_millis(200);
        if !self.terminal || self.began.elapsed() < SILENT {
            return;
        }
        let Ok(mut shown) = self.shown.try_lock() else { return };
        if shown.is_none_or(|shown| shown.elapsed() >= PAUSE) {
            *shown = Some(Instant::now());
            let _ = write!(io::stderr(), "\rhanare: simulated {:.0} %", (100.0 * part).floor());
        }
    }

    /// Clears the line.
    pub(super) fn clear(&self) {
        if self.shown.lock().is_ok_and(|shown| shown.is_some()) {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
