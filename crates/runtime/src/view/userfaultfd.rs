//! The view by userfaultfd: private anonymous memory. Pages are copied in or whole frames moved in and out, and protected
//! against writes while clean.
//!
//! A page that a transfer holds (direct I/O, io_uring, a device: the kernel calls it pinned) must not leave: the
//! transfer would end in memory that is no longer the page's. MOVE refuses such a page, in the same step that takes all
//! others out of view. So pages with bytes of their own leave by MOVE wherever the kernel has it. A refused page stays.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hanare_paging::FrameId;
use hanare_sys::batch::DontNeedBatch;
use hanare_sys::futex::LockCell;
use hanare_sys::map::{self, MapError, Mapping};
use hanare_sys::uffd::{CopyMode, MoveMode, RegisterMode, Uffd, feature};
use hanare_sys::{Errno, again, copy};

use super::base::{self, Base, HUGE_PAGE, Sizes, drop_pages};
use super::moving::{self, Refusal};
use super::{Moved, Program, ViewError};
use crate::kernel::{Patience, insist};
use crate::near::resident;
use crate::span::{OS_PAGE, Span};

/// Attempts after which ENOENT from COPY means that the mapping is gone.
const GONE_TRIES: u32 = 8;
/// How the program's memory is registered.
const TRAPPING: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };
/// How frames are registered. MOVE requires a registered destination; with write-protect mode alone it never traps.
const NOT_TRAPPING: RegisterMode = RegisterMode { missing: false, wp: true, minor: false };

/// A view whose trap is userfaultfd.
pub(crate) struct Userfaultfd {
    pub(super) base: Base,
    pub(super) uffd: Uffd,
    /// Ranges to be dropped in one call.
    batch: Box<LockCell<DontNeedBatch>>,
    /// Whether a forked child may share pages in view. MOVE then refuses them for that reason.
    pub(super) has_forked: AtomicBool,
}

impl Deref for Userfaultfd {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Userfaultfd {
    pub(super) fn new(
        uffd: Uffd,
        sizes: Sizes,
        huge: bool,
        batches: bool,
        program: Program,
    ) -> Result<Self, ViewError> {
        let reserved = Mapping::reserve(sizes.reserve, HUGE_PAGE)?.leak();
        let base = Base::new(reserved, sizes, huge, program)?;
        base.advise(reserved, sizes.reserve)?;
        base.advise_pools()?;
        uffd.register(reserved, sizes.reserve, TRAPPING)?;
        Self::over(base, uffd, batches, false)
    }

    /// The view in a forked child, with a trap of its own. No page that was missing has been accessed since the fork.
    pub(super) fn again(base: Base, uffd: Uffd, batches: bool) -> Result<Self, ViewError> {
        let mut answer = Ok(());
        base.each_range(|addr, span| {
            if answer.is_ok() {
                let registered = || Ok(uffd.register(addr, span.len, TRAPPING)?);
                answer = base.advise(addr, span.len).and_then(|()| registered());
            }
        });
        answer?;
        base.advise_pools()?;
        Self::over(base, uffd, batches, true)
    }

    /// Makes a view over registered far memory, and registers its frames.
    fn over(base: Base, uffd: Uffd, batches: bool, has_forked: bool) -> Result<Self, ViewError> {
        base.pools().try_for_each(|(addr, len)| uffd.register(addr, len, NOT_TRAPPING))?;
        let batch = Box::new(LockCell::new(DontNeedBatch::new(batches)));
        Ok(Self { base, uffd, batch, has_forked: AtomicBool::new(has_forked) })
    }

    /// # Safety
    /// As [`super::LiveView::add_window`].
    pub(super) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        if !self.windows.add(addr, span) {
            return Err(ViewError::Windows);
        }
        // SAFETY: passed on from the caller.
        again(|| unsafe { map::replace_with_anonymous(addr, span.len) })
            .map_err(|errno| MapError::Reserve { len: span.len, errno })?;
        self.advise(addr, span.len)?;
        Ok(self.uffd.register(addr, span.len, TRAPPING)?)
    }

    /// Whether the kernel has MOVE, which refuses pages that a transfer holds (pinned ones).
    fn sees_pins(&self) -> bool {
        self.uffd.features() & feature::MOVE != 0
    }

    // ---- into view --------------------------------------------------------------------------------------------------

