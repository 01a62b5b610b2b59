//! The program's view of far memory, and the frames beside it: the only room that makes pages appear and vanish.
//!
//! Two mechanisms behind one face. *Userfaultfd*: private anonymous memory; pages are copied in or whole frames moved in
//! and out, and protected against writes while clean. *Protection* (sigsegv mode): shared memory mapped twice; pages are
//! filled through a second mapping that never traps, then opened with mprotect. Nothing here decides anything, allocates
//! anything or knows what a server is.

mod fork;
mod lift;

use hanare_paging::FrameId;
use hanare_sys::batch::DontNeedBatch;
use hanare_sys::copy;
use hanare_sys::map::{self, Advice, MapError, Mapping, Prot};
use hanare_sys::thread;
use hanare_sys::uffd::{CopyMode, MoveMode, RegisterMode, Uffd, UffdError};

use crate::near::resident;
use crate::restrictions::Restrictions;
use crate::windows::{WINDOWS_MAX, Windows};

/// The page of the operating system: the least that can be copied or woken.
pub(crate) const OS_PAGE: usize = 4096;

/// Why the view could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// Address space could not be had.
    #[error("cannot set up far memory: {0}; lower HANARE_RESERVE or raise the limit on address space")]
    Map(#[from] MapError),
    /// The kernel refused to register it.
    #[error("cannot set up far memory: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    /// There are too many places of the program's own that are to be far.
    #[error("more than {WINDOWS_MAX} programs and libraries have large arrays; set HANARE_STATIC=off")]
    Windows,
}

/// How memory of the program's is registered.
const TRAPPING: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };

/// How the view is made.
pub(crate) enum Mechanism {
    /// Userfaultfd, opened with the features the mode needs.
    Uffd(Uffd),
    /// mprotect, with a memfd mapped twice.
    Protection,
}

/// Sizes of the view, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) reserve: usize,
    pub(crate) unit: usize,
    pub(crate) block: usize,
    pub(crate) small_frames: usize,
    pub(crate) wide_frames: usize,
    /// Places for pages that are lifted out of view ([`View::lift`]).
    pub(crate) lift_frames: usize,
}

/// What the view has to know of the program's threads.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    /// Whether it has a single thread.
    pub(crate) is_alone: fn() -> bool,
    /// Whether and how its code can be seen not to run.
    pub(crate) still: fn() -> Option<Still>,
}

/// Why no code of the program ran since this was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Still {
    /// Its only thread is the calling one, which is in the engine with signals blocked.
    Here,
    /// Its only thread had used so much CPU time, in nanoseconds. The same again means that it did not run.
    Ran {
        /// The thread.
        tid: i32,
        /// Its CPU time.
        ns: u64,
    },
}

impl Still {
    /// Whether it is so still. No second thread can have been made by a thread that did not run.
    fn holds(self) -> bool {
        match self {
            Still::Here => true,
            Still::Ran { tid, ns } => thread::run_ns(tid) == Some(ns),
        }
    }
}

pub(crate) struct View {
    base: usize,
    sizes: Sizes,
    /// Where each offset is: in the reservation, save for windows and holes.
    windows: &'static Windows,
    huge: bool,
    uffd: Option<Uffd>,
    /// Start of the second mapping in sigsegv mode, and the file beneath both.
    io_base: usize,
    file: Option<std::os::fd::OwnedFd>,
    small_pool: usize,
    wide_pool: usize,
    lift_pool: usize,
    zeroes: usize,
    restrictions: Restrictions,
    program: Program,
}

/// The page, in bytes from the start of far memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

