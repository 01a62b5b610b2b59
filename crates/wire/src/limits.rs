//! The limits of the wire protocol. Assertions at compile time check that the limits agree with each other.

use std::time::Duration;

/// Unit of ranges, in bytes. The offset and the length of each range are multiples of this unit. It is smaller than a
/// page, because a server may hold only a part of each page.
pub const RANGE_UNIT: u32 = 512;
/// The longest range of one READ or WRITE, in bytes.
pub const RANGE_MAX: u32 = 4 << 20;
/// The longest range of one DISCARD, in bytes.
pub const DISCARD_MAX: u32 = 1 << 30;
/// The smallest slot a session may ask for, in bytes.
pub const SLOT_MIN: u32 = 4096;
/// The largest slot a session may ask for, in bytes.
pub const SLOT_MAX: u32 = 2 << 20;
/// The longest text of an ERROR frame, in bytes.
pub const TEXT_MAX: usize = 80;
/// The longest reason of a REFUSED frame, in bytes.
pub const REASON_MAX: usize = 512;
/// The longest payload of a frame that carries neither a page nor a text, in bytes.
pub const CONTROL_MAX: usize = 4096;
/// The longest payload of a message between ranks of shared memory, in bytes.
pub const BETWEEN_RANKS_MAX: usize = 1 << 20;
/// The largest number of parts from which [`crate::Writer::write`] assembles a page.
pub const PARTS_MAX: usize = 256;
/// The largest number of pieces into which [`crate::ReadReplies::receive_pieces`] receives at once.
pub const PIECES_MAX: usize = 64;
/// The shortest key accepted, in bytes.
pub const KEY_MIN: usize = 16;
/// The longest key accepted, in bytes.
pub const KEY_MAX: usize = 4096;
/// The largest number of runs in one GRANT or RETURN.
pub const GRANT_RUNS_MAX: usize = 256;
/// Size of an [`crate::inbox::Inbox`], in bytes. A batch of headers with small pages fits into it.
pub const INBOX_BYTES: usize = 64 << 10;
/// The largest page that is copied through a buffer (the client's inbox, the server's send buffer), in bytes. For a
/// larger page, a separate system call costs less than the copy.
pub const SMALL_PAGE: usize = 16 << 10;
/// The maximum number of bytes that an inbox receives in one system call after a page larger than [`SMALL_PAGE`]. The
/// number is small, because the bytes of a large page must be copied once more if they arrive in the inbox.
pub const INBOX_RECEIVE_BYTES: usize = 8192;
/// Size of a socket's send buffer and of its receive buffer, in bytes.
pub const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// The same size for TCP over loopback. The bytes in these buffers pass through the caches of both CPUs, and smaller
/// buffers stay in them. Loopback has no delay that larger buffers would bridge.
pub const LOOPBACK_BUFFER_BYTES: usize = 1 << 20;
/// Time without a byte of progress after which a peer counts as silent.
pub const SILENT_DEFAULT: Duration = Duration::from_secs(3);
/// Time without a byte of progress after which a server on this host counts as silent. If such a server dies, the
/// kernel closes its connection. So a server with an open connection is alive, and only lacks CPU time or memory to
/// answer. Waiting for this server is better than losing the program's pages.
pub const SILENT_SAME_HOST: Duration = Duration::from_secs(30);
/// The maximum time for connecting to a server. The handshake after it may take the same time again, and on a loaded
/// machine up to four times as long. A client of the same-host link uses [`SILENT_SAME_HOST`] instead, and so does a server
/// for each client of its AF_UNIX socket.
pub const CONNECT_DEFAULT: Duration = Duration::from_secs(5);
/// The longest time for which a thread polls for further bytes in the middle of a transfer before it sleeps. Waking
/// an idle virtual CPU takes about this time.
pub const POLL_MAX: Duration = Duration::from_micros(60);
/// The shortest such time. A connection whose peer needs longer than [`POLL_MAX`] for its next bytes polls this long.
pub const POLL_MIN: Duration = Duration::from_micros(4);

const _: () = {
    assert!(RANGE_MAX.is_multiple_of(RANGE_UNIT) && DISCARD_MAX.is_multiple_of(RANGE_UNIT));
    assert!(SLOT_MIN.is_power_of_two() && SLOT_MAX.is_power_of_two() && SLOT_MIN >= RANGE_UNIT);
    assert!(INBOX_RECEIVE_BYTES >= CONTROL_MAX + crate::frame::HEADER_BYTES && INBOX_BYTES >= INBOX_RECEIVE_BYTES);
    assert!(REASON_MAX <= CONTROL_MAX && TEXT_MAX <= REASON_MAX);
    assert!(crate::sessions::SESSIONS_PER_REPLY > 0 && crate::identity::NAME_BYTES <= TEXT_MAX);
    assert!(POLL_MIN.as_nanos() < POLL_MAX.as_nanos() && POLL_MAX.as_nanos() < u32::MAX as u128);
    assert!(GRANT_RUNS_MAX * crate::payload::GRANT_BYTES <= CONTROL_MAX);
};

/// Checks whether `slot_size` is a power of two from [`SLOT_MIN`] to [`SLOT_MAX`].
pub fn slot_size_is_valid(slot_size: u32) -> bool {
    slot_size.is_power_of_two() && (SLOT_MIN..=SLOT_MAX).contains(&slot_size)
}

/// Checks whether a range consists of whole units ([`RANGE_UNIT`]), has from one unit to `length_max` bytes, and ends
/// below 2^64.
pub fn range_is_valid(offset: u64, length: u32, length_max: u32) -> bool {
    let unit = u64::from(RANGE_UNIT);
    offset.is_multiple_of(unit)
        && length != 0
        && length.is_multiple_of(RANGE_UNIT)
        && length <= length_max
        && offset.checked_add(u64::from(length)).is_some()
}
