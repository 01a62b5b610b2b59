//! The optional pre-shared key. Client and server prove to each other that they hold the key, without sending the key.

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

    fn mac(&self, role: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC takes keys of any length, so this constructor cannot fail.
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes a key of any length");
        mac.update(role);
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// Returns a proof that the caller holds the key: the HMAC-SHA256 of `role` and all `parts`. The length of each
    /// part is hashed before the part.
    pub fn prove(&self, role: &[u8], parts: &[&[u8]]) -> [u8; 32] {
        self.mac(role, parts).finalize().into_bytes().into()
    }

    /// Checks a proof that [`Key::prove`] made from the same `role` and `parts`. The comparison takes the same time for
    /// every wrong proof.
    pub fn verify(&self, role: &[u8], parts: &[&[u8]], proof: &[u8; 32]) -> bool {
        self.mac(role, parts).verify_slice(proof).is_ok()
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
    fn a_proof_holds_for_its_key_role_and_parts_only() {
        let key = Key::new(b"0123456789abcdef").expect("long enough");
        let other = Key::new(b"0123456789abcdeF").expect("long enough");
        let proof = key.prove(b"client", &[b"ab", b"c"]);
        assert!(key.verify(b"client", &[b"ab", b"c"], &proof));
        assert!(!other.verify(b"client", &[b"ab", b"c"], &proof));
        assert!(!key.verify(b"server", &[b"ab", b"c"], &proof));
        assert!(!key.verify(b"client", &[b"a", b"bc"], &proof), "the parts' borders are part of the proof");
    }

    #[test]
    fn a_key_file_loses_its_line_end_and_short_keys_are_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("key");
        std::fs::write(&path, b"0123456789abcdef\r\n").expect("write");
        let proof = Key::from_file(&path).expect("key").prove(b"r", &[]);
        assert!(Key::new(b"0123456789abcdef").expect("key").verify(b"r", &[], &proof));
        std::fs::write(&path, b"short\n").expect("write");
        assert!(matches!(Key::from_file(&path), Err(KeyError::Length { length: 5 })));
        assert!(matches!(Key::from_file(&dir.path().join("none")), Err(KeyError::Unreadable { .. })));
    }
}
