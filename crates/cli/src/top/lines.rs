//! One line for each run: its figures now, and those of the last interval.

use std::collections::HashMap;
use std::time::Instant;

use hanare::counters::Snapshot;
use serde::Serialize;

use super::columns::{Column, clock, count, size, time};
use super::members::{Member, Seen};
use crate::report::{faults, mode_name};
use crate::watch::processes::{self, Process};
use crate::watch::rates::Rates;
use crate::watch::runs::{self, Id, Run};

/// The figures of one run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct RunLine {
    #[serde(skip)]
    pub(super) id: Id,
    /// The program's process. `None` before it has started.
    pub(super) pid: Option<u32>,
    pub(super) program: String,
    /// The `hanare run` that waits for the program. `None` if it was killed.
    supervisor_pid: Option<u32>,
    elapsed_s: f64,
    mode: &'static str,
    policy: String,
    prefetch: String,
    /// The figures of the interval. `None` if the run began in it.
    pub(super) faults_per_s: Option<f64>,
    pub(super) bytes_in_per_s: Option<f64>,
    pub(super) bytes_out_per_s: Option<f64>,
    /// `None` also if no fault ended in the interval.
    fault_us_p50: Option<f64>,
    fault_us_p99: Option<f64>,
    waiting_threads: Option<f64>,
    stall_share: Option<f64>,
    pub(super) local_bytes: u64,
    local_bytes_budget: u64,
    pub(super) far_bytes: u64,
    private_bytes: u64,
    /// Figures since the start of the run.
    faults: u64,
    bytes_in: u64,
    bytes_out: u64,
    swap_s: f64,
    /// The program's threads, without Hanare's.
    threads: u32,
    pub(super) processes: Vec<Member>,
}

/// The columns for runs, in the order in which they are shown.
pub(super) const COLUMNS: &[Column<RunLine>] = &[
    Column {
        title: "PID",
        width: 7,
        rank: 0,
        cell: |run| run.pid.map_or("-".to_owned(), |pid| pid.to_string()),
        key: |run| f64::from(run.pid.unwrap_or(0)),
    },
    Column { title: "TIME", width: 8, rank: 11, cell: |run| clock(run.elapsed_s), key: |run| run.elapsed_s },
    Column {
        title: "FAULT/s",
        width: 7,
        rank: 1,
        cell: |run| or_dash(run.faults_per_s, count),
        key: |run| known(run.faults_per_s),
    },
    Column {
        title: "IN/s",
        width: 5,
        rank: 3,
        cell: |run| or_dash(run.bytes_in_per_s, size),
        key: |run| known(run.bytes_in_per_s),
    },
    Column {
        title: "OUT/s",
        width: 5,
        rank: 6,
        cell: |run| or_dash(run.bytes_out_per_s, size),
        key: |run| known(run.bytes_out_per_s),
    },
    Column {
        title: "P50",
        width: 6,
        rank: 7,
        cell: |run| or_dash(run.fault_us_p50, time),
        key: |run| known(run.fault_us_p50),
    },
    Column {
        title: "P99",
        width: 6,
        rank: 8,
        cell: |run| or_dash(run.fault_us_p99, time),
        key: |run| known(run.fault_us_p99),
    },
    Column {
        title: "STALL",
        width: 5,
        rank: 2,
        cell: |run| or_dash(run.stall_share, percent),
        key: |run| known(run.stall_share),
    },
    Column {
        title: "LOCAL",
        width: 5,
        rank: 5,
        cell: |run| size(run.local_bytes as f64),
        key: |run| run.local_bytes as f64,
    },
    Column {
        title: "BUDGET",
        width: 6,
        rank: 10,
        cell: |run| size(run.local_bytes_budget as f64),
        key: |run| run.local_bytes_budget as f64,
    },
    Column { title: "FAR", width: 5, rank: 4, cell: |run| size(run.far_bytes as f64), key: |run| run.far_bytes as f64 },
    Column {
        title: "NEAR",
        width: 5,
        rank: 9,
        cell: |run| size(run.private_bytes as f64),
        key: |run| run.private_bytes as f64,
    },
    Column {
        title: "PROC",
        width: 4,
        rank: 12,
        cell: |run| run.processes.len().to_string(),
        key: |run| run.processes.len() as f64,
    },
    Column { title: "THR", width: 4, rank: 13, cell: |run| run.threads.to_string(), key: |run| f64::from(run.threads) },
    Column { title: "MODE", width: 7, rank: 14, cell: |run| run.mode.to_owned(), key: |_| 0.0 },
    Column { title: "POLICY", width: 16, rank: 15, cell: |run| run.policy.clone(), key: |_| 0.0 },
    Column { title: "PROGRAM", width: 8, rank: 0, cell: |run| run.program.clone(), key: |_| 0.0 },
];

pub(super) fn or_dash(value: Option<f64>, shown: fn(f64) -> String) -> String {
    value.map_or("-".to_owned(), shown)
}

fn known(value: Option<f64>) -> f64 {
    value.unwrap_or(-1.0)
}

pub(super) fn percent(share: f64) -> String {
    format!("{:.0}%", share * 100.0)
}

/// Reads runs again and again, and knows what they were at the last reading.
pub(super) struct Watcher {
    only: Option<u32>,
    before: HashMap<Id, (Snapshot, Seen, Instant)>,
}

