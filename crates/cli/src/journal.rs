//! Where the lines of a memory server go: to stderr, and to its log file (`hanare serve --log FILE`).
//!
//! Each of the two has a thread that writes its lines. If nobody reads a pipe or a terminal that stands still, only this
//! thread waits, and the server goes on.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, SystemTime};

use hanare_server::Log;
use rustix::fs::{OFlags, fcntl_setfl};

use crate::message::{one_line, say};

/// Maximum number of lines that wait for a writer. Further lines are counted and left out.
const WAITING_MAX: usize = 1024;
/// Maximum time for which a server that ends waits for its last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The threads that write.
#[derive(Default)]
pub(crate) struct Writers(Vec<Receiver<()>>);

impl Writers {
    /// Starts a writer of lines to stderr.
    pub(crate) fn stderr(&mut self) -> io::Result<Log> {
        self.start("stderr", say)
    }

    /// Opens a file and starts a writer that appends lines to it, each with its time (UTC). A line that cannot be written
    /// appears on stderr.
    pub(crate) fn file(&mut self, path: &Path) -> io::Result<Log> {
        // Without this flag, opening a pipe that nobody reads would wait.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().append(true).create(true).custom_flags(flags).open(path)?;
        fcntl_setfl(&file, OFlags::APPEND)?;
        self.start("log", move |line| {
            let line = one_line(line);
            let stamped = format!("{} {line}\n", humantime::format_rfc3339_seconds(SystemTime::now()));
            if let Err(error) = (&file).write_all(stamped.as_bytes()) {
                say(&format!("cannot write the log: {error}; the line is: {line}"));
            }
        })
    }

    fn start(&mut self, name: &str, write: impl Fn(&str) + Send + 'static) -> io::Result<Log> {
        let (lines, waiting) = mpsc::sync_channel(WAITING_MAX);
        let (ends, end) = mpsc::sync_channel(0);
        let lost = Arc::new(AtomicU64::new(0));
        let left_out = Arc::clone(&lost);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || write_all(&waiting, &left_out, write, ends))?;
        self.0.push(end);
        Ok(Arc::new(move |line| {
            if lines.try_send(line.to_owned()).is_err() {
                lost.fetch_add(1, Relaxed);
            }
        }))
    }

    /// Waits until all lines are written, but not for long. The server and all copies of its logs have been dropped.
    pub(crate) fn finish(self) {
        for end in self.0 {
            // The thread sends nothing: it drops its side at its end.
            let (Ok(()) | Err(RecvTimeoutError::Disconnected | RecvTimeoutError::Timeout)) =
                end.recv_timeout(LAST_LINES);
        }
    }
}

/// Writes lines until nobody can send any more. `ends` is dropped with the thread.
fn write_all(waiting: &Receiver<String>, lost: &AtomicU64, write: impl Fn(&str), ends: SyncSender<()>) {
    for line in waiting {
        write(&line);
        match lost.swap(0, Relaxed) {
            0 => {}
            lost => write(&format!("{lost} lines are left out here, because writing took too long")),
        }
    }
    drop(ends);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Instant;

    #[test]
    fn a_writer_that_stands_still_delays_nobody() {
        let written = Arc::new(Mutex::new(Vec::new()));
        let mut writers = Writers::default();
        let gate = written.lock().expect("not poisoned");
        let into = Arc::clone(&written);
        let log = writers.start("test", move |line| into.lock().expect("not poisoned").push(line.to_owned())).unwrap();
        for line in 0..2 * WAITING_MAX {
            log(&line.to_string());
        }
        drop(gate);
        drop(log);
        writers.finish();
        // On a loaded machine, the writer may end later than that.
        (0..60_000)
            .take_while(|_| Arc::strong_count(&written) > 1)
            .for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        let lines = written.lock().expect("not poisoned");
        let told = lines
            .iter()
            .filter_map(|line| line.strip_suffix(" lines are left out here, because writing took too long"));
        let lost: usize = told.map(|lost| lost.parse::<usize>().expect("a number")).sum();
        assert!(lost >= WAITING_MAX - 1, "{lost} lines are left out");
        let kept = lines.iter().filter_map(|line| line.parse::<usize>().ok()).collect::<Vec<_>>();
        assert_eq!(kept.len() + lost, 2 * WAITING_MAX, "each line is written or counted");
        // A writer that starts late takes its first line when the queue is full, which leaves room for one later line.
        let first = (0..WAITING_MAX).collect::<Vec<_>>();
        assert_eq!(kept[..WAITING_MAX], first, "the lines that came first are kept");
        assert!(kept.is_sorted(), "lines stay in order");
    }

    #[test]
    fn the_end_does_not_wait_for_a_writer_that_stands_still() {
        let mut writers = Writers::default();
        let log = writers.start("test", |_| std::thread::sleep(Duration::from_secs(60))).unwrap();
        log("a line");
        drop(log);
        let began = Instant::now();
        writers.finish();
        assert!(began.elapsed() < Duration::from_secs(30));
    }
}
