//! Models of the lock, the fork barrier, budget shares, and where far bytes are.

mod barrier;
mod lock;
mod mappings;
mod shares;

/// All of them.
pub(crate) const MODELS: &[&[crate::Model]] = &[lock::MODELS, barrier::MODELS, shares::MODELS, mappings::MODELS];
