//! The pin words of a rank: one word for each page, which says whether the page is in its home's memory.
//!
//! A rank with a limit on its memory evicts home pages at any time. Peers on its host read and write its pages directly
//! (zero copy), so they must know which pages are in memory. The pin words lie in the rank's memfd, behind the region
//! and the message rings. A peer pins a page before it writes to the page. The home pins a page that a peer is about to
//! read. A pin fails if the page is not in memory. The home evicts only pages without pins. A pin and an eviction are
//! one compare-and-swap each on the same word, so only one of them succeeds. The bytes of a page that is not in memory
//! travel in a message.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::sync::atomic::{AtomicU32, Ordering};

/// Flag: the page is in its home's memory.
const IN: u32 = 1;
/// Flag: the page was written since it came into memory, or may have been.
const WRITTEN: u32 = 2;
/// The amount that one pin adds to a word.
const PIN: u32 = 4;

/// The pin words of one rank.
pub(super) struct Gates {
    words: Words,
}

impl Gates {
    /// Returns the size in bytes of the pin words of `pages` pages.
    pub(super) fn len_for(pages: u32) -> u64 {
        (u64::from(pages) * 4).next_multiple_of(4096)
    }

    /// Maps the pin words that lie at an offset of a rank's memfd.
    pub(super) fn map(memory: impl AsFd, offset: u64, pages: u32) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, offset, Self::len_for(pages) as usize)?))
    }

    /// Uses `words` as the pin words of a rank.
    pub(super) fn over(words: Words) -> Self {
        Self { words }
    }

    fn word(&self, page: u32) -> &AtomicU32 {
        self.words.word(page as usize * 4)
    }

    // ---- the home ---------------------------------------------------------------------------------------------------

    pub(super) fn is_pinned(&self, page: u32) -> bool {
        // Acquire makes visible what peers did with the page before they released their pins.
        self.word(page).load(Ordering::Acquire) >= PIN
    }

    /// Notes that the page is in memory. Peers may pin it from now on.
    pub(super) fn open(&self, page: u32) {
        self.word(page).fetch_or(IN, Ordering::Release);
    }

    /// Notes that the page was written, or that the program may write it.
    pub(super) fn mark_written(&self, page: u32) {
        self.word(page).fetch_or(WRITTEN, Ordering::Relaxed);
    }

    /// Closes a page to peers before its eviction. Returns whether the page was written since it came into memory.
    /// `None` if a peer has pinned the page, which then stays in memory.
    pub(super) fn close(&self, page: u32) -> Option<bool> {
        let word = self.word(page);
        let mut now = word.load(Ordering::Relaxed);
        while now < PIN {
            // Acquire makes visible what peers wrote before they released their last pin.
            match word.compare_exchange_weak(now, 0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(now & WRITTEN != 0),
                Err(other) => now = other,
            }
        }
        None
    }

    /// Notes that this rank no longer serves the page, so that peers cannot pin it. Existing pins stay until their
    /// peers release them.
    pub(super) fn retire(&self, page: u32) {
        self.word(page).fetch_and(!(IN | WRITTEN), Ordering::AcqRel);
    }

    /// Pins a page of this rank that is in memory, on behalf of a peer. The caller then tells the peer by a message to
    /// read the page.
    pub(super) fn pin_for_peer(&self, page: u32) {
        self.word(page).fetch_add(PIN, Ordering::AcqRel);
    }

    // ---- a peer -----------------------------------------------------------------------------------------------------

    /// Pins a page for writing, if the page is in memory. Returns whether the page was pinned.
    pub(super) fn pin_to_write(&self, page: u32) -> bool {
        let word = self.word(page);
        let mut now = word.load(Ordering::Relaxed);
        // The bound `u32::MAX - PIN` prevents an overflow if another rank has damaged the word.
        while now & IN != 0 && now < u32::MAX - PIN {
            match word.compare_exchange_weak(now, (now + PIN) | WRITTEN, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Releases one pin of a page.
    pub(super) fn unpin(&self, page: u32) {
        let was = self.word(page).fetch_sub(PIN, Ordering::Release);
        debug_assert!(was >= PIN, "page {page} was pinned");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    const PAGES: u32 = 4;

    fn pair() -> (Gates, Gates) {
        let memory = hanare_sys::map::memfd("gates", Gates::len_for(PAGES)).expect("memory");
        (Gates::map(&memory, 0, PAGES).expect("mapped"), Gates::map(&memory, 0, PAGES).expect("mapped"))
    }

    #[test]
    fn a_page_is_out_for_peers_or_pinned_and_stays() {
        let (home, peer) = pair();
        assert!(!peer.pin_to_write(1), "it was never there");
        home.open(1);
        assert_eq!(home.close(1), Some(false), "nobody wrote");
        home.open(1);
        assert!(peer.pin_to_write(1));
        assert_eq!((home.close(1), home.is_pinned(1)), (None, true));
        peer.unpin(1);
        assert_eq!(home.close(1), Some(true));
        assert!(!peer.pin_to_write(1), "it is away");
        home.open(1);
        home.mark_written(1);
        home.pin_for_peer(1);
        home.retire(1);
        assert!(!peer.pin_to_write(1), "it moved");
        peer.unpin(1);
        home.open(1);
        assert_eq!(home.close(1), Some(false));
    }

    /// A home evicts a page and brings it back, while a peer writes to it. No write may be lost.
    #[test]
    fn no_write_is_lost_between_a_home_and_a_peer() {
        let (home, peer) = pair();
        let (page, is_done) = (AtomicU32::new(0), AtomicBool::new(false));
        let deadline = Instant::now() + Duration::from_secs(60);
        home.open(0);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut written = 0;
                while !is_done.load(Ordering::Relaxed) && Instant::now() < deadline {
                    if peer.pin_to_write(0) {
                        // The load and the store are two steps. So they would undo a change that the home makes between
                        // them.
                        page.store(page.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                        peer.unpin(0);
                        written += 1;
                    }
                    std::hint::spin_loop();
                }
                written
            });
            let (mut taken_out, mut away) = (0, 0);
            while taken_out < 2000 && Instant::now() < deadline {
                let Some(was_written) = home.close(0) else { continue };
                let now = page.swap(u32::MAX / 2, Ordering::Relaxed);
                assert!(was_written || now == away, "what was written is told");
                away = now;
                taken_out += 1;
                page.store(away, Ordering::Relaxed);
                home.open(0);
            }
            is_done.store(true, Ordering::Relaxed);
            assert_eq!(taken_out, 2000, "the home gets its turn");
            writer.join().expect("no panic")
        });
        assert_eq!(page.load(Ordering::Relaxed), written);
    }
}
