//! Auto: the policy that does best with a sample of the program's own pages.
//!
//! One unit of 16, drawn at random, is sampled, and each candidate keeps an [account](super::shadows) of the sample. That
//! needs to know when sampled pages are touched. One that is in view is hidden some time after a touch, so that the next one
//! is seen; so few pages are hidden that this costs little beside what comes and goes. Where hiding would be dear the sampled
//! pages have half their share of memory to themselves, and pass through it in the order they came: what is touched again was
//! soon gone, and is seen to return. All other pages follow the candidate whose account is best, and turn as soon as the
//! difference is beyond chance.

use std::cell::Cell;
use std::fmt::Write;

use super::fifo::Fifo;
use super::sample::Sample;
use super::shadows::Shadows;
use super::swap_in_history::SwapInHistory;
use super::{Cause, Info, Leave, Policy, Space};
use crate::limits;
use crate::units::PageId;

/// With fewer pages than this in view a sample says nothing: all follow the floor. With more they follow the second
/// candidate until it says something.
const PAGES_MIN: u32 = 128;
/// Touches of sampled pages from one judgement to the next.
const JUDGE_EVERY: u32 = 16;
/// Returns in the account of the followed candidate, in times of the pages it holds there and at least so many, after
/// which all counts are halved.
const MEMORY: u32 = 8;
const MEMORY_MIN: u32 = 64;
/// Standard deviations by which, and times as many returns as which, the followed candidate must do worse. Touches do not
/// come independently of each other, so that a few are not many.
const CERTAIN: f64 = 4.0;
const MARGIN: f64 = 1.05;
/// A page is hidden when so many parts of all local memory came in after its last touch, and one for so many arrivals at
/// most, of which as many as are in a burst of so many hides can be saved up.
const HIDE_AFTER_PARTS: u32 = 8;
/// Where pages are not hidden, the sample has its share divided by this: what is touched again is sooner gone, and seen.
const SHORT: u32 = 2;
const ARRIVALS_A_HIDE: u32 = 8;
const HIDES_SAVED: u32 = 64;

/// Where a page's team and its age lie in their byte.
const TEAM: u8 = 0xf;
const AGE_SHIFT: u32 = 4;
/// In parts of local memory that came in: how much later than a page a touch of it must be to tell anything.
const AGES_A_TURN: u32 = 8;

/// The candidates; the first is the floor.
const CANDIDATES: [&str; 4] = ["swap-in-history", "lirs:ghost_percent=30", "s3-fifo", "w-tinylfu"];
const FLOOR: usize = 0;
const FIRST: usize = 1;
/// One account more, of the floor with a quarter of the pages beyond its share: what a loop that just fits costs cannot be
/// seen in a sample with its bare share, where the loop does not always fit.
const GUARD: usize = CANDIDATES.len();
/// The guard is looked at when so many of its pages are expected to have returned, had they fared as the others. When no
/// more than one of so many of them did, the floor is followed at once, and the candidate that was is barred.
const WATCH_MIN: u64 = 48;
const WATCH_FEW: u64 = 8;
/// Accounts err. Once all pages known have returned since the floor was left, and in proportion so many of a sample, the
/// floor is followed again, and all others are barred, if fewer returned in its account.
const RETURNS_MIN: f64 = 192.0;
/// The next times that is done as soon as they are fewer by so many standard deviations.
const CLEAR: f64 = 2.0;
/// Returns of all pages known after which what is counted of that is halved.
const ROUNDS_KEPT: f64 = 8.0;
/// Returns, in times of all local memory, for which one candidate and all are barred the first time; each time for twice as
/// many.
const BAR_ONE: u64 = 32;
const BAR_ALL: u64 = 8;
/// After the followers: the sample's pages, where they are a team.
const SAMPLE: usize = CANDIDATES.len();
const _: () = assert!(SAMPLE < TEAM as usize);
/// Turns that are remembered for the report.
const TURNS: usize = 8;

