//! Finds the runs of this machine by the descriptors of their counters, and reads them.
//!
//! `hanare run` keeps the counters in a memfd, and the program inherits its descriptor. All processes with the same
//! memfd belong to one run. Their descendants belong to it too, except the private server.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hanare::stats::Stats;

use super::processes::{self, Process, Table};

/// The link of a descriptor of counters.
const LINK: &str = "/memfd:hanare-stats (deleted)";
/// The commands that make counters.
const STARTERS: [&str; 2] = ["run", "trace"];

/// The file system's device and the inode of a memfd. They tell runs apart.
pub(crate) type Id = (u64, u64);

/// A run that goes on.
pub(crate) struct Run {
    pub(crate) id: Id,
    pub(crate) stats: Stats,
    /// The command that waits for the program. `None` if it was killed.
    pub(crate) supervisor: Option<Process>,
    /// The program, if it has started, or the oldest of its processes that are left.
    pub(crate) program: Option<Process>,
    /// The processes of the program, in the order of their numbers.
    pub(crate) processes: Vec<Process>,
}

/// The result of one search.
pub(crate) struct Found {
    pub(crate) runs: Vec<Run>,
    /// A line for each process that seems to have counters, and whose counters cannot be read.
    pub(crate) notes: Vec<String>,
}

/// Where the counters of a run can be opened, and who has them.
struct Trace {
    path: PathBuf,
    holders: BTreeSet<u32>,
}

/// Looks at the descriptors of every process. With `only`, keeps the runs to which this process belongs.
pub(crate) fn find(only: Option<u32>) -> Found {
    let table = processes::all();
    let mut traces: BTreeMap<Id, Trace> = BTreeMap::new();
    let mut notes = Vec::new();
    let mut pids: Vec<u32> = table.keys().copied().collect();
    pids.sort_unstable();
    for pid in pids {
        match counters_of(pid) {
            Ok(found) => found.into_iter().for_each(|(id, path)| {
                let new = || Trace { path, holders: BTreeSet::new() };
                traces.entry(id).or_insert_with(new).holders.insert(pid);
            }),
            Err(error) if table[&pid].is_command(&STARTERS) => notes.extend(refusal(&table[&pid], &error)),
            Err(_) => {}
        }
    }
    let mut runs = Vec::new();
    for (id, trace) in traces {
        match open(&trace.path) {
            Ok(stats) => runs.push(Run::new(id, stats, &trace.holders, &table)),
            // The process has ended meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => notes.push(format!("the counters at {} cannot be read: {error}", trace.path.display())),
        }
    }
    runs.retain(|run| only.is_none_or(|pid| run.has(pid)));
    Found { runs, notes }
}

fn open(path: &Path) -> io::Result<Stats> {
    let file = File::options().read(true).write(true).open(path)?;
    Stats::open(&file).map_err(io::Error::other)
}

impl Run {
    fn new(id: Id, stats: Stats, holders: &BTreeSet<u32>, table: &Table) -> Run {
        let of = |pid: &u32| table.get(pid);
        let is_root = |process: &&Process| !holders.contains(&process.parent) && process.is_command(&STARTERS);
        let supervisor = holders.iter().filter_map(of).find(is_root).cloned();
        let mut members = holders.clone();
        holders.iter().for_each(|pid| members.extend(processes::descendants(table, *pid)));
        let is_program = |process: &&Process| {
            Some(process.pid) != supervisor.as_ref().map(|it| it.pid) && !process.is_command(&["serve"])
        };
        let processes: Vec<Process> = members.iter().filter_map(of).filter(is_program).cloned().collect();
        let is_first = |process: &&Process| match &supervisor {
            Some(supervisor) => process.parent == supervisor.pid,
            None => holders.contains(&process.pid),
        };
        let program = processes.iter().filter(is_first).min_by_key(|process| process.started_ticks).cloned();
        Run { id, stats, supervisor, program, processes }
    }

    pub(crate) fn has(&self, pid: u32) -> bool {
        self.supervisor.iter().chain(&self.processes).any(|process| process.pid == pid)
    }
}

/// Returns the counters that a process has open, with paths at which they can be opened.
fn counters_of(pid: u32) -> io::Result<Vec<(Id, PathBuf)>> {
    let mut found: Vec<(Id, PathBuf)> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))?.flatten() {
        let path = entry.path();
        // A descriptor may be closed meanwhile.
        let Ok(link) = fs::read_link(&path) else { continue };
        if link == Path::new(LINK)
            && let Ok(meta) = fs::metadata(&path)
        {
            found.push(((meta.dev(), meta.ino()), path));
        }
    }
    Ok(found)
}

/// Returns why a process cannot be looked at. `None` if it has ended.
pub(crate) fn refusal(process: &Process, error: &io::Error) -> Option<String> {
    let (pid, name, user) = (process.pid, process.name(), process.user()?);
    let advice = match error.kind() {
        io::ErrorKind::PermissionDenied => "; only that user and root may",
        _ => "",
    };
    Some(format!("cannot look at process {pid} ({name}) of user {user}: {error}{advice}"))
}

/// Returns why the descriptors of a process cannot be listed. `None` if they can.
pub(crate) fn obstacle(process: &Process) -> Option<String> {
    counters_of(process.pid).err().and_then(|error| refusal(process, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;
    use std::os::unix::fs::FileExt;

    #[test]
    fn counters_that_this_process_holds_are_found_and_read() {
        let (fd, stats) = Stats::create().unwrap();
        add(&stats.pages_in, 42);
        let meta = File::from(fd.try_clone().unwrap()).metadata().unwrap();
        let found = find(Some(std::process::id()));
        let run = found.runs.iter().find(|run| run.id == (meta.dev(), meta.ino())).unwrap();
        assert_eq!(run.stats.snapshot().pages_in, 42);
        assert!(run.supervisor.is_none(), "this test is not 'hanare run'");
        assert!(run.processes.iter().any(|process| process.pid == std::process::id()));
        drop(fd);
        assert!(find(None).runs.iter().all(|run| run.id != (meta.dev(), meta.ino())));
    }

    #[test]
    fn counters_of_another_layout_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counters");
        let len = File::from(Stats::create().unwrap().0).metadata().unwrap().len() as usize;
        for content in [vec![0; 8], vec![0; len], b"HANARE\0\xff".to_vec(), b"x".to_vec()] {
            std::fs::write(&path, &content).unwrap();
            assert!(open(&path).is_err_and(|error| error.to_string().contains("another release")));
        }
    }

    #[test]
    fn counters_that_could_be_shortened_are_refused() {
        let file = File::from(Stats::create().unwrap().0);
        let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut bytes, 0).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("counters");
        std::fs::write(&path, &bytes).unwrap();
        assert!(open(&path).is_err_and(|error| error.to_string().contains("not sealed")));
    }
}
