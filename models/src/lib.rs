//! The lock-free parts of Hanare under every interleaving that loom finds within a bound of preemptions.
//!
//! The files under test are those of the crates, included by their paths: the code that runs here is the code that runs in
//! production. Only what it is built on is different: `sync`, `futex`, `procfs`, `counters`, `coherence` and `live/words`
//! of this crate have the names and the calls of theirs. The models are in `models` and in `live`; each says what it
//! proves. `tests/models.rs` runs them: in a test of this library, the files' own tests would be compiled as well.
//!
//! Time does not pass by itself in a model, so nothing that a limit of time would rescue goes unnoticed.
#![deny(unsafe_code)]

#[path = "../../crates/runtime/src/gate/barrier.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod barrier;
#[path = "../../crates/sys/src/lock.rs"]
#[allow(dead_code, unsafe_code, unreachable_pub, reason = "a model uses a part; it gives out what its lock guards")]
mod lock;
#[path = "../../crates/runtime/src/span.rs"]
mod span;
#[path = "../../crates/runtime/src/tree.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod tree;
#[path = "../../crates/runtime/src/windows.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod windows;

mod coherence;
mod counters;
mod futex;
mod live;
mod models;
mod procfs;
mod sync;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most preemptions in one interleaving. A switch from a thread that has to wait is none.
const PREEMPTIONS_MAX: usize = 3;
/// Most steps of one interleaving.
const STEPS_MAX: usize = 2_000;

/// A model.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Its path.
    pub name: &'static str,
    run: fn(),
}

/// All models.
#[must_use]
pub fn models() -> Vec<Model> {
    [models::MODELS, live::MODELS].into_iter().flatten().copied().flatten().copied().collect()
}

impl Model {
    /// Runs every interleaving with at most [`PREEMPTIONS_MAX`] preemptions, or `LOOM_MAX_PREEMPTIONS` if that is set.
    /// Returns how many there were.
    ///
    /// # Panics
    /// An assertion failed, an access was not ordered with a change by another thread, all threads slept, or an
    /// interleaving did not end.
    #[must_use]
    pub fn check(&self) -> u64 {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(PREEMPTIONS_MAX));
        builder.max_branches = STEPS_MAX;
        let (count, run) = (Arc::new(AtomicU64::new(0)), self.run);
        builder.check({
            let count = Arc::clone(&count);
            move || {
                count.fetch_add(1, Relaxed);
                futex::reset();
                sync::set_now_ns(0);
                run();
            }
        });
        count.load(Relaxed)
    }
}

/// Makes the table of a file's models, which are functions.
macro_rules! table {
    ($($run:ident,)*) => {
        pub(crate) const MODELS: &[crate::Model] = &[$(crate::Model {
            name: concat!(module_path!(), "::", stringify!($run)),
            run: $run,
        }),*];
    };
}
use table;
