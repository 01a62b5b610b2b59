//! Out of view: pages moved away, or frozen, copied and dropped.
//!
//! A page that a transfer holds (direct I/O, io_uring, a device: the kernel calls it pinned) must not leave: the transfer
//! would end in memory that is no longer the page's. MOVE refuses such a page, in the same step that takes all others out
//! of view. So pages with bytes of their own leave by MOVE wherever the kernel has it; what it refuses stays.

use hanare_paging::FrameId;
use hanare_sys::batch::DontNeedBatch;
use hanare_sys::map::{self, Advice, Prot};
use hanare_sys::uffd::{MoveMode, Uffd};
use hanare_sys::{Errno, copy};

use std::sync::atomic::Ordering::Relaxed;

use super::View;
use super::enter::write_protect;
use super::moving::{self, Refusal};
use crate::fatal::{self, EXIT_KERNEL};
use crate::kernel::{Patience, insist};
use crate::near::is_mapped;
use crate::span::Span;

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

/// What became of a page that was to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a page that stays is still in view"]
pub(crate) enum Moved {
    /// It is out of view, its bytes where they were to go.
    Gone,
    /// A transfer holds it: it is in view, unchanged.
    Stays,
    /// It cannot be moved for what it is, and is in view, unchanged: it can be frozen, copied and dropped.
    Unmovable,
}

impl View {
    /// Moves a page out of view into an empty frame, in one step that no write can fall into. `clean` says that it is not
    /// open for writing; its bytes are in the frame all the same, from where a touch meanwhile brings it back. Returns false
    /// when a transfer holds it: then it is in view, unchanged.
    ///
    /// # Safety
    /// The page is in transit and the frame empty, both this call's to handle.
    #[must_use = "a page that stays is still in view"]
    pub(crate) unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool {
        // SAFETY: passed on from the caller.
        match unsafe { self.move_away(span, self.frame(frame) as usize, clean) } {
            Moved::Gone => return true,
            Moved::Stays => return false,
            Moved::Unmovable => {}
        }
        self.freeze(span);
        // SAFETY: the page is frozen, the frame is the caller's.
        unsafe { self.read(span, self.frame(frame)) };
        self.windows.runs(span, |addr, part| self.drop_pages(addr, part.len));
        true
    }

    /// How many units can be moved aside at once.
    pub(crate) fn aside_units(&self) -> usize {
        self.sizes.aside_units
    }

    /// Where the page moved aside to the place of this number lies.
    pub(crate) fn aside(&self, place: usize) -> *const u8 {
        debug_assert!(place < self.sizes.aside_units);
        (self.aside_pool + place * self.sizes.unit) as *const u8
    }

