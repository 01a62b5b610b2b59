//! The log file of a memory server (`hanare serve --log FILE`).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use hanare_server::Log;

use crate::message::{one_line, say};

/// Opens a file to which lines are appended, each with its time (UTC). A line that cannot be written appears on stderr.
pub(crate) fn open(path: &Path) -> io::Result<Log> {
    let file = File::options().append(true).create(true).open(path)?;
    Ok(Arc::new(move |line| {
        let line = one_line(line);
        let stamped = format!("{} {line}\n", humantime::format_rfc3339_seconds(SystemTime::now()));
        // One write for each line, so that lines of several threads do not mix.
        if let Err(error) = (&file).write_all(stamped.as_bytes()) {
            say(&format!("cannot write the log: {error}; the line is: {line}"));
        }
    }))
}
