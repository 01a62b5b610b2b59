//! The line on a terminal that says how far a long command is. Each text takes the place of the one before.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ratatui::crossterm::terminal;

/// Time in which a command shows no progress, because it may end soon.
const SILENT: Duration = Duration::from_secs(2);
/// The least time between two texts of [`ProgressLine::update`].
const PAUSE: Duration = Duration::from_millis(200);
/// Width of a terminal that does not say its width, in columns.
const WIDTH: usize = 80;
/// Clears the rest of the line.
const CLEAR: &str = "\x1b[K";

/// The line on standard error. It is cleared when this value is dropped. Nothing is shown if standard error is no
/// terminal.
pub(crate) struct ProgressLine {
    began: Instant,
    is_terminal: bool,
    /// When the text that is shown was written.
    shown: Mutex<Option<Instant>>,
}

impl ProgressLine {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), is_terminal: io::stderr().is_terminal(), shown: Mutex::new(None) }
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Shows a text.
    pub(crate) fn show(&self, text: &str) {
        if let Ok(mut shown) = self.shown.lock()
            && self.is_terminal
        {
            *shown = Some(Instant::now());
            write(&cut(text, width()));
        }
    }

    /// Shows a text, unless the command has just begun or another text was shown a moment ago. For commands with many
    /// steps. It does not wait for other threads that show a text.
    pub(crate) fn update(&self, text: impl FnOnce() -> String) {
        if !self.is_terminal || self.began.elapsed() < SILENT {
            return;
        }
        let Ok(mut shown) = self.shown.try_lock() else { return };
        if shown.is_none_or(|shown| shown.elapsed() >= PAUSE) {
            *shown = Some(Instant::now());
            write(&cut(&text(), width()));
        }
    }

    /// Clears the line.
    pub(crate) fn clear(&self) {
        if let Ok(mut shown) = self.shown.lock()
            && shown.take().is_some()
        {
            write("");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Puts `text` in place of the line that the cursor is on.
fn write(text: &str) {
    // Ignored: a terminal that has gone away needs no line.
    let _ = io::stderr().write_all(format!("\r{text}{CLEAR}").as_bytes());
}

/// Returns the width of the terminal, in columns.
pub(crate) fn width() -> usize {
    terminal::size().map_or(WIDTH, |(columns, _)| usize::from(columns))
}

/// Returns the beginning of the text that fits. The last column stays empty, because some terminals begin a new line
/// after it.
fn cut(text: &str, width: usize) -> String {
    text.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_never_fills_the_line() {
        assert_eq!(cut("simulated", 20), "simulated");
        assert_eq!(cut("simulated", 9), "simulate");
        assert_eq!(cut("simulated", 0), "");
    }
}
