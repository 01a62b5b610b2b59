//! Lets a process choose the descriptors of its connections to servers.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static KEEPER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Sets a function that receives the descriptor of every new connection, and returns the descriptor to use in its
/// place. `keeper` can protect connections from a program that closes descriptors it does not know. Only the first call
/// has an effect.
pub fn keep_descriptors_by(keeper: fn(OwnedFd) -> OwnedFd) {
    KEEPER.get_or_init(|| keeper);
}

/// Passes `fd` to the function set by [`keep_descriptors_by`], and returns the function's result. Returns `fd` if no
/// function is set.
pub(crate) fn kept(fd: OwnedFd) -> OwnedFd {
    match KEEPER.get() {
        Some(keeper) => keeper(fd),
        None => fd,
    }
}
