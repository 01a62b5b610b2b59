//! What a server does now and then, beside its connections: takes rates, and gives memory that stays free back to the
//! system, a bounded amount at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::connection::House;

/// Between two rounds, at most.
const ROUND: Duration = Duration::from_secs(1);
/// Between two rounds, at least.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Free blocks given back in a round: at most 256 MiB.
const BLOCKS_A_ROUND: usize = 128;
/// Blocks with free slots thinned out in a round, of all sessions together.
const THINNED_A_ROUND: usize = 16;

/// Runs until the server stops. What stays free for `keep_free` is given back.
pub(crate) fn run(house: &Arc<House>, keep_free: Duration) {
    let round = (keep_free / 2).clamp(ROUND_MIN, ROUND);
    let mut last = Instant::now();
    while !house.stop.is_stopping() {
        let timeout = Timespec { tv_sec: round.as_secs() as i64, tv_nsec: i64::from(round.subsec_nanos()) };
        // Interrupted, it only comes round early; an error of poll leaves nothing better to do than to pause.
        if rustix::event::poll(&mut [PollFd::new(&*house.stop, PollFlags::IN)], Some(&timeout)).is_err() {
            std::thread::sleep(ROUND_MIN);
        }
        let elapsed = last.elapsed();
        if elapsed < round {
            continue;
        }
        last = Instant::now();
        house.store.tick(elapsed);
        house.registry.tick(elapsed);
        house.store.memory.shrink(keep_free, BLOCKS_A_ROUND);
        let mut left = THINNED_A_ROUND;
        for session in house.registry.sessions() {
            left -= session.thin(keep_free, left);
        }
    }
}
