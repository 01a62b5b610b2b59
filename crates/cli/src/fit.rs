//! `hanare fit`: runs a program once with little local memory, and says how long it would take with more.
//!
//! `hanare run --fit` says the same after any run. The pager counts what more memory would have saved, and `model` turns
//! its counts into times. This module must not know how the pager counts.

mod model;

use std::path::PathBuf;

use clap::Args;
use hanare::counters::Snapshot;
use hanare::load::trap_ns;
use hanare_settings::{format_size, human_size};
use hanare_sys::memory::Memory;
use serde::Serialize;

use crate::message::say;
use crate::output::{Output, OutputError};
use crate::outside;
use crate::run::{self, RunArgs, RunError};
use crate::supervise::End;
use model::{Model, Observed, Unfit};

/// Percentages of the peak in the table.
const PERCENTS: [u64; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// Part of the measured run time by which the predicted one may differ. Beyond it, the prediction is called uncertain.
const ERROR_MAX: f64 = 0.25;
/// Slowdowns for which a size is given.
const SLOWDOWNS: [f64; 2] = [1.2, 2.0];
/// Memory of a job beside the program's: that of the command, and what the kernel counts for them.
const MARGIN_BYTES: u64 = 64 << 20;
const MIB: u64 = 1 << 20;
/// Policies that keep nothing of a loop that does not fit.
const LRU_LIKE: [&str; 6] = ["lru", "fifo", "clock", "nru", "plru", "simple"];

const EXAMPLES: &str = "\
Examples:
  hanare fit -- sort -S 1200M big.txt             a quarter of what it allocates is local meanwhile
  hanare fit --local 300M -- ./simulate           300M local meanwhile: nothing is said about less
  hanare fit --json fit.json -- ./fold            and write the figures to fit.json
  hanare run --local 1G --fit -- ./solve          the same at the end of an ordinary run

The figures are for this machine and these memory servers. They hold for runs with the same input. The less memory is local \
meanwhile, the more is seen, and the longer it takes.";

/// Another default than that of `hanare run`.
const LOCAL_HELP: &str =
    "Local memory for far pages: a size (256M, 1.5G) or a share of what the program allocates. Default: 25%";

/// Run a program once with little local memory, and predict its run time with more.
///
/// The table is printed on stderr, after the program has ended. It has the run time for parts of the peak of far memory,
/// and sizes of local memory to ask for. All flags are those of 'hanare run'.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, mut_arg("local", |arg| arg.help(LOCAL_HELP)))]
pub(crate) struct FitArgs {
    /// Write the figures to FILE as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

/// Runs the program, and returns the command's exit code: that of `hanare run`.
pub(crate) fn fit(args: FitArgs) -> Result<u8, RunError> {
    run::run(&args.run.into_fit(args.json), None)
}

/// The fit of a run that is about to start.
pub(crate) struct Fit {
    json: Option<Output>,
    program: Vec<String>,
}

/// A size of local memory with its run time. The JSON has this structure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) local_bytes: u64,
    percent_of_peak: f64,
    pub(crate) run_time_s: f64,
    /// The run time divided by the predicted one with all memory local.
    pub(crate) slowdown: f64,
    /// Whether this is the run itself, not a prediction.
    measured: bool,
}

/// All that is predicted. The JSON has this structure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Prediction {
    /// What was observed.
    elapsed_s: f64,
    local_bytes_budget: u64,
    far_bytes_peak: u64,
    near_bytes_peak: u64,
    /// The run time that is predicted for this budget. It should be about that of the run.
    predicted_s_at_budget: f64,
    /// The run itself, and what is predicted for more local memory.
    pub(crate) rows: Vec<Row>,
    /// The size from which on more memory saves less.
    pub(crate) knee: Option<Row>,
    asks: Vec<Ask>,
}

/// A size to ask for.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Ask {
    slowdown: f64,
    local_bytes: u64,
    /// Memory to ask a batch system for: local memory, near memory, and a margin.
    job_bytes: u64,
}

impl Fit {
    /// Checks that the file for the JSON can be written.
    pub(crate) fn new(json: Option<&PathBuf>, program: &[std::ffi::OsString]) -> Result<Self, OutputError> {
        let json = json.map(|path| Output::beside_program("--json", path)).transpose()?;
        Ok(Fit { json, program: program.iter().map(|word| word.to_string_lossy().into_owned()).collect() })
    }