pub(super) const INFO: Info = Info {
    name: "auto",
    summary: "what does best with a sample of the program's own pages: swap-in-history, lirs, s3-fifo or w-tinylfu",
    source: "miniature simulation, ATC 2017, of sampled pages",
    params: &[],
    // Where page sizes are mixed, samples of single units would be in the way of choosing them, and blocks are too few to be
    // sampled; the floor is as good there as the others.
    build: |space, _| match space.block_units {
        1 => Box::new(Auto::new(space)),
        _ => Box::new(SwapInHistory::new(space.units, 1)),
    },
};

/// Pages that one policy orders.
struct Team {
    policy: Box<dyn Policy>,
    /// Pages in view.
    present: u32,
}

/// What returned since the floor was left or followed.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Of the pages that are not sampled.
    real: u32,
    /// In the account of the floor.
    floor: u32,
}

/// Who is not to be followed for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Bar {
    /// Until so many returns of all pages.
    until: u64,
    /// How often it was put up.
    times: u32,
}

impl Bar {
    fn put_up(&mut self, now: u64, returns: u64) {
        self.until = now + (returns << self.times.min(16));
        self.times += 1;
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    returns: u64,
    to: usize,
}

/// State: a byte and a bit a unit; for each of a sixteenth of the units thirteen bytes and five candidates' own state; and the
/// state for all units of those candidates that were ever followed.
pub(super) struct Auto {
    shadows: Shadows,
    /// Where pages are not hidden: those of the sample, by name. With them a page more than their share leaves first.
    sample: Team,
    hides: bool,
    which: Sample,
    /// By candidate: the pages that came in while it was followed.
    followers: Vec<Team>,
    /// By unit: the team that a page in view is with, plus one, the sample last; and in the upper half the age it came in.
    team: Vec<u8>,
    /// Ages are counted in pages that came in, an eighth of local memory each.
    age: u8,
    age_left: u32,
    /// By unit: it has been in view and was not discarded since. And how many these are, of all pages and of the sample.
    known: Vec<u64>,
    known_all: u32,
    known_sample: u32,
    arrivals: u32,
    /// Arrivals to hide pages for.
    saved: u32,
    /// Returns of all pages since the guard was last looked at, and returns in its account then.
    watched: u32,
    watched_guard: u32,
    followed: usize,
    /// Kept from so many returns on: before, pages leave that the floor chose to keep, or another.
    record: Record,
    settled_at: u64,
    /// How often a page returned under the floor for each time that one did in its account, when it was followed last.
    floor_error: f64,
    /// There are enough pages for a sample.
    samples: bool,
    full: bool,
    returns: u64,
    judge_in: u32,
    turns: [Turn; TURNS],
    turned: usize,
    /// For each candidate, and for all but the floor.
    bars: [Bar; CANDIDATES.len()],
    bar_all: Bar,
}

impl Auto {
    fn new(space: Space) -> Self {
        let build = |name: &str, units| -> Box<dyn Policy> {
            super::build(name, Space { units, ..space }).unwrap_or_else(|_| Box::new(Fifo::new(units)))
        };
        let which = Sample::of(space);
        let names = which.names();
        let accounts = CANDIDATES.iter().chain([&CANDIDATES[FLOOR]]).map(|name| build(name, names)).collect();
        let team = |policy| Team { policy, present: 0 };
        Self {
            shadows: Shadows::new(accounts, names, FIRST),
            sample: team(Box::new(Fifo::new(names))),
            hides: space.hides,
            which,
            followers: CANDIDATES.iter().map(|name| team(build(name, space.units))).collect(),
            team: vec![0; space.units as usize],
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
            record: Record::default(),
            settled_at: 0,
            floor_error: 1.0,
            samples: true,
            full: false,
            returns: 0,
            judge_in: JUDGE_EVERY,
            turns: [Turn::default(); TURNS],
            turned: 0,
            bars: [Bar::default(); CANDIDATES.len()],
            bar_all: Bar::default(),
        }
    }

    /// The name of a sampled unit.
    fn name_of(&self, page: PageId) -> Option<PageId> {
        self.which.name_of(page).filter(|_| self.samples)
    }

    fn is_known(&self, page: PageId) -> bool {
        self.known[page.0 as usize / 64] & (1 << (page.0 % 64)) != 0
    }