impl View {
    /// Reserves and registers far memory and its frames.
    pub(crate) fn new(mechanism: Mechanism, sizes: Sizes, huge: bool, program: Program) -> Result<Self, ViewError> {
        let align = 2 << 20;
        let (uffd, file) = match mechanism {
            Mechanism::Uffd(uffd) => (Some(uffd), None),
            Mechanism::Protection => (None, Some(map::memfd("hanare-view", sizes.reserve as u64)?)),
        };
        let (base, io_base) = match &file {
            Some(file) => (
                Mapping::shared_aligned(file, sizes.reserve, align)?.leak(),
                Mapping::shared_aligned(file, sizes.reserve, align)?.leak(),
            ),
            None => (Mapping::reserve(sizes.reserve, align)?.leak(), 0),
        };
        let view = Self {
            base,
            sizes,
            windows: Box::leak(Box::new(Windows::new(base, sizes.reserve))),
            huge,
            uffd,
            io_base,
            file,
            small_pool: pool(sizes.small_frames * sizes.unit, align)?,
            wide_pool: pool(sizes.wide_frames * sizes.block, align)?,
            lift_pool: pool(sizes.lift_frames * sizes.unit, align)?,
            zeroes: Mapping::anonymous(sizes.block.max(sizes.unit))?.leak(),
            restrictions: Restrictions::new(sizes.reserve),
            program,
        };
        if view.file.is_some() {
            // SAFETY: the range was mapped just now and nothing points into it.
            unsafe { map::protect(base, sizes.reserve, Prot::NONE) }.map_err(|errno| refused(&view, errno))?;
        }
        view.advise_all();
        view.register()?;
        Ok(view)
    }

