//! The program's view of far memory: the mappings through which the program accesses far memory. A page *in view* is
//! present in these mappings. A *frame* is local memory outside the view. Only this module maps and unmaps pages of the
//! view.
//!
//! The engine uses a view only through the trait [`View`]. Two types implement this trait on live memory.
//! [`Userfaultfd`] uses private anonymous memory. It copies pages into the view, or moves whole frames into and out of
//! the view. It write-protects clean pages. [`Doubled`] (sigsegv mode) uses shared memory that is mapped twice. It
//! fills pages through the second mapping, which never traps. Both types contain a [`Base`], which holds their common
//! part. This module makes no decisions about pages, allocates nothing on a fault path and does not know the servers.

mod access;
mod base;
mod doubled;
#[cfg(test)]
pub(crate) mod fake;
mod fork;
mod guards;
mod moving;
#[cfg(test)]
mod tests;
mod userfaultfd;

use std::ops::Deref;

use hanare_paging::FrameId;
use hanare_sys::Errno;
use hanare_sys::map::MapError;
use hanare_sys::uffd::{Uffd, UffdError};

use crate::span::Span;
use crate::windows::WINDOWS_MAX;

pub use base::has_rings;
pub(crate) use base::{Abilities, Base, Sizes};
pub(crate) use doubled::{Doubled, Protection};
pub(crate) use userfaultfd::Userfaultfd;

/// The operations of a view that the engine uses. Every span consists of whole pages.
///
/// A page *in transit* belongs to the thread that carries out the pager's action on the page. No other call changes the
/// page meanwhile.
pub(crate) trait View {
    /// Returns the offset of an address in far memory. Returns `None` for an address outside far memory.
    fn offset_of(&self, addr: usize) -> Option<usize>;

    // ---- memory outside the view ------------------------------------------------------------------------------------

    /// Returns the address of a frame's bytes.
    fn frame(&self, frame: FrameId) -> *mut u8;

    /// Returns the address of a frame whose bytes are not needed, and which is about to be filled. Called once before a
    /// frame is filled, unless [`Self::zero_frame`] fills it.
    fn frame_to_fill(&self, frame: FrameId) -> *mut u8;

    /// Gives a frame's memory back to the kernel.
    fn empty_frame(&self, frame: FrameId);

    /// Fills a frame with zeroes, whether it has memory or is empty.
    ///
    /// # Safety
    /// The frame's bytes are not needed, and only the caller uses the frame.
    unsafe fn zero_frame(&self, frame: FrameId);

    /// Returns the number of places for pages that are moved aside. A place has the size of a unit.
    fn aside_units(&self) -> usize;

    /// Returns the address of a place for a page that is moved aside. `place` is the index of the place.
    fn aside(&self, place: usize) -> *const u8;

    /// Drops the pages in `count` places. `first` is the index of the first place.
    fn drop_aside(&self, first: usize, count: usize);

    /// Returns the address of a range of zeroes with the length of the largest page. Nothing writes to the range.
    fn zeroes(&self) -> *const u8;

    /// Returns the address at which the bytes of an absent page can be received without a copy. Returns `None` if the
    /// bytes must be received in a buffer and then copied into the view.
    fn receive_place(&self, offset: usize) -> Option<*mut u8>;

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Fills absent pages with the bytes at `from`, and wakes the threads that wait for these pages. A page that is
    /// present already keeps its bytes. Returns false if a page was present already or could not be write-protected. In
    /// this case the whole span is open for writing.
    ///
    /// # Safety
    /// `from` points to `span.len` readable bytes that do not change. The pages are in transit, and no other call fills
    /// them.
    unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool;

    /// Moves a frame's bytes into an absent page. The frame is empty afterwards. Returns false if the page should be
    /// write-protected but is open for writing. A view that moves pages leaves them open.
    ///
    /// # Safety
    /// The page is in transit and the frame is filled. No other call uses the page or the frame.
    unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool;

    /// Maps pages into the view. Their bytes were received through [`Self::receive_place`], or the pages were
    /// write-protected before. Returns false if the pages should be write-protected but are open for writing.
    #[must_use = "pages that are open for writing count as dirty"]
    fn show(&self, span: Span, writable: bool) -> bool;

    /// Makes pages in view accessible again, after an access to them trapped. Returns false, and changes nothing, if
    /// this would open a page for writing that must stay write-protected.
    #[must_use = "pages that are not shown go on trapping"]
    fn show_again(&self, span: Span, writable: bool) -> bool;

    /// Opens a write-protected page for writing, and wakes the threads that wait to write to it.
    fn open(&self, span: Span);

    /// Wakes the threads that wait for a page.
    fn wake(&self, span: Span);

