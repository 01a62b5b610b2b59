//! Auto: follows the candidate policy that has the fewest misses on a random sample of the program's own pages.
//!
//! One unit in 16, drawn at random, is sampled. Each candidate policy has a [shadow cache](super::shadows), which
//! simulates the candidate on the sample. The shadow caches must see the references to sampled pages. So some time
//! after a reference, a sampled page is unmapped, and its next reference traps. Few pages are unmapped, so these traps
//! cost little compared with faults.
//!
//! If pages cannot be unmapped cheaply, the sampled pages form a first-in first-out queue with half their share of
//! memory. A sampled page is then evicted soon, and its next reference is seen as a *return*: the arrival of a page
//! that was evicted before.
//!
//! All other pages follow the candidate with the best shadow cache. They change to another candidate as soon as the
//! difference is statistically significant.

use std::cell::Cell;
use std::fmt::Write;

use super::fifo::Fifo;
use super::sample::Sample;
use super::shadows::Shadows;
use super::two_q::{self, TwoQ};
use super::{Cause, Info, Leave, Policy, Space};
use crate::limits;
use crate::units::PageId;

/// Minimum number of resident pages for a meaningful sample. With fewer pages, all pages follow the candidate at `FIRST`.
/// With more, they start with it.
const PAGES_MIN: u32 = 128;
/// Number of references to sampled pages between two comparisons of the candidates.
const JUDGE_EVERY: u32 = 16;
/// The counts of returns are halved when a candidate has more returns than `MEMORY` times the number of sampled pages
/// in a shadow cache. A return is the arrival of a page that was evicted before.
const MEMORY: u32 = 8;
/// A candidate must have more than this number of returns before the counts of returns are halved.
const MEMORY_MIN: u32 = 64;
/// The candidate changes only if the followed one has more returns than another by this number of standard deviations.
/// The number is large because references are not independent of each other.
const CERTAIN: f64 = 4.0;
/// The candidate changes only if the followed one has more returns than another by this factor.
const MARGIN: f64 = 1.05;
/// A sampled page is unmapped after as many arrivals as 1 / `HIDE_AFTER_PARTS` of local memory holds, counted since the
/// page's last reference.
const HIDE_AFTER_PARTS: u32 = 8;
/// Divisor of the sample's share of memory if pages are not unmapped. With less memory, sampled pages are evicted
/// sooner, and more of their references are seen as returns.
const SHORT: u32 = 2;
/// At most one look at a sampled page is taken for this number of arrivals. A look is an unmapping. If pages are not
/// unmapped, it is a return of a sampled page that the followed candidate would have kept. Without this limit, a few
/// sampled pages that are used all the time could evict each other for ever.
const ARRIVALS_A_LOOK: u32 = 8;
/// Maximum number of looks in one burst. The count of saved arrivals is limited to what such a burst needs.
const LOOKS_SAVED: u32 = 64;

/// Mask of the group number in a page's byte. The bits above the mask hold the age.
const GROUP: u8 = 0xf;
/// Shift of the age in a page's byte.
const AGE_SHIFT: u32 = 4;
/// Number of ages in a turn. A turn lasts until as many pages have arrived as local memory holds, and an age is an
/// equal part of it. A reference at the age of the page's arrival, or at the next age, says nothing about the page's
/// future.
const AGES_A_TURN: u32 = 8;

/// The candidate policies. The first is the baseline.
const CANDIDATES: [&str; 4] = ["swap-in-history", "lirs:ghost_percent=30", "s3-fifo", "w-tinylfu"];
/// Index of the baseline.
const BASELINE: usize = 0;
/// Index of the candidate followed at the start.
const FIRST: usize = 1;
/// Index of the guard, one more shadow cache of the baseline. The guard has the sample's share of memory, plus a
/// quarter of the sampled pages that do not fit into this share. A loop that just fits into memory may not fit into the
/// exact share. Only the larger cache shows that the baseline would keep such a loop.
const GUARD: usize = CANDIDATES.len();
/// The guard is checked after this number of expected returns of sampled pages. The expectation assumes that sampled
/// pages return at the same rate as all pages.
const WATCH_MIN: u64 = 48;
/// If the guard had at most 1 / `WATCH_FEW` of the expected returns, the baseline is followed immediately, and the
/// present candidate is barred.
const WATCH_FEW: u64 = 8;
/// Duration of the first bar of a candidate, in returns for each page of local memory. A barred candidate is not
/// followed. Each further bar of the candidate lasts twice as long. The guard is barred likewise.
const BAR: u64 = 32;
/// Index of the group of sampled pages, used if pages are not unmapped. It follows the groups of the candidates.
const SAMPLE: usize = CANDIDATES.len();
const _: () = assert!(SAMPLE < GROUP as usize);
/// Number of the latest changes of candidate that the report shows.
const TURNS: usize = 8;

