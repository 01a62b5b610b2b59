//! The terminal of `hanare top`: takes it, gives it back however this ends, and passes on keys.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyEventKind};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use signal_hook::consts::SIGHUP;

use super::lines::Watcher;
use super::screen::Screen;
use super::servers::Asked;
use super::{TopError, View};
use crate::interrupt::{Interrupt, exit_code};

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
    let interrupt = Interrupt::install().map_err(TopError::Terminal)?;
    end_with_the_terminal().map_err(TopError::Terminal)?;
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
        let changed = wait(&interrupt, due, &mut screen).map_err(TopError::Terminal)?;
        if let Some(code) = changed {
            return Ok(code);
        }
    }
}

/// Lets a thread end the process when its terminal is gone, as SIGHUP does. The library that reads keys tries again for
/// ever then, so no other thread may be able to end it.
fn end_with_the_terminal() -> io::Result<()> {
    let watch = || {
        let stdout = io::stdout();
        // This waits for no event. So it returns only when the terminal has ended.
        while rustix::event::poll(&mut [PollFd::new(&stdout, PollFlags::empty())], None) == Err(Errno::INTR) {}
        std::process::exit(i32::from(exit_code(SIGHUP)));
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(|_| ())
}

/// Waits until there is something new to draw. Returns the exit code if this is the end.
fn wait(interrupt: &Interrupt, due: Instant, screen: &mut Screen) -> io::Result<Option<u8>> {
    loop {
        if let Some(signal) = interrupt.signal() {
            return Ok(Some(exit_code(signal)));
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
