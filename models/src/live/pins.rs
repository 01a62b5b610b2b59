//! Models of the pin words in `crates/dsm/src/live/gates.rs`. A peer pins a page before it accesses the page in the
//! home's memory.

use std::rc::Rc;

use loom::cell::Cell;
use loom::thread;

use super::gates::Gates;
use super::words::{Memory, Words};

crate::table! {
    a_page_is_written_or_taken_out,
    two_peers_write_a_page,
    a_page_that_moved_is_left_alone,
    a_page_waits_for_the_peer_that_is_told_of_it,
}

/// The page that a pin word guards. The page has one word for each peer. loom reports two accesses to a word at the
/// same time if one of them changes the word.
type Page = [Cell<u32>; 2];

/// Reads and writes all words of the page, as the home does to evict the page. Returns the sum of the words.
fn take(page: &Page) -> u32 {
    page.iter().map(|word| word.replace(word.get())).sum()
}

/// Returns a home whose page is in memory, with the shared memory and the page.
fn home() -> (Rc<Memory>, Gates, Rc<Page>) {
    let memory = Memory::new(&[0], &[], &[]);
    let home = gates(&memory);
    home.open(0);
    (memory, home, Rc::default())
}

fn gates(memory: &Rc<Memory>) -> Gates {
    Gates::over(Words(Rc::clone(memory)))
}

/// Starts a peer that tries `times` times to pin the page and add 1 to its own word. The thread returns the number of
/// successful attempts.
fn peer(memory: &Rc<Memory>, page: &Rc<Page>, word: usize, times: usize) -> thread::JoinHandle<u32> {
    let (gates, page) = (gates(memory), Rc::clone(page));
    thread::spawn(move || {
        let mut written = 0;
        for _ in 0..times {
            if gates.pin_to_write(0) {
                page[word].set(page[word].get() + 1);
                gates.unpin(0);
                written += 1;
            }
        }
        written
    })
}

/// Runs a home that evicts the page and brings it back, up to `times` times, while `peers` peers write to the page.
fn run(peers: usize, writes: usize, times: usize) {
    let (memory, home, page) = home();
    let peers: Vec<_> = (0..peers).map(|word| peer(&memory, &page, word, writes)).collect();
    let mut known = 0;
    for _ in 0..times {
        let Some(is_written) = home.close(0) else { continue };
        let now = take(&page);
        assert!(is_written || now == known, "the home does not hear of a write");
        known = now;
        home.open(0);
    }
    let written: u32 = peers.into_iter().map(|peer| peer.join().expect("no panic")).sum();
    let is_written = home.close(0).expect("no pin is left");
    assert_eq!(take(&page), written);
    assert!(is_written || written == known, "the home does not hear of a write");
}

/// A peer writes a page only while the page is in memory. The home evicts the page only while no peer writes it, and
/// the home learns of every write.
fn a_page_is_written_or_taken_out() {
    run(1, 2, 2);
}

/// Two peers write different words of a page only while the page is in memory. The home learns of every write.
fn two_peers_write_a_page() {
    run(2, 1, 1);
}

/// After a page's home has moved to another rank, no peer pins the page at the old home again. No peer accesses the
/// page there once the last pin is gone.
fn a_page_that_moved_is_left_alone() {
    let (memory, home, page) = home();
    let peer = peer(&memory, &page, 0, 2);
    home.retire(0);
    while home.is_pinned(0) {
        thread::yield_now();
    }
    let now = take(&page);
    assert_eq!(peer.join().expect("no panic"), now);
}

/// A page that its home has pinned for a peer stays in memory until the peer has read the page.
fn a_page_waits_for_the_peer_that_is_told_of_it() {
    let (memory, home, page) = home();
    page[0].set(1);
    home.pin_for_peer(0);
    let reader = thread::spawn({
        let (gates, page) = (gates(&memory), Rc::clone(&page));
        move || {
            let now = page[0].get();
            gates.unpin(0);
            now
        }
    });
    if home.close(0).is_some() {
        page[0].set(2);
    }
    assert_eq!(reader.join().expect("no panic"), 1);
}
