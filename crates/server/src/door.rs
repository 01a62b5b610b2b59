//! The door: a socket pair by which who has a same-host link gets further ones, without the server's path.
//!
//! A process that has entered another root or mount namespace, or given up its rights, cannot reach the path any more. The
//! door's outer end goes to every same-host client. A client sends one end of a new socket pair through it, which the
//! server then serves like a connection that it accepted.

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};

/// The server's end.
pub(crate) struct Door {
    inner: OwnedFd,
}

impl Door {
    /// A door, and its outer end.
    pub(crate) fn new() -> Result<(Door, OwnedFd), Errno> {
        let (inner, outer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Door { inner }, outer))
    }

    /// A connection that somebody has sent, without waiting.
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
        // The message is taken either way.
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