pub(super) const INFO: Info = Info {
    name: "auto",
    summary: "2q:walk=1 with --page-size auto, else the best of swap-in-history, lirs, s3-fifo and w-tinylfu on sampled pages",
    source: "miniature simulation, ATC 2017, of sampled pages",
    params: &[],
    // With mixed page sizes there is no sample. Sampling single units would prevent huge pages, and there are too few
    // blocks to sample. 2Q weighs pages by their size. It is best on average if neighbours are evicted together.
    build: |space, _| match space.block_units {
        1 => Box::new(Auto::new(space)),
        _ => Box::new(TwoQ::new(space, two_q::IN_PERCENT, two_q::OUT_PERCENT, true)),
    },
};

/// Pages that one policy orders.
struct Group {
    policy: Box<dyn Policy>,
    /// Number of resident pages.
    present: u32,
}

/// The time during which a candidate must not be followed, or the guard not believed.
#[derive(Clone, Copy, Debug, Default)]
struct Bar {
    /// The bar ends when the number of returns of all pages reaches this value.
    until: u64,
    /// How often there was a bar.
    times: u32,
}

impl Bar {
    fn extend(&mut self, now: u64, present: u32) {
        self.until = now + ((BAR * u64::from(present)) << self.times.min(16));
        self.times += 1;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    returns: u64,
    to: usize,
}

/// Memory use: one byte and one bit per unit; thirteen bytes and the state of five shadow caches per sampled unit; and
/// the full state of each candidate that was ever followed.
pub(super) struct Auto {
    shadows: Shadows,
    /// The resident sampled pages, by their names in the sample. The group is used only if pages are not unmapped.
    /// While the group holds more than its share of memory, its pages are evicted first.
    sample: Group,
    hides: bool,
    which: Sample,
    /// For each candidate: the resident pages that arrived while the candidate was followed.
    followers: Vec<Group>,
    /// For each resident unit: its group plus one in the low four bits, and the age of its arrival in the high four
    /// bits.
    group: Vec<u8>,
    /// The current age, modulo 16. It grows by one each time as many pages arrive as an eighth of local memory holds.
    age: u8,
    age_left: u32,
    /// One bit for each unit. It is set if the unit was resident before and has not been discarded since.
    known: Vec<u64>,
    /// Number of pages whose bit in `known` is set.
    known_all: u32,
    /// Number of sampled pages that are known, so that their next arrival is a return.
    known_sample: u32,
    arrivals: u32,
    /// Number of arrivals that can still be spent on looks at sampled pages.
    saved: u32,
    /// Number of returns of all pages since the guard was last checked.
    watched: u32,
    /// Number of returns in the guard's shadow cache since the guard was last checked.
    watched_guard: u32,
    followed: usize,
    /// The candidate that the guard made leave for the baseline last. [`BASELINE`] if there is none.
    left: usize,
    /// The number of returns up to which the guard is not checked. Until then, pages are still evicted that the previous
    /// candidate had kept.
    settled_at: u64,
    /// Whether there are enough pages for a sample.
    samples: bool,
    full: bool,
    /// Number of returns of all pages. `settled_at` and the bars are compared with this number.
    returns: u64,
    judge_in: u32,
    turns: [Turn; TURNS],
    turned: usize,
    /// For each candidate: the time during which it must not be followed.
    bars: [Bar; CANDIDATES.len()],
    /// The time during which the guard is not believed, because it was wrong.
    guard_bar: Bar,
}

impl Auto {
    fn new(space: Space) -> Self {
        let build = |name: &str, units| -> Box<dyn Policy> {
            super::build(name, Space { units, ..space }).unwrap_or_else(|_| Box::new(Fifo::new(units)))
        };
        let which = Sample::of(space);
        let names = which.names();
        let caches = CANDIDATES.iter().chain([&CANDIDATES[BASELINE]]).map(|name| build(name, names)).collect();
        let group = |policy| Group { policy, present: 0 };
        Self {
            shadows: Shadows::new(caches, names, FIRST),
            sample: group(Box::new(Fifo::new(names))),
            hides: space.hides,
            which,
            followers: CANDIDATES.iter().map(|name| group(build(name, space.units))).collect(),
            group: vec![0; space.units as usize],
            age: 0,
            age_left: 0,
            known: vec![0; space.units.div_ceil(u64::BITS) as usize],
            known_all: 0,
            known_sample: 0,
            arrivals: 0,
            saved: 0,
            watched: 0,
            watched_guard: 0,
            followed: FIRST,
            left: BASELINE,
            settled_at: 0,
            samples: true,
            full: false,
            returns: 0,
            judge_in: JUDGE_EVERY,
            turns: [Turn::default(); TURNS],
            turned: 0,
            bars: [Bar::default(); CANDIDATES.len()],
            guard_bar: Bar::default(),
        }
    }

