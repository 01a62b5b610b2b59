//! The result files of a simulation. Each is checked before the simulation, and is written whole or not at all.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::SimulateError;

/// A result file.
#[derive(Debug)]
pub(super) struct Output {
    flag: &'static str,
    path: PathBuf,
}

impl Output {
    /// Checks that the file can be written. Does not change it.
    pub(super) fn new(flag: &'static str, path: &Path) -> Result<Self, SimulateError> {
        let output = Self { flag, path: path.to_owned() };
        let checked = match path.metadata() {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(_) => OpenOptions::new().append(true).open(path).map(drop),
            Err(error) if error.kind() == io::ErrorKind::NotFound => check_directory(&output.directory()),
            Err(error) => Err(error),
        };
        checked.map_err(|source| output.error(source))?;
        Ok(output)
    }

    /// Writes the text to a temporary file and then renames that file, so that an interruption leaves no partial file.
    /// A path that is no regular file, such as a pipe, is written directly.
    pub(super) fn write(&self, text: &str) -> Result<(), SimulateError> {
        // If the path is a symbolic link, its target is replaced and the link stays.
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let written = if path.metadata().is_ok_and(|found| !found.is_file()) {
            File::options().write(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()))
        } else {
            replace(&path, text)
        };
        written.map_err(|source| self.error(source))
    }

    fn directory(&self) -> PathBuf {
        directory(&self.path)
    }

    fn error(&self, source: io::Error) -> SimulateError {
        SimulateError::Write { flag: self.flag, path: self.path.clone(), source }
    }
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn check_directory(path: &Path) -> io::Result<()> {
    if !path.metadata()?.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    Ok(access(path, Access::WRITE_OK)?)
}

fn replace(path: &Path, text: &str) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    // A new file gets the permissions that the umask allows. A replaced file keeps its permissions.
    let mode = path.metadata().map_or(0o666, |found| found.permissions().mode() & 0o777);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".hanare-").permissions(std::fs::Permissions::from_mode(mode));
    let mut file = builder.tempfile_in(directory(path))?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
