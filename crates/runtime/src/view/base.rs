//! The common part of both views: the location of far memory, the frames, the places for pages that are moved aside,
//! and the access that the program allows.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hanare_paging::{FrameId, limits};
use hanare_sys::copy::OwnMemory;
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::{Errno, again, copy};

use super::ViewError;
use crate::fatal::{self, EXIT_KERNEL};
use crate::kernel::{Patience, insist};
use crate::near::is_mapped;
use crate::restrictions::Restrictions;
use crate::span::Span;
use crate::windows::Windows;

/// Bytes of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Sizes of the view.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    /// Bytes of the reservation.
    pub(crate) reserve: usize,
    /// The address where the reservation should lie. Wherever the kernel chooses if `None`, or if it is taken.
    pub(crate) place: Option<usize>,
    /// Bytes of a unit.
    pub(crate) unit: usize,
    /// Bytes of a block.
    pub(crate) block: usize,
    /// Number of frames for base pages.
    pub(crate) small_frames: usize,
    /// Number of frames for blocks.
    pub(crate) wide_frames: usize,
    /// Number of places for pages that are moved aside ([`super::View::move_aside`]). A place has the size of a unit.
    pub(crate) aside_units: usize,
}

/// The abilities of the kernel that a view uses.
#[derive(Clone, Copy)]
pub(crate) struct Abilities {
    /// Whether blocks may be huge pages.
    pub(crate) huge: bool,
    /// Whether `process_madvise` can drop pages.
    pub(crate) batches: bool,
    /// Whether the kernel frees the page tables that MADV_DONTNEED leaves empty.
    pub(crate) frees_tables: bool,
}

#[cfg(test)]
impl Abilities {
    pub(crate) const NONE: Self = Self { huge: false, batches: false, frees_tables: false };
}

/// The part of a view that does not depend on how accesses trap.
pub(crate) struct Base {
    pub(super) base: usize,
    pub(super) sizes: Sizes,
    /// Maps offsets to addresses. An offset lies in the reservation, in an alias mapping, or in a foreign mapping.
    pub(super) windows: &'static Windows,
    pub(super) able: Abilities,
    pools: Pools,
    pub(super) zeroes: usize,
    /// `/proc/self/mem`, through which the view reads pages that the program made inaccessible. The file is opened at
    /// the start, because the program may later have used up all descriptors.
    memory: Result<OwnMemory, Errno>,
    pub(super) restrictions: Restrictions,
}

/// Whether the program may use io_uring.
static HAS_RINGS: AtomicBool = AtomicBool::new(false);

/// Records that the program may use io_uring. A zero-copy send of io_uring reads a page without pinning it. So the page may
/// leave the view meanwhile, and its memory must not get other bytes. From now on, a frame gets new memory before it is
/// filled. The kernel keeps the old memory until nobody reads it.
pub fn has_rings() {
    HAS_RINGS.store(true, Relaxed);
}

/// Start addresses of three pools of memory: for frames of base pages, for frames of blocks, and for pages that are
/// moved aside. The address of a pool without bytes is 0.
#[derive(Clone, Copy)]
struct Pools {
    small: usize,
    wide: usize,
    aside: usize,
}

impl Pools {
    fn new(sizes: &Sizes) -> Result<Self, MapError> {
        let pool = |len: usize| match len {
            0 => Ok(0),
            len => Ok(Mapping::reserve(len.next_multiple_of(HUGE_PAGE), HUGE_PAGE)?.leak()),
        };
        Ok(Self {
            small: pool(sizes.small_frames * sizes.unit)?,
            wide: pool(sizes.wide_frames * sizes.block)?,
            aside: pool(sizes.aside_units * sizes.unit)?,
        })
    }
}

impl Base {
    /// Makes far memory of `sizes.reserve` bytes at `base`. The caller has mapped this range.
    pub(super) fn new(base: usize, sizes: Sizes, able: Abilities) -> Result<Self, ViewError> {
        Ok(Self {
            base,
            sizes,
            windows: Box::leak(Box::new(Windows::new(base, sizes.reserve))),
            able,
            pools: Pools::new(&sizes)?,
            zeroes: Mapping::anonymous(sizes.block.max(sizes.unit).max(limits::RUN_BYTES_MAX as usize))?.leak(),
            memory: Ok(OwnMemory::open().map_err(ViewError::OwnMemory)?),
            restrictions: Restrictions::new(sizes.reserve),
        })
    }

