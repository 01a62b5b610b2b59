//! A result file that is written whole or not at all. It is checked before the work whose result it is to hold.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use thiserror::Error;

use crate::streams;

/// A result file cannot be written.
#[derive(Debug, Error)]
#[error("cannot write {path}: {source}; check {flag}", path = path.display())]
pub(crate) struct OutputError {
    /// The flag that named the file.
    pub(crate) flag: &'static str,
    /// The file.
    pub(crate) path: PathBuf,
    /// The system's error.
    pub(crate) source: io::Error,
}

/// A result file.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    flag: &'static str,
    path: PathBuf,
}

impl Output {
    /// Checks that the file can be written. Does not change it.
    pub(crate) fn new(flag: &'static str, path: &Path) -> Result<Self, OutputError> {
        let output = Self { flag, path: path.to_owned() };
        let checked = match path.metadata() {
            Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
            Ok(found) if found.is_file() => OpenOptions::new().append(true).open(path).map(drop),
            // To open and close a named pipe would end its reader.
            Ok(_) => access(path, Access::WRITE_OK).map_err(io::Error::from),
            Err(error) if error.kind() == io::ErrorKind::NotFound => check_directory(&output.directory()),
            Err(error) => Err(error),
        };
        checked.map_err(|source| output.error(source))?;
        Ok(output)
    }

    /// As [`Output::new`], for a run with a program. Refuses the program's stdin and stdout. Refuses stderr if that is a
    /// regular file: to replace it would lose its lines.
    pub(crate) fn beside_program(flag: &'static str, path: &Path) -> Result<Self, OutputError> {
        let failed = |source| OutputError { flag, path: path.to_owned(), source };
        if streams::is_stderr(path).map_err(failed)? && path.metadata().is_ok_and(|found| found.is_file()) {
            return Err(failed(io::Error::other("stderr goes there, and its lines would be lost; name another file")));
        }
        Self::new(flag, path)
    }

    /// Checks that the folder has room for a file of `bytes` bytes. Writes a temporary file and removes it.
    pub(crate) fn check_room(&self, bytes: usize) -> Result<(), OutputError> {
        if !self.is_regular() {
            return Ok(());
        }
        let tried = tempfile::Builder::new().prefix(".hanare-").tempfile_in(directory(&self.target()));
        tried.and_then(|mut file| file.write_all(&vec![b' '; bytes])).map_err(|source| self.error(source))
    }

    /// Whether the file is a regular one, or is to become one. Others, such as pipes, cannot be replaced.
    pub(crate) fn is_regular(&self) -> bool {
        self.target().metadata().map_or(true, |found| found.is_file())
    }

    /// Writes the text to a temporary file and then renames that file, so that an interruption leaves no partial file.
    /// A path that is no regular file, such as a pipe, is written directly.
    pub(crate) fn write(&self, text: &str) -> Result<(), OutputError> {
        let path = self.target();
        let written = if self.is_regular() {
            replace(&path, text)
        } else {
            File::options().write(true).open(&path).and_then(|mut file| file.write_all(text.as_bytes()))
        };
        written.map_err(|source| self.error(source))
    }

    /// Returns the file that is written. If the path is a symbolic link, its target is replaced and the link stays.
    fn target(&self) -> PathBuf {
        self.path.canonicalize().unwrap_or_else(|_| self.path.clone())
    }

    fn directory(&self) -> PathBuf {
        directory(&self.path)
    }

    fn error(&self, source: io::Error) -> OutputError {
        OutputError { flag: self.flag, path: self.path.clone(), source }
    }
}

/// Returns the folder that a path is in.
pub(crate) fn directory(path: &Path) -> PathBuf {
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