    /// Returns the address of a part of a page in view that the kernel does not have any more. Returns `None` if it has the
    /// whole page, or if this view cannot tell.
    fn lost_page(&self, span: Span) -> Option<usize>;

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// Moves a page out of view into an empty frame, atomically with respect to writes. `clean` says that the page is
    /// not open for writing. The frame receives the bytes of a clean page too. Returns false if a transfer holds the
    /// page. In this case the page stays in view, unchanged.
    ///
    /// # Safety
    /// The page is in transit and the frame is empty. No other call uses the page or the frame.
    #[must_use = "a page that stays is still in view"]
    unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool;

    /// Moves dirty base pages out of view to the places from index `place` on, atomically with respect to writes. A
    /// move changes the page table once. Write-protecting the pages and dropping them later would change the page table
    /// twice.
    ///
    /// # Safety
    /// The pages are in transit, in view and open for writing. The places are empty. No other call uses the pages or
    /// the places.
    unsafe fn move_aside(&self, span: Span, place: usize) -> Moved;

    /// Write-protects pages in view. Later writes trap and wait.
    fn write_protect(&self, span: Span);

    /// Returns the address of a write-protected page's bytes. Returns `None` if the bytes cannot be read in place.
    fn protected_bytes(&self, span: Span) -> Option<*const u8>;

    /// Copies the bytes of a write-protected page to `to`.
    ///
    /// # Safety
    /// The page is write-protected and present. `to` points to `span.len` writable bytes that only the caller uses.
    unsafe fn read(&self, span: Span, to: *mut u8);

    /// Drops write-protected or clean pages from the view, with few system calls. The bytes of these pages are lost.
    fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>);
}

/// The result of a request to move pages out of view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a page that stays is still in view"]
pub(crate) enum Moved {
    /// The pages are out of view, and their bytes are at the destination.
    Gone,
    /// A transfer holds a page. All pages are in view, unchanged.
    Stays,
    /// The kernel cannot move these pages. All pages are in view, unchanged. The caller can write-protect, copy and
    /// drop them instead.
    Unmovable,
}

/// The reason why the view could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// The kernel refused address space for far memory.
    #[error("cannot set up far memory: {0}; lower HANARE_RESERVE or raise the limit on address space")]
    Map(#[from] MapError),
    /// The kernel refused to register far memory with userfaultfd.
    #[error("cannot set up far memory: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    /// This process' own memory cannot be opened as a file.
    #[error("cannot open /proc/self/mem: {0}; {advice}", advice = own_memory_advice(*.0))]
    OwnMemory(Errno),
    /// Too many programs and libraries of this process have large static arrays.
    #[error("more than {WINDOWS_MAX} programs and libraries have large arrays; set HANARE_STATIC=off")]
    Windows,
}

fn own_memory_advice(errno: Errno) -> &'static str {
    if errno.0 == libc::ENOENT { "mount /proc" } else { "raise the limit on open files" }
}

/// The mechanism by which accesses to absent pages trap.
pub(crate) enum Mechanism {
    /// Userfaultfd, opened with the features that the mode needs.
    Uffd(Uffd),
    /// Page protection or guards on a memfd that is mapped twice.
    Protection(Protection),
}

/// The view of a live process.
pub(crate) enum LiveView {
    /// Userfaultfd traps accesses.
    Userfaultfd(Userfaultfd),
    /// Page protection or guards trap accesses.
    Doubled(Doubled),
}

/// Evaluates an expression on whichever view a [`LiveView`] holds.
macro_rules! ask {
    ($view:expr, $of:ident => $answer:expr) => {
        match $view {
            LiveView::Userfaultfd($of) => $answer,
            LiveView::Doubled($of) => $answer,
        }
    };
}

impl LiveView {
    /// Reserves and registers the address space of far memory and of the frames.
    pub(crate) fn new(mechanism: Mechanism, sizes: Sizes, able: Abilities) -> Result<Self, ViewError> {
        Ok(match mechanism {
            Mechanism::Uffd(uffd) => LiveView::Userfaultfd(Userfaultfd::new(uffd, sizes, able)?),
            Mechanism::Protection(protection) => LiveView::Doubled(Doubled::new(protection, sizes, able)?),
        })
    }

