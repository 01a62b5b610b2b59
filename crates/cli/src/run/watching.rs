//! Shows a run to people and to monitoring systems while it goes on.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use clap::Args;
use hanare::stats::Stats;

use super::progress::Progress;
use crate::metrics::{Address, Listening, MetricsError, RunFigures, Serving};

/// The flags for watching a run.
#[derive(Debug, Args)]
pub(crate) struct WatchingArgs {
    /// Serve the figures of the run to a monitoring system at http://127.0.0.1:PORT/metrics, until the run
    /// ends. Port 0 is any free port. Only this machine can reach it.
    #[arg(long, value_name = "PORT")]
    metrics: Option<Address>,
    /// Say on the terminal what the run does: one line on standard error, rewritten every two seconds. Nothing if
    /// standard error is no terminal.
    #[arg(long)]
    progress: bool,
}

/// Everything that must be ready before the program starts.
pub(super) struct Prepared {
    metrics: Option<Listening>,
    progress: bool,
}

/// The threads beside the program. Dropping this value ends it.
pub(super) struct Watching {
    _metrics: Option<Serving>,
    _progress: Option<Progress>,
}

impl WatchingArgs {
    /// Listens on the address, so that one in use fails before the program starts.
    pub(super) fn prepare(&self) -> Result<Prepared, MetricsError> {
        let metrics = self.metrics.as_ref().map(Listening::on).transpose()?;
        Ok(Prepared { metrics, progress: self.progress })
    }
}

impl Prepared {
    /// Starts to show the counters of the run.
    pub(super) fn start(self, program: &OsStr, stats: &Arc<Stats>) -> Result<Watching, MetricsError> {
        let name = Path::new(program).file_name().unwrap_or(program).to_string_lossy().into_owned();
        let figures = RunFigures { stats: Arc::clone(stats), program: name };
        Ok(Watching {
            _metrics: self.metrics.map(|metrics| metrics.serve(figures)).transpose()?,
            _progress: if self.progress { Progress::start(Arc::clone(stats)) } else { None },
        })
    }
}
