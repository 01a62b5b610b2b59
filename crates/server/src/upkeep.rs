//! The periodic work of a server: it updates the rates, and returns memory that stays free to the system, a bounded
//! amount in each round.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::connection::ServerState;

/// The longest pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// The shortest pause between two rounds.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Most free blocks that are returned in a round: 256 MiB.
const BLOCKS_A_ROUND: usize = 128;
/// Most blocks whose free slots are trimmed in a round, over all sessions.
const TRIMMED_A_ROUND: usize = 16;

/// Runs until the server stops. Returns memory that stayed free for `keep_free`.
pub(crate) fn run(state: &Arc<ServerState>, keep_free: Duration) {
    let round = (keep_free / 2).clamp(ROUND_MIN, ROUND);
    let mut last = Instant::now();
    while !state.stop.is_stopping() {
        let timeout = Timespec { tv_sec: round.as_secs() as i64, tv_nsec: i64::from(round.subsec_nanos()) };
        // An interrupted poll only ends the wait early. If poll fails, the thread sleeps shortly instead.
        if rustix::event::poll(&mut [PollFd::new(&*state.stop, PollFlags::IN)], Some(&timeout)).is_err() {
            std::thread::sleep(ROUND_MIN);
        }
        let elapsed = last.elapsed();
        if elapsed < round {
            continue;
        }
        last = Instant::now();
        state.store.tick(elapsed);
        state.registry.tick(elapsed);
        state.store.memory.shrink(keep_free, BLOCKS_A_ROUND);
        let mut left = TRIMMED_A_ROUND;
        for session in state.registry.sessions() {
            left -= session.trim(keep_free, left);
        }
    }
}
