//! The optional pre-shared key. Client and server prove to each other that they hold it ([`crate::noise`]), and never
//! send it.

use std::fmt;
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::limits::{KEY_MAX, KEY_MIN};

/// A pre-shared secret. It is never printed.
#[derive(Clone)]
pub struct Key(Box<[u8]>);

/// The reasons why a key was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file could not be read.
    #[error("cannot read the key file {path}: {source}; check --key")]
    Unreadable {
        /// The path of the key file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The key is too short or too long.
    #[error(
        "a key of {length} bytes is not accepted; use {KEY_MIN} to {KEY_MAX} bytes, as from `head -c 32 /dev/urandom`"
    )]
    Length {
        /// The key's length, in bytes.
        length: usize,
    },
}

impl Key {
    /// Makes a key from its bytes.
    pub fn new(secret: &[u8]) -> Result<Key, KeyError> {
        match secret.len() {
            KEY_MIN..=KEY_MAX => Ok(Key(secret.into())),
            length => Err(KeyError::Length { length }),
        }
    }

    /// Reads a key from a file. Line ends at the end of the file are not part of the key.
    pub fn from_file(path: &Path) -> Result<Key, KeyError> {
        let text =
            std::fs::read(path).map_err(|source| KeyError::Unreadable { path: path.display().to_string(), source })?;
        let length = text.iter().rposition(|b| !matches!(b, b'\n' | b'\r')).map_or(0, |last| last + 1);
        Key::new(&text[..length])
    }

    /// Returns a secret of 32 bytes for one purpose: the HMAC-SHA256 of the purpose's name.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        // HMAC takes keys of any length, so this constructor cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(purpose);
        mac.finalize().into_bytes().into()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_by_key_and_purpose() {
        let key = Key::new(b"0123456789abcdef").expect("long enough");
        let other = Key::new(b"0123456789abcdeF").expect("long enough");
        assert_eq!(key.derive(b"links"), key.derive(b"links"));
        assert_ne!(key.derive(b"links"), key.derive(b"files"));
        assert_ne!(key.derive(b"links"), other.derive(b"links"));
    }

    #[test]
    fn a_key_file_loses_its_line_end_and_short_keys_are_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789abcdef\r\n").expect("write");
        let secret = Key::from_file(&path).expect("key").derive(b"links");
        assert_eq!(Key::new(b"0123456789abcdef").expect("key").derive(b"links"), secret);
        std::fs::write(&path, b"short\n").expect("write");
        assert!(matches!(Key::from_file(&path), Err(KeyError::Length { length: 5 })));
        assert!(matches!(Key::from_file(&dir.path().join("none")), Err(KeyError::Unreadable { .. })));
    }
}
