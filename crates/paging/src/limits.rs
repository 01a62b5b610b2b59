//! Every limit of the pager in one place. Compile-time assertions check them against each other.

/// Smallest unit, in bytes: the page of the operating system.
pub const UNIT_BYTES_MIN: u32 = 4 << 10;
/// Largest page, in bytes: a huge page.
pub const PAGE_BYTES_MAX: u32 = 2 << 20;
/// Largest number of units of one pager: 512 GiB of 4 KiB units.
pub const UNITS_MAX: u32 = 1 << 27;
/// Smallest budget, in pages. An unaligned access needs two pages at once.
pub const BUDGET_PAGES_MIN: u32 = 2;
/// Smallest budget, in huge pages, for which blocks come in as huge pages.
pub const WIDE_PAGES_MIN: u32 = 8;
/// Most victims chosen in one step.
pub const VICTIMS_MAX: usize = 128;
/// Longest run of pages fetched by one action, in bytes. The receiving buffer has this size, or the size of one page if
/// that is larger.
pub const RUN_BYTES_MAX: u32 = 256 << 10;
/// Number of faults, after a fetched run, for which room for another run is kept.
pub const RUN_FAULTS: u32 = 64;
/// Most pages unmapped for the policy in one step.
pub const HIDES_MAX: usize = 32;
/// Most ranges that a prefetcher proposes in one step. A strided stream needs one range for each page.
pub const PROPOSALS_MAX: usize = 32;
/// Most pages fetched ahead in one step.
pub const PREFETCH_UNITS_MAX: u32 = 128;
/// Largest number of faults that wait for room. The engine must submit a further fault again.
pub const STARVED_MAX: usize = 1024;
/// Most units that one discard step covers. The caller continues at the unit after them.
pub const DISCARD_UNITS_MAX: u32 = 512;
/// Largest number of free frames whose memory is being returned to the system.
pub const FREES_MAX: u32 = 64;
/// Largest number of pages remembered as held by a transfer. If there are more, no page leaves until the next tick.
pub const HELD_MAX: usize = 1 << 16;
/// Milliseconds after which the pager again tries to evict pages that a transfer held. If a fault waits for room, the
/// pager tries at once.
pub const HELD_MS: u64 = 100;
/// Most actions in the answer of one step.
pub const ACTIONS_MAX: usize = 4096;
/// Most pages that a policy examines to find a victim that the pager's filter accepts.
pub const VICTIM_SCAN_MAX: usize = 1024;

const _: () = assert!(UNIT_BYTES_MIN.is_power_of_two() && PAGE_BYTES_MAX.is_power_of_two());
const _: () = assert!(PAGE_BYTES_MAX / UNIT_BYTES_MIN <= DISCARD_UNITS_MAX);
// A discard step may drop and release every unit, and split one block. An eviction adds its victims, and waiting faults
// add their fetches. The list of actions must have room for all of these.
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
