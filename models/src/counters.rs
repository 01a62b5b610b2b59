//! The counters of a run that the budget shares update, with the same names as in `counters.rs` of the runtime.

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) local_bytes: AtomicU64,
    pub(crate) local_bytes_peak: AtomicU64,
    pub(crate) budget_bytes: AtomicU64,
    pub(crate) far_bytes: AtomicU64,
    pub(crate) far_bytes_peak: AtomicU64,
    pub(crate) private_bytes: AtomicU64,
    pub(crate) private_bytes_peak: AtomicU64,
}

pub(crate) fn raise(counter: &AtomicU64, value: u64) {
    counter.fetch_max(value, Relaxed);
}
