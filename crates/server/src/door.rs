//! The door: a socket pair through which the holder of a same-host link opens further links, without the server's path.
//!
//! A process may enter another root or mount namespace, or give up its rights, and then no longer reach the server's
//! path. So every same-host client receives the door's client end. The client sends one end of a new socket pair
//! through the door, and the server serves that end like an accepted connection.

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
    /// Makes a door. Returns the door and its client end.
    pub(crate) fn new() -> Result<(Door, OwnedFd), Errno> {
        let (inner, outer) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Door { inner }, outer))
    }

    /// Returns a connection that a client has sent through the door. Fails with `WouldBlock` if none has arrived.
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
        // If the message carried no file, the message is lost, and the caller gets an error.
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
