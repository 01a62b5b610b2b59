//! Models of the published pages in `crates/dsm/src/live/offers.rs`. Other ranks read such a page, or its twin, from
//! the home's memory.

use std::rc::Rc;

use loom::thread;

use super::offers::Offers;
use super::words::{Memory, Words};
use crate::sync::atomic::{AtomicU32, Ordering, fence};

crate::table! {
    a_home_hears_of_a_reader_or_the_reader_has_it_all,
    nobody_relies_on_half_a_change,
    nobody_relies_on_a_withheld_page,
    nobody_relies_on_a_page_with_a_twin,
    nobody_relies_on_a_dropped_twin,
}

/// Returns the shared memory, the home, and the words of the page or of its twin. The memory contains the home's count
/// of flushes, and the byte that says whether the page is published.
fn home() -> (Rc<Memory>, Offers, Bytes) {
    let memory = Memory::new(&[0], &[4096], &[]);
    let home = offers(&memory);
    (memory, home, Rc::default())
}

fn offers(memory: &Rc<Memory>) -> Offers {
    Offers::over(Words(Rc::clone(memory)))
}

/// The bytes that a reader reads: the page or its twin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Page,
    Twin,
}

/// The two words of a page, or of its twin.
type Bytes = Rc<[AtomicU32; 2]>;

/// Starts a peer that reads the page or its twin (`of`) once, if the home has published it. `said` stands for the
/// peer's message to the home. The thread returns the words that it read, if the peer relies on them.
fn reader(memory: &Rc<Memory>, of: Of, bytes: &Bytes, said: &Rc<AtomicU32>) -> thread::JoinHandle<Option<[u32; 2]>> {
    // This fence makes the setup visible to the peer. Without it, the stores of the setup would also strengthen the
    // home's later accesses.
    fence(Ordering::SeqCst);
    let (offers, bytes, said) = (offers(memory), Rc::clone(bytes), Rc::clone(said));
    thread::spawn(move || {
        let offer = offers.look(0).filter(|offer| offer.is_twin() == (of == Of::Twin))?;
        said.store(1, Ordering::Release);
        Offers::said();
        let words = [0, 1].map(|word: usize| bytes[word].load(Ordering::Relaxed));
        offers.is_still(0, offer).then_some(words)
    })
}

/// When a home publishes its writes, it has received the message of every reader that relies on the old words.
fn a_home_hears_of_a_reader_or_the_reader_has_it_all() {
    let (memory, home, page) = home();
    home.offer(0);
    let said = Rc::new(AtomicU32::new(0));
    let reader = reader(&memory, Of::Page, &page, &said);
    page[0].store(1, Ordering::Relaxed);
    home.begin_flush();
    let is_heard = said.load(Ordering::Acquire) == 1;
    home.end_flush();
    let relied = reader.join().expect("no panic");
    assert!(is_heard || relied.is_none_or(|[first, _]| first == 1), "a reader keeps an old page unknown to its home");
}

/// A reader does not rely on a page that changed while the reader copied it.
fn nobody_relies_on_half_a_change() {
    let (memory, home, twin) = home();
    home.offer_twin(0);
    let reader = reader(&memory, Of::Twin, &twin, &Rc::default());
    home.begin_flush();
    twin.iter().for_each(|word| word.store(1, Ordering::Relaxed));
    home.end_flush();
    let relied = reader.join().expect("no panic");
    assert!(relied.is_none_or(|[first, second]| first == second), "{relied:?}");
}

/// Publishes the page or its twin, calls `stop`, and then changes the bytes. A reader must rely on the old bytes only.
fn stop(of: Of, stop: fn(&Offers)) {
    let (memory, home, bytes) = home();
    match of {
        Of::Page => home.offer(0),
        Of::Twin => home.offer_twin(0),
    }
    let reader = reader(&memory, of, &bytes, &Rc::default());
    stop(&home);
    bytes.iter().for_each(|word| word.store(1, Ordering::Relaxed));
    let relied = reader.join().expect("no panic");
    assert!(relied.is_none_or(|words| words == [0, 0]), "{relied:?}");
}

/// A reader does not rely on bytes that were written to a page after the page was withheld.
fn nobody_relies_on_a_withheld_page() {
    stop(Of::Page, |home| home.withhold(0));
}

/// A reader does not rely on bytes that were written to a page after the twin was published instead of the page.
fn nobody_relies_on_a_page_with_a_twin() {
    stop(Of::Page, |home| home.offer_twin(0));
}

/// A reader does not rely on bytes that were written to a twin after the page was published instead of the twin.
fn nobody_relies_on_a_dropped_twin() {
    stop(Of::Twin, |home| home.offer(0));
}