    /// Returns the page's number within the sample, or `None` if the page is not sampled.
    fn name_of(&self, page: PageId) -> Option<PageId> {
        self.which.name_of(page).filter(|_| self.samples)
    }

    fn is_known(&self, page: PageId) -> bool {
        self.known[page.0 as usize / 64] & (1 << (page.0 % 64)) != 0
    }

    fn present(&self) -> u32 {
        self.followers.iter().map(|group| group.present).sum::<u32>() + self.sample.present
    }

    /// Returns the number of sampled pages that would be in memory if they were treated like all other pages.
    fn share(&self) -> u32 {
        (u64::from(self.present()) * u64::from(self.known_sample) / u64::from(self.known_all.max(1))) as u32
    }

    /// Notes that a page arrived.
    fn note_arrival(&mut self) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.saved = (self.saved + 1).min(LOOKS_SAVED * ARRIVALS_A_LOOK);
        self.age_left = self.age_left.saturating_sub(1);
        if self.age_left == 0 {
            self.age = (self.age + 1) & (u8::MAX >> AGE_SHIFT);
            self.age_left = self.present() / AGES_A_TURN + 1;
        }
    }

    /// Counts a page that arrived, for the first time or again.
    fn count(&mut self, page: PageId, name: Option<PageId>, cause: Cause) {
        let again = self.is_known(page);
        if !again {
            self.known[page.0 as usize / 64] |= 1 << (page.0 % 64);
            self.known_all += 1;
            self.known_sample += u32::from(name.is_some());
        }
        // A prefetched page counts as referenced, because the accuracy filter lets few useless prefetches pass.
        if let Some(name) = name {
            if again && !self.hides && self.shadows.holds(self.followed, name) {
                self.saved = self.saved.saturating_sub(ARRIVALS_A_LOOK);
            }
            self.referenced_sample(name, cause, again);
        }
        if again {
            self.returns += 1;
            self.watch();
        }
    }

    /// Notes a reference to a sampled page. `again` says whether the page was referenced before.
    fn referenced_sample(&mut self, name: PageId, cause: Cause, again: bool) {
        let share = self.share();
        let more = self.known_sample.saturating_sub(share) / 4;
        let before = self.shadows.returns(GUARD);
        let share = |k| if k == GUARD { share + more } else { share };
        self.shadows.referenced(name, cause, self.arrivals, again, share);
        self.watched_guard += self.shadows.returns(GUARD) - before;
        self.judge_in -= u32::from(again);
        if self.judge_in == 0 {
            self.judge_in = JUDGE_EVERY;
            self.judge();
        }
    }

