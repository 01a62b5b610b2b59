//! U-Clock: FIFO order with a pseudo reference bit; a page whose bit is set is passed over once and its bit cleared
//! (paper 1, section 2.3).

use super::lists::Lists;
use super::wishes::Wishes;
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "clock",
    summary: "oldest first, those seen touched since they were last looked at passed over; hides pages",
    source: "paper 1, U-Clock",
    params: &[],
    build: |space, _| Box::new(Clock::new(space.units)),
};

/// State: three links and a byte a unit.
#[derive(Debug)]
pub(super) struct Clock {
    /// One circle, cut where the hand is.
    order: Lists,
    referenced: Vec<bool>,
    wishes: Wishes,
}

impl Clock {
    pub(super) fn new(units: u32) -> Self {
        Self { order: Lists::new(units, 1), referenced: vec![false; units as usize], wishes: Wishes::new(units) }
    }

    fn set(&mut self, page: PageId, referenced: bool) {
        self.referenced[page.0 as usize] = referenced;
        match referenced {
            true => self.wishes.cancel(page),
            false => self.wishes.push(page),
        }
    }
}

impl Policy for Clock {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.order.push_back(0, page);
        // A page fetched ahead lies in view untouched. To hide it at once would cost the trap that fetching it saved.
        self.referenced[page.0 as usize] = cause != Cause::Ahead;
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.set(page, true);
    }

    fn removed(&mut self, page: PageId, _why: Leave) {
        self.order.remove(page);
        self.wishes.cancel(page);
    }

    /// What the hand passes is cleared and goes to the back. Where all pages within reach are referenced a full turn
    /// would clear them, come back and take the first; then they are cleared where they stand, which for as many pages
    /// as are within reach is the same, and for more is as near to it as a bounded search comes.
    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let (mut victim, mut first) = (None, None);
        let mut at = self.order.front(0);
        for _ in 0..limits::VICTIM_SCAN_MAX {
            let Some(page) = at else {
                break;
            };
            if accept(page) {
                first = first.or(at);
                if !self.referenced[page.0 as usize] {
                    victim = at;
                    break;
                }
            }
            at = self.order.after(page).ok();
        }
        let end = at;
        at = self.order.front(0);
        while let Some(page) = at.filter(|_| at != end) {
            at = self.order.after(page).ok();
            if self.referenced[page.0 as usize] {
                self.set(page, false);
                if victim.is_some() {
                    self.order.move_back(0, page);
                }
            }
        }
        victim.or(first)
    }

    fn next_to_hide(&mut self) -> Option<PageId> {
        self.wishes.pop()
    }

    fn hides(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::fifo::Fifo;
    use super::super::random::Draw;
    use super::*;

    fn evict(clock: &mut Clock) -> Option<u32> {
        let victim = clock.victim(&|_| true)?;
        clock.removed(victim, Leave::Evicted);
        Some(victim.0)
    }

    fn hidden(clock: &mut Clock) -> Vec<u32> {
        std::iter::from_fn(|| clock.next_to_hide()).map(|page| page.0).collect()
    }

    #[test]
    fn a_page_seen_touched_is_passed_over_once() {
        let mut clock = Clock::new(16);
        (0..4).for_each(|page| clock.inserted(PageId(page), Cause::Read));
        assert_eq!(hidden(&mut clock), []);
        // All were touched as they came: a turn clears them all and takes the first.
        assert_eq!(evict(&mut clock), Some(0));
        assert_eq!(hidden(&mut clock), [1, 2, 3]);
        clock.referenced(PageId(1), false);
        clock.inserted(PageId(4), Cause::Write);
        assert_eq!(evict(&mut clock), Some(2));
        assert_eq!(hidden(&mut clock), [1]);
        clock.referenced(PageId(3), true);
        clock.inserted(PageId(5), Cause::Ahead);
        // 3 and 4 are passed over, 1 was cleared; 5 came ahead of its use and is behind it.
        assert_eq!(evict(&mut clock), Some(1));
        assert_eq!(hidden(&mut clock), [3, 4]);
        assert_eq!(evict(&mut clock), Some(5));
        assert_eq!(evict(&mut clock), Some(3));
        assert_eq!(evict(&mut clock), Some(4));
        assert_eq!(evict(&mut clock), None);
    }

    #[test]
    fn a_page_touched_or_gone_before_it_was_hidden_is_not_hidden() {
        let mut clock = Clock::new(16);
        (0..5).for_each(|page| clock.inserted(PageId(page), Cause::Read));
        assert_eq!(evict(&mut clock), Some(0));
        clock.referenced(PageId(2), true);
        clock.removed(PageId(3), Leave::Forgotten);
        assert_eq!(hidden(&mut clock), [1, 4]);
    }

    #[test]
    fn a_refused_page_keeps_its_turn() {
        let mut clock = Clock::new(16);
        (0..4).for_each(|page| clock.inserted(PageId(page), Cause::Ahead));
        clock.referenced(PageId(1), false);
        assert_eq!(clock.victim(&|page| page.0 > 0), Some(PageId(2)));
        assert_eq!(hidden(&mut clock), [1]);
        assert_eq!(evict(&mut clock), Some(0));
        assert_eq!(evict(&mut clock), Some(2));
        assert_eq!(evict(&mut clock), Some(3));
        assert_eq!(evict(&mut clock), Some(1));
    }

    #[test]
    fn with_no_reference_seen_and_nothing_hidden_it_is_fifo() {
        // More pages than one search looks at, and fewer; all of them touched as they came, or none.
        for (room, causes) in [1, 30, 5000].into_iter().flat_map(|room| {
            [[Cause::Read, Cause::Write], [Cause::Ahead, Cause::Ahead]].map(move |causes| (room, causes))
        }) {
            let units = 2 * room + 3;
            let (mut clock, mut fifo) = (Clock::new(units), Fifo::new(units));
            let mut present = vec![false; units as usize];
            let (mut count, mut draw) = (0, Draw::new(u64::from(room)));
            for _ in 0..12 * room {
                let page = draw.below(units);
                if std::mem::replace(&mut present[page as usize], true) {
                    continue;
                }
                count += 1;
                let cause = causes[draw.below(2) as usize];
                clock.inserted(PageId(page), cause);
                fifo.inserted(PageId(page), cause);
                if count > room {
                    let victim = fifo.victim(&|_| true).expect("pages are there");
                    assert_eq!(clock.victim(&|_| true), Some(victim), "room for {room}");
                    clock.removed(victim, Leave::Evicted);
                    fifo.removed(victim, Leave::Evicted);
                    present[victim.0 as usize] = false;
                    count -= 1;
                }
            }
        }
    }
}
