//! Every bound of shared memory in one place, asserted against each other at compile time.

/// Most ranks of one program.
pub const RANKS_MAX: usize = 256;
/// Most pages of one shared region.
pub const PAGES_MAX: u32 = 1 << 26;
/// Smallest page, in bytes. The operating system's is 4 KiB; tests use smaller ones.
pub const PAGE_BYTES_MIN: usize = 32;
/// Largest page, in bytes: a run of a diff counts words in 16 bits.
pub const PAGE_BYTES_MAX: usize = 64 << 10;
/// Bytes of a word, the unit of a diff. Ranks that write different words of a page between barriers do not conflict.
pub const WORD_BYTES: usize = 4;
/// Longest payload of one frame between ranks, in bytes. Longer data goes in several frames.
pub const FRAME_BYTES_MAX: usize = hanare_wire::limits::BETWEEN_RANKS_MAX;
/// Bytes of pages or diffs in a frame after which it is sent. The largest entry still fits behind them.
pub const FRAME_BYTES_FULL: usize = 256 << 10;
/// Most runs of pages in one message.
pub const RUNS_MAX: usize = 4096;
/// Most homes moved in one message, and most that one home moves at one memory barrier.
pub const MOVES_MAX: usize = 4096;
/// Most pages that change their home to the receiver in one message.
pub const ADOPTS_MAX: usize = 4096;
/// Number of locks.
pub const LOCKS_MAX: u32 = 1 << 16;
/// Most values in one reduction.
pub const VALUES_MAX: usize = 64;
/// Pages after an accessed one that are fetched with it, if they were copies here too and were invalidated.
pub const FETCH_AHEAD: u32 = 7;
/// Pages after a written one that are opened with it, if they were last written between the same two barriers.
pub const OPEN_AHEAD: u32 = 7;
/// Of this number of guesses, one leaves the pages closed, to check whether they are still written.
pub const LOOK_AGAIN: u32 = 16;
/// Writes of a home that trap, to a page that others read, before the page is watched.
pub const WATCH_AFTER: i8 = 2;
/// Additional traps before that, if another rank has written the page since.
pub const WATCH_LATER: i8 = 8;
/// Flushes in a row without a write to a watched page, before its writes trap again.
pub const WATCH_QUIET: u8 = 8;
/// Most pages watched at once. Each costs one comparison per flush, and memory for a twin.
pub const WATCHED_MAX: usize = 1024;
/// Memory barriers in a row at which one rank alone must have written a page before its home moves there. One is enough
/// if no rank is known to have written it before.
pub const MOVE_AFTER: u8 = 2;
/// Fetches in a row, each after an invalidation, before the adaptive protocol sends a sharer updates.
pub const UPDATE_AFTER: u8 = 2;
/// Updates sent before the adaptive protocol first invalidates again, to see whether the page is still read.
pub const PROBE_FIRST: u8 = 8;
/// Most updates between two such probes.
pub const PROBE_LAST: u8 = 64;

const _: () = assert!(PAGE_BYTES_MAX / WORD_BYTES <= u16::MAX as usize);
// The longest diff is one in bitmap form: a page's words, one bit per word, and a head.
const _: () = assert!(FRAME_BYTES_FULL + PAGE_BYTES_MAX + PAGE_BYTES_MAX / WORD_BYTES / 8 + 64 <= FRAME_BYTES_MAX);
const _: () = assert!(RUNS_MAX * 8 + MOVES_MAX * 6 + ADOPTS_MAX * (4 + RANKS_MAX / 8) + 64 <= FRAME_BYTES_MAX);
const _: () = assert!(WATCH_AFTER > 1 && WATCH_LATER > 0);
const _: () = assert!(RANKS_MAX <= u16::MAX as usize && PROBE_FIRST < PROBE_LAST);
