//! Runs the cells, round by round: each cell once before any runs twice, so that a slow minute hurts all alike.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::cell::{Cell, Places};
use crate::figures::{self, Figures};
use crate::results::{Outcome, Results};
use crate::store::{Store, StoreError};

/// Pause between two looks at a running command. It bounds how exact `took_s` is.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a command that is to end may take for it.
const GRACE: Duration = Duration::from_secs(3);

/// Shows how far the work is, and says when to end it.
pub trait Watch {
    /// `done` of `total` runs have ended, and `cell` is next. `left` is how long the rest will take about.
    fn show(&self, done: usize, total: usize, cell: &str, left: Option<Duration>);
    /// Whether the work is to end now.
    fn is_stopped(&self) -> bool;
}

/// Why not all cells have run.
#[derive(Debug)]
pub enum Stop {
    /// [`Watch::is_stopped`] said so. The outcomes so far are kept.
    Stopped,
    /// The folder cannot be written.
    Store(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        Stop::Store(error)
    }
}

/// Runs the cells, and returns their outcomes. Cells that have run before an interruption with the same command do not
/// run again. A cell that fails keeps the reason, and the others go on.
pub fn run(cells: &[Cell], places: &Places, store: &Store, watch: &dyn Watch) -> Result<Results, Stop> {
    let mut results = Results::default();
    let total = cells.iter().map(|cell| cell.runs as usize).sum();
    let (mut done, mut ran, began) = (0, 0_u32, Instant::now());
    for round in 0..cells.iter().map(|cell| cell.runs).max().unwrap_or(0) {
        for cell in cells.iter().filter(|cell| cell.runs > round) {
            let left = (ran > 0).then(|| began.elapsed() / ran * (total - done) as u32);
            watch.show(done, total, &cell.name, left);
            done += 1;
            let mut outcome = so_far(cell, places, store, &results);
            if outcome.failed.is_none() && outcome.runs.len() <= round as usize {
                ran += 1;
                match run_once(cell, &outcome.command, places, store, watch) {
                    Ok(Some(figures)) => outcome.runs.push(figures),
                    Ok(None) => return Err(Stop::Stopped),
                    Err(reason) => outcome.failed = Some(reason),
                }
                store.save(&cell.name, &outcome)?;
            }
            results.put(cell.name.clone(), outcome);
        }
    }
    Ok(results)
}

/// Returns what a cell has given so far. A failure of an earlier reproduction does not count.
fn so_far(cell: &Cell, places: &Places, store: &Store, results: &Results) -> Outcome {
    if let Some(known) = results.outcome(&cell.name) {
        return known.clone();
    }
    match cell.resolve(places, results) {
        Err(reason) => Outcome { failed: Some(reason), ..Outcome::default() },
        Ok(command) => store
            .load(&cell.name)
            .filter(|known| known.command == command && known.failed.is_none())
            .unwrap_or_else(|| Outcome::of(Vec::new(), command)),
    }
}

/// Runs a command once. Returns `None` if the work is to end. An error is a line for people.
fn run_once(
    cell: &Cell,
    command: &[String],
    places: &Places,
    store: &Store,
    watch: &dyn Watch,
) -> Result<Option<Figures>, String> {
    let json = places.json_of(&cell.name);
    let printed = store.path(&format!("logs/{}.out", cell.name));
    let log = store.path(&format!("logs/{}.log", cell.name));
    let told = |error: io::Error| format!("{}: {error}", command.first().map_or("", String::as_str));
    // Ignored: most cells have no such file.
    let _ = fs::remove_file(&json);
    let began = Instant::now();
    let mut child = start(command, &printed, &log).map_err(told)?;
    let status = loop {
        if let Some(status) = child.try_wait().map_err(told)? {
            break status;
        }
        let is_late = began.elapsed() > cell.limit;
        if is_late || watch.is_stopped() {
            end(&mut child).map_err(told)?;
            return if is_late { Err(format!("ended after {} s", cell.limit.as_secs())) } else { Ok(None) };
        }
        std::thread::sleep(PAUSE);
    };
    let took_s = began.elapsed().as_secs_f64();
    if !status.success() {
        return Err(format!("{}: {}", how(status), last_line(&log)));
    }
    let mut figures = Figures::from([("took_s".to_owned(), took_s)]);
    let texts = [fs::read_to_string(&json).unwrap_or_default(), fs::read_to_string(&printed).unwrap_or_default()];
    let lines = texts[1].lines();
    for text in lines.chain([texts[0].as_str(), texts[1].as_str()]) {
        if let Ok(value @ (serde_json::Value::Object(_) | serde_json::Value::Array(_))) = serde_json::from_str(text) {
            let mut found = Figures::new();
            figures::collect(&value, &mut found);
            figures.extend(found);
        }
    }
    // Ignored: these files are for the failures of cells.
    let _ = fs::remove_file(&printed).and_then(|()| fs::remove_file(&log));
    Ok(Some(figures))
}

