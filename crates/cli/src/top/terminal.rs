//! The terminal of `hanare top`: takes it, gives it back however this ends, and passes on keys.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::lines::Watcher;
use super::screen::Screen;
use super::servers::Asked;
use super::{TopError, View};

/// Longest time until a signal takes effect.
const NAP: Duration = Duration::from_millis(100);

/// Gives the terminal back when it is dropped.
struct Restored;

impl Drop for Restored {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows runs and servers until a key or a signal ends it. Returns the exit code.
pub(super) fn show(mut watcher: Watcher, servers: Asked, interval: Duration) -> Result<u8, TopError> {
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGTERM, SIGINT, SIGHUP] {
        let value = usize::try_from(number).unwrap_or_default();
        signal_hook::flag::register_usize(number, Arc::clone(&signal), value).map_err(TopError::Terminal)?;
    }
    let _restored = Restored;
    // This also has a panic give the terminal back before it is printed.
    let mut terminal = ratatui::try_init().map_err(TopError::Terminal)?;
    let mut screen = Screen::new();
    let mut due = Instant::now();
    loop {
        if Instant::now() >= due {
            let (runs, notes) = watcher.look();
            screen.set(View::new(interval, runs, servers.lines(), notes));
            due = Instant::now() + interval;
        }
        terminal.draw(|frame| screen.draw(frame)).map_err(TopError::Terminal)?;
        let changed = wait(&signal, due, &mut screen).map_err(TopError::Terminal)?;
        if let Some(code) = changed {
            return Ok(code);
        }
    }
}

/// Waits until there is something new to draw. Returns the exit code if this is the end.
fn wait(signal: &AtomicUsize, due: Instant, screen: &mut Screen) -> io::Result<Option<u8>> {
    loop {
        if let number @ 1.. = signal.load(Relaxed) {
            return Ok(Some(128_u8.saturating_add(u8::try_from(number).unwrap_or(u8::MAX))));
        }
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        if !event::poll(left.min(NAP))? {
            continue;
        }
        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                return Ok(screen.key(key).then_some(0));
            }
            Event::Resize(..) => return Ok(None),
            _ => {}
        }
    }
}
