//! Samples a run for its page and its JSON, and writes the page now and then while the program runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hanare::stats::Stats;
use hanare_settings::Settings;

use super::outputs::{Outputs, Report};
use crate::output::Output;
use crate::page::{Checkpoint, Record, Recorder, Samples, Setting};
use crate::report::Figures;
use crate::supervise::End;

/// A run that is about to start.
pub(super) struct Sampler {
    program: String,
    stats: Arc<Stats>,
    /// `None` if only the text is wanted, which needs the last counters alone.
    setting: Option<Setting>,
    /// The pages to write while the program runs.
    pages: Vec<Output>,
}

/// A run that is sampled.
pub(super) struct Sampling {
    run: Sampler,
    recorder: Option<Recorder>,
}

impl Sampler {
    /// Describes the run of `program`.
    pub(super) fn new(outputs: &Outputs, program: &str, settings: &Settings, stats: &Arc<Stats>) -> Self {
        let setting = || Setting::new(std::env::args_os(), &settings.servers, settings.redundancy.to_string());
        Sampler {
            program: program.to_owned(),
            stats: stats.clone(),
            setting: outputs.want_record().then(setting),
            pages: outputs.checkpoints(),
        }
    }

    /// Begins to sample the process `pid`, which started at `began`.
    pub(super) fn start(self, pid: u32, began: Instant) -> Sampling {
        let recorder = self.setting.clone().map(|setting| {
            let (program, stats, pages) = (self.program.clone(), self.stats.clone(), self.pages.clone());
            let write = move |samples: &Samples, elapsed| {
                let seen = stats.snapshot();
                let figures = Figures::new(program.clone(), &seen, None, elapsed);
                let page = Record::new(figures, setting.clone(), &seen, samples.clone()).page();
                for file in &pages {
                    // Ignored: the next checkpoint or the end may succeed, and a failure at the end is reported.
                    let _ = file.write(&page);
                }
            };
            let checkpoint = (!self.pages.is_empty()).then(|| -> Checkpoint { Box::new(write) });
            Recorder::start(self.stats.clone(), pid, began, checkpoint)
        });
        Sampling { run: self, recorder }
    }
}

impl Sampling {
    /// Ends the sampling of a run that ended as `end` says, `elapsed` after its start.
    pub(super) fn finish(self, end: &End, elapsed: Duration) -> Report {
        let samples = self.recorder.map_or_else(Samples::none, |recorder| recorder.finish(elapsed));
        let seen = self.run.stats.snapshot();
        let figures = Figures::new(self.run.program, &seen, Some(end), elapsed);
        match self.run.setting {
            Some(setting) => Report::Whole(Box::new(Record::new(figures, setting, &seen, samples))),
            None => Report::Figures(Box::new(figures)),
        }
    }
}
