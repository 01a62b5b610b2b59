//! Into view: pages copied or moved to where the program finds them.

use hanare_paging::FrameId;
use hanare_sys::map::Prot;
use hanare_sys::uffd::{CopyMode, MoveMode, Uffd};
use hanare_sys::{Errno, copy};

use super::{View, moving};
use crate::kernel::{Patience, insist};
use crate::near::resident;
use crate::span::{OS_PAGE, Span};

/// Tries after which a page that COPY does not find is taken to have no mapping any more.
const GONE_TRIES: u32 = 8;

impl View {
    /// Copies bytes into view at pages that are absent, and lets the threads that wait for them go on. Returns false when
    /// a page was there already, which keeps its bytes, or could not be protected: then all of the span is open for writing.
    ///
    /// # Safety
    /// `from` has `span.len` readable bytes that nobody changes; the pages are in transit and this call's to fill.
    pub(crate) unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        let Some(uffd) = &self.uffd else {
            // SAFETY: the second mapping is ours alone, and the caller owns these pages.
            unsafe { copy::copy(from, (self.io_base + span.offset) as *mut u8, span.len) };
            return self.show(span, writable);
        };
        let mut came_whole = true;
        self.windows.runs(span, |addr, part| {
            let from = from as usize + (part.offset - span.offset);
            // SAFETY: passed on from the caller; the part lies in the span.
            came_whole &= unsafe { copy_all(uffd, addr, from, part.len, !writable) };
        });
        if !came_whole {
            self.open(span);
        }
        came_whole
    }

    /// Shows pages that were filled through [`Self::receive_place`], or were frozen. Returns false when pages that were to
    /// be protected are open for writing instead.
    #[must_use = "pages that are open for writing count as dirty"]
    pub(crate) fn show(&self, span: Span, writable: bool) -> bool {
        if let Some(guards) = self.guards() {
            return self.show_unguarded(guards, span, writable);
        }
        self.protect_own(span, if writable { Prot::READ_WRITE } else { Prot::READ });
        true
    }

    /// Shows pages again that trapped though they are in view, as far as it goes without opening for writing what is to be
    /// protected: false where it does not.
    #[must_use = "pages that are not shown go on trapping"]
    pub(crate) fn show_again(&self, span: Span, writable: bool) -> bool {
        match self.guards() {
            Some(guards) => self.show_again_unguarded(guards, span, writable),
            None => self.show(span, writable),
        }
    }

    /// Moves a frame into view; the frame has no memory afterwards. Returns false when a page that was to be protected is
    /// open for writing instead.
    ///
    /// # Safety
    /// The page is in transit and the frame filled, both this call's to handle.
    pub(crate) unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        let from = self.frame(frame) as usize;
        let (Some(uffd), Some(to)) = (&self.uffd, self.windows.whole(span)) else {
            // SAFETY: the frame has the span's bytes; passed on from the caller.
            let certain = unsafe { self.copy_in(span, from as *const u8, writable) };
            self.empty_frame(frame);
            return certain;
        };
        // Between the move and its protection the program could write unseen: another thread, but also the one whose
        // access brought the page, which need not be asleep yet (a fault can be read before its thread has looked whether
        // it must wait), or runs a signal handler. A page is protected where nothing of the program ran in between;
        // elsewhere it is left open, and reported so that it counts as dirty.
        let before = if writable { None } else { (self.program.still)() };
        let mode = MoveMode { dontwake: before.is_some(), allow_src_holes: true };
        // SAFETY: the caller owns both ranges.
        if unsafe { moving::move_all(uffd, to, from, span.len, mode) }.is_err() {
            // SAFETY: the frame's bytes are still in place, and the caller's.
            let certain = unsafe { self.copy_in(span, from as *const u8, writable) };
            self.empty_frame(frame);
            return certain;
        }
        let Some(before) = before else { return writable };
        write_protect(uffd, to, span.len, true, false);
        let certain = before.holds();
        if !certain {
            write_protect(uffd, to, span.len, false, true);
        }
        wake(uffd, to, span.len);
        certain
    }

    /// Opens a protected page for writing and lets its writers go on.
    pub(crate) fn open(&self, span: Span) {
        match &self.uffd {
            Some(uffd) => self.windows.runs(span, |addr, part| write_protect(uffd, addr, part.len, false, false)),
            None => {
                // Ignored: it tells of pages that are open though they were to be protected; these are to be open.
                let _ = self.show(span, true);
            }
        }
    }

    /// Lets threads that wait for a page look again.
    pub(crate) fn wake(&self, span: Span) {
        if let Some(uffd) = &self.uffd {
            self.windows.runs(span, |addr, part| wake(uffd, addr, part.len));
        }
    }
}

/// Lets the threads that wait in a range look again.
pub(super) fn wake(uffd: &Uffd, addr: usize, len: usize) {
    insist("wake the threads that wait for a page", || uffd.wake(addr, len));
}

/// Sets or lifts the protection against writes of a range. Where nothing is mapped any more there is nothing to do.
pub(super) fn write_protect(uffd: &Uffd, addr: usize, len: usize, on: bool, dontwake: bool) {
    let mut patience = Patience::to("protect pages against writes");
    while let Err(errno) = uffd.write_protect(addr, len, on, dontwake) {
        if errno.0 == libc::ENOENT && patience.tries() > GONE_TRIES {
            return;
        }
        patience.refused(errno);
    }
}

/// COPY until all of it is there; false when a page was there already.
///
/// # Safety
/// As [`View::copy_in`].
unsafe fn copy_all(uffd: &Uffd, to: usize, from: usize, len: usize, wp: bool) -> bool {
    let mut patience = Patience::to("copy a page into the program's view");
    let (mut done, mut piece_max, mut came_whole) = (0, len, true);
    while done < len {
        let piece = piece_max.min(len - done);
        // SAFETY: passed on from the caller.
        let result = unsafe { uffd.copy(to + done, from + done, piece, CopyMode { wp, dontwake: false }) };
        done += result.done;
        if result.done > 0 {
            patience.progressed();
        }
        let pass_over = match result.errno {
            None => false,
            Some(libc::EAGAIN) if result.done > 0 => false,
            Some(libc::EEXIST) if resident(to + done, OS_PAGE) > 0 => {
                came_whole = false;
                true
            }
            // A range that crosses mappings (the program changed access to part of it) is refused whole.
            Some(libc::ENOENT) if piece > OS_PAGE => {
                piece_max = OS_PAGE;
                false
            }
            // A page whose mapping is gone has nobody to wait for it; nor has a process that is ending.
            Some(libc::ENOENT) if patience.tries() > GONE_TRIES => true,
            Some(libc::ESRCH) => true,
            Some(errno) => {
                patience.refused(Errno(errno));
                false
            }
        };
        if pass_over {
            wake(uffd, to + done, OS_PAGE);
            done += OS_PAGE;
            patience.progressed();
        }
    }
    came_whole
}
