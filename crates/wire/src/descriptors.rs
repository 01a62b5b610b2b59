//! Where a client wants its ends of the links to be among its descriptors.

use std::os::fd::OwnedFd;
use std::sync::OnceLock;

static KEEPER: OnceLock<fn(OwnedFd) -> OwnedFd> = OnceLock::new();

/// Has every descriptor that a client's end of a link gets from now on handed to `keeper`, which may give another for it: a
/// program that closes what it does not know must not close links. The first call counts.
pub fn keep_descriptors_by(keeper: fn(OwnedFd) -> OwnedFd) {
    KEEPER.get_or_init(|| keeper);
}

/// The descriptor to be used for this one.
pub(crate) fn kept(fd: OwnedFd) -> OwnedFd {
    match KEEPER.get() {
        Some(keeper) => keeper(fd),
        None => fd,
    }
}