    /// # Safety
    /// As [`super::View::copy_in`].
    pub(super) unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        let mut came_whole = true;
        self.windows.runs(span, |addr, part| {
            let from = from as usize + (part.offset - span.offset);
            // SAFETY: passed on from the caller; the part lies in the span.
            came_whole &= unsafe { copy_all(&self.uffd, addr, from, part.len, !writable) };
        });
        if !came_whole {
            self.open(span);
        }
        came_whole
    }

    /// # Safety
    /// As [`super::View::move_in`].
    pub(super) unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        let from = self.frame(frame) as usize;
        let copied = || {
            // SAFETY: the frame has the span's bytes; passed on from the caller.
            let certain = unsafe { self.copy_in(span, from as *const u8, writable) };
            self.empty_frame(frame);
            certain
        };
        let Some(to) = self.windows.whole(span) else { return copied() };
        // Between the move and its protection the program could write unseen: another thread, a signal handler, or the
        // thread whose access brought the page. That thread may still run, because a fault can be read before its
        // thread has decided to wait. A page is protected only if no code of the program ran in between. Otherwise it
        // is left open, and reported so that it counts as dirty.
        let before = if writable { None } else { (self.program.still)() };
        let mode = MoveMode { dontwake: before.is_some(), allow_src_holes: true };
        // SAFETY: the caller owns both ranges.
        if unsafe { moving::move_all(&self.uffd, to, from, span.len, mode) }.is_err() {
            return copied();
        }
        let Some(before) = before else { return writable };
        protect(&self.uffd, to, span.len, true, false);
        let certain = before.holds(self.program.arrivals);
        if !certain {
            protect(&self.uffd, to, span.len, false, true);
        }
        wake(&self.uffd, to, span.len);
        certain
    }

    pub(super) fn open(&self, span: Span) {
        self.windows.runs(span, |addr, part| protect(&self.uffd, addr, part.len, false, false));
    }

    pub(super) fn wake(&self, span: Span) {
        self.windows.runs(span, |addr, part| wake(&self.uffd, addr, part.len));
    }

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// # Safety
    /// As [`super::View::move_out`].
    pub(super) unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool {
        // SAFETY: passed on from the caller.
        match unsafe { self.move_away(span, self.frame(frame) as usize, clean) } {
            Moved::Gone => return true,
            Moved::Stays => return false,
            Moved::Unmovable => {}
        }
        self.write_protect(span);
        // SAFETY: the page is write-protected, the frame is the caller's.
        unsafe { self.read(span, self.frame(frame)) };
        self.windows.runs(span, |addr, part| drop_pages(addr, part.len));
        true
    }

    /// # Safety
    /// As [`super::View::move_aside`].
    pub(super) unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        // SAFETY: passed on from the caller.
        unsafe { self.move_away(span, self.aside(place) as usize, false) }
    }

    /// # Safety
    /// The pages are in transit and `to` is an empty place, all the caller's to handle. Unless they are `clean` they are
    /// open for writing.
    unsafe fn move_away(&self, span: Span, to: usize, clean: bool) -> Moved {
        if !self.sees_pins() {
            return Moved::Unmovable;
        }
        let uffd = &self.uffd;
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
                // A protected page cannot be made private by a write. After a fork, a refusal may also mean that it is
                // shared. A transfer only reads a clean page that it holds, so dropping the page takes nothing from the
                // transfer.
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

    pub(super) fn write_protect(&self, span: Span) {
        self.windows.runs(span, |addr, part| protect(&self.uffd, addr, part.len, true, false));
    }

    pub(super) fn protected_bytes(&self, span: Span) -> Option<*const u8> {
        if self.restrictions.touch(span) {
            return None;
        }
        self.windows.whole(span).map(|addr| addr as *const u8)
    }

    /// # Safety
    /// As [`super::View::read`].
    pub(super) unsafe fn read(&self, span: Span, to: *mut u8) {
        match self.protected_bytes(span) {
            // SAFETY: the page is present and readable, and nothing writes to it.
            Some(from) => unsafe { copy::copy(from, to, span.len) },
            // SAFETY: passed on from the caller.
            None => unsafe { self.read_closed(span, to) },
        }
    }

    pub(super) fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>) {
        let mut batch = self.batch.lock();
        for span in spans {
            self.windows.runs(span, |addr, part| {
                while !batch.push(addr, part.len) {
                    flush(&mut batch);
                }
            });
        }
        if !batch.is_empty() {
            flush(&mut batch);
        }
    }
}

/// Carries out the drops collected in a batch.
fn flush(batch: &mut DontNeedBatch) {
    // SAFETY: every range pushed is a page in transit out of view, whose bytes are safe or not needed.
    unsafe { batch.flush(base::drop_refused) };
}

/// Wakes the threads that wait in a range.
pub(super) fn wake(uffd: &Uffd, addr: usize, len: usize) {
    insist("wake the threads that wait for a page", || uffd.wake(addr, len));
}

/// Sets or clears the write protection of a range. Does nothing where nothing is mapped any more.
fn protect(uffd: &Uffd, addr: usize, len: usize, on: bool, dontwake: bool) {
    let mut patience = Patience::to("protect pages against writes");
    while let Err(errno) = uffd.write_protect(addr, len, on, dontwake) {
        if errno.0 == libc::ENOENT && patience.tries() > GONE_TRIES {
            return;
        }
        patience.refused(errno);
    }
}

/// Copies until the whole range is present. Returns false when a page was there already.
///
/// # Safety
/// As [`super::View::copy_in`].
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
            // The kernel refuses a range that crosses mappings (the program changed access to part of it) as a whole.
            Some(libc::ENOENT) if piece > OS_PAGE => {
                piece_max = OS_PAGE;
                false
            }
            // The mapping is gone, or the process is ending. In both cases no thread waits for the page.
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