    /// Moves small dirty pages out of view, in one step that no write can fall into, to the places from this number on.
    /// Cheaper than to freeze and drop them: it is one change of the page table instead of two.
    ///
    /// # Safety
    /// The pages are in transit, in view and open for writing, and the places empty, all this call's to handle.
    pub(crate) unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        // SAFETY: passed on from the caller.
        unsafe { self.move_away(span, self.aside(place) as usize, false) }
    }

    /// Empties `count` places of pages that were moved aside, from `first` on.
    pub(crate) fn drop_aside(&self, first: usize, count: usize) {
        self.drop_pages(self.aside(first) as usize, count * self.sizes.unit);
    }

    /// # Safety
    /// The pages are in transit and `to` is an empty place, all the caller's to handle. Unless they are `clean` they are
    /// open for writing.
    unsafe fn move_away(&self, span: Span, to: usize, clean: bool) -> Moved {
        let Some(uffd) = self.uffd.as_ref().filter(|_| self.sees_pins()) else { return Moved::Unmovable };
        let (mut done, mut refusal) = (0, None);
        self.windows.runs(span, |addr, part| {
            if refusal.is_none() {
                let to = to + (part.offset - span.offset);
                // SAFETY: passed on from the caller.
                refusal = unsafe { self.move_piece(uffd, to, addr, part.len, clean) }.err();
                done = if refusal.is_none() { part.offset + part.len - span.offset } else { done };
            }
        });
        let Some(refusal) = refusal else { return Moved::Gone };
        self.windows.runs(Span { offset: span.offset, len: done }, |addr, part| {
            // SAFETY: the pieces that were moved above, to where they came from.
            unsafe { moving::move_back(uffd, addr, to + (part.offset - span.offset), part.len) };
        });
        if refusal == Refusal::Held { Moved::Stays } else { Moved::Unmovable }
    }

    /// # Safety
    /// As [`Self::move_away`].
    unsafe fn move_piece(&self, uffd: &Uffd, to: usize, from: usize, len: usize, clean: bool) -> Result<(), Refusal> {
        let mode = MoveMode { dontwake: true, allow_src_holes: true };
        // SAFETY: passed on from the caller.
        let moved = unsafe { moving::move_all(uffd, to, from, len, mode) };
        match moved {
            Err(Refusal::Held) if clean => {
                // Protected pages cannot be made this process' own. Once it has forked they are as likely shared as held,
                // and a clean page that is held is only read: dropping it takes nothing from the reader.
                Err(if self.has_forked.load(Relaxed) { Refusal::Unmovable } else { Refusal::Held })
            }
            // SAFETY: a dirty page is open for writing.
            Err(Refusal::Held) if unsafe { moving::make_own(from, len) }.is_ok() => {
                // SAFETY: passed on from the caller.
                unsafe { moving::move_all(uffd, to, from, len, mode) }
            }
            moved => moved,
        }
    }

    /// Stops writes to pages in view: later ones trap and wait.
    pub(crate) fn freeze(&self, span: Span) {
        match &self.uffd {
            Some(uffd) => self.windows.runs(span, |addr, part| write_protect(uffd, addr, part.len, true, false)),
            None => self.close(span),
        }
    }

    /// Takes pages out of the program's view in sigsegv mode; their bytes stay in the file beneath.
    fn close(&self, span: Span) {
        match &self.guards {
            Some(_) => self.guard(span),
            None => self.protect_own(span, Prot::NONE),
        }
    }

    /// Address of a frozen page's bytes, where they can be read in place.
    pub(crate) fn frozen(&self, span: Span) -> Option<*const u8> {
        match self.io_base {
            0 if self.restrictions.touch(span) => None,
            0 => self.windows.whole(span).map(|addr| addr as *const u8),
            io_base => Some((io_base + span.offset) as *const u8),
        }
    }

    /// Copies a frozen page's bytes.
    ///
    /// # Safety
    /// The page is frozen and present; `to` has room for it and is the caller's.
    pub(crate) unsafe fn read(&self, span: Span, to: *mut u8) {
        let Some(from) = self.frozen(span) else {
            let memory = self.memory.as_ref().unwrap_or_else(|errno| no_memory_file(*errno));
            return self.windows.runs(span, |addr, part| {
                insist("read pages that the program closed", || {
                    // SAFETY: the caller's buffer, of which this is a part; the kernel reads the page whatever its
                    // protection.
                    let into = unsafe { std::slice::from_raw_parts_mut(to.add(part.offset - span.offset), part.len) };
                    memory.read(addr, into)
                });
            });
        };
        // SAFETY: the page is present and readable, and nothing writes to it.
        unsafe { copy::copy(from, to, span.len) };
    }

    /// Makes frozen or clean pages vanish at the next [`Self::flush`].
    pub(crate) fn drop_later(&self, span: Span, batch: &mut DontNeedBatch) {
        if let Some(file) = &self.file {
            self.close(span);
            return insist("free pages of the view", || map::punch_hole(file, span.offset as u64, span.len as u64));
        }
        self.windows.runs(span, |addr, part| {
            while !batch.push(addr, part.len) {
                self.flush(batch);
            }
        });
    }

    /// Carries out the drops collected in a batch.
    pub(crate) fn flush(&self, batch: &mut DontNeedBatch) {
        // SAFETY: every range pushed is a page in transit out of view, whose bytes are safe or not needed.
        unsafe { batch.flush(|addr, len, errno| self.drop_refused(addr, len, errno)) };
    }

    /// Gives a frame's memory back to the system.
    pub(crate) fn empty_frame(&self, frame: FrameId) {
        let size = if frame.wide { self.sizes.block } else { self.sizes.unit };
        self.drop_pages(self.frame(frame) as usize, size);
    }

    /// Drops pages whose bytes nobody needs: of a frame that is free, or in transit out of view.
    fn drop_pages(&self, addr: usize, len: usize) {
        // SAFETY: as said above.
        if let Err(errno) = unsafe { map::advise(addr, len, Advice::DontNeed) } {
            self.drop_refused(addr, len, errno);
        }
    }

    /// Drops pages that the kernel refused to drop once. Where nothing is mapped any more nothing is left to drop.
    #[cold]
    fn drop_refused(&self, addr: usize, len: usize, first: Errno) {
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
}
