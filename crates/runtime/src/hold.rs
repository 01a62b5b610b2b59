//! The state of the controller that holds a slowdown, in the shared counters: every process of a run can step it
//! ([`crate::steer`]). This module must not know where its figures come from.

mod control;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub(crate) use control::{Bounds, Window};
use control::{Control, WORDS};

/// Budget with which a run begins, in bytes. It grows quickly where it is too small.
pub(crate) const FIRST_BYTES: u64 = 64 << 20;

/// The state of the controller in the shared counters. All zeroes is the state before the first window.
#[repr(C)]
pub struct Hold {
    /// Time of the last step.
    pub(crate) at_ns: AtomicU64,
    /// The counters at that time.
    pub(crate) waits_ns: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
    pub(crate) pages: AtomicU64,
    control: [AtomicU64; WORDS],
}

/// Number of words of a [`Hold`].
#[cfg(test)]
pub(crate) const HOLD_WORDS: usize = 4 + WORDS;

impl Hold {
    /// Steps the controller. Returns the new budget in bytes.
    pub(crate) fn step(&self, window: Window, bounds: Bounds, budget: u64) -> u64 {
        let mut control = Control::from_words(self.control.each_ref().map(|word| word.load(Relaxed)));
        let next = control.step(window, bounds, budget as f64) as u64;
        for (word, value) in self.control.iter().zip(control.to_words()) {
            word.store(value, Relaxed);
        }
        next
    }

    /// Returns the slowdown so far, in thousandths. 0 if none is held.
    pub(crate) fn thousandths(&self) -> u64 {
        let control = Control::from_words(self.control.each_ref().map(|word| word.load(Relaxed)));
        if control.wall_ns > 0.0 { (control.slowdown() * 1_000.0) as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_goes_on_in_shared_memory() {
        let word = || AtomicU64::new(0);
        let control = std::array::from_fn(|_| word());
        let hold = Hold { at_ns: word(), waits_ns: word(), cpu_ns: word(), pages: word(), control };
        let bounds = Bounds { stall: 0.2, least: 16e6, most: (1 << 30) as f64 };
        assert_eq!(hold.thousandths(), 0);
        let mut budget = FIRST_BYTES;
        for _ in 0..10 {
            let window = Window { stall: 0.9, wall_ns: 1e8, moves: true, local: budget as f64 };
            budget = hold.step(window, bounds, budget);
        }
        assert_eq!(budget, 1 << 30);
        // Nine tenths of the time were stall.
        assert!((9_900..=10_000).contains(&hold.thousandths()), "{}", hold.thousandths());
    }
}
