//! The published pages of a rank: peers on its host may read them without a request.
//!
//! Behind the region and the message rings, a rank's memfd holds a count, one status byte for each page, and the twins
//! of the pages. A reader checks that a page is published, and sends the page's home a message about the read, which
//! wakes nobody. Then the reader copies the page, and checks that the count and the page's status have not changed.
//!
//! The home makes the count odd before it publishes its writes. Next it processes the messages about reads. At the end
//! it makes the count even again. So either the home knows of a reader before it publishes its writes, or the reader
//! finds another count and requests the page. A reader never uses bytes that changed during its copy.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

/// Number of bytes in front of the pages' status bytes. The first word is the count, which is odd while the rank
/// publishes its writes.
const HEAD_BYTES: usize = 4096;

/// Status of a page: no peer may read it.
const WITHHELD: u8 = 0;
/// Status of a page: peers may read the page itself.
const PAGE: u8 = 1;
/// Status of a page: peers may read its twin instead of the page.
const TWIN: u8 = 2;

/// The published pages of one rank.
pub(super) struct Offers {
    words: Words,
}

/// The status of a page and the count, as a reader found them.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    what: u8,
    count: u32,
}

impl Offer {
    /// Returns whether the reader must read the page's twin instead of the page.
    pub(super) fn is_twin(self) -> bool {
        self.what == TWIN
    }
}

impl Offers {
    /// Returns the size in bytes of the count and the status of `pages` pages.
    pub(super) fn len_for(pages: u32) -> u64 {
        (HEAD_BYTES as u64 + u64::from(pages)).next_multiple_of(4096)
    }

    /// Maps the count and the status bytes that lie at an offset of a rank's memfd.
    pub(super) fn map(memory: impl AsFd, offset: u64, pages: u32) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, offset, Self::len_for(pages) as usize)?))
    }

    /// Uses `words` as the count and the status bytes of a rank.
    pub(super) fn over(words: Words) -> Self {
        Self { words }
    }

    fn count(&self) -> &AtomicU32 {
        self.words.word(0)
    }

    fn byte(&self, page: u32) -> &AtomicU8 {
        self.words.byte(HEAD_BYTES + page as usize)
    }

    // ---- the home ---------------------------------------------------------------------------------------------------

    /// Publishes the page itself. The caller may drop the page's twin afterwards.
    pub(super) fn offer(&self, page: u32) {
        self.say(page, PAGE);
    }

    /// Publishes the page's twin, which must exist. The program may write the page itself afterwards.
    pub(super) fn offer_twin(&self, page: u32) {
        self.say(page, TWIN);
    }

    /// Withdraws a published page. The program may write the page afterwards.
    pub(super) fn withhold(&self, page: u32) {
        self.say(page, WITHHELD);
    }

    fn say(&self, page: u32, what: u8) {
        self.byte(page).store(what, Ordering::SeqCst);
        // A reader that sees bytes which were changed after this fence also sees the page's new status.
        fence(Ordering::Release);
    }

    /// Makes the count odd, before the rank publishes its writes. Peers that read a page from now on discard what they
    /// read. Messages about earlier reads are in the rings by now.
    pub(super) fn begin_flush(&self) {
        self.count().fetch_or(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Makes the count even, after the rank has published its writes. Peers may read pages again.
    pub(super) fn end_flush(&self) {
        self.count().fetch_add(1, Ordering::SeqCst);
    }

    // ---- a peer -----------------------------------------------------------------------------------------------------

    /// Returns what a peer may read: the page or its twin. `None` if the peer must request the page. Before the peer
    /// reads, it sends the page's home a message and calls [`Self::said`].
    pub(super) fn look(&self, page: u32) -> Option<Offer> {
        let count = self.count().load(Ordering::SeqCst);
        let what = self.byte(page).load(Ordering::SeqCst);
        (count & 1 == 0 && matches!(what, PAGE | TWIN)).then_some(Offer { what, count })
    }

    /// Orders a peer's message to the home before the peer's read of the page.
    pub(super) fn said() {
        fence(Ordering::SeqCst);
    }

    /// Returns whether the bytes read since [`Self::look`] are valid.
    pub(super) fn is_still(&self, page: u32, offer: Offer) -> bool {
        fence(Ordering::Acquire);
        let what = self.byte(page).load(Ordering::SeqCst);
        what == offer.what && self.count().load(Ordering::SeqCst) == offer.count
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::*;

    fn pair() -> (Offers, Offers) {
        let memory = hanare_sys::map::memfd("offers", Offers::len_for(9)).expect("memory");
        (Offers::map(&memory, 0, 9).expect("mapped"), Offers::map(&memory, 0, 9).expect("mapped"))
    }

    #[test]
    fn what_is_offered_can_be_read_until_something_changes() {
        let (home, peer) = pair();
        assert!(peer.look(8).is_none(), "nothing is offered at first");
        home.offer(8);
        let offer = peer.look(8).expect("offered");
        assert!(!offer.is_twin() && peer.is_still(8, offer));
        home.offer_twin(8);
        assert!(!peer.is_still(8, offer) && peer.look(8).expect("offered").is_twin());
        let offer = peer.look(8).expect("offered");
        home.begin_flush();
        assert!(peer.look(8).is_none() && !peer.is_still(8, offer), "its home tells what it wrote");
        home.end_flush();
        assert!(peer.look(8).is_some() && !peer.is_still(8, offer), "it has told");
        home.withhold(8);
        assert!(peer.look(8).is_none() && peer.look(7).is_none());
    }

    /// A home writes a page between two flushes, while a peer reads it. Checks at each flush that the home knows of
    /// every valid read. If the home did not know of the read at the previous flush, the peer must have read the bytes
    /// published then or newer bytes.
    #[test]
    fn a_home_hears_of_a_reader_or_the_reader_has_what_the_home_told() {
        let (home, peer) = pair();
        // `page` stands for the page's memory, which the home writes. `said` stands for the reader's message to the
        // home.
        let (page, said, is_done) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        let relied: [AtomicU32; 2] = [AtomicU32::new(0), AtomicU32::new(0)];
        home.offer(0);
        let deadline = Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut round = 0;
                while !is_done.load(Ordering::Relaxed) && Instant::now() < deadline {
                    let Some(offer) = peer.look(0) else { continue };
                    round += 1;
                    said.store(round, Ordering::SeqCst);
                    Offers::said();
                    let value = page.load(Ordering::Relaxed);
                    if peer.is_still(0, offer) {
                        relied[1].store(value, Ordering::SeqCst);
                        relied[0].store(round, Ordering::SeqCst);
                    }
                }
            });
            let (mut told, mut heard) = (0, 0);
            for value in 1..200_000 {
                page.store(value, Ordering::Relaxed);
                home.begin_flush();
                let now = said.load(Ordering::SeqCst);
                // At the previous flush, the home may not have known of the reader's last valid read. Then the reader
                // must have read at least the value that was published at that flush.
                let round = relied[0].load(Ordering::SeqCst);
                let read = relied[1].load(Ordering::SeqCst);
                assert!(round <= now, "round {round} was relied on before it was heard of");
                assert!(round <= heard || read >= told, "round {round} read {read} behind {told}");
                (told, heard) = (value, now);
                home.end_flush();
            }
            is_done.store(true, Ordering::Relaxed);
            assert!(heard > 0 || Instant::now() < deadline, "the reader gets its turn");
        });
    }
}