    /// Says what a run showed that ended as `end` says, after `elapsed_s`.
    pub(crate) fn tell(&self, seen: &Snapshot, end: &End, elapsed_s: f64) -> Result<(), OutputError> {
        let prediction = match Prediction::new(seen, elapsed_s) {
            Ok(prediction) => prediction,
            Err(reason) => {
                say(&reason);
                return Ok(());
            }
        };
        if let Some(signal) = end.signal() {
            say(&format!("signal {signal} ended the program: the fit is of the part before it"));
        }
        let memory_bytes = Memory::now().ok().map(|memory| memory.total_bytes);
        eprint!("{}", prediction.text(&self.program, memory_bytes));
        let text = || serde_json::to_string_pretty(&prediction).unwrap_or_default() + "\n";
        self.json.as_ref().map_or(Ok(()), |file| file.write(&text()))
    }
}

impl Prediction {
    /// Predicts from a run. An error is a line that says why nothing can be predicted.
    pub(crate) fn new(seen: &Snapshot, elapsed_s: f64) -> Result<Self, String> {
        if seen.processes == 0 || elapsed_s <= 0.0 {
            return Err("no fit: the program had no far memory. It made no large allocation, ended first, or did not \
                        load Hanare's library"
                .to_owned());
        }
        let model = Model::new(&observed(seen, elapsed_s)).map_err(|why| unfit(why, seen.budget_bytes))?;
        let (budget, peak) = (seen.budget_bytes, seen.far_bytes_peak);
        let row = |local_bytes: u64| Row {
            local_bytes,
            // The size is rounded up to whole MiB.
            percent_of_peak: (local_bytes as f64 * 100.0 / peak as f64).min(100.0),
            run_time_s: model.time_s(local_bytes),
            slowdown: model.slowdown(local_bytes),
            measured: false,
        };
        let run =
            Row { run_time_s: elapsed_s, slowdown: elapsed_s / model.time_s(peak), measured: true, ..row(budget) };
        let mut sizes = PERCENTS.map(|percent| whole(peak / 100 * percent + peak % 100 * percent / 100)).to_vec();
        // Parts of a small peak are rounded to the same size.
        sizes.dedup();
        sizes.retain(|&bytes| bytes > budget);
        Ok(Prediction {
            elapsed_s,
            local_bytes_budget: budget,
            far_bytes_peak: peak,
            near_bytes_peak: seen.private_bytes_peak,
            predicted_s_at_budget: model.time_s(budget),
            asks: asks(&model, &run, &sizes, seen.private_bytes_peak),
            rows: std::iter::once(run).chain(sizes.into_iter().map(row)).collect(),
            knee: model.knee().map(|bytes| row(whole(bytes))),
        })
    }

    /// Returns the size to ask for first, in bytes, with the run time that it would give, in seconds.
    pub(crate) fn first_ask(&self) -> Option<(u64, f64)> {
        let whole_s = self.rows.last()?.run_time_s;
        self.asks.first().map(|ask| (ask.local_bytes, ask.slowdown * whole_s))
    }

    /// Returns the largest size of the table that a machine can give, beside what the rest of it needs.
    pub(crate) fn largest_within(&self, memory_bytes: Option<u64>) -> Option<&Row> {
        let most = memory_bytes.map_or(u64::MAX, within);
        self.rows.iter().rfind(|row| row.local_bytes <= most)
    }

    /// Returns a line that warns of the prediction, if it contradicts the run.
    fn doubt(&self) -> Option<String> {
        let (measured, said) = (self.elapsed_s, self.predicted_s_at_budget);
        differs(said, measured).then(|| {
            format!("  prediction uncertain: measured {measured:.2} s, the model says {said:.2} s at that size\n")
        })
    }

    /// Returns the table for people. `memory_bytes` is the memory of the machine.
    fn text(&self, program: &[String], memory_bytes: Option<u64>) -> String {
        let budget = human_size(self.local_bytes_budget);
        let mut text = format!("hanare: fit from {:.2} s with up to {budget} of local memory\n", self.elapsed_s);
        text += "   local memory   of peak   run time   slowdown\n";
        for row in &self.rows {
            let size = human_size(row.local_bytes);
            let Row { percent_of_peak, run_time_s, slowdown, .. } = row;
            let how = if row.measured { "   measured" } else { "" };
            text += &format!("{size:>15}   {percent_of_peak:>5.0} %   {run_time_s:>6.2} s   {slowdown:>6.2} x{how}\n");
        }
        text += &self.doubt().unwrap_or_default();
        match &self.knee {
            Some(Row { local_bytes, slowdown, .. }) => {
                text += &format!(
                    "  knee: {}, {slowdown:.1} x: more memory saves less from here on\n",
                    human_size(*local_bytes)
                );
            }
            // That contradicts the table if the run does not fit to it.
            None if self.doubt().is_some() => {}
            None => text += "  no knee: each size saves about as much as the one before\n",
        }
        let asks: Vec<String> =
            self.asks.iter().map(|ask| format!("{}: {:.1} x", human_size(ask.local_bytes), ask.slowdown)).collect();
        let Some(first) = self.asks.first() else {
            return text + &format!("  ask for {budget} or less: it took less than {:.1} x\n", SLOWDOWNS[0]);
        };
        text += &format!("  ask for {}\n", asks.join("; "));
        let mut local_bytes = first.local_bytes;
        if let (Some(memory), Some(row)) = (memory_bytes, self.largest_within(memory_bytes))
            && first.local_bytes > within(memory)
        {
            let (memory, size) = (human_size(memory), human_size(row.local_bytes));
            text += &format!("  this machine has {memory} in all: {size} takes {:.1} x\n", row.slowdown);
            local_bytes = row.local_bytes;
        }
        let program = outside::safe(&program.join(" "));
        text += &format!("  hanare run --local {} -- {program}\n", format_size(local_bytes));
        let job = first.job_bytes.div_ceil(MIB);
        text + &format!("  Slurm: --mem={job}M, with evicted pages on other nodes or in a spill file\n")
    }
}

