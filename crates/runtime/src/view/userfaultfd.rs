//! The view in which userfaultfd traps accesses. It consists of private anonymous memory. Pages are copied into the
//! view, or whole frames are moved into and out of it. Clean pages are write-protected.
//!
//! A *transfer* (direct I/O, io_uring or a device) may hold a page. The kernel calls the page pinned. A pinned page
//! must stay in view. Otherwise the transfer would write to memory that does not belong to the page any more. The
//! kernel's MOVE operation refuses pinned pages, and takes other pages out of view atomically. So pages whose bytes
//! must be kept are taken out of view by MOVE, if the kernel has this operation. A refused page stays in view.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hanare_paging::FrameId;
use hanare_sys::batch::DontNeedBatch;
use hanare_sys::futex::LockCell;
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::pagemap::Pagemap;
use hanare_sys::uffd::{CopyMode, MoveMode, RegisterMode, Uffd, feature};
use hanare_sys::{Errno, again, copy};

use super::base::{self, Abilities, Base, HUGE_PAGE, Sizes, drop_pages};
use super::moving::{self, Refusal};
use super::{Moved, ViewError};
use crate::kernel::{Patience, insist};
use crate::span::{OS_PAGE, Span};

/// Number of attempts that must fail with ENOENT before the view assumes that the range is not mapped.
const GONE_TRIES: u32 = 8;
/// The mode in which the program's memory is registered: absent and write-protected pages trap.
const TRAPPING: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };
/// The mode in which frames are registered, because MOVE requires a registered destination. Frames are never
/// write-protected, so they never trap in this mode.
const NOT_TRAPPING: RegisterMode = RegisterMode { missing: false, wp: true, minor: false };

/// A view in which userfaultfd traps accesses.
pub(crate) struct Userfaultfd {
    pub(super) base: Base,
    pub(super) uffd: Uffd,
    /// Tells whether a block is absent, so that its page tables can be freed. `None` if the kernel does not free them,
    /// or if the file cannot be opened.
    tables: Option<Pagemap>,
    /// Collects ranges that one system call drops.
    batch: Box<LockCell<DontNeedBatch>>,
    /// Whether a forked child may share pages in view. MOVE refuses shared pages, as it refuses pages that a transfer
    /// holds.
    pub(super) has_forked: AtomicBool,
}

impl Deref for Userfaultfd {
    type Target = Base;

    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Userfaultfd {
    pub(super) fn new(uffd: Uffd, sizes: Sizes, able: Abilities) -> Result<Self, ViewError> {
        let placed = sizes.place.and_then(|place| Mapping::reserve_at(place, sizes.reserve).ok());
        let reserved = placed.map_or_else(|| Mapping::reserve(sizes.reserve, HUGE_PAGE), Ok)?.leak();
        let base = Base::new(reserved, sizes, able)?;
        advise(&base, reserved, sizes.reserve)?;
        base.advise_pools()?;
        uffd.register(reserved, sizes.reserve, TRAPPING)?;
        Self::over(base, uffd, false)
    }

    /// Sets up the view in a forked child, with a trap of the child's own. Before this call, nothing traps: an
    /// access of the child makes an absent page present. So a page that is absent now was not accessed by the child.
    pub(super) fn again(base: Base, uffd: Uffd) -> Result<Self, ViewError> {
        let mut answer = Ok(());
        base.each_range(|addr, span| {
            if answer.is_ok() {
                let registered = || Ok(uffd.register(addr, span.len, TRAPPING)?);
                answer = advise(&base, addr, span.len).and_then(|()| registered());
            }
        });
        answer?;
        base.advise_pools()?;
        Self::over(base, uffd, true)
    }

    /// Makes a view over far memory that is already registered with userfaultfd. Registers the frames and places.
    fn over(base: Base, uffd: Uffd, has_forked: bool) -> Result<Self, ViewError> {
        base.pools().try_for_each(|(addr, len)| uffd.register(addr, len, NOT_TRAPPING))?;
        let batch = Box::new(LockCell::new(DontNeedBatch::new(base.able.batches)));
        let tables = if base.able.frees_tables { Pagemap::open().ok().map(Pagemap::kept) } else { None };
        Ok(Self { base, uffd, tables, batch, has_forked: AtomicBool::new(has_forked) })
    }

    /// Adds an alias mapping of `span` at `addr`.
    ///
    /// # Safety
    /// The conditions of [`super::LiveView::add_window`] hold.
    pub(super) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        if !self.windows.add(addr, span) {
            return Err(ViewError::Windows);
        }
        // SAFETY: the caller owns `addr..addr + span.len` and its contents, and nothing accesses the range meanwhile.
        again(|| unsafe { map::replace_with_anonymous(addr, span.len) })
            .map_err(|errno| MapError::Reserve { len: span.len, errno })?;
        advise(self, addr, span.len)?;
        Ok(self.uffd.register(addr, span.len, TRAPPING)?)
    }

