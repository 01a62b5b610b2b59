//! The lines of Python code at which a run waits. CPython keeps its frames in the memory of the process. They are read from
//! outside, so the program does nothing for it.
//!
//! Each look counts the waits since the last look for the line at which the process is now. So the times are estimates.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hanare::stats::Stats;
use maud::{Markup, html};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy, StackTrace};
use serde::Serialize;

use super::waited::{Place, ROWS_MAX, place_table};
use super::words;

/// The name of the thread that looks.
const NAME: &str = "hanare-python";
/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(40);
/// Failed looks at a process after which its interpreter is looked for again, as it may run another program now. Later
/// searches follow after 16, 32, 64 and so on.
const SEARCH_AFTER: u32 = 8;
/// Lines with room.
const LINES_MAX: usize = 4096;

/// A line of a Python file.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Line {
    function: String,
    file: String,
    /// `None` if it cannot be read: the table of a function's lines is far memory that may have been evicted.
    line: Option<u32>,
}

/// Waits of Python programs, in nanoseconds.
#[derive(Default)]
struct Waits {
    by_line: HashMap<Line, u64>,
    /// Waits of moments at which the frames could not be read.
    unread: u64,
}

/// The lines that waited longest, the longest first.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Lines {
    #[serde(rename = "waited_in_python")]
    places: Vec<Place>,
    /// What Python programs waited at lines that are unknown, in seconds.
    #[serde(rename = "waited_in_python_unknown_s")]
    unknown_s: f64,
}

/// The thread that looks at the processes of a run.
pub(super) struct Watch {
    waits: Arc<Mutex<Waits>>,
    stop: Sender<()>,
    /// `None` if there could be no thread. Then no line is known.
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(stats: Arc<Stats>) -> Self {
        let waits = Arc::new(Mutex::new(Waits::default()));
        let (stop, stopped) = mpsc::channel();
        let to = waits.clone();
        let work = move || watch(&stats, &to, &stopped);
        keep_quiet();
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(work).ok();
        Watch { waits, stop, thread }
    }

    /// Returns what is known up to now. `all_s` is what all waits took, in seconds.
    pub(super) fn so_far(&self, all_s: f64) -> Lines {
        lines(&self.waits.lock().unwrap_or_else(PoisonError::into_inner), all_s)
    }

    /// Ends the thread. Returns what [`Watch::so_far`] does.
    pub(super) fn finish(self, all_s: f64) -> Lines {
        let Watch { waits, stop, thread } = self;
        // The thread ends when it finds that this end of the channel is closed.
        drop(stop);
        // A thread that has panicked leaves the lines that it had found.
        let _ = thread.map(JoinHandle::join);
        lines(&waits.lock().unwrap_or_else(PoisonError::into_inner), all_s)
    }
}

/// Lets the thread's panics print nothing: frames that change while they are read may make no sense to the reader.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() != Some(NAME) {
                usual(info);
            }
        }));
    });
}

/// Looks until the other end of `stopped` is closed.
fn watch(stats: &Stats, waits: &Mutex<Waits>, stopped: &Receiver<()>) {
    let mut programs: HashMap<u32, Program> = HashMap::new();
    while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        let processes = stats.processes();
        programs.retain(|pid, _| processes.iter().any(|process| process.pid == *pid));
        for process in processes {
            let program = programs.entry(process.pid).or_insert_with(|| Program::new(process.swap_ns));
            let waited = process.swap_ns.saturating_sub(program.waited_ns);
            program.waited_ns = process.swap_ns;
            // A process that did not wait is left alone.
            if waited == 0 {
                continue;
            }
            let line = program.line(process.pid);
            if !program.was_read {
                program.early_ns = program.early_ns.saturating_add(waited);
                continue;
            }
            let mut waits = waits.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = waits.by_line.len() < LINES_MAX;
            let to = match line {
                Some(line) if has_room || waits.by_line.contains_key(&line) => waits.by_line.entry(line).or_default(),
                _ => &mut waits.unread,
            };
            *to = to.saturating_add(waited);
            waits.unread = waits.unread.saturating_add(std::mem::take(&mut program.early_ns));
        }
    }
}

/// A process that may run Python.
struct Program {
    /// Time that it had waited at the last look, in nanoseconds.
    waited_ns: u64,
    /// Whether its frames could be read once. If not, it may be no interpreter.
    was_read: bool,
    /// Time that it had waited until then, in nanoseconds.
    early_ns: u64,
    interpreter: Option<PythonSpy>,
    /// Failed looks since the last one that succeeded.
    failures: u32,
}

impl Program {
    fn new(waited_ns: u64) -> Self {
        Program { waited_ns, was_read: false, early_ns: 0, interpreter: None, failures: 0 }
    }

    /// Returns the line at which the process is. `None` if it does not run Python, or cannot be read at this moment.
    fn line(&mut self, pid: u32) -> Option<Line> {
        let is_new = self.interpreter.is_none() && self.failures == 0;
        if is_new || self.failures >= SEARCH_AFTER && self.failures.is_power_of_two() {
            // The process must not stand still for a look.
            let config = Config { blocking: LockingStrategy::NonBlocking, ..Config::default() };
            let pid = i32::try_from(pid).ok().filter(|_| is_python(pid));
            let open = |pid| catch_unwind(|| PythonSpy::new(pid, &config).ok()).ok().flatten();
            self.interpreter = pid.and_then(open);
        }
        let mut read = || self.interpreter.as_mut()?.get_stack_traces().ok();
        let traces = catch_unwind(AssertUnwindSafe(&mut read)).ok().flatten();
        let Some(traces) = traces else {
            self.failures = self.failures.saturating_add(1);
            return None;
        };
        (self.failures, self.was_read) = (0, true);
        line_of(&traces)
    }
}

