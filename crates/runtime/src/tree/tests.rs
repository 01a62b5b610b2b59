//! Tests of the table of shares.

use super::*;
use crate::stats::Stats;

fn fresh() -> &'static Stats {
    Box::leak(Box::new(Stats::attach(None, None).unwrap()))
}

fn shares(stats: &'static Stats) -> u64 {
    stats.tree().members().iter().map(|member| member.share.load(Relaxed)).sum()
}

#[test]
fn the_first_has_it_all_and_shares_with_the_next() {
    let stats = fresh();
    let tree = stats.tree();
    let first = tree.join(stats, 1000, 10).unwrap();
    assert_eq!(first.share(), 1000);
    // The first member gives up bytes only in its calls of `balance`.
    let second = std::thread::scope(|scope| {
        let second = scope.spawn(|| tree.join(stats, 1000, 10).unwrap());
        while !second.is_finished() {
            first.balance(5000, |budget| budget);
            assert!(shares(stats) <= 1000);
            std::thread::yield_now();
        }
        second.join().unwrap()
    });
    first.balance(5000, |_| 500);
    second.balance(5000, |_| 0);
    assert_eq!((first.share(), second.share()), (500, 500));
    // A member that wants little leaves its bytes to the other member. It gets them back when it wants more.
    second.balance(100, |_| 100);
    first.balance(5000, |_| 500);
    assert!(second.share() == 100 && first.share() == 900, "{} {}", first.share(), second.share());
    second.balance(5000, |_| 100);
    let told = std::cell::Cell::new(0);
    first.balance(5000, |budget| {
        told.set(budget);
        900
    });
    assert_eq!((told.get(), first.share()), (500, 900), "what is in use is given up when it was evicted");
    assert!(shares(stats) <= 1000);
    first.balance(5000, |_| 500);
    second.balance(5000, |_| 100);
    assert_eq!((first.share(), second.share()), (500, 500));
}

/// The share must not shrink before the budget. Otherwise a fault could still use the old budget, while another
/// process already claims the same bytes. Together they would exceed the shared budget.
#[test]
fn nothing_is_given_up_before_the_budget_is_lowered() {
    let stats = fresh();
    let first = stats.tree().join(stats, 1000, 10).unwrap();
    let child = first.promise(0, 1000, false).ok().unwrap();
    assert!(child.take(true));
    child.member.wants.store(5000, Relaxed);
    first.balance(5000, |budget| {
        assert_eq!((budget, first.share(), child.claim()), (500, 1000, 0));
        800
    });
    assert_eq!((first.share(), child.claim()), (800, 200));
}

#[test]
fn a_promise_takes_what_the_parent_does_not_use() {
    let stats = fresh();
    let parent = stats.tree().join(stats, 1000, 10).unwrap();
    let child = parent.promise(300, 600, false).ok().unwrap();
    assert_eq!((parent.share(), child.share()), (700, 300));
    assert_eq!(parent.promise(300, 600, false).err(), Some(700));
    assert!(child.take(false));
    parent.balance(5000, |_| panic!("what is fixed is not shared"));
    child.withdraw();
    let told = std::cell::Cell::new(0);
    parent.balance(5000, |budget| {
        told.set(budget);
        600
    });
    assert_eq!(told.get(), 1000);
}

/// If `promise` returns an error, the caller keeps its budget. So the caller's share must stay the same.
#[test]
fn a_promise_without_a_free_entry_takes_nothing() {
    let stats = fresh();
    let parent = stats.tree().join(stats, 1000, 10).unwrap();
    let taken = std::iter::from_fn(|| stats.tree().seat(FIXED, 0, stats)).count();
    assert_eq!(taken, MEMBERS_MAX - 1);
    assert_eq!(parent.promise(300, 100, false).err(), Some(0));
    assert_eq!(parent.share(), 1000);
}

#[test]
fn a_promise_lapses_only_after_its_fork() {
    let stats = fresh();
    let parent = stats.tree().join(stats, 1000, 10).unwrap();
    let mut child = parent.promise(300, 100, false).ok().unwrap();
    assert_eq!(child.member.since_ns.load(Relaxed), UNFORKED, "to be prepared for as long as it takes");
    child.forks();
    stats.tree().look_round(stats);
    assert_eq!(child.share(), 300);
    child.member.since_ns.store(now_ns().saturating_sub(2 * PROMISE_NS), Relaxed);
    stats.tree().look_round(stats);
    assert_eq!(child.share(), 0, "no child took it");
    let other = parent.promise(200, 100, false).ok().unwrap();
    assert!(std::ptr::eq(child.member, other.member) && !child.take(true), "the place is another's now");
    assert!(other.take(true) && other.share() == 200);
}

/// A program may fork and end at once, before its child has run.
#[test]
fn a_promise_outlives_the_parent() {
    let stats = fresh();
    let parent = stats.tree().join(stats, 1000, 10).unwrap();
    let mut child = parent.promise(300, 100, false).ok().unwrap();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    child.member.pid.store(ended.id(), Relaxed);
    child.forks();
    ended.wait().unwrap();
    stats.tree().look_round(stats);
    assert!(child.share() == 300 && child.take(true));
}

