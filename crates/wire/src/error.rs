//! The errors of a link. Each message says what the user can do.

use std::io;

use crate::limits::TEXT_MAX;

/// A short text that is stored in the value itself, not on the heap. So making an error on the fault path allocates
/// nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text {
    length: u8,
    bytes: [u8; TEXT_MAX],
}

impl Text {
    /// Makes a text from `text`, cut at a character boundary to at most [`TEXT_MAX`] bytes.
    pub fn new(text: &str) -> Text {
        let mut length = text.len().min(TEXT_MAX);
        while !text.is_char_boundary(length) {
            length -= 1;
        }
        let mut bytes = [0; TEXT_MAX];
        bytes[..length].copy_from_slice(&text.as_bytes()[..length]);
        Text { length: length as u8, bytes }
    }

    /// Makes a text from the longest valid UTF-8 prefix of a peer's bytes. Replaces each byte of a control character by
    /// `?`.
    pub fn from_peer(raw: &[u8]) -> Text {
        let raw = &raw[..raw.len().min(TEXT_MAX)];
        let valid = match std::str::from_utf8(raw) {
            Ok(text) => text,
            Err(e) => std::str::from_utf8(&raw[..e.valid_up_to()]).unwrap_or(""),
        };
        let mut text = Text::new(valid);
        // Control characters outside ASCII are replaced too, because terminals act on some of them.
        for (at, control) in valid.char_indices().filter(|(_, c)| c.is_control()) {
            text.bytes[at..at + control.len_utf8()].fill(b'?');
        }
        text
    }

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or("")
    }
}

impl std::fmt::Display for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// Why a server answered ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// The server does not hold the whole range. The session never wrote part of it, or wrote that part to another
    /// server.
    NotHeld = 1,
    /// The server's memory and its spill file are full.
    Full = 2,
    /// The range is unaligned, empty, too long or beyond 64 bits.
    BadRange = 3,
    /// The frame was invalid. The server closes the connection.
    BadFrame = 4,
    /// The payload did not match its checksum. The server closes the connection.
    Checksum = 5,
    /// The spill file could not be read or written.
    Spill = 6,
    /// The connection's role does not allow this frame. The server closes the connection.
    NotAllowed = 7,
    /// This session has used up its quota. The server may have free space.
    OverQuota = 8,
}

impl ErrorCode {
    /// Returns the error with this number on the wire, or `None` if this version does not know the number.
    pub fn from_wire(code: u32) -> Option<ErrorCode> {
        use ErrorCode::*;
        [NotHeld, Full, BadRange, BadFrame, Checksum, Spill, NotAllowed, OverQuota]
            .into_iter()
            .find(|known| *known as u32 == code)
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ErrorCode::NotHeld => "it does not hold the page",
            ErrorCode::Full => "it is full",
            ErrorCode::BadRange => "the range is not allowed",
            ErrorCode::BadFrame => "it could not understand a frame",
            ErrorCode::Checksum => "a payload arrived damaged",
            ErrorCode::Spill => "its spill file failed",
            ErrorCode::NotAllowed => "the request does not belong on this connection",
            ErrorCode::OverQuota => "this client's quota is used up",
        })
    }
}

/// The reasons why a link failed. Making a variant that can occur on the fault path allocates nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No connection could be made.
    #[error(
        "cannot reach the memory server {endpoint}: {source}; check the address and that `hanare serve` runs there"
    )]
    Unreachable {
        /// The address as the user gave it.
        endpoint: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server refused the connection, or the client did not accept the server.
    #[error("the memory server refused the session: {reason}")]
    Refused {
        /// The reason that the server or this client gives. It says what the user can do.
        reason: String,
    },
    /// The client has no key, and does not trust the server's user.
    #[error("the memory server is not used: {reason}; give both sides --key FILE, or use another port or socket")]
    Foreign {
        /// Whose the server is, as far as it is known.
        reason: String,
    },
    /// The server refused the connection for a reason that passes.
    #[error("the memory server refused the session: {reason}")]
    Busy {
        /// The server's reason. It says what the user can do.
        reason: String,
    },
    /// A session was to be joined again, and the server at its address is not the one that began it.
    #[error(
        "another memory server answers at this address; the pages are gone with the first one, so start the run again"
    )]
    AnotherServer,
    /// The two sides speak different versions of the wire protocol.
    #[error(
        "the memory server speaks wire version {theirs}, this side version {ours}; run the same hanare release on both"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
        /// This side's version.
        ours: u16,
    },
    /// The peer sent bytes that break the protocol.
    #[error(
        "the memory server sent garbage ({what}); check that the address is a hanare server's and the network sound"
    )]
    Garbage {
        /// What was wrong with the bytes.
        what: &'static str,
    },
    /// The peer neither sent nor accepted a byte for too long during a transfer.
    #[error("the memory server has been silent for {seconds} s; check that it still runs and the network to it")]
    Silent {
        /// How long this side waited, in seconds.
        seconds: u32,
    },
    /// The peer closed the connection or died.
    #[error("the memory server closed the connection: it, or its machine, has ended")]
    Closed,
    /// TCP gave the connection up, because the peer's host acknowledged nothing for too long. A peer that is stopped, or
    /// whose network is cut, shows so.
    #[error(
        "the memory server's host has acknowledged nothing for too long; check that the server still runs and the network to it"
    )]
    TimedOut,
    /// The server has no memory and no spill space left.
    #[error("the memory server is full; give it more --memory or a --spill directory, or name a further server")]
    Full,
    /// The quota of this client is used up.
    #[error(
        "this client's quota at the memory server is used up; give the server a larger --client-quota, or name a further one"
    )]
    OverQuota,
    /// The server answered a request with an error.
    #[error("the memory server cannot serve request {tag}: {code} ({text}); look at its log")]
    Server {
        /// The request's tag.
        tag: u64,
        /// The error's code.
        code: ErrorCode,
        /// The server's text.
        text: Text,
    },
    /// The caller broke a rule of the called function. Nothing was sent.
    #[error("a request was not sent: {what}; this is a bug of the caller")]
    Misuse {
        /// The rule that the caller broke.
        what: &'static str,
    },
    /// A call of the operating system failed.
    #[error("{what} failed: {source}; free what the system ran out of and try again")]
    Io {
        /// The call that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

impl LinkError {
    pub(crate) fn io(what: &'static str, errno: rustix::io::Errno) -> LinkError {
        use rustix::io::Errno;
        match errno {
            Errno::CONNRESET | Errno::PIPE | Errno::NOTCONN | Errno::CONNABORTED => LinkError::Closed,
            // An expired TCP_USER_TIMEOUT, or probes that nobody answered.
            Errno::TIMEDOUT => LinkError::TimedOut,
            _ => LinkError::Io { what, source: errno.into() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LinkError;
    use rustix::io::Errno;

    /// A stopped server has not closed anything.
    #[test]
    fn a_peer_that_acknowledges_nothing_is_not_called_closed() {
        let words = LinkError::io("sending", Errno::TIMEDOUT).to_string();
        assert!(words.contains("acknowledged nothing") && !words.contains("closed"), "{words}");
        assert!(matches!(LinkError::io("sending", Errno::CONNRESET), LinkError::Closed));
    }
}
