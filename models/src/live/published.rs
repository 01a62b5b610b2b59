//! `crates/dsm/src/live/offers.rs`.

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

/// Memory of the count and of one page's byte, and the page or its twin.
fn home() -> (Rc<Memory>, Offers, Bytes) {
    let memory = Memory::new(&[0], &[4096], &[]);
    let home = offers(&memory);
    (memory, home, Rc::default())
}

fn offers(memory: &Rc<Memory>) -> Offers {
    Offers::over(Words(Rc::clone(memory)))
}

/// What a reader reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Page,
    Twin,
}

/// The two words of a page, or of its twin.
type Bytes = Rc<[AtomicU32; 2]>;

/// A peer that reads the page, or its twin, once if that is published. `said` is its message to the home. Returns what it
/// relies on.
fn reader(memory: &Rc<Memory>, of: Of, bytes: &Bytes, said: &Rc<AtomicU32>) -> thread::JoinHandle<Option<[u32; 2]>> {
    // What was set up before is visible, and strengthens no access of the home that follows.
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

/// A home hears of a reader before it publishes what it wrote, or that reader has what was written.
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

/// A reader relies on no page that changed while it read it.
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

/// What is published at first is changed after `stop`. A reader relies on it only as it was.
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

/// A reader relies on nothing that was written to a page after it was withheld.
fn nobody_relies_on_a_withheld_page() {
    stop(Of::Page, |home| home.withhold(0));
}

/// A reader relies on nothing that was written to a page after its twin was published in its place.
fn nobody_relies_on_a_page_with_a_twin() {
    stop(Of::Page, |home| home.offer_twin(0));
}

/// A reader relies on nothing of a twin that was dropped after the page was published in its place.
fn nobody_relies_on_a_dropped_twin() {
    stop(Of::Twin, |home| home.offer(0));
}
