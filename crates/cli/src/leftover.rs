//! Removes the folders in TMPDIR that killed commands left behind. The next command of the same user does this.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use hanare_store::private::{DIR_PREFIX, SOCKET};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::Pid;

/// Beginning of the name of a launcher's folder. The process number follows.
pub(crate) const LAUNCH_PREFIX: &str = "hanare-launch-";
/// Beginning of the name of the folder of `hanare torture`. The process number follows.
pub(crate) const TORTURE_PREFIX: &str = "hanare-torture-";
/// Age after which a private server's folder counts as left over, if no server listens in it.
pub(crate) const AGE: Duration = Duration::from_secs(60);

/// Removes folders, whose names begin with `prefix`, of commands that have ended. A folder's lock shows that a command in
/// another PID namespace still runs.
pub(crate) fn remove_ended(tmp: &Path, prefix: &str) {
    each_own_folder(tmp, prefix, |rest, folder| {
        let number = rest.split('-').next().unwrap_or_default();
        let Some(pid) = number.parse().ok().and_then(Pid::from_raw) else { return };
        let is_gone = rustix::process::test_kill_process(pid) == Err(Errno::SRCH);
        // The lock is released when the file is closed, after the folder was removed.
        if is_gone && let Ok(_lock) = locked(folder) {
            let _ = std::fs::remove_dir_all(folder);
        }
    });
}

/// Takes the lock that marks a folder as in use. The lock lasts until the file is closed.
pub(crate) fn locked(folder: &Path) -> std::io::Result<File> {
    let file = File::open(folder)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Removes folders of private servers that have ended: empty folders, and folders whose socket refuses connections.
pub(crate) fn remove_private(tmp: &Path, age: Duration) {
    each_own_folder(tmp, DIR_PREFIX, |rest, folder| {
        let changed = std::fs::symlink_metadata(folder).and_then(|meta| meta.modified());
        let is_old = changed.is_ok_and(|time| time.elapsed().is_ok_and(|past| past >= age));
        if rest.len() != 16 || !rest.bytes().all(|byte| byte.is_ascii_hexdigit()) || !is_old {
            return;
        }
        let socket = folder.join(SOCKET);
        if refuses(&socket) {
            let _ = std::fs::remove_file(&socket);
        }
        // Ignored: this fails if the folder holds any other file.
        let _ = std::fs::remove_dir(folder);
    });
}

/// Calls `visit` with each folder that only this user may enter and whose name begins with `prefix`. A folder that
/// cannot be examined is left alone.
fn each_own_folder(tmp: &Path, prefix: &str, mut visit: impl FnMut(&str, &Path)) {
    let Ok(entries) = std::fs::read_dir(tmp) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(prefix)) else { continue };
        let own = rustix::process::geteuid().as_raw();
        let is_own = |meta: std::fs::Metadata| meta.is_dir() && meta.uid() == own && meta.mode() & 0o7777 == 0o700;
        if std::fs::symlink_metadata(entry.path()).is_ok_and(is_own) {
            visit(rest, &entry.path());
        }
    }
}

/// Returns whether `path` is a socket on which nobody listens. Never waits.
fn refuses(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let Ok(fd) = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None) else { return false };
    // For a file that is no socket, connect(2) fails with ECONNREFUSED as well.
    let is_socket =
        std::fs::symlink_metadata(path).is_ok_and(|meta| std::os::unix::fs::FileTypeExt::is_socket(&meta.file_type()));
    is_socket && rustix::net::connect(&fd, &address) == Err(Errno::CONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_folders_of_what_is_gone_are_removed() {
        let tmp = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let path = tmp.path().join(name);
            std::fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
            path
        };
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let gone = child.id();
        let removed = [
            make(&format!("hanare-launch-{gone}")),
            make(&format!("hanare-launch-{gone}-1")),
            make("hanare-0123456789abcdef"),
            make("hanare-0123456789abcde1"),
        ];
        std::fs::write(removed[0].join("ended"), "0\n").unwrap();
        drop(UnixListener::bind(removed[3].join(SOCKET)).unwrap());
        let kept = [
            make(&format!("hanare-launch-{}", std::process::id())),
            make(&format!("hanare-launch-{gone}-2")),
            make(&format!("hanare-launch-{gone}-3")),
            make("hanare-launch-x"),
            make("hanare-0123456789abcde2"),
            make("hanare-0123456789abcde3"),
            make("hanare-0123456789abcde4"),
            make("hanare-mine"),
        ];
        let _lock = locked(&kept[1]).unwrap();
        std::fs::set_permissions(&kept[2], std::fs::Permissions::from_mode(0o755)).unwrap();
        let _served = UnixListener::bind(kept[4].join(SOCKET)).unwrap();
        std::fs::write(kept[5].join(SOCKET), "precious").unwrap();
        std::fs::write(kept[6].join("other"), "precious").unwrap();
        remove_private(tmp.path(), AGE);
        assert!(removed[2].exists(), "a server may just have made it");
        remove_ended(tmp.path(), LAUNCH_PREFIX);
        remove_private(tmp.path(), Duration::ZERO);
        assert!(removed.iter().all(|path| !path.exists()), "{removed:?}");
        assert!(kept.iter().all(|path| path.exists()), "{kept:?}");
        assert!(kept[5].join(SOCKET).exists());
    }
}