    fn register(&self) -> Result<(), ViewError> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        uffd.register(self.base, self.sizes.reserve, TRAPPING)?;
        self.register_frames()
    }

    fn register_frames(&self) -> Result<(), ViewError> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        // MOVE wants its destination registered; with write-protect mode alone the frames themselves never trap.
        for (addr, len) in self.pools() {
            uffd.register(addr, len, RegisterMode { missing: false, wp: true, minor: false })?;
        }
        Ok(())
    }

    fn pools(&self) -> impl Iterator<Item = (usize, usize)> {
        let small = (self.small_pool, (self.sizes.small_frames * self.sizes.unit).next_multiple_of(2 << 20));
        let wide = (self.wide_pool, self.sizes.wide_frames * self.sizes.block);
        let lift = (self.lift_pool, (self.sizes.lift_frames * self.sizes.unit).next_multiple_of(2 << 20));
        [small, wide, lift].into_iter().filter(|&(addr, len)| addr != 0 && len > 0)
    }

    /// Advice is best effort: a kernel that refuses it loses speed, or writes larger cores, and nothing else.
    fn advise_all(&self) {
        let ranges = [(self.base, self.sizes.reserve), (self.io_base, self.sizes.reserve)];
        for (addr, len) in ranges.into_iter().chain(self.pools()).filter(|&(addr, _)| addr != 0) {
            self.advise(addr, len);
        }
    }

    fn advise(&self, addr: usize, len: usize) {
        let size = if self.huge { Advice::HugePage } else { Advice::NoHugePage };
        for advice in [size, Advice::DontFork, Advice::DontDump] {
            // SAFETY: the range is our own mapping; none of the three changes its contents.
            let _ = unsafe { map::advise(addr, len, advice) };
        }
    }

    /// Shows `span`, so far untouched, at `addr` instead of in the reservation. Whatever is mapped at `addr` is replaced.
    /// On an error the range reads as plain zeroes, or nothing is mapped there.
    ///
    /// # Safety
    /// The caller owns `addr..addr + span.len` (whole pages) and its contents, and nobody touches it meanwhile.
    pub(crate) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        if !self.windows.add(addr, span) {
            return Err(ViewError::Windows);
        }
        match &self.file {
            // SAFETY: passed on from the caller.
            Some(file) => unsafe { map::replace_with_shared(addr, span.len, file, span.offset as u64, Prot::NONE) },
            // SAFETY: passed on from the caller.
            None => unsafe { map::replace_with_anonymous(addr, span.len) },
        }
        .map_err(|errno| ViewError::Map(MapError::Reserve { len: span.len, errno }))?;
        self.advise(addr, span.len);
        match &self.uffd {
            Some(uffd) => Ok(uffd.register(addr, span.len, TRAPPING)?),
            None => Ok(()),
        }
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn windows(&self) -> &'static Windows {
        self.windows
    }

    /// The offset of a far address; `None` for one that is not far.
    #[inline]
    pub(crate) fn offset_of(&self, addr: usize) -> Option<usize> {
        self.windows.offset_of(addr)
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.reserve
    }

    pub(crate) fn uffd(&self) -> Option<&Uffd> {
        self.uffd.as_ref()
    }

    /// Whether the program has a single thread.
    pub(crate) fn is_alone(&self) -> bool {
        (self.program.is_alone)()
    }

    /// Whether no code of the program runs before the caller has left the engine.
    pub(crate) fn is_still(&self) -> bool {
        (self.program.still)() == Some(Still::Here)
    }

    /// Address of a frame's bytes.
    pub(crate) fn frame(&self, frame: FrameId) -> *mut u8 {
        let (pool, size) = match frame.wide {
            true => (self.wide_pool, self.sizes.block),
            false => (self.small_pool, self.sizes.unit),
        };
        (pool + frame.index as usize * size) as *mut u8
    }

    /// Where bytes for a page can be received straight into view, if the mechanism has such a place.
    pub(crate) fn receive_place(&self, offset: usize) -> Option<*mut u8> {
        (self.io_base != 0).then_some((self.io_base + offset) as *mut u8)
    }

    pub(crate) fn zeroes(&self) -> *const u8 {
        self.zeroes as *const u8
    }

    // ---- into view --------------------------------------------------------------------------------------------------

    /// Copies bytes into view at pages that are absent, and lets the threads that wait for them go on.
    ///
    /// # Safety
    /// `from` has `span.len` readable bytes that nobody changes; the pages are in transit and this call's to fill.
    pub(crate) unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) {
        match &self.uffd {
            Some(uffd) => self.windows.runs(span, |addr, part| {
                let from = from as usize + (part.offset - span.offset);
                // SAFETY: passed on from the caller; the part lies in the span.
                unsafe { copy_in(uffd, addr, from, part.len, !writable) };
            }),
            None => {
                // SAFETY: the second mapping is ours alone, and the caller owns these pages.
                unsafe { copy::copy(from, (self.io_base + span.offset) as *mut u8, span.len) };
                self.show(span, writable);
            }
        }
    }

    /// Shows pages that were filled through [`Self::receive_place`].
    pub(crate) fn show(&self, span: Span, writable: bool) {
        self.protect_own(span, if writable { Prot::READ_WRITE } else { Prot::READ });
    }

    /// Moves a frame into view; the frame has no memory afterwards. Returns false when a page that was to be protected is
    /// open for writing instead.
    ///
    /// # Safety
    /// The page is in transit and the frame filled, both this call's to handle.
    pub(crate) unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        let Some(uffd) = &self.uffd else { return true };
        let Some(to) = self.windows.whole(span) else {
            // SAFETY: the frame has the span's bytes; passed on from the caller.
            unsafe { self.copy_in(span, self.frame(frame), writable) };
            self.empty_frame(frame);
            return true;
        };
        let from = self.frame(frame) as usize;
        // Between the move and its protection the program could write unseen: another thread, but also the one whose
        // touch brought the page, which need not be asleep yet (a fault can be read before its thread has looked whether
        // it must wait), or runs a signal handler. A page is protected where nothing of the program ran in between;
        // elsewhere it is left open, and reported so that it counts as dirty.
        let before = if writable { None } else { (self.program.still)() };
        let mode = MoveMode { dontwake: before.is_some(), allow_src_holes: true };
        // SAFETY: the caller owns both ranges.
        if unsafe { move_all(uffd, to, from, span.len, mode) } {
            let Some(before) = before else { return writable };
            let protected = uffd.write_protect(to, span.len, true, false).is_ok();
            let certain = protected && before.holds();
            if !certain {
                let _ = uffd.write_protect(to, span.len, false, true);
            }
            let _ = uffd.wake(to, span.len);
            return certain;
        }
        // SAFETY: the frame's bytes are still in place, and the caller's.
        unsafe { copy_in(uffd, to, from, span.len, !writable) };
        self.empty_frame(frame);
        true
    }

    /// Opens a protected page for writing and lets its writers go on.
    pub(crate) fn open(&self, span: Span) {
        match &self.uffd {
            Some(uffd) => self.windows.runs(span, |addr, part| _ = uffd.write_protect(addr, part.len, false, false)),
            None => self.protect_own(span, Prot::READ_WRITE),
        }
    }

    /// Lets threads that wait for a page look again.
    pub(crate) fn wake(&self, span: Span) {
        if let Some(uffd) = &self.uffd {
            self.windows.runs(span, |addr, part| _ = uffd.wake(addr, part.len));
        }
    }

    // ---- out of view ------------------------------------------------------------------------------------------------

    /// Moves a page out of view into an empty frame, in one step that no write can fall into.
    ///
    /// # Safety
    /// The page is in transit and the frame empty, both this call's to handle.
    pub(crate) unsafe fn move_out(&self, span: Span, frame: FrameId) {
        let Some(uffd) = &self.uffd else { return };
        let mode = MoveMode { dontwake: true, allow_src_holes: true };
        // SAFETY: the caller owns both ranges.
        let moved = |from| unsafe { move_all(uffd, self.frame(frame) as usize, from, span.len, mode) };
        if self.windows.whole(span).is_some_and(moved) {
            return;
        }
        // A pinned page, one under restricted access or in several pieces cannot be moved: freeze, copy, drop.
        self.freeze(span);
        // SAFETY: the page is frozen, the frame is the caller's.
        unsafe { self.read(span, self.frame(frame)) };
        // SAFETY: the bytes are in the frame now.
        self.windows.runs(span, |addr, part| _ = unsafe { map::advise(addr, part.len, Advice::DontNeed) });
    }

    /// Stops writes to pages in view: later ones trap and wait.
    pub(crate) fn freeze(&self, span: Span) {
        match &self.uffd {
            Some(uffd) => self.windows.runs(span, |addr, part| _ = uffd.write_protect(addr, part.len, true, false)),
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
            return self.windows.runs(span, |addr, part| {
                // SAFETY: the caller's buffer, of which this is a part; the kernel reads the page whatever its protection.
                let into = unsafe { std::slice::from_raw_parts_mut(to.add(part.offset - span.offset), part.len) };
                let _ = copy::read_foreign(addr, into);
            });
        };
        // SAFETY: the page is present and readable, and nothing writes to it.
        unsafe { copy::copy(from, to, span.len) };
    }

    /// Makes frozen or clean pages vanish at the next [`Self::flush`].
    pub(crate) fn drop_later(&self, span: Span, batch: &mut DontNeedBatch) {
        if self.uffd.is_none() {
            self.protect_own(span, Prot::NONE);
            if let Some(file) = &self.file {
                let _ = map::punch_hole(file, span.offset as u64, span.len as u64);
            }
            return;
        }
        self.windows.runs(span, |addr, part| {
            if !batch.push(addr, part.len) {
                self.flush(batch);
                let _ = batch.push(addr, part.len);
            }
        });
    }

    /// Carries out the drops collected in a batch.
    pub(crate) fn flush(&self, batch: &mut DontNeedBatch) {
        // SAFETY: every range pushed is a page in transit out of view, whose bytes are safe or not needed.
        let _ = unsafe { batch.flush() };
    }

    /// Gives a frame's memory back to the system.
    pub(crate) fn empty_frame(&self, frame: FrameId) {
        let size = if frame.wide { self.sizes.block } else { self.sizes.unit };
        // SAFETY: the frame is free; nobody needs its bytes.
        let _ = unsafe { map::advise(self.frame(frame) as usize, size, Advice::DontNeed) };
    }

    // ---- the program's own protection -------------------------------------------------------------------------------

    /// The program changes the access of a range of its far memory. In sigsegv mode the pages are out of view until they
    /// are shown again ([`Self::show`]), each with what the program left.
    pub(crate) fn restrict(&self, span: Span, prot: i32) -> Result<(), i32> {
        let is_usual = Prot(prot & Prot::READ_WRITE.0) == Prot::READ_WRITE;
        if !is_usual {
            self.restrictions.set(span, prot);
        }
        let prot = if self.uffd.is_some() { Prot(prot) } else { Prot::NONE };
        let mut refused = None;
        self.windows.runs(span, |addr, part| {
            // SAFETY: the range lies in far memory, whose owner asks for this; contents do not change.
            let answer = unsafe { map::protect(addr, part.len, prot) };
            refused = refused.or(answer.err());
        });
        if let Some(errno) = refused {
            return Err(errno.0);
        }
        if is_usual {
            self.restrictions.set(span, prot_usual());
        }
        Ok(())
    }

    /// Taken bytes that the program has made inaccessible, or mapped something else over.
    pub(crate) fn idle_bytes(&self) -> usize {
        self.restrictions.closed_bytes() + self.windows.hole_bytes()
    }

    /// Gives freed memory its usual access back.
    pub(crate) fn unrestrict(&self, span: Span) {
        if self.restrictions.touch(span) {
            let _ = self.restrict(span, prot_usual());
        }
    }

    /// Whether the program left itself the access that trapped.
    pub(crate) fn permits(&self, offset: usize, write: bool) -> bool {
        let wanted = if write { libc::PROT_WRITE } else { libc::PROT_READ };
        self.restrictions.at(offset).0 & wanted != 0
    }

    /// The access the program left to a page of the operating system.
    pub(crate) fn access(&self, offset: usize) -> Prot {
        self.restrictions.at(offset)
    }

    fn protect_own(&self, span: Span, prot: Prot) {
        if prot == Prot::NONE {
            return self.protect_run(span, prot);
        }
        self.restrictions.runs(span, |run, left| self.protect_run(run, Prot(prot.0 & left.0)));
    }

    fn protect_run(&self, span: Span, prot: Prot) {
        self.windows.runs(span, |addr, part| {
            // SAFETY: the range is the program's view of far memory in sigsegv mode; contents do not change.
            if unsafe { map::protect(addr, part.len, prot) }.is_err() {
                crate::fatal::die(
                    crate::fatal::EXIT_LOST,
                    format_args!(
                        "the kernel has no more mappings for sigsegv mode (vm.max_map_count); give a larger --page-size"
                    ),
                );
            }
        });
    }
}

