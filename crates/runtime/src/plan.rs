//! Derives page sizes, budgets and numbers of page frames from the settings and the features of the machine. This
//! module only calculates.

use hanare_paging::{Class, Config, Geometry, limits};
use hanare_sys::features::Features;

use crate::engine::WORKS;
use crate::view::Protection;
use hanare_settings::{HumanSize, Local, Mode, PageSize, Settings};

/// Smallest page size, in bytes, at which a page is moved to and from its frame as a whole. The bytes of smaller pages
/// are copied (docs/decisions/0028).
const MOVE_FROM_BYTES: usize = 64 << 10;
/// Bytes of a huge page.
const HUGE_BYTES: usize = 2 << 20;
/// Page size, in bytes, in sigsegv mode with guard pages (MADV_GUARD_INSTALL), if the budget may be small. Example:
/// Python uses 4 to 16 MiB. With a quarter of this in local memory, Python starts in acceptable time with pages of 4
/// KiB, but not with pages of 16 or 64 KiB.
const GUARDED_SMALL_BYTES: usize = 4 << 10;
/// Page size, in bytes, in sigsegv mode with guard pages, if the budget is not small.
const GUARDED_BYTES: usize = 16 << 10;
/// Page sizes, in bytes, in sigsegv mode without guard pages. The plan uses the smallest size with which the whole
/// budget stays within the limit on mappings.
const PROTECTED_BYTES: [usize; 6] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, HUGE_BYTES];
/// Smallest budget, in huge pages, with which base pages and huge pages are mixed. The pager uses the same value.
const HUGE_PAGES_MIN: u64 = limits::WIDE_PAGES_MIN as u64;
/// Maximum number of frames for dirty pages in transit to a server. These frames are needed only if pages are copied,
/// and not moved.
const STAGING_FRAMES_MAX: u64 = 512;
/// Total size, in bytes, of the frames for dirty pages if the budget is a percentage of the program's allocations. The
/// size of the allocations is not known at the start.
const STAGING_BYTES_OF_SHARE: u64 = 1 << 20;
/// Divisor of local memory: the frames for dirty pages take at most 1/8 of it.
const STAGING_PART: u64 = 8;
/// Smallest slot size, in bytes, with a private server, whose memory this process reads and writes itself. With slots
/// of 4 KiB, the table of slots would need more near memory than the pager's own tables.
const DIRECT_SLOT_MIN: usize = 64 << 10;
// A slot is copied through a buffer of `RUN_BYTES_MAX` bytes.
const _: () = assert!(DIRECT_SLOT_MIN <= limits::RUN_BYTES_MAX as usize);

/// Number of mappings that a process may have, if vm.max_map_count cannot be read.
const MAPPINGS_MAX: u64 = 65_530;
/// Minimum number of mappings left to the program and to the rest of Hanare.
const MAPPINGS_LEFT: u64 = 16 << 10;
/// Divisor of the limit on mappings: at least 1/4 of the limit is left to the program and to the rest of Hanare.
const MAPPINGS_LEFT_PART: u64 = 4;
/// Largest page size, in bytes, at which eviction compares a page with its stored copy to find out whether the page was
/// written. This applies to sigsegv mode with guard pages and a private server. Larger pages are write-protected
/// instead. Measured: a comparison takes less time than two mapping changes and a trap.
const COMPARED_MAX: usize = 16 << 10;

/// The page sizes, budgets and frames of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// Bytes reserved for far memory.
    pub(crate) reserve: usize,
    /// Bytes of one slot at the server.
    pub(crate) slot_bytes: usize,
    /// Bytes of local memory that the pager's budget does not count.
    pub(crate) overhead_bytes: u64,
    /// Whether to request huge pages.
    pub(crate) huge: bool,
    /// Maximum number of units (smallest pages) in local memory, whatever the budget. The limit on mappings determines
    /// this number if each unit needs mappings.
    pub(crate) units_max: u32,
}

impl Plan {
    /// Returns how accesses trap in sigsegv mode.
    pub(crate) fn protection(&self, features: &Features) -> Protection {
        if !features.guards {
            return Protection::Pages;
        }
        let compared = self.config.direct && self.config.geometry.unit_bytes as usize <= COMPARED_MAX;
        Protection::Guards { mappings: if compared { 0 } else { mappings(features) as usize } }
    }

    /// Returns whether pages can be unmapped for reference sampling.
    pub(crate) fn hides(&self) -> bool {
        self.config.small.moves || self.config.hides_in_place
    }

