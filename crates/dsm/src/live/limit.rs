//! A rank that keeps less memory than it has pages: what is in, what goes, and what comes back.
//!
//! Victims go in the order of SSS-CORE's method 3 (Nobukuni et al., section 3): shared copies first, which are just dropped
//! ([`Room`]); then pages at home, which are sole or master copies, in the order of a replacement policy of the pager's. They
//! are written to memory servers unless those have the same bytes already, and come back when they are touched here, served,
//! or written by a peer. A page under coherence is never a victim: one with a twin, one on its way, one that a peer has
//! pinned ([`Gates`]), one that an action is about. A home page that is merely open for writing is not under coherence: once
//! it is out of view nobody writes to it, and it comes back as its state says.
//!
//! The memory is brought below the limit before pages come in, not after. Twins that take too much of it are shed: the diffs
//! of their pages go home early. What is left under coherence (pages on their way, and the few that one instruction may
//! need) is all that may exceed the limit.

use hanare_paging::PageId;
use hanare_paging::limits::HIDES_MAX;
use hanare_paging::policy::{Cause, Leave, Policy};
use hanare_store::StoreError;
use hanare_sys::Errno;

use super::away::Away;
use super::gates::Gates;
use super::region::Region;
use super::room::Room;
use crate::coherence::{Run, runs_of};

/// Most pages opened or fetched with one that was touched.
const AHEAD_MAX: usize = 64;
/// Most pages kept free for what comes next, so that copies can be dropped for it before pages at home have to go.
const SPARE_MAX: usize = 128;
/// Pages that were touched last stay, so that one instruction finds all the pages it needs whatever the policy.
const RECENT: usize = 8;
/// Sequential readers that are followed at once.
const STREAMS: usize = 8;
/// Pages that may lie between two touches of a sequence, because they were in.
const GAP_MAX: u32 = 32;

/// Why pages could not be moved.
#[derive(Debug, thiserror::Error)]
pub(super) enum Trouble {
    /// The view could not be changed.
    #[error("cannot change the view of shared pages: {}; free memory", std::io::Error::from_raw_os_error(.0.0))]
    View(Errno),
    /// Memory servers.
    #[error(transparent)]
    Away(#[from] StoreError<'static>),
}

impl From<Errno> for Trouble {
    fn from(errno: Errno) -> Self {
        Trouble::View(errno)
    }
}

impl Trouble {
    /// The exit code for it.
    pub(super) fn exit_code(&self) -> i32 {
        match self {
            Trouble::View(_) => super::fatal::EXIT_LOST,
            Trouble::Away(error) => error.exit_code(),
        }
    }
}

/// What went and came.
#[derive(Clone, Copy, Default, Debug)]
pub struct Moved {
    /// Pages at home taken out of memory.
    pub out: u64,
    /// Those of them that were written to memory servers.
    pub written: u64,
    /// Pages fetched from there.
    pub back: u64,
    /// Most pages, twins among them, that were in memory at once.
    pub peak: u64,
}

/// Touches of pages that were away, one behind the other.
#[derive(Clone, Copy, Default)]
struct Stream {
    next: u32,
    window: u32,
}

pub(super) struct Limit {
    pages_max: usize,
    /// Pages to be free between two events.
    spare: usize,
    /// Copies, which go first.
    pub(super) copies: Room,
    pub(super) gates: Gates,
    away: Away,
    policy: Box<dyn Policy>,
    streams: [Stream; STREAMS],
    stream: usize,
    recent: [u32; RECENT],
    touches: usize,
    /// Copies taken away while a peer still read what was this rank's then: their memory goes when it has.
    leaving: Vec<u32>,
    /// A list for the engine's use: written copies.
    pub(super) written: Vec<u32>,
    victims: Vec<u32>,
    missing: Vec<u32>,
    stored: Vec<u32>,
    pub(super) moved: Moved,
}

impl Limit {
    pub(super) fn new(bytes: u64, gates: Gates, away: Away, policy: Box<dyn Policy>) -> Self {
        let pages_max = (bytes / super::region::PAGE as u64) as usize;
        let spare = (pages_max / 16).clamp(2, SPARE_MAX);
        Self {
            pages_max,
            spare,
            copies: Room::new(pages_max - spare.min(pages_max)),
            gates,
            away,
            policy,
            streams: [Stream::default(); STREAMS],
            stream: 0,
            recent: [u32::MAX; RECENT],
            touches: 0,
            leaving: Vec::new(),
            written: Vec::new(),
            victims: Vec::new(),
            missing: Vec::new(),
            stored: Vec::new(),
            moved: Moved::default(),
        }
    }

    /// Looks after the memory servers.
    pub(super) fn look(&mut self) -> Result<(), StoreError<'static>> {
        self.away.look()
    }

    /// Nothing of the region is needed any more.
    pub(super) fn close(&self) {
        self.away.close();
    }

    /// Whether more is in than there should be, and nothing can be done about it.
    pub(super) fn is_exceeded(&self, region: &Region) -> bool {
        region.pages_held() > self.pages_max
    }

