//! The processes of this machine, as `/proc` shows them.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// Most threads of a process whose names are read.
const THREADS_MAX: usize = 4096;
/// Beginning of the names of Hanare's own threads in a program.
const OWN_THREAD: &str = "hanare-";
/// Most characters of a program's name.
const NAME_CHARS: usize = 64;

/// A process.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) parent: u32,
    /// The name that the kernel keeps: at most 15 bytes of the program's.
    pub(crate) comm: String,
    pub(crate) threads: u32,
    /// The letter of the kernel for what the process does: `T` for a stopped one, `Z` for one that has ended.
    pub(crate) state: char,
    /// The start, in clock ticks since the machine's start.
    pub(crate) started_ticks: u64,
    pub(crate) resident_bytes: u64,
}

/// All processes that could be read, by their numbers.
pub(crate) type Table = HashMap<u32, Process>;

/// Returns all processes. A process that ends meanwhile is left out.
pub(crate) fn all() -> Table {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| Some((pid, Process::read(pid)?))).collect()
}

/// Returns the processes that descend from `root`, without `root`.
pub(crate) fn descendants(table: &Table, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        let children = table.values().filter(|process| process.parent == parent && process.pid != parent);
        let new: Vec<u32> = children.map(|child| child.pid).filter(|pid| !found.contains(pid)).collect();
        found.extend(new);
        next += 1;
    }
    found.split_off(1)
}

/// Returns the number of threads of these processes, without those of Hanare.
pub(crate) fn program_threads<'a>(processes: impl IntoIterator<Item = &'a Process>) -> u32 {
    processes.into_iter().map(Process::program_threads).sum()
}

impl Process {
    pub(crate) fn read(pid: u32) -> Option<Process> {
        Process::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Reads `/proc/PID/stat`. The name in parentheses may contain any character.
    fn parse(pid: u32, stat: &str) -> Option<Process> {
        let (head, rest) = stat.rsplit_once(") ")?;
        let comm = head.split_once('(')?.1.chars().map(plain).collect();
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
        Some(Process {
            pid,
            parent: u32::try_from(number(1)?).ok()?,
            comm,
            threads: u32::try_from(number(17)?).ok()?,
            state: fields.first()?.chars().next()?,
            started_ticks: number(19)?,
            resident_bytes: number(21)?.saturating_mul(rustix::param::page_size() as u64),
        })
    }

    /// Returns the number of its threads, without those of Hanare.
    pub(crate) fn program_threads(&self) -> u32 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        let names = tasks.take(THREADS_MAX).filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
        let own = names.filter(|name| name.starts_with(OWN_THREAD)).count();
        self.threads.saturating_sub(u32::try_from(own).unwrap_or(u32::MAX))
    }

    /// Returns how long the process has run.
    pub(crate) fn age(&self) -> Duration {
        let uptime = fs::read_to_string("/proc/uptime").unwrap_or_default();
        let up_s: f64 = uptime.split(' ').next().and_then(|up| up.parse().ok()).unwrap_or(0.0);
        let started_s = self.started_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
        Duration::try_from_secs_f64(up_s - started_s).unwrap_or_default()
    }

    /// Returns the command line.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.pid)).unwrap_or_default();
        line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Returns the name of the program, without its folder.
    pub(crate) fn name(&self) -> String {
        let line = self.arguments();
        let name = line.first().and_then(|path| path.rsplit('/').next()).unwrap_or("");
        let name = if name.is_empty() { &self.comm } else { name };
        name.chars().take(NAME_CHARS).map(plain).collect()
    }

    /// Returns the user whose process it is. `None` if it has ended.
    pub(crate) fn user(&self) -> Option<u32> {
        fs::metadata(format!("/proc/{}", self.pid)).ok().map(|meta| meta.uid())
    }

    /// Whether this is `hanare` with one of these commands.
    pub(crate) fn is_command(&self, commands: &[&str]) -> bool {
        self.comm == crate::NAME && self.arguments().get(1).is_some_and(|word| commands.contains(&word.as_str()))
    }
}

/// Returns a character that cannot change the terminal.
fn plain(c: char) -> char {
    if c.is_control() { '?' } else { c }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_name_may_have_blanks_and_parentheses() {
        let tail = "S 7 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 5 0 1234 100 3 1";
        let process = Process::parse(9, &format!("9 (a) (b\x1b c) {tail}")).unwrap();
        assert_eq!((process.comm.as_str(), process.parent, process.threads), ("a) (b? c", 7, 5));
        assert_eq!(
            (process.state, process.started_ticks, process.resident_bytes),
            ('S', 1234, 3 * rustix::param::page_size() as u64)
        );
    }

    #[test]
    fn this_process_is_found_with_its_parent() {
        let (table, own) = (all(), std::process::id());
        let this = &table[&own];
        assert!(this.threads >= 1 && this.resident_bytes > 0 && this.age() < Duration::from_secs(3600), "{this:?}");
        assert_eq!(this.user(), Some(rustix::process::geteuid().as_raw()));
        assert!(descendants(&table, this.parent).contains(&own) && !descendants(&table, own).contains(&own));
    }

    #[test]
    fn a_circle_of_parents_ends() {
        let process = |pid, parent| Process::parse(pid, &format!("{pid} (x) S {parent}{}", " 1".repeat(22))).unwrap();
        let table: Table = [(1, 2), (2, 1), (3, 2), (4, 4)].map(|(pid, parent)| (pid, process(pid, parent))).into();
        let mut found = descendants(&table, 1);
        found.sort_unstable();
        assert_eq!(found, [2, 3]);
    }

    proptest! {
        #[test]
        fn no_text_panics(text: String) {
            let _ = Process::parse(1, &text);
        }
    }
}