    /// Returns how many places are needed for dirty base pages that are moved aside during eviction. A place has the
    /// size of a unit. Each thread that may be in the engine at the same time needs a batch of places. Returns 0 if no
    /// page is moved aside.
    pub(crate) fn aside_units(&self, mode: Mode, features: &Features) -> usize {
        let moves_aside = !self.config.small.moves && features.move_ && mode != Mode::Sigsegv;
        if moves_aside { WORKS * limits::VICTIMS_MAX } else { 0 }
    }

    /// Returns the pager's budget in bytes if the share of local memory is `percent` of `far` bytes. Subtracts the
    /// frames for dirty pages (`overhead_bytes`) from the share, but not more than an eighth of the share.
    pub(crate) fn budget_of_share(&self, far: u64, percent: u8) -> u64 {
        let share = far / 100 * u64::from(percent);
        share - self.overhead_bytes.min(share / STAGING_PART)
    }
}

/// Why no plan fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The budget holds too few pages.
    #[error(
        "the local budget of {} is too small: {pages} pages of {} are the least; give a larger --local or a smaller --page-size",
        HumanSize(*.given),
        HumanSize(*.page)
    )]
    Budget {
        /// Bytes given.
        given: u64,
        /// Pages needed.
        pages: u64,
        /// Bytes of a page.
        page: u64,
    },
    /// The limit on mappings leaves too few mappings for the pages. In sigsegv mode without guard pages, each page
    /// needs mappings.
    #[error(
        "vm.max_map_count is {most}, too few mappings for sigsegv mode on this kernel: the program and Hanare keep {left}; as root, sysctl vm.max_map_count=1048576, or use another --mode"
    )]
    Mappings {
        /// The limit.
        most: u64,
        /// Mappings left to the program and the rest of Hanare.
        left: u64,
    },
}

/// Returns how many mappings the pages may use.
fn mappings(features: &Features) -> u64 {
    let most = features.max_map_count.unwrap_or(MAPPINGS_MAX);
    most.saturating_sub(MAPPINGS_LEFT.max(most / MAPPINGS_LEFT_PART))
}

/// Returns the maximum number of units in local memory. In sigsegv mode without guard pages, each of them costs at most
/// two mappings.
fn units_max(mode: Mode, features: &Features) -> u32 {
    let costs_mappings = mode == Mode::Sigsegv && !features.guards;
    if costs_mappings { (mappings(features) / 2).min(u64::from(limits::UNITS_MAX)) as u32 } else { limits::UNITS_MAX }
}

/// Returns the bytes of a unit (the smallest page) and of a block (the largest page) for a requested page size.
fn sizes(page_size: PageSize, mode: Mode, features: &Features, local: Local, direct: bool) -> (usize, usize) {
    let has_room_for_huge = !matches!(local, Local::Bytes(bytes) if bytes < HUGE_PAGES_MIN * HUGE_BYTES as u64);
    // Memory servers lend slots of a block's size. So huge blocks make requests fewer and longer, even with a small
    // budget.
    let huge = has_room_for_huge || !direct;
    match page_size {
        PageSize::Fixed(bytes) => (bytes as usize, bytes as usize),
        PageSize::Auto if mode == Mode::Sigsegv => {
            let page = size_in_place(features, local, direct);
            (page, page)
        }
        PageSize::Auto if features.move_ && features.thp.usable() => match huge {
            true => (4 << 10, HUGE_BYTES),
            // With so small a budget, the pager would never choose a huge page. Frames and tables for base pages
            // suffice.
            false => (4 << 10, 4 << 10),
        },
        // Huge pages cannot be moved or used here. One middle size serves all access patterns acceptably.
        PageSize::Auto => (16 << 10, 16 << 10),
    }
}

/// Returns the page size, in bytes, in sigsegv mode if none is requested.
fn size_in_place(features: &Features, local: Local, direct: bool) -> usize {
    if features.guards {
        let is_small = match local {
            Local::Bytes(bytes) => bytes < HUGE_PAGES_MIN * HUGE_BYTES as u64,
            // A budget that is a percentage of the allocations is small at first.
            Local::Percent(_) => direct,
        };
        return if is_small { GUARDED_SMALL_BYTES } else { GUARDED_BYTES };
    }
    // Without guard pages, each page costs mappings. Pages must be so large that the limit on mappings allows the whole
    // budget to be used.
    let most = u64::from(units_max(Mode::Sigsegv, features)).max(1);
    let fits = |page: &usize| !matches!(local, Local::Bytes(bytes) if bytes / *page as u64 > most);
    PROTECTED_BYTES.into_iter().find(fits).unwrap_or(HUGE_BYTES)
}

