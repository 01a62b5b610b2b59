//! The numbers of the descriptors that the client's connections use.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static KEEPER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Sets the function that replaces every descriptor of this process's later connections. The connection uses the
/// descriptor that `keeper` returns. So `keeper` can protect connections from a program that closes descriptors it does
/// not know. Only the first call has an effect.
pub fn keep_descriptors_by(keeper: fn(OwnedFd) -> OwnedFd) {
    KEEPER.get_or_init(|| keeper);
}

/// Passes `fd` to the function set by [`keep_descriptors_by`], if there is one. Returns the descriptor to use.
pub(crate) fn kept(fd: OwnedFd) -> OwnedFd {
    match KEEPER.get() {
        Some(keeper) => keeper(fd),
        None => fd,
    }
}