/// Returns the sizes to ask for. Less than the run had is not asked for, because nothing is known about it. `sizes` are the
/// larger ones in the table.
fn asks(model: &Model, run: &Row, sizes: &[u64], near_bytes: u64) -> Vec<Ask> {
    let missed: Vec<f64> = SLOWDOWNS.into_iter().filter(|&most| run.slowdown >= most).collect();
    let at_run = model.slowdown(run.local_bytes);
    let contradicts = differs(at_run, run.slowdown) || missed.iter().any(|&most| at_run <= most);
    // Just above the size of the run, the prediction is then as wrong as it is there. So no size before the table's next
    // one is asked for.
    let least = sizes.first().copied().filter(|_| contradicts).unwrap_or(0);
    let ask = |slowdown: f64| {
        let local_bytes = whole(model.least_for(slowdown)).max(least);
        Ask { slowdown, local_bytes, job_bytes: whole(local_bytes + near_bytes + MARGIN_BYTES) }
    };
    let mut asks: Vec<Ask> = missed.into_iter().map(ask).collect();
    asks.dedup_by_key(|ask| ask.local_bytes);
    asks
}

/// Whether what is predicted for the run itself contradicts what was measured.
fn differs(predicted: f64, measured: f64) -> bool {
    (predicted - measured).abs() > ERROR_MAX * measured
}

/// Returns a line that says why nothing can be predicted.
fn unfit(why: Unfit, budget: u64) -> String {
    let budget = human_size(budget);
    match why {
        Unfit::Ample => {
            format!("no fit: the local memory of {budget} sufficed, and no page came back. Give a smaller --local")
        }
        Unfit::Few(count) => {
            format!(
                "no fit: only {count} pages came back with {budget} of local memory. Give a smaller --local, or a longer run"
            )
        }
    }
}

/// Returns how much of a machine's memory can be local. The rest is for near memory and the system.
pub(crate) fn within(memory_bytes: u64) -> u64 {
    memory_bytes / 4 * 3
}

/// Rounds a size up to whole MiB.
fn whole(bytes: u64) -> u64 {
    bytes.next_multiple_of(MIB)
}