/// Plans a run. `direct` says whether this process itself copies pages to and from a private server's memory. `hides`
/// says whether the policy samples references.
pub(crate) fn plan(
    settings: &Settings,
    mode: Mode,
    features: &Features,
    direct: bool,
    hides: bool,
) -> Result<Plan, PlanError> {
    let (unit, block) = sizes(settings.page_size, mode, features, settings.local, direct);
    let reserve = (settings.reserve as usize).min(limits::UNITS_MAX as usize * unit) & !(HUGE_BYTES - 1);
    let in_place = mode == Mode::Sigsegv;
    // A page that is unmapped for reference sampling waits in a frame. If the kernel cannot move pages
    // (UFFDIO_MOVE), the bytes are copied to the frame, which is only slower.
    let small_moves = !in_place && (hides || features.move_ && unit >= MOVE_FROM_BYTES);
    let staged = !direct && !small_moves;
    let staging_bytes = match settings.local {
        Local::Bytes(bytes) => bytes / STAGING_PART,
        Local::Percent(_) => STAGING_BYTES_OF_SHARE,
    };
    let staging = if staged { (staging_bytes / unit as u64).clamp(1, STAGING_FRAMES_MAX) } else { 0 };
    let overhead_bytes = staging * unit as u64;
    let (budget, budget_max) = match settings.local {
        Local::Bytes(bytes) => (bytes, bytes),
        // Nothing is allocated yet, so the pager begins with its least budget. The frames for dirty pages are added.
        Local::Percent(percent) => {
            let least = u64::from(limits::BUDGET_PAGES_MIN) * block as u64;
            (least + overhead_bytes, (reserve as u64 / 100 * u64::from(percent)).max(least))
        }
    };
    let units = budget.saturating_sub(overhead_bytes) / unit as u64;
    if units < u64::from(limits::BUDGET_PAGES_MIN) {
        let pages = u64::from(limits::BUDGET_PAGES_MIN) + u64::from(staged);
        return Err(PlanError::Budget { given: budget, pages, page: unit as u64 });
    }
    let units_max = units_max(mode, features);
    if units_max < limits::BUDGET_PAGES_MIN {
        return Err(PlanError::Mappings { most: features.max_map_count.unwrap_or(MAPPINGS_MAX), left: MAPPINGS_LEFT });
    }
    let frames = |bytes: usize| (budget_max / bytes as u64).min(u64::from(limits::UNITS_MAX)) as u32;
    let geometry =
        Geometry { units: (reserve / unit) as u32, unit_bytes: unit as u32, block_units: (block / unit) as u32 };
    let config = Config {
        geometry,
        budget_units: units.min(u64::from(units_max)) as u32,
        small: Class { moves: small_moves, frames: if small_moves { frames(unit) } else { staging as u32 } },
        wide: Class { moves: true, frames: if block > unit { frames(block).max(1) } else { 0 } },
        direct,
        hides_in_place: in_place,
        ahead_units: ahead(direct, unit, block),
    };
    let slot_bytes = if direct { block.max(DIRECT_SLOT_MIN) } else { block };
    Ok(Plan {
        config,
        reserve,
        slot_bytes,
        overhead_bytes,
        huge: block == HUGE_BYTES && features.thp.usable(),
        units_max,
    })
}

