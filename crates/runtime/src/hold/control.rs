//! The law by which a run holds a slowdown: what the budget becomes after a window of time. This module only calculates.
//!
//! Two errors steer it: the stalls of the last second, and those of the whole run. A run that stalls more than it may is
//! given memory by up to doubling its budget in each window. A run that stalls less gives back a little in each window, and
//! less the nearer it is. Many programs stall suddenly when their loop does not fit any more. So the size at which a
//! reduction was answered by stalls is remembered, and not gone below again for a while, which doubles each time.

/// Weight of a new window in the average of the last ones. The first windows have the weight of an ordinary mean.
const FRESH: f64 = 0.3;
/// The budget grows above the allowed stalls times this, ...
const ABOVE: f64 = 1.1;
/// ... and shrinks below the allowed stalls times this.
const BELOW: f64 = 0.85;
/// Largest part by which the budget grows, and shrinks, in one window.
const GROW_MAX: f64 = 1.0;
const SHRINK_MAX: f64 = 0.03;
/// Stalls after a reduction that exceed the allowed ones this many times are those of a loop that does not fit any more.
const CLIFF: f64 = 2.0;
/// The budget is kept this much above the size that was too small.
const FLOOR_MARGIN: f64 = 1.04;
/// Windows for which that size is remembered, at first and at most.
const KEEP_MIN: f64 = 50.0;
const KEEP_MAX: f64 = 1_600.0;
/// Windows after a reduction in which stalls are its consequence.
const BLAME: f64 = 30.0;

/// A window of time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Share of the window that the run stood still.
    pub(crate) stall: f64,
    /// Length in nanoseconds.
    pub(crate) wall_ns: f64,
    /// Whether pages left or came back. If not, more memory would not help.
    pub(crate) moves: bool,
    /// Local memory in use, in bytes.
    pub(crate) local: f64,
}

/// The state of the controller. All zeroes is the state before the first window. It consists of numbers only, so that the
/// processes of a run can hand it on in shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Control {
    /// Average stall share of the last windows.
    pub(crate) recent: f64,
    /// Time since the start, and the part of it that the run stood still, in nanoseconds.
    pub(crate) wall_ns: f64,
    pub(crate) stall_ns: f64,
    /// The size that was too small. 0 if none is known.
    pub(crate) floor: f64,
    /// Windows for which `floor` holds from now on, and for which it held at first.
    pub(crate) floor_left: f64,
    pub(crate) floor_kept: f64,
    /// Windows from now on in which a stall is the answer to the last reduction.
    pub(crate) blame_left: f64,
}

/// Number of words of a [`Control`].
pub(crate) const WORDS: usize = 7;

