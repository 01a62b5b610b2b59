//! One budget for a process tree: who has which share of it, in memory that all its processes map.
//!
//! The shares of all members never add up to more than the budget, unless there are so many that it does not hold two
//! pages for each: two pages each process has in any case, or it could not run. Who wants more
//! takes it from what nobody has; who has more than is fair gives it up, and evicts first. Fair is: everybody has what it
//! wants where that fits, and an equal part of what is left where it does not. A member that is gone, by whatever way, is
//! noticed by the others within a tenth of a second, and when somebody looks for room.
//!
//! Pages that a forked child shares with its parent count for both: that is more than they take.

use std::time::Duration;

use crate::counters::{Counters, raise};
use crate::procfs::{is_running, own_pid, own_stack};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::{now_ns, pause, sized};

/// Processes with far memory at a time.
const MEMBERS_MAX: usize = sized(1024, 3);
/// Nanoseconds after a fork in which the child takes its place, unless it died or was not made.
const PROMISE_NS: u64 = 10_000_000_000;
/// The time of a fork that has not begun. A parent may prepare it for longer than [`PROMISE_NS`].
const UNFORKED: u64 = u64::MAX;
const LOOK_NS: u64 = 100_000_000;
/// How long the lock is tried for. It is held for microseconds, unless its holder is stopped.
const LOCK_NS: u64 = 200_000_000;
/// How long a newcomer waits for the others to make room.
const JOIN_NS: u64 = 1_000_000_000;

const FREE: u32 = 0;
/// A process that pages.
const SEATED: u32 = 1;
/// A child about to be forked; the process is its parent.
const PROMISED: u32 = 2;
/// A forked child that has room for all its far bytes and does not page.
const FIXED: u32 = 3;

/// A process and its share.
#[repr(C)]
pub(crate) struct Member {
    kind: AtomicU32,
    pid: AtomicU32,
    /// Where its stack begins, which tells a program from the one that was executed in its place.
    stack: AtomicU64,
    /// When a promised child was forked.
    since_ns: AtomicU64,
    share: AtomicU64,
    wants: AtomicU64,
    local: AtomicU64,
    far: AtomicU64,
}

/// The members and the budget they share. All zeroes is one without members.
#[repr(C)]
pub(crate) struct Tree {
    /// Process that holds the lock; 0 if none does.
    lock: AtomicU32,
    /// Members from here on were never in use.
    top: AtomicU32,
    /// Bytes; 0 where each process has a budget in proportion to its own far bytes.
    whole: AtomicU64,
    looked_ns: AtomicU64,
    members: [Member; MEMBERS_MAX],
}

/// A member's own place.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    tree: &'static Tree,
    member: &'static Member,
    counters: &'static Counters,
}

impl Tree {
    fn members(&self) -> &[Member] {
        &self.members[..(self.top.load(Acquire) as usize).min(MEMBERS_MAX)]
    }

