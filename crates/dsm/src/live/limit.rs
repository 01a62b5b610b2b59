//! Limits the memory of a rank: carries out the pager's decisions about shared pages on the region.
//!
//! The pager ([`Pager`]) decides which pages leave memory, which are fetched ahead, and how many stay. To the pager, a
//! page is resident while it has memory. Coherence alone decides what the program may access. Pages have two kinds, and
//! the kind counts before the replacement policy ([`ByKind`], SSS-CORE's method 3). Copies exist at their homes too, so
//! they are just dropped. Home pages are sole or master copies. They are written to the backing store unless it holds
//! the same bytes, and fetched again when any rank needs them. Twins are no part of the pager's budget.
//!
//! Some pages must stay: pages with a twin, pages that a peer has pinned ([`Gates`]), pages that one action needs
//! together, and the pages that arrived or were accessed last. The pager does not learn of writes, so it assumes that
//! each home page was written. When the page is evicted, its pin word says whether it really was written.
//!
//! A drop of a copy is an event of the coherence machine, so copies are dropped only between the machine's events.
//! Therefore memory is brought below the limit before pages come in. Only pages that must stay may exceed the limit.

use hanare_paging::kinds::{ByKind, Kind};
use hanare_paging::prefetch::Prefetcher;
use hanare_paging::{
    Action, Actions, Bytes, Class, Config, ConfigError, Event, Geometry, PageId, Pager, Progress, Source, State, limits,
};
use hanare_store::StoreError;
use hanare_sys::Errno;
use hanare_sys::clock::now_ns;

use super::away::Away;
use super::gates::Gates;
use super::region::{PAGE, Region};
use crate::coherence::{PageSet, Run, runs_of};

/// Maximum number of never-used pages that one access opens, including the accessed page.
const AROUND_MAX: usize = 64;
/// Maximum number of pages kept free between events. They are needed because no copy can be dropped during an event.
const SPARE_MAX: usize = 128;
/// Maximum number of pages that the pager keeps free by itself if it does not fetch ahead.
const PAGER_SPARE: usize = 8;
/// Number of most recently accessed pages that stay in memory under every policy. So all pages that one instruction
/// accesses are in memory together.
const RECENT: usize = 8;
/// Bounds on the number of most recently fetched copies that stay in memory: normally a quarter of the limit.
const FRESH: [usize; 2] = [4, 16];

/// The reason why pages could not be moved.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The trapped mapping could not be changed.
    #[error("cannot change the view of shared pages: {}; free memory", std::io::Error::from_raw_os_error(.0.0))]
    View(Errno),
    /// The backing store failed.
    #[error(transparent)]
    Away(#[from] StoreError<'static>),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Trouble::View(errno)
    }
}

impl Trouble {
    /// Returns the exit code for the error.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            Trouble::View(_) => super::fatal::EXIT_LOST,
            Trouble::Away(error) => error.exit_code(),
        }
    }
}

/// Numbers of pages moved to and from the backing store.
#[derive(Clone, Copy, Default, Debug)]
pub struct Moved {
    /// Home pages evicted from memory.
    pub out: u64,
    /// Evicted home pages that were written to the backing store.
    pub written: u64,
    /// Pages fetched from the backing store.
    pub back: u64,
    /// Maximum number of pages that were in memory at the same time, including twins.
    pub peak: u64,
}

pub(super) struct Limit {
    pages_max: usize,
    /// Number of pages that are kept free between two events.
    spare: usize,
    pub(super) gates: Gates,
    away: Away,
    pager: Pager,
    /// The actions for one event (`actions`), those to be carried out (`to_do`), and those being carried out (`doing`).
    actions: Actions,
    to_do: Vec<Action>,
    doing: Vec<Action>,
    /// Pages whose kind is "copy" in the pager.
    copies: PageSet,
    /// Copies that the pager evicts. The engine drops them between events, then calls [`Self::dropped`].
    pub(super) dropping: Vec<u32>,
    /// Pages that one action needs together, so that they stay in memory.
    needed: Vec<u32>,
    recent: Last,
    fresh: Last,
    /// Whether no page may be evicted now: while pages are forgotten, and in the first attempt to bring pages in.
    keeps_all: bool,
    /// Pages that came into memory for the last access.
    came: Vec<u32>,
    /// Invalidated copies that a peer still reads, because this rank was their home. Their memory is freed later.
    leaving: Vec<u32>,
    pub(super) moved: Moved,
}

