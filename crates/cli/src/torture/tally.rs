//! The figures of a test.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::time::Instant;

use super::Wish;
use super::plan::Kind;
use super::run::Report;
use crate::progress::ProgressLine;

/// The shortest stall that the log names, in microseconds.
const LONG_US: u64 = 300_000;

/// What was done, and what the checking programs found.
pub(super) struct Tally {
    began: Instant,
    /// The number of runs so far.
    pub(super) runs: u64,
    /// The number of servers that each kind of harm has hit.
    hits: BTreeMap<Kind, u64>,
    harms: u64,
    /// The longest stall since a harm of this kind, in microseconds. `None`: outside of harms.
    stalls_us: BTreeMap<Option<Kind>, u64>,
    late_us: u64,
    /// Losses of servers that were not harmed at that moment.
    pub(super) lost_unharmed: u64,
    /// Corruptions that were not done, because nothing passed the link.
    pub(super) idle_flips: u64,
    /// The counters of the runs that have ended.
    past: Report,
    progress: ProgressLine,
    log: Option<File>,
}

impl Tally {
    pub(super) fn new(log: Option<File>) -> Self {
        Self {
            began: Instant::now(),
            runs: 0,
            hits: BTreeMap::new(),
            harms: 0,
            stalls_us: BTreeMap::new(),
            late_us: 0,
            lost_unharmed: 0,
            idle_flips: 0,
            past: Report::default(),
            progress: ProgressLine::new(),
            log,
        }
    }

    /// Returns the number of harms so far.
    pub(super) fn harms(&self) -> u64 {
        self.harms
    }

    /// Writes an event into the log.
    pub(super) fn note(&mut self, event: &str) {
        if let Some(log) = &mut self.log {
            // Ignored: a full disk ends the log, not the test.
            let _ = writeln!(log, "{:10.3} {event}", self.began.elapsed().as_secs_f64());
        }
    }

    /// Counts a harm that hits this number of servers.
    pub(super) fn harm(&mut self, kind: Kind, servers: usize) {
        self.harms += 1;
        *self.hits.entry(kind).or_default() += servers as u64;
    }

    /// Takes note of a report that came after a harm of this kind.
    pub(super) fn report(&mut self, kind: Option<Kind>, report: &Report) {
        let longest = self.stalls_us.entry(kind).or_default();
        *longest = report.stall_us.max(*longest);
        self.late_us = self.late_us.max(report.late_us);
        if report.stall_us >= LONG_US {
            self.note(&format!(
                "stall of {} ms; a thread woke {} ms late",
                report.stall_us / 1000,
                report.late_us / 1000
            ));
        }
    }

    /// Adds the counters of a run that has ended.
    pub(super) fn ends(&mut self, last: &Report) {
        let past = &mut self.past;
        past.words += last.words;
        past.fetched_bytes += last.fetched_bytes;
        past.servers_lost += last.servers_lost;
        past.rebuilt_bytes += last.rebuilt_bytes;
        past.degraded_ms += last.degraded_ms;
    }

    fn hits(&self, kind: Kind) -> u64 {
        let not_done = if kind == Kind::Corrupt { self.idle_flips } else { 0 };
        self.hits.get(&kind).copied().unwrap_or(0).saturating_sub(not_done)
    }

    /// Shows how far the test is, on a terminal.
    pub(super) fn show(&self, last: &Report) {
        let (harms, words) = (self.harms, self.past.words + last.words);
        let seconds = self.began.elapsed().as_secs();
        self.progress.update(|| format!("hanare: {seconds} s, {harms} harms, {words} words checked"));
    }

    /// Clears the line on a terminal, and prints the figures.
    pub(super) fn print(&self, wish: &Wish) -> io::Result<()> {
        self.progress.clear();
        let mut out = io::stdout().lock();
        let mut line = |name: &str, value: String| writeln!(out, "{name:36} {value}");
        let seconds = |us: u64| format!("{:.3} s", us as f64 / 1e6);
        line("seed", wish.seed.to_string())?;
        line("servers", wish.servers.to_string())?;
        line("redundancy", wish.redundancy.to_string())?;
        line("time", format!("{:.1} s", self.began.elapsed().as_secs_f64()))?;
        line("runs", self.runs.to_string())?;
        for kind in Kind::ALL {
            line(&format!("{}s", kind.name()), self.hits(kind).to_string())?;
        }
        line("servers lost by the runs", self.past.servers_lost.to_string())?;
        line("servers lost without harm", self.lost_unharmed.to_string())?;
        line("bytes of pages fetched", self.past.fetched_bytes.to_string())?;
        line("bytes of parts rebuilt", self.past.rebuilt_bytes.to_string())?;
        line("words checked", self.past.words.to_string())?;
        for kind in Kind::ALL {
            if let Some(&longest) = self.stalls_us.get(&Some(kind)) {
                line(&format!("longest stall after a {}", kind.name()), seconds(longest))?;
            }
        }
        line("longest stall without harm", seconds(self.stalls_us.get(&None).copied().unwrap_or(0)))?;
        line("longest delay of a thread's wake", seconds(self.late_us))?;
        line("time with pages that lacked parts", format!("{:.1} s", self.past.degraded_ms as f64 / 1e3))
    }
}