/// Checks the name of the process' file.
fn is_python(pid: u32) -> bool {
    let file = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("python"))
}

/// Returns the innermost line of the thread that holds the interpreter's lock, or else computes, or else is the only one.
fn line_of(traces: &[StackTrace]) -> Option<Line> {
    let by = |is_it: fn(&StackTrace) -> bool| traces.iter().find(|trace| is_it(trace) && !trace.frames.is_empty());
    let only = || traces.first().filter(|_| traces.len() == 1);
    let trace = by(|trace| trace.owns_gil).or_else(|| by(|trace| trace.active)).or_else(only)?;
    let frame = trace.frames.first()?;
    let file = frame.short_filename.as_ref().unwrap_or(&frame.filename).clone();
    Some(Line { function: frame.name.clone(), file, line: u32::try_from(frame.line).ok().filter(|line| *line > 0) })
}

fn lines(waits: &Waits, all_s: f64) -> Lines {
    let unknown_s = waits.unread as f64 / 1e9;
    let mut waits: Vec<(&Line, u64)> = waits.by_line.iter().map(|(line, ns)| (line, *ns)).collect();
    waits.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let place = |(line, ns): (&Line, u64)| {
        let seconds = ns as f64 / 1e9;
        Place {
            function: line.function.clone(),
            file: Some(line.file.clone()),
            line: line.line,
            module: None,
            seconds,
            share: words::share(seconds, all_s).unwrap_or(0.0).min(1.0),
        }
    };
    Lines { places: waits.into_iter().take(ROWS_MAX).map(place).collect(), unknown_s }
}

impl Lines {
    /// Returns what Python programs waited at lines that are unknown, in seconds.
    pub(super) fn unknown_s(&self) -> f64 {
        self.unknown_s
    }

    /// Returns the section of the page of a run in this trap mode. It is empty if no Python program waited.
    pub(super) fn section(&self, mode: &str) -> Markup {
        html! {
            @if !self.places.is_empty() || self.unknown_s > 0.0 {
                section #waited-python {
                    h2 { "Where Python waited" }
                    p {
                        "The lines of Python at which it waited, longest first. They are looked at 25 times a second, so \
                         the times are estimates."
                        @if self.unknown_s > 0.0 {
                            " For " (words::seconds(self.unknown_s)) " of waits the line is unknown."
                            @if mode != "thread" {
                                " Python's own objects may have been evicted. With " code { "--mode thread" } " they can \
                                 be read."
                            }
                        }
                    }
                    @if !self.places.is_empty() { (place_table(&self.places)) }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use py_spy::Frame;

    fn trace(name: &str, line: i32, owns_gil: bool, active: bool) -> StackTrace {
        let frame = |name: &str, line| Frame {
            name: name.to_owned(),
            filename: "folder/fold.py".to_owned(),
            module: None,
            short_filename: Some("fold.py".to_owned()),
            line,
            locals: None,
            is_entry: true,
            is_shim_entry: false,
        };
        let frames = vec![frame(name, line), frame("<module>", 99)];
        StackTrace {
            pid: 1,
            thread_id: 2,
            thread_name: None,
            os_thread_id: None,
            active,
            owns_gil,
            frames,
            process_info: None,
        }
    }

    #[test]
    fn the_thread_that_may_run_python_counts() {
        let traces = [trace("idle", 1, false, false), trace("active", 2, false, true), trace("owner", 3, true, false)];
        assert_eq!(line_of(&traces).unwrap().function, "owner");
        assert_eq!(line_of(&traces[..2]).unwrap().function, "active");
        assert_eq!(
            line_of(&traces[..1]),
            Some(Line { function: "idle".to_owned(), file: "fold.py".to_owned(), line: Some(1) })
        );
        assert_eq!(line_of(&[traces[0].clone(), traces[0].clone()]), None, "either may have waited");
        assert_eq!(line_of(&[]), None);
        assert_eq!(line_of(&[trace("unknown", 0, true, true)]).map(|it| it.line), Some(None));
    }

    #[test]
    fn the_longest_lines_come_first_as_text() {
        let line = |nth: u32| Line { function: format!("<f{nth}>"), file: "a.py".to_owned(), line: Some(nth) };
        let by_line = (1..=100).map(|nth| (line(nth), u64::from(nth) * 10_000_000)).collect();
        let lines = lines(&Waits { by_line, unread: 1_500_000_000 }, 2.0);
        let first = &lines.places[0];
        assert_eq!((lines.places.len(), first.line, first.seconds, first.share), (ROWS_MAX, Some(100), 1.0, 0.5));
        let page = lines.section("sigbus").into_string();
        for part in ["&lt;f100&gt;", "a.py:100", "50 %", "For 1.5 s of waits"] {
            assert!(page.replace('\u{a0}', " ").contains(part), "{part} is not in {page}");
        }
        assert_eq!(Lines::default().section("sigbus").into_string(), "");
    }
}
