//! The files for a run's figures. They are opened or checked before the program starts, so that a bad path wastes no run.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use crate::narrow;
use crate::output::{Output, OutputError};
use crate::page::Record;
use crate::report::Figures;
use crate::streams;

/// Room that the folder of a page must have before the run: that of a usual page.
const PAGE_ROOM: usize = 256 << 10;

/// The results of a run at its end.
pub(super) enum Report {
    /// The figures alone.
    Figures(Box<Figures>),
    /// The figures, and how they came about.
    Whole(Box<Record>),
}

impl Report {
    fn figures(&self) -> &Figures {
        match self {
            Report::Figures(figures) => figures,
            Report::Whole(record) => record.figures(),
        }
    }
}

/// A file that was opened before the run.
struct Opened {
    flag: &'static str,
    path: PathBuf,
    file: File,
}

impl Opened {
    /// Makes the file, or empties it. If it is stderr, it keeps what it has, and what is written follows that.
    fn create(flag: &'static str, path: &Path) -> Result<Self, OutputError> {
        let opened = match streams::is_stderr(path) {
            Ok(true) => io::stderr().as_fd().try_clone_to_owned().map(File::from),
            Ok(false) => File::create(path),
            Err(error) => Err(error),
        };
        let file = opened.map_err(|source| OutputError { flag, path: path.to_owned(), source })?;
        Ok(Opened { flag, path: path.to_owned(), file })
    }

    fn write(&mut self, text: &str) -> Result<(), OutputError> {
        self.file.write_all(text.as_bytes()).map_err(|source| self.failed(source))
    }

    fn failed(&self, source: io::Error) -> OutputError {
        OutputError { flag: self.flag, path: self.path.clone(), source }
    }
}

/// The places for the results of a run.
#[derive(Default)]
pub(super) struct Outputs {
    text_on_stderr: bool,
    texts: Vec<Opened>,
    pages: Vec<Output>,
    json: Option<Opened>,
}

impl Outputs {
    /// Opens the files. A report path of `-` means stderr. One that ends in `.html` is for the page. The JSON needs a file,
    /// because stdout belongs to the program. If one of them is refused for that, no other is changed.
    pub(super) fn open(reports: &[PathBuf], json: Option<&Path>) -> Result<Self, OutputError> {
        let mut outputs = Outputs::default();
        check_streams(reports, json)?;
        for path in reports {
            if path == Path::new("-") {
                outputs.text_on_stderr = true;
            } else if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html")) {
                let page = Output::beside_program("--report", path)?;
                page.check_room(PAGE_ROOM)?;
                outputs.pages.push(page);
            } else {
                outputs.texts.push(Opened::create("--report", path)?);
            }
        }
        outputs.json = json.map(|path| Opened::create("--stats-json", path)).transpose()?;
        Ok(outputs)
    }

    /// Whether any output needs more than the figures of the end.
    pub(super) fn want_record(&self) -> bool {
        self.json.is_some() || !self.pages.is_empty()
    }

    /// Returns the pages to write while the program runs. A pipe is written once, at the end.
    pub(super) fn checkpoints(&self) -> Vec<Output> {
        self.pages.iter().filter(|page| page.is_regular()).cloned().collect()
    }

    /// Writes the results to each place. Goes on after a failure, and returns the first one.
    pub(super) fn write(&mut self, report: &Report) -> Result<(), OutputError> {
        if self.text_on_stderr {
            let text = report.figures().text_within(narrow::width(&io::stderr()));
            // If stderr is closed, only the report is lost.
            let _ = io::stderr().write_all(text.as_bytes());
        }
        let mut results: Vec<Result<(), OutputError>> = Vec::new();
        results.extend(self.texts.iter_mut().map(|file| file.write(&report.figures().text())));
        if let Report::Whole(record) = report {
            if !self.pages.is_empty() {
                let page = record.page();
                results.extend(self.pages.iter().map(|file| file.write(&page)));
            }
            if let Some(file) = &mut self.json {
                let written = json(record).map_err(|error| file.failed(error.into()));
                results.push(written.and_then(|text| file.write(&text)));
            }
        }
        results.into_iter().collect()
    }
}

/// Refuses files that are the program's stdin or stdout.
fn check_streams(reports: &[PathBuf], json: Option<&Path>) -> Result<(), OutputError> {
    let reports = reports.iter().filter(|path| path.as_os_str() != "-").map(|path| ("--report", path.as_path()));
    for (flag, path) in reports.chain(json.map(|path| ("--stats-json", path))) {
        let checked = match path.as_os_str() == "-" {
            true => Err(io::Error::other("stdout belongs to the program; name a file, or ./- for one of this name")),
            false => streams::is_stderr(path),
        };
        checked.map_err(|source| OutputError { flag, path: path.to_owned(), source })?;
    }
    Ok(())
}

/// Returns the record as JSON: a line for each value, and each array on one line.
fn json(record: &Record) -> serde_json::Result<String> {
    let mut bytes = Vec::new();
    record.serialize(&mut Serializer::with_formatter(&mut bytes, Lines(PrettyFormatter::new())))?;
    bytes.push(b'\n');
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Breaks lines between the entries of objects, and not within arrays: the default for arrays is compact.
struct Lines(PrettyFormatter<'static>);

impl Formatter for Lines {
    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object(to)
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object(to)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.0.begin_object_key(to, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.begin_object_value(to)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.0.end_object_value(to)
    }
}