impl Limit {
    /// Makes a limit of `bytes` bytes for a region of `pages` pages.
    ///
    /// # Errors
    /// The region has more pages than a pager can manage.
    pub(super) fn new(
        bytes: u64,
        pages: u32,
        (gates, away): (Gates, Away),
        (policy, prefetcher): (ByKind, Box<dyn Prefetcher>),
    ) -> Result<Self, ConfigError> {
        let pages_max = (bytes / PAGE as u64) as usize;
        // Pages are copied to and from the backing store. For reference sampling they are unmapped in place.
        let class = Class { moves: false, frames: 0 };
        let config = Config {
            geometry: Geometry { units: pages, unit_bytes: PAGE as u32, block_units: 1 },
            budget_units: u32::try_from(pages_max).unwrap_or(u32::MAX).max(limits::BUDGET_PAGES_MIN),
            small: class,
            wide: class,
            direct: true,
            hides_in_place: true,
            ahead_units: 0,
        };
        let pager = Pager::new(&config, Box::new(policy), prefetcher)?;
        let mut limit = Self {
            pages_max,
            spare: (pages_max / 16).clamp(2, SPARE_MAX),
            gates,
            away,
            pager,
            actions: Actions::new(),
            to_do: Vec::new(),
            doing: Vec::new(),
            copies: PageSet::default(),
            dropping: Vec::new(),
            needed: Vec::new(),
            recent: Last::new(RECENT),
            fresh: Last::new((pages_max / 4).clamp(FRESH[0], FRESH[1])),
            keeps_all: false,
            came: Vec::new(),
            leaving: Vec::new(),
            moved: Moved::default(),
        };
        limit.pager.step(Event::Hold { kind: Kind::SharedCopy, on: true }, &mut limit.actions);
        Ok(limit)
    }

    /// Checks the memory servers from time to time. At each check the pager also does the work that it has put off.
    pub(super) fn look(&mut self, region: &mut Region) -> Result<(), Trouble> {
        if self.away.look()? {
            self.step(region, Event::Tick { now_ms: now_ns() / 1_000_000 })?;
        }
        Ok(())
    }

    /// Closes the backing store. No page of the region is needed any more.
    pub(super) fn close(&self) {
        self.away.close();
    }

    /// Returns whether a page's bytes are in memory.
    pub(super) fn is_in(&self, page: u32) -> bool {
        matches!(self.pager.state_of(page), State::Resident | State::Staged)
    }

    /// Returns whether more pages are in memory than the limit allows, because all of them must stay.
    pub(super) fn is_exceeded(&self, region: &Region) -> bool {
        region.pages_held() > self.pages_max
    }

    /// Returns whether twins use too much memory. They do if the limit is exceeded although all pages that may leave
    /// have left. They also do if little memory is free and twins use more than a quarter of the limit.
    pub(super) fn lacks_room(&self, region: &Region) -> bool {
        let held = region.pages_held();
        held > self.pages_max || held + 2 * self.spare > self.pages_max && region.twins_held() > self.pages_max / 4
    }

    // ---- the pager --------------------------------------------------------------------------------------------------

    /// Passes an event to the pager, and carries out the pager's actions until none are left.
    fn step(&mut self, region: &mut Region, event: Event) -> Result<Progress, Trouble> {
        let progress = self.tell(region, event);
        self.carry_out(region)?;
        Ok(progress)
    }

    fn tell(&mut self, region: &Region, event: Event) -> Progress {
        let Self { pager, actions, gates, needed, recent, fresh, keeps_all, .. } = self;
        let stays = |PageId(page): PageId| {
            let is_needed = needed.contains(&page) || recent.contains(page) || fresh.contains(page);
            *keeps_all || is_needed || region.has_twin(page) || gates.is_pinned(page)
        };
        actions.clear();
        let progress = pager.step_keeping(event, actions, &stays);
        self.to_do.extend_from_slice(self.actions.as_slice());
        progress
    }