/// The limits of the controller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Share of the time that the run may stand still.
    pub(crate) stall: f64,
    /// Smallest and largest budget, in bytes.
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl Control {
    pub(crate) fn from_words(words: [u64; WORDS]) -> Self {
        let [recent, wall_ns, stall_ns, floor, floor_left, floor_kept, blame_left] = words.map(f64::from_bits);
        Self { recent, wall_ns, stall_ns, floor, floor_left, floor_kept, blame_left }
    }

    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let Self { recent, wall_ns, stall_ns, floor, floor_left, floor_kept, blame_left } = self;
        [recent, wall_ns, stall_ns, floor, floor_left, floor_kept, blame_left].map(f64::to_bits)
    }

    /// Returns the slowdown so far: the time divided by the part of it that was no stall.
    pub(crate) fn slowdown(&self) -> f64 {
        if self.wall_ns > 0.0 { self.wall_ns / (self.wall_ns - self.stall_ns).max(self.wall_ns * 0.01) } else { 1.0 }
    }

    /// Returns the budget after a window, and the state. `budget` is the present one.
    pub(crate) fn step(&mut self, window: Window, bounds: Bounds, budget: f64) -> f64 {
        self.wall_ns += window.wall_ns;
        self.recent += FRESH.max(window.wall_ns / self.wall_ns.max(1.0)) * (window.stall - self.recent);
        self.stall_ns += window.stall * window.wall_ns;
        self.blame_left = (self.blame_left - 1.0).max(0.0);
        self.floor_left = (self.floor_left - 1.0).max(0.0);
        // A run that has stalled little may catch up, and one that has stalled much must, within limits.
        let so_far = self.stall_ns / self.wall_ns.max(1.0);
        let allowed = (bounds.stall + 0.5 * (bounds.stall - so_far)).clamp(bounds.stall * 0.5, bounds.stall * 1.3);
        // Both the last window and the average must agree. One window may be an accident, and the average lags behind.
        let (low, high) = (self.recent.min(window.stall), self.recent.max(window.stall));
        let next = if low > allowed * ABOVE && window.moves {
            self.grown((low, high), allowed, budget)
        } else if high < allowed * BELOW {
            self.shrunk(high, allowed, budget, window.local)
        } else {
            budget
        };
        next.clamp(bounds.least.min(bounds.most), bounds.most)
    }

    fn grown(&mut self, (stall, worst): (f64, f64), allowed: f64, budget: f64) -> f64 {
        if self.blame_left > 0.0 && worst > allowed * CLIFF {
            self.floor_kept = (self.floor_kept * 2.0).clamp(KEEP_MIN, KEEP_MAX);
            (self.floor, self.floor_left) = (budget, self.floor_kept);
            self.blame_left = 0.0;
        } else if self.floor_left > 0.0 && budget > self.floor {
            // The growth has not ended yet.
            self.floor = budget;
        }
        budget * (1.0 + ((stall - allowed) / (1.0 - allowed) * 2.0).clamp(0.02, GROW_MAX))
    }

    fn shrunk(&mut self, stall: f64, allowed: f64, budget: f64, local: f64) -> f64 {
        // Memory that is not in use holds nothing. The budget follows the use before anything is evicted.
        let used = budget.min(local.max(budget * 0.5));
        let next = used * (1.0 - SHRINK_MAX * (1.0 - stall / allowed));
        let floor = if self.floor_left > 0.0 { self.floor * FLOOR_MARGIN } else { 0.0 };
        if next <= floor {
            return budget;
        }
        self.blame_left = BLAME;
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1_048_576.0;
    const WINDOW_NS: f64 = 1e8;

    /// A program that computes for a second, and waits meanwhile for what its memory lacks.
    type Waits = fn(windows: usize, local: f64) -> f64;

    /// A loop over 800 MiB: its waits shrink in proportion to what stays.
    fn a_loop(_: usize, local: f64) -> f64 {
        (1.0 - local / (800.0 * MIB)).max(0.0) * 4.0
    }

    /// Stands still if 500 MiB do not fit, and does not wait otherwise.
    fn a_cliff(_: usize, local: f64) -> f64 {
        if local < 500.0 * MIB { 6.0 } else { 0.0 }
    }

    /// Random accesses, some more often than others.
    fn a_tail(_: usize, local: f64) -> f64 {
        8.0 * (-local / (150.0 * MIB)).exp()
    }

    /// Needs 200 MiB, and after a minute 900 MiB.
    fn a_change(windows: usize, local: f64) -> f64 {
        (1.0 - local / (if windows < 600 { 200.0 } else { 900.0 } * MIB)).max(0.0) * 4.0
    }

    struct Run {
        budgets: Vec<f64>,
        stalls: Vec<f64>,
        control: Control,
    }

    /// Runs a program for some windows with a target of 1.3.
    fn run(waits: Waits, windows: usize, most: f64) -> Run {
        let bounds = Bounds { stall: 1.0 - 1.0 / 1.3, least: 8.0 * MIB, most };
        let mut control = Control::default();
        let (mut budget, mut budgets, mut stalls) = (32.0 * MIB, Vec::new(), Vec::new());
        for nth in 0..windows {
            // A change of the budget takes half a window to show.
            let wait = waits(nth, budget);
            // Some noise that has no period.
            let noise = 1.0 + 0.2 * ((nth * 7919 % 101) as f64 / 50.0 - 1.0);
            let stall = (wait / (1.0 + wait) * noise).clamp(0.0, 0.99);
            let window = Window { stall, wall_ns: WINDOW_NS, moves: wait > 0.0, local: budget };
            budget = control.step(window, bounds, budget);
            budgets.push(budget);
            stalls.push(stall);
        }
        Run { budgets, stalls, control }
    }

    fn mean_slowdown(stalls: &[f64]) -> f64 {
        1.0 / (1.0 - stalls.iter().sum::<f64>() / stalls.len() as f64)
    }

    #[test]
    fn it_holds_what_was_asked_for() {
        for waits in [a_loop as Waits, a_tail] {
            let run = run(waits, 600, 4096.0 * MIB);
            let held = mean_slowdown(&run.stalls[200..]);
            assert!((1.2..1.4).contains(&held), "{held}");
            assert!((1.2..1.45).contains(&run.control.slowdown()), "{}", run.control.slowdown());
            // It finds the size for which the program asks, and stays near it.
            let late = &run.budgets[300..];
            let (low, high) = (late.iter().copied().fold(f64::MAX, f64::min), late.iter().copied().fold(0.0, f64::max));
            assert!(high / low < 1.5, "{} to {}", low / MIB, high / MIB);
        }
    }

    #[test]
    fn it_does_not_fall_off_a_cliff_again_and_again() {
        let run = run(a_cliff, 3000, 4096.0 * MIB);
        let falls = run.stalls.windows(2).filter(|pair| pair[0] == 0.0 && pair[1] > 0.0).count();
        assert!(falls <= 16, "{falls}");
        assert!(run.control.slowdown() < 1.3, "{}", run.control.slowdown());
        // Between two looks it stays above.
        assert!(run.budgets[500..].iter().all(|&budget| budget < 1100.0 * MIB));
    }

    #[test]
    fn it_follows_a_need_that_changes() {
        let run = run(a_change, 1200, 4096.0 * MIB);
        let before = run.budgets[500..600].iter().sum::<f64>() / 100.0;
        let after = run.budgets[1100..].iter().sum::<f64>() / 100.0;
        assert!(before < 250.0 * MIB && after > 700.0 * MIB, "{} {}", before / MIB, after / MIB);
        let grown = run.budgets[600..].iter().position(|&budget| budget > 600.0 * MIB);
        assert!(grown.is_some_and(|windows| windows < 30), "{grown:?}");
        assert!((1.2..1.45).contains(&mean_slowdown(&run.stalls[700..])));
    }

    #[test]
    fn a_short_run_is_given_memory_at_once() {
        let run = run(a_loop, 10, 4096.0 * MIB);
        assert!(run.budgets[0] == 64.0 * MIB && run.budgets[3] == 512.0 * MIB, "{:?}", run.budgets);
    }

    #[test]
    fn it_keeps_its_bounds() {
        let run = run(a_loop, 300, 300.0 * MIB);
        assert!(run.budgets.iter().all(|&budget| budget <= 300.0 * MIB));
        assert!(run.budgets.ends_with(&[300.0 * MIB]), "the target needs all of it");
        let mut idle = Control::default();
        let bounds = Bounds { stall: 0.2, least: 8.0 * MIB, most: 300.0 * MIB };
        let window = Window { stall: 0.0, wall_ns: WINDOW_NS, moves: false, local: MIB };
        let end = (0..2000).fold(300.0 * MIB, |budget, _| idle.step(window, bounds, budget));
        assert_eq!(end, 8.0 * MIB);
        // Waits for fresh pages alone are no reason for more memory.
        let window = Window { stall: 0.9, ..window };
        assert_eq!(idle.step(window, bounds, 16.0 * MIB), 16.0 * MIB);
    }

    #[test]
    fn the_state_survives_its_words() {
        let mut control = Control::default();
        let window = Window { stall: 0.5, wall_ns: WINDOW_NS, moves: true, local: MIB };
        control.step(window, Bounds { stall: 0.2, least: MIB, most: 9.0 * MIB }, 2.0 * MIB);
        assert_eq!(Control::from_words(control.to_words()), control);
        assert_eq!(Control::from_words([0; WORDS]), Control::default());
    }
}
