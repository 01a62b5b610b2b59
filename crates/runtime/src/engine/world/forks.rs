//! Forks of the simulated process.

use std::time::Duration;

use hanare_paging::limits;

use super::super::{Engine, fork::Resting};
use super::{DRAIN_MAX, FakeView, OS_PAGE, Span, THRASHING, World};

impl World {
    /// Forks the process. The run continues as the parent or as the child. No thread of the program runs meanwhile.
    pub(super) fn fork(&mut self) {
        while !self.pins.is_empty() {
            self.unpin();
        }
        self.drain();
        let leave = self.shape.view.doubled;
        let taken = [Span { offset: 0, len: self.units() * OS_PAGE }];
        self.engine().rest();
        self.come_to_rest(&taken, leave, u64::MAX);
        if self.random.chance(500) {
            // The child gets half of this process' budget.
            let least = limits::BUDGET_PAGES_MIN as usize * OS_PAGE * self.shape.config.geometry.block_units as usize;
            let half = (self.engine().local_bytes() / 2).max(least as u64);
            self.come_to_rest(&taken, leave, half);
        }
        if self.random.chance(500) {
            self.engine().go_on();
            return;
        }
        let Some(parent) = self.engine.take() else { return };
        let view = if leave { FakeView::new(self.shape.view, self.fresh) } else { parent.view().forked() };
        let store = parent.store().cloned();
        let (kept, ..) = parent.apart();
        kept.protect_clean(&view, &taken);
        self.engine = Some(Engine::again(kept, view, store));
    }

    fn come_to_rest(&mut self, taken: &[Span], leave: bool, local_max: u64) {
        let mut resting = Resting::new(leave, local_max);
        let mut turns = 0;
        while !self.engine().rest_turn(taken, &mut resting) {
            self.complete();
            turns += 1;
            assert!(turns < DRAIN_MAX, "no rest is found; {}", self.stand());
            if turns > THRASHING {
                // Pages that transfers seem to hold stay local after a second.
                std::thread::sleep(Duration::from_micros(100));
            }
        }
    }
}
