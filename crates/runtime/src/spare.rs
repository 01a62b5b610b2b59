//! Keeps a share of local memory within what the machine can give. If a program is larger than the machine's memory, then
//! half of the program's may be more than there is, beside the server that keeps the other half.
//!
//! The command looks how much memory is available, because a process of the program should open no files. Each process bounds
//! its budget by what it has, and its part of what is spare.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use hanare_sys::memory::Memory;

use crate::counters::Counters;
use crate::stats::Stats;

/// The part of all memory that is left to others, and its bounds in bytes.
const LEFT_PART: u64 = 8;
const LEFT_MIN: u64 = 32 << 20;
const LEFT_MAX: u64 = 256 << 20;
/// The bytes that a private server on the same machine may take between two looks of its own.
const SERVER_BYTES: u64 = 96 << 20;
/// The counter has this value if nothing is spare. 0 means that nobody looks.
const NOTHING_SPARE: u64 = 1 << 62;
/// Bounds of the time between two looks. No program can use up all spare bytes in that time.
const INTERVAL_MIN: Duration = Duration::from_millis(10);
const INTERVAL_MAX: Duration = Duration::from_millis(500);
/// No program uses up memory faster, in bytes per millisecond.
const BYTES_PER_MS: u64 = 8 << 20;

/// Returns the bytes that the machine can give beyond what is left to others. They are negative if it lacks some.
/// `None` if nobody looks.
pub(crate) fn spare_bytes(counters: &Counters) -> Option<i64> {
    let word = counters.spare_bytes.load(Relaxed);
    (word > 0).then(|| word.wrapping_sub(NOTHING_SPARE) as i64)
}

fn set_spare_bytes(counters: &Counters, spare: i64) {
    counters.spare_bytes.store(NOTHING_SPARE.wrapping_add_signed(spare), Relaxed);
}

/// A budget that is a share of the far bytes, but no more than the machine can give.
pub(crate) struct Share {
    wanted: AtomicU64,
    bound: AtomicU64,
    /// The look that the bound was made from.
    seen: AtomicI64,
}

impl Default for Share {
    fn default() -> Self {
        Share { wanted: AtomicU64::new(0), bound: AtomicU64::new(u64::MAX), seen: AtomicI64::new(i64::MIN) }
    }
}

impl Share {
    /// Notes a new share of the far bytes. Returns the budget.
    pub(crate) fn want(&self, bytes: u64) -> u64 {
        self.wanted.store(bytes, Relaxed);
        bytes.min(self.bound.load(Relaxed))
    }

    /// Notes a look, by which `spare` bytes are spare, and makes a bound from it. The bound holds until the next look,
    /// because what becomes local meanwhile is no longer spare. Returns the budget if it changes.
    pub(crate) fn look(&self, spare: i64, bound: impl FnOnce(i64) -> u64) -> Option<u64> {
        if self.seen.swap(spare, Relaxed) == spare {
            return None;
        }
        let bound = bound(spare);
        let last = self.bound.swap(bound, Relaxed);
        let wanted = self.wanted.load(Relaxed);
        (wanted.min(bound) != wanted.min(last)).then_some(wanted.min(bound))
    }
}

/// Returns the largest budget of one of `processes` processes that has `local` bytes, in bytes, but at least `least`. It
/// holds until the next look: only half of what is spare may be used until then, as the server takes memory, too.
pub(crate) fn bound(local: u64, spare: i64, processes: u64, least: u64) -> u64 {
    let usable = if spare > 0 { spare / 2 } else { spare };
    let part = usable / i64::try_from(processes.max(1)).unwrap_or(i64::MAX);
    local.saturating_add_signed(part).max(least)
}

fn spare_of(memory: &Memory) -> i64 {
    let left = (memory.total_bytes / LEFT_PART).clamp(LEFT_MIN, LEFT_MAX) + SERVER_BYTES;
    memory.available_bytes.min(i64::MAX as u64) as i64 - left as i64
}

fn interval(spare: i64) -> Duration {
    let ms = u64::try_from(spare).unwrap_or(0) / BYTES_PER_MS;
    Duration::from_millis(ms).clamp(INTERVAL_MIN, INTERVAL_MAX)
}

/// A thread of the command that looks how much memory is available, until this value is dropped.
pub struct Watch {
    /// The thread ends when this end of the channel is closed.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the thread.
    ///
    /// # Errors
    /// There can be no thread, or the system does not say how much memory is available.
    pub fn start(stats: Arc<Stats>) -> io::Result<Watch> {
        let mut spare = spare_of(&Memory::now().map_err(io::Error::other)?);
        set_spare_bytes(&stats, spare);
        let (stop, stopped) = mpsc::channel();
        let look = move || {
            while stopped.recv_timeout(interval(spare)) == Err(RecvTimeoutError::Timeout) {
                // The last figure stays until the next one can be read.
                let Ok(memory) = Memory::now() else { continue };
                spare = spare_of(&memory);
                set_spare_bytes(&stats, spare);
            }
        };
        let thread = std::thread::Builder::new().name("hanare-spare".into()).spawn(look)?;
        Ok(Watch { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        // `join` fails only if the thread panicked. The panic has been reported on stderr.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_budget_grows_into_what_is_spare_and_shrinks_by_what_is_lacking() {
        let mib = |count: i64| count * MIB as i64;
        assert_eq!(bound(100 * MIB, mib(100), 1, MIB), 150 * MIB);
        assert_eq!(bound(100 * MIB, mib(100), 2, MIB), 125 * MIB);
        assert_eq!(bound(100 * MIB, mib(-30), 1, MIB), 70 * MIB);
        assert_eq!(bound(100 * MIB, mib(-300), 1, MIB), MIB);
        assert_eq!(bound(u64::MAX - 1, i64::MAX, 0, MIB), u64::MAX);
    }

    #[test]
    fn a_bound_holds_until_the_next_look() {
        let share = Share::default();
        assert_eq!(share.want(500), 500);
        assert_eq!(share.look(100, |spare| spare as u64 * 2), Some(200));
        assert_eq!(share.want(150), 150);
        assert_eq!(share.want(600), 200);
        assert_eq!(share.look(100, |_| unreachable!("nothing has changed")), None);
        assert_eq!(share.look(99, |_| 200), None);
        assert_eq!(share.look(400, |_| 800), Some(600));
    }

    #[test]
    fn the_counter_tells_nothing_spare_from_nobody_looking() {
        let stats = Stats::attach(None, None).unwrap();
        assert_eq!(spare_bytes(&stats), None);
        for spare in [0, 7, -7, i64::MAX / 4, i64::MIN / 4] {
            set_spare_bytes(&stats, spare);
            assert_eq!(spare_bytes(&stats), Some(spare));
        }
    }

    #[test]
    fn some_memory_is_left_to_others() {
        let memory = |total, available| Memory {
            total_bytes: total * MIB,
            available_bytes: available * MIB,
            cgroup_limit_bytes: None,
        };
        assert_eq!(spare_of(&memory(400, 350)), (350 - 50 - 96) * MIB as i64);
        assert_eq!(spare_of(&memory(100, 20)), -(32 + 96 - 20) * MIB as i64);
        assert_eq!(spare_of(&memory(24 << 10, 10 << 10)), ((10 << 10) - 256 - 96) * MIB as i64);
        assert_eq!((interval(-1), interval(MIB as i64 * 800)), (INTERVAL_MIN, Duration::from_millis(100)));
        assert_eq!(interval(i64::MAX), INTERVAL_MAX);
    }
}
