//! A client's description of itself in its HELLO, for the operators of a server.
//!
//! The server does not check the description. It only shows operators which client a session belongs to. A session's
//! rights come from its token.

use crate::error::Text;

/// Size of a program's or host's name on the wire, in bytes. Longer names are cut.
pub(crate) const NAME_BYTES: usize = 64;
/// Size of an [`Identity`] on the wire, in bytes.
pub const IDENTITY_BYTES: usize = 8 + 2 * NAME_BYTES;

/// A client process, as it describes itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The process ID on the client's host.
    pub pid: u32,
    /// The program's name, without directories.
    pub program: Text,
    /// The name of the client's host.
    pub host: Text,
}

impl Identity {
    /// Returns an identity with process ID 0 and empty names, for a client that does not describe itself.
    pub fn unknown() -> Identity {
        Identity { pid: 0, program: Text::new(""), host: Text::new("") }
    }

    /// Returns the identity of this process: its process ID, the last part of its executable's path, and the host's
    /// name.
    pub fn of_this_process() -> Identity {
        let program = std::env::current_exe().ok();
        let program = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
        Identity {
            pid: std::process::id(),
            program: name(program.as_deref().unwrap_or("").as_bytes()),
            host: name(rustix::system::uname().nodename().to_bytes()),
        }
    }

    /// Returns the identity's bytes on the wire: the process ID, four zero bytes, and two names padded with zeroes.
    pub fn encode(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        bytes[0..4].copy_from_slice(&self.pid.to_le_bytes());
        for (at, text) in [(8, &self.program), (8 + NAME_BYTES, &self.host)] {
            let text = name(text.as_str().as_bytes());
            bytes[at..at + text.as_str().len()].copy_from_slice(text.as_str().as_bytes());
        }
        bytes
    }

    /// Decodes an identity. Returns `None` for bytes that [`Identity::encode`] could not have made.
    pub fn decode(bytes: &[u8; IDENTITY_BYTES]) -> Option<Identity> {
        let text = |at: usize| name(bytes[at..at + NAME_BYTES].split(|byte| *byte == 0).next().unwrap_or(&[]));
        let pid = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let identity = Identity { pid, program: text(8), host: text(8 + NAME_BYTES) };
        (identity.encode() == *bytes).then_some(identity)
    }
}

/// Returns the longest valid UTF-8 prefix of a name, cut to [`NAME_BYTES`]. Replaces control characters by `?`.
fn name(raw: &[u8]) -> Text {
    let text = Text::from_peer(&raw[..raw.len().min(NAME_BYTES)]);
    debug_assert!(text.as_str().len() <= NAME_BYTES);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn this_process_has_a_name() {
        let this = Identity::of_this_process();
        assert_eq!(this.pid, std::process::id());
        assert!(this.program.as_str().starts_with("hanare_wire"), "{this:?}");
        assert_eq!(Identity::decode(&this.encode()), Some(this));
    }

    proptest! {
        #[test]
        fn names_go_there_and_back_as_far_as_they_fit(pid: u32, program in ".{0,90}", host in ".{0,90}") {
            let identity = Identity { pid, program: Text::new(&program), host: Text::new(&host) };
            let seen = Identity::decode(&identity.encode()).expect("our own bytes");
            prop_assert_eq!(seen.pid, pid);
            prop_assert!(seen.program.as_str().len() <= NAME_BYTES);
            prop_assert!(seen.program.as_str().chars().all(|c| !c.is_ascii_control()));
            prop_assert_eq!(Identity::decode(&seen.encode()), Some(seen));
        }

        #[test]
        fn any_bytes_are_an_identity_or_none(bytes in prop::collection::vec(any::<u8>(), IDENTITY_BYTES)) {
            let bytes: [u8; IDENTITY_BYTES] = bytes.try_into().expect("so many");
            if let Some(identity) = Identity::decode(&bytes) {
                prop_assert_eq!(identity.encode(), bytes);
            }
        }
    }
}
