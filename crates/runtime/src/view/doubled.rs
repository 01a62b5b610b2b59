//! The view in sigsegv mode: shared memory that is mapped twice. The program uses the first mapping. Pages are filled
//! through the second mapping, which never traps.
//!
//! In the first mapping, [guards](super::guards) trap accesses to absent pages if the kernel supports them. Otherwise
//! the protection of each page traps these accesses.

use std::ops::Deref;
use std::os::fd::OwnedFd;

use hanare_paging::FrameId;
use hanare_sys::futex::{LockCell, LockCellGuard};
use hanare_sys::map::{self, MapError, Mapping, Prot};
use hanare_sys::{Errno, again, copy};

use super::ViewError;
use super::base::{Abilities, Base, HUGE_PAGE, Sizes, drop_pages};
use super::guards::Guards;
use crate::kernel::insist;
use crate::span::Span;

/// How accesses trap on a memfd that is mapped twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// The protection of each page traps. This costs up to two mappings for each page in view.
    Pages,
    /// Guards trap. A guard is a mark of the kernel in the page table.
    Guards {
        /// Maximum number of mappings that the detection of writes to clean pages may cost.
        mappings: usize,
    },
}

/// A view over shared memory that is mapped twice.
pub(crate) struct Doubled {
    pub(super) base: Base,
    /// Start of the second mapping.
    behind: usize,
    file: OwnedFd,
    /// The state of the guards. `None` if page protection traps accesses instead.
    guards: Option<LockCell<Guards>>,
}

impl Deref for Doubled {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Doubled {
    pub(super) fn new(protection: Protection, sizes: Sizes, able: Abilities) -> Result<Self, ViewError> {
        let file = map::memfd("hanare-view", sizes.reserve as u64)?;
        let seen = Mapping::shared_aligned(&file, sizes.reserve, HUGE_PAGE)?.leak();
        let behind = Mapping::shared_aligned(&file, sizes.reserve, HUGE_PAGE)?.leak();
        let base = Base::new(seen, sizes, able)?;
        // SAFETY: the range was mapped just now, and no pointer into it exists.
        again(|| unsafe { map::protect(seen, sizes.reserve, Prot::NONE) })
            .map_err(|errno| no_room(sizes.reserve, errno))?;
        base.advise(seen, sizes.reserve, able.huge)?;
        base.advise(behind, sizes.reserve, able.huge)?;
        base.advise_pools()?;
        Ok(Self { base, behind, file, guards: guards_of(protection, &sizes) })
    }

    /// Sets up the view in a forked child, over a new memfd. No page is in view.
    pub(super) fn again(base: Base, protection: Protection) -> Result<Self, ViewError> {
        let sizes = base.sizes;
        let file = map::memfd("hanare-view", sizes.reserve as u64)?;
        let behind = Mapping::shared_aligned(&file, sizes.reserve, HUGE_PAGE)?.leak();
        let mut answer = Ok(());
        base.each_range(|addr, span| {
            if answer.is_ok() {
                // SAFETY: the range is far memory without pages in view, and no other code of the child runs meanwhile.
                let placed = again(|| unsafe {
                    map::replace_with_shared(addr, span.len, &file, span.offset as u64, Prot::NONE)
                });
                let placed = placed.map_err(|errno| no_room(span.len, errno));
                answer = placed.and_then(|()| base.advise(addr, span.len, base.able.huge));
            }
        });
        answer?;
        base.advise_pools()?;
        base.advise(behind, sizes.reserve, base.able.huge)?;
        Ok(Self { base, behind, file, guards: guards_of(protection, &sizes) })
    }

    /// Adds an alias mapping of `span` at `addr`.
    ///
    /// # Safety
    /// The conditions of [`super::LiveView::add_window`] hold.
    pub(super) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        let guards = self.guards();
        if !self.windows.add(addr, span) {
            return Err(ViewError::Windows);
        }
        let replace = || {
            // SAFETY: the caller owns `addr..addr + span.len` and its contents. Nothing accesses the range meanwhile.
            unsafe { map::replace_with_shared(addr, span.len, &self.file, span.offset as u64, Prot::NONE) }
        };
        again(replace).map_err(|errno| no_room(span.len, errno))?;
        self.advise(addr, span.len, self.able.huge)?;
        match guards {
            Some(guards) => self.match_window(&guards, span).map_err(|errno| no_room(span.len, errno)),
            None => Ok(()),
        }
    }

    pub(super) fn puncture(&self, span: Span) {
        // Other threads guard extents under this lock. Without the lock, a thread could guard this range after the
        // program has mapped other memory there.
        let _guards = self.guards();
        self.windows.puncture(span);
    }