impl Watcher {
    /// Makes a watcher of all runs, or of those of one process.
    pub(super) fn new(only: Option<u32>) -> Watcher {
        Watcher { only, before: HashMap::new() }
    }

    /// Returns the runs that go on, and what could not be looked at.
    pub(super) fn look(&mut self) -> (Vec<RunLine>, Vec<String>) {
        let found = runs::find(self.only);
        let mut now = HashMap::new();
        let mut lines = Vec::new();
        for run in &found.runs {
            let (seen, at) = (run.stats.snapshot(), Instant::now());
            let each: Seen = run.stats.processes().into_iter().map(|figures| (figures.pid, figures)).collect();
            let before = self.before.get(&run.id);
            let rates = before.map(|(old, _, since)| Rates::between(old, &seen, at - *since));
            let past = before.map(|(_, old, since)| (old, at - *since));
            let members = run.processes.iter().map(|process| Member::new(process, &each, past)).collect();
            lines.push(RunLine::new(run, &seen, rates, members));
            now.insert(run.id, (seen, each, at));
        }
        self.before = now;
        (lines, found.notes)
    }
}

impl RunLine {
    fn new(run: &Run, seen: &Snapshot, rates: Option<Rates>, processes: Vec<Member>) -> RunLine {
        let first = run.supervisor.as_ref().or(run.program.as_ref());
        let threads = processes::program_threads(&run.processes);
        RunLine {
            id: run.id,
            pid: run.program.as_ref().map(|program| program.pid),
            program: run.program.as_ref().map_or("(starting)".to_owned(), Process::name),
            supervisor_pid: run.supervisor.as_ref().map(|supervisor| supervisor.pid),
            elapsed_s: first.map_or(0.0, |process| process.age().as_secs_f64()),
            mode: mode_name(seen.mode),
            policy: seen.policy.clone(),
            prefetch: seen.prefetch.clone(),
            faults_per_s: rates.map(|rates| rates.faults_per_s),
            bytes_in_per_s: rates.map(|rates| rates.bytes_in_per_s),
            bytes_out_per_s: rates.map(|rates| rates.bytes_out_per_s),
            fault_us_p50: rates.and_then(|rates| rates.fault_us_p50),
            fault_us_p99: rates.and_then(|rates| rates.fault_us_p99),
            waiting_threads: rates.map(|rates| rates.waiting_threads),
            stall_share: rates.map(|rates| rates.stall_share(threads)),
            local_bytes: seen.local_bytes,
            local_bytes_budget: seen.budget_bytes,
            far_bytes: seen.far_bytes,
            private_bytes: seen.private_bytes,
            faults: faults(seen),
            bytes_in: seen.bytes_in,
            bytes_out: seen.bytes_out,
            swap_s: seen.swap_ns as f64 / 1e9,
            threads,
            processes,
        }
    }
}

#[cfg(test)]
pub(super) fn example(pid: u32, program: &str, faults_per_s: f64) -> RunLine {
    RunLine {
        id: (1, u64::from(pid)),
        pid: Some(pid),
        program: program.to_owned(),
        mode: "sigbus",
        policy: "auto".to_owned(),
        elapsed_s: 75.0,
        faults_per_s: Some(faults_per_s),
        bytes_in_per_s: Some(faults_per_s * 4096.0),
        bytes_out_per_s: Some(0.0),
        fault_us_p50: Some(7.4),
        stall_share: Some(0.454),
        local_bytes: 256 << 20,
        local_bytes_budget: 256 << 20,
        far_bytes: 1 << 30,
        threads: 4,
        processes: vec![Member {
            pid,
            parent_pid: 1,
            program: program.to_owned(),
            threads: 5,
            resident_bytes: 1 << 20,
            ..Member::default()
        }],
        ..RunLine::default()
    }
}

#[cfg(test)]
mod tests {
    use super::super::columns::table;
    use super::*;

    #[test]
    fn a_row_has_every_figure_in_its_column() {
        let lines = table(COLUMNS, &[example(4711, "sort", 12_345.0)], usize::MAX);
        let words: Vec<(&str, &str)> = lines[0].split_whitespace().zip(lines[1].split_whitespace()).collect();
        for pair in [
            ("PID", "4711"),
            ("TIME", "1:15"),
            ("FAULT/s", "12.3K"),
            ("IN/s", "48.2M"),
            ("P50", "7.4us"),
            ("P99", "-"),
            ("STALL", "45%"),
            ("LOCAL", "256M"),
            ("FAR", "1.0G"),
            ("PROGRAM", "sort"),
        ] {
            assert!(words.contains(&pair), "{pair:?} is not in {words:?}");
        }
        let narrow = table(COLUMNS, &[example(4711, "sort", 12_345.0)], 40);
        assert!(narrow.iter().all(|line| line.chars().count() <= 40), "{narrow:?}");
        assert!(
            narrow[0].contains("FAULT/s") && narrow[0].contains("STALL") && narrow[1].contains("sort"),
            "{narrow:?}"
        );
    }

    #[test]
    fn the_json_has_units_in_its_names_and_null_where_nothing_is_known() {
        let json = serde_json::to_value(example(1, "a", 2.0)).unwrap();
        assert_eq!((json["faults_per_s"].as_f64(), json["far_bytes"].as_u64()), (Some(2.0), Some(1 << 30)));
        assert!(json["fault_us_p99"].is_null() && json.get("id").is_none(), "{json}");
        assert_eq!(json["processes"][0]["resident_bytes"], 1 << 20);
    }
}