    /// Maps new frames and places, in a forked child. The child does not inherit the parent's frames. The parent's
    /// frames are empty at the fork, so no bytes are lost.
    pub(super) fn with_own_frames(self) -> Result<Self, ViewError> {
        let pools = Pools::new(&self.sizes)?;
        // Without `/proc`, `OwnMemory::open` fails. The run then ends only if a page that the program made inaccessible
        // must be evicted.
        Ok(Self { pools, memory: OwnMemory::open(), ..self })
    }

    /// Returns the start and the length of each pool of frames and places, in bytes.
    pub(super) fn pools(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Sizes { unit, block, small_frames, wide_frames, aside_units, .. } = self.sizes;
        let small = (self.pools.small, (small_frames * unit).next_multiple_of(HUGE_PAGE));
        let wide = (self.pools.wide, wide_frames * block);
        let aside = (self.pools.aside, (aside_units * unit).next_multiple_of(HUGE_PAGE));
        [small, wide, aside].into_iter().filter(|&(addr, len)| addr != 0 && len > 0)
    }

    pub(super) fn advise_pools(&self) -> Result<(), ViewError> {
        self.pools().try_for_each(|(addr, len)| {
            // MOVE requires an empty destination. If several small frames or places shared a huge page, the first write
            // to one would also fill the others. So these pools have no huge pages.
            let is_shared_pool = addr == self.pools.small || addr == self.pools.aside;
            let shares_huge = is_shared_pool && !self.sizes.unit.is_multiple_of(HUGE_PAGE);
            self.advise(addr, len, self.able.huge && !shares_huge)
        })
    }

    /// Advises the kernel (madvise) about a range of the view or about a pool: no inheritance by forked children, no
    /// core dumps, and huge pages or none.
    pub(super) fn advise(&self, addr: usize, len: usize, huge: bool) -> Result<(), ViewError> {
        let size = if huge { Advice::HugePage } else { Advice::NoHugePage };
        for advice in [size, Advice::DontFork, Advice::DontDump] {
            // SAFETY: the range is a mapping of far memory or of a pool. None of the three kinds of advice changes the
            // contents of the range.
            let advised = again(|| unsafe { map::advise(addr, len, advice) });
            // A kernel without huge pages rejects advice about huge pages. The error does no harm.
            let unknown = advice == size && advised == Err(Errno(libc::EINVAL));
            advised.or(if unknown { Ok(()) } else { advised }).map_err(|errno| MapError::Reserve { len, errno })?;
        }
        Ok(())
    }

    /// Calls `visit` for each mapping of far memory, with its address and its span of offsets. Leaves out foreign
    /// mappings.
    pub(super) fn each_range(&self, mut visit: impl FnMut(usize, Span)) {
        let whole = Span { offset: 0, len: self.sizes.reserve };
        if self.windows.hole_bytes() > 0 {
            return self.windows.runs(whole, visit);
        }
        visit(self.base, whole);
        for (addr, len) in self.windows.ranges() {
            if let Some(offset) = self.windows.offset_of(addr) {
                visit(addr, Span { offset, len });
            }
        }
    }

