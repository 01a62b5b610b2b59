//! Models of the budget shares in `crates/runtime/src/tree.rs`.

use std::rc::Rc;

use loom::cell::Cell;
use loom::thread;

use crate::counters::Counters;
use crate::procfs::{DEAD, LEFT, be};
use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::set_now_ns;
use crate::tree::{Seat, Tree};

crate::table! {
    shares_keep_to_the_budget,
    what_is_given_up_is_not_in_use,
    the_lock_of_a_dead_process_goes_to_one,
    a_place_is_cleared_once,
    a_reservation_lasts_until_the_fork,
}

/// The budget in bytes that all processes of one tree share.
const WHOLE: u64 = 100;

/// Returns a tree of processes with its first member. The tree is never freed, because in production it is in shared
/// memory.
fn tree() -> (&'static Tree, &'static Counters, Seat) {
    let (tree, counters): (&Tree, &Counters) = (Box::leak(Box::new(Tree::empty())), Box::leak(Box::default()));
    let first = tree.join(counters, WHOLE, 1).expect("a place");
    (tree, counters, first)
}

/// Reserves a place with a share of `bytes` for a child that the calling process is about to fork.
fn child(parent: &Seat, bytes: u64) -> Seat {
    parent.promise(bytes, 0, false).expect("room")
}

fn balance(pid: u32, seat: Seat) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        be(pid, 0);
        seat.balance(WHOLE, |_| 0);
    })
}

/// While two processes claim the bytes that a third gives back, all shares together never exceed the budget.
fn shares_keep_to_the_budget() {
    let (tree, _, first) = tree();
    let (second, third) = (child(&first, 10), child(&first, 30));
    second.begin(true);
    third.begin(false);
    third.withdraw();
    assert_eq!((first.share(), second.share(), tree.taken()), (60, 10, 70));
    let others = [balance(2, second), balance(3, first)];
    others.into_iter().for_each(|other| other.join().expect("no panic"));
    assert!(tree.taken() <= WHOLE, "{} of {WHOLE} bytes are given out", tree.taken());
}

/// A process claims bytes that another process gives up only after that process has stopped using them.
fn what_is_given_up_is_not_in_use() {
    let (tree, _, first) = tree();
    let second = child(&first, 10);
    second.begin(true);
    // Number of bytes that both processes together may use at present.
    let used = Rc::new(AtomicU64::new(WHOLE));
    let set = |first: u64| {
        let (used, budget) = (Rc::clone(&used), Cell::new(first));
        move |new: u64| {
            let change = new.wrapping_sub(budget.replace(new));
            let all = used.fetch_add(change, Relaxed).wrapping_add(change);
            assert!(all <= WHOLE, "{all} of {WHOLE} bytes are in use");
            0
        }
    };
    let other = thread::spawn({
        let set = set(10);
        move || {
            be(2, 0);
            second.balance(WHOLE, set);
        }
    });
    first.balance(WHOLE, set(90));
    other.join().expect("no panic");
    assert!(tree.taken() <= WHOLE, "{} of {WHOLE} bytes are given out", tree.taken());
}

/// A process ends while it holds the lock. Then one waiting process gets the lock, and after that process the next one.
fn the_lock_of_a_dead_process_goes_to_one() {
    let (tree, _, _) = tree();
    be(DEAD, 0);
    tree.end_locked();
    let count = Rc::new(Cell::new(0));
    let others = [1, 2].map(|pid| {
        let count = Rc::clone(&count);
        thread::spawn(move || {
            be(pid, 0);
            tree.alone(|| count.set(count.get() + 1)).expect("the lock");
        })
    });
    others.into_iter().for_each(|other| other.join().expect("no panic"));
    assert_eq!(count.get(), 2);
}

/// Two processes clear the same place at the same time. If a third process gets the place in between, the entry of the
/// third process is kept.
fn a_place_is_cleared_once() {
    let (tree, counters, first) = tree();
    let second = child(&first, 10);
    // All places are taken now. The last place belongs to a program that has ended, because its process has executed
    // another program.
    be(2, LEFT);
    let left = child(&first, 10);
    be(1, 0);
    left.begin(true);
    left.set_local(7);
    let executed = thread::spawn(move || {
        be(2, 0);
        tree.executed(counters);
    });
    let newcomer = loop {
        if let Ok(newcomer) = first.promise(90, 0, true) {
            break newcomer;
        }
        thread::yield_now();
    };
    newcomer.set_local(3);
    executed.join().expect("no panic");
    assert_eq!((newcomer.share(), counters.local_bytes.load(Relaxed)), (90, 3), "the newcomer keeps its own");
    assert_eq!((second.share(), tree.taken()), (10, WHOLE));
}

/// A fork that takes long to prepare and then fails gives back its own reservation. It does not give back the place of
/// a process that has joined meanwhile.
fn a_reservation_lasts_until_the_fork() {
    let (tree, _, first) = tree();
    let second = child(&first, 10);
    second.begin(true);
    let reserved = child(&first, 10);
    set_now_ns(60_000_000_000);
    let newcomer = thread::spawn(move || {
        be(2, 0);
        // Retries until a place is free. A place is free as soon as the reservation is given back.
        loop {
            if let Ok(newcomer) = second.promise(5, 0, false) {
                break newcomer;
            }
            thread::yield_now();
        }
    });
    assert_eq!(reserved.share(), 10);
    reserved.withdraw();
    let mut newcomer = newcomer.join().expect("no panic");
    assert_eq!(newcomer.share(), 5, "the newcomer keeps its own");
    assert!(tree.taken() <= WHOLE, "{} of {WHOLE} bytes are given out", tree.taken());
    second.withdraw();
    newcomer.forks();
    set_now_ns(120_000_000_000);
    assert!(first.promise(WHOLE, 0, true).is_ok() && newcomer.share() == 0, "no child takes it any more");
}
