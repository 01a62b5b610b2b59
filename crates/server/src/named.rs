//! A listening socket with a path in the file system. An existing file at that path is replaced only if it is a stale
//! socket, on which nobody listens.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Largest length in bytes of an AF_UNIX socket's path. The address also needs a final zero byte.
const PATH_MAX: usize = 107;
/// Number of connections that may wait to be accepted. The system may allow fewer.
const QUEUE_MAX: i32 = 128;

/// A listening AF_UNIX socket. Dropping it removes the file at `path`, if that file is still this socket.
pub(crate) struct Named {
    pub(crate) listener: UnixListener,
    pub(crate) path: PathBuf,
    /// Device and inode number of the socket's file. `None` if they could not be read.
    identity: Option<(u64, u64)>,
}

impl Named {
    /// Listens on `path` with a socket that only this user may use. Replaces a stale socket at `path`, on which no
    /// process listens.
    pub(crate) fn listen(path: &Path) -> io::Result<Named> {
        let length = path.as_os_str().len();
        if length > PATH_MAX {
            let text = format!("the path has {length} bytes, and a socket's may have {PATH_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let listener = match bind(path) {
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path, e)?;
                bind(path)?
            }
            other => other?,
        };
        let identity = std::fs::symlink_metadata(path).ok().filter(is_socket).map(|meta| identity(&meta));
        Ok(Named { listener, path: path.to_owned(), identity })
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let there = std::fs::symlink_metadata(&self.path).ok();
        if there.is_some_and(|meta| is_socket(&meta) && Some(identity(&meta)) == self.identity) {
            // An error is harmless: the next server that listens on this path replaces the stale socket.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Listens on `path`. The kernel gives the new file the rights of the socket, so at no time can others connect.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, QUEUE_MAX)?;
    Ok(socket.into())
}

/// Removes the socket at `path` if nobody listens on it. Otherwise leaves the file in place, and returns `in_use` or a
/// more exact error.
fn remove_stale(path: &Path, in_use: io::Error) -> io::Result<()> {
    let meta = std::fs::symlink_metadata(path)?;
    if !is_socket(&meta) {
        let what = kind(&meta);
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{what} of that name is there")));
    }
    // The kernel refuses a connection to a socket on which no process listens.
    let is_stale = UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    // Another server may have replaced the stale socket since `meta` was read.
    let is_same = std::fs::symlink_metadata(path).is_ok_and(|now| identity(&now) == identity(&meta));
    if is_stale && is_same { std::fs::remove_file(path) } else { Err(in_use) }
}

fn is_socket(meta: &Metadata) -> bool {
    meta.file_type().is_socket()
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    match () {
        () if kind.is_file() => "a file",
        () if kind.is_dir() => "a directory",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO",
        () => "a device",
    }
}
