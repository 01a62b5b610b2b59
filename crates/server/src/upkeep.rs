//! The periodic work of a server. Each round updates the transfer rates, and gives a bounded amount of unused memory
//! back to the system.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::connection::ServerState;
use crate::listen::Log;

/// The longest pause between two rounds.
const ROUND: Duration = Duration::from_secs(1);
/// The shortest pause between two rounds.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Maximum number of free blocks that one round gives back to the system: 256 MiB.
const BLOCKS_A_ROUND: usize = 128;
/// Maximum number of blocks that one round trims, over all sessions. Trimming a block gives the memory of the block's
/// free slots back to the system.
const TRIMMED_A_ROUND: usize = 16;

/// Does rounds until the server stops. A round gives memory that stayed free for `keep_free` back to the system, or all
/// free memory while the machine is short of it. It also ends kept sessions whose clients have not come back in time.
pub(crate) fn run(state: &Arc<ServerState>, keep_free: Duration, log: &Log) {
    let round = (keep_free / 2).clamp(ROUND_MIN, ROUND);
    let mut last = Instant::now();
    while !state.stop.is_stopping() {
        let timeout = Timespec { tv_sec: round.as_secs() as i64, tv_nsec: i64::from(round.subsec_nanos()) };
        // If `poll` fails, it may return without waiting. The sleep then keeps this loop from using the CPU all the
        // time.
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
        for session in state.registry.end_unclaimed(last) {
            log(&format!("session {session} has ended, for its client has not come back"));
        }
        let keep_free = if state.store.memory.is_short() { Duration::ZERO } else { keep_free };
        state.store.memory.shrink(keep_free, BLOCKS_A_ROUND);
        let mut left = TRIMMED_A_ROUND;
        for session in state.registry.sessions() {
            left -= session.trim(keep_free, left);
        }
    }
}
