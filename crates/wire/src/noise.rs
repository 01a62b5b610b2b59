//! The handshake of a link with a key: `Noise_NNpsk0_25519_ChaChaPoly_SHA256`.
//!
//! Each side sends one message ([`crate::frame::Kind::Noise`]). Both prove that they hold the key, and agree on fresh keys for the
//! connection's [records](crate::records). The keys of earlier connections stay secret even if the key is lost later. The
//! payload of each message is one byte: the cipher that is fast for the client, then the cipher that the server chose.

use snow::{Builder, HandshakeState};

use crate::error::LinkError;
use crate::inbox::Inbox;
use crate::key::Key;
use crate::records::{Cipher, Opener, Sealer};
use crate::socket::Socket;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
/// Both sides mix this into the handshake. Sides with different texts do not understand each other.
const PROLOGUE: &[u8] = b"hanare link 2";
/// The input from which the key of the handshake is derived.
const DERIVATION: &[u8] = b"hanare handshake 2";

/// Length of each message, in bytes: a public key, the encrypted payload, and a tag.
pub const MESSAGE_BYTES: usize = 32 + 1 + 16;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer's message was made with another key, or was changed on its way.
    #[error("the other side does not hold the same key")]
    OtherKey,
    /// The peer holds the key, but its message makes no sense.
    #[error("the other side's handshake makes no sense")]
    Nonsense,
}

/// The two ends of an agreed link. They replace the plain ends.
#[derive(Debug)]
pub struct Ends {
    /// Encrypts what is sent.
    pub sealer: Sealer,
    /// Decrypts what is received.
    pub opener: Opener,
}

impl Ends {
    /// Encrypts what the socket sends and decrypts what the inbox receives from now on.
    ///
    /// # Errors
    /// The peer has sent bytes too early, or the link has a key already.
    pub fn take_over(self, socket: &Socket, inbox: &mut Inbox) -> Result<(), LinkError> {
        if inbox.waiting() > 0 || !socket.seal_with(self.sealer) {
            return Err(LinkError::Garbage { what: "bytes in the middle of a handshake" });
        }
        inbox.open_with(self.opener);
        Ok(())
    }
}

/// A client's handshake that waits for the server's message.
pub struct Waiting(HandshakeState);

/// Begins a client's handshake. Returns its message.
///
/// # Errors
/// The system gives no random numbers.
pub fn begin(key: &Key) -> Result<(Waiting, [u8; MESSAGE_BYTES]), LinkError> {
    let mut state = state(key, true).ok_or(NO_HANDSHAKE)?;
    let mut message = [0; MESSAGE_BYTES];
    match state.write_message(&[Cipher::fast_here() as u8], &mut message) {
        Ok(MESSAGE_BYTES) => Ok((Waiting(state), message)),
        _ => Err(NO_HANDSHAKE),
    }
}

impl Waiting {
    /// Ends the handshake with the server's message.
    ///
    /// # Errors
    /// The server does not hold the key, or its message makes no sense.
    pub fn finish(mut self, message: &[u8]) -> Result<Ends, HandshakeError> {
        let mut payload = [0; MESSAGE_BYTES];
        let length = self.0.read_message(message, &mut payload).map_err(|_| HandshakeError::OtherKey)?;
        let cipher = cipher_of(&payload[..length])?;
        let (ours, theirs) = self.0.dangerously_get_raw_split();
        Ok(Ends { sealer: Sealer::new(cipher, &ours), opener: Opener::new(cipher, &theirs) })
    }
}