/// Returns what the counters of a run say.
fn observed(seen: &Snapshot, elapsed_s: f64) -> Observed {
    let seconds = |ns: u64| ns as f64 / 1e9;
    Observed {
        elapsed_s,
        cpu_s: seconds(seen.cpu_ns),
        waits_s: (seconds(seen.swap_ns), seconds(seen.set_bit_ns)),
        waits_on_cpu: seen.store_is_direct != 0,
        trap_s: seconds(trap_ns(seen.mode)),
        faults_zero: seen.faults_zero,
        faults_other: seen.faults_read + seen.faults_write + seen.faults_first_write + seen.faults_rescued,
        depths: seen.depths,
        huge_units: seen.huge_units,
        units_out: seen.pages_out,
        budget: seen.budget_bytes,
        peak: seen.far_bytes_peak,
        keeps_parts: !LRU_LIKE.iter().any(|name| seen.policy.starts_with(name)),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use hanare::counters::add;
    use hanare::counters::reuse::{Kind, bucket_of};
    use hanare::stats::Stats;

    fn seen(fill: impl FnOnce(&Stats)) -> Snapshot {
        let stats = Stats::attach(None, None).unwrap();
        fill(&stats);
        stats.snapshot()
    }

    /// A run of a loop over 1000 MiB with 250 of them local, that waits for three quarters of its 8 s.
    pub(crate) fn a_loop(stats: &Stats) {
        add(&stats.processes, 1);
        add(&stats.far_bytes_peak, 1000 * MIB);
        add(&stats.budget_bytes, 250 * MIB);
        add(&stats.private_bytes_peak, 40 * MIB);
        add(&stats.cpu_ns, 8_000_000_000);
        add(&stats.swap_ns, 6_000_000_000);
        add(&stats.store_is_direct, 1);
        add(&stats.base_bytes, 4096);
        add(&stats.huge_units, 512);
        stats.policy.set("auto");
        add(&stats.depths[Kind::Small as usize][bucket_of(999 * MIB)], 600_000);
    }

    #[test]
    fn the_table_says_what_to_ask_for() {
        let prediction = Prediction::new(&seen(a_loop), 8.0).unwrap();
        let program = ["./fold".to_owned(), "-n".to_owned()];
        let small = prediction.text(&program, Some(600 * MIB));
        assert!(small.contains("  this machine has 600 MiB in all: 400 MiB takes 3.4 x\n"), "{small}");
        assert!(small.contains("  hanare run --local 400M -- ./fold -n\n"), "{small}");
        let text = prediction.text(&program, Some(2000 * MIB));
        assert!(!text.contains("this machine"), "{text}");
        for part in [
            "       250 MiB      25 %     8.00 s     4.00 x   measured\n        300 MiB      30 %     7.60 s     3.80 x\n",
            "      1000 MiB     100 %     2.00 s     1.00 x\n",
            "  ask for 952 MiB: 1.2 x; 751 MiB: 2.0 x\n",
            "  hanare run --local 952M -- ./fold -n\n",
            "  Slurm: --mem=1056M",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("uncertain") && text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let json = serde_json::to_value(&prediction).unwrap();
        assert_eq!(json["rows"].as_array().unwrap().len(), 9);
        assert_eq!((&json["rows"][0]["measured"], &json["rows"][1]["measured"]), (&true.into(), &false.into()));
        assert_eq!(json["asks"][0]["local_bytes"], 952 * MIB);
    }

    /// The counts say that 250 MiB suffice. But the run was slow, because it had less than that for most of its time.
    #[test]
    fn what_was_measured_is_not_contradicted() {
        let prediction = Prediction::new(&seen(a_loop_that_had_less), 8.0).unwrap();
        let text = prediction.text(&["./fold".to_owned()], None);
        for part in [
            "       250 MiB      25 %     8.00 s     4.00 x   measured\n        300 MiB      30 %     2.00 s     1.00 x\n",
            "  prediction uncertain: measured 8.00 s, the model says 2.00 s at that size\n",
            "  ask for 300 MiB: 1.2 x\n  hanare run --local 300M -- ./fold\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("or less") && !text.contains("knee"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(serde_json::to_value(&prediction).unwrap()["predicted_s_at_budget"], 2.0);
    }

    fn a_loop_that_had_less(stats: &Stats) {
        a_loop(stats);
        stats.depths[Kind::Small as usize][bucket_of(999 * MIB)].store(0, std::sync::atomic::Ordering::Relaxed);
        add(&stats.depths[Kind::Small as usize][bucket_of(100 * MIB)], 600_000);
    }

    #[test]
    fn a_run_that_was_fast_enough_may_have_less() {
        let text = |swap_ns: u64| {
            let fill = |stats: &Stats| {
                a_loop(stats);
                stats.swap_ns.store(swap_ns, std::sync::atomic::Ordering::Relaxed);
            };
            Prediction::new(&seen(fill), 8.0).unwrap().text(&["./fold".to_owned()], None)
        };
        let fast = text(1_000_000_000);
        assert!(fast.contains("  8.00 s     1.14 x   measured\n"), "{fast}");
        assert!(fast.ends_with("  ask for 250 MiB or less: it took less than 1.2 x\n"), "{fast}");
        let slow = text(1_500_000_000);
        assert!(slow.contains("  8.00 s     1.23 x   measured\n") && !slow.contains("or less"), "{slow}");
    }

    #[test]
    fn the_command_to_type_has_no_character_that_a_terminal_obeys() {
        let text = Prediction::new(&seen(a_loop), 8.0).unwrap().text(&["./fo\u{1b}[31mld".to_owned()], None);
        assert!(text.contains("  hanare run --local 952M -- ./fo\\u{1b}[31mld\n"), "{text}");
    }

    #[test]
    fn a_run_that_shows_nothing_says_so_in_one_line() {
        let line = |fill: &dyn Fn(&Stats)| Prediction::new(&seen(fill), 1.0).unwrap_err();
        assert!(line(&|_| ()).starts_with("no fit: the program had no far memory."));
        let ample = line(&|stats| {
            add(&stats.processes, 1);
            add(&stats.budget_bytes, 3 * MIB);
        });
        assert!(ample.starts_with("no fit: the local memory of 3 MiB sufficed"), "{ample}");
        let few = line(&|stats| {
            a_loop(stats);
            stats.depths[Kind::Small as usize][bucket_of(999 * MIB)].store(7, std::sync::atomic::Ordering::Relaxed);
        });
        assert!(few.starts_with("no fit: only 7 pages came back") && !few.contains('\n'), "{few}");
    }
}
