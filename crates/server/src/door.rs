//! The door: a socket pair through which a same-host client opens further links without the path of the server's
//! socket.
//!
//! A client that enters another root or mount namespace, or gives up its rights, can no longer reach the path of the
//! server's socket. So the server sends one end of the pair, the outer end, to every same-host client. The client sends
//! one end of a new socket pair through the door. The server serves that end like an accepted connection.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

/// The server's end of the door.
pub(crate) struct Door {
    inner: OwnedFd,
}

impl Door {
    /// Makes a door. Returns its inner end as a [`Door`], and its outer end, which clients receive.
    pub(crate) fn new() -> Result<(Door, OwnedFd), Errno> {
        let (inner, outer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Door { inner }, outer))
    }

    /// Returns a connection that a client has sent through the door. If no connection is waiting, immediately returns
    /// an error of kind `WouldBlock`.
    pub(crate) fn accept(&self) -> io::Result<OwnedFd> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        recvmsg(&self.inner, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
        let mut files = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        });
        let file = files.by_ref().flatten().next();
        // `recvmsg` has removed the message from the queue, so a message without a file is reported only once.
        file.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidData, "a message without a socket came through the door")
        })
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}
