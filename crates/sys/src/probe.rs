//! Small experiments that try whether a mechanism works on this machine. Each experiment maps a few pages for itself.
//!
//! Every function returns `false` if anything fails, because a mechanism that cannot be tried cannot be used.

use crate::batch::DontNeedBatch;
use crate::features::{Attempt, Disabled};
use crate::map::{self, Advice, Mapping, page_size};
use crate::pagemap::{Pagemap, Region, present_pages};
use crate::uffd::{CopyMode, MoveMode, RegisterMode, Uffd, UffdAccess, UffdError, feature};

const MARK: u8 = 0x5a;

/// Tries to open a userfaultfd in one way.
pub(crate) fn opens(access: UffdAccess, disabled: &Disabled) -> Attempt {
    if disabled.userfaultfd {
        return Attempt::Disabled;
    }
    match Uffd::open(access, 0) {
        Ok(_) => Attempt::Works,
        Err(UffdError::Open { errno, .. } | UffdError::Api { errno, .. }) => Attempt::Refused(errno.0),
        Err(_) => Attempt::Refused(libc::ENOSYS),
    }
}

/// Checks whether the kernel grants these feature bits together.
pub(crate) fn has(access: UffdAccess, bits: u64) -> bool {
    Uffd::open(access, bits).is_ok()
}

/// The pages of one experiment: a registered page (`far`), and a page with a mark (`near`). The kernel can copy or move
/// `near` to `far`.
struct Bench {
    uffd: Uffd,
    far: Mapping,
    near: Mapping,
}

impl Bench {
    fn new(access: UffdAccess, bits: u64, mode: RegisterMode) -> Option<Self> {
        let uffd = Uffd::open(access, bits).ok()?;
        let far = Mapping::reserve(page_size(), page_size()).ok()?;
        let near = Mapping::anonymous(page_size()).ok()?;
        mark(&near);
        uffd.register(far.addr(), far.len(), mode).ok()?;
        Some(Self { uffd, far, near })
    }

    fn copy(&self, mode: CopyMode) -> bool {
        // SAFETY: both mappings belong to this experiment, so no other code relies on their contents.
        unsafe { self.uffd.copy(self.far.addr(), self.near.addr(), self.far.len(), mode) }.is_ok()
    }
}

fn mark(mapping: &Mapping) {
    // SAFETY: the mapping belongs to this experiment, so no other code relies on its contents. It is writable and at
    // least one page long.
    unsafe { mapping.as_ptr().write_volatile(MARK) };
}

/// Checks whether the page is present and contains the mark. It first asks the kernel whether the page is present,
/// because an access to a missing page would wait for ever.
fn is_marked(mapping: &Mapping) -> bool {
    // SAFETY: the mapping belongs to this experiment. Its page is present and readable, so the read cannot trap.
    present_pages(mapping.addr(), 1) == Ok(1) && unsafe { mapping.as_ptr().read_volatile() } == MARK
}

const MISSING: RegisterMode = RegisterMode { missing: true, wp: false, minor: false };
const MISSING_WP: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };

pub(crate) fn copy(access: UffdAccess) -> bool {
    Bench::new(access, 0, MISSING).is_some_and(|bench| bench.copy(CopyMode::default()) && is_marked(&bench.far))
}

pub(crate) fn write_protect(access: UffdAccess) -> bool {
    Bench::new(access, feature::WP, MISSING_WP).is_some_and(|bench| {
        bench.copy(CopyMode { wp: true, dontwake: false })
            && bench.uffd.write_protect(bench.far.addr(), bench.far.len(), false, false).is_ok()
            && is_marked(&bench.far)
    })
}

pub(crate) fn move_pages(access: UffdAccess) -> bool {
    Bench::new(access, feature::MOVE, MISSING).is_some_and(|bench| {
        let (far, near) = (&bench.far, &bench.near);
        // SAFETY: both mappings belong to this experiment, so no other code relies on their contents.
        let moved = unsafe { bench.uffd.move_pages(far.addr(), near.addr(), far.len(), MoveMode::default()) };
        moved.is_ok() && is_marked(far)
    })
}

pub(crate) fn poison(access: UffdAccess) -> bool {
    Bench::new(access, feature::POISON, MISSING).is_some_and(|bench| {
        // SAFETY: the mapping belongs to this experiment and is never accessed again.
        unsafe { bench.uffd.poison(bench.far.addr(), bench.far.len(), false) }.is_ok()
    })
}