    /// Whether twins are what takes the room: there is too little although all that may go went, or there is little and they
    /// have much of it, so that other copies come and go.
    pub(super) fn lacks_room(&self, region: &Region) -> bool {
        let held = region.pages_held();
        held > self.pages_max || held + 2 * self.spare > self.pages_max && region.twins_held() > self.pages_max / 4
    }

    fn is_stored(&self, page: u32) -> bool {
        self.away.holds(page)
    }

    // ---- coming in --------------------------------------------------------------------------------------------------

    /// Brings pages of which this rank is home, ascending, as far as they are not in.
    pub(super) fn bring_in(&mut self, region: &mut Region, pages: &[u32], cause: Cause) -> Result<(), Trouble> {
        self.missing.clear();
        self.missing.extend(pages.iter().copied().filter(|&page| !self.gates.is_in(page)));
        if self.missing.is_empty() {
            return Ok(());
        }
        self.make_room(region, self.missing.len(), pages)?;
        self.stored.clear();
        self.stored.extend(self.missing.iter().copied().filter(|&page| self.away.holds(page)));
        region.fetch(&mut self.away, &self.stored)?;
        self.moved.back += self.stored.len() as u64;
        for &page in &self.missing {
            region.hold(Run { first: page, count: 1 })?;
            self.gates.open(page);
            self.policy.inserted(PageId(page), cause);
        }
        self.note_peak(region);
        Ok(())
    }

    /// More is in memory than was before.
    pub(super) fn note_peak(&mut self, region: &Region) {
        self.moved.peak = self.moved.peak.max(region.pages_held() as u64);
    }

    /// The pages to be shown with one that was touched and is not in: for a page that was never used, those behind it that
    /// are `alike` and never used either; for one that was away, those that a sequential reader touches next.
    pub(super) fn with(&mut self, page: u32, alike: impl Fn(u32) -> bool) -> Run {
        let most = AHEAD_MAX.min(self.spare / 2).max(1) as u32;
        if self.gates.is_in(page) {
            return Run { first: page, count: 1 };
        }
        let is_stored = self.is_stored(page);
        let window = if is_stored { self.follow(page, most) } else { most - page % most };
        let joins = |&next: &u32| alike(next) && self.is_stored(next) == is_stored && !self.gates.is_in(next);
        let count = 1 + (page + 1..page.saturating_add(window)).take_while(joins).count() as u32;
        if is_stored {
            self.streams[self.stream] = Stream { next: page + count, window };
        }
        Run { first: page, count }
    }

    /// How many pages a touch of one that was away is worth, and which stream it is of.
    fn follow(&mut self, page: u32, most: u32) -> u32 {
        let is_next = |stream: &Stream| (stream.next..=stream.next.saturating_add(GAP_MAX)).contains(&page);
        match self.streams.iter().position(|stream| stream.window > 0 && is_next(stream)) {
            Some(at) => {
                self.stream = at;
                (self.streams[at].window * 2).min(most)
            }
            None => {
                self.stream = (self.stream + 1) % STREAMS;
                1
            }
        }
    }

    /// A touch was seen, of a page that may be in.
    pub(super) fn seen(&mut self, page: u32, write: bool) {
        self.recent[self.touches % RECENT] = page;
        self.touches = self.touches.wrapping_add(1);
        if self.gates.is_in(page) {
            self.policy.referenced(PageId(page), write);
        }
    }

    /// Takes pages out of view that the policy wants to see touched; their bytes stay.
    pub(super) fn hide(&mut self, region: &mut Region) -> Result<(), Errno> {
        for _ in 0..HIDES_MAX {
            let Some(PageId(page)) = self.policy.next_to_hide() else { break };
            if self.gates.is_in(page) && region.is_shown(page) {
                region.hide(Run { first: page, count: 1 })?;
            }
        }
        Ok(())
    }

    // ---- going out --------------------------------------------------------------------------------------------------

    /// Takes pages at home out until `more` have room, but none of `keep`.
    pub(super) fn make_room(&mut self, region: &mut Region, more: usize, keep: &[u32]) -> Result<(), Trouble> {
        match (region.pages_held() + more).saturating_sub(self.pages_max) {
            0 => Ok(()),
            over => self.take_out(region, over + self.spare / 2, keep),
        }
    }

    /// The same ahead of need.
    pub(super) fn make_spare_room(&mut self, region: &mut Region) -> Result<(), Trouble> {
        match (region.pages_held() + self.spare).saturating_sub(self.pages_max) {
            0 => Ok(()),
            over => self.take_out(region, over + self.spare / 2, &[]),
        }
    }

    fn take_out(&mut self, region: &mut Region, count: usize, keep: &[u32]) -> Result<(), Trouble> {
        let mut victims = std::mem::take(&mut self.victims);
        victims.clear();
        let (gates, recent) = (&self.gates, self.recent);
        while victims.len() < count {
            let may_go =
                |PageId(page): PageId| !gates.is_pinned(page) && !keep.contains(&page) && !recent.contains(&page);
            let Some(page) = self.policy.victim(&may_go) else { break };
            self.policy.removed(page, Leave::Evicted);
            victims.push(page.0);
        }
        let done = self.put_away(region, &mut victims);
        self.victims = victims;
        done
    }