    fn carry_out(&mut self, region: &mut Region) -> Result<(), Trouble> {
        while !self.to_do.is_empty() {
            self.doing.clear();
            std::mem::swap(&mut self.to_do, &mut self.doing);
            let (mut released, mut out, mut zeroes, mut stored) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for index in 0..self.doing.len() {
                match self.doing[index] {
                    Action::TakeOut { page, bytes, .. } => out.push((page.0, bytes)),
                    Action::Fetch { page, count, source, .. } => {
                        let pages = if source == Source::Server { &mut stored } else { &mut zeroes };
                        pages.extend(page.0..page.0 + count);
                    }
                    Action::Hide { page, .. } => {
                        if region.is_shown(page.0) {
                            region.hide(Run { first: page.0, count: 1 })?;
                        }
                        self.tell(region, Event::Hidden { page, ok: true });
                    }
                    // The page does not become accessible here, because coherence decides what the program may access.
                    Action::Show { page, .. } => self.arrived(region, Run { first: page.0, count: 1 }),
                    Action::Release { unit, count } => released.extend(unit..unit + count),
                    Action::Wake { .. } => {}
                    Action::Open { .. }
                    | Action::Install { .. }
                    | Action::WriteBack { .. }
                    | Action::FreeFrame { .. } => {
                        debug_assert!(false, "there are no frames, and no page is clean that the program may write");
                    }
                }
            }
            runs_of(&mut released).into_iter().try_for_each(|run| self.away.forget(run))?;
            self.take_out(region, &out)?;
            self.fetch(region, &mut stored, zeroes)?;
        }
        Ok(())
    }

    /// Tells the pager that the pages of a run are in memory. The pages are all copies, or all home pages. A home page
    /// may have been written already: by a peer, or by the program if coherence needs no trap for that.
    fn arrived(&mut self, region: &Region, run: Run) {
        let certain = self.copies.contains(run.first);
        self.tell(region, Event::Arrived { page: PageId(run.first), count: run.count, certain, ok: true });
    }

    fn fetch(&mut self, region: &mut Region, stored: &mut Vec<u32>, mut zeroes: Vec<u32>) -> Result<(), Trouble> {
        stored.sort_unstable();
        region.fetch(&mut self.away, stored)?;
        self.moved.back += stored.len() as u64;
        zeroes.retain(|&page| {
            let is_copy = self.copies.contains(page);
            if is_copy {
                // The caller writes the copy's bytes.
                region.came(page);
                self.arrived(region, Run { first: page, count: 1 });
            }
            !is_copy
        });
        stored.extend(zeroes);
        for run in runs_of(stored) {
            region.hold(run)?;
            run.pages().for_each(|page| self.gates.open(page));
            self.came.extend(run.pages());
            self.arrived(region, run);
        }
        self.moved.peak = self.moved.peak.max(region.pages_held() as u64);
        Ok(())
    }

    /// Evicts pages, and tells the pager for each page whether the page has left memory.
    fn take_out(&mut self, region: &mut Region, pages: &[(u32, Bytes)]) -> Result<(), Trouble> {
        let (mut gone, mut written) = (Vec::new(), Vec::new());
        for &(page, bytes) in pages {
            match self.copies.contains(page) {
                // The pager forgets the page. The caller frees its memory.
                is_copy if self.keeps_all => {
                    if !is_copy {
                        self.gates.retire(page);
                    }
                    self.taken_out(region, page, true, false);
                }
                true => self.dropping.push(page),
                // The page is first closed to peers and then unmapped from the program. So nobody writes to the page.
                false => match self.gates.close(page) {
                    Some(is_written) => gone.push((page, bytes, is_written)),
                    // A peer has pinned the page, so it stays.
                    None => self.taken_out(region, page, false, false),
                },
            }
        }
        let runs = runs_of(&mut gone.iter().map(|&(page, ..)| page).collect());
        runs.iter().try_for_each(|&run| region.hide(run))?;
        for (page, bytes, is_written) in &mut gone {
            // A page of zeroes that the backing store does not hold need not be written.
            *is_written &= *bytes != Bytes::MaybeZero || !region.is_zero(*page);
            debug_assert!(matches!(bytes, Bytes::Unknown | Bytes::MaybeZero), "a page at home is written on a guess");
            written.extend(is_written.then_some(*page));
        }
        self.moved.out += gone.len() as u64;
        self.moved.written += written.len() as u64;
        runs_of(&mut written).into_iter().try_for_each(|run| region.put(&mut self.away, run))?;
        runs.iter().try_for_each(|&run| region.release(run))?;
        gone.into_iter().for_each(|(page, _, is_written)| self.taken_out(region, page, true, is_written));
        Ok(())
    }

