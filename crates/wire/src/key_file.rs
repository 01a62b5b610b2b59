//! Files with keys. Only their owner may be able to use them.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::handshake::random;
use crate::key::{Key, KeyError};
use crate::limits::KEY_MAX;

/// The permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
/// The longest key file, in bytes: the longest key and some line ends.
const FILE_BYTES_MAX: u64 = KEY_MAX as u64 + 64;

impl Key {
    /// Reads a key from a file. Line ends at the end of the file are not part of the key.
    ///
    /// # Errors
    /// The file cannot be read, or is not a regular file. It belongs to another user than this one and root, or other
    /// users can read or change it. Or its key is too short or too long.
    pub fn from_file(path: &Path) -> Result<Key, KeyError> {
        let shown = || path.display().to_string();
        let unreadable = |source| KeyError::Unreadable { path: shown(), source };
        // A pipe would keep this process waiting for a writer. So the file is opened without waiting.
        let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::options().read(true).custom_flags(flags.bits() as i32).open(path).map_err(unreadable)?;
        let meta = file.metadata().map_err(unreadable)?;
        if !meta.is_file() {
            return Err(KeyError::NotRegular { path: shown() });
        }
        let owner = meta.uid();
        if owner != 0 && owner != rustix::process::geteuid().as_raw() {
            return Err(KeyError::Foreign { path: shown(), owner });
        }
        if meta.mode() & OTHERS != 0 {
            return Err(KeyError::Exposed { path: shown(), mode: meta.mode() & 0o777 });
        }
        if meta.len() > FILE_BYTES_MAX {
            return Err(KeyError::Length { length: meta.len() as usize });
        }
        let mut text = Vec::with_capacity(FILE_BYTES_MAX as usize);
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(unreadable)?;
        let length = text.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |last| last + 1);
        let key = Key::new(&text[..length]);
        text.fill(0);
        key
    }

    /// Makes a file with a new random key: 32 bytes as hexadecimal text, which only the owner of the file can read.
    ///
    /// # Errors
    /// The file exists already or cannot be written, or the system gives no random bytes.
    pub fn make_file(path: &Path) -> Result<(), KeyError> {
        let bytes = random::<32>().map_err(KeyError::Random)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).chain(["\n".to_owned()]).collect();
        let failed = |source| KeyError::NotMade { path: path.display().to_string(), source };
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| {
            // A part of a key is useless. If the file cannot be removed either, the first error says more.
            let _: io::Result<()> = std::fs::remove_file(path);
            failed(source)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Writes a file that only its owner can read.
    fn file(path: &Path, text: &[u8]) {
        std::fs::write(path, text).expect("write");
        chmod(path, 0o600);
    }

    fn chmod(path: &Path, mode: u32) {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn a_key_file_loses_its_line_end_and_short_keys_are_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("key");
        file(&path, b"0123456789abcdef\r\n");
        assert_eq!(Key::from_file(&path).expect("key").bytes(), b"0123456789abcdef");
        file(&path, b"short\n");
        assert!(matches!(Key::from_file(&path), Err(KeyError::Length { length: 5 })));
        file(&path, &[7; 5000]);
        assert!(matches!(Key::from_file(&path), Err(KeyError::Length { length: 5000 })));
        assert!(matches!(Key::from_file(&dir.path().join("none")), Err(KeyError::Unreadable { .. })));
    }

    #[test]
    fn a_file_that_others_can_use_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("key");
        file(&path, b"0123456789abcdef");
        for mode in [0o604, 0o640, 0o620, 0o602, 0o644, 0o660, 0o666, 0o610] {
            chmod(&path, mode);
            let error = Key::from_file(&path).expect_err("others can use it").to_string();
            let remedy = format!("chmod 600 {}", path.display());
            assert!(error.contains(&remedy) && error.contains(&format!("{mode:03o}")), "{error}");
        }
        for mode in [0o600, 0o400, 0o700] {
            chmod(&path, mode);
            assert!(Key::from_file(&path).is_ok(), "{mode:o}");
        }
        // Only root can give a file away.
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&path, Some(65_534), None).expect("root gives it away");
            assert!(matches!(Key::from_file(&path), Err(KeyError::Foreign { owner: 65_534, .. })));
        }
    }

    /// Reading a pipe would wait for a writer, for ever.
    #[test]
    fn what_is_not_a_regular_file_is_refused_at_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        for path in [path.as_path(), dir.path(), Path::new("/dev/zero")] {
            let error = Key::from_file(path).expect_err("no regular file");
            assert!(matches!(error, KeyError::NotRegular { .. }), "{error}");
        }
    }

    #[test]
    fn a_new_key_file_opens_for_its_owner_only_and_is_never_replaced() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (one, two) = (dir.path().join("one"), dir.path().join("two"));
        for path in [&one, &two] {
            Key::make_file(path).expect("a new file");
            assert_eq!(path.metadata().expect("a file").mode() & 0o777, 0o600);
            let text = std::fs::read(path).expect("text");
            assert_eq!(Key::from_file(path).expect("a key").bytes(), &text[..64]);
        }
        let text = std::fs::read_to_string(&one).expect("text");
        assert!(text.len() == 65 && text.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
        assert_ne!(text, std::fs::read_to_string(&two).expect("text"));
        assert!(matches!(Key::make_file(&one), Err(KeyError::NotMade { .. })));
        assert_eq!(text, std::fs::read_to_string(&one).expect("text"), "the old key is still there");
    }
}