fn prot_usual() -> i32 {
    Prot::READ_WRITE.0
}

fn refused(view: &View, errno: hanare_sys::Errno) -> ViewError {
    ViewError::Map(MapError::Reserve { len: view.sizes.reserve, errno })
}

fn pool(len: usize, align: usize) -> Result<usize, MapError> {
    if len == 0 {
        return Ok(0);
    }
    Ok(Mapping::reserve(len.next_multiple_of(align), align)?.leak())
}

/// COPY until all of it is there.
///
/// # Safety
/// As [`View::copy_in`].
unsafe fn copy_in(uffd: &Uffd, to: usize, from: usize, len: usize, wp: bool) {
    let mut done = 0;
    let mut piece_max = len;
    while done < len {
        let piece = piece_max.min(len - done);
        // SAFETY: passed on from the caller.
        let result = unsafe { uffd.copy(to + done, from + done, piece, CopyMode { wp, dontwake: false }) };
        done += result.done;
        match result.errno {
            None | Some(libc::EAGAIN) => {}
            // A range that crosses mappings (the program changed access to part of it) is refused whole.
            Some(libc::ENOENT) if piece > OS_PAGE => piece_max = OS_PAGE,
            // A page that is there already keeps its bytes; one whose mapping is gone has nobody to wait for it.
            Some(_) => {
                let _ = uffd.wake(to + done, OS_PAGE);
                done += OS_PAGE;
            }
        }
    }
}