    /// Locks the state of the guards. Returns `None` if page protection traps accesses instead.
    pub(super) fn guards(&self) -> Option<LockCellGuard<'_, Guards>> {
        self.guards.as_ref().map(LockCell::lock)
    }

    /// Returns the address of an offset's bytes in the second mapping.
    pub(super) fn behind(&self, offset: usize) -> *mut u8 {
        (self.behind + offset) as *mut u8
    }

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Fills absent pages with bytes and maps them into the view; see [`super::View::copy_in`].
    ///
    /// # Safety
    /// The conditions of [`super::View::copy_in`] hold.
    pub(super) unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        // SAFETY: `from` points to `span.len` constant bytes. The program cannot access the second mapping, and the
        // caller guarantees that no other call fills these pages.
        unsafe { copy::copy(from, self.behind(span.offset), span.len) };
        self.show(span, writable)
    }

    /// Copies a frame into an absent page and empties the frame; see [`super::View::move_in`].
    ///
    /// # Safety
    /// The conditions of [`super::View::move_in`] hold.
    pub(super) unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        // SAFETY: the frame is filled with `span.len` bytes. The caller guarantees that the page is in transit and that
        // no other call uses the page or the frame.
        let certain = unsafe { self.copy_in(span, self.frame(frame), writable) };
        self.empty_frame(frame);
        certain
    }

    pub(super) fn show(&self, span: Span, writable: bool) -> bool {
        if let Some(guards) = self.guards() {
            return self.show_unguarded(guards, span, writable);
        }
        self.protect_own(span, if writable { Prot::READ_WRITE } else { Prot::READ });
        true
    }

    pub(super) fn show_again(&self, span: Span, writable: bool) -> bool {
        match self.guards() {
            Some(guards) => self.show_again_unguarded(guards, span, writable),
            None => self.show(span, writable),
        }
    }

    pub(super) fn open(&self, span: Span) {
        // Ignored: the result only matters for pages that must be protected against writes.
        let _ = self.show(span, true);
    }

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// Copies a page into an empty frame and drops the page; see [`super::View::move_out`].
    ///
    /// # Safety
    /// The conditions of [`super::View::move_out`] hold.
    pub(super) unsafe fn move_out(&self, span: Span, frame: FrameId, _clean: bool) -> bool {
        self.write_protect(span);
        // SAFETY: the page is write-protected. The frame has `span.len` bytes, and only the caller uses it.
        unsafe { self.read(span, self.frame(frame)) };
        self.windows.runs(span, |addr, part| drop_pages(addr, part.len));
        true
    }

    /// Makes every access of the program to these pages trap. The bytes of the pages stay in the memfd.
    pub(super) fn write_protect(&self, span: Span) {
        match &self.guards {
            Some(_) => self.guard(span),
            None => self.protect_own(span, Prot::NONE),
        }
    }

    pub(super) fn protected_bytes(&self, span: Span) -> Option<*const u8> {
        Some(self.behind(span.offset))
    }

    /// Copies the bytes of a write-protected page; see [`super::View::read`].
    ///
    /// # Safety
    /// The conditions of [`super::View::read`] hold.
    pub(super) unsafe fn read(&self, span: Span, to: *mut u8) {
        // SAFETY: the second mapping has the bytes of the page. The page is write-protected, so the bytes do not
        // change. The caller guarantees `span.len` writable bytes at `to`.
        unsafe { copy::copy(self.behind(span.offset), to, span.len) };
    }

    pub(super) fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>) {
        for span in spans {
            self.write_protect(span);
            insist("free pages of the view", || map::punch_hole(&self.file, span.offset as u64, span.len as u64));
        }
    }

    // ---- access -----------------------------------------------------------------------------------------------------

    pub(super) fn protect_own(&self, span: Span, prot: Prot) {
        if prot == Prot::NONE {
            return self.protect_run(span, prot);
        }
        self.restrictions.runs(span, |run, left| self.protect_run(run, Prot(prot.0 & left.0)));
    }

    fn protect_run(&self, span: Span, prot: Prot) {
        self.windows.runs(span, |addr, part| {
            // SAFETY: the range is a part of the program's view of far memory. A change of protection keeps its bytes.
            insist(
                "change the access to a page (sigsegv mode; a larger --page-size needs fewer mappings)",
                || unsafe { map::protect(addr, part.len, prot) },
            );
        });
    }
}

fn guards_of(protection: Protection, sizes: &Sizes) -> Option<LockCell<Guards>> {
    match protection {
        Protection::Pages => None,
        Protection::Guards { mappings } => Some(Guards::new(sizes.reserve, sizes.unit, mappings)),
    }
}

fn no_room(len: usize, errno: Errno) -> ViewError {
    ViewError::Map(MapError::Reserve { len, errno })
}
