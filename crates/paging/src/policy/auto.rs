//! Auto: the policy that a duel of policies on samples of the program's own pages shows to be best.
//!
//! Of every 32 neighbouring units one, drawn at random, belongs to each candidate: that candidate alone replaces these
//! pages, within their share of local memory (set duelling: Qureshi et al., ISCA 2007, with pages in place of cache sets).
//! What a page costs under each candidate is so measured, not simulated: it is how often it had to come back. All other
//! pages follow the candidate that does best. Misjudging costs the samples' share, a thirty-second of the difference a
//! candidate, and the followers turn as soon as the difference is beyond chance.

use std::cell::Cell;
use std::fmt::Write;

use super::swap_in_history::SwapInHistory;
use super::{Cause, Info, Leave, Policy, Space};
use crate::limits;
use crate::units::PageId;

/// Units of which each candidate has one.
const RUN: u32 = 32;
/// With fewer pages than this in view samples say nothing: all follow the first candidate.
const PAGES_MIN: u32 = 128;
/// With so many the samples tell within a turn or two of all memory: until then all follow the floor. With fewer it would
/// take many turns, and the second candidate is the better guess.
const PAGES_MANY: u32 = 4096;
/// Returns of pages from one judgement to the next.
const JUDGE_EVERY: u32 = 64;
/// Turns that are remembered for the report.
const TURNS: usize = 8;
/// A sample whose pages return so many times as often as the others, and a few more, is given up for a while: a loop that
/// fits into memory need not fit into the sample's share, and then returns without end.
const THRASHING: u64 = 4;
const THRASHING_MIN: u64 = 32;
/// Returns, in times of all local memory, for which a sample is given up the first time; each time twice as many.
const REST: u64 = 8;
/// Standard deviations by which, and times as many returns as which, the followed candidate must do worse.
const CERTAIN: f64 = 2.0;
const MARGIN: f64 = 1.05;

/// Where a page's team and its age lie in their byte.
const TEAM: u8 = 0xf;
const AGE_SHIFT: u32 = 4;
/// In parts of local memory that came in: how much later than a page a touch of it must be to tell anything.
const AGES_A_TURN: u32 = 8;

/// The candidates; the first is the floor.
const CANDIDATES: [&str; 4] = ["swap-in-history", "lirs:ghost_percent=30", "s3-fifo", "w-tinylfu"];
const FLOOR: usize = 0;
const FIRST: usize = 1;
/// One sample more, with the floor's policy and a quarter more of its pages in memory than its share allows: what a loop
/// that just fits costs cannot be seen in a sample with its bare share, where the loop does not always fit.
const GUARD: usize = CANDIDATES.len();
const SAMPLES: usize = CANDIDATES.len() + 1;
const _: () = assert!(SAMPLES + CANDIDATES.len() < TEAM as usize);
/// Of every turn of local memory in returns, or so many if those are more, the guard's pages have a thirty-second when they
/// fare as the others do. When they have no more than a twenty-fourth of that, which chance explains once in a million
/// times, the floor is followed at once.
const WATCH_MIN: u32 = 768;
const WATCH_FEW: u32 = RUN * 24;

pub(super) const INFO: Info = Info {
    name: "auto",
    summary: "what duels on samples of the program's own pages show best: swap-in-history, lirs, s3-fifo, w-tinylfu",
    source: "set duelling, ISCA 2007, on samples of pages",
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
    /// Pages that have been in view and were not discarded since.
    known: u32,
    /// Returns of such pages, halved now and then.
    returns: u32,
    /// For samples: until so many returns everywhere it is given up, and how often that was so.
    rests_until: u64,
    rests: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    returns: u64,
    to: usize,
}

/// State: a byte and a bit a unit, the candidates' own state for a thirty-second of the units each, and that of those
/// candidates for all units that were ever followed.
pub(super) struct Auto {
    /// By candidate: its sample.
    samples: Vec<Team>,
    /// By candidate: the pages that came in while it was followed.
    followers: Vec<Team>,
    /// By unit: the team that a page in view is with, plus one, samples first; and in the upper half the age it came in.
    team: Vec<u8>,
    /// Ages are counted in pages that came in, an eighth of local memory each.
    age: u8,
    age_left: u32,
    known: Vec<u64>,
    /// Returns of all pages, and of the guard's, since the guard was last looked at.
    watched: u32,
    watched_guard: u32,
    salt: u64,
    followed: usize,
    /// There are enough pages for samples.
    duels: bool,
    full: bool,
    returns: u64,
    judge_in: u32,
    turns: [Turn; TURNS],
    turned: usize,
    /// Until so many returns the floor is followed whatever the samples show, and how often that was so.
    stay_until: u64,
    flights: u32,
}