    fn taken_out(&mut self, region: &Region, page: u32, ok: bool, changed: bool) {
        self.tell(region, Event::TakenOut { page: PageId(page), ok, changed });
    }

    /// Makes the pager forget pages. The caller frees their memory.
    pub(super) fn forget(&mut self, region: &mut Region, run: Run) -> Result<(), Trouble> {
        self.keeps_all = true;
        let Run { mut first, count } = run;
        let end = first + count;
        while first < end {
            first = match self.step(region, Event::Discard { first, end })? {
                Progress::Done => end,
                Progress::Continue(next) => next,
                // The engine is dropping this page, so it is skipped.
                Progress::Busy(page) => page + 1,
            };
        }
        self.keeps_all = false;
        Ok(())
    }

    /// Sets the pager's budget to the part of the limit that twins and `more` further pages do not use.
    fn fit(&mut self, region: &mut Region, more: usize) -> Result<(), Trouble> {
        let others = region.pages_held().saturating_sub(self.pager.local_units() as usize);
        let units = u32::try_from(self.pages_max.saturating_sub(others + more)).unwrap_or(u32::MAX);
        if units.max(limits::BUDGET_PAGES_MIN) != self.pager.budget_units() {
            self.step(region, Event::Budget { units })?;
        }
        Ok(())
    }

    // ---- coming in --------------------------------------------------------------------------------------------------

    /// Brings home pages into memory if they are not there. `pages` is in ascending order.
    pub(super) fn bring_in(&mut self, region: &mut Region, pages: &[u32]) -> Result<(), Trouble> {
        self.bring_in_as(region, pages, false)
    }

    /// Makes room for a copy and counts the copy as in memory. The copy's bytes may already be in its page.
    pub(super) fn copy_comes(&mut self, region: &mut Region, page: u32) -> Result<(), Trouble> {
        self.fresh.note(page);
        self.bring_in_as(region, &[page], true)
    }

    fn bring_in_as(&mut self, region: &mut Region, pages: &[u32], are_copies: bool) -> Result<(), Trouble> {
        self.came.clear();
        if pages.iter().all(|&page| self.is_in(page)) {
            return Ok(());
        }
        self.needed.extend(pages);
        self.fit(region, 0)?;
        // Usually there is room, because some pages are kept free between events. So the first attempt evicts nothing.
        self.keeps_all = true;
        for &page in pages {
            if !self.is_in(page) {
                self.set_kind(region, page, are_copies);
                self.tell(region, Event::Fault { unit: page, write: false });
            }
        }
        self.carry_out(region)?;
        self.keeps_all = false;
        // If pages are missing, the first turn evicts others. If that is not enough, the second exceeds the limit.
        for is_last in [false, true] {
            let missing = pages.iter().filter(|&&page| !self.is_in(page)).count() as u32;
            if missing > 0 {
                let all = self.pager.local_units() + missing;
                let units = if is_last { all } else { self.pager.budget_units() };
                self.step(region, Event::Budget { units })?;
            }
        }
        debug_assert!(pages.iter().all(|&page| self.is_in(page)), "{pages:?} are in");
        self.needed.clear();
        Ok(())
    }

    fn set_kind(&mut self, region: &Region, page: u32, is_copy: bool) {
        let is_new = if is_copy { self.copies.insert(page) } else { self.copies.remove(page) };
        if is_new {
            let kind = if is_copy { Kind::SharedCopy } else { Kind::LastShared };
            self.tell(region, Event::Kind { unit: page, kind });
        }
    }

    /// Notes that a page was accessed. The policy learns of the access if the page was unmapped for reference sampling.
    pub(super) fn seen(&mut self, region: &mut Region, page: u32) -> Result<(), Trouble> {
        self.recent.note(page);
        if self.pager.state_of(page) == State::Staged {
            self.step(region, Event::Fault { unit: page, write: false })?;
        }
        Ok(())
    }

