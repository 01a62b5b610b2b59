//! The words of a region of far memory: each is a function of its place and of how often it was rewritten, so that a
//! lost, stale or misplaced page shows wherever it is read.
#![allow(unsafe_code, reason = "reads and writes far memory, which no Rust reference may cover")]

use super::pattern::{OS_PAGE, mix};

const WORDS_A_PAGE: u64 = OS_PAGE / 8;

/// A word that is not what it must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the word at {addr:#x} is {found:#018x} and should be {expected:#018x}; far memory lost it")]
pub(crate) struct Mismatch {
    addr: usize,
    expected: u64,
    found: u64,
}

/// Gives up this thread's alternate signal stack, so that faults are resolved on its ordinary one, as in a C program.
/// Rust's own of 8 KiB tells a stack overflow from other faults, and is too small for a pager.
///
/// # Errors
/// The kernel's.
pub(super) fn use_one_stack() -> std::io::Result<()> {
    let none = libc::stack_t { ss_sp: std::ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
    // SAFETY: reads one struct; the old stack is left mapped, and no handler runs on it now.
    if unsafe { libc::sigaltstack(&raw const none, std::ptr::null_mut()) } == 0 {
        return Ok(());
    }
    Err(std::io::Error::last_os_error())
}

/// Whole pages of far memory that belong to this benchmark for ever.
pub(super) struct Words {
    base: usize,
    /// How often the touched word of each page was rewritten. In near memory.
    rewritten: Vec<u32>,
}

impl Words {
    /// Allocates them and writes every word; `None` when far memory is exhausted.
    pub(super) fn new(pages: u64) -> Option<Self> {
        let base = hanare::far::alloc((pages * OS_PAGE) as usize, OS_PAGE as usize);
        if base.is_null() {
            return None;
        }
        let words = Self { base: base.expose_provenance(), rewritten: vec![0; pages as usize] };
        for index in 0..pages * WORDS_A_PAGE {
            words.store(index, mix(index));
        }
        Some(words)
    }

    pub(super) fn pages(&self) -> u64 {
        self.rewritten.len() as u64
    }

    /// Words there are.
    pub(super) fn count(&self) -> u64 {
        self.pages() * WORDS_A_PAGE
    }

    /// Reads and checks the touched word of a page, and writes a new one if asked to.
    #[inline]
    pub(super) fn touch(&mut self, page: u64, rewrite: bool) -> Result<(), Mismatch> {
        let index = touched(page);
        let times = u64::from(self.rewritten[page as usize]);
        self.check(index, times)?;
        if rewrite {
            self.rewritten[page as usize] = times as u32 + 1;
            self.store(index, value(index, times + 1));
        }
        Ok(())
    }

    /// Reads and checks every word.
    pub(super) fn verify(&self) -> Result<(), Mismatch> {
        (0..self.pages()).try_for_each(|page| {
            let rewritten = touched(page);
            (page * WORDS_A_PAGE..(page + 1) * WORDS_A_PAGE).try_for_each(|index| {
                let times = if index == rewritten { u64::from(self.rewritten[page as usize]) } else { 0 };
                self.check(index, times)
            })
        })
    }

    #[inline]
    fn check(&self, index: u64, times: u64) -> Result<(), Mismatch> {
        let addr = self.addr(index);
        let word: *const u64 = std::ptr::with_exposed_provenance(addr);
        // SAFETY: an aligned word inside the allocation, which is never freed; its touch is resolved by the pager.
        let found = unsafe { word.read_volatile() };
        let expected = value(index, times);
        if found == expected { Ok(()) } else { Err(Mismatch { addr, expected, found }) }
    }

    #[inline]
    fn store(&self, index: u64, value: u64) {
        let word: *mut u64 = std::ptr::with_exposed_provenance_mut(self.addr(index));
        // SAFETY: as in `check`.
        unsafe { word.write_volatile(value) };
    }

    fn addr(&self, index: u64) -> usize {
        self.base + (index * 8) as usize
    }
}

/// The word of a page that touches meet: not always the first, which would put all of them into the same cache sets.
fn touched(page: u64) -> u64 {
    page * WORDS_A_PAGE + mix(page) % WORDS_A_PAGE
}

/// What the word `index` holds after it was rewritten so often.
fn value(index: u64, times: u64) -> u64 {
    mix(index.wrapping_add(times << 40))
}
