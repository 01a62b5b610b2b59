//! Which pages of a home are in its memory, in words that the ranks of one host share.
//!
//! A rank that keeps less than it is home of takes pages out of its memory at any time. Ranks of its host that read and write
//! its pages themselves (zero copy) have to know: behind the region and the post in its memfd lies a word a page, its *gate*.
//! A peer pins a page before it touches it, and finds out that it is away instead; the home takes out only what nobody has
//! pinned. Both are one compare-and-swap, so that one of them comes first. A page that is away, or was never there, goes in
//! a message.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::sync::atomic::{AtomicU32, Ordering};

/// The page is in its home's memory.
const IN: u32 = 1;
/// Something was, or may have been, written to it since it came in.
const WRITTEN: u32 = 2;
/// What one pin adds.
const PIN: u32 = 4;

/// The gates of one rank.
pub(super) struct Gates {
    words: Words,
}

impl Gates {
    /// Bytes of the gates of so many pages.
    pub(super) fn len_for(pages: u32) -> u64 {
        (u64::from(pages) * 4).next_multiple_of(4096)
    }

    /// The gates that lie at an offset of a rank's memory.
    pub(super) fn map(memory: impl AsFd, offset: u64, pages: u32) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, offset, Self::len_for(pages) as usize)?))
    }

    /// The gates in this memory.
    pub(super) fn over(words: Words) -> Self {
        Self { words }
    }

    fn word(&self, page: u32) -> &AtomicU32 {
        self.words.word(page as usize * 4)
    }

    // ---- the home ---------------------------------------------------------------------------------------------------

    pub(super) fn is_pinned(&self, page: u32) -> bool {
        // Acquire: peers whose pins are gone have accessed the page before.
        self.word(page).load(Ordering::Acquire) >= PIN
    }

    /// The page's bytes are there from now on.
    pub(super) fn open(&self, page: u32) {
        self.word(page).fetch_or(IN, Ordering::Release);
    }

    /// The page is written, or the program may write it.
    pub(super) fn mark_written(&self, page: u32) {
        self.word(page).fetch_or(WRITTEN, Ordering::Relaxed);
    }

    /// The page is about to be taken out: says whether it was written since it came in. None when a peer has it pinned; then
    /// it stays.
    pub(super) fn close(&self, page: u32) -> Option<bool> {
        let word = self.word(page);
        let mut now = word.load(Ordering::Relaxed);
        while now < PIN {
            // Acquire: what peers wrote before their last pin went is there.
            match word.compare_exchange_weak(now, 0, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(now & WRITTEN != 0),
                Err(other) => now = other,
            }
        }
        None
    }

    /// The page is no longer this rank's to serve. Pins stay until those who have them let go.
    pub(super) fn retire(&self, page: u32) {
        self.word(page).fetch_and(!(IN | WRITTEN), Ordering::AcqRel);
    }

    /// Pins a page of this rank's own that is in, for the peer that is about to be told.
    pub(super) fn pin_for_peer(&self, page: u32) {
        self.word(page).fetch_add(PIN, Ordering::AcqRel);
    }

    // ---- a peer -----------------------------------------------------------------------------------------------------

    /// Pins a page to write to it, when it is in.
    pub(super) fn pin_to_write(&self, page: u32) -> bool {
        let word = self.word(page);
        let mut now = word.load(Ordering::Relaxed);
        // The second bound: a word of a peer that lies must not run over.
        while now & IN != 0 && now < u32::MAX - PIN {
            match word.compare_exchange_weak(now, (now + PIN) | WRITTEN, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Lets a pinned page go.
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

    /// A home that takes a page out and brings it back while a peer writes to it: no write may be lost.
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
                        // Not one step: what the home does in between would be undone.
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
