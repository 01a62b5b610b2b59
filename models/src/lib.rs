//! Checks the lock-free parts of Hanare under every interleaving that loom finds with a limited number of preemptions.
//!
//! The files under test are included by their paths in the other crates, so the models run the code that runs in
//! production. Only the modules that these files use are replaced: `sync`, `futex`, `procfs`, `counters`, `coherence`
//! and `live/words` of this crate have the names and the functions of the original modules. The models are in `models`
//! and in `live`, and the comment of each model says what the model proves. `tests/models.rs` runs the models. The
//! models are not unit tests of this library, because the unit tests of the included files would then be compiled as
//! well.
//!
//! Time passes in a model only when the model sets the clock. So a thread that waits for a time limit sleeps for ever,
//! and loom reports this.
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
#[allow(dead_code, unreachable_pub, reason = "a model uses a part; its figures are public elsewhere")]
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

/// Maximum number of preemptions in one interleaving. A switch away from a thread that has to wait is not a preemption.
const PREEMPTIONS_MAX: usize = 3;
/// Maximum number of steps of one interleaving. More steps are an error.
const STEPS_MAX: usize = 2_000;

/// A named model and the function that runs it.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// The path of the model's function, with its modules.
    pub name: &'static str,
    run: fn(),
}

/// All models.
#[must_use]
pub fn models() -> Vec<Model> {
    [models::MODELS, live::MODELS].into_iter().flatten().copied().flatten().copied().collect()
}

impl Model {
    /// Runs every interleaving with at most [`PREEMPTIONS_MAX`] preemptions, or `LOOM_MAX_PREEMPTIONS` if that variable
    /// is set. Returns the number of interleavings.
    ///
    /// # Panics
    /// Panics when an assertion fails, an access is not ordered with another thread's change, all threads sleep, or an
    /// interleaving does not end.
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

/// Makes the table of the models in one file, from the names of their functions.
macro_rules! table {
    ($($run:ident,)*) => {
        pub(crate) const MODELS: &[crate::Model] = &[$(crate::Model {
            name: concat!(module_path!(), "::", stringify!($run)),
            run: $run,
        }),*];
    };
}
use table;
