//! Models of the fork barrier in `crates/runtime/src/gate/barrier.rs`.

use std::rc::Rc;

use loom::cell::Cell;
use loom::thread;

use crate::barrier::Barrier;

crate::table! {
    nobody_is_inside_a_closed_barrier,
    two_threads_wait_for_it_to_open,
    two_threads_close_it_in_turn,
    trying_to_enter_does_not_wait,
}

/// A fork barrier and a value. Threads read the value inside the barrier, and change it while the barrier is closed.
/// loom reports a read at the same time as a change.
type Guarded = (Barrier, Cell<usize>);

fn enter(rounds: usize, (barrier, value): &Guarded) {
    for _ in 0..rounds {
        let _inside = barrier.enter();
        value.get();
    }
}

fn close((barrier, value): &Guarded) {
    barrier.close();
    value.set(value.get() + 1);
    barrier.open();
}

fn run(enterers: usize, rounds: usize, closers: usize) {
    let shared = Rc::new(Guarded::default());
    let inside = (0..enterers).map(|_| {
        let shared = Rc::clone(&shared);
        thread::spawn(move || enter(rounds, &shared))
    });
    let mut others: Vec<_> = inside.collect();
    others.extend((1..closers).map(|_| {
        let shared = Rc::clone(&shared);
        thread::spawn(move || close(&shared))
    }));
    close(&shared);
    others.into_iter().for_each(|thread| thread.join().expect("no panic"));
    let (barrier, value) = &*shared;
    assert!(barrier.is_at_rest());
    assert_eq!(value.get(), closers);
}

/// No thread is inside the barrier while it is closed. A thread inside sees every earlier change, and no thread sleeps
/// for ever.
fn nobody_is_inside_a_closed_barrier() {
    run(1, 2, 1);
}

/// Two threads wait for the barrier to open. Neither prevents the other or the closing thread from continuing.
fn two_threads_wait_for_it_to_open() {
    run(2, 1, 1);
}

/// When two threads close the barrier, the second thread closes it only after the first thread has opened it again.
fn two_threads_close_it_in_turn() {
    run(1, 1, 2);
}

/// A thread that only tries to enter the barrier enters it or returns immediately. The closing thread continues in both
/// cases.
fn trying_to_enter_does_not_wait() {
    let shared = Rc::new(Guarded::default());
    let trying = thread::spawn({
        let shared = Rc::clone(&shared);
        move || shared.0.try_enter().map(|_inside| shared.1.get()).is_some()
    });
    close(&shared);
    trying.join().expect("no panic");
    enter(1, &shared);
    assert!(shared.0.is_at_rest());
}