/// Starts a command in a process group of its own, without the settings of this one's environment.
fn start(command: &[String], printed: &Path, log: &Path) -> io::Result<Child> {
    let mut child = Command::new(command.first().map_or("", String::as_str));
    child.args(command.iter().skip(1)).process_group(0).stdin(Stdio::null());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("HANARE_")) {
        child.env_remove(name);
    }
    child.stdout(File::create(printed)?).stderr(File::create(log)?).spawn()
}

/// Ends a command with all of its process group.
fn end(child: &mut Child) -> io::Result<()> {
    let group = Pid::from_child(child);
    for (signal, patience) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE)] {
        match kill_process_group(group, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
        let began = Instant::now();
        while began.elapsed() < patience {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "no exit code".to_owned(),
    }
}

fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it printed nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Stops the work once `cell` has been shown `after` times.
    struct Noted {
        seen: RefCell<Vec<String>>,
        stop_at: usize,
    }

    impl Noted {
        fn new(stop_at: usize) -> Self {
            Noted { seen: RefCell::default(), stop_at }
        }
    }

    impl Watch for Noted {
        fn show(&self, _: usize, _: usize, cell: &str, _: Option<Duration>) {
            self.seen.borrow_mut().push(cell.to_owned());
        }

        fn is_stopped(&self) -> bool {
            self.seen.borrow().len() >= self.stop_at
        }
    }

    fn place() -> (tempfile::TempDir, Store, Places) {
        let place = tempfile::tempdir().unwrap();
        let store = Store::open(&place.path().join("out"), false).unwrap();
        let places = Places { hanare: "hanare".into(), workloads: "/w".into(), files: store.path("files") };
        (place, store, places)
    }

    fn cell(name: &str, runs: u32, script: &str) -> Cell {
        Cell::script(name, runs, Duration::from_secs(20), script)
    }

    #[test]
    fn cells_run_in_rounds_and_give_the_numbers_that_they_print() {
        let (place, store, places) = place();
        let count = place.path().join("count");
        let script = format!("echo x >>{0}; echo '{{\"lines\": '$(wc -l <{0})'}}'; echo plain text", count.display());
        let cells = [cell("a", 3, &script), cell("b", 1, "echo '[{\"n\": 1}, {\"n\": 2}]' >{json}; exit 0")];
        let watch = Noted::new(usize::MAX);
        let results = run(&cells, &places, &store, &watch).unwrap();
        assert_eq!(*watch.seen.borrow(), ["a", "b", "a", "a"]);
        assert_eq!((results.figure("a", "lines"), results.spread("a", "lines")), (Some(2.0), Some((1.0, 3.0))));
        assert_eq!(results.figure("b", "n"), Some(3.0));
        assert!(results.figure("b", "took_s").is_some_and(|took| took > 0.0));
    }

    #[test]
    fn a_cell_that_fails_says_why_and_the_others_go_on() {
        let (_place, store, places) = place();
        let cells = [
            cell("a", 2, "echo first >&2; echo 'no room' >&2; exit 3"),
            Cell::new("b", 1, Duration::from_secs(1), "/no/such/program"),
            Cell::script("c", 1, Duration::from_millis(50), "sleep 60"),
            Cell::new("d", 1, Duration::from_secs(1), "echo {share:a:50}"),
            cell("e", 1, "echo '{\"n\": 7}'"),
        ];
        let results = run(&cells, &places, &store, &Noted::new(usize::MAX)).unwrap();
        let failed = |name: &str| results.outcome(name).and_then(|outcome| outcome.failed.clone()).unwrap_or_default();
        assert_eq!(failed("a"), "exit code 3: no room");
        assert!(failed("b").starts_with("/no/such/program: No such file"), "{}", failed("b"));
        assert_eq!((failed("c").as_str(), failed("d").as_str()), ("ended after 0 s", "a has no figures"));
        assert_eq!(results.figure("e", "n"), Some(7.0));
        assert!(fs::read_to_string(store.path("logs/a.log")).unwrap().starts_with("first\n"));
    }

    #[test]
    fn an_interrupted_reproduction_goes_on_where_it_stopped() {
        let (place, store, places) = place();
        let count = place.path().join("count");
        let script = format!("echo x >>{}; echo '{{\"n\": 1}}'", count.display());
        let cells = [cell("a", 1, &script), cell("b", 1, "sleep 60; exit 1")];
        assert!(matches!(run(&cells, &places, &store, &Noted::new(2)), Err(Stop::Stopped)));
        let cells = [cells[0].clone(), cell("b", 1, "exit 0")];
        let results = run(&cells, &places, &store, &Noted::new(usize::MAX)).unwrap();
        assert_eq!((results.figure("a", "n"), fs::read_to_string(&count).unwrap().as_str()), (Some(1.0), "x\n"));
    }
}