impl Auto {
    fn new(space: Space) -> Self {
        let team = |name: &str, units| {
            let policy = super::build(name, Space { units, ..space });
            let policy = policy.unwrap_or_else(|_| Box::new(super::fifo::Fifo::new(units)));
            Team { policy, present: 0, known: 0, returns: 0, rests_until: 0, rests: 0 }
        };
        let units = space.units as usize;
        Self {
            samples: CANDIDATES
                .iter()
                .chain([&CANDIDATES[FLOOR]])
                .map(|name| team(name, space.units.div_ceil(RUN)))
                .collect(),
            followers: CANDIDATES.iter().map(|name| team(name, space.units)).collect(),
            team: vec![0; units],
            age: 0,
            age_left: 0,
            known: vec![0; units.div_ceil(64)],
            watched: 0,
            watched_guard: 0,
            salt: space.seed,
            followed: FIRST,
            duels: true,
            full: false,
            returns: 0,
            judge_in: JUDGE_EVERY,
            turns: [Turn::default(); TURNS],
            turned: 0,
            stay_until: 0,
            flights: 0,
        }
    }

    /// The candidate that replaces a unit as one of its sample.
    fn sample_of(&self, unit: u32) -> Option<usize> {
        self.home_of(unit).filter(|&k| self.duels && !self.rests(k))
    }

    fn rests(&self, k: usize) -> bool {
        self.samples[k].rests_until > self.returns
    }

    /// The candidate whose sample a unit belongs to, given up or not.
    fn home_of(&self, unit: u32) -> Option<usize> {
        (0..SAMPLES).find(|&k| unit % RUN == place(unit / RUN, k, self.salt))
    }

    /// The team of a page in view, and the page's name there.
    fn team_of(&mut self, page: PageId) -> Option<(&mut Team, PageId)> {
        let index = usize::from(self.team[page.0 as usize] & TEAM).checked_sub(1)?;
        Some(match index.checked_sub(SAMPLES) {
            None => (&mut self.samples[index], PageId(page.0 / RUN)),
            Some(index) => (&mut self.followers[index], page),
        })
    }

    fn is_known(&self, page: PageId) -> bool {
        self.known[page.0 as usize / 64] & (1 << (page.0 % 64)) != 0
    }

    fn known_everywhere(&self) -> u32 {
        self.samples.iter().chain(&self.followers).map(|team| team.known).sum()
    }

    fn present_everywhere(&self) -> u32 {
        self.samples.iter().chain(&self.followers).map(|team| team.present).sum()
    }

    /// A page came in.
    fn grow_older(&mut self) {
        self.age_left = self.age_left.saturating_sub(1);
        if self.age_left == 0 {
            self.age = (self.age + 1) & (u8::MAX >> AGE_SHIFT);
            self.age_left = self.present_everywhere() / AGES_A_TURN + 1;
        }
    }

    /// Counts a page that came in: for the first time, or again.
    fn count(&mut self, page: PageId) {
        let home = self.home_of(page.0);
        let again = self.is_known(page);
        self.known[page.0 as usize / 64] |= 1 << (page.0 % 64);
        let team = match home {
            Some(k) => &mut self.samples[k],
            None => &mut self.followers[FLOOR],
        };
        if !again {
            team.known += 1;
            // Not full yet: nothing was chosen before, and what was followed until now has few pages of many.
            if !self.full && self.present_everywhere() == PAGES_MANY {
                self.followed = FLOOR;
            }
            return;
        }
        team.returns += 1;
        self.returns += 1;
        if !self.duels {
            return;
        }
        if let Some(k) = home.filter(|&k| !self.rests(k) && self.thrashes(k)) {
            self.give_up(k);
        }
        self.watch(home);
        self.judge_in -= 1;
        if self.judge_in == 0 {
            self.judge_in = JUDGE_EVERY;
            self.judge();
        }
    }

    /// What a sample's returns would be if it were as the followers are.
    fn expected(&self, k: usize) -> u64 {
        let all = &self.followers[FLOOR];
        u64::from(all.returns) * u64::from(self.samples[k].known) / u64::from(all.known.max(1))
    }

    fn thrashes(&self, k: usize) -> bool {
        k != GUARD && u64::from(self.samples[k].returns) > THRASHING * self.expected(k) + THRASHING_MIN
    }

    /// Looks whether pages return far more often than they would need to.
    fn watch(&mut self, home: Option<usize>) {
        self.watched += 1;
        self.watched_guard += u32::from(home == Some(GUARD));
        if self.watched < WATCH_MIN.max(self.present_everywhere()) {
            return;
        }
        if self.followed != FLOOR && self.watched_guard <= self.watched / WATCH_FEW {
            self.flee();
        }
        (self.watched, self.watched_guard) = (0, 0);
    }

