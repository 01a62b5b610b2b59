//! A log of a bounded length. Strangers cause lines, and must not fill the disk that holds them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::listen::Log;

/// Maximum number of lines in a window.
const LINES_MAX: u64 = 100;
/// The length of a window.
const WINDOW: Duration = Duration::from_secs(60);

/// Returns a log that writes at most [`LINES_MAX`] lines in each [`WINDOW`] to `log`, and says how many it has left out.
pub(crate) fn rationed(log: &Log) -> Log {
    let log = Arc::clone(log);
    let ration = Mutex::new(Ration { since: Instant::now(), lines: 0 });
    Arc::new(move |line| {
        // A panic in another thread cannot leave a part of the two numbers changed that matters here.
        let mut ration = ration.lock().unwrap_or_else(PoisonError::into_inner);
        for said in ration.say(line, Instant::now()) {
            log(&said);
        }
    })
}

/// How much of a window's log is used.
struct Ration {
    since: Instant,
    /// The lines of this window, those that are left out included.
    lines: u64,
}

impl Ration {
    /// Returns what is written in place of a line.
    fn say(&mut self, line: &str, now: Instant) -> Vec<String> {
        let mut said = Vec::new();
        if now.duration_since(self.since) >= WINDOW {
            if let Some(left_out) = self.lines.checked_sub(LINES_MAX).filter(|left_out| *left_out > 0) {
                said.push(format!("left out {left_out} lines about connections"));
            }
            *self = Ration { since: now, lines: 0 };
        }
        self.lines += 1;
        match self.lines {
            ..=LINES_MAX => said.push(line.to_owned()),
            lines if lines == LINES_MAX + 1 => {
                said.push(format!("{LINES_MAX} lines about connections in {WINDOW:?}: the next ones are left out"));
            }
            _ => {}
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flood_of_strangers_causes_is_cut_and_counted() {
        let start = Instant::now();
        let mut ration = Ration { since: start, lines: 0 };
        let said: Vec<String> = (0..150).flat_map(|n| ration.say(&format!("line {n}"), start)).collect();
        assert_eq!(said.len(), 101);
        assert_eq!((said[0].as_str(), said[99].as_str()), ("line 0", "line 99"));
        assert_eq!(said[100], "100 lines about connections in 60s: the next ones are left out");
        let next = ration.say("later", start + WINDOW);
        assert_eq!(next, ["left out 50 lines about connections", "later"]);
        assert_eq!(ration.say("last", start + 3 * WINDOW), ["last"]);
    }
}
