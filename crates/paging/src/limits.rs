//! Every bound of the pager, in one place, asserted against each other at compile time.

/// Smallest unit, in bytes: the page of the operating system.
pub const UNIT_BYTES_MIN: u32 = 4 << 10;
/// Largest page, in bytes: a huge page.
pub const PAGE_BYTES_MAX: u32 = 2 << 20;
/// Most units one pager keeps (256 GiB of 4 KiB units, and room for as much again).
pub const UNITS_MAX: u32 = 1 << 27;
/// Smallest budget, in pages: an unaligned access needs two pages at once.
pub const BUDGET_PAGES_MIN: u32 = 2;
/// Least budget, in wide pages, with which a page comes in wide.
pub const WIDE_PAGES_MIN: u32 = 8;
/// Most victims chosen in one step.
pub const VICTIMS_MAX: usize = 128;
/// Longest run of pages fetched by one action, in bytes: what receives it has so much room (or one page's).
pub const RUN_BYTES_MAX: u32 = 256 << 10;
/// Faults for which room for a run is kept after the last one that brought pages ahead.
pub const RUN_FAULTS: u32 = 64;
/// Most pages hidden in one step.
pub const HIDES_MAX: usize = 32;
/// Most ranges a prefetcher proposes in one step: a strided stream names its pages one by one.
pub const PROPOSALS_MAX: usize = 32;
/// Most pages fetched ahead in one step.
pub const PREFETCH_UNITS_MAX: u32 = 128;
/// Faults that may wait for room at once; a fault beyond that is asked to come again.
pub const STARVED_MAX: usize = 1024;
/// Units handled by one discard step; the caller goes on from where it stopped.
pub const DISCARD_UNITS_MAX: u32 = 512;
/// Most free frames whose memory is being given back at a time.
pub const FREES_MAX: u32 = 64;
/// Pages remembered as held by a transfer. Beyond that none leaves until the next tick.
pub const HELD_MAX: usize = 1 << 16;
/// Milliseconds after which held pages may be taken out again; at once where a fault waits for room.
pub const HELD_MS: u64 = 100;
/// Most actions one step answers with.
pub const ACTIONS_MAX: usize = 4096;
/// How far a policy looks for a victim that passes the pager's filter.
pub const VICTIM_SCAN_MAX: usize = 1024;

const _: () = assert!(UNIT_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two());
const _: () = assert!(PAGE_BYTES_MAX / UNIT_BYTES_MIN <= DISCARD_UNITS_MAX);
// A discard step may drop and release every unit and split one block; an eviction adds its victims, a starved queue its
// fetches: the action buffer holds them all together.
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