    /// Checks whether the kernel has MOVE, which refuses pages that a transfer holds.
    fn sees_pins(&self) -> bool {
        self.uffd.features() & feature::MOVE != 0
    }

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Fills absent pages with bytes and maps them into the view; see [`super::View::copy_in`].
    ///
    /// # Safety
    /// The conditions of [`super::View::copy_in`] hold.
    pub(super) unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        let mut came_whole = true;
        self.windows.runs(span, |addr, part| {
            let from = from as usize + (part.offset - span.offset);
            // SAFETY: the caller guarantees the conditions of `copy_in` for `span`, and `part` lies in `span`.
            came_whole &= unsafe { copy_all(&self.uffd, addr, from, part.len, !writable) };
        });
        if !came_whole {
            self.open(span);
        }
        came_whole
    }

    /// Moves a frame into an absent page; see [`super::View::move_in`]. Copies the frame if the kernel cannot move it.
    ///
    /// # Safety
    /// The conditions of [`super::View::move_in`] hold.
    pub(super) unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        let from = self.frame(frame) as usize;
        let copied = || {
            // SAFETY: `from` is a filled frame with `span.len` bytes. The caller guarantees that the page is in
            // transit and that no other call uses the page or the frame.
            let certain = unsafe { self.copy_in(span, from as *const u8, writable) };
            self.empty_frame(frame);
            certain
        };
        let Some(to) = self.windows.whole(span) else { return copied() };
        if let Some(tables) = &self.tables
            && span.len.is_multiple_of(HUGE_PAGE)
        {
            free_tables(tables, to, span.len);
        }
        // A moved page is open for writing, and nothing can protect it in time. Threads of this process, processes that
        // share its memory, and other processes (`process_vm_writev`, `/proc/PID/mem`) may write to it at once.
        let mode = MoveMode { dontwake: false, allow_src_holes: true };
        // SAFETY: the page at `to` is absent and in transit, and the frame at `from` is filled. The caller guarantees
        // that no other call uses them.
        match unsafe { moving::move_all(&self.uffd, to, from, span.len, mode) } {
            Ok(()) => writable,
            Err(_) => copied(),
        }
    }

    pub(super) fn open(&self, span: Span) {
        self.windows.runs(span, |addr, part| protect(&self.uffd, addr, part.len, false, false));
    }

    pub(super) fn wake(&self, span: Span) {
        self.windows.runs(span, |addr, part| wake(&self.uffd, addr, part.len));
    }

    pub(super) fn lost_page(&self, span: Span) -> Option<usize> {
        let mut lost = None;
        self.windows.runs(span, |addr, part| {
            lost = lost.or_else(|| (addr..addr + part.len).step_by(OS_PAGE).find(|&page| !moving::is_there(page)));
        });
        lost
    }

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// Moves a page into an empty frame; see [`super::View::move_out`]. Copies and drops the page if the kernel cannot
    /// move it.
    ///
    /// # Safety
    /// The conditions of [`super::View::move_out`] hold.
    pub(super) unsafe fn move_out(&self, span: Span, frame: FrameId, clean: bool) -> bool {
        // SAFETY: the caller guarantees a page in transit and an empty frame that no other call uses.
        match unsafe { self.move_away(span, self.frame(frame) as usize, clean) } {
            Moved::Gone => return true,
            Moved::Stays => return false,
            Moved::Unmovable => {}
        }
        self.write_protect(span);
        // SAFETY: the page is present and write-protected. The frame has `span.len` bytes, and only the caller uses it.
        unsafe { self.read(span, self.frame(frame)) };
        self.windows.runs(span, |addr, part| drop_pages(addr, part.len));
        true
    }

    /// Moves dirty base pages aside, to places; see [`super::View::move_aside`].
    ///
    /// # Safety
    /// The conditions of [`super::View::move_aside`] hold.
    pub(super) unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        // SAFETY: the caller guarantees pages in transit that are open for writing, and empty places.
        unsafe { self.move_away(span, self.aside(place) as usize, false) }
    }

    /// Moves pages out of view to the address `to`. If the kernel refuses a page, moves all pages back.
    ///
    /// # Safety
    /// The pages are in transit and the memory at `to` is empty. Only the caller uses them. If `clean` is false, the
    /// pages are open for writing.
    unsafe fn move_away(&self, span: Span, to: usize, clean: bool) -> Moved {
        if !self.sees_pins() {
            return Moved::Unmovable;
        }
        let uffd = &self.uffd;
        let (mut done, mut refusal) = (0, None);
        self.windows.runs(span, |addr, part| {
            if refusal.is_none() {
                let to = to + (part.offset - span.offset);
                // SAFETY: the caller guarantees the conditions of `move_piece` for `span`, and `part` lies in `span`.
                refusal = unsafe { self.move_piece(uffd, to, addr, part.len, clean) }.err();
                done = if refusal.is_none() { part.offset + part.len - span.offset } else { done };
            }
        });
        let Some(refusal) = refusal else { return Moved::Gone };
        self.windows.runs(Span { offset: span.offset, len: done }, |addr, part| {
            // SAFETY: the first `done` bytes of `span` were moved to `to` above, so their old addresses are empty.
            unsafe { moving::move_back(uffd, addr, to + (part.offset - span.offset), part.len) };
        });
        if refusal == Refusal::Held { Moved::Stays } else { Moved::Unmovable }
    }

    /// Moves `len` bytes at `from` to `to`. If the kernel refuses dirty pages, makes them private and tries once more.
    ///
    /// # Safety
    /// The pages at `from` are in transit and the memory at `to` is empty. Only the caller uses them. If `clean` is
    /// false, the pages are open for writing.
    unsafe fn move_piece(&self, uffd: &Uffd, to: usize, from: usize, len: usize, clean: bool) -> Result<(), Refusal> {
        let mode = MoveMode { dontwake: true, allow_src_holes: true };
        // SAFETY: the caller owns the pages at `from` and the empty memory at `to`.
        let moved = unsafe { moving::move_all(uffd, to, from, len, mode) };
        match moved {
            Err(Refusal::Held) if clean => {
                // A clean page is write-protected, so `make_own` cannot make it private. After a fork, MOVE may have
                // refused the page because a child shares it. The caller then copies and drops the page. This is safe
                // even if a transfer holds the page, because a transfer only reads a clean page.
                Err(if self.has_forked.load(Relaxed) { Refusal::Unmovable } else { Refusal::Held })
            }
            // SAFETY: `clean` is false, so the caller guarantees that the pages are open for writing.
            Err(Refusal::Held) if unsafe { moving::make_own(from, len) }.is_ok() => {
                // SAFETY: the caller owns the pages at `from`. The memory at `to` is empty: a refused MOVE moves all
                // pages back.
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

    /// Copies the bytes of a write-protected page; see [`super::View::read`].
    ///
    /// # Safety
    /// The conditions of [`super::View::read`] hold.
    pub(super) unsafe fn read(&self, span: Span, to: *mut u8) {
        match self.protected_bytes(span) {
            // SAFETY: the page at `from` is present, readable and write-protected. The caller guarantees `span.len`
            // writable bytes at `to`.
            Some(from) => unsafe { copy::copy(from, to, span.len) },
            // SAFETY: the caller guarantees a present, write-protected page and `span.len` writable bytes at `to`.
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

/// Advises the kernel about a range of the view.
///
/// In a mapping that may have huge pages, Linux 6.18 allocates and zeroes a huge page for a write to an empty block
/// before it looks whether the write traps. So the view asks for no huge pages if the kernel lets it do without: huge
/// pages that are moved into the view stay huge after [`free_tables`].
fn advise(base: &Base, addr: usize, len: usize) -> Result<(), ViewError> {
    base.advise(addr, len, base.able.huge && !base.able.frees_tables)
}

/// Frees the page tables of absent blocks. A trapped access leaves an empty page table in its block. MOVE would split a
/// huge page to fill this table.
fn free_tables(tables: &Pagemap, addr: usize, len: usize) {
    // The pages are in transit, so none should be present. If one is, it keeps its bytes, and MOVE reports it.
    if tables.is_absent(addr, addr + len).unwrap_or(false) {
        // Ignored: if the kernel keeps the tables, MOVE splits the huge page. Only time is lost.
        // SAFETY: the range is absent and in transit, so it has no bytes to lose.
        let _ = unsafe { map::advise(addr, len, Advice::DontNeed) };
    }
}

/// Drops the ranges that a batch has collected.
fn flush(batch: &mut DontNeedBatch) {
    // SAFETY: every range in the batch is a page that leaves the view. The bytes of the page are saved or not needed.
    unsafe { batch.flush(base::drop_refused) };
}

/// Wakes the threads that wait for a page of this range.
pub(super) fn wake(uffd: &Uffd, addr: usize, len: usize) {
    insist("wake the threads that wait for a page", || uffd.wake(addr, len));
}

/// Sets or clears the write protection of a range. Does nothing if the range is not mapped.
fn protect(uffd: &Uffd, addr: usize, len: usize, on: bool, dontwake: bool) {
    let mut patience = Patience::to("protect pages against writes");
    while let Err(errno) = uffd.write_protect(addr, len, on, dontwake) {
        if errno.0 == libc::ENOENT && patience.tries() > GONE_TRIES {
            return;
        }
        patience.refused(errno);
    }
}

/// Copies bytes to absent pages until the whole range is present. A page that was present before keeps its bytes.
/// Returns false if any page was present before.
///
/// # Safety
/// `from` points to `len` readable bytes that do not change. The pages at `to` are in transit, and no other call fills
/// them.
unsafe fn copy_all(uffd: &Uffd, to: usize, from: usize, len: usize, wp: bool) -> bool {
    let mut patience = Patience::to("copy a page into the program's view");
    let (mut done, mut piece_max, mut came_whole) = (0, len, true);
    while done < len {
        let piece = piece_max.min(len - done);
        // SAFETY: the caller guarantees `len` constant bytes at `from` and pages in transit at `to`. `done + piece` is
        // at most `len`.
        let result = unsafe { uffd.copy(to + done, from + done, piece, CopyMode { wp, dontwake: false }) };
        done += result.done;
        if result.done > 0 {
            patience.progressed();
        }
        let pass_over = match result.errno {
            None => false,
            Some(libc::EAGAIN) if result.done > 0 => false,
            Some(libc::EEXIST) if moving::is_there(to + done) => {
                came_whole = false;
                true
            }
            // The kernel refuses a range that crosses mappings. If the program changes the access to a part of a
            // mapping, the mapping is split. So single pages are copied from here on.
            Some(libc::ENOENT) if piece > OS_PAGE => {
                piece_max = OS_PAGE;
                false
            }
            // The range is not mapped, or the process is ending (ESRCH). In both cases no thread waits for the page.
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