    /// Checks whether pages return far more often than the guard, a shadow cache of the baseline, predicts. If so,
    /// follows the baseline. If they still do under the baseline, the guard was wrong: some loops fit into its cache and
    /// not into memory. Then follows the earlier candidate again.
    fn watch(&mut self) {
        if self.returns <= self.settled_at {
            (self.watched, self.watched_guard) = (0, 0);
            return;
        }
        self.watched += 1;
        let expected = u64::from(self.watched) * u64::from(self.known_sample) / u64::from(self.known_all.max(1));
        if expected < WATCH_MIN || self.watched < self.present() {
            return;
        }
        if u64::from(self.watched_guard) * WATCH_FEW <= expected {
            let present = self.present();
            if self.followed != BASELINE && self.returns >= self.guard_bar.until {
                self.bars[self.followed].extend(self.returns, present);
                self.left = self.followed;
                self.turn_to(BASELINE);
            } else if self.followed == BASELINE && self.left != BASELINE {
                self.guard_bar.extend(self.returns, present);
                self.bars[self.left].until = 0;
                self.turn_to(self.left);
            }
        }
        (self.watched, self.watched_guard) = (0, 0);
    }

    fn follow(&mut self, k: usize) {
        self.followed = k;
        self.shadows.charge(k);
    }

    fn turn_to(&mut self, k: usize) {
        if k == BASELINE || self.followed == BASELINE {
            self.settled_at = self.returns + u64::from(self.present());
        }
        if k != BASELINE {
            self.left = BASELINE;
        }
        self.follow(k);
        self.turns[self.turned % TURNS] = Turn { returns: self.returns, to: k };
        self.turned += 1;
    }

    /// Whether a candidate may be followed now, because no bar applies to it.
    fn is_free(&self, k: usize) -> bool {
        k == BASELINE || self.returns >= self.bars[k].until
    }

    /// Follows another candidate if it would have had fewer returns, by a difference that chance does not explain.
    fn judge(&mut self) {
        let cost = |k: usize| self.shadows.returns(k);
        let best = (0..CANDIDATES.len()).filter(|&k| self.is_free(k)).min_by_key(|&k| cost(k)).unwrap_or(BASELINE);
        let (now, then) = (f64::from(cost(self.followed)), f64::from(cost(best)));
        let chance = CERTAIN * f64::from(self.shadows.differences(best)).sqrt();
        if now - then > chance && now > MARGIN * then {
            self.turn_to(best);
        }
        if (0..CANDIDATES.len()).any(|k| self.shadows.returns(k) > (MEMORY * self.shadows.held()).max(MEMORY_MIN)) {
            self.shadows.halve();
        }
    }

    fn victim_of_sample(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let which = self.which;
        self.sample.policy.victim(&|name| accept(which.page_of(name))).map(|name| which.page_of(name))
    }

    /// Returns a victim of the candidates' groups. The group of a candidate holds the pages that arrived while the
    /// candidate was followed. The group of the followed candidate is searched last.
    fn victim_of_followers(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let earlier = (0..CANDIDATES.len()).filter(|&k| k != self.followed);
        for k in earlier.chain([self.followed]) {
            if self.followers[k].present > 0
                && let Some(page) = self.followers[k].policy.victim(accept)
            {
                return Some(page);
            }
        }
        None
    }

    /// Notes that memory is full for the first time. If memory holds too few pages, stops the sampling.
    fn filled(&mut self) {
        self.full = true;
        if self.present() >= PAGES_MIN {
            return;
        }
        for _ in 0..self.sample.present {
            let Some(page) = self.victim_of_sample(&|_| true) else { break };
            self.leave_group(page, Leave::Forgotten);
            self.join(FIRST, page, Cause::Read);
        }
        self.samples = false;
    }

    fn join(&mut self, k: usize, page: PageId, cause: Cause) {
        self.group[page.0 as usize] = (k as u8 + 1) | (self.age << AGE_SHIFT);
        self.followers[k].present += 1;
        self.followers[k].policy.inserted(page, cause);
    }

    fn join_sample(&mut self, page: PageId, name: PageId, cause: Cause) {
        self.group[page.0 as usize] = SAMPLE as u8 + 1;
        self.sample.present += 1;
        self.sample.policy.inserted(name, cause);
    }

