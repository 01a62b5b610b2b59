//! The program's view of far memory, and the frames beside it. Only this module makes pages appear and vanish.
//!
//! The engine knows a view by the trait [`View`] alone. Two mechanisms implement it on live memory. [`Userfaultfd`]:
//! private anonymous memory; pages are copied in or whole frames moved in and out, and protected against writes while
//! clean. [`Doubled`] (sigsegv mode): shared memory mapped twice; pages are filled through a second mapping that never
//! traps. [`Base`] is their common part. This module makes no decisions, allocates nothing and knows nothing of
//! servers.

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
use hanare_sys::thread;
use hanare_sys::uffd::{Uffd, UffdError};

use crate::span::Span;
use crate::windows::WINDOWS_MAX;

pub(crate) use base::{Base, Sizes};
pub(crate) use doubled::{Doubled, Protection};
pub(crate) use userfaultfd::Userfaultfd;

/// A view, as the engine uses it. Spans are whole pages.
///
/// A page *in transit* belongs to the thread that carries out the pager's action on it: no other call changes it
/// meanwhile.
pub(crate) trait View {
    /// The offset of a far address; `None` for one that is not far.
    fn offset_of(&self, addr: usize) -> Option<usize>;

    // ---- memory beside the view -------------------------------------------------------------------------------------

    /// Address of a frame's bytes.
    fn frame(&self, frame: FrameId) -> *mut u8;

    /// Returns a frame's memory to the system.
    fn empty_frame(&self, frame: FrameId);

    /// Number of places for pages moved aside, one unit each.
    fn aside_units(&self) -> usize;

    /// Address of the bytes in `place`, one of the places for pages moved aside.
    fn aside(&self, place: usize) -> *const u8;

    /// Empties `count` places of pages that were moved aside, from place `first` on.
    fn drop_aside(&self, first: usize, count: usize);

    /// A range of zeroes with the length of the largest page. Nothing writes to it.
    fn zeroes(&self) -> *const u8;

    /// Address at which bytes for a page can be received straight into view. `None` if the mechanism needs a buffer.
    fn receive_place(&self, offset: usize) -> Option<*mut u8>;

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Copies bytes into view at absent pages, and wakes the threads that wait for them. Returns false when a page was
    /// there already, which keeps its bytes, or could not be protected. If it returns false, the whole span is open for
    /// writing.
    ///
    /// # Safety
    /// `from` has `span.len` readable bytes that nobody changes; the pages are in transit and this call's to fill.
    unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool;

    /// Moves a frame into view; the frame has no memory afterwards. Returns false when a page that had to be protected
    /// is open for writing instead.
    ///
    /// # Safety
    /// The page is in transit and the frame filled, both this call's to handle.
    unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool;

    /// Shows pages that were filled through [`Self::receive_place`], or were write-protected. Returns false when pages
    /// that had to be protected are open for writing instead.
    #[must_use = "pages that are open for writing count as dirty"]
    fn show(&self, span: Span, writable: bool) -> bool;

    /// Shows pages again that trapped although they are in view. Returns false, and shows nothing, if that would open a
    /// page for writing that must stay protected.
    #[must_use = "pages that are not shown go on trapping"]
    fn show_again(&self, span: Span, writable: bool) -> bool;

    /// Opens a protected page for writing and wakes its writers.
    fn open(&self, span: Span);

    /// Wakes the threads that wait for a page.
    fn wake(&self, span: Span);

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// Moves a page out of view into an empty frame, atomically with respect to writes. `clean` says that it is not
    /// open for writing; the frame receives its bytes even so, and an access brings it back from there. Returns false
    /// when a transfer holds the page: then it is in view, unchanged.
    ///
    /// # Safety
    /// The page is in transit and the frame empty, both this call's to handle.
    #[must_use = "a page that stays is still in view"]
    unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool;

    /// Moves dirty base pages out of view to the places from `place` on, atomically with respect to writes. Cheaper
    /// than to write-protect and drop them: one change of the page table instead of two.
    ///
    /// # Safety
    /// The pages are in transit, in view and open for writing, and the places empty, all this call's to handle.
    unsafe fn move_aside(&self, span: Span, place: usize) -> Moved;

    /// Stops writes to pages in view: later ones trap and wait.
    fn write_protect(&self, span: Span);

    /// Address of a write-protected page's bytes, if they can be read in place.
    fn protected_bytes(&self, span: Span) -> Option<*const u8>;

    /// Copies a write-protected page's bytes.
    ///
    /// # Safety
    /// The page is write-protected and present; `to` has room for it and is the caller's.
    unsafe fn read(&self, span: Span, to: *mut u8);

    /// Takes write-protected or clean pages out of view, all in as few calls as possible. Their bytes are lost.
    fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>);
}

/// The answer to a request to move a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a page that stays is still in view"]
pub(crate) enum Moved {
    /// It is out of view, with its bytes at the destination.
    Gone,
    /// A transfer holds it. It is in view, unchanged.
    Stays,
    /// The kernel cannot move this kind of page. It is in view, unchanged, and can be write-protected, copied and
    /// dropped.
    Unmovable,
}

