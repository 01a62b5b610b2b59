//! The folder of a test, with the key of its servers. It is removed at the end. The next test removes the folder of one
//! that was killed.

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hanare_wire::Key;
use tempfile::TempDir;

use super::TortureError;
use crate::leftover::{TORTURE_PREFIX, locked, remove_ended};

/// A folder that only this user may enter. It is removed when this value is dropped.
pub(super) struct Folder {
    dir: TempDir,
    key: Key,
    #[expect(dead_code, reason = "held as long as the folder")]
    lock: Option<File>,
}

impl Folder {
    /// Makes the folder and a new key in it.
    pub(super) fn new() -> Result<Self, TortureError> {
        remove_ended(&std::env::temp_dir(), TORTURE_PREFIX);
        let prefix = format!("{TORTURE_PREFIX}{}-", std::process::id());
        let only_own = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().prefix(&prefix).permissions(only_own).tempdir();
        let dir = dir.map_err(TortureError::Folder)?;
        // If the lock cannot be taken, the process number in the name still shows that the folder is in use.
        let lock = locked(dir.path()).ok();
        Key::make_file(&key_in(dir.path()))?;
        let key = Key::from_file(&key_in(dir.path()))?;
        Ok(Self { dir, key, lock })
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    pub(super) fn key_file(&self) -> PathBuf {
        key_in(self.dir.path())
    }
}

fn key_in(dir: &Path) -> PathBuf {
    dir.join("key")
}