    fn present(&self) -> u32 {
        self.followers.iter().map(|team| team.present).sum::<u32>() + self.sample.present
    }

    /// How many of the sampled pages are in memory if they fare as all do.
    fn share(&self) -> u32 {
        (u64::from(self.present()) * u64::from(self.known_sample) / u64::from(self.known_all.max(1))) as u32
    }

    /// A page came in.
    fn grow_older(&mut self) {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.saved = (self.saved + 1).min(HIDES_SAVED * ARRIVALS_A_HIDE);
        self.age_left = self.age_left.saturating_sub(1);
        if self.age_left == 0 {
            self.age = (self.age + 1) & (u8::MAX >> AGE_SHIFT);
            self.age_left = self.present() / AGES_A_TURN + 1;
        }
    }

    /// Counts a page that came in, for the first time or again.
    fn count(&mut self, page: PageId, name: Option<PageId>, cause: Cause) {
        let again = self.is_known(page);
        if !again {
            self.known[page.0 as usize / 64] |= 1 << (page.0 % 64);
            self.known_all += 1;
            self.known_sample += u32::from(name.is_some());
        }
        // A page that was fetched ahead counts as touched: hardly any is fetched for nothing (see the gate).
        if let Some(name) = name {
            self.touched(name, cause, again);
        }
        if again {
            self.returns += 1;
            self.record.real += u32::from(name.is_none() && self.returns > self.settled_at);
            self.watch();
        }
    }

    /// A touch of a sampled page was seen.
    fn touched(&mut self, name: PageId, cause: Cause, again: bool) {
        let share = self.share();
        let more = self.known_sample.saturating_sub(share) / 4;
        let before = [GUARD, FLOOR].map(|k| self.shadows.returns(k));
        let share = |k| if k == GUARD { share + more } else { share };
        self.shadows.touched(name, cause, self.arrivals, again, share);
        self.watched_guard += self.shadows.returns(GUARD) - before[0];
        if self.returns > self.settled_at {
            self.record.floor += self.shadows.returns(FLOOR) - before[1];
        }
        self.judge_in -= u32::from(again);
        if self.judge_in == 0 {
            self.judge_in = JUDGE_EVERY;
            self.judge();
            self.compare();
        }
    }

    /// Looks whether pages return far more often than they would need to.
    fn watch(&mut self) {
        self.watched += 1;
        let expected = u64::from(self.watched) * u64::from(self.known_sample) / u64::from(self.known_all.max(1));
        if expected < WATCH_MIN || self.watched < self.present() {
            return;
        }
        if self.followed != FLOOR && u64::from(self.watched_guard) * WATCH_FEW <= expected {
            self.bars[self.followed].put_up(self.returns, BAR_ONE * u64::from(self.present()));
            self.turn_to(FLOOR);
        }
        (self.watched, self.watched_guard) = (0, 0);
    }

    fn follow(&mut self, k: usize) {
        self.followed = k;
        self.shadows.charge(k);
    }

    fn turn_to(&mut self, k: usize) {
        if k == FLOOR || self.followed == FLOOR {
            self.record = Record::default();
            self.settled_at = self.returns + u64::from(self.present());
        }
        self.follow(k);
        self.turns[self.turned % TURNS] = Turn { returns: self.returns, to: k };
        self.turned += 1;
    }

    /// Looks whether more returns than would under the floor.
    fn compare(&mut self) {
        let sampled = f64::from(self.known_sample);
        let all = f64::from(self.known_all - self.known_sample).max(1.0);
        let (real, floor) = (f64::from(self.record.real) * sampled / all, f64::from(self.record.floor));
        let would = floor * self.floor_error;
        let enough = real >= sampled.max(RETURNS_MIN);
        if self.followed == FLOOR {
            if enough {
                self.floor_error = real / floor.max(1.0);
            }
        } else {
            let clear = self.bar_all.times > 0 && real - would > CLEAR * (real + would).sqrt();
            if clear || enough && real > would {
                self.bar_all.put_up(self.returns, BAR_ALL * u64::from(self.present()));
                return self.turn_to(FLOOR);
            }
        }
        if real > ROUNDS_KEPT * sampled {
            self.record = Record { real: self.record.real / 2, floor: self.record.floor / 2 };
        }
    }