    /// Brings an accessed home page into memory. Returns it with other pages to make accessible, for which `alike`
    /// holds: pages that came in with it, or never-used pages behind a page that was never used.
    pub(super) fn bring_in_with(
        &mut self,
        region: &mut Region,
        page: u32,
        alike: impl Fn(&Region, u32) -> bool,
    ) -> Result<Vec<Run>, Trouble> {
        if self.pager.state_of(page) == State::Untouched {
            let most = (self.spare / 2).min(AROUND_MAX) as u32;
            let end = page - page % most + most;
            let is_new = |&next: &u32| alike(region, next) && self.pager.state_of(next) == State::Untouched;
            let run = Run { first: page, count: 1 + (page + 1..end).take_while(is_new).count() as u32 };
            self.bring_in(region, &run.pages().collect::<Vec<_>>())?;
            return Ok(vec![run]);
        }
        self.bring_in(region, &[page])?;
        let mut shown = vec![page];
        shown.extend(self.came.iter().copied().filter(|&next| next != page && self.is_in(next) && alike(region, next)));
        Ok(runs_of(&mut shown))
    }

    /// Makes room for a twin.
    pub(super) fn twin_comes(&mut self, region: &mut Region) -> Result<(), Trouble> {
        if region.pages_held() >= self.pages_max {
            self.fit(region, 1)?;
        }
        self.moved.peak = self.moved.peak.max(region.pages_held() as u64 + 1);
        Ok(())
    }

    /// Makes room, between events, for the pages that come next. Drops copies only if `may_drop` is true.
    pub(super) fn make_spare_room(&mut self, region: &mut Region, may_drop: bool) -> Result<(), Trouble> {
        if region.pages_held() + self.spare <= self.pages_max {
            return Ok(());
        }
        let hold = |on| Event::Hold { kind: Kind::SharedCopy, on };
        self.step(region, hold(!may_drop))?;
        // The pager itself keeps some of the spare pages free.
        self.fit(region, self.spare - (self.spare / 2).min(PAGER_SPARE))?;
        self.step(region, hold(true))?;
        Ok(())
    }

    /// Tells the pager whether the engine could drop a copy.
    pub(super) fn dropped(&mut self, region: &mut Region, page: u32, ok: bool) -> Result<(), Trouble> {
        self.taken_out(region, page, ok, false);
        self.carry_out(region)
    }

    // ---- homes and copies -------------------------------------------------------------------------------------------

    /// Notes that a copy in memory became the master copy.
    pub(super) fn adopted(&mut self, region: &mut Region, page: u32) -> Result<(), Trouble> {
        self.forget(region, Run { first: page, count: 1 })?;
        self.gates.mark_written(page);
        self.bring_in(region, &[page])
    }

    /// Notes that a home page in memory became a copy.
    pub(super) fn given_away(&mut self, region: &mut Region, page: u32) -> Result<(), Trouble> {
        self.forget(region, Run { first: page, count: 1 })?;
        self.copy_comes(region, page)
    }

    /// Unmaps invalidated copies and frees their memory. A pinned page keeps its memory until its peer has read it.
    pub(super) fn invalidated(&mut self, region: &mut Region, run: Run) -> Result<(), Trouble> {
        self.forget(region, run)?;
        region.hide(run)?;
        for page in run.pages() {
            if self.gates.is_pinned(page) {
                self.leaving.push(page);
            } else {
                region.release(Run { first: page, count: 1 })?;
            }
        }
        Ok(())
    }

    /// Frees the memory of invalidated copies that no peer reads any more. A page for which `used` is true keeps its
    /// memory, because it is in use again.
    pub(super) fn see_off(&mut self, region: &mut Region, used: impl Fn(u32) -> bool) -> Result<(), Trouble> {
        let mut leaving = std::mem::take(&mut self.leaving);
        let mut done = Ok(());
        leaving.retain(|&page| {
            let stays = self.gates.is_pinned(page) && !used(page);
            if !stays && !used(page) && done.is_ok() {
                done = region.release(Run { first: page, count: 1 });
            }
            stays
        });
        self.leaving = leaving;
        Ok(done?)
    }
}

