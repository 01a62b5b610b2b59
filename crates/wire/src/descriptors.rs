//! The descriptor numbers of the client's connections.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static KEEPER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Sets a function that receives the descriptor of every new connection, and returns the descriptor to use in its
/// place. `keeper` can protect connections from a program that closes descriptors it does not know. Only the first call
/// has an effect.
pub fn keep_descriptors_by(keeper: fn(OwnedFd) -> OwnedFd) {
    KEEPER.get_or_init(|| keeper);
}

/// Passes `fd` to the keeper, if there is one, and returns the descriptor to use.
pub(crate) fn kept(fd: OwnedFd) -> OwnedFd {
    match KEEPER.get() {
        Some(keeper) => keeper(fd),
        None => fd,
    }
}