/// Answers a client's message. Returns the ends of the link, and the server's message. The server must send it before it
/// [takes over](Ends::take_over).
///
/// # Errors
/// The client does not hold the key, or its message makes no sense.
pub fn answer(key: &Key, message: &[u8]) -> Result<(Ends, [u8; MESSAGE_BYTES]), HandshakeError> {
    let mut state = state(key, false).ok_or(HandshakeError::Nonsense)?;
    let mut payload = [0; MESSAGE_BYTES];
    let length = state.read_message(message, &mut payload).map_err(|_| HandshakeError::OtherKey)?;
    let both_have_aes = [cipher_of(&payload[..length])?, Cipher::fast_here()] == [Cipher::Aes256Gcm; 2];
    let cipher = if both_have_aes { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 };
    let mut answer = [0; MESSAGE_BYTES];
    match state.write_message(&[cipher as u8], &mut answer) {
        Ok(MESSAGE_BYTES) => {}
        _ => return Err(HandshakeError::Nonsense),
    }
    let (theirs, ours) = state.dangerously_get_raw_split();
    Ok((Ends { sealer: Sealer::new(cipher, &ours), opener: Opener::new(cipher, &theirs) }, answer))
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiting(..)")
    }
}

const NO_HANDSHAKE: LinkError = LinkError::Misuse { what: "the system gave no random numbers for a handshake" };

fn cipher_of(payload: &[u8]) -> Result<Cipher, HandshakeError> {
    match payload {
        [number] => Cipher::from_wire(*number).ok_or(HandshakeError::Nonsense),
        _ => Err(HandshakeError::Nonsense),
    }
}

fn state(key: &Key, is_client: bool) -> Option<HandshakeState> {
    let secret = key.derive(DERIVATION);
    let builder = Builder::new(PATTERN.parse().ok()?).prologue(PROLOGUE).ok()?.psk(0, &secret).ok()?;
    if is_client { builder.build_initiator().ok() } else { builder.build_responder().ok() }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::socket::Progress;

    fn key(last: u8) -> Key {
        Key::new(&[b"0123456789abcde".as_slice(), &[last]].concat()).expect("long enough")
    }

    #[test]
    fn both_sides_agree_and_understand_each_other() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let sockets = [near, far].map(|end| Socket::new(end.into(), None).expect("a socket"));
        let mut inboxes = [Inbox::default(), Inbox::default()];
        let (waiting, message) = begin(&key(1)).expect("begun");
        let (theirs, message) = answer(&key(1), &message).expect("the same key");
        let ours = waiting.finish(&message).expect("the same key");
        for (ends, (socket, inbox)) in [ours, theirs].into_iter().zip(sockets.iter().zip(&mut inboxes)) {
            ends.take_over(socket, inbox).expect("taken over");
        }
        for (from, to) in [(0, 1), (1, 0), (0, 1)] {
            let text = vec![from as u8; 70_000];
            let (sender, receiver, inbox) = (&sockets[from], &sockets[to], &mut inboxes[to]);
            let mut got = vec![9; text.len() + 1];
            std::thread::scope(|scope| {
                scope.spawn(|| sender.send_all(&[IoSlice::new(&text), IoSlice::new(b"!")]).expect("sent"));
                inbox.receive_all(receiver, &mut got, &mut Progress::of(receiver)).expect("received");
            });
            assert_eq!(got, [&text[..], b"!"].concat());
        }
    }

    #[test]
    fn another_key_and_a_changed_message_are_refused() {
        let (waiting, message) = begin(&key(1)).expect("begun");
        assert_eq!(answer(&key(2), &message).expect_err("another key"), HandshakeError::OtherKey);
        for bit in 0..message.len() * 8 {
            let mut changed = message;
            changed[bit / 8] ^= 1 << (bit % 8);
            // The highest bit of a public key means nothing (RFC 7748), but the handshake hashes it.
            assert!(answer(&key(1), &changed).is_err(), "bit {bit}");
        }
        assert!(answer(&key(1), &message[..48]).is_err());
        let (_, theirs) = answer(&key(1), &message).expect("the same key");
        let mut changed = theirs;
        changed[40] ^= 1;
        assert_eq!(waiting.finish(&changed).expect_err("changed"), HandshakeError::OtherKey);
    }

    #[test]
    fn no_two_handshakes_have_the_same_messages() {
        let [(_, first), (_, second)] = [begin(&key(1)), begin(&key(1))].map(|begun| begun.expect("begun"));
        assert_ne!(first, second);
        let [(_, first), (_, second)] = [answer(&key(1), &first), answer(&key(1), &first)].map(|a| a.expect("the key"));
        assert_ne!(first, second, "a repeated message is answered with a fresh one");
    }
}
