//! Every limit of the pager in one place. Compile-time assertions check them against each other.

/// Smallest unit, in bytes: the page of the operating system.
pub const UNIT_BYTES_MIN: u32 = 4 << 10;
/// Largest page, in bytes: the size of a huge page.
pub const PAGE_BYTES_MAX: u32 = 2 << 20;
/// Largest number of units of one pager: 512 GiB of 4 KiB units.
pub const UNITS_MAX: u32 = 1 << 27;
/// Smallest budget, in pages. One instruction may read a word that lies on two pages and write a word on two others. It
/// needs all four pages in memory at the same time.
pub const BUDGET_PAGES_MIN: u32 = 4;
/// Smallest budget, in huge pages, with which the pager uses huge pages.
pub const WIDE_PAGES_MIN: u32 = 8;
/// Maximum number of victims chosen in one step.
pub const VICTIMS_MAX: usize = 128;
/// Longest run of pages fetched by one action, in bytes. The receiving buffer has this size, or the size of one page if
/// that is larger.
pub const RUN_BYTES_MAX: u32 = 256 << 10;
/// After a huge page has come in, the pager keeps room for another one during this number of faults.
pub const WIDE_FAULTS: u32 = 256;
/// After a fetched run of pages, the pager keeps room for another run during this number of faults.
pub const RUN_FAULTS: u32 = 64;
/// Maximum number of pages unmapped for reference sampling in one step.
pub const HIDES_MAX: usize = 32;
/// Maximum number of ranges that a prefetcher proposes in one step. A strided stream needs one range for each page.
pub const PROPOSALS_MAX: usize = 32;
/// Maximum number of pages fetched ahead in one step.
pub const PREFETCH_UNITS_MAX: u32 = 128;
/// Maximum number of faults that wait for free memory. If there are more, the engine must submit the fault again.
pub const STARVED_MAX: usize = 1024;
/// Maximum number of units that one discard step covers. The caller continues at the unit after them.
pub const DISCARD_UNITS_MAX: u32 = 512;
/// Divisor of the budget: at most 1/4 of it may be locked. A fork halves the budget, and its locked pages still fit.
pub const LOCKED_PART: u32 = 4;
/// Maximum number of unused ranges. If there are more, the pages of the oldest range count as used again.
pub const UNUSED_MAX: usize = 64;
/// Maximum number of allocated ranges whose first accesses are observed. If there are more, the oldest is forgotten.
pub const FRESH_MAX: usize = 64;
/// Largest number of free frames whose memory is being returned to the system.
pub const FREES_MAX: u32 = 64;
/// Maximum number of pages remembered because a transfer prevented their eviction. If there are more, no page is
/// evicted until the next tick.
pub const HELD_MAX: usize = 1 << 16;
/// Interval in milliseconds between two attempts to evict pages whose eviction a transfer prevented. If a fault waits
/// for free memory, the pager tries immediately.
pub const HELD_MS: u64 = 100;
/// Maximum number of actions in the answer of one step.
pub const ACTIONS_MAX: usize = 4096;
/// Maximum number of pages that a policy examines to find a victim that the pager's filter accepts.
pub const VICTIM_SCAN_MAX: usize = 1024;
/// Number of searches for a huge page among dirty small pages that are left out after one in vain. Without this, a program
/// that fills memory spends more time on searches than on page transfers.
pub const SEARCHES_SPARED: u32 = 15;
/// Maximum number of evicted units whose reuse is observed. If there are more, a smaller sample is observed.
pub const REUSE_TRACKED_MAX: usize = 1 << 13;

const _: () = assert!(UNIT_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two());
const _: () = assert!(PAGE_BYTES_MAX / UNIT_BYTES_MIN <= DISCARD_UNITS_MAX);
// A discard step may drop and release every unit, and split one block. An eviction adds an action for each victim, and
// each waiting fault adds a fetch. The list of actions must have room for all of these.
const _: () = assert!(
    2 * DISCARD_UNITS_MAX as usize
        + 2 * VICTIMS_MAX
        + 2 * STARVED_MAX
        + PREFETCH_UNITS_MAX as usize
        + HIDES_MAX
        + FREES_MAX as usize
        + 16
        <= ACTIONS_MAX
);
