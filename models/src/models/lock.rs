//! `crates/sys/src/lock.rs`.

use std::rc::Rc;

use loom::cell::Cell;
use loom::thread;

use crate::lock::LockCell;

crate::table! {
    a_lock_is_held_by_one_thread,
    every_sleeper_gets_its_turn,
    trying_disturbs_nobody,
}

/// Threads that add to the value. loom refuses two that do so at once, or without one happening before the other.
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

/// Two threads never hold the lock together, each sees what the other did under it, and neither sleeps for ever.
fn a_lock_is_held_by_one_thread() {
    contend(2, 2);
}

/// A thread that slept wakes the next one: of three that contend, each gets its turn.
fn every_sleeper_gets_its_turn() {
    contend(3, 1);
}

/// A thread that only tries gets the lock when it is free, and takes no wake from one that sleeps.
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
