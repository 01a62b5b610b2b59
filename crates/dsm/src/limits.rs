//! All limits of shared memory. Compile-time assertions check that the limits fit each other.

/// Most ranks of one program.
pub const RANKS_MAX: usize = 256;
/// Maximum number of pages of a shared region.
pub const PAGES_MAX: u32 = 1 << 26;
/// Size of the smallest page, in bytes. The pages of the operating system have 4 KiB; tests use smaller pages.
pub const PAGE_BYTES_MIN: usize = 32;
/// Size of the largest page, in bytes. It is bounded because a run in a diff counts its words in 16 bits.
pub const PAGE_BYTES_MAX: usize = 64 << 10;
/// Size of a word in bytes. A word is the unit of a diff: ranks that write different words of a page do not conflict.
pub const WORD_BYTES: usize = 4;
/// Length of the longest payload of one frame between ranks, in bytes. Longer data is split into several frames.
pub const FRAME_BYTES_MAX: usize = hanare_wire::limits::BETWEEN_RANKS_MAX;
/// Number of bytes of pages or diffs at which a frame is sent. Below this number, one more page or diff always fits.
pub const FRAME_BYTES_FULL: usize = 256 << 10;
/// Maximum number of runs of pages in one message.
pub const RUNS_MAX: usize = 4096;
/// Maximum number of moves of homes in one message. At one memory barrier, one rank gives away the homes of at most
/// this many pages.
pub const MOVES_MAX: usize = 4096;
/// Maximum number of pages in one message whose new home is the receiver.
pub const ADOPTS_MAX: usize = 4096;
/// Number of locks. They are numbered from 0.
pub const LOCKS_MAX: u32 = 1 << 16;
/// Most values in one reduction.
pub const VALUES_MAX: usize = 64;
/// Maximum number of pages that are fetched together with the accessed page before them. Each of these pages must
/// belong to a block that is read whole, or must be a copy that its home invalidated.
pub const FETCH_AHEAD: u32 = 7;
/// Maximum number of pages that become writable together with the written page before them. The same flush must have
/// published all of these pages before.
pub const OPEN_AHEAD: u32 = 7;
/// Of this many writes that could make the following pages writable as well, one leaves them protected. A trap then
/// shows whether the following pages are still written.
pub const LOOK_AGAIN: u32 = 16;
/// Number of trapping writes by a page's home after which the page is watched, if other ranks read it. A watched page
/// is compared with a twin, and writes to it do not trap.
pub const WATCH_AFTER: i8 = 2;
/// Number of additional trapping writes by a page's home before the page is watched, if another rank has written the
/// page.
pub const WATCH_LATER: i8 = 8;
/// Number of flushes in a row without a write to a watched page, after which writes to the page trap again.
pub const WATCH_QUIET: u8 = 8;
/// Maximum number of pages that a rank watches at the same time. Each page costs one comparison per flush, and the
/// memory of a twin.
pub const WATCHED_MAX: usize = 1024;
/// Number of memory barriers in a row after which a page's home moves to another rank. At each of these barriers, that
/// rank alone must have written the page. For the first known writer of a page, one barrier is enough.
pub const MOVE_AFTER: u8 = 2;
/// Number of fetches in a row, each after an invalidation, after which the adaptive protocol sends updates to a sharer.
pub const UPDATE_AFTER: u8 = 2;
/// Number of updates after which the adaptive protocol first invalidates a copy as a probe. If the rank fetches the
/// page again, it still reads the page.
pub const PROBE_FIRST: u8 = 8;
/// Maximum number of updates between two probes. By a probe, the adaptive protocol checks that a rank still reads the
/// page.
pub const PROBE_LAST: u8 = 64;

const _: () = assert!(PAGE_BYTES_MAX / WORD_BYTES <= u16::MAX as usize);
// The longest diff has the bitmap form: a head, one bit for each word of the page, and the words.
const _: () = assert!(FRAME_BYTES_FULL + PAGE_BYTES_MAX + PAGE_BYTES_MAX / WORD_BYTES / 8 + 64 <= FRAME_BYTES_MAX);
const _: () = assert!(RUNS_MAX * 8 + MOVES_MAX * 6 + ADOPTS_MAX * (4 + RANKS_MAX / 8) + 64 <= FRAME_BYTES_MAX);
const _: () = assert!(WATCH_AFTER > 1 && WATCH_LATER > 0);
const _: () = assert!(RANKS_MAX <= u16::MAX as usize && PROBE_FIRST < PROBE_LAST);
