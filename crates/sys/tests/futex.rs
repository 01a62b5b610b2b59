//! The lock under contention, and sleeping on a word.

mod common;

use common::PATIENCE;
use hanare_sys::futex::{self, Lock, LockCell, Wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn four_threads_lose_no_update() {
    const ROUNDS: u64 = 50_000;
    // Two numbers that only stay related if nobody else is inside.
    let cell = LockCell::new((0u64, 0u64));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let mut pair = cell.lock();
                    assert_eq!(pair.1, pair.0 * 3);
                    pair.0 += 1;
                    if round % 1000 == 0 {
                        // Long enough that the others give up spinning and sleep.
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    pair.1 = pair.0 * 3;
                }
            });
        }
    });
    assert_eq!(*cell.lock(), (4 * ROUNDS, 12 * ROUNDS));
}

#[test]
fn a_held_lock_is_not_given_twice() {
    let lock = Lock::new();
    let guard = lock.lock();
    assert!(lock.try_lock().is_none());
    drop(guard);
    drop(lock.try_lock().expect("free again"));
    let lost = lock.lock();
    std::mem::forget(lost);
    lock.reset();
    assert!(lock.try_lock().is_some(), "a forked child can start anew");
}

#[test]
fn wait_ends_by_wake_change_or_time() {
    let word = Arc::new(AtomicU32::new(0));
    assert_eq!(futex::wait(&word, 1, None), Wait::Changed);
    assert_eq!(
        futex::wait(&word, 0, Some(Duration::from_millis(1))),
        Wait::TimedOut
    );
    assert!(!futex::wake_one(&word));
    let sleepers: Vec<_> = (0..3)
        .map(|_| {
            let word = Arc::clone(&word);
            std::thread::spawn(move || {
                while word.load(Ordering::Acquire) == 0 {
                    assert_ne!(futex::wait(&word, 0, Some(PATIENCE)), Wait::TimedOut);
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(20));
    word.store(1, Ordering::Release);
    futex::wake_all(&word);
    for sleeper in sleepers {
        sleeper.join().unwrap();
    }
}
