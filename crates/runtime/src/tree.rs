//! Divides one budget for local memory among the processes of a run. The table of shares is in memory that all of them
//! map.
//!
//! Each process with far memory is a *member* of the table and holds a share of the budget, in bytes. All shares
//! together are at most the budget. There is one exception: a process that finds no room still gets the least share
//! with which it can run. A member that wants more claims bytes that no member holds. A member that holds more than its
//! fair share evicts pages and then gives up the excess. Shares are max-min fair: a member that wants little gets all
//! it wants, and the other members divide the rest equally. The other members free the share of a process that has
//! ended. They check for ended processes every tenth of a second, and whenever one of them finds too little room.
//!
//! Pages that a forked child shares with its parent count for both processes. So the counted bytes can exceed the bytes
//! in use.

use std::time::Duration;

use crate::counters::{Counters, raise};
use crate::procfs::{is_running, own_pid, own_stack};
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use crate::sync::{now_ns, pause, sized};

/// Maximum number of processes of a run that have far memory at the same time.
const MEMBERS_MAX: usize = sized(1024, 3);
/// Nanoseconds after a fork within which the child must take its reserved share. After that time the reservation
/// lapses, because the child has died early or the fork has failed.
const PROMISE_NS: u64 = 10_000_000_000;
/// Value of `since_ns` before the fork begins. Until then, the reservation cannot lapse, because a parent may prepare a
/// fork for longer than [`PROMISE_NS`].
const UNFORKED: u64 = u64::MAX;
/// Nanoseconds between two checks for members whose process has ended.
const LOOK_NS: u64 = 100_000_000;
/// Nanoseconds between two such checks by processes that find too little room. A check reads a file for each member, with
/// the lock held. Without a pause, a hundred new members would keep the lock from each other.
const LOOK_AGAIN_NS: u64 = 10_000_000;
/// Longest time, in nanoseconds, that a process waits for the table's lock. The lock is held for microseconds, unless
/// its holder is stopped.
const LOCK_NS: u64 = 200_000_000;
/// Longest such wait of a new member, or of a fork. Without the lock the process could not run, so it waits for longer.
const ENTER_NS: u64 = 10_000_000_000;
/// Nanoseconds of a wait for the lock between two checks whether its holder has ended.
const STEAL_NS: u64 = 1_000_000;
/// Longest time, in nanoseconds, that a new member waits for other members to give up bytes.
const JOIN_NS: u64 = 1_000_000_000;

/// Kind of an entry that no process uses.
const FREE: u32 = 0;
/// Kind of an entry whose process pages.
const SEATED: u32 = 1;
/// Kind of an entry that reserves a share for a child about to be forked. `pid` is then the parent's id.
const PROMISED: u32 = 2;
/// Kind of an entry of a forked child that does not page, because its share has room for all its far bytes.
const FIXED: u32 = 3;

/// An entry of the table: a process and its share of the budget.
#[repr(C)]
pub(crate) struct Member {
    kind: AtomicU32,
    pid: AtomicU32,
    /// Address where the process' stack begins. It changes when the process executes another program under the same
    /// pid.
    stack: AtomicU64,
    /// For a reserved share: the time at which its child was forked. [`UNFORKED`] before the fork.
    since_ns: AtomicU64,
    /// Bytes of the budget that the process holds.
    share: AtomicU64,
    /// Bytes of the budget that the process could use.
    wants: AtomicU64,
    /// Local bytes of the process.
    local: AtomicU64,
    /// Far bytes of the process.
    far: AtomicU64,
    /// Private bytes of the process that are not far.
    private: AtomicU64,
    /// Faults of the process.
    faults: AtomicU64,
    /// Time that threads of the process waited for pages, in nanoseconds.
    swap_ns: AtomicU64,
    /// Number of requests to park this process.
    park_asked: AtomicU64,
    /// Number of the last request that was answered. The answer, `park_left`, is stored before it.
    park_done: AtomicU64,
    /// Bytes that left local memory at the last request. [`NO_ROOM`] if the servers have no room for them.
    park_left: AtomicU64,
}

/// Value of `park_left` where nothing was parked, because the servers have no room.
const NO_ROOM: u64 = u64::MAX;

/// The figures of one process with far memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessFigures {
    /// The process, as it sees its own number.
    pub pid: u32,
    /// Far bytes in local memory.
    pub local_bytes: u64,
    /// Far bytes allocated.
    pub far_bytes: u64,
    /// Resident private bytes that are not far.
    pub private_bytes: u64,
    /// Faults since its engine started.
    pub faults: u64,
    /// Time that its threads waited for pages, in nanoseconds, since its engine started.
    pub swap_ns: u64,
}