    /// Whether a candidate may be followed now.
    fn is_free(&self, k: usize) -> bool {
        k == FLOOR || self.returns >= self.bars[k].until.max(self.bar_all.until)
    }

    /// Follows another candidate when it would have done better by more than chance explains.
    fn judge(&mut self) {
        let cost = |k: usize| self.shadows.returns(k);
        let best = (0..CANDIDATES.len()).filter(|&k| self.is_free(k)).min_by_key(|&k| cost(k)).unwrap_or(FLOOR);
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

    /// Of the followers those that came in under an earlier choice leave first.
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

    /// The first time memory is full: with too few pages in it they are not sampled.
    fn filled(&mut self) {
        self.full = true;
        if self.present() >= PAGES_MIN {
            return;
        }
        for _ in 0..self.sample.present {
            let Some(page) = self.victim_of_sample(&|_| true) else { break };
            self.leave_team(page, Leave::Forgotten);
            self.join(FLOOR, page, Cause::Read);
        }
        self.samples = false;
        self.follow(FLOOR);
    }

    fn join(&mut self, k: usize, page: PageId, cause: Cause) {
        self.team[page.0 as usize] = (k as u8 + 1) | (self.age << AGE_SHIFT);
        self.followers[k].present += 1;
        self.followers[k].policy.inserted(page, cause);
    }

    fn join_sample(&mut self, page: PageId, name: PageId, cause: Cause) {
        self.team[page.0 as usize] = SAMPLE as u8 + 1;
        self.sample.present += 1;
        self.sample.policy.inserted(name, cause);
    }

    fn leave_team(&mut self, page: PageId, why: Leave) {
        let team = std::mem::take(&mut self.team[page.0 as usize]) & TEAM;
        match usize::from(team).checked_sub(1) {
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
        self.grow_older();
        let name = self.name_of(page);
        match name.filter(|_| !self.hides) {
            Some(name) => self.join_sample(page, name, cause),
            None => self.join(self.followed, page, cause),
        }
        self.count(page, name, cause);
    }

    /// Most touches of pages in view that are seen are first writes, soon after the read that brought the page: those tell
    /// nothing of what comes (correlated references: Johnson and Shasha, VLDB 1994). Touches of the sample are for the
    /// accounts only: they say no more of these pages than would be known of any.
    fn referenced(&mut self, page: PageId, write: bool) {
        if let Some(name) = self.name_of(page) {
            self.touched(name, if write { Cause::Write } else { Cause::Read }, true);
            return;
        }
        let age = self.age.wrapping_sub(self.team[page.0 as usize] >> AGE_SHIFT) & (u8::MAX >> AGE_SHIFT);
        let team = usize::from(self.team[page.0 as usize] & TEAM);
        if age > 1 && team > 0 {
            self.followers[team - 1].policy.referenced(page, write);
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.leave_team(page, why);
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
        self.followers.iter_mut().for_each(|team| team.policy.forgotten(page));
    }

    fn coming(&mut self, page: PageId) {
        self.followers[self.followed].policy.coming(page);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        if !self.full {
            self.filled();
        }
        // Several teams may be asked; together they look at no more pages than one.
        let left = Cell::new(limits::VICTIM_SCAN_MAX);
        let accept = |page: PageId| {
            left.set(left.get().saturating_sub(1));
            left.get() > 0 && accept(page)
        };
        let accept: &dyn Fn(PageId) -> bool = &accept;
        if self.sample.present > self.share() / SHORT
            && let Some(page) = self.victim_of_sample(accept)
        {
            return Some(page);
        }
        let found = self.victim_of_followers(accept);
        found.or_else(|| self.victim_of_sample(accept))
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        // Nothing was replaced yet: there is nothing to compare.
        if !self.hides || !self.samples || !self.full || self.saved < ARRIVALS_A_HIDE {
            return None;
        }
        // Nor is there while only the floor may be followed, until soon before that ends.
        if self.returns + BAR_ALL / 2 * u64::from(self.present()) < self.bar_all.until {
            return None;
        }
        let name = self.shadows.next_to_hide(self.arrivals, self.present() / HIDE_AFTER_PARTS)?;
        self.saved -= ARRIVALS_A_HIDE;
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
mod tests {
    use super::super::trial::Trial;
    use super::*;

    fn space(units: u32, hides: bool) -> Space {
        Space { units, block_units: 1, seed: 7, hides }
    }

    /// Misses of a policy in memory of this size, whose hits are seen only where it hides pages; and how many it hid.
    fn misses(name: &str, space: Space, capacity: usize, touched: &[u32]) -> (u32, u32) {
        let mut trial = Trial::new(super::super::build(name, space).unwrap(), capacity);
        trial.visible = false;
        let (mut hidden, mut hides) = (vec![false; space.units as usize], 0);
        for &page in touched {
            if std::mem::take(&mut hidden[page as usize]) && trial.holds(page) {
                trial.policy.referenced(PageId(page), false);
            }
            trial.touch(page);
            while let Some(page) = trial.policy.next_to_hide() {
                assert!(trial.holds(page.0), "{page:?} is in view");
                hidden[page.0 as usize] = true;
                hides += 1;
            }
        }
        (touched.len() as u32 - trial.hits, hides)
    }

    #[test]
    fn it_falls_back_soon_where_the_followed_policy_thrashes() {
        const CAPACITY: u32 = 1024;
        // Loops that do not fit, in which the policy followed first does best; then one that does, whose pages it refuses.
        let long = (0..30).flat_map(|_| 0..CAPACITY + CAPACITY / 2);
        let short = (0..400).flat_map(|_| 4 * CAPACITY..4 * CAPACITY + CAPACITY / 2);
        let touched: Vec<u32> = long.chain(short).collect();
        for hides in [true, false] {
            let misses = |name: &str| misses(name, space(8 * CAPACITY, hides), CAPACITY as usize, &touched).0;
            let (auto, floor, followed) = (misses("auto"), misses(CANDIDATES[FLOOR]), misses(CANDIDATES[FIRST]));
            assert!(followed > 4 * floor, "the trap is one: {followed} misses against {floor}");
            // It has most of what the first loops have to give, and pays little for finding out about the second.
            assert!(auto < floor / 2 + CAPACITY, "hides {hides}: {auto} misses against {floor}");
        }
    }

    #[test]
    fn it_falls_back_where_more_pages_return_than_in_the_floors_account() {
        // The sampled pages are touched in a loop, and while all are, half of the others return so often.
        for (often, falls_back) in [(1, false), (4, true)] {
            let mut auto = Auto::new(space(4096, true));
            let (sampled, others): (Vec<_>, Vec<_>) =
                (0..4096).map(PageId).partition(|&page| auto.name_of(page).is_some());
            let (_, returning) = others.split_at(others.len() / 2);
            others.iter().for_each(|&page| auto.inserted(page, Cause::Read));
            returning.iter().for_each(|&page| auto.removed(page, Leave::Evicted));
            sampled.iter().for_each(|&page| auto.inserted(page, Cause::Read));
            let mut sampled = sampled.iter().cycle();
            for (step, &page) in (0..4 * often).flat_map(|_| returning).enumerate() {
                auto.inserted(page, Cause::Read);
                auto.removed(page, Leave::Evicted);
                if step % (7 * often) == 0
                    && let Some(&page) = sampled.next()
                {
                    auto.referenced(page, false);
                }
            }
            assert_eq!(auto.bar_all.times > 0, falls_back, "{:?}", auto.record);
        }
    }

    #[test]
    fn few_pages_are_hidden_beside_those_that_come() {
        // A loop of three pages for two in memory; some of its pages always stay.
        let touched: Vec<u32> = (0..40).flat_map(|_| 0..1536).collect();
        let (misses, hidden) = misses("auto", space(4096, true), 1024, &touched);
        assert!(hidden > 500 && hidden <= misses / ARRIVALS_A_HIDE, "{hidden} for {misses} misses");
    }
}