    fn leave_group(&mut self, page: PageId, why: Leave) {
        let group = std::mem::take(&mut self.group[page.0 as usize]) & GROUP;
        match usize::from(group).checked_sub(1) {
            None => {}
            Some(SAMPLE) => {
                self.sample.present -= 1;
                if let Some(name) = self.name_of(page) {
                    self.sample.policy.removed(name, why);
                }
            }
            Some(k) => {
                self.followers[k].present -= 1;
                self.followers[k].policy.removed(page, why);
            }
        }
    }
}

impl Policy for Auto {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.note_arrival();
        let name = self.name_of(page);
        match name.filter(|_| !self.hides) {
            Some(name) => self.join_sample(page, name, cause),
            None => self.join(self.followed, page, cause),
        }
        self.count(page, name, cause);
    }

    /// The pager sees few references to resident pages. Most of them are first writes soon after the read that brought
    /// the page. They say nothing about the page's future (correlated references: Johnson and Shasha, VLDB 1994).
    /// References to sampled pages go only to the shadow caches. Otherwise sampled pages would be treated differently
    /// from all other pages.
    fn referenced(&mut self, page: PageId, write: bool) {
        if let Some(name) = self.name_of(page) {
            self.referenced_sample(name, if write { Cause::Write } else { Cause::Read }, true);
            return;
        }
        let age = self.age.wrapping_sub(self.group[page.0 as usize] >> AGE_SHIFT) & (u8::MAX >> AGE_SHIFT);
        let group = usize::from(self.group[page.0 as usize] & GROUP);
        if age > 1 && group > 0 {
            self.followers[group - 1].policy.referenced(page, write);
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.leave_group(page, why);
        if let Some(name) = self.name_of(page) {
            self.shadows.left(name);
        }
        if why == Leave::Forgotten {
            self.forgotten(page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        if !self.is_known(page) {
            return;
        }
        self.known[page.0 as usize / 64] &= !(1 << (page.0 % 64));
        self.known_all -= 1;
        if let Some(name) = self.name_of(page) {
            self.known_sample -= 1;
            self.shadows.forgotten(name);
            self.sample.policy.forgotten(name);
        }
        self.followers.iter_mut().for_each(|group| group.policy.forgotten(page));
    }

    fn coming(&mut self, page: PageId) {
        self.followers[self.followed].policy.coming(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        if !self.full {
            self.filled();
        }
        // The search may cover several groups. All of them together share one limit on the number of pages examined.
        let left = Cell::new(limits::VICTIM_SCAN_MAX);
        let accept = |page: PageId| {
            left.set(left.get().saturating_sub(1));
            left.get() > 0 && accept(page)
        };
        let accept: &dyn Fn(PageId) -> bool = &accept;
        if self.sample.present > self.share() / SHORT
            && self.saved >= ARRIVALS_A_LOOK
            && let Some(page) = self.victim_of_sample(accept)
        {
            return Some(page);
        }
        let found = self.victim_of_followers(accept);
        found.or_else(|| self.victim_of_sample(accept))
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        // Before the first eviction, the candidates cannot differ, so no sampled page is unmapped.
        if !self.hides || !self.samples || !self.full || self.saved < ARRIVALS_A_LOOK {
            return None;
        }
        let name = self.shadows.next_to_hide(self.arrivals, self.present() / HIDE_AFTER_PARTS)?;
        self.saved -= ARRIVALS_A_LOOK;
        Some(self.which.page_of(name))
    }

    fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        write!(out, "following {}", CANDIDATES[self.followed])?;
        let turns = self.turned.min(TURNS);
        for turn in (self.turned - turns..self.turned).map(|index| self.turns[index % TURNS]) {
            write!(out, ", {} from return {} on", CANDIDATES[turn.to], turn.returns)?;
        }
        if !self.samples {
            return write!(out, " (too few pages in memory to compare)");
        }
        write!(out, "; returns a sampled page lately:")?;
        for (k, name) in CANDIDATES.iter().enumerate() {
            write!(out, " {name} {:.2}", f64::from(self.shadows.returns(k)) / f64::from(self.known_sample.max(1)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
