//! Holds a slowdown: changes the budget of the whole run, so that its threads wait no longer than was asked for.
//!
//! The keepers of all processes look after each window of time. The first one that does so steps the controller, whose state
//! is in the shared counters. The table of shares passes the new budget on to each process. This module must not know pages.

use std::sync::atomic::{AtomicU64, Ordering::*};

use hanare_settings::Slowdown;
use hanare_sys::clock::now_ns;

use crate::counters::Counters;
use crate::hold::{Bounds, Window};
use crate::load::{Load, trap_ns};
use crate::process::State;

/// Length of a window in nanoseconds. The keepers publish the time on CPUs at the same interval.
const WINDOW_NS: u64 = 100_000_000;
/// Smallest budget, in bytes. With less, huge pages cannot be used.
const LEAST_BYTES: u64 = 16 << 20;

/// Steps the controller if a window has passed and no other process has stepped it. Called by the keeper.
pub(crate) fn look(state: &State) {
    let Some(slowdown) = state.launch.settings.slowdown else { return };
    let (counters, now) = (&**state.launch.counters, now_ns());
    let hold = &counters.hold;
    let last = hold.at_ns.load(Acquire);
    if now.saturating_sub(last) < WINDOW_NS || hold.at_ns.compare_exchange(last, now, AcqRel, Relaxed).is_err() {
        return;
    }
    let (waits, cpu) = (waits_ns(counters), counters.cpu_ns.load(Relaxed));
    let pages = counters.pages_in.load(Relaxed) + counters.pages_out.load(Relaxed);
    let since = |word: &AtomicU64, value: u64| value.saturating_sub(word.swap(value, Relaxed)) as f64;
    let load = Load {
        wall: now.saturating_sub(last) as f64,
        waits: since(&hold.waits_ns, waits),
        cpu: since(&hold.cpu_ns, cpu),
        waits_on_cpu: counters.store_is_direct.load(Relaxed) != 0,
    };
    let moves = since(&hold.pages, pages) > 0.0;
    // The first look only sets the marks.
    let Some(budget) = state.seat.whole().filter(|_| last > 0) else { return };
    let window = Window {
        stall: load.stall_share(),
        wall_ns: load.wall,
        moves,
        local: counters.local_bytes.load(Relaxed) as f64,
    };
    // Beyond the far bytes, a budget holds nothing, and would take long to shrink.
    let useful = budget.max(counters.far_bytes.load(Relaxed));
    let next = hold.step(window, bounds(slowdown, state.launch.most_bytes()), budget).min(useful);
    state.seat.set_whole(next);
    counters.held_bytes.store(next, Relaxed);
}

/// Returns what the controller must keep to, where the budget may be `most` bytes.
fn bounds(slowdown: Slowdown, most: u64) -> Bounds {
    Bounds { stall: slowdown.stall_share(), least: LEAST_BYTES.min(most) as f64, most: most as f64 }
}

/// Returns the time that all threads have waited for pages, with the traps.
fn waits_ns(counters: &Counters) -> u64 {
    let faults: u64 = counters.fault_hist.iter().map(|count| count.load(Relaxed)).sum();
    counters.swap_ns.load(Relaxed) + counters.set_bit_ns.load(Relaxed) + faults * trap_ns(counters.mode.load(Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Stats;

    #[test]
    fn waits_have_their_traps() {
        let stats = Stats::attach(None, None).unwrap();
        stats.swap_ns.store(5_000, Relaxed);
        stats.fault_took(5_000);
        stats.mode.store(2, Relaxed);
        assert_eq!(waits_ns(&stats), 5_000 + trap_ns(2));
    }
}
