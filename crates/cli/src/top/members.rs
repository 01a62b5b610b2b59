//! One line for each process of a run: its memory, and its faults in the last interval.

use std::collections::HashMap;
use std::time::Duration;

use hanare::stats::ProcessFigures;
use serde::Serialize;

use super::columns::{Column, count, size};
use super::lines::{or_dash, percent};
use crate::watch::processes::Process;

/// A process of a run. The figures of far memory are `None` where the process has none of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Member {
    pub(super) pid: u32,
    pub(super) parent_pid: u32,
    pub(super) program: String,
    pub(super) threads: u32,
    pub(super) resident_bytes: u64,
    /// `None` also if the process began in the interval.
    pub(super) faults_per_s: Option<f64>,
    pub(super) stall_share: Option<f64>,
    pub(super) local_bytes: Option<u64>,
    pub(super) far_bytes: Option<u64>,
    pub(super) private_bytes: Option<u64>,
    /// Figures since the process has far memory.
    pub(super) faults: Option<u64>,
    pub(super) swap_s: Option<f64>,
}

/// The columns for the processes of a run.
pub(super) const MEMBERS: &[Column<Member>] = &[
    Column { title: "PID", width: 7, rank: 0, cell: |it| it.pid.to_string(), key: |_| 0.0 },
    Column { title: "PARENT", width: 7, rank: 7, cell: |it| it.parent_pid.to_string(), key: |_| 0.0 },
    Column { title: "FAULT/s", width: 7, rank: 1, cell: |it| or_dash(it.faults_per_s, count), key: |_| 0.0 },
    Column { title: "STALL", width: 5, rank: 2, cell: |it| or_dash(it.stall_share, percent), key: |_| 0.0 },
    Column { title: "LOCAL", width: 5, rank: 3, cell: |it| bytes(it.local_bytes), key: |_| 0.0 },
    Column { title: "FAR", width: 5, rank: 4, cell: |it| bytes(it.far_bytes), key: |_| 0.0 },
    Column { title: "NEAR", width: 5, rank: 5, cell: |it| bytes(it.private_bytes), key: |_| 0.0 },
    Column { title: "RES", width: 5, rank: 6, cell: |it| size(it.resident_bytes as f64), key: |_| 0.0 },
    Column { title: "THR", width: 4, rank: 8, cell: |it| it.threads.to_string(), key: |_| 0.0 },
    Column { title: "PROCESS", width: 8, rank: 0, cell: |it| it.program.clone(), key: |_| 0.0 },
];

fn bytes(value: Option<u64>) -> String {
    or_dash(value.map(|bytes| bytes as f64), size)
}

/// The figures of the processes of one run at one moment, by their numbers.
pub(super) type Seen = HashMap<u32, ProcessFigures>;

impl Member {
    /// Returns the line of a process. `before` has the figures of an earlier moment, with the time since then.
    pub(super) fn new(process: &Process, seen: &Seen, before: Option<(&Seen, Duration)>) -> Member {
        let now = seen.get(&process.pid);
        let past = before.and_then(|(seen, elapsed)| Some((seen.get(&process.pid)?, elapsed.as_secs_f64().max(1e-6))));
        // Another process of the same number, or another program in it, begins with smaller figures.
        let grown = |of: fn(&ProcessFigures) -> u64| {
            let (past, seconds) = past?;
            Some(of(now?).saturating_sub(of(past)) as f64 / seconds)
        };
        let threads = f64::from(process.program_threads().max(1));
        Member {
            pid: process.pid,
            parent_pid: process.parent,
            program: process.name(),
            threads: process.threads,
            resident_bytes: process.resident_bytes,
            faults_per_s: grown(|figures| figures.faults),
            stall_share: grown(|figures| figures.swap_ns).map(|ns| (ns / 1e9 / threads).min(1.0)),
            local_bytes: now.map(|now| now.local_bytes),
            far_bytes: now.map(|now| now.far_bytes),
            private_bytes: now.map(|now| now.private_bytes),
            faults: now.map(|now| now.faults),
            swap_s: now.map(|now| now.swap_ns as f64 / 1e9),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::table;
    use super::*;
    use crate::watch::processes;

    fn figures(pid: u32, faults: u64, swap_ns: u64) -> ProcessFigures {
        ProcessFigures { pid, local_bytes: 1 << 20, far_bytes: 2 << 20, private_bytes: 3 << 20, faults, swap_ns }
    }

    #[test]
    fn figures_of_the_interval_are_of_that_process() {
        let own = processes::all()[&std::process::id()].clone();
        let threads = f64::from(own.program_threads());
        let at = |faults, swap_ns| Seen::from([(own.pid, figures(own.pid, faults, swap_ns)), (1, figures(1, 9, 9))]);
        let (before, now) = (at(100, 0), at(300, 1_000_000_000));
        let member = Member::new(&own, &now, Some((&before, Duration::from_secs(2))));
        assert_eq!((member.faults_per_s, member.faults, member.far_bytes), (Some(100.0), Some(300), Some(2 << 20)));
        assert!(member.stall_share.is_some_and(|share| (share - 0.5 / threads).abs() < 1e-9), "{member:?}");
        let first = Member::new(&own, &now, None);
        assert_eq!((first.faults_per_s, first.stall_share, first.local_bytes), (None, None, Some(1 << 20)));
        let executed = Member::new(&own, &before, Some((&now, Duration::from_secs(2))));
        assert_eq!((executed.faults_per_s, executed.stall_share), (Some(0.0), Some(0.0)));
        let near = Member::new(&own, &Seen::new(), Some((&before, Duration::from_secs(2))));
        assert_eq!((near.faults_per_s, near.local_bytes, near.swap_s), (None, None, None));
    }

    #[test]
    fn a_narrow_terminal_has_the_columns_that_matter() {
        let member = Member { pid: 4711, program: "sort".to_owned(), faults_per_s: Some(5.0), ..Member::default() };
        let lines = table(MEMBERS, &[member], 40);
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{lines:?}");
        assert!(lines[0].contains("FAULT/s") && lines[0].contains("LOCAL") && lines[1].ends_with("sort"), "{lines:?}");
    }
}
