//! The base of both kinds of view: where far memory is, the frames and places beside it, and what the program may access.

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
    /// Places for pages that are moved aside ([`super::View::move_aside`]), in units.
    pub(crate) aside_units: usize,
}

/// A view without its trap.
pub(crate) struct Base {
    pub(super) base: usize,
    pub(super) sizes: Sizes,
    /// Where each offset is: in the reservation, save for windows and holes.
    pub(super) windows: &'static Windows,
    huge: bool,
    pools: Pools,
    pub(super) zeroes: usize,
    /// Reads pages that the program closed. Held open, for there may be no descriptor left when it is needed.
    memory: Result<OwnMemory, Errno>,
    pub(super) restrictions: Restrictions,
    pub(super) program: Program,
}

/// Memory for frames, and for pages that are moved aside; 0 where there are none.
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
    /// Far memory at `base`, which the caller has mapped.
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

    /// The same in a forked child, with frames of its own: nothing is in the parent's at rest.
    pub(super) fn with_own_frames(self) -> Result<Self, ViewError> {
        let pools = Pools::new(&self.sizes)?;
        // Few programs close pages by mprotect. Where there is no `/proc`, the run ends only when such a page has to leave.
        Ok(Self { pools, memory: OwnMemory::open(), ..self })
    }

    /// Start and length of the frames and places.
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

    /// Advises a whole range of the view's.
    pub(super) fn advise(&self, addr: usize, len: usize) -> Result<(), ViewError> {
        // A huge page would fill all frames and places in it with the first one that is written, and MOVE wants its
        // destination empty.
        let is_shared_pool = addr == self.pools.small || addr == self.pools.aside;
        let shares_huge = is_shared_pool && !self.sizes.unit.is_multiple_of(HUGE_PAGE);
        let size = if self.huge && !shares_huge { Advice::HugePage } else { Advice::NoHugePage };
        for advice in [size, Advice::DontFork, Advice::DontDump] {
            // SAFETY: the range is our own mapping; none of the three changes its contents.
            let advised = again(|| unsafe { map::advise(addr, len, advice) });
            // A kernel built without huge pages does not know the word, and has none.
            let unknown = advice == size && advised == Err(Errno(libc::EINVAL));
            advised.or(if unknown { Ok(()) } else { advised }).map_err(|errno| MapError::Reserve { len, errno })?;
        }
        Ok(())
    }

    /// Visits every range of addresses that is far, with the span it shows; neighbours are one where nothing is in between.
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

    /// Copies pages that the program cannot read itself.
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

/// A page that the program closed has to leave a process that was forked where there was no `/proc`.
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

/// Drops pages whose bytes nobody needs: of a frame that is free, or in transit out of view.
pub(super) fn drop_pages(addr: usize, len: usize) {
    // SAFETY: as said above.
    if let Err(errno) = unsafe { map::advise(addr, len, Advice::DontNeed) } {
        drop_refused(addr, len, errno);
    }
}

/// Drops pages that the kernel refused to drop once. Where nothing is mapped any more nothing is left to drop.
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