/// The most recently noted pages.
struct Last {
    pages: Box<[u32]>,
    oldest: usize,
}

impl Last {
    fn new(count: usize) -> Self {
        Self { pages: vec![u32::MAX; count].into(), oldest: 0 }
    }

    fn note(&mut self, page: u32) {
        self.pages[self.oldest] = page;
        self.oldest = (self.oldest + 1) % self.pages.len();
    }

    fn contains(&self, page: u32) -> bool {
        self.pages.contains(&page)
    }
}

#[cfg(test)]
mod tests {
    use hanare_paging::{Space, prefetch};
    use hanare_server::{Server, ServerConfig};
    use hanare_store::Target;
    use hanare_wire::Endpoint;

    use super::super::region::PAGE;
    use super::*;
    use crate::coherence::Rank;

    const PAGES: u32 = 600;
    const ROOM: usize = 64;

    /// Returns the number of pages of memory that the kernel counts for the memfd. Pin words are among them.
    fn blocks(region: &Region) -> usize {
        rustix::fs::fstat(region.memory()).expect("a descriptor").st_blocks as usize * 512 / PAGE
    }

    /// Brings in, writes and frees pages at random. Checks that each page holds what was written last. Checks that the
    /// counted pages are those in memory, and that they never exceed the limit.
    #[test]
    fn what_is_in_is_what_is_counted_and_no_page_is_lost() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("socket");
        let server = Server::bind(ServerConfig::new(vec![Endpoint::Unix(socket.clone())], 64 << 20)).expect("a server");
        let stop = server.stop_handle();
        let server = std::thread::spawn(move || server.run());
        let bytes = u64::from(PAGES) * PAGE as u64;
        let mut region = Region::new(bytes, Gates::len_for(PAGES), None, 0).expect("a region");
        let gates = Gates::map(region.memory(), bytes, PAGES).expect("gates");
        let gate_pages = (Gates::len_for(PAGES) / PAGE as u64) as usize;
        let away = Away::open((&Target::Private(socket), hanare_settings::Seal::Auto), PAGES, Rank(0), 1).expect("it");
        let space = Space { units: PAGES, block_units: 1, seed: 1, hides: true };
        let policy = ByKind::new("lirs", space, Kind::LastShared).expect("a policy");
        let prefetcher = prefetch::build("streams", space).expect("a prefetcher");
        let limit = Limit::new((ROOM * PAGE) as u64, PAGES, (gates, away), (policy, prefetcher));
        let mut limit = limit.expect("a small region");
        let mut model = vec![0_u8; PAGES as usize];
        let mut random = 7_u64;
        let mut below = |n: u32| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % u64::from(n)) as u32
        };
        for turn in 0..4000_u32 {
            let first = below(PAGES);
            let run = Run { first, count: 1 + below((PAGES - first).min(24)) };
            let pages: Vec<u32> = run.pages().collect();
            if turn % 50 == 49 {
                limit.forget(&mut region, run).expect("freed");
                region.discard(run).expect("freed");
                pages.iter().for_each(|&page| model[page as usize] = 0);
                continue;
            }
            limit.bring_in(&mut region, &pages).expect("brought in");
            let value = (turn % 255) as u8 + 1;
            for &page in &pages {
                let mut bytes = [0; PAGE];
                region.read(page, &mut bytes);
                assert_eq!(bytes, [model[page as usize]; PAGE], "page {page} at turn {turn}");
                if value.is_multiple_of(3) {
                    limit.gates.mark_written(page);
                    region.write(page, 0, &[value; PAGE]);
                    model[page as usize] = value;
                }
            }
            assert!(region.pages_held() <= ROOM, "{} pages at turn {turn}", region.pages_held());
            limit.make_spare_room(&mut region, true).expect("made");
            let counted = region.pages_held();
            assert!(counted + limit.spare <= ROOM && (counted..=counted + gate_pages).contains(&blocks(&region)));
            assert_eq!(limit.pager.local_units() as usize, counted, "turn {turn}");
        }
        let Moved { out, written, back, peak } = limit.moved;
        assert!(back > 1000 && written > 500 && written < out && peak <= ROOM as u64, "{:?}", limit.moved);
        drop(limit);
        stop.stop();
        server.join().expect("no panic").expect("a good end");
    }
}
