//! Models of the files in `live` of `hanare-dsm`: message rings, pin words and published pages. With a pin word, a peer
//! keeps a page in its home's memory.

#[path = "../../../crates/dsm/src/live/gates.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod gates;
#[path = "../../../crates/dsm/src/live/offers.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod offers;
mod pins;
#[path = "../../../crates/dsm/src/live/post.rs"]
#[allow(dead_code, reason = "a model uses a part")]
mod post;
mod published;
mod rings;
mod words;

/// The tables of all models in `live`.
pub(crate) const MODELS: &[&[crate::Model]] = &[rings::MODELS, pins::MODELS, published::MODELS];
