//! A simulated view for tests. It keeps the program's access to each unit in a plain value, and the bytes in ordinary
//! memory. The simulated kernel refuses requests at random: to move a page, to protect a page against writes, or to let
//! a page be read in place. A random seed determines these refusals.
//!
//! The view also checks the engine. It panics if the engine fills a present page or moves a page into a frame that is
//! not empty. It also panics if the engine drops an absent page or a page that a transfer holds.

use std::cell::{Cell, RefCell};

use hanare_paging::{FrameId, limits};

use super::{Moved, View};
use crate::span::{OS_PAGE, Span};

/// The byte that fills memory without valid contents. If a read by the program returns this byte, there is a bug.
const POISON: u8 = 0xDB;

/// The sizes and abilities of a simulated view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) units: usize,
    pub(crate) block_units: usize,
    pub(crate) small_frames: usize,
    pub(crate) wide_frames: usize,
    /// Whether base pages are moved into frames. If false, they are copied, and their frames do not count as local
    /// memory.
    pub(crate) small_moves: bool,
    /// Number of places for pages that are moved aside. If there are more than `PLACES` places, several of them share
    /// memory.
    pub(crate) aside_units: usize,
    /// Whether the view behaves as in sigsegv mode, where memory is mapped twice. The program then cannot read
    /// write-protected pages.
    pub(crate) doubled: bool,
    /// Whether the simulated kernel can move pages (MOVE). If false, no transfer may hold a page.
    pub(crate) moves: bool,
    /// Probability that the simulated kernel refuses a request, in thousandths.
    pub(crate) refusals: u64,
}

/// Number of places that have memory of their own. A page that is moved aside is moved to a place.
const PLACES: usize = 2 * limits::VICTIMS_MAX;
/// Bytes of zeroes with which pages are filled.
const ZEROES: usize = limits::RUN_BYTES_MAX as usize;

/// The program's access to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Absent,
    /// The bytes are present, but every access traps (sigsegv mode).
    Closed,
    ReadOnly,
    Open,
}

/// The error of an access by the program that trapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trapped;

pub(crate) struct FakeView {
    shape: Shape,
    random: Cell<u64>,
    units: RefCell<Vec<Seen>>,
    /// For each unit, the number of transfers that hold it.
    held: RefCell<Vec<u32>>,
    /// Units whose waiting threads were woken.
    woken: RefCell<Vec<usize>>,
    /// For each frame, whether it has memory. The frames of base pages come first.
    filled: RefCell<Vec<bool>>,
    /// Start of the program's memory. No Rust reference points to this range or to the three ranges below.
    memory: *mut u8,
    frames: *mut u8,
    places: *mut u8,
    zeroes: *mut u8,
}

fn lend(bytes: usize) -> *mut u8 {
    Box::leak(vec![POISON; bytes].into_boxed_slice()).as_mut_ptr()
}

/// Frees memory that `lend` allocated.
///
/// # Safety
/// `lend(bytes)` returned `start`, and nothing uses this memory after the call.
unsafe fn give_back(start: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees that `start` comes from a box of `bytes` bytes, which `lend` leaked.
    let memory = unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, bytes)) };
    drop(memory);
}

impl Drop for FakeView {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the four ranges by `lend` with the same lengths. The view is their only owner.
        unsafe {
            give_back(self.memory, self.shape.units * OS_PAGE);
            give_back(self.frames, self.frame_units() * OS_PAGE);
            give_back(self.places, PLACES * OS_PAGE);
            give_back(self.zeroes, ZEROES);
        }
    }
}