/// Why the view could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// Address space was refused.
    #[error("cannot set up far memory: {0}; lower HANARE_RESERVE or raise the limit on address space")]
    Map(#[from] MapError),
    /// The kernel refused to register it.
    #[error("cannot set up far memory: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    /// This process' own memory cannot be opened as a file.
    #[error("cannot open /proc/self/mem: {0}; {advice}", advice = own_memory_advice(*.0))]
    OwnMemory(Errno),
    /// The program has too many static arrays in different places.
    #[error("more than {WINDOWS_MAX} programs and libraries have large arrays; set HANARE_STATIC=off")]
    Windows,
}

fn own_memory_advice(errno: Errno) -> &'static str {
    if errno.0 == libc::ENOENT { "mount /proc" } else { "raise the limit on open files" }
}

/// Functions by which the view asks about the program's threads.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    /// Whether the program has a single thread.
    pub(crate) is_alone: fn() -> bool,
    /// Returns evidence that no code of the program runs, if there is any.
    pub(crate) still: fn() -> Option<Still>,
    /// Returns how often the program's first thread has been given a CPU.
    pub(crate) arrivals: fn() -> Option<thread::Arrivals>,
}

/// Evidence that no code of the program has run since the question was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Still {
    /// The program's only thread is the calling one, which is in the engine with signals blocked.
    Here,
    /// The program's only thread was off its CPU, after this many arrivals on one. While the number is the same, the
    /// thread has not run.
    OffCpu(thread::Arrivals),
}

impl Still {
    /// Whether the evidence still holds. `arrivals` returns the present number. A thread that did not run cannot have
    /// made a second one.
    fn holds(self, arrivals: fn() -> Option<thread::Arrivals>) -> bool {
        match self {
            Still::Here => true,
            Still::OffCpu(before) => arrivals() == Some(before),
        }
    }
}

/// The mechanism of a view.
pub(crate) enum Mechanism {
    /// Userfaultfd, opened with the features that the mode needs.
    Uffd(Uffd),
    /// A memfd mapped twice.
    Protection(Protection),
}

/// The view of a live process.
pub(crate) enum LiveView {
    /// Userfaultfd traps accesses.
    Userfaultfd(Userfaultfd),
    /// Page protection or guards trap accesses.
    Doubled(Doubled),
}

/// Calls a method of either view.
macro_rules! ask {
    ($view:expr, $of:ident => $answer:expr) => {
        match $view {
            LiveView::Userfaultfd($of) => $answer,
            LiveView::Doubled($of) => $answer,
        }
    };
}

impl LiveView {
    /// Reserves and registers far memory and its frames. `batches` says whether `process_madvise` drops pages.
    pub(crate) fn new(
        mechanism: Mechanism,
        sizes: Sizes,
        huge: bool,
        batches: bool,
        program: Program,
    ) -> Result<Self, ViewError> {
        Ok(match mechanism {
            Mechanism::Uffd(uffd) => LiveView::Userfaultfd(Userfaultfd::new(uffd, sizes, huge, batches, program)?),
            Mechanism::Protection(protection) => LiveView::Doubled(Doubled::new(protection, sizes, huge, program)?),
        })
    }

    /// Shows `span`, which was never used, at `addr` instead of in the reservation. Replaces whatever is mapped at
    /// `addr`. On an error the range reads as plain zeroes, or nothing is mapped there.
    ///
    /// # Safety
    /// The caller owns `addr..addr + span.len` (whole pages) and its contents, and nothing accesses it meanwhile.
    pub(crate) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        // SAFETY: passed on from the caller.
        ask!(self, view => unsafe { view.add_window(addr, span) })
    }

    /// Excludes `span` from far memory for good. Nothing of it is in view. The caller maps something there afterwards.
    pub(crate) fn puncture(&self, span: Span) {
        match self {
            LiveView::Userfaultfd(view) => view.windows.puncture(span),
            LiveView::Doubled(view) => view.puncture(span),
        }
    }

    /// The userfaultfd, if accesses trap by it.
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

    fn empty_frame(&self, frame: FrameId) {
        Base::empty_frame(self, frame);
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
        // SAFETY: passed on from the caller.
        ask!(self, view => unsafe { view.copy_in(span, from, writable) })
    }

    unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        // SAFETY: passed on from the caller.
        ask!(self, view => unsafe { view.move_in(span, frame, writable) })
    }

    fn show(&self, span: Span, writable: bool) -> bool {
        match self {
            LiveView::Userfaultfd(view) => {
                // With userfaultfd, a page in view can always be read.
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

    fn wake(&self, span: Span) {
        match self {
            LiveView::Userfaultfd(view) => view.wake(span),
            // The faulting thread waits in its own handler.
            LiveView::Doubled(_) => {}
        }
    }

    unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool {
        // SAFETY: passed on from the caller.
        ask!(self, view => unsafe { view.move_out(span, frame, clean) })
    }

    unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        match self {
            // SAFETY: passed on from the caller.
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
        // SAFETY: passed on from the caller.
        ask!(self, view => unsafe { view.read(span, to) });
    }

    fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>) {
        ask!(self, view => view.drop_together(spans));
    }
}
