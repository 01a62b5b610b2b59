//! Samples a run's counters while its program runs, in a thread of the command.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hanare::stats::Stats;
use serde::Serialize;

use super::heat::Heat;
use super::processes::Processes;
use super::python::{Lines, Watch};
use super::timeline::{Sample, Timeline};
use super::waited::{Gatherer, Waited};

/// Time from the start to the first checkpoint.
const CHECKPOINT_FIRST: Duration = Duration::from_secs(1);
/// Time between two checkpoints.
const CHECKPOINT: Duration = Duration::from_secs(10);
/// Least time between two looks at the processes.
const LOOK: Duration = Duration::from_secs(1);

/// The samples up to now.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Samples {
    pub(crate) timeline: Timeline,
    #[serde(flatten)]
    pub(crate) processes: Processes,
    #[serde(rename = "faults_by_address")]
    pub(crate) heat: Heat,
    #[serde(flatten)]
    pub(crate) waited: Waited,
    #[serde(flatten)]
    pub(crate) python: Lines,
}

/// Called at each checkpoint, with the samples so far and the time since the start.
pub(crate) type Checkpoint = Box<dyn FnMut(&Samples, Duration) + Send>;

/// The sampling of a run.
pub(crate) struct Recorder {
    stats: Arc<Stats>,
    stop: Sender<()>,
    /// `None` if there could be no thread. The samples are then those of the start and the end.
    thread: Option<JoinHandle<(Samples, Gatherer)>>,
}

impl Recorder {
    /// Begins to sample the run of the process `pid`, which started at `began`.
    pub(crate) fn start(stats: Arc<Stats>, pid: u32, began: Instant, checkpoint: Option<Checkpoint>) -> Self {
        let (stop, stopped) = mpsc::channel();
        let of_thread = stats.clone();
        let work = move || sample(&of_thread, pid, began, &stopped, checkpoint);
        let thread = std::thread::Builder::new().name("hanare-samples".to_owned()).spawn(work).ok();
        Recorder { stats, stop, thread }
    }

    /// Ends the sampling, `elapsed` after the start. Returns the samples with that of the end.
    pub(crate) fn finish(self, elapsed: Duration) -> Samples {
        drop(self.stop);
        let sampled = self.thread.and_then(|thread| thread.join().ok());
        let (mut samples, gatherer) = sampled.unwrap_or_else(|| (Samples::none(), Gatherer::new()));
        samples.heat.push(elapsed.as_secs_f64(), &self.stats.profile_cells());
        samples.waited = gatherer.finish(&self.stats);
        samples.timeline.finish(Sample::read(&self.stats, elapsed));
        samples
    }
}

impl Samples {
    /// Returns the samples of a run that has just begun.
    pub(crate) fn none() -> Self {
        Samples {
            timeline: Timeline::new(),
            processes: Processes::default(),
            heat: Heat::default(),
            waited: Waited::default(),
            python: Lines::default(),
        }
    }
}

/// Samples until the other end of `stopped` is closed.
fn sample(
    stats: &Arc<Stats>,
    pid: u32,
    began: Instant,
    stopped: &Receiver<()>,
    mut checkpoint: Option<Checkpoint>,
) -> (Samples, Gatherer) {
    let (mut samples, mut gatherer) = (Samples::none(), Gatherer::new());
    let python = Watch::start(stats.clone());
    let waited_s = || stats.swap_ns.load(Relaxed) as f64 / 1e9;
    let (mut look_at, mut checkpoint_at) = (began, began + CHECKPOINT_FIRST);
    let mut sample_at = began + samples.timeline.interval();
    loop {
        let wake_at = if checkpoint.is_some() { sample_at.min(checkpoint_at) } else { sample_at };
        match stopped.recv_timeout(wake_at.saturating_duration_since(Instant::now())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => {
                samples.python = python.finish(waited_s());
                return (samples, gatherer);
            }
        }
        let now = Instant::now();
        let elapsed = now.saturating_duration_since(began);
        if now >= sample_at {
            samples.timeline.push(Sample::read(stats, elapsed));
            samples.heat.push(elapsed.as_secs_f64(), &stats.profile_cells());
            gatherer.look(stats);
            let interval = samples.timeline.interval();
            // Samples that this thread could not take in time are left out.
            sample_at = if sample_at + interval > now { sample_at + interval } else { now + interval };
        }
        if now >= look_at {
            samples.processes.look(pid, elapsed.as_millis() as f64 / 1e3);
            look_at = now + LOOK;
        }
        if let Some(checkpoint) = &mut checkpoint
            && now >= checkpoint_at
        {
            samples.waited = gatherer.so_far(stats);
            samples.python = python.so_far(waited_s());
            checkpoint(&samples, elapsed);
            checkpoint_at = now + CHECKPOINT;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare::counters::add;

    #[test]
    fn a_run_is_sampled_until_its_end() {
        let stats = Arc::new(Stats::create().unwrap().1);
        let began = Instant::now();
        let recorder = Recorder::start(stats.clone(), std::process::id(), began, None);
        while began.elapsed() < Duration::from_millis(450) {
            add(&stats.pages_in, 1);
            std::thread::sleep(Duration::from_millis(1));
        }
        let samples = recorder.finish(began.elapsed());
        let intervals = samples.timeline.intervals(100);
        assert!((2..=6).contains(&intervals.len()), "{intervals:?}");
        assert_eq!(intervals.last().unwrap().to.pages_in, stats.pages_in.load(Relaxed));
        assert!(intervals.iter().all(|it| it.growth(|to| to.pages_in) > 0), "{intervals:?}");
        assert_eq!(samples.processes.seen[0].pid, std::process::id());
    }
}