#[test]
fn budgets_of_their_own_add_up() {
    let stats = fresh();
    let first = stats.tree().join(stats, 0, 10).unwrap();
    let second = stats.tree().join(stats, 0, 10).unwrap();
    first.set_own_budget(300);
    second.set_own_budget(200);
    first.set_own_budget(100);
    assert_eq!(stats.budget_bytes.load(Relaxed), 500, "the most there was at a time");
    first.withdraw();
    second.set_own_budget(450);
    assert_eq!(stats.budget_bytes.load(Relaxed), 500, "what is gone counts no longer");
    second.set_own_budget(600);
    assert_eq!(stats.budget_bytes.load(Relaxed), 600);
}

#[test]
fn what_a_dead_member_had_goes_back() {
    let stats = fresh();
    let parent = stats.tree().join(stats, 1000, 10).unwrap();
    let child = parent.promise(400, 100, false).ok().unwrap();
    let mut process = std::process::Command::new("sleep").arg("100").spawn().unwrap();
    child.member.pid.store(process.id(), Relaxed);
    child.member.stack.store(0, Relaxed);
    child.begin(false);
    child.set_local(400);
    child.set_far(500);
    parent.set_local(100);
    assert_eq!((stats.local_bytes.load(Relaxed), stats.far_bytes.load(Relaxed)), (500, 500));
    stats.tree().look_round(stats);
    assert_eq!(child.share(), 400, "it lives");
    process.kill().unwrap();
    // The test does not wait for the killed process. A zombie counts as ended, because its memory is already free.
    let end_ns = now_ns() + 10_000_000_000;
    while child.share() > 0 && now_ns() < end_ns {
        stats.tree().look_round(stats);
    }
    assert_eq!((child.share(), stats.local_bytes.load(Relaxed), stats.far_bytes.load(Relaxed)), (0, 100, 0));
    assert_eq!(stats.local_bytes_peak.load(Relaxed), 500);
    process.wait().unwrap();
}

/// Many processes that join at the same time on a busy machine may keep the lock from one of them for long.
#[test]
fn a_new_member_and_a_fork_wait_for_a_lock_that_is_held_for_long() {
    let stats = fresh();
    let tree = stats.tree();
    let hold = || tree.alone(|| std::thread::sleep(Duration::from_nanos(2 * LOCK_NS))).unwrap();
    let while_held = |work: &dyn Fn() -> bool| {
        std::thread::scope(|scope| {
            let holder = scope.spawn(hold);
            while tree.lock.load(Relaxed) == 0 && !holder.is_finished() {
                std::thread::yield_now();
            }
            work()
        })
    };
    assert!(while_held(&|| tree.join(stats, 1000, 10).is_some()));
    let parent = tree.join(stats, 1000, 10).unwrap();
    assert!(while_held(&|| parent.promise(0, 1000, false).is_ok()));
}

#[test]
fn nobody_retires_a_member_beside_who_holds_the_lock() {
    let stats = fresh();
    let tree = stats.tree();
    let parent = tree.join(stats, 1000, 10).unwrap();
    let child = parent.promise(300, 100, false).ok().unwrap();
    tree.alone(|| {
        // While another thread holds the lock, `withdraw` and `executed` must change nothing.
        std::thread::scope(|scope| scope.spawn(|| child.withdraw()).join().unwrap());
        assert_eq!((child.share(), child.member.kind.load(Acquire)), (300, PROMISED));
        std::thread::scope(|scope| scope.spawn(|| tree.executed(stats)).join().unwrap());
        assert_eq!(parent.member.kind.load(Acquire), SEATED);
    })
    .unwrap();
    child.withdraw();
    assert_eq!((child.share(), child.member.kind.load(Acquire)), (0, FREE));
}

#[test]
fn a_request_to_park_is_answered_by_its_process_alone() {
    let stats = fresh();
    let own = std::process::id();
    assert_eq!((stats.ask_to_park(own), stats.parked(own, 1)), (None, None));
    let seat = stats.tree().join(stats, 1000, 10).unwrap();
    assert_eq!((seat.park_request(), stats.ask_to_park(own + 1)), (None, None));
    let (first, second) = (stats.ask_to_park(own).unwrap(), stats.ask_to_park(own).unwrap());
    assert_eq!((seat.park_request(), stats.parked(own, first)), (Some(second), Some(Parked::Waits)));
    seat.answer_park(first, Some(700));
    assert_eq!((stats.parked(own, first), stats.parked(own, second)), (Some(Parked::Left(700)), Some(Parked::Waits)));
    seat.answer_park(second, None);
    assert_eq!((seat.park_request(), stats.parked(own, second)), (None, Some(Parked::NoRoom)));
    seat.set_paging(5, 7);
    seat.set_far(64);
    let figures = stats.processes();
    assert_eq!((figures.len(), figures[0].pid, figures[0].far_bytes), (1, own, 64));
    assert_eq!((figures[0].faults, figures[0].swap_ns), (5, 7));
    seat.withdraw();
    assert_eq!((stats.processes(), stats.parked(own, second)), (Vec::new(), None));
    // The next process in this entry has neither the figures nor the requests of the last one.
    let next = stats.tree().join(stats, 1000, 10).unwrap();
    assert_eq!((next.park_request(), stats.processes()[0].faults, stats.ask_to_park(own)), (None, 0, Some(1)));
}
