//! Tests of the lock under contention, and of sleeping on a word.

mod common;

use common::PATIENCE;
use hanare_sys::futex::{self, Lock, LockCell, Wait};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

#[test]
fn four_threads_lose_no_update() {
    const ROUNDS: u64 = 20_000;
    // The second number is three times the first whenever no thread holds the lock.
    let cell = Arc::new(LockCell::new((0u64, 0u64)));
    let (sender, receiver) = mpsc::channel();
    for _ in 0..4 {
        let (cell, sender) = (Arc::clone(&cell), sender.clone());
        std::thread::spawn(move || sender.send(count_up(&cell, ROUNDS)).unwrap());
    }
    for _ in 0..4 {
        let torn = receiver.recv_timeout(PATIENCE).expect("a thread was never woken");
        assert_eq!(torn, 0, "another thread was inside");
    }
    assert_eq!(*cell.lock(), (4 * ROUNDS, 12 * ROUNDS));
}

/// Changes both numbers under the lock, `rounds` times. Returns how often the second number was not three times the
/// first.
fn count_up(cell: &LockCell<(u64, u64)>, rounds: u64) -> usize {
    let mut torn = 0;
    for round in 0..rounds {
        let mut pair = cell.lock();
        torn += usize::from(pair.1 != pair.0 * 3);
        pair.0 += 1;
        if round % 100 == 0 {
            // During this sleep, the other threads stop spinning and sleep until the lock is free.
            std::thread::sleep(Duration::from_micros(100));
        } else if round % 10 == 0 {
            std::thread::yield_now();
        }
        pair.1 = pair.0 * 3;
    }
    torn
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
    assert_eq!(futex::wait(&word, 0, Some(Duration::from_millis(1))), Wait::TimedOut);
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
