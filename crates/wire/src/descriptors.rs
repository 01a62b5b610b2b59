//! Lets a process choose the descriptors of its connections to servers.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static KEEPER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Sets a function that receives the descriptor of every new connection, and returns the descriptor to use in its
/// place. Some programs close descriptors that they did not open. `keeper` can protect the connections from this. Only
/// the first call has an effect.
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
