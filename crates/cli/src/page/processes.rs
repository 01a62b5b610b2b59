//! The processes of a run: the program and its descendants, as `/proc` shows them now and then.

use std::collections::VecDeque;

use maud::{Markup, html};
use serde::Serialize;

use super::words;

/// Most processes that have an entry.
const KEPT_MAX: usize = 200;
/// Number of threads whose children one look reads.
const THREADS_MAX: usize = 1000;

/// One process, as it was seen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The name that the kernel has for it: the program's file name, cut to 15 bytes.
    pub(crate) name: String,
    /// Seconds after the start of the run at which it was first seen.
    pub(crate) first_s: f64,
    /// Seconds after the start of the run at which it was last seen.
    pub(crate) last_s: f64,
    /// Most resident memory of the process, as the kernel counts it.
    pub(crate) resident_bytes_peak: u64,
    /// Clock ticks from the start of the machine to that of the process. With `pid`, they identify the process.
    #[serde(skip)]
    started_ticks: u64,
}

/// The processes that were seen, in the order of their first sight.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Processes {
    #[serde(rename = "processes_seen")]
    pub(crate) seen: Vec<Process>,
    /// Whether there were further processes, which have no entry.
    #[serde(rename = "processes_left_out")]
    pub(crate) left_out: bool,
}

impl Processes {
    /// Looks at the process `root` and its descendants, `at_s` seconds after the start of the run. A process that ends
    /// during the look may be missed.
    pub(crate) fn look(&mut self, root: u32, at_s: f64) {
        let mut next = VecDeque::from([root]);
        let mut threads = 0;
        while let Some(pid) = next.pop_front() {
            self.note(pid, at_s);
            for thread in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
                threads += 1;
                if threads > THREADS_MAX {
                    return;
                }
                let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
                next.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
    }

    /// Returns the table of the processes.
    pub(crate) fn table(&self) -> Markup {
        html! {
            div.wide {
                table {
                    thead {
                        tr {
                            th scope="col" { "program" } th scope="col" { "process" } th scope="col" { "from" }
                            th scope="col" { "to" } th scope="col" { "memory" }
                        }
                    }
                    tbody {
                        @for process in &self.seen {
                            tr {
                                th scope="row" { (words::outside(&process.name)) }
                                td { (process.pid) }
                                td { (words::moment(process.first_s)) }
                                td { (words::moment(process.last_s)) }
                                td { (words::bytes(process.resident_bytes_peak as f64)) }
                            }
                        }
                    }
                }
            }
        }
    }

    fn note(&mut self, pid: u32, at_s: f64) {
        let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let (stat, status) = (read("stat"), read("status"));
        let Some((name, started_ticks)) = name_and_start(&String::from_utf8_lossy(&stat)) else { return };
        let resident_bytes_peak = peak(&String::from_utf8_lossy(&status));
        let is_same = |process: &&mut Process| process.pid == pid && process.started_ticks == started_ticks;
        if let Some(process) = self.seen.iter_mut().find(is_same) {
            process.name = name;
            process.last_s = at_s;
            process.resident_bytes_peak = process.resident_bytes_peak.max(resident_bytes_peak);
        } else if self.seen.len() < KEPT_MAX {
            let (first_s, last_s) = (at_s, at_s);
            self.seen.push(Process { pid, name, first_s, last_s, resident_bytes_peak, started_ticks });
        } else {
            self.left_out = true;
        }
    }
}

/// Returns a process' name and start from its `stat` file. The name is in parentheses, and may contain any character. The
/// start is the twentieth field after it.
fn name_and_start(stat: &str) -> Option<(String, u64)> {
    let (before, after) = stat.rsplit_once(')')?;
    let (_, name) = before.split_once('(')?;
    Some((name.to_owned(), after.split_whitespace().nth(19)?.parse().ok()?))
}

/// Returns the peak of resident memory in bytes from a process' `status` file. 0 if it has none, as after its end.
fn peak(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")).and_then(|kib| kib.trim().parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn names_with_parentheses_and_spaces_are_read() {
        let fields: Vec<String> = (1..=30).map(|field| field.to_string()).collect();
        assert_eq!(name_and_start(&format!("12 (a) (b) {}", fields.join(" "))), Some(("a) (b".to_owned(), 20)));
        assert_eq!((name_and_start(""), name_and_start("12 (sh) S 1")), (None, None));
        assert_eq!((peak("Name:\tsh\nVmHWM:\t    12 kB\n"), peak("VmHWM: x kB")), (12288, 0));
    }

    #[test]
    fn a_child_and_its_children_are_seen_until_they_end() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sleep 100 & read line; kill $!"]).stdin(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut processes = Processes::default();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        // Just after its exec, a process has its new name but hardly a page.
        let has_begun = |process: &Process| process.name == "sleep" && process.resident_bytes_peak > 1 << 16;
        while !processes.seen.iter().any(has_begun) {
            assert!(std::time::Instant::now() < deadline, "{processes:?}");
            processes.look(child.id(), 1.0);
        }
        processes.look(child.id(), 2.5);
        drop(child.stdin.take());
        child.wait().unwrap();
        processes.look(child.id(), 9.0);
        let seen: Vec<_> = processes.seen.iter().map(|it| (it.name.as_str(), it.first_s, it.last_s)).collect();
        assert_eq!(seen, [("sh", 1.0, 2.5), ("sleep", 1.0, 2.5)]);
        assert!(processes.seen.iter().all(|it| it.resident_bytes_peak > 1 << 16), "{processes:?}");
    }
}
