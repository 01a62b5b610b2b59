//! Disturbances of a program: changes of the budget, ticks, kinds of pages, and transfers that pin pages.

use hanare_paging::kinds::Kind;
use hanare_paging::{Event, PageId, Progress, State, limits};

use super::World;

impl World {
    pub(super) fn disturb(&mut self) {
        match self.random.below(1000) {
            0..5 => self.change_budget(),
            5..15 => self.tick(),
            15..35 if self.shape.pins => self.pin(),
            35..60 => self.unpin(),
            60..65 => self.will_need(),
            65..80 => self.set_kind(),
            80..85 => self.keep(),
            85..95 => self.allocate(),
            95..100 => self.lock(),
            100..103 => self.unlock(),
            103..106 => self.park(),
            _ => {}
        }
    }

    fn change_budget(&mut self) {
        let units = limits::BUDGET_PAGES_MIN + self.random.below(u64::from(self.shape.budget) * 3 / 2) as u32;
        self.step(Event::Budget { units });
    }

    /// Either sets the kind of a unit's page, or starts or ends the protection of a kind from eviction. A new kind
    /// takes effect only if the page is untouched.
    fn set_kind(&mut self) {
        let kind = self.random.pick(&[Kind::SharedCopy, Kind::LastShared]);
        let unit = self.random.below(u64::from(self.shape.units)) as u32;
        let event = match self.random.below(8) {
            0 => Event::Hold { kind, on: true },
            1 => Event::Hold { kind, on: false },
            _ => Event::Kind { unit, kind },
        };
        self.step(event);
    }

    /// Chooses the pages that the pager's caller protects from eviction from now on.
    fn keep(&mut self) {
        self.kept.clear();
        for _ in 0..self.random.below(4) {
            self.kept.insert(self.random.below(u64::from(self.shape.units)) as u32);
        }
    }

    /// Tells the pager that a range is allocated, or that its pages may no longer be filled.
    fn allocate(&mut self) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = (first + 1 + self.random.below(300) as u32).min(self.shape.units);
        if !(first..end).any(|unit| self.discarding.contains(&unit)) {
            let is_open = self.random.chance(900);
            self.step(Event::Allocated { first, end, is_open });
        }
    }

    /// Locks a range, as far as one step gets.
    fn lock(&mut self) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = (first + 1 + self.random.below(u64::from(2 * self.shape.block_units)) as u32).min(self.shape.units);
        if !(first..end).any(|unit| self.discarding.contains(&unit)) && self.pager.may_lock(first, end) {
            let locked = self.pager.locked_units() + limits::BUDGET_PAGES_MIN;
            assert!(locked <= self.budget_set / 2, "locked pages leave no room after a fork");
            let end = match self.step(Event::Lock { first, end }) {
                Progress::Done => end,
                Progress::Continue(unit) | Progress::Busy(unit) => unit,
            };
            self.locked.extend(first..end);
        }
    }

    /// Ends the lock of a range, as far as one step gets.
    fn unlock(&mut self) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = (first + 1 + self.random.below(100) as u32).min(self.shape.units);
        self.locked.retain(|unit| !(first..end).contains(unit));
        self.step(Event::Unlock { first, end });
    }

    /// Parks a range, as far as one step gets.
    fn park(&mut self) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = if self.random.chance(300) { self.shape.units } else { first + 1 + self.random.below(300) as u32 };
        self.step(Event::Park { first, end });
    }

    fn will_need(&mut self) {
        let first = self.random.below(u64::from(self.shape.units)) as u32;
        let end = (first + 1 + self.random.below(300) as u32).min(self.shape.units);
        self.step(Event::WillNeed { first, end });
    }

    /// Sends a tick. Returns whether the tick started any action.
    pub(super) fn ticked(&mut self) -> bool {
        self.tick();
        !self.pending.is_empty()
    }

    fn tick(&mut self) {
        self.now_ms += 10 + self.random.below(200);
        self.step(Event::Tick { now_ms: self.now_ms });
    }

    /// Begins a transfer into a writable page. The transfer pins the page.
    fn pin(&mut self) {
        let unit = self.random.below(u64::from(self.shape.units)) as u32;
        let (page, span) = self.pager.page_of(unit);
        let open = |unit| self.view.get(&unit).is_some_and(|mapped| mapped.writable);
        let busy = (page.0..page.0 + span).any(|unit| self.discarding.contains(&unit));
        if self.pager.state_of(unit) == State::Resident && (page.0..page.0 + span).all(open) && !busy {
            self.pins.insert(page.0);
        }
    }

    /// Ends a transfer. The transfer writes to its page, which must still be mapped.
    pub(super) fn unpin(&mut self) {
        let Some(&first) = self.pins.iter().min() else { return };
        self.pins.remove(&first);
        self.fresh += 1;
        let mapped = self.view.get_mut(&first).unwrap_or_else(|| panic!("unit {first} left while a transfer held it"));
        mapped.value = self.fresh;
        self.model.insert(first, self.fresh);
    }

    /// Whether a transfer pins a page, so that the kernel refuses to move the page.
    pub(super) fn is_pinned(&self, page: PageId) -> bool {
        (page.0..page.0 + self.span(page)).any(|unit| self.pins.contains(&unit))
    }
}
