//! Models of the lock, the fork barrier, budget shares, and the addresses of far pages.

mod barrier;
mod lock;
mod mappings;
mod shares;

/// The tables of all models of these parts.
pub(crate) const MODELS: &[&[crate::Model]] = &[lock::MODELS, barrier::MODELS, shares::MODELS, mappings::MODELS];
