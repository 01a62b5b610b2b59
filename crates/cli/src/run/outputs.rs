//! The files for a run's figures. They are opened before the program starts, so that a bad path wastes no run.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::report::Figures;

/// A file for figures could not be written.
#[derive(Debug, Error)]
#[error("cannot write {path}: {source}; check {flag}", path = path.display())]
pub(crate) struct OutputsError {
    flag: &'static str,
    path: PathBuf,
    source: io::Error,
}

struct Output {
    flag: &'static str,
    path: PathBuf,
    file: File,
}

impl Output {
    fn create(flag: &'static str, path: &Path) -> Result<Self, OutputsError> {
        let file = File::create(path).map_err(|source| OutputsError { flag, path: path.to_owned(), source })?;
        Ok(Output { flag, path: path.to_owned(), file })
    }

    fn write(&mut self, text: &str) -> Result<(), OutputsError> {
        self.file.write_all(text.as_bytes()).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> OutputsError {
        OutputsError { flag: self.flag, path: self.path.clone(), source }
    }
}

/// The open output files.
pub(crate) struct Outputs {
    report_on_stderr: bool,
    report: Option<Output>,
    json: Option<Output>,
}

impl Outputs {
    /// Opens the files. A report path of `-` means stderr.
    pub(crate) fn open(report: Option<&Path>, json: Option<&Path>) -> Result<Self, OutputsError> {
        let report_on_stderr = report == Some(Path::new("-"));
        let report = report.filter(|_| !report_on_stderr);
        Ok(Outputs {
            report_on_stderr,
            report: report.map(|path| Output::create("--report", path)).transpose()?,
            json: json.map(|path| Output::create("--stats-json", path)).transpose()?,
        })
    }

    /// Writes the figures to each file.
    pub(crate) fn write(&mut self, figures: &Figures) -> Result<(), OutputsError> {
        if self.report_on_stderr {
            // If stderr is closed, only the report is lost.
            let _ = io::stderr().write_all(figures.text().as_bytes());
        }
        if let Some(report) = &mut self.report {
            report.write(&figures.text())?;
        }
        if let Some(json) = &mut self.json {
            let text = serde_json::to_string_pretty(figures).map_err(|error| json.failed(error.into()))?;
            json.write(&format!("{text}\n"))?;
        }
        Ok(())
    }
}
