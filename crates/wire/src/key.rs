//! The optional pre-shared key. Client and server prove to each other that they hold it ([`crate::noise`]), and never
//! send it.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::error::LinkError;
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
    /// The file is a pipe, a device or a directory.
    #[error("the key file {path} is not a regular file; copy the key to one, then chmod 600 it")]
    NotRegular {
        /// The path of the key file.
        path: String,
    },
    /// Other users can read or change the file.
    #[error("the key file {path} has mode {mode:03o}, so other users can use the key; run: chmod 600 {path}")]
    Exposed {
        /// The path of the key file.
        path: String,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file belongs to another user, who is not root.
    #[error(
        "the key file {path} belongs to user {owner}, who can change it; copy it to a file of yours, then chmod 600 it"
    )]
    Foreign {
        /// The path of the key file.
        path: String,
        /// The number of the user.
        owner: u32,
    },
    /// A new key file could not be made.
    #[error("cannot make the key file {path}: {source}; name a file that does not exist yet, in a folder of yours")]
    NotMade {
        /// The path of the key file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// There are no random bytes for a new key.
    #[error("cannot make a key: {0}")]
    Random(LinkError),
    /// The key is too short or too long.
    #[error(
        "a key of {length} bytes is not accepted; use {KEY_MIN} to {KEY_MAX} bytes, or make one: hanare key new FILE"
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

    /// Returns the key's bytes.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
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
}
