//! Finds `libhanare_preload.so`, the part of Hanare that is loaded into the program.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// The library's file name.
const NAME: &str = "libhanare_preload.so";

/// Why the library cannot be used.
#[derive(Debug, Error)]
pub(crate) enum LibraryError {
    /// The library is in none of the searched places.
    #[error("{NAME} is not found ({places}); reinstall hanare or set HANARE_LIB to the library")]
    NotFound {
        /// The places searched.
        places: String,
    },
    /// The kernel does not tell where this command lies.
    #[error(
        "{NAME} is not found: the place of the command is unknown ({0}); mount /proc, or set HANARE_LIB to the library"
    )]
    Nowhere(std::io::Error),
    /// HANARE_LIB names a file that is not the library. With that file, the program would run without far memory.
    #[error("HANARE_LIB: {} is not {NAME}; set it to that library or its directory, or leave it unset", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The library's path contains a character that separates entries of LD_PRELOAD.
    #[error("{path} cannot be preloaded: LD_PRELOAD takes no path with a blank or a colon; install hanare elsewhere",
        path = path.display())]
    Unusable {
        /// The library.
        path: PathBuf,
    },
}

/// Finds the library. `HANARE_LIB` names it or its directory. Without that variable, it lies beside the command, in
/// `../lib` or in `../lib/hanare`.
pub(crate) fn find() -> Result<PathBuf, LibraryError> {
    let given = std::env::var_os("HANARE_LIB");
    let path = match (std::env::current_exe(), &given) {
        (Err(error), None) => return Err(LibraryError::Nowhere(error)),
        (exe, _) => search(given.as_deref(), exe.ok().as_deref())?,
    };
    if given.is_some() && !is_ours(&path) {
        return Err(LibraryError::Foreign { path });
    }
    let breaks = |byte: &u8| *byte == b':' || byte.is_ascii_whitespace();
    if path.as_os_str().as_bytes().iter().any(breaks) {
        return Err(LibraryError::Unusable { path });
    }
    Ok(path)
}

/// Whether a file is a shared library that reads Hanare's variables.
fn is_ours(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap_or_default();
    let name = b"HANARE_STATS_FD";
    bytes.starts_with(b"\x7fELF") && bytes.windows(name.len()).any(|window| window == name)
}

fn search(given: Option<&OsStr>, exe: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let beside = exe.and_then(Path::parent);
    let lib = beside.and_then(Path::parent).map(|prefix| prefix.join("lib"));
    let places: Vec<PathBuf> = match (given, beside, lib) {
        (Some(given), _, _) => vec![given.into(), Path::new(given).join(NAME)],
        (None, Some(beside), Some(lib)) => vec![beside.join(NAME), lib.join(NAME), lib.join("hanare").join(NAME)],
        (None, _, _) => Vec::new(),
    };
    // The path must be absolute, because the program may change its directory before it starts another program.
    let found = places.iter().find(|path| path.is_file()).and_then(|path| path.canonicalize().ok());
    found.ok_or_else(|| LibraryError::NotFound {
        places: places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", "),
    })
}

/// Returns the value of `LD_PRELOAD` with `library` before its present entries.
pub(crate) fn preload_value(library: &Path, existing: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(":");
        value.push(existing);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_found_in_each_place_and_where_it_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let exe = root.join("bin/hanare");
        for place in ["lib/hanare", "lib", "bin"] {
            std::fs::create_dir_all(root.join(place)).unwrap();
            std::fs::write(root.join(place).join(NAME), "").unwrap();
            assert_eq!(search(None, Some(&exe)).unwrap(), root.join(place).join(NAME));
        }
        let other = root.join("other.so");
        std::fs::write(&other, "").unwrap();
        assert_eq!(search(Some(other.as_os_str()), Some(&exe)).unwrap(), other);
        assert_eq!(search(Some(root.join("lib").as_os_str()), None).unwrap(), root.join("lib").join(NAME));
        let missing = search(Some(OsStr::new("/nonexistent")), Some(&exe)).unwrap_err().to_string();
        assert!(missing.contains("/nonexistent") && missing.contains("HANARE_LIB"), "{missing}");
    }

    #[test]
    fn an_existing_preload_is_kept_behind_ours() {
        let ours = Path::new("/l.so");
        assert_eq!(preload_value(ours, None), "/l.so");
        assert_eq!(preload_value(ours, Some("".into())), "/l.so");
        assert_eq!(preload_value(ours, Some("/a.so:/b.so".into())), "/l.so:/a.so:/b.so");
    }
}