impl FakeView {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        let frame_units = shape.small_frames + shape.wide_frames * shape.block_units;
        let zeroes = lend(ZEROES);
        // SAFETY: `lend` has just allocated `ZEROES` bytes at `zeroes`.
        unsafe { zeroes.write_bytes(0, ZEROES) };
        Self {
            shape,
            random: Cell::new(seed),
            units: RefCell::new(vec![Seen::Absent; shape.units]),
            held: RefCell::new(vec![0; shape.units]),
            woken: RefCell::default(),
            filled: RefCell::new(vec![false; shape.small_frames + shape.wide_frames]),
            memory: lend(shape.units * OS_PAGE),
            frames: lend(frame_units * OS_PAGE),
            places: lend(PLACES * OS_PAGE),
            zeroes,
        }
    }

    fn frame_units(&self) -> usize {
        self.shape.small_frames + self.shape.wide_frames * self.shape.block_units
    }

    fn refuses(&self) -> bool {
        let next = self.random.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random.set(next);
        (next >> 33) % 1000 < self.shape.refusals
    }

    fn at(&self, span: Span) -> *mut u8 {
        assert!(span.len > 0 && span.offset + span.len <= self.shape.units * OS_PAGE, "{span:?} is not far");
        self.memory.wrapping_add(span.offset)
    }

    fn set(&self, span: Span, seen: Seen) {
        self.units.borrow_mut()[units_of(span)].fill(seen);
    }

    fn each(&self, span: Span, what: &str, is_right: impl Fn(Seen) -> bool) {
        let units = self.units.borrow();
        for unit in units_of(span) {
            assert!(is_right(units[unit]), "unit {unit} is {:?}: {what}", units[unit]);
        }
    }

    fn is_held(&self, span: Span) -> bool {
        self.held.borrow()[units_of(span)].iter().any(|&count| count > 0)
    }

    /// Makes pages accessible, for writing if `writable` is true. The simulated kernel may refuse to write-protect the
    /// pages, so that they are open for writing. Returns false in this case.
    fn show_as(&self, span: Span, writable: bool) -> bool {
        let certain = writable || !self.refuses();
        self.set(span, if writable || !certain { Seen::Open } else { Seen::ReadOnly });
        self.wake(span);
        certain
    }

    /// Unmaps pages and overwrites their bytes with `POISON`.
    fn take_away(&self, span: Span) {
        self.set(span, Seen::Absent);
        // SAFETY: `at` checks that the span lies in the program's memory. No other code accesses it during the call.
        unsafe { self.at(span).write_bytes(POISON, span.len) };
    }

    fn frame_index(&self, frame: FrameId) -> usize {
        frame.index as usize + if frame.wide { self.shape.small_frames } else { 0 }
    }

    fn frame_len(&self, frame: FrameId) -> usize {
        if frame.wide { self.shape.block_units * OS_PAGE } else { OS_PAGE }
    }

    /// Moves pages to `to`, as the kernel's MOVE does. Refuses pages that transfers hold. Refuses other pages at
    /// random.
    fn move_away(&self, span: Span, to: *mut u8) -> Moved {
        if !self.shape.moves {
            return Moved::Unmovable;
        }
        if self.is_held(span) {
            return Moved::Stays;
        }
        if self.refuses() {
            return if self.refuses() { Moved::Stays } else { Moved::Unmovable };
        }
        // SAFETY: `to` points to an empty frame or places of `span.len` bytes. `at` checks that the span lies in the
        // program's memory.
        unsafe { to.copy_from_nonoverlapping(self.at(span), span.len) };
        self.take_away(span);
        Moved::Gone
    }

    // ---- the program's side -----------------------------------------------------------------------------------------

    fn word(&self, unit: usize, word: usize) -> *mut u64 {
        self.at(Span { offset: unit * OS_PAGE + word * 8, len: 8 }).cast()
    }

    /// Reads a word of 8 bytes, as the program does.
    pub(crate) fn load(&self, unit: usize, word: usize) -> Result<u64, Trapped> {
        match self.units.borrow()[unit] {
            // SAFETY: `word` checks that the word lies in the program's memory. No other code accesses it meanwhile.
            Seen::ReadOnly | Seen::Open => Ok(unsafe { self.word(unit, word).read_unaligned() }),
            Seen::Absent | Seen::Closed => Err(Trapped),
        }
    }

    /// Writes a word of 8 bytes, as the program does.
    pub(crate) fn store(&self, unit: usize, word: usize, value: u64) -> Result<(), Trapped> {
        if self.units.borrow()[unit] != Seen::Open {
            return Err(Trapped);
        }
        // SAFETY: `word` checks that the word lies in the program's memory. No other code accesses it meanwhile.
        unsafe { self.word(unit, word).write_unaligned(value) };
        Ok(())
    }

    /// Begins a transfer that writes to a unit. Does nothing and returns false if the unit is not open for writing, or
    /// if the simulated kernel cannot move pages.
    pub(crate) fn pin(&self, unit: usize) -> bool {
        let is_open = self.shape.moves && self.units.borrow()[unit] == Seen::Open;
        self.held.borrow_mut()[unit] += u32::from(is_open);
        is_open
    }

    /// Ends a transfer. Writes `value` to a word of its unit. `value` is `None` if the program discarded the unit
    /// meanwhile.
    pub(crate) fn unpin(&self, unit: usize, word: usize, value: Option<u64>) {
        self.held.borrow_mut()[unit] -= 1;
        if let Some(value) = value {
            assert!(self.units.borrow()[unit] != Seen::Absent, "unit {unit} left while a transfer held it");
            // SAFETY: `word` checks that the word lies in the program's memory. No other code accesses it meanwhile.
            unsafe { self.word(unit, word).write_unaligned(value) };
        }
    }

    /// Returns the units whose waiting threads were woken since the last call.
    pub(crate) fn take_woken(&self) -> Vec<usize> {
        std::mem::take(&mut self.woken.borrow_mut())
    }

    /// Returns the local memory in units: the units in view, and the frames that count as local memory.
    pub(crate) fn local_units(&self) -> usize {
        self.units.borrow().iter().filter(|&&seen| seen != Seen::Absent).count() + self.framed_units()
    }

    fn framed_units(&self) -> usize {
        let filled = self.filled.borrow();
        let (small, wide) = filled.split_at(self.shape.small_frames);
        let count = |frames: &[bool]| frames.iter().filter(|&&filled| filled).count();
        let small = if self.shape.small_moves { count(small) } else { 0 };
        small + count(wide) * self.shape.block_units
    }

    /// Makes the view of a forked child. The kernel's fork copies the pages in view without their write protection, so
    /// the child can write to them. The fork does not copy the frames.
    pub(crate) fn forked(&self) -> Self {
        let child = Self::new(self.shape, self.random.get());
        // SAFETY: `new` allocated both ranges for `shape.units` units each. The ranges do not overlap.
        unsafe { child.memory.copy_from_nonoverlapping(self.memory, self.shape.units * OS_PAGE) };
        for (child, seen) in child.units.borrow_mut().iter_mut().zip(&*self.units.borrow()) {
            assert!(*seen == Seen::Absent || !self.shape.doubled, "shared memory is in view at a fork");
            *child = if *seen == Seen::Absent { Seen::Absent } else { Seen::Open };
        }
        child
    }
}

