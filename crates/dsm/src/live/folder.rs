//! The folder in which the ranks of one host meet. Only this user may own and enter it.
//!
//! A descriptor keeps the folder open, and the paths of its sockets go through that descriptor. So replacing the folder
//! later has no effect.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::coherence::Rank;

/// Permissions of the folder: only its owner may use it.
const MODE: u32 = 0o700;

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum FolderError {
    /// The folder could not be made or opened.
    #[error(
        "cannot make {path}, in which the ranks are to meet: {source}; check TMPDIR, XDG_RUNTIME_DIR or HANARE_MEET"
    )]
    Make {
        /// The folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The folder does not belong to this user alone.
    #[error(
        "ranks do not meet in {path}: it {what}; remove it or give it mode 0700, or set TMPDIR or HANARE_MEET to a \
             directory that only you can enter"
    )]
    Unsafe {
        /// The folder.
        path: PathBuf,
        /// The reason why the folder is unsafe.
        what: String,
    },
}

/// An open folder.
pub(super) struct Folder {
    dir: OwnedFd,
}

impl Folder {
    /// Makes the folder, or opens an existing one if it belongs to this user alone.
    pub(super) fn open(path: &Path) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Make { path: path.to_owned(), source };
        match std::fs::DirBuilder::new().mode(MODE).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            // The folder exists already: another rank or another user made it. The code below checks its owner.
            _ => {}
        }
        let refused = |what: String| Err(FolderError::Unsafe { path: path.to_owned(), what });
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let dir = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(dir) => dir,
            Err(Errno::NOTDIR | Errno::LOOP) => return refused("is a symbolic link, or no directory".to_owned()),
            Err(errno) => return Err(failed(errno.into())),
        };
        let stat = rustix::fs::fstat(&dir).map_err(|errno| failed(errno.into()))?;
        let (me, mode) = (rustix::process::geteuid().as_raw(), stat.st_mode & 0o7777);
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return refused("is no directory".to_owned());
        }
        if stat.st_uid != me {
            return refused(format!("belongs to user {}, and this is user {me}", stat.st_uid));
        }
        if mode & 0o777 != MODE {
            return refused(format!("has mode {mode:04o}, and only 0700 keeps others out"));
        }
        Ok(Self { dir })
    }

    /// Returns the path of a rank's socket. The path is valid while this folder is open.
    pub(super) fn socket_of(&self, rank: Rank) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{}", self.dir.as_raw_fd(), rank.0))
    }

    /// Connects to a rank without waiting. Fails if that rank's queue of connections is full.
    pub(super) fn connect(&self, rank: Rank) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&stream, &SocketAddrUnix::new(self.socket_of(rank))?)?;
        Ok(stream)
    }
}

/// Removes a rank's socket, if it is there.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
