//! `--progress`: one line on the terminal that says what the run does, rewritten in place.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hanare::counters::Snapshot;
use hanare::stats::Stats;
use hanare_settings::human_size;

use crate::progress::{ProgressLine, width};
use crate::watch::processes;
use crate::watch::rates::Rates;

/// Time between two lines.
const INTERVAL: Duration = Duration::from_secs(2);

/// A thread that writes the line. Dropping this value ends the thread and clears the line.
pub(super) struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Starts the thread. `None` if standard error is no terminal, or if there can be no thread: then only the line is
    /// lost.
    pub(super) fn start(stats: Arc<Stats>) -> Option<Progress> {
        let shown = ProgressLine::new();
        if !shown.is_terminal() {
            return None;
        }
        let (stop, stopped) = mpsc::channel();
        let tell = move || {
            let (mut before, mut since) = (stats.snapshot(), Instant::now());
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let (now, at) = (stats.snapshot(), Instant::now());
                let rates = Rates::between(&before, &now, at - since);
                shown.show(&line(&now, &rates, rates.stall_share(threads()), width()));
                (before, since) = (now, at);
            }
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(tell).ok()?;
        Some(Progress { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Ignored: an error means that the thread has panicked, and the panic has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns the number of threads of the program and its children.
fn threads() -> u32 {
    let table = processes::all();
    let below = processes::descendants(&table, std::process::id());
    let of_program = below.iter().filter_map(|pid| table.get(pid)).filter(|process| !process.is_command(&["serve"]));
    processes::program_threads(of_program)
}

/// Returns the line. It is short enough not to fill the terminal's width, because some terminals then begin a new one.
fn line(now: &Snapshot, rates: &Rates, stall_share: f64, width: usize) -> String {
    let parts = if now.far_bytes == 0 {
        vec!["no far memory now".to_owned()]
    } else {
        vec![
            format!("waiting {:.0} %", stall_share * 100.0),
            format!("{:.0} faults/s", rates.faults_per_s),
            format!("{} far", human_size(now.far_bytes)),
            format!("{} local", human_size(now.local_bytes)),
            format!("{} near", human_size(now.private_bytes)),
        ]
    };
    let mut text = "hanare: ".to_owned() + &parts[0];
    for part in &parts[1..] {
        if text.len() + 2 + part.len() >= width {
            break;
        }
        text += &format!(", {part}");
    }
    text.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;

    #[test]
    fn the_line_says_what_goes_on_and_fits() {
        let stats = Stats::attach(None, None).unwrap();
        let before = stats.snapshot();
        let idle = Rates::between(&before, &before, INTERVAL);
        assert_eq!(line(&before, &idle, 0.0, 80), "hanare: no far memory now");
        add(&stats.far_bytes, 1 << 30);
        add(&stats.local_bytes, 256 << 20);
        add(&stats.private_bytes, 5 << 20);
        add(&stats.faults_read, 2469);
        let now = stats.snapshot();
        let rates = Rates::between(&before, &now, INTERVAL);
        let text = "hanare: waiting 45 %, 1234 faults/s, 1 GiB far, 256 MiB local, 5 MiB near";
        assert_eq!(line(&now, &rates, 0.451, 80), text);
        assert_eq!(line(&now, &rates, 0.451, text.len()), text.trim_end_matches(", 5 MiB near"));
        assert_eq!(line(&now, &rates, 0.451, 40), "hanare: waiting 45 %, 1234 faults/s");
        assert_eq!(line(&now, &rates, 0.451, 0), "");
    }
}