    /// Follows the floor, and stays there for a while.
    fn flee(&mut self) {
        self.stay_until = self.returns + ((REST * u64::from(self.present_everywhere())) << self.flights.min(16));
        self.flights += 1;
        self.turn_to(FLOOR);
        self.followers[FLOOR].returns = 0;
    }

    fn turn_to(&mut self, k: usize) {
        self.followed = k;
        self.turns[self.turned % TURNS] = Turn { returns: self.returns, to: k };
        self.turned += 1;
    }

    /// Hands a sample's pages to the followers for a while.
    fn give_up(&mut self, k: usize) {
        let memory = u64::from(self.present_everywhere());
        let team = &mut self.samples[k];
        team.rests_until = self.returns + ((REST * memory) << team.rests.min(16));
        team.rests += 1;
        self.hand_over(k);
        // It begins anew as one of the others.
        self.samples[k].returns = self.expected(k) as u32;
    }

    /// Moves the pages of a sample that rests, or is not wanted, to the followers.
    fn hand_over(&mut self, k: usize) {
        for _ in 0..self.samples[k].present {
            let Some(page) = self.victim_of_sample(k, &|_| true) else { break };
            self.removed(page, Leave::Forgotten);
            self.inserted(page, Cause::Read);
        }
    }

    /// Follows another candidate when its sample did better by more than chance explains.
    fn judge(&mut self) {
        let cost = |k: usize| {
            let team = &self.samples[k];
            // As if all samples were as large as the first.
            f64::from(team.returns) * f64::from(self.samples[FLOOR].known.max(1)) / f64::from(team.known.max(1))
        };
        let duelling = (0..CANDIDATES.len()).filter(|&k| k == self.followed || !self.rests(k));
        let best = duelling.min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(FLOOR);
        let (now, then) = (cost(self.followed), cost(best));
        let free = self.returns >= self.stay_until;
        if free && best != self.followed && now - then > CERTAIN * (now + then).sqrt() && now > MARGIN * then {
            self.turn_to(best);
        }
        // What is long ago counts less: half after about four turns of all local memory.
        let memory = 4 * self.present_everywhere() / RUN;
        if self.samples.iter().map(|team| team.returns).max() > Some(memory.max(4 * JUDGE_EVERY)) {
            self.samples.iter_mut().for_each(|team| team.returns /= 2);
            self.followers[FLOOR].returns /= 2;
        }
    }

    /// The sample that has most more than its share of the pages in view, if it has.
    fn over_its_share(&self) -> Option<usize> {
        let (present, known) = (u64::from(self.present_everywhere()), u64::from(self.known_everywhere()).max(1));
        let excess = |(k, team): (usize, &Team)| {
            let share = present * u64::from(team.known) / known;
            let more = if k == GUARD { u64::from(team.known).saturating_sub(share) / 4 } else { 0 };
            let share = share + more;
            i64::from(team.present) - share.max(2) as i64
        };
        let (most, over) =
            self.samples.iter().enumerate().map(excess).enumerate().max_by_key(|&(_, over)| over).unwrap_or((0, 0));
        (over > 0).then_some(most)
    }