/// MOVE until all of it is there; false, with everything back in place, when the kernel refuses.
///
/// # Safety
/// The caller owns the contents of both ranges, and the destination is empty.
unsafe fn move_all(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> bool {
    // SAFETY: passed on from the caller.
    let done = unsafe { move_some(uffd, to, from, len, mode) };
    if done == len {
        return true;
    }
    let back = MoveMode { dontwake: true, allow_src_holes: true };
    // SAFETY: these are the very pages moved above, and where they came from is empty since.
    if unsafe { move_some(uffd, from, to, done, back) } < done {
        // Going on would read what is not there, and wait for it for ever.
        crate::fatal::die(crate::fatal::EXIT_LOST, format_args!("the kernel does not move a page back; report this"));
    }
    false
}

/// MOVE as much as the kernel will, from the start on; the bytes moved.
///
/// # Safety
/// As [`move_all`].
unsafe fn move_some(uffd: &Uffd, to: usize, from: usize, len: usize, mode: MoveMode) -> usize {
    let mut done = 0;
    let mut tries = 0;
    while done < len {
        // SAFETY: passed on from the caller.
        let result = unsafe { uffd.move_pages(to + done, from + done, len - done, mode) };
        done += result.done;
        match result.errno {
            None => {}
            // Linux 6.18 does not count what it moved after it had to begin anew, as it has to where the processor notes
            // in that moment that a page is touched. The destination was empty: what is there, and gone here, was moved.
            Some(libc::EEXIST) if resident(from + done, OS_PAGE) == 0 => {
                if !mode.dontwake {
                    let _ = uffd.wake(to + done, OS_PAGE);
                }
                done += OS_PAGE;
            }
            Some(libc::EAGAIN) if tries < 1000 => tries += 1,
            Some(libc::EBUSY) if tries < 3 => tries += 1,
            Some(_) => break,
        }
    }
    done
}
