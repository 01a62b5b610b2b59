//! Which pages of a home peers may read without asking, in memory that the ranks of one host share.
//!
//! Behind the region and the post in a rank's memfd lie a count and a byte a page, and behind them the twins of its pages.
//! A reader looks whether a page is offered, says that it reads it (a message for which nobody is woken), copies, and looks again.
//! The home counts up before it takes in who reads, in a call that tells what it wrote, and again behind it. So either it has
//! heard of a reader by then, or that reader finds another count and asks for the page instead; and what a reader
//! relies on was whole.

use std::os::fd::AsFd;

use super::words::{MapError, Words};
use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering, fence};

/// Bytes in front of those of the pages; the first word counts, and is odd while its rank tells what it wrote.
const HEAD_BYTES: usize = 4096;

/// Nobody may read the page.
const WITHHELD: u8 = 0;
/// The page itself may be read.
const PAGE: u8 = 1;
/// Its twin may be.
const TWIN: u8 = 2;

/// What one rank offers.
pub(super) struct Offers {
    words: Words,
}

/// What a reader found.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    what: u8,
    count: u32,
}

impl Offer {
    /// Whether the page's twin is to be read instead of the page.
    pub(super) fn is_twin(self) -> bool {
        self.what == TWIN
    }
}

impl Offers {
    /// Bytes of what is said of so many pages.
    pub(super) fn len_for(pages: u32) -> u64 {
        (HEAD_BYTES as u64 + u64::from(pages)).next_multiple_of(4096)
    }

    /// Those that lie at an offset of a rank's memory.
    pub(super) fn map(memory: impl AsFd, offset: u64, pages: u32) -> Result<Self, MapError> {
        Ok(Self::over(Words::map(memory, offset, Self::len_for(pages) as usize)?))
    }

    /// The offers in this memory.
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

    /// The page itself may be read from now on. Its twin may be dropped afterwards.
    pub(super) fn offer(&self, page: u32) {
        self.say(page, PAGE);
    }

    /// Its twin, which is made, may be read. The page itself may be written afterwards.
    pub(super) fn offer_twin(&self, page: u32) {
        self.say(page, TWIN);
    }

    /// Nobody may read the page any more. It may be written afterwards.
    pub(super) fn withhold(&self, page: u32) {
        self.say(page, WITHHELD);
    }

    fn say(&self, page: u32, what: u8) {
        self.byte(page).store(what, Ordering::SeqCst);
        // A reader of bytes that are changed behind this finds that they are not offered any more.
        fence(Ordering::Release);
    }

    /// The rank begins to tell what it wrote: whoever reads from now on reads in vain, and what others have said before is
    /// there to be taken in.
    pub(super) fn begin_flush(&self) {
        self.count().fetch_or(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// What it wrote is told: pages may be read.
    pub(super) fn end_flush(&self) {
        self.count().fetch_add(1, Ordering::SeqCst);
    }

    // ---- a peer -----------------------------------------------------------------------------------------------------

    /// What is to be read of a page. To be said to its home then, and to be read behind [`Self::said`].
    pub(super) fn look(&self, page: u32) -> Option<Offer> {
        let count = self.count().load(Ordering::SeqCst);
        let what = self.byte(page).load(Ordering::SeqCst);
        (count & 1 == 0 && matches!(what, PAGE | TWIN)).then_some(Offer { what, count })
    }

    /// The home was told: what is read behind this is no older.
    pub(super) fn said() {
        fence(Ordering::SeqCst);
    }

    /// Whether what was read since [`Self::look`] can be relied on.
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

    /// A home that writes a page only between its flushes, and a reader: whoever relies on what it read either was heard of
    /// before the flush, or read what was written before it.
    #[test]
    fn a_home_hears_of_a_reader_or_the_reader_has_what_the_home_told() {
        let (home, peer) = pair();
        // What the home wrote and told; what the reader said; both as the memory of pages and messages would be.
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
                // A round that was not heard of, relied upon now, has no less than what is told here.
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