    fn victim_of_sample(&mut self, k: usize, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let Self { samples, salt, .. } = self;
        let page = |run: PageId| PageId(run.0 * RUN + place(run.0, k, *salt));
        samples[k].policy.victim(&|run| accept(page(run))).map(page)
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

    /// The first time memory is full: with too few pages in it the samples are given up.
    fn filled(&mut self) {
        self.full = true;
        if self.present_everywhere() < PAGES_MIN {
            self.duels = false;
            self.followed = FLOOR;
            (0..SAMPLES).for_each(|k| self.hand_over(k));
        }
    }
}

/// Which unit of a run is a sample's: one draw for the first candidate, the others a fixed odd step on, so that they are
/// distinct and each as likely everywhere.
fn place(run: u32, k: usize, salt: u64) -> u32 {
    let mut x = (u64::from(run) ^ salt.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 32;
    (x as u32 % RUN + 5 * k as u32) % RUN
}

impl Policy for Auto {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        let sample = self.sample_of(page.0);
        let index = sample.unwrap_or(SAMPLES + self.followed);
        self.grow_older();
        self.team[page.0 as usize] = (index as u8 + 1) | (self.age << AGE_SHIFT);
        if let Some((team, page)) = self.team_of(page) {
            team.present += 1;
            team.policy.inserted(page, cause);
        }
        self.count(page);
    }

    /// Most touches of pages in view that are seen are first writes, soon after the read that brought the page: those tell
    /// nothing of what comes (correlated references: Johnson and Shasha, VLDB 1994).
    fn referenced(&mut self, page: PageId, write: bool) {
        let age = self.age.wrapping_sub(self.team[page.0 as usize] >> AGE_SHIFT) & (u8::MAX >> AGE_SHIFT);
        if age > 1
            && let Some((team, page)) = self.team_of(page)
        {
            team.policy.referenced(page, write);
        }
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        if let Some((team, name)) = self.team_of(page) {
            team.present -= 1;
            team.policy.removed(name, why);
        }
        self.team[page.0 as usize] = 0;
        if why == Leave::Forgotten {
            self.forgotten(page);
        }
    }

    fn forgotten(&mut self, page: PageId) {
        if !self.is_known(page) {
            return;
        }
        self.known[page.0 as usize / 64] &= !(1 << (page.0 % 64));
        let home = self.home_of(page.0);
        let counted = home.map_or(&mut self.followers[FLOOR], |k| &mut self.samples[k]);
        counted.known = counted.known.saturating_sub(1);
        if let Some(k) = home {
            self.samples[k].policy.forgotten(PageId(page.0 / RUN));
        }
        self.followers.iter_mut().for_each(|team| team.policy.forgotten(page));
    }

    fn coming(&mut self, page: PageId) {
        match self.sample_of(page.0) {
            Some(k) => self.samples[k].policy.coming(PageId(page.0 / RUN)),
            None => self.followers[self.followed].policy.coming(page),
        }
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        if !self.full {
            self.filled();
        }
        // Several candidates may be asked; together they look at no more pages than one.
        let left = Cell::new(limits::VICTIM_SCAN_MAX);
        let accept = |page: PageId| {
            left.set(left.get().saturating_sub(1));
            left.get() > 0 && accept(page)
        };
        let accept: &dyn Fn(PageId) -> bool = &accept;
        if let Some(k) = self.over_its_share()
            && let Some(page) = self.victim_of_sample(k, accept)
        {
            return Some(page);
        }
        let found = self.victim_of_followers(accept);
        found.or_else(|| (0..SAMPLES).find_map(|k| self.victim_of_sample(k, accept)))
    }

    fn describe(&self, out: &mut dyn Write) -> std::fmt::Result {
        write!(out, "following {}", CANDIDATES[self.followed])?;
        let turns = self.turned.min(TURNS);
        for turn in (self.turned - turns..self.turned).map(|index| self.turns[index % TURNS]) {
            write!(out, ", {} from return {} on", CANDIDATES[turn.to], turn.returns)?;
        }
        if !self.duels {
            return write!(out, " (too few pages in memory to compare)");
        }
        write!(out, "; returns a page lately:")?;
        for (name, team) in CANDIDATES.iter().zip(&self.samples) {
            write!(out, " {name} {:.2}", f64::from(team.returns) / f64::from(team.known.max(1)))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::trial::Trial;
    use super::*;

    #[test]
    fn units_and_their_names_in_samples_belong_together() {
        let mut auto = Auto::new(Space { units: 4000, block_units: 1, seed: 7 });
        let mut sampled = [0; SAMPLES];
        for unit in 0..4000 {
            auto.inserted(PageId(unit), Cause::Read);
            if let Some(k) = auto.home_of(unit) {
                sampled[k] += 1;
            }
        }
        assert_eq!(sampled, [4000 / RUN; SAMPLES]);
        for (k, sampled) in sampled.iter_mut().enumerate() {
            while let Some(page) = auto.victim_of_sample(k, &|_| true) {
                assert_eq!(auto.home_of(page.0), Some(k));
                auto.removed(page, Leave::Evicted);
                *sampled -= 1;
            }
        }
        assert_eq!(sampled, [0; SAMPLES]);
    }

    #[test]
    fn it_falls_back_soon_where_the_followed_policy_thrashes() {
        const CAPACITY: u32 = 1024;
        let space = Space { units: 8 * CAPACITY, block_units: 1, seed: 1 };
        let trial = |name: &str| {
            let mut trial = Trial::new(super::super::build(name, space).unwrap(), CAPACITY as usize);
            trial.visible = false;
            trial
        };
        // Loops that do not fit, in which the policy followed first does best; then one that does, whose pages it refuses.
        let long = (0..30).flat_map(|_| 0..CAPACITY + CAPACITY / 2);
        let short = (0..400).flat_map(|_| 4 * CAPACITY..4 * CAPACITY + CAPACITY / 2);
        let touched: Vec<u32> = long.chain(short).collect();
        let misses = |name: &str| {
            touched.len() as u32 - {
                let mut trial = trial(name);
                trial.victims(&touched);
                trial.hits
            }
        };
        let (auto, floor, followed) = (misses("auto"), misses(CANDIDATES[FLOOR]), misses(CANDIDATES[FIRST]));
        assert!(followed > 4 * floor, "the trap is one: {followed} misses against {floor}");
        // It has most of what the first loops have to give, and pays little for finding out about the second.
        assert!(auto < floor / 2 + CAPACITY, "{auto} misses against {floor}");
    }
}
