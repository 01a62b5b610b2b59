//! U-Clock: FIFO order with a pseudo reference bit. If the bit of the page at the hand is set, the page is skipped
//! once, and its bit is cleared (paper 1, section 2.3).

use super::hide_queue::HideQueue;
use super::lists::Lists;
use super::{Cause, Info, Leave, Policy};
use crate::limits;
use crate::units::PageId;

pub(super) const INFO: Info = Info {
    name: "clock",
    summary: "oldest first, skipping pages referenced since the last look; unmaps pages to see references",
    source: "paper 1, U-Clock",
    params: &[],
    build: |space, _| Box::new(Clock::new(space.units)),
};

/// Memory use: three links and one byte per unit.
#[derive(Debug)]
pub(super) struct Clock {
    /// The pages in the clock's circle. The page at the hand is first.
    order: Lists,
    referenced: Vec<bool>,
    to_hide: HideQueue,
}

impl Clock {
    pub(super) fn new(units: u32) -> Self {
        Self { order: Lists::new(units, 1), referenced: vec![false; units as usize], to_hide: HideQueue::new(units) }
    }

    fn set(&mut self, page: PageId, referenced: bool) {
        self.referenced[page.0 as usize] = referenced;
        match referenced {
            true => self.to_hide.cancel(page),
            false => self.to_hide.push(page),
        }
    }
}

impl Policy for Clock {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.order.push_back(0, page);
        // A prefetched page has not been accessed yet. If its bit were set, the page would soon be unmapped to sample
        // it, and its first access would trap.
        self.referenced[page.0 as usize] = cause != Cause::Ahead;
    }

    fn referenced(&mut self, page: PageId, _write: bool) {
        self.set(page, true);
    }

    fn removed(&mut self, page: PageId, _why: Leave) {
        self.order.remove(page);
        self.to_hide.cancel(page);
    }

    /// Searches from the hand on for the first accepted page whose bit is clear. Pages that the hand passes lose their
    /// bit and go to the back. The search is bounded. If all examined pages have their bit set, the search clears these
    /// bits and returns the first accepted page.
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
        self.to_hide.pop()
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
        // Each page had its bit set at its arrival. One turn of the hand clears all bits, and then the first page is
        // evicted.
        assert_eq!(evict(&mut clock), Some(0));
        assert_eq!(hidden(&mut clock), [1, 2, 3]);
        clock.referenced(PageId(1), false);
        clock.inserted(PageId(4), Cause::Write);
        assert_eq!(evict(&mut clock), Some(2));
        assert_eq!(hidden(&mut clock), [1]);
        clock.referenced(PageId(3), true);
        clock.inserted(PageId(5), Cause::Ahead);
        // Pages 3 and 4 are skipped. Page 1 is evicted, because its bit was cleared. Page 5 was prefetched and is
        // behind page 1.
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
        // Memory holds more pages than one search examines, or fewer. The bits of all pages are either set at arrival
        // or clear.
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
