//! Freed blocks that keep their pages for a while. A program that frees a block often allocates one of the same size
//! soon. The new block then gets the old one's pages, which are still in local memory, and causes no fault. C libraries
//! do the same with the memory of freed blocks.
//!
//! The pager drops the pages of kept blocks before all others, without a transfer ([`hanare_paging::Event::Unused`]).
//! So kept blocks take no room that the program needs. They are no far bytes: they count as idle.

use std::sync::atomic::Ordering::Relaxed;

use hanare_sys::clock::now_ns;
use hanare_sys::signal::SignalMask;

use super::Freed;
use crate::kept::Block;
use crate::places;
use crate::process::State;
use crate::promise::Refusal;
use crate::span::Span;
use hanare_settings::Overcommit;

/// Age in nanoseconds at which a kept block is given back. jemalloc keeps freed pages for the same time.
const KEPT_NS: u64 = 10_000_000_000;
/// Divisor of the budget: kept blocks take at most 1/2 of it.
const BUDGET_PART: u64 = 2;

impl State {
    /// Keeps a freed block with its pages. Returns `None`, and does nothing, if the block cannot be kept.
    pub(super) fn keep(&self, offset: usize, len: usize) -> Option<Freed> {
        let most = self.engine.touched_placed_and_budget_bytes().2 / BUDGET_PART;
        let is_restricted = || self.engine.view().is_restricted(Span { offset, len });
        if len as u64 > most || places::meets_hole(places::base() + offset, len) || is_restricted() {
            return None;
        }
        self.engine.unuse(self.inner_units_of(offset, len));
        self.idles_more(len as u64);
        let block = Block { offset: offset as u64, len: len as u64, since_ns: now_ns() };
        loop {
            let mut kept = self.kept.lock();
            let is_added = kept.push(block, most);
            let oldest = if is_added { None } else { kept.take(|_| true) };
            self.kept_bytes.store(kept.bytes(), Relaxed);
            drop(kept);
            if is_added {
                break;
            }
            self.return_block(oldest);
        }
        self.idle_changed();
        Some(Freed::Now)
    }

    /// Takes a kept block for a new allocation of `len` bytes. Returns its offset and length. Each of its pages has its
    /// old bytes or zeroes. Returns `None` if no kept block fits.
    pub(super) fn take_kept(&self, len: usize, align: usize, overcommit: Overcommit) -> Option<(usize, usize)> {
        if self.kept_bytes.load(Relaxed) == 0 {
            return None;
        }
        let mut kept = self.kept.lock();
        let is_aligned = |offset: u64| (places::base() + offset as usize).is_multiple_of(align);
        let block = kept.take_fit(len as u64, is_aligned);
        self.kept_bytes.store(kept.bytes(), Relaxed);
        drop(kept);
        let block = block?;
        let Block { offset, len, .. } = block;
        if !self.promises(len as usize, overcommit, Refusal::Silent) {
            self.return_block(Some(block));
            self.return_all();
            return None;
        }
        self.engine.reuse(self.inner_units_of(offset as usize, len as usize));
        self.engine.allocated(self.inner_units_of(offset as usize, len as usize), true);
        self.idles_less(len);
        self.idle_changed();
        Some((offset as usize, len as usize))
    }

    /// Returns whether all pages of a range are in local memory.
    pub(super) fn are_local(&self, offset: usize, len: usize) -> bool {
        self.engine.are_resident(self.inner_units_of(offset, len))
    }

    /// Allocates address space. If none is left, gives back the kept blocks, and tries again.
    pub(super) fn place(&self, len: usize, align: usize) -> Option<usize> {
        let alloc = || self.extents.lock().alloc(len as u64, align as u64);
        let offset = alloc().or_else(|| {
            self.return_all();
            alloc()
        })?;
        Some(offset as usize)
    }

    /// Checks whether `more` bytes can be allocated ([`State::promises`]). If not, gives back the kept blocks, and checks
    /// again.
    pub(super) fn grants(&self, more: usize, overcommit: Overcommit) -> bool {
        if self.kept_bytes.load(Relaxed) > 0 {
            if self.promises(more, overcommit, Refusal::Silent) {
                return true;
            }
            self.return_all();
        }
        self.promises(more, overcommit, Refusal::Told)
    }

    /// Returns whether a kept block starts at `offset`.
    pub(super) fn is_kept(&self, offset: usize) -> bool {
        self.kept_bytes.load(Relaxed) > 0 && self.kept.lock().starts(offset as u64)
    }

    /// Gives back the kept blocks that overlap a range.
    pub(crate) fn return_kept_in(&self, offset: usize, len: usize) {
        let (first, end) = (offset as u64, (offset + len) as u64);
        self.return_blocks(|block| block.offset < end && first < block.offset + block.len);
    }

    /// Gives back all kept blocks.
    pub(crate) fn return_all(&self) {
        self.return_blocks(|_| true);
    }

    /// Gives back the kept blocks that are too old. A thread inside the gate calls this function periodically.
    pub(crate) fn return_old(&self) {
        let now_ns = now_ns();
        self.return_blocks(|block| now_ns.saturating_sub(block.since_ns) > KEPT_NS);
    }

    fn return_blocks(&self, is_wanted: impl Fn(&Block) -> bool) {
        if self.kept_bytes.load(Relaxed) == 0 {
            return;
        }
        let _mask = SignalMask::block_all();
        loop {
            let mut kept = self.kept.lock();
            let block = kept.take(&is_wanted);
            self.kept_bytes.store(kept.bytes(), Relaxed);
            drop(kept);
            if block.is_none() {
                return;
            }
            self.return_block(block);
        }
    }

    /// Discards a block that is not kept any longer, and makes its address space available to new allocations.
    fn return_block(&self, block: Option<Block>) {
        let Some(Block { offset, len, .. }) = block else { return };
        self.forget_whole(offset as usize, len as usize);
        self.give_back(offset as usize, len as usize);
        self.idles_less(len);
        self.far_changed();
    }
}