fn units_of(span: Span) -> std::ops::Range<usize> {
    span.offset / OS_PAGE..(span.offset + span.len).div_ceil(OS_PAGE)
}

impl View for FakeView {
    /// Far memory begins at address 0, so an offset equals its address.
    fn offset_of(&self, addr: usize) -> Option<usize> {
        (addr < self.shape.units * OS_PAGE).then_some(addr)
    }

    /// Marks the frame as filled. The engine asks for the address of a frame only to fill the frame or to read its
    /// bytes.
    fn frame(&self, frame: FrameId) -> *mut u8 {
        self.filled.borrow_mut()[self.frame_index(frame)] = true;
        let units = match frame.wide {
            true => self.shape.small_frames + frame.index as usize * self.shape.block_units,
            false => frame.index as usize,
        };
        self.frames.wrapping_add(units * OS_PAGE)
    }

    fn frame_to_fill(&self, frame: FrameId) -> *mut u8 {
        self.frame(frame)
    }

    fn empty_frame(&self, frame: FrameId) {
        let start = self.frame(frame);
        // SAFETY: `start` points to the `frame_len` bytes of the frame, which are no longer needed.
        unsafe { start.write_bytes(POISON, self.frame_len(frame)) };
        self.filled.borrow_mut()[self.frame_index(frame)] = false;
    }

    unsafe fn zero_frame(&self, frame: FrameId) {
        // SAFETY: the frame has `frame_len` bytes. The caller guarantees that only it uses the frame.
        unsafe { self.frame(frame).write_bytes(0, self.frame_len(frame)) };
    }

    fn aside_units(&self) -> usize {
        self.shape.aside_units
    }

    fn aside(&self, place: usize) -> *const u8 {
        assert!(place < self.shape.aside_units, "place {place} is none");
        self.places.wrapping_add(place % PLACES * OS_PAGE)
    }

    fn drop_aside(&self, first: usize, count: usize) {
        for place in first..first + count {
            // SAFETY: `aside` returns the address of a place of `OS_PAGE` bytes, which are no longer needed.
            unsafe { self.aside(place).cast_mut().write_bytes(POISON, OS_PAGE) };
        }
    }