    /// Runs `work` alone in the tree; not at all if the lock cannot be had.
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        let me = own_pid();
        let end_ns = now_ns() + LOCK_NS;
        while let Err(holder) = self.lock.compare_exchange(0, me, Acquire, Relaxed) {
            let stolen = holder != 0 && !is_running(holder, 0);
            if stolen && self.lock.compare_exchange(holder, me, Acquire, Relaxed).is_ok() {
                break;
            }
            if now_ns() > end_ns {
                return None;
            }
            pause(Duration::from_micros(50));
        }
        let result = work();
        let _ = self.lock.compare_exchange(me, 0, Release, Relaxed);
        Some(result)
    }

    /// Bytes that nobody has. The lock is held.
    fn pool(&self) -> u64 {
        let taken: u64 = self.members().iter().map(|member| member.share.load(Relaxed)).sum();
        self.whole.load(Relaxed).saturating_sub(taken)
    }

    /// Retires members that are gone. The lock is held.
    fn look_round(&self, counters: &Counters) {
        let now = now_ns();
        self.looked_ns.store(now, Relaxed);
        for member in self.members() {
            let kind = member.kind.load(Acquire);
            let gone = match kind {
                FREE => false,
                PROMISED if now.saturating_sub(member.since_ns.load(Relaxed)) > PROMISE_NS => true,
                _ => !is_running(member.pid.load(Relaxed), member.stack.load(Relaxed)),
            };
            if gone {
                member.retire(counters);
            }
        }
    }

    /// Takes a free place with a share. The lock is held.
    fn seat(&'static self, kind: u32, share: u64, counters: &'static Counters) -> Option<Seat> {
        let free = self.members.iter().position(|member| member.kind.load(Acquire) == FREE)?;
        let member = &self.members[free];
        member.pid.store(own_pid(), Relaxed);
        member.stack.store(own_stack(), Relaxed);
        member.since_ns.store(UNFORKED, Relaxed);
        member.share.store(share, Relaxed);
        member.wants.store(share, Relaxed);
        self.top.fetch_max(free as u32 + 1, AcqRel);
        member.kind.store(kind, Release);
        Some(Seat { tree: self, member, counters })
    }

    /// A place for this process in a tree with a budget of `whole` bytes (0: none is shared), with a share of at least
    /// `least`. A newcomer waits a moment for the others to make room; if they do not, it has `least` on top, so that it
    /// gets on. `None` when there is no place left.
    pub(crate) fn join(&'static self, counters: &'static Counters, whole: u64, least: u64) -> Option<Seat> {
        let seat = self.alone(|| {
            if self.whole.load(Relaxed) == 0 {
                self.whole.store(whole, Relaxed);
            }
            self.look_round(counters);
            let alone = self.members().iter().all(|member| member.kind.load(Relaxed) == FREE);
            let share = if alone { whole } else { 0 };
            self.seat(SEATED, share, counters)
        })??;
        if whole == 0 {
            return Some(seat);
        }
        // What it will want is not known yet: as much as the others have.
        seat.member.wants.store(whole, Relaxed);
        let end_ns = now_ns() + JOIN_NS;
        loop {
            let share = seat.claim();
            let enough = (seat.goal() / 2).max(least);
            if share >= enough {
                return Some(seat);
            }
            if now_ns() > end_ns {
                seat.member.share.fetch_max(least, Relaxed);
                return Some(seat);
            }
            pause(Duration::from_millis(2));
        }
    }

    /// Forgets what a program that this process executed was given. Without the lock others do so when they look round:
    /// the stack they know of is gone.
    pub(crate) fn executed(&self, counters: &Counters) {
        let me = own_pid();
        let _ = self.alone(|| {
            for member in self.members() {
                if member.pid.load(Relaxed) == me && member.kind.load(Acquire) != PROMISED {
                    member.retire(counters);
                }
            }
        });
    }
}

impl Member {
    /// Gives the place up. The lock is held: two that clear it at once could clear what a third put there in between. The
    /// place is free only when it is cleared, so that a holder of the lock who dies on the way leaves it to the next one.
    fn retire(&self, counters: &Counters) {
        if self.kind.load(Acquire) == FREE {
            return;
        }
        counters.local_bytes.fetch_sub(self.local.swap(0, Relaxed), Relaxed);
        counters.far_bytes.fetch_sub(self.far.swap(0, Relaxed), Relaxed);
        self.share.store(0, Relaxed);
        self.kind.store(FREE, Release);
    }
}

impl Seat {
    /// The budget of all, if one is shared.
    pub(crate) fn whole(&self) -> Option<u64> {
        Some(self.tree.whole.load(Relaxed)).filter(|&whole| whole > 0)
    }

    pub(crate) fn share(&self) -> u64 {
        self.member.share.load(Relaxed)
    }

    /// Local bytes this process has now.
    #[inline]
    pub(crate) fn set_local(&self, bytes: u64) {
        let before = self.member.local.swap(bytes, Relaxed);
        let change = bytes.wrapping_sub(before);
        if change != 0 {
            let all = self.counters.local_bytes.fetch_add(change, Relaxed).wrapping_add(change);
            raise(&self.counters.local_bytes_peak, all);
        }
    }

    /// The budget of this process, where each has its own: the largest sum there ever was goes with the largest sum of
    /// local bytes.
    pub(crate) fn set_own_budget(&self, bytes: u64) {
        self.member.share.store(bytes, Relaxed);
        let all = self.tree.members().iter().map(|member| member.share.load(Relaxed)).sum();
        raise(&self.counters.budget_bytes, all);
    }

    /// Far bytes this process has now.
    pub(crate) fn set_far(&self, bytes: u64) {
        let change = bytes.wrapping_sub(self.member.far.swap(bytes, Relaxed));
        let all = self.counters.far_bytes.fetch_add(change, Relaxed).wrapping_add(change);
        raise(&self.counters.far_bytes_peak, all);
    }

