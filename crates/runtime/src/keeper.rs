//! The keeper: a thread that maintains the links to the servers, publishes the counters and runs the watchdog. It parks the
//! process where another asks for it, and ends a process in which no thread of the program is left.

use std::sync::atomic::{AtomicU32, Ordering::*};
use std::time::Duration;

use hanare_sys::clock::now_ns;
use hanare_sys::futex;
use hanare_sys::signal::{self, SignalMask};
use hanare_sys::uffd::Uffd;

use crate::counters::raise;
use crate::engine::Engine;
use crate::fatal::{self, EXIT_KERNEL};
use crate::handler::lost_trap;
use crate::process::state;
use crate::watchdog::{Hang, Watchdog};
use crate::{gate, heap, load, park, steer, threads, tracing};

/// Near memory (Hanare's own data) is counted at the end of a run that had at least this many far bytes. Counting takes
/// about a millisecond.
const NEAR_COUNTED_MIN: u64 = 16 << 20;

/// Futex word by which other threads wake the keeper when it must act immediately.
pub(crate) static UPKEEP_WANTED: AtomicU32 = AtomicU32::new(0);

/// The main function of the keeper. It maintains the links, publishes the counters every tenth of a second, and runs
/// the watchdog.
pub(crate) fn keep(engine: &'static Engine) {
    let _mask = SignalMask::block_all();
    let mut published_ns = 0;
    let (mut request, mut parks) = (park::Request::default(), false);
    let mut watchdog = Watchdog::new(engine.hang_ms(), now_ns());
    loop {
        let heard = UPKEEP_WANTED.load(Acquire);
        let busy = parks || engine.store().is_reading();
        futex::wait(&UPKEEP_WANTED, heard, Some(Duration::from_millis(if busy { 1 } else { 20 })));
        if engine.store().is_waiting() {
            watchdog.rest(now_ns());
            // In sigbus and sigsegv mode, the threads of the program wait inside a handler that blocks every signal.
            signal::end_by_default(&[libc::SIGTERM, libc::SIGINT]);
        } else if gate::is_shut() {
            // A fork bounds its waits itself. The threads of the program wait for its end.
            watchdog.rest(now_ns());
        } else if let Some(hang) = watchdog.look(&engine.waits, now_ns())
            && !watchdog.raise(engine.hang_ms())
        {
            end_hang(engine, hang);
        }
        // While a fork keeps the gate closed, the keeper does no more than this.
        let Some(_inside) = gate::try_enter() else { continue };
        keep_up();
        parks = request.serve();
        if now_ns() - published_ns > 100_000_000 {
            if let Some(code) = threads::left_alone() {
                end_with(code);
            }
            if let Some(Err(errno)) = engine.view().uffd().map(Uffd::check) {
                lost_trap(errno);
            }
            engine.publish();
            count_private();
            load::publish(engine.counters);
            state().iter().for_each(|state| steer::look(state));
            published_ns = now_ns();
        }
    }
}

/// Ends this process, in which no thread of the program is left.
fn end_with(code: i32) -> ! {
    shutdown();
    // SAFETY: `_exit` ends the process without exit handlers. No thread of the program is left that could need them.
    unsafe { libc::_exit(code) }
}

/// Ends the run with a message about the hang and the state of the engine.
fn end_hang(engine: &Engine, hang: Hang) -> ! {
    struct Stand<'a>(&'a Engine);
    impl std::fmt::Display for Stand<'_> {
        fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            self.0.write_stand(out)
        }
    }
    let Hang { waits, seconds } = hang;
    let what = Stand(engine);
    fatal::die(
        EXIT_KERNEL,
        format_args!(
            "nothing goes on: {waits} threads wait for pages, for {seconds} s: {what}; if transfers hold most of the \
                      budget give a larger --local, else please report this line"
        ),
    )
}

/// Maintains the links, writes the trace and balances the budget share. Called inside the gate (the fork barrier) by
/// one of Hanare's own threads.
fn keep_up() {
    if let Some(state) = state() {
        state.engine.keep();
        tracing::flush();
        state.balance();
        state.follow_spare();
        state.return_old();
    }
}

/// Counts the private memory of this process that is not far.
fn count_private() {
    if let (Some(state), Some(all)) = (state(), threads::private_bytes()) {
        // Where the view consists of private memory, its resident pages are among the counted ones.
        let far = if state.engine.view().is_inherited() { state.engine.local_bytes() } else { 0 };
        state.seat.set_private(all.saturating_sub(far));
    }
}

/// Publishes the final counters at the end of a run. Far memory stays usable, because destructors may still access it.
pub fn shutdown() {
    if let Some(state) = state() {
        let _mask = SignalMask::block_all();
        tracing::finish();
        state.engine.publish();
        count_private();
        load::publish(state.engine.counters);
        if state.engine.counters.far_bytes_peak.load(Relaxed) >= NEAR_COUNTED_MIN {
            raise(&state.engine.counters.near_bytes, heap::near_bytes());
        }
        state.engine.counters.ended_ns.store(now_ns(), Relaxed);
    }
}