    fn zeroes(&self) -> *const u8 {
        self.zeroes
    }

    fn receive_place(&self, offset: usize) -> Option<*mut u8> {
        self.shape.doubled.then(|| self.memory.wrapping_add(offset))
    }

    unsafe fn copy_in(&self, span: Span, from: *const u8, writable: bool) -> bool {
        self.each(span, "it is filled twice", |seen| seen == Seen::Absent);
        // SAFETY: the caller guarantees `span.len` bytes at `from`. `at` checks that the span lies in the program's
        // memory, which no other code accesses during the call.
        unsafe { self.at(span).copy_from_nonoverlapping(from, span.len) };
        self.show_as(span, writable)
    }

    unsafe fn move_in(&self, span: Span, frame: FrameId, writable: bool) -> bool {
        assert!(self.filled.borrow()[self.frame_index(frame)], "{frame:?} is empty");
        // SAFETY: the frame is filled with `span.len` bytes, which do not change. The caller guarantees that the page
        // is in transit.
        let certain = unsafe { self.copy_in(span, self.frame(frame), writable) };
        self.empty_frame(frame);
        certain
    }

    fn show(&self, span: Span, writable: bool) -> bool {
        self.each(span, "it is shown", |seen| self.shape.doubled || seen != Seen::Absent);
        self.show_as(span, writable)
    }

    fn show_again(&self, span: Span, writable: bool) -> bool {
        if !self.shape.doubled {
            return true;
        }
        if !writable && self.refuses() {
            return false;
        }
        self.set(span, if writable { Seen::Open } else { Seen::ReadOnly });
        true
    }

    fn open(&self, span: Span) {
        self.each(span, "it is opened", |seen| seen != Seen::Absent);
        self.set(span, Seen::Open);
        self.wake(span);
    }

    fn lost_page(&self, _: Span) -> Option<usize> {
        None
    }

    fn wake(&self, span: Span) {
        self.woken.borrow_mut().extend(units_of(span));
    }

    unsafe fn move_out(&self, span: Span, frame: FrameId, _clean: bool) -> bool {
        self.each(span, "it is moved out", |seen| seen != Seen::Absent);
        assert!(!self.filled.borrow()[self.frame_index(frame)], "{frame:?} is not empty");
        if self.move_away(span, self.frame(frame)) == Moved::Stays {
            self.empty_frame(frame);
            return false;
        }
        if self.units.borrow()[units_of(span).start] != Seen::Absent {
            // The page could not be moved, so it is copied. No transfer may hold the page, because the transfer would
            // continue to write to the old address.
            assert!(!self.is_held(span), "{span:?} is copied while a transfer holds it");
            // SAFETY: only the caller uses the frame, which has `span.len` bytes. `at` checks that the span lies in the
            // program's memory.
            unsafe { self.frame(frame).copy_from_nonoverlapping(self.at(span), span.len) };
            self.take_away(span);
        }
        true
    }

    unsafe fn move_aside(&self, span: Span, place: usize) -> Moved {
        self.each(span, "it is moved aside", |seen| seen == Seen::Open);
        self.move_away(span, self.aside(place).cast_mut())
    }

    fn write_protect(&self, span: Span) {
        self.each(span, "it is write-protected", |seen| seen != Seen::Absent);
        self.set(span, if self.shape.doubled { Seen::Closed } else { Seen::ReadOnly });
    }

    fn protected_bytes(&self, span: Span) -> Option<*const u8> {
        self.each(span, "it is read in place", |seen| matches!(seen, Seen::Closed | Seen::ReadOnly));
        (self.shape.doubled || !self.refuses()).then(|| self.at(span).cast_const())
    }

    unsafe fn read(&self, span: Span, to: *mut u8) {
        self.each(span, "it is read in place", |seen| matches!(seen, Seen::Closed | Seen::ReadOnly));
        // SAFETY: the caller guarantees `span.len` writable bytes at `to`. `at` checks that the span lies in the
        // program's memory.
        unsafe { to.copy_from_nonoverlapping(self.at(span), span.len) };
    }

    fn drop_together(&self, spans: &mut dyn Iterator<Item = Span>) {
        for span in spans {
            self.each(span, "it is dropped", |seen| seen != Seen::Absent);
            assert!(!self.is_held(span), "{span:?} is dropped while a transfer holds it");
            self.take_away(span);
        }
    }
}