    /// What would be fair: see the head of this file.
    fn goal(&self) -> u64 {
        let of_kind = |kind| self.tree.members().iter().filter(move |member| member.kind.load(Relaxed) == kind);
        let share = |member: &Member| member.share.load(Relaxed);
        let wants = |member: &Member| member.wants.load(Relaxed);
        let fixed: u64 = of_kind(FIXED).chain(of_kind(PROMISED)).map(share).sum();
        let whole = self.tree.whole.load(Relaxed).saturating_sub(fixed);
        let count = of_kind(SEATED).count().max(1) as u64;
        let mut level = whole / count;
        // Each round satisfies at least one member more, or is the last.
        for _ in 0..count {
            let (content, bytes) =
                of_kind(SEATED).map(wants).filter(|wants| *wants <= level).fold((0, 0), |(n, sum), w| (n + 1, sum + w));
            let left = whole.saturating_sub(bytes);
            if content >= count {
                return self.member.wants.load(Relaxed) + left / count;
            }
            let next = left / (count - content);
            if next <= level {
                break;
            }
            level = next;
        }
        self.member.wants.load(Relaxed).min(level)
    }

    /// Takes what is free and fair; the share afterwards.
    fn claim(&self) -> u64 {
        let goal = self.goal();
        let _ = self.tree.alone(|| {
            let short = goal.saturating_sub(self.share());
            let pool = self.tree.pool();
            if pool < short {
                self.tree.look_round(self.counters);
            }
            self.member.share.fetch_add(short.min(self.tree.pool()), Relaxed);
        });
        self.share()
    }

    /// Now and then: claims a fair share or gives up what is more than that. `wants` is what the process could use.
    /// `set_budget` takes the new budget, if it changes, and returns the local bytes afterwards.
    ///
    /// What is given up is counted after the budget was lowered: a fault in between could still use the larger one.
    ///
    /// Only this and [`Self::promise`] lower the share of a process that runs, and only this without the lock. The gate keeps
    /// them apart: who balances is inside, and a fork promises with the gate closed. Else bytes could be given twice.
    pub(crate) fn balance(&self, wants: u64, set_budget: impl Fn(u64) -> u64) {
        let whole = self.tree.whole.load(Relaxed);
        if whole == 0 {
            return;
        }
        self.member.wants.store(wants.min(whole), Relaxed);
        let looks = now_ns().saturating_sub(self.tree.looked_ns.load(Relaxed)) > LOOK_NS;
        let is_alone = self.tree.members().iter().filter(|member| member.kind.load(Relaxed) != FREE).count() == 1;
        if looks && !is_alone {
            let _ = self.tree.alone(|| self.tree.look_round(self.counters));
        }
        let (goal, share) = (self.goal(), self.share());
        if goal < share {
            let local = set_budget(goal);
            // What is still in use is given up when it has been evicted.
            self.member.share.store(goal.max(local.min(share)), Relaxed);
        } else if goal > share + share / 32 || is_alone && goal > share {
            // A little more is not worth the trouble; the rest of a budget is.
            set_budget(self.claim());
        }
    }

    /// The fork of the child that this place is promised to begins. From now on the promise lapses with time.
    pub(crate) fn forks(&self) {
        self.member.since_ns.store(now_ns(), Relaxed);
    }

    /// Room for a child about to be forked: `bytes` of the budget, of which this process gives up what it does not use.
    /// `Err` is what the two of them could have together, unless it has to be (`must`).
    pub(crate) fn promise(&self, bytes: u64, local: u64, must: bool) -> Result<Seat, u64> {
        let (tree, counters) = (self.tree, self.counters);
        let shared = tree.whole.load(Relaxed) > 0;
        let promised = tree.alone(|| {
            if !shared {
                return tree.seat(PROMISED, 0, counters).ok_or(0);
            }
            if tree.pool() < bytes {
                tree.look_round(counters);
            }
            let (pool, share) = (tree.pool(), self.share());
            let short = bytes.saturating_sub(pool);
            let spare = share.saturating_sub(local);
            if short > spare && !must {
                return Err(pool + share);
            }
            self.member.share.fetch_sub(short.min(spare), Relaxed);
            tree.seat(PROMISED, bytes, counters).ok_or(0)
        });
        promised.unwrap_or(Err(0))
    }