pub(crate) fn minor_continue(access: UffdAccess) -> bool {
    let attempt = || {
        let uffd = Uffd::open(access, feature::MINOR_SHMEM | feature::MISSING_SHMEM).ok()?;
        let object = map::memfd("hanare-probe", page_size() as u64).ok()?;
        let view = Mapping::shared(&object, 0, page_size()).ok()?;
        let filler = Mapping::shared(&object, 0, page_size()).ok()?;
        let mode = RegisterMode { missing: true, wp: false, minor: true };
        uffd.register(view.addr(), view.len(), mode).ok()?;
        mark(&filler);
        Some(uffd.continue_(view.addr(), view.len(), false).is_ok() && is_marked(&view))
    };
    attempt().unwrap_or(false)
}

pub(crate) fn pagemap_scan(access: UffdAccess) -> bool {
    let attempt = || {
        let mode = RegisterMode { missing: false, wp: true, minor: false };
        let bench = Bench::new(access, feature::WP | feature::WP_ASYNC, mode)?;
        let pagemap = Pagemap::open().ok()?;
        let written = || {
            let mut out = [Region::EMPTY; 1];
            let scan = pagemap.scan_written(bench.far.addr(), bench.far.end(), true, &mut out).ok()?;
            Some(scan.regions)
        };
        mark(&bench.far);
        let after_first_write = written()?;
        let after_protecting = written()?;
        mark(&bench.far);
        Some((after_first_write, after_protecting, written()?) == (1, 0, 1))
    };
    attempt().unwrap_or(false)
}

/// Checks two properties of guards in shared memory. A guard must make a page absent. When the guard is removed, the
/// page must have its old bytes again.
pub(crate) fn guards() -> bool {
    let attempt = || {
        let object = map::memfd("hanare-probe", page_size() as u64).ok()?;
        let view = Mapping::shared(&object, 0, page_size()).ok()?;
        mark(&view);
        // SAFETY: the mapping belongs to this experiment, so no other code relies on its contents.
        unsafe { map::guard(view.addr(), view.len()) }.ok()?;
        let away = present_pages(view.addr(), 1) == Ok(0);
        map::unguard(view.addr(), view.len()).ok()?;
        // SAFETY: `view` is one readable page without a guard.
        Some(away && unsafe { view.as_ptr().read_volatile() } == MARK)
    };
    attempt().unwrap_or(false)
}

/// Checks whether the kernel frees page tables that become empty by MADV_DONTNEED. The kernel counts the bytes of all
/// page tables of the process, and other threads may change this number. So the experiment uses several tables.
pub(crate) fn frees_tables() -> bool {
    const TABLES: usize = 16;
    let attempt = || {
        let table_maps = page_size() / size_of::<u64>() * page_size();
        let pages = Mapping::reserve(TABLES * table_maps, table_maps).ok()?;
        let (start, len) = (pages.addr(), pages.len());
        // SAFETY: the mapping belongs to this experiment, so no other code relies on its contents.
        unsafe { map::advise(start, len, Advice::NoHugePage) }.ok()?;
        for table in 0..TABLES {
            // SAFETY: the page lies in the mapping, which is writable and belongs to this experiment.
            unsafe { pages.as_ptr().add(table * table_maps).write_volatile(MARK) };
        }
        let before = page_table_bytes()?;
        // SAFETY: the mapping belongs to this experiment, so no other code relies on its contents.
        unsafe { map::advise(start, len, Advice::DontNeed) }.ok()?;
        Some(before.saturating_sub(page_table_bytes()?) >= TABLES / 2 * page_size())
    };
    attempt().unwrap_or(false)
}

/// Returns the bytes of this process's page tables of the lowest level.
fn page_table_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:"))?;
    Some(line.split_whitespace().next()?.parse::<usize>().ok()? << 10)
}

pub(crate) fn process_madvise() -> bool {
    let attempt = || {
        let pages = Mapping::anonymous(2 * page_size()).ok()?;
        mark(&pages);
        let mut batch = DontNeedBatch::new(true);
        let mut flushed = batch.push(pages.addr(), page_size());
        // SAFETY: the mapping belongs to this experiment, so no other code relies on its contents.
        unsafe { batch.flush(|_, _, _| flushed = false) };
        Some(flushed && batch.uses_process_madvise() && present_pages(pages.addr(), 1) == Ok(0))
    };
    attempt().unwrap_or(false)
}
