//! A replacement for `futex.rs` of `hanare-sys`, by which threads sleep on a word. A time limit never passes here. So a
//! thread that only the limit would wake sleeps for ever, and loom reports this.
//!
//! The threads of a model are coroutines of one system thread, and they switch only in calls of loom. So no other
//! thread runs between the check of the word and the entry into the list of sleepers. In the kernel, a lock ensures
//! this.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A thread that sleeps on a word.
struct Sleeper {
    word: usize,
    thread: loom::thread::Thread,
    is_woken: Rc<Cell<bool>>,
}

thread_local! {
    /// The sleeping threads, in the order in which they began to sleep.
    static SLEEPERS: RefCell<Vec<Sleeper>> = const { RefCell::new(Vec::new()) };
}

/// Forgets all sleepers. Some may be left if the previous interleaving ended in a panic.
pub(crate) fn reset() {
    SLEEPERS.with_borrow_mut(Vec::clear);
}

fn address(word: &AtomicU32) -> usize {
    std::ptr::from_ref(word).addr()
}

pub(crate) fn wait(word: &AtomicU32, expected: u32, _: Option<Duration>) {
    // The kernel reads the newest value of the word. In loom, only an access that also writes is sure to read the
    // newest value.
    if word.compare_exchange(expected, expected, Relaxed, Relaxed).is_err() {
        return;
    }
    let is_woken = Rc::new(Cell::new(false));
    let sleeper = Sleeper { word: address(word), thread: loom::thread::current(), is_woken: Rc::clone(&is_woken) };
    SLEEPERS.with_borrow_mut(|sleepers| sleepers.push(sleeper));
    while !is_woken.get() {
        loom::thread::park();
    }
}

fn wake(word: &AtomicU32, most: usize) -> usize {
    // This access changes nothing. Because of it, loom tries the wake-up both before and after a sleeper's access to
    // the word.
    word.fetch_or(0, Relaxed);
    let woken: Vec<Sleeper> = SLEEPERS.with_borrow_mut(|sleepers| {
        sleepers.extract_if(.., |sleeper| sleeper.word == address(word)).take(most).collect()
    });
    for sleeper in &woken {
        sleeper.is_woken.set(true);
        sleeper.thread.unpark();
    }
    woken.len()
}

pub(crate) fn wake_one(word: &AtomicU32) -> bool {
    wake(word, 1) > 0
}

pub(crate) fn wake_all(word: &AtomicU32) -> usize {
    wake(word, usize::MAX)
}
