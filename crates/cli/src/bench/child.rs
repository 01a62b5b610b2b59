//! The process of one measured run. It fills a region of far memory, reaches the steady state, times the pattern, and
//! checks every word. `hanare bench paging` starts it, with its settings in the environment. The help does not show it.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use hanare::counters::Snapshot;
use hanare::far::{self, StartError};
use hanare_settings::{Settings, SettingsError};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::pattern::{Pattern, Walk};
use super::words::{Mismatch, Words};

/// Maximum number of passes over all pages before the timed part. The timed part then begins even without a steady
/// state.
const PASSES_MAX: u32 = 4;

/// The kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Access {
    /// Reads and checks a word.
    R,
    /// Reads and checks a word and writes a new one.
    Rw,
}

impl Access {
    pub(super) fn name(self) -> &'static str {
        match self {
            Access::R => "r",
            Access::Rw => "rw",
        }
    }
}

/// One measured run.
#[derive(Debug, Args)]
pub(super) struct ChildArgs {
    #[arg(long)]
    pub(super) pattern: Pattern,
    #[arg(long)]
    pub(super) access: Access,
    #[arg(long)]
    pub(super) pages: u64,
    #[arg(long)]
    pub(super) stride_pages: u64,
    #[arg(long)]
    pub(super) touches: u64,
    /// Pause between two random accesses, in microseconds.
    #[arg(long, default_value_t = 0)]
    pub(super) pause_us: u64,
    /// Print a line when the timed part can begin, and begin it when a line arrives on standard input.
    #[arg(long)]
    pub(super) on_word: bool,
}