    /// Makes `addr..addr + span.len` an alias mapping: from now on, the program accesses `span` at `addr` and not in
    /// the reserved address space. Replaces the mapping that exists at `addr`. The program must not have used `span`
    /// before. After an error, the range at `addr` is ordinary zeroed memory or is not mapped.
    ///
    /// # Safety
    /// The address range consists of whole pages. The caller owns the range and its contents. Nothing accesses the
    /// range meanwhile.
    pub(crate) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        // SAFETY: the caller guarantees the conditions of `add_window`.
        ask!(self, view => unsafe { view.add_window(addr, span) })
    }

    /// Excludes `span` from far memory for ever. No page of `span` may be in view. The caller maps other memory at the
    /// addresses of `span` afterwards.
    pub(crate) fn puncture(&self, span: Span) {
        match self {
            LiveView::Userfaultfd(view) => view.windows.puncture(span),
            LiveView::Doubled(view) => view.puncture(span),
        }
    }

    /// Returns the userfaultfd. Returns `None` in sigsegv mode, which uses none.
    pub(crate) fn uffd(&self) -> Option<&Uffd> {
        match self {
            LiveView::Userfaultfd(view) => Some(&view.uffd),
            LiveView::Doubled(_) => None,
        }
    }
}

impl Deref for LiveView {
    type Target = Base;

    fn deref(&self) -> &Base {
        ask!(self, view => &view.base)
    }
}

impl View for LiveView {
    #[inline]
    fn offset_of(&self, addr: usize) -> Option<usize> {
        self.windows.offset_of(addr)
    }

    fn frame(&self, frame: FrameId) -> *mut u8 {
        Base::frame(self, frame)
    }

    fn frame_to_fill(&self, frame: FrameId) -> *mut u8 {
        Base::frame_to_fill(self, frame)
    }

    fn empty_frame(&self, frame: FrameId) {
        Base::empty_frame(self, frame);
    }

    unsafe fn zero_frame(&self, frame: FrameId) {
        // SAFETY: the caller guarantees that only it uses the frame, whose bytes are not needed.
        unsafe { Base::zero_frame(self, frame) };
    }

    fn aside_units(&self) -> usize {
        self.sizes.aside_units
    }

    fn aside(&self, place: usize) -> *const u8 {
        Base::aside(self, place)
    }

    fn drop_aside(&self, first: usize, count: usize) {
        base::drop_pages(Base::aside(self, first) as usize, count * self.sizes.unit);
    }

    fn zeroes(&self) -> *const u8 {
        self.zeroes as *const u8
    }

    fn receive_place(&self, offset: usize) -> Option<*mut u8> {
        match self {
            LiveView::Userfaultfd(_) => None,
            LiveView::Doubled(view) => Some(view.behind(offset)),
        }
    }

    unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        // SAFETY: the caller guarantees the conditions of `copy_in`.
        ask!(self, view => unsafe { view.copy_in(span, from, writable) })
    }

    unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        // SAFETY: the caller guarantees the conditions of `move_in`.
        ask!(self, view => unsafe { view.move_in(span, frame, writable) })
    }

    fn show(&self, span: Span, writable: bool) -> bool {
        match self {
            LiveView::Userfaultfd(view) => {
                // With userfaultfd, the program can read every page in view, so only writes need a change.
                if writable {
                    view.open(span);
                }
                true
            }
            LiveView::Doubled(view) => view.show(span, writable),
        }
    }

    fn show_again(&self, span: Span, writable: bool) -> bool {
        match self {
            LiveView::Userfaultfd(_) => true,
            LiveView::Doubled(view) => view.show_again(span, writable),
        }
    }

    fn open(&self, span: Span) {
        ask!(self, view => view.open(span));
    }

    fn lost_page(&self, span: Span) -> Option<usize> {
        match self {
            LiveView::Userfaultfd(view) => view.lost_page(span),
            // The bytes are in a file, so dropping a mapping loses none.
            LiveView::Doubled(_) => None,
        }
    }

    fn wake(&self, span: Span) {
        match self {
            LiveView::Userfaultfd(view) => view.wake(span),
            // In sigsegv mode, a faulting thread waits on a wait queue of the engine, so the kernel need not wake it.
            LiveView::Doubled(_) => {}
        }
    }

    unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool {
        // SAFETY: the caller guarantees the conditions of `move_out`.
        ask!(self, view => unsafe { view.move_out(span, frame, clean) })
    }

    unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        match self {
            // SAFETY: the caller guarantees the conditions of `move_aside`.
            LiveView::Userfaultfd(view) => unsafe { view.move_aside(span, place) },
            LiveView::Doubled(_) => Moved::Unmovable,
        }
    }

    fn write_protect(&self, span: Span) {
        ask!(self, view => view.write_protect(span));
    }

    fn protected_bytes(&self, span: Span) -> Option<*const u8> {
        ask!(self, view => view.protected_bytes(span))
    }

    unsafe fn read(&self, span: Span, to: *mut u8) {
        // SAFETY: the caller guarantees the conditions of `read`.
        ask!(self, view => unsafe { view.read(span, to) });
    }

    fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>) {
        ask!(self, view => view.drop_together(spans));
    }
}
