//! The base of both views: the location of far memory, the frames and places beside it, and the program's access.

use hanare_paging::FrameId;
use hanare_sys::copy::OwnMemory;
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::{Errno, again};

use super::{Program, ViewError};
use crate::fatal::{self, EXIT_KERNEL};
use crate::kernel::{Patience, insist};
use crate::near::is_mapped;
use crate::restrictions::Restrictions;
use crate::span::Span;
use crate::windows::Windows;

/// Bytes of a huge page.
pub(super) const HUGE_PAGE: usize = 2 << 20;

/// Sizes of the view, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) reserve: usize,
    pub(crate) unit: usize,
    pub(crate) block: usize,
    pub(crate) small_frames: usize,
    pub(crate) wide_frames: usize,
    /// Space for pages that are moved aside ([`super::View::move_aside`]), in units.
    pub(crate) aside_units: usize,
}

/// A view without a trap.
pub(crate) struct Base {
    pub(super) base: usize,
    pub(super) sizes: Sizes,
    /// The address of each offset: in the reservation, except for alias mappings and foreign mappings.
    pub(super) windows: &'static Windows,
    huge: bool,
    pools: Pools,
    pub(super) zeroes: usize,
    /// Reads pages that the program made inaccessible. Kept open, because no descriptor may be left when it is needed.
    memory: Result<OwnMemory, Errno>,
    pub(super) restrictions: Restrictions,
    pub(super) program: Program,
}

/// Memory for frames and for pages that are moved aside. An address is 0 where there is none.
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
    /// Makes far memory at `base`, which the caller has mapped.
    pub(super) fn new(base: usize, sizes: Sizes, huge: bool, program: Program) -> Result<Self, ViewError> {
        Ok(Self {
            base,
            sizes,
            windows: Box::leak(Box::new(Windows::new(base, sizes.reserve))),
            huge,
            pools: Pools::new(&sizes)?,
            zeroes: Mapping::anonymous(sizes.block.max(sizes.unit))?.leak(),
            memory: Ok(OwnMemory::open().map_err(ViewError::OwnMemory)?),
            restrictions: Restrictions::new(sizes.reserve),
            program,
        })
    }

    /// The same view in a forked child, with frames of its own. The parent's frames are empty at rest.
    pub(super) fn with_own_frames(self) -> Result<Self, ViewError> {
        let pools = Pools::new(&self.sizes)?;
        // Few programs make pages inaccessible. Without `/proc`, the run ends only when such a page has to leave.
        Ok(Self { pools, memory: OwnMemory::open(), ..self })
    }

    /// Start and length of each pool of frames and places.
    pub(super) fn pools(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let Sizes { unit, block, small_frames, wide_frames, aside_units, .. } = self.sizes;
        let small = (self.pools.small, (small_frames * unit).next_multiple_of(HUGE_PAGE));
        let wide = (self.pools.wide, wide_frames * block);
        let aside = (self.pools.aside, (aside_units * unit).next_multiple_of(HUGE_PAGE));
        [small, wide, aside].into_iter().filter(|&(addr, len)| addr != 0 && len > 0)
    }

    pub(super) fn advise_pools(&self) -> Result<(), ViewError> {
        self.pools().try_for_each(|(addr, len)| self.advise(addr, len))
    }

    /// Sets the advice for a whole range of the view.
    pub(super) fn advise(&self, addr: usize, len: usize) -> Result<(), ViewError> {
        // In a huge page, the first write to one frame or place would fill all others in it. But MOVE requires an empty
        // destination.
        let is_shared_pool = addr == self.pools.small || addr == self.pools.aside;
        let shares_huge = is_shared_pool && !self.sizes.unit.is_multiple_of(HUGE_PAGE);
        let size = if self.huge && !shares_huge { Advice::HugePage } else { Advice::NoHugePage };
        for advice in [size, Advice::DontFork, Advice::DontDump] {
            // SAFETY: the range is our own mapping; none of the three changes its contents.
            let advised = again(|| unsafe { map::advise(addr, len, advice) });
            // A kernel without huge pages rejects this advice, which is not needed there.
            let unknown = advice == size && advised == Err(Errno(libc::EINVAL));
            advised.or(if unknown { Ok(()) } else { advised }).map_err(|errno| MapError::Reserve { len, errno })?;
        }
        Ok(())
    }

    /// Visits every far range of addresses with the span that it shows. Adjacent ranges are merged.
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

    /// Start of the reservation.
    pub(crate) fn base(&self) -> usize {
        self.base
    }

    /// Length of the reservation, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.sizes.reserve
    }

    pub(crate) fn windows(&self) -> &'static Windows {
        self.windows
    }

    /// Whether the program has a single thread.
    pub(crate) fn is_alone(&self) -> bool {
        (self.program.is_alone)()
    }

    pub(super) fn frame(&self, frame: FrameId) -> *mut u8 {
        let (pool, size) = match frame.wide {
            true => (self.pools.wide, self.sizes.block),
            false => (self.pools.small, self.sizes.unit),
        };
        (pool + frame.index as usize * size) as *mut u8
    }

    pub(super) fn empty_frame(&self, frame: FrameId) {
        let size = if frame.wide { self.sizes.block } else { self.sizes.unit };
        drop_pages(self.frame(frame) as usize, size);
    }

    pub(super) fn aside(&self, place: usize) -> *const u8 {
        debug_assert!(place < self.sizes.aside_units);
        (self.pools.aside + place * self.sizes.unit) as *const u8
    }

    /// Copies pages that the program itself cannot read.
    ///
    /// # Safety
    /// The pages are write-protected and present; `to` has room for them and is the caller's.
    pub(super) unsafe fn read_closed(&self, span: Span, to: *mut u8) {
        let memory = self.memory.as_ref().unwrap_or_else(|errno| no_memory_file(*errno));
        self.windows.runs(span, |addr, part| {
            insist("read pages that the program closed", || {
                // SAFETY: a part of the caller's buffer; the kernel reads the page whatever its protection.
                let into = unsafe { std::slice::from_raw_parts_mut(to.add(part.offset - span.offset), part.len) };
                memory.read(addr, into)
            });
        });
    }
}

/// Ends the run: a page that the program made inaccessible must leave, but this process was forked without `/proc` and
/// cannot read it.
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

/// Drops pages whose bytes are no longer needed: of a free frame, or of a page in transit out of view.
pub(super) fn drop_pages(addr: usize, len: usize) {
    // SAFETY: nobody needs the bytes, as the function's contract says.
    if let Err(errno) = unsafe { map::advise(addr, len, Advice::DontNeed) } {
        drop_refused(addr, len, errno);
    }
}

/// Retries a drop that the kernel refused once. Where nothing is mapped any more, there is nothing to drop.
#[cold]
pub(super) fn drop_refused(addr: usize, len: usize, first: Errno) {
    let mut patience = Patience::to("drop pages");
    let mut errno = first;
    loop {
        if errno.0 == libc::ENOMEM && !is_mapped(addr, len) {
            return;
        }
        patience.refused(errno);
        // SAFETY: as in `drop_pages`.
        match unsafe { map::advise(addr, len, Advice::DontNeed) } {
            Ok(()) => return,
            Err(again) => errno = again,
        }
    }
}