    /// Returns the start address of the reservation.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Returns the length of the reservation, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.sizes.reserve
    }

    pub(crate) fn windows(&self) -> &'static Windows {
        self.windows
    }

    pub(super) fn frame(&self, frame: FrameId) -> *mut u8 {
        let (pool, size) = match frame.wide {
            true => (self.pools.wide, self.sizes.block),
            false => (self.pools.small, self.sizes.unit),
        };
        (pool + frame.index as usize * size) as *mut u8
    }

    fn frame_bytes(&self, frame: FrameId) -> usize {
        if frame.wide { self.sizes.block } else { self.sizes.unit }
    }

    pub(super) fn empty_frame(&self, frame: FrameId) {
        drop_pages(self.frame(frame) as usize, self.frame_bytes(frame));
    }

    /// Fills a frame with zeroes. The kernel zeroes the memory that it gives to an empty frame. To write zeroes to such a
    /// frame would do this a second time, so the frame is emptied first, and gets memory by a call.
    ///
    /// # Safety
    /// The frame's bytes are not needed, and only the caller uses the frame.
    pub(super) unsafe fn zero_frame(&self, frame: FrameId) {
        let (start, len) = (self.frame(frame), self.frame_bytes(frame));
        // SAFETY: the caller guarantees that the frame's bytes are not needed.
        let advise = |advice| unsafe { map::advise(start as usize, len, advice) };
        if advise(Advice::DontNeed).and_then(|()| advise(Advice::PopulateWrite)).is_err() {
            // SAFETY: the frame has `len` bytes, and only the caller uses it.
            unsafe { copy::zero(start, len) };
        }
    }

    /// Returns the address of a frame whose bytes are not needed, and to which new ones are about to be written. The
    /// frame gets new memory if transfers may still read the page that was in it.
    pub(super) fn frame_to_fill(&self, frame: FrameId) -> *mut u8 {
        if HAS_RINGS.load(Relaxed) {
            self.empty_frame(frame);
        }
        self.frame(frame)
    }

    pub(super) fn aside(&self, place: usize) -> *const u8 {
        debug_assert!(place < self.sizes.aside_units);
        (self.pools.aside + place * self.sizes.unit) as *const u8
    }

    /// Copies the bytes of pages to `to`. The program made these pages inaccessible by `mprotect`.
    ///
    /// # Safety
    /// The pages are write-protected and present. `to` points to `span.len` writable bytes that only the caller uses.
    pub(super) unsafe fn read_closed(&self, span: Span, to: *mut u8) {
        let memory = self.memory.as_ref().unwrap_or_else(|errno| no_memory_file(*errno));
        self.windows.runs(span, |addr, part| {
            insist("read pages that the program closed", || {
                // SAFETY: the slice is the part of the caller's buffer that belongs to `part`. The caller promises
                // `span.len` writable bytes at `to`.
                let into = unsafe { std::slice::from_raw_parts_mut(to.add(part.offset - span.offset), part.len) };
                memory.read(addr, into)
            });
        });
    }
}

/// Ends the run. The process must evict a page that the program made inaccessible, and cannot read the page without
/// `/proc/self/mem`. This happens only in a forked child that could not open this file.
#[cold]
fn no_memory_file(errno: Errno) -> ! {
    fatal::die(
        EXIT_KERNEL,
        format_args!(
            "cannot read pages that the program closed by mprotect: /proc/self/mem could not be opened after a fork \
             ({errno}); mount /proc where the program goes, or give a larger --local"
        ),
    )
}

/// Drops pages and their bytes: the pages of a free frame, or a page that is leaving the view.
pub(super) fn drop_pages(addr: usize, len: usize) {
    // SAFETY: every caller passes whole pages of the view, of a frame or of a place, whose bytes are no longer needed.
    if let Err(errno) = unsafe { map::advise(addr, len, Advice::DontNeed) } {
        drop_refused(addr, len, errno);
    }
}

/// Drops pages after the kernel refused a first attempt with the errno `first`. Retries until an attempt succeeds.
/// Returns without a retry if the range is not mapped.
#[cold]
pub(super) fn drop_refused(addr: usize, len: usize, first: Errno) {
    let mut patience = Patience::to("drop pages");
    let mut errno = first;
    loop {
        if errno.0 == libc::ENOMEM && !is_mapped(addr, len) {
            return;
        }
        patience.refused(errno);
        // The kernel refuses to drop locked pages (EINVAL). The program locked them by an instruction of its own, since the
        // library's `mlock` leaves far memory out.
        let advice = if errno.0 == libc::EINVAL { Advice::DontNeedLocked } else { Advice::DontNeed };
        // SAFETY: the caller passes whole pages whose bytes are no longer needed.
        match unsafe { map::advise(addr, len, advice) } {
            Ok(()) => return,
            Err(again) => errno = again,
        }
    }
}