/// Why a run was not measured.
#[derive(Debug, Error)]
pub(crate) enum ChildError {
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// Far memory could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The region does not fit into far memory.
    #[error("{0} pages of 4 KiB do not fit into the far reservation; give a smaller --size or a larger HANARE_RESERVE")]
    Exhausted(u64),
    /// Far memory holds wrong bytes.
    #[error("{0}")]
    Mismatch(#[from] Mismatch),
    /// The kernel did not accept the request to kill this process when its starter ends.
    #[error("cannot bind this process to the one that measures: {0}; run 'hanare bench paging'")]
    Starter(rustix::io::Errno),
    /// The starter sent no line.
    #[error("nobody said when to begin: {0}; run 'hanare bench servers'")]
    Word(std::io::Error),
    /// The figures could not be printed.
    #[error("cannot print the figures: {0}; run 'hanare bench paging'")]
    Tell(#[from] serde_json::Error),
}

/// The figures of a run. Its starter receives them as one line of JSON. Counters cover the timed part only, except for
/// the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) seconds: f64,
    pub(super) touches: u64,
    /// Percentiles 50, 90 and 99 of the times of accesses that faulted, in microseconds, as the program sees them.
    /// `None` if the pattern is not random.
    pub(super) fault_us: Option<[f64; 3]>,
    /// Percentiles 50, 90 and 99 of the times of faults, in microseconds, as the pager sees them: from the trap to its
    /// end.
    pub(super) handler_us: Option<[f64; 3]>,
    pub(super) faults: u64,
    pub(super) faults_first_write: u64,
    pub(super) bytes_in: u64,
    pub(super) bytes_out: u64,
    pub(super) local_bytes_peak: u64,
    /// The trap mode: 1 thread, 2 sigbus, 3 sigsegv.
    pub(super) mode: u64,
    pub(super) policy: String,
    pub(super) prefetch: String,
    pub(super) words_verified: u64,
}

/// Measures one run and prints its figures on stdout.
pub(super) fn child(args: &ChildArgs) -> Result<u8, ChildError> {
    // If the starter is killed, the memory server ends too. Then nothing is left to measure, so this process is killed.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(ChildError::Starter)?;
    far::start(&Settings::from_env()?)?;
    let mut words = Words::new(args.pages).ok_or(ChildError::Exhausted(args.pages))?;
    let walk = Walk {
        pattern: args.pattern,
        pages: args.pages,
        stride_pages: args.stride_pages,
        random_touches: args.touches,
    };
    let rewrite = args.access == Access::Rw;
    reach_steady_state(&mut words, rewrite)?;
    walk.warming().try_for_each(|page| words.access(page, rewrite))?;
    if args.on_word {
        println!("ready");
        let mut word = String::new();
        std::io::stdin().read_line(&mut word).map_err(ChildError::Word)?;
    }
    let mut run = timed(&walk, &mut words, rewrite, Duration::from_micros(args.pause_us))?;
    words.verify()?;
    run.words_verified = words.count();
    println!("{}", serde_json::to_string(&run)?);
    Ok(0)
}

/// Accesses all pages, pass by pass, until the steady state. Without rewriting, this takes one pass: afterwards evicted
/// pages are clean, and the server holds them. With rewriting, the steady state is a pass in which the bytes written
/// back are at least 90 % of the bytes fetched. Then nearly every page is dirty when it is evicted.
fn reach_steady_state(words: &mut Words, rewrite: bool) -> Result<(), Mismatch> {
    for pass in 1..=PASSES_MAX {
        let before = snapshot();
        (0..words.pages()).try_for_each(|page| words.access(page, rewrite))?;
        let after = snapshot();
        let (came, went) = (after.bytes_in - before.bytes_in, after.bytes_out - before.bytes_out);
        if !rewrite || (pass > 1 && went >= came / 10 * 9) {
            break;
        }
    }
    Ok(())
}

fn snapshot() -> Snapshot {
    far::snapshot().expect("far memory was started, and this is no forked child")
}

fn timed(walk: &Walk, words: &mut Words, rewrite: bool, pause: Duration) -> Result<Run, Mismatch> {
    let each = walk.pattern == Pattern::Rand;
    let mut touches_ns = Vec::with_capacity(if each { walk.random_touches as usize } else { 0 });
    let mut touches = 0;
    let before = snapshot();
    let began = Instant::now();
    if each {
        let mut last = began;
        for page in walk.timed() {
            words.access(page, rewrite)?;
            let now = Instant::now();
            touches_ns.push((now - last).as_nanos().min(u128::from(u32::MAX)) as u32);
            last = now;
            if !pause.is_zero() {
                std::thread::sleep(pause);
                last = Instant::now();
            }
        }
        touches = touches_ns.len() as u64;
    } else {
        for page in walk.timed() {
            words.access(page, rewrite)?;
            touches += 1;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    let after = snapshot();
    let mut run = figures(&before, after);
    (run.seconds, run.touches) = (seconds, touches);
    run.fault_us = slowest_us(touches_ns, run.faults);
    Ok(run)
}

/// Returns the differences between the counters before and after the timed part.
fn figures(before: &Snapshot, after: Snapshot) -> Run {
    let arrivals = |seen: &Snapshot| {
        seen.faults_read + seen.faults_write + seen.faults_zero + seen.faults_rescued + seen.faults_waited
    };
    let mut part = after.clone();
    for (count, earlier) in part.fault_hist.iter_mut().zip(before.fault_hist) {
        *count -= earlier;
    }
    let timed = part.faults_timed() > 0;
    Run {
        seconds: 0.0,
        touches: 0,
        fault_us: None,
        handler_us: timed.then(|| [0.5, 0.9, 0.99].map(|p| part.percentile(p) as f64 / 1e3)),
        faults: arrivals(&after) - arrivals(before),
        faults_first_write: after.faults_first_write - before.faults_first_write,
        bytes_in: after.bytes_in - before.bytes_in,
        bytes_out: after.bytes_out - before.bytes_out,
        local_bytes_peak: after.local_bytes_peak,
        mode: after.mode,
        policy: after.policy,
        prefetch: after.prefetch,
        words_verified: 0,
    }
}

/// Returns percentiles 50, 90 and 99 of the times of the accesses that faulted, in microseconds. An access that faults
/// is slower than one that does not. So the `faults` slowest accesses are those that faulted.
fn slowest_us(mut touches_ns: Vec<u32>, faults: u64) -> Option<[f64; 3]> {
    touches_ns.sort_unstable();
    let first = touches_ns.len() - touches_ns.len().min(faults as usize);
    let faulted = &touches_ns[first..];
    let at = |p: f64| faulted.get((faulted.len() as f64 * p) as usize).map(|ns| f64::from(*ns) / 1e3);
    Some([at(0.5)?, at(0.9)?, at(0.99)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_slowest_touches() {
        let mut touches: Vec<u32> = vec![100; 1000];
        touches.extend((1..=100).map(|us| us * 1000));
        assert_eq!(slowest_us(touches.clone(), 100), Some([51.0, 91.0, 100.0]));
        assert_eq!(slowest_us(touches.clone(), 10), Some([96.0, 100.0, 100.0]));
        assert_eq!(slowest_us(touches.clone(), 0), None);
        assert!(slowest_us(touches, 5000).is_some());
        assert_eq!(slowest_us(vec![], 5), None);
    }
}
