//! Every limit of the pager in one place. Compile-time assertions check them against each other.

/// Smallest unit, in bytes: the page of the operating system.
pub const UNIT_BYTES_MIN: u32 = 4 << 10;
/// Largest page, in bytes: a huge page.
pub const PAGE_BYTES_MAX: u32 = 2 << 20;
/// Most units of one pager: 512 GiB of 4 KiB units.
pub const UNITS_MAX: u32 = 1 << 27;
/// Smallest budget, in pages. An unaligned access needs two pages at once.
pub const BUDGET_PAGES_MIN: u32 = 2;
/// Smallest budget, in huge pages, with which blocks come in as huge pages.
pub const WIDE_PAGES_MIN: u32 = 8;
/// Most victims chosen in one step.
pub const VICTIMS_MAX: usize = 128;
/// Longest run of pages fetched by one action, in bytes. The receiving buffer has this size, or that of one page.
pub const RUN_BYTES_MAX: u32 = 256 << 10;
/// Number of faults, after a fetched run, for which room for another run is kept.
pub const RUN_FAULTS: u32 = 64;
/// Most pages unmapped for the policy in one step.
pub const HIDES_MAX: usize = 32;
/// Most ranges that a prefetcher proposes in one step. A strided stream needs one for each page.
pub const PROPOSALS_MAX: usize = 32;
/// Most pages fetched ahead in one step.
pub const PREFETCH_UNITS_MAX: u32 = 128;
/// Most faults that wait for room at once. The engine must submit a further fault again.
pub const STARVED_MAX: usize = 1024;
/// Most units handled by one discard step. The caller continues where it stopped.
pub const DISCARD_UNITS_MAX: u32 = 512;
/// Most free frames whose memory is being returned at once.
pub const FREES_MAX: u32 = 64;
/// Most pages remembered as used by a transfer. Beyond that, no page leaves until the next tick.
pub const HELD_MAX: usize = 1 << 16;
/// Milliseconds after which the pager again tries to take out pages that a transfer used. If a fault waits for room, it
/// tries at once.
pub const HELD_MS: u64 = 100;
/// Most actions in the answer of one step.
pub const ACTIONS_MAX: usize = 4096;
/// Most pages a policy examines for a victim that the pager's filter accepts.
pub const VICTIM_SCAN_MAX: usize = 1024;

const _: () = assert!(UNIT_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two());
const _: () = assert!(PAGE_BYTES_MAX / UNIT_BYTES_MIN <= DISCARD_UNITS_MAX);
// A discard step may drop and release every unit and split one block. An eviction adds its victims, and waiting faults
// add their fetches. The list of actions has room for all of them.
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