    /// In the child: takes the place that was promised. `pages` tells whether it is to be fair with its share.
    pub(crate) fn take(&self, pages: bool) {
        self.member.pid.store(own_pid(), Relaxed);
        self.begin(pages);
    }

    /// From now on this process pages, or has all it needs.
    pub(crate) fn begin(&self, pages: bool) {
        self.member.kind.store(if pages { SEATED } else { FIXED }, Release);
    }

    /// Nobody takes this place after all. Without the lock it lapses when others look round: a promise by its age, any other
    /// place with its process.
    pub(crate) fn withdraw(&self) {
        let _ = self.tree.alone(|| self.member.retire(self.counters));
    }
}

/// For models. In production a tree begins as shared memory of zeroes.
#[cfg(loom)]
impl Tree {
    /// A tree without members.
    pub(crate) fn empty() -> Tree {
        let (zero, word) = (|| AtomicU32::new(0), || AtomicU64::new(0));
        let member = |_| Member {
            kind: zero(),
            pid: zero(),
            stack: word(),
            since_ns: word(),
            share: word(),
            wants: word(),
            local: word(),
            far: word(),
        };
        Tree { lock: zero(), top: zero(), whole: word(), looked_ns: word(), members: std::array::from_fn(member) }
    }

    /// Bytes that members have.
    pub(crate) fn taken(&self) -> u64 {
        self.members().iter().map(|member| member.share.load(Relaxed)).sum()
    }

    /// The calling process ends while it holds the lock.
    pub(crate) fn end_locked(&self) {
        self.lock.store(own_pid(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
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
        // The first evicts when it is asked to balance.
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
        // Who wants little leaves the rest to the other, and gets it back when it wants more.
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

    /// Guards against a tree beyond its budget: the local bytes were counted first, a fault used more of the old budget, and
    /// another process had been given that already when the budget was lowered.
    #[test]
    fn nothing_is_given_up_before_the_budget_is_lowered() {
        let stats = fresh();
        let first = stats.tree().join(stats, 1000, 10).unwrap();
        let child = first.promise(0, 1000, false).ok().unwrap();
        child.take(true);
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
        child.take(false);
        parent.balance(5000, |_| panic!("what is fixed is not shared"));
        child.withdraw();
        let told = std::cell::Cell::new(0);
        parent.balance(5000, |budget| {
            told.set(budget);
            600
        });
        assert_eq!(told.get(), 1000);
    }

    #[test]
    fn a_promise_lapses_only_after_its_fork() {
        let stats = fresh();
        let parent = stats.tree().join(stats, 1000, 10).unwrap();
        let child = parent.promise(300, 100, false).ok().unwrap();
        assert_eq!(child.member.since_ns.load(Relaxed), UNFORKED, "to be prepared for as long as it takes");
        child.forks();
        stats.tree().look_round(stats);
        assert_eq!(child.share(), 300);
        child.member.since_ns.store(now_ns().saturating_sub(2 * PROMISE_NS), Relaxed);
        stats.tree().look_round(stats);
        assert_eq!(child.share(), 0, "no child took it");
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
        // It is not waited for: a zombie's memory is free already.
        let end_ns = now_ns() + 10_000_000_000;
        while child.share() > 0 && now_ns() < end_ns {
            stats.tree().look_round(stats);
        }
        assert_eq!((child.share(), stats.local_bytes.load(Relaxed), stats.far_bytes.load(Relaxed)), (0, 100, 0));
        assert_eq!(stats.local_bytes_peak.load(Relaxed), 500);
        process.wait().unwrap();
    }

    #[test]
    fn nobody_retires_a_member_beside_who_holds_the_lock() {
        let stats = fresh();
        let tree = stats.tree();
        let parent = tree.join(stats, 1000, 10).unwrap();
        let child = parent.promise(300, 100, false).ok().unwrap();
        tree.alone(|| {
            // As long as the lock is held elsewhere the place stays taken, and the holder's sums stay true.
            std::thread::scope(|scope| scope.spawn(|| child.withdraw()).join().unwrap());
            assert_eq!((child.share(), child.member.kind.load(Acquire)), (300, PROMISED));
            std::thread::scope(|scope| scope.spawn(|| tree.executed(stats)).join().unwrap());
            assert_eq!(parent.member.kind.load(Acquire), SEATED);
        })
        .unwrap();
        child.withdraw();
        assert_eq!((child.share(), child.member.kind.load(Acquire)), (0, FREE));
    }
}
