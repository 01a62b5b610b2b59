//! Models of the lock in `crates/sys/src/lock.rs`.

use std::rc::Rc;

use loom::cell::Cell;
use loom::thread;

use crate::lock::LockCell;

crate::table! {
    a_lock_is_held_by_one_thread,
    every_sleeper_gets_its_turn,
    trying_disturbs_nobody,
}

/// Runs `threads` threads that each add 1 to a value `rounds` times under the lock. loom reports two additions that are
/// not ordered.
fn contend(threads: usize, rounds: usize) {
    let cell = Rc::new(LockCell::<Cell<usize>>::default());
    let work = move |cell: &LockCell<Cell<usize>>| {
        for _ in 0..rounds {
            let value = cell.lock();
            value.set(value.get() + 1);
        }
    };
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let cell = Rc::clone(&cell);
            thread::spawn(move || work(&cell))
        })
        .collect();
    work(&cell);
    others.into_iter().for_each(|other| other.join().expect("no panic"));
    assert_eq!(cell.lock().get(), threads * rounds);
}

/// Two threads never hold the lock together. Each sees the other's changes under the lock, and neither sleeps for ever.
fn a_lock_is_held_by_one_thread() {
    contend(2, 2);
}

/// A thread that has slept for the lock wakes the next sleeper, so each of three threads gets the lock.
fn every_sleeper_gets_its_turn() {
    contend(3, 1);
}

/// A thread that only tries to lock returns immediately. It does not use up the wake-up of a sleeping thread.
fn trying_disturbs_nobody() {
    let cell = Rc::new(LockCell::<Cell<usize>>::default());
    let trying = thread::spawn({
        let cell = Rc::clone(&cell);
        move || cell.try_lock().map(|value| value.set(value.get() + 1)).is_some()
    });
    let sleeping = thread::spawn({
        let cell = Rc::clone(&cell);
        move || {
            let value = cell.lock();
            value.set(value.get() + 1);
        }
    });
    let value = cell.lock();
    value.set(value.get() + 1);
    drop(value);
    let got = trying.join().expect("no panic");
    sleeping.join().expect("no panic");
    assert_eq!(cell.lock().get(), 2 + usize::from(got));
}
