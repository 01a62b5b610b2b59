//! Reads runs while they go on: their processes, their counters, and the changes in an interval. It knows nothing of
//! how they are shown.

pub(crate) mod processes;
pub(crate) mod rates;
pub(crate) mod runs;
