//! Tells whether a result file is a standard stream of this command.
//!
//! The program has the same stdin and stdout. A result there would replace the program's output or its input, or mix with
//! it. So such a file is refused before the program starts.

use std::fs::Metadata;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::output::directory;

/// Number of symbolic links that are followed, as in Linux.
const LINKS_MAX: u32 = 40;
/// The device number of `/dev/null`.
const NULL: (u32, u32) = (1, 3);

/// Returns whether a path leads to stderr. Fails if it leads to stdin or stdout.
///
/// A file is recognised by its device and inode, whatever its name. Besides, `/dev/stdout` and the like are recognised by
/// name. The null device is no stream, because nothing can be lost there. A terminal may be all three, and counts as stderr
/// if it is.
pub(crate) fn is_stderr(path: &Path) -> io::Result<bool> {
    match descriptor_of(path) {
        Some(0) => return Err(owned("stdin")),
        Some(1) => return Err(owned("stdout")),
        Some(2) => return Ok(true),
        _ => {}
    }
    // Another check finds out why there is no such file, or makes it.
    let Ok(found) = path.metadata() else { return Ok(false) };
    if is_null(&found) {
        return Ok(false);
    }
    let is_device = found.file_type().is_char_device();
    let on_stderr = is_same(&found, io::stderr());
    if is_same(&found, io::stdout()) && !(is_device && on_stderr) {
        return Err(owned("stdout"));
    }
    if is_same(&found, io::stdin()) && !is_device {
        return Err(owned("stdin"));
    }
    Ok(on_stderr)
}

fn owned(stream: &str) -> io::Error {
    io::Error::other(format!("{stream} belongs to the program; name another file"))
}

fn is_null(found: &Metadata) -> bool {
    let device = found.rdev();
    found.file_type().is_char_device() && (rustix::fs::major(device), rustix::fs::minor(device)) == NULL
}

fn is_same(found: &Metadata, stream: impl AsFd) -> bool {
    rustix::fs::fstat(stream).is_ok_and(|stat| (stat.st_dev, stat.st_ino) == (found.dev(), found.ino()))
}

/// Returns the number of this process's descriptor that a path names, such as 1 for `/dev/stdout`. `None` if it names
/// none.
fn descriptor_of(path: &Path) -> Option<u32> {
    let own = Path::new("/proc").join(std::process::id().to_string());
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let folder = directory(&path).canonicalize().ok()?;
        // A thread has a folder of its own, with the same descriptors.
        if folder.starts_with(&own) && folder.ends_with("fd") {
            return path.file_name()?.to_str()?.parse().ok();
        }
        path = directory(&path).join(path.read_link().ok()?);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_descriptors_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/stdout", &link).unwrap();
        let looping = dir.path().join("loop");
        std::os::unix::fs::symlink("loop", &looping).unwrap();
        let (link, looping) = (link.to_str().unwrap(), looping.to_str().unwrap());
        let own = format!("/proc/{}/fd/1", std::process::id());
        for (path, number) in [
            ("/dev/stdin", Some(0)),
            ("/dev/stdout", Some(1)),
            ("/dev/stderr", Some(2)),
            ("/dev/fd/1", Some(1)),
            ("/dev/fd/33", Some(33)),
            ("/proc/self/fd/1", Some(1)),
            ("/proc/thread-self/fd/1", Some(1)),
            (&own, Some(1)),
            (link, Some(1)),
            (looping, None),
            ("/dev/null", None),
            ("/proc/self/status", None),
            ("/no/such/folder/1", None),
            ("1", None),
            ("", None),
        ] {
            assert_eq!(descriptor_of(Path::new(path)), number, "{path}");
        }
    }

    #[test]
    fn the_null_device_and_missing_files_are_no_streams() {
        for path in ["/dev/null", "/no/such/file", "/etc/passwd"] {
            assert!(!is_stderr(Path::new(path)).unwrap(), "{path}");
        }
        assert!(is_stderr(Path::new("/dev/stderr")).unwrap());
        let refused = is_stderr(Path::new("/dev/fd/1")).unwrap_err().to_string();
        assert_eq!(refused, "stdout belongs to the program; name another file");
    }
}