/// The progress of a request to park a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// The process has not answered yet.
    Waits,
    /// So many bytes have left local memory.
    Left(u64),
    /// The memory servers have no room for them, so nothing was parked.
    NoRoom,
}

/// The table of members and the budget that they share. A table of zeroes has no members.
#[repr(C)]
pub(crate) struct Tree {
    /// Id of the process that holds the table's lock. 0 if no process holds it.
    lock: AtomicU32,
    /// Index from which on no entry of `members` was ever used.
    top: AtomicU32,
    /// The shared budget in bytes. 0 if each process has a budget of its own, in proportion to its far bytes.
    whole: AtomicU64,
    /// Time of the last check for members whose process has ended.
    looked_ns: AtomicU64,
    members: [Member; MEMBERS_MAX],
}

/// The entry of one member in the table of budget shares.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    tree: &'static Tree,
    member: &'static Member,
    counters: &'static Counters,
    /// For a reserved share: the time at which its child was forked. The child compares it with the entry's.
    forked_ns: u64,
}

impl Tree {
    fn members(&self) -> &[Member] {
        &self.members[..(self.top.load(Acquire) as usize).min(MEMBERS_MAX)]
    }

    /// Runs `work` with the table's lock held. Returns `None`, and does not run `work`, if the lock is not free within
    /// [`LOCK_NS`].
    pub(crate) fn alone<T>(&self, work: impl FnOnce() -> T) -> Option<T> {
        self.alone_within(LOCK_NS, work)
    }

    /// Runs `work` with the table's lock held. Steals the lock from a process that has ended. Returns `None`, and does
    /// not run `work`, if the lock is not free within `limit_ns` nanoseconds.
    fn alone_within<T>(&self, limit_ns: u64, work: impl FnOnce() -> T) -> Option<T> {
        let me = own_pid();
        let began_ns = now_ns();
        let mut looked_ns = None;
        while let Err(holder) = self.lock.compare_exchange(0, me, Acquire, Relaxed) {
            let now = now_ns();
            if holder != 0 && looked_ns.is_none_or(|at| now.saturating_sub(at) >= STEAL_NS) {
                looked_ns = Some(now);
                let stolen = !is_running(holder, 0);
                if stolen && self.lock.compare_exchange(holder, me, Acquire, Relaxed).is_ok() {
                    break;
                }
            }
            if now.saturating_sub(began_ns) > limit_ns {
                return None;
            }
            pause(Duration::from_micros(50));
        }
        let result = work();
        let _ = self.lock.compare_exchange(me, 0, Release, Relaxed);
        Some(result)
    }

    /// Returns the bytes of the budget that no member holds. The caller holds the lock.
    fn pool(&self) -> u64 {
        let taken: u64 = self.members().iter().map(|member| member.share.load(Relaxed)).sum();
        self.whole.load(Relaxed).saturating_sub(taken)
    }

    /// Frees the entries of processes that have ended, and reservations that have lapsed. The caller holds the lock.
    fn look_round(&self, counters: &Counters) {
        let now = now_ns();
        self.looked_ns.store(now, Relaxed);
        for member in self.members() {
            let (kind, forked_ns) = (member.kind.load(Acquire), member.since_ns.load(Relaxed));
            let gone = match kind {
                FREE => false,
                // A parent may end before its child takes what is reserved for it.
                PROMISED if forked_ns != UNFORKED => now.saturating_sub(forked_ns) > PROMISE_NS,
                _ => !is_running(member.pid.load(Relaxed), member.stack.load(Relaxed)),
            };
            if gone {
                member.retire(counters);
            }
        }
    }

    /// Fills a free entry with the calling process and a share of `share` bytes. Returns `None` when no entry is free.
    /// The caller holds the lock.
    fn seat(&'static self, kind: u32, share: u64, counters: &'static Counters) -> Option<Seat> {
        let free = self.members.iter().position(|member| member.kind.load(Acquire) == FREE)?;
        let member = &self.members[free];
        member.pid.store(own_pid(), Relaxed);
        member.stack.store(own_stack(), Relaxed);
        member.since_ns.store(UNFORKED, Relaxed);
        member.share.store(share, Relaxed);
        member.wants.store(share, Relaxed);
        for word in [&member.faults, &member.swap_ns, &member.park_asked, &member.park_done] {
            word.store(0, Relaxed);
        }
        self.top.fetch_max(free as u32 + 1, AcqRel);
        member.kind.store(kind, Release);
        Some(Seat { tree: self, member, counters, forked_ns: UNFORKED })
    }