/// Returns the number of units of huge pages to prefetch ahead of a sequential stream. Over a link, it is large enough
/// to keep the link busy. It is 0 with a private server, because the faulting thread copies the page itself.
fn ahead(direct: bool, unit: usize, block: usize) -> u32 {
    const AHEAD_BYTES: usize = 4 << 20;
    if direct { 0 } else { (AHEAD_BYTES / unit).max(2 * block / unit) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_sys::features::{Disabled, Thp};

    const MIB: u64 = 1 << 20;

    /// Returns the features of a machine with huge pages and a kernel that can move pages.
    fn machine() -> Features {
        let nothing = Disabled::parse(&Disabled::WORDS.join(",")).unwrap();
        let mut features = Features::probe(&nothing);
        (features.move_, features.thp) = (true, Thp::Always);
        features
    }

    /// An environment with a budget of 1 MiB and no other setting.
    fn a_mebibyte(name: &str) -> Option<std::ffi::OsString> {
        (name == "HANARE_LOCAL").then(|| "1M".into())
    }

    fn planned(local: Local, page_size: PageSize, direct: bool) -> Plan {
        let mut settings = Settings::from_lookup(a_mebibyte).unwrap();
        (settings.local, settings.page_size) = (local, page_size);
        plan(&settings, Mode::Thread, &machine(), direct, false).unwrap()
    }

    /// With a budget of few huge pages, the pager would never choose a huge page. With a private server, all pages are
    /// then base pages, which saves the tables of blocks and the huge frames. With memory servers, blocks stay huge,
    /// because servers lend memory in huge slots.
    #[test]
    fn pages_are_small_where_the_budget_is_and_on_this_host_only() {
        let (small, mixed) = ((4 << 10, 1), (4 << 10, 512));
        for (local, direct, want) in [
            (Local::Bytes(MIB), true, small),
            (Local::Bytes(16 * MIB - 1), true, small),
            (Local::Bytes(16 * MIB), true, mixed),
            (Local::Bytes(1 << 30), true, mixed),
            (Local::Bytes(8 * MIB), false, mixed),
            (Local::Percent(25), true, mixed),
        ] {
            let plan = planned(local, PageSize::Auto, direct);
            let Geometry { unit_bytes, block_units, .. } = plan.config.geometry;
            assert_eq!((unit_bytes, block_units), want, "{local:?}, direct: {direct}");
            assert_eq!(plan.huge, want == mixed, "{local:?}, direct: {direct}");
            assert_eq!(plan.config.wide.frames > 0, want == mixed, "{local:?}, direct: {direct}");
        }
    }

    const PAGES: [PageSize; 11] = [
        PageSize::Auto,
        PageSize::Fixed(4 << 10),
        PageSize::Fixed(8 << 10),
        PageSize::Fixed(16 << 10),
        PageSize::Fixed(32 << 10),
        PageSize::Fixed(64 << 10),
        PageSize::Fixed(128 << 10),
        PageSize::Fixed(256 << 10),
        PageSize::Fixed(512 << 10),
        PageSize::Fixed(1 << 20),
        PageSize::Fixed(2 << 20),
    ];

    /// Calls `judge` with the plan for each combination of page size, mode, kind of store, machine and reference
    /// sampling.
    fn each_plan(local: Local, judge: impl Fn(Result<Plan, PlanError>, &str)) {
        for page_size in PAGES {
            for bits in 0..24 {
                let (direct, moves, hides) = (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0);
                let mode = [Mode::Thread, Mode::Sigbus, Mode::Sigsegv][bits / 8];
                let mut settings = Settings::from_lookup(a_mebibyte).unwrap();
                (settings.local, settings.page_size, settings.reserve) = (local, page_size, 1 << 30);
                let features = Features { move_: moves, ..machine() };
                let what = format!(
                    "{local:?} {page_size:?} {mode:?}, direct: {direct}, move: {moves}, hiding policy: {hides}"
                );
                judge(plan(&settings, mode, &features, direct, hides), &what);
            }
        }
    }

    /// With a budget in percent, nothing is allocated at the start. Even so, every plan must have a valid budget, and
    /// frames for more than one dirty page.
    #[test]
    fn every_share_starts_whatever_the_page_size_and_the_link() {
        use hanare_paging::{Pager, Space, policy, prefetch};
        for percent in [1, 25, 50, 99, 100] {
            each_plan(Local::Percent(percent), |plan, what| {
                let plan = plan.unwrap_or_else(|error| panic!("{what}: {error}"));
                let Geometry { units, block_units, unit_bytes } = plan.config.geometry;
                let space = Space { units, block_units, seed: 1, hides: plan.hides() };
                let policy = policy::build("simple", space).unwrap();
                let prefetcher = prefetch::build("none", space).unwrap();
                assert!(Pager::new(&plan.config, policy, prefetcher).is_ok(), "{what}");
                if plan.overhead_bytes > 0 && unit_bytes <= 16 << 10 {
                    assert!(plan.config.small.frames >= 64, "{what}: {} frames", plan.config.small.frames);
                }
            });
        }
    }

    #[test]
    fn local_memory_stays_within_the_share_once_that_is_worth_something() {
        for percent in [1, 10, 50, 100] {
            each_plan(Local::Percent(percent), |plan, what| {
                let plan = plan.unwrap();
                for far in [0, 4096, 1 << 20, 100 << 20, 1 << 30, 1 << 40] {
                    let share = far / 100 * u64::from(percent);
                    let budget = plan.budget_of_share(far, percent);
                    assert!(budget <= share && budget >= share - share / 8, "{what}: {budget} of {share}");
                    if share >= 8 * plan.overhead_bytes {
                        assert_eq!(budget + plan.overhead_bytes, share, "{what}");
                    }
                }
            });
        }
    }

    #[test]
    fn local_memory_stays_within_every_budget_in_bytes() {
        for bytes in [4096, 8192, 12288, 100_000, MIB, 64 * MIB, 512 * MIB] {
            each_plan(Local::Bytes(bytes), |plan, what| {
                let Ok(plan) = plan else { return };
                let Config { geometry, budget_units, .. } = plan.config;
                let local = u64::from(budget_units) * u64::from(geometry.unit_bytes) + plan.overhead_bytes;
                assert!(local <= bytes && budget_units >= limits::BUDGET_PAGES_MIN, "{what}: {local}");
            });
        }
    }

    #[test]
    fn slots_of_this_host_are_not_smaller_than_what_their_table_is_worth() {
        let slots =
            |page: u32, direct| planned(Local::Bytes(64 * MIB), PageSize::Fixed(page), direct).slot_bytes as u32;
        for page in [4 << 10, 64 << 10, 2 << 20] {
            assert_eq!(slots(page, true), page.max(64 << 10));
            assert_eq!(slots(page, false), page);
        }
        assert_eq!(planned(Local::Bytes(64 * MIB), PageSize::Auto, true).slot_bytes, 2 << 20);
    }

    #[test]
    fn small_dirty_pages_are_moved_aside_wherever_the_kernel_moves_pages() {
        let moves = |page, direct, mode, features: &Features| {
            let settings = Settings { page_size: page, ..Settings::from_lookup(a_mebibyte).unwrap() };
            plan(&settings, mode, features, direct, false).unwrap().aside_units(mode, features) > 0
        };
        let (auto, features) = (PageSize::Auto, machine());
        for mode in [Mode::Thread, Mode::Sigbus] {
            assert!(moves(auto, true, mode, &features));
            assert!(moves(PageSize::Fixed(4 << 10), false, mode, &features));
            assert!(!moves(PageSize::Fixed(64 << 10), true, mode, &features), "whole frames move by themselves");
            assert!(!moves(auto, true, mode, &Features { move_: false, ..features.clone() }));
        }
        assert!(!moves(auto, true, Mode::Sigsegv, &features), "its memory is shared, which MOVE refuses");
    }

    /// The pages in local memory must not need more mappings than the kernel allows. Each page costs at most two.
    #[test]
    fn without_guards_pages_are_so_few_or_so_large_that_there_are_mappings_for_all() {
        let machine = |most| Features { guards: false, max_map_count: Some(most), ..machine() };
        let planned = |local, page_size, features: &Features| {
            let settings = Settings { local, page_size, ..Settings::from_lookup(a_mebibyte).unwrap() };
            plan(&settings, Mode::Sigsegv, features, true, false)
        };
        for most in [32_768, 65_530, 1 << 20, 1 << 31] {
            for local in [Local::Bytes(64 * MIB), Local::Bytes(64 << 30), Local::Percent(50)] {
                for page_size in PAGES {
                    let plan = planned(local, page_size, &machine(most)).unwrap();
                    let units = u64::from(plan.units_max.max(plan.config.budget_units));
                    assert!(2 * units + MAPPINGS_LEFT <= most || most > 1 << 30, "{most} {local:?} {page_size:?}");
                    let guarded = planned(local, page_size, &Features { guards: true, ..machine(most) }).unwrap();
                    assert_eq!(guarded.units_max, limits::UNITS_MAX);
                }
            }
        }
        let page = |bytes| {
            let plan = planned(Local::Bytes(bytes), PageSize::Auto, &machine(65_530)).unwrap();
            plan.config.geometry.unit_bytes
        };
        assert_eq!([page(MIB), page(1 << 30), page(4 << 30), page(64 << 30)], [64 << 10, 64 << 10, 256 << 10, 2 << 20]);
        let guarded = |local| {
            let features = Features { guards: true, ..machine(65_530) };
            planned(local, PageSize::Auto, &features).unwrap().config.geometry.unit_bytes
        };
        let sizes = [Local::Percent(25), Local::Bytes(MIB), Local::Bytes(64 << 30)].map(guarded);
        assert_eq!(sizes, [4 << 10, 4 << 10, 16 << 10]);
        let refused = planned(Local::Percent(50), PageSize::Auto, &machine(10_000)).unwrap_err();
        assert!(refused.to_string().contains("vm.max_map_count is 10000"), "{refused}");
    }
}