    fn put_away(&mut self, region: &mut Region, victims: &mut Vec<u32>) -> Result<(), Trouble> {
        let away = &mut self.away;
        let mut written = Vec::with_capacity(victims.len());
        victims.retain(|&page| {
            // Closed first: from then on no peer writes; hidden next: from then on nobody does.
            let closed = self.gates.close(page);
            match closed {
                Some(true) => written.push(page),
                Some(false) => {}
                // A peer was faster.
                None => self.policy.inserted(PageId(page), Cause::Read),
            }
            closed.is_some()
        });
        let runs = runs_of(victims);
        runs.iter().try_for_each(|&run| region.hide(run))?;
        // What reads as zeroes takes no room anywhere.
        let mut zeroes = Vec::new();
        written.retain(|&page| {
            let is_zero = region.is_zero(page);
            if is_zero && away.holds(page) {
                zeroes.push(page);
            }
            !is_zero
        });
        runs_of(&mut zeroes).into_iter().try_for_each(|run| away.forget(run))?;
        runs_of(&mut written).into_iter().try_for_each(|run| region.put(away, run))?;
        runs.iter().try_for_each(|&run| region.release(run))?;
        self.moved.out += victims.len() as u64;
        self.moved.written += written.len() as u64;
        Ok(())
    }

    // ---- homes and copies -------------------------------------------------------------------------------------------

    /// A copy that is here became the master.
    pub(super) fn adopted(&mut self, page: u32) {
        self.gates.mark_written(page);
        self.gates.open(page);
        self.policy.inserted(PageId(page), Cause::Write);
    }

    /// A page that is in became a copy.
    pub(super) fn given_away(&mut self, page: u32) -> Result<(), Trouble> {
        self.gates.retire(page);
        self.policy.removed(PageId(page), Leave::Forgotten);
        self.copies.came(page);
        self.forget(Run { first: page, count: 1 })
    }

    fn forget(&mut self, run: Run) -> Result<(), Trouble> {
        Ok(self.away.forget(run)?)
    }

    /// Copies were taken away: nobody asks for their bytes, but for who was told to read them before.
    pub(super) fn invalidated(&mut self, region: &mut Region, run: Run) -> Result<(), Trouble> {
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

    /// Gives back the memory of copies that had to wait, unless they are `used` again.
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

    /// Pages of an allocation that is freed.
    pub(super) fn discarded(&mut self, region: &Region, run: Run) -> Result<(), Trouble> {
        // Gates of pages that were never in are not looked at: that would take memory.
        for page in run.pages().filter(|&page| region.is_held(page)) {
            if self.gates.is_in(page) {
                self.gates.retire(page);
                self.policy.removed(PageId(page), Leave::Forgotten);
            }
        }
        for page in run.pages().filter(|&page| self.away.holds(page)) {
            self.policy.forgotten(PageId(page));
        }
        self.forget(run)
    }
}

#[cfg(test)]
mod tests {
    use hanare_paging::policy::{self, Space};
    use hanare_server::{Server, ServerConfig};
    use hanare_store::Target;
    use hanare_wire::Endpoint;

    use super::super::region::PAGE;
    use super::*;
    use crate::coherence::Rank;

    const PAGES: u32 = 600;
    const ROOM: usize = 64;

    /// Pages that take memory, as the kernel says; those of the gates among them.
    fn blocks(region: &Region) -> usize {
        rustix::fs::fstat(region.memory()).expect("a descriptor").st_blocks as usize * 512 / PAGE
    }

    /// Pages come, are written, or are given back, in any order: each holds what was written last, what is in memory is
    /// what is counted, and it is never more than there is room for.
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
        let away = Away::open(&Target::Private(socket), PAGES, Rank(0), 1).expect("a link");
        let space = Space { units: PAGES, block_units: 1, seed: 1, hides: true };
        let policy = policy::build("lirs", space).expect("a policy");
        let mut limit = Limit::new((ROOM * PAGE) as u64, gates, away, policy);
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
                limit.discarded(&region, run).expect("freed");
                region.discard(run).expect("freed");
                pages.iter().for_each(|&page| model[page as usize] = 0);
                continue;
            }
            limit.bring_in(&mut region, &pages, Cause::Read).expect("brought in");
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
            limit.make_spare_room(&mut region).expect("made");
            let counted = region.pages_held();
            assert!(counted + limit.spare <= ROOM && (counted..=counted + gate_pages).contains(&blocks(&region)));
        }
        let Moved { out, written, back, peak } = limit.moved;
        assert!(back > 1000 && written > 500 && written < out && peak <= ROOM as u64, "{:?}", limit.moved);
        drop(limit);
        stop.stop();
        server.join().expect("no panic").expect("a good end");
    }
}