    /// Makes this process a member, with a share of at least `least` bytes. `whole` is the shared budget in bytes, or 0
    /// if each process has its own. Waits up to [`JOIN_NS`] for other members to give up bytes. If they do not, the
    /// share becomes `least` even beyond the budget, so that the process can run. Returns `None` when no entry is free,
    /// or the lock cannot be taken.
    pub(crate) fn join(&'static self, counters: &'static Counters, whole: u64, least: u64) -> Option<Seat> {
        let seat = self.alone_within(ENTER_NS, || {
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
        // The demand of a new member is not known yet. It asks for the whole budget, so that its fair share is as large
        // as possible.
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

    /// Returns the figures of all processes whose engine runs.
    pub(crate) fn processes(&self) -> Vec<ProcessFigures> {
        let of = |word: &AtomicU64| word.load(Relaxed);
        let figures = |member: &Member| ProcessFigures {
            pid: member.pid.load(Relaxed),
            local_bytes: of(&member.local),
            far_bytes: of(&member.far),
            private_bytes: of(&member.private),
            faults: of(&member.faults),
            swap_ns: of(&member.swap_ns),
        };
        self.members().iter().filter(|member| member.kind.load(Acquire) == SEATED).map(figures).collect()
    }

    fn seated(&self, pid: u32) -> Option<&Member> {
        let is_its = |member: &&Member| member.kind.load(Acquire) == SEATED && member.pid.load(Relaxed) == pid;
        self.members().iter().find(is_its)
    }

    /// Asks a process to park its far memory. Returns the number of the request, or `None` if the process has no engine.
    pub(crate) fn ask_to_park(&self, pid: u32) -> Option<u64> {
        Some(self.seated(pid)?.park_asked.fetch_add(1, AcqRel) + 1)
    }

    /// Returns what became of a request. `None` if the process no longer has an engine. Requests that were made before
    /// the process answered one are answered together.
    pub(crate) fn parked(&self, pid: u32, request: u64) -> Option<Parked> {
        let member = self.seated(pid)?;
        if member.park_done.load(Acquire) < request {
            return Some(Parked::Waits);
        }
        Some(match member.park_left.load(Relaxed) {
            NO_ROOM => Parked::NoRoom,
            left => Parked::Left(left),
        })
    }

    /// Frees the entry of the program that this process ran before it executed the present one. If the lock cannot be
    /// taken, another member frees the entry later: the recorded stack address then shows that the old program is gone.
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
    /// Frees this entry and its share. The caller holds the lock. Without the lock, a process could clear an entry that
    /// another process has freed and a third one has filled again. The kind is set to [`FREE`] last. So if the caller
    /// dies in this function, the next check of the members frees the entry again.
    fn retire(&self, counters: &Counters) {
        if self.kind.load(Acquire) == FREE {
            return;
        }
        counters.local_bytes.fetch_sub(self.local.swap(0, Relaxed), Relaxed);
        counters.far_bytes.fetch_sub(self.far.swap(0, Relaxed), Relaxed);
        counters.private_bytes.fetch_sub(self.private.swap(0, Relaxed), Relaxed);
        self.share.store(0, Relaxed);
        self.kind.store(FREE, Release);
    }
}

impl Seat {
    /// Returns the budget that all members share, in bytes. `None` if each process has its own.
    pub(crate) fn whole(&self) -> Option<u64> {
        Some(self.tree.whole.load(Relaxed)).filter(|&whole| whole > 0)
    }

    /// Sets the budget that all members share. Members give up what is beyond their new shares when they balance next.
    pub(crate) fn set_whole(&self, bytes: u64) {
        self.tree.whole.store(bytes, Relaxed);
    }

    /// Returns this member's share in bytes.
    pub(crate) fn share(&self) -> u64 {
        self.member.share.load(Relaxed)
    }

    /// Records the local bytes of this process. Updates their sum over all processes, and the peak of the sum.
    #[inline]
    pub(crate) fn set_local(&self, bytes: u64) {
        let before = self.member.local.swap(bytes, Relaxed);
        let change = bytes.wrapping_sub(before);
        if change != 0 {
            let all = self.counters.local_bytes.fetch_add(change, Relaxed).wrapping_add(change);
            raise(&self.counters.local_bytes_peak, all);
        }
    }

    /// Records the budget of a process that does not share one. The counter `budget_bytes` keeps the largest sum of all
    /// budgets, to be compared with the peak of all local bytes.
    pub(crate) fn set_own_budget(&self, bytes: u64) {
        self.member.share.store(bytes, Relaxed);
        let all = self.tree.members().iter().map(|member| member.share.load(Relaxed)).sum();
        raise(&self.counters.budget_bytes, all);
    }

    /// Records the far bytes of this process. Updates their sum over all processes, and the peak of the sum.
    pub(crate) fn set_far(&self, bytes: u64) {
        let change = bytes.wrapping_sub(self.member.far.swap(bytes, Relaxed));
        let all = self.counters.far_bytes.fetch_add(change, Relaxed).wrapping_add(change);
        raise(&self.counters.far_bytes_peak, all);
    }

    /// Records the private bytes of this process that are not far. Updates their sum over all processes, and the peak of
    /// the sum.
    pub(crate) fn set_private(&self, bytes: u64) {
        let change = bytes.wrapping_sub(self.member.private.swap(bytes, Relaxed));
        let all = self.counters.private_bytes.fetch_add(change, Relaxed).wrapping_add(change);
        raise(&self.counters.private_bytes_peak, all);
    }

    /// Records the faults of this process, and the time that its threads waited for pages.
    pub(crate) fn set_paging(&self, faults: u64, swap_ns: u64) {
        self.member.faults.store(faults, Relaxed);
        self.member.swap_ns.store(swap_ns, Relaxed);
    }

    /// Returns the number of the last request to park this process, if it is not answered.
    pub(crate) fn park_request(&self) -> Option<u64> {
        let asked = self.member.park_asked.load(Acquire);
        (asked > self.member.park_done.load(Relaxed)).then_some(asked)
    }

    /// Answers the requests up to this one. `left` is the number of bytes that left local memory, or `None` if the
    /// servers have no room.
    pub(crate) fn answer_park(&self, request: u64, left: Option<u64>) {
        self.member.park_left.store(left.unwrap_or(NO_ROOM), Relaxed);
        self.member.park_done.store(request, Release);
    }

    /// Returns this member's fair share in bytes, as the head of this file defines it.
    fn goal(&self) -> u64 {
        let of_kind = |kind| self.tree.members().iter().filter(move |member| member.kind.load(Relaxed) == kind);
        let share = |member: &Member| member.share.load(Relaxed);
        let wants = |member: &Member| member.wants.load(Relaxed);
        let fixed: u64 = of_kind(FIXED).chain(of_kind(PROMISED)).map(share).sum();
        let whole = self.tree.whole.load(Relaxed).saturating_sub(fixed);
        let count = of_kind(SEATED).count().max(1) as u64;
        let mut level = whole / count;
        // Each round either finds at least one more member whose demand is met, or is the last round.
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

    /// Raises the share to the fair share, as far as the budget has free bytes. Returns the new share.
    fn claim(&self) -> u64 {
        let goal = self.goal();
        let _ = self.tree.alone(|| {
            let short = goal.saturating_sub(self.share());
            let pool = self.tree.pool();
            let looks = now_ns().saturating_sub(self.tree.looked_ns.load(Relaxed)) > LOOK_AGAIN_NS;
            if pool < short && looks {
                self.tree.look_round(self.counters);
            }
            self.member.share.fetch_add(short.min(self.tree.pool()), Relaxed);
        });
        self.share()
    }

    /// Moves the share of this process towards its fair share. Called periodically. `wants` is the number of bytes that
    /// the process could use. `set_budget` receives the new budget of the process, in bytes, and returns the local
    /// bytes of the process afterwards.
    ///
    /// The share shrinks only after `set_budget` has lowered the budget. Otherwise a fault could still use bytes that
    /// another process has already claimed.
    ///
    /// Only this function and [`Self::promise`] lower the share of a running process, and only `promise` holds the
    /// lock. The fork barrier keeps them apart: this function runs inside the barrier, and `promise` runs while it is
    /// closed. Otherwise both could give up the same bytes.
    pub(crate) fn balance(&self, wants: u64, set_budget: impl Fn(u64) -> u64) {
        let whole = self.tree.whole.load(Relaxed);
        if whole == 0 {
            return;
        }
        self.member.wants.store(wants.min(whole), Relaxed);
        let looks = now_ns().saturating_sub(self.tree.looked_ns.load(Relaxed)) > LOOK_NS;
        let is_alone = self.processes() == 1;
        if looks && !is_alone {
            let _ = self.tree.alone(|| self.tree.look_round(self.counters));
        }
        let (goal, share) = (self.goal(), self.share());
        if goal < share {
            let local = set_budget(goal);
            // Bytes that are still in use remain in the share until their pages are evicted.
            self.member.share.store(goal.max(local.min(share)), Relaxed);
        } else if goal > share + share / 32 || is_alone && goal > share {
            // A share that could grow by at most 1/32 stays as it is, because the change costs more than it brings.
            // Only a process that is alone claims even the last bytes of the budget.
            set_budget(self.claim());
        }
    }

    /// Returns the number of processes of the run that have a share, this one included.
    pub(crate) fn processes(&self) -> u64 {
        self.tree.members().iter().filter(|member| member.kind.load(Relaxed) != FREE).count() as u64
    }

    /// Records that the fork for which this share is reserved begins now. The reservation lapses [`PROMISE_NS`] later.
    pub(crate) fn forks(&mut self) {
        self.forked_ns = now_ns();
        self.member.since_ns.store(self.forked_ns, Relaxed);
    }

    /// Reserves a share of `bytes` for a child about to be forked. If the budget has too few free bytes, this process
    /// gives up bytes that it does not use. It uses `local` bytes. With `must`, reserves the share even beyond the
    /// budget.
    ///
    /// # Errors
    /// The number of bytes that parent and child could hold together, if this number is too small for the share. 0 if
    /// no entry is free, or the lock cannot be taken.
    pub(crate) fn promise(&self, bytes: u64, local: u64, must: bool) -> Result<Seat, u64> {
        let (tree, counters) = (self.tree, self.counters);
        let shared = tree.whole.load(Relaxed) > 0;
        let promised = tree.alone_within(ENTER_NS, || {
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
            // The share of this process shrinks only after the last step that can fail. On an error, the caller keeps
            // its budget, so its share must stay the same.
            let seat = tree.seat(PROMISED, bytes, counters).ok_or(0u64)?;
            self.member.share.fetch_sub(short.min(spare), Relaxed);
            Ok(seat)
        });
        promised.unwrap_or(Err(0))
    }

    /// Makes the calling process, a forked child, the owner of this reserved entry. `pages` says whether
    /// the child pages. Returns false if the reservation has lapsed. Then the entry may be another process'.
    pub(crate) fn take(&self, pages: bool) -> bool {
        let taken = self.tree.alone_within(ENTER_NS, || {
            let (kind, forked_ns) = (self.member.kind.load(Acquire), self.member.since_ns.load(Relaxed));
            let is_reserved = kind == PROMISED && forked_ns == self.forked_ns;
            if is_reserved {
                self.member.pid.store(own_pid(), Relaxed);
                self.begin(pages);
            }
            is_reserved
        });
        taken.unwrap_or(false)
    }

    /// Makes this entry a member that pages, if `pages` is true. Otherwise its share stays fixed, because the process
    /// has room for all its far bytes and does not page.
    pub(crate) fn begin(&self, pages: bool) {
        self.member.kind.store(if pages { SEATED } else { FIXED }, Release);
    }

    /// Frees this entry. If the lock cannot be taken, another member frees it later: a reservation when it lapses, any
    /// other entry when its process ends.
    pub(crate) fn withdraw(&self) {
        let _ = self.tree.alone(|| self.member.retire(self.counters));
    }
}

/// Functions for the loom models. In production a table begins as shared memory of zeroes.
#[cfg(loom)]
impl Tree {
    /// Returns a table without members.
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
            private: word(),
            faults: word(),
            swap_ns: word(),
            park_asked: word(),
            park_done: word(),
            park_left: word(),
        };
        Tree { lock: zero(), top: zero(), whole: word(), looked_ns: word(), members: std::array::from_fn(member) }
    }

    /// Returns the sum of all shares, in bytes.
    pub(crate) fn taken(&self) -> u64 {
        self.members().iter().map(|member| member.share.load(Relaxed)).sum()
    }

    /// Leaves the lock taken, like a process that ends while it holds the lock.
    pub(crate) fn end_locked(&self) {
        self.lock.store(own_pid(), Relaxed);
    }
}

// The models include this file by its path: a module's file is then looked for beside it unless its path is given.
#[cfg(test)]
#[path = "tree/tests.rs"]
mod tests;
