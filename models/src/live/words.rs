//! A replacement for `live/words.rs` of `hanare-dsm`, the memory that ranks share. It has atomic words, and plain bytes
//! that the words guard.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::rc::Rc;

use loom::cell::Cell;

use crate::sync::atomic::{AtomicU8, AtomicU32};

/// The error of mapping memory, which a model never does.
#[derive(Debug)]
pub(crate) struct MapError;

/// The memory that all ranks see. It has only the words and bytes that a model uses. Each has its offset as the key.
pub(crate) struct Memory {
    words: BTreeMap<usize, AtomicU32>,
    bytes: BTreeMap<usize, AtomicU8>,
    /// Bytes that are not atomic. loom reports an access that may happen at the same time as a change by another
    /// thread.
    plain: BTreeMap<usize, Cell<u8>>,
}

impl Memory {
    pub(crate) fn new(words: &[usize], bytes: &[usize], plain: &[usize]) -> Rc<Self> {
        Rc::new(Self {
            words: words.iter().map(|&at| (at, AtomicU32::new(0))).collect(),
            bytes: bytes.iter().map(|&at| (at, AtomicU8::new(0))).collect(),
            plain: plain.iter().map(|&at| (at, Cell::new(0))).collect(),
        })
    }
}

pub(crate) struct Words(pub(crate) Rc<Memory>);

impl Words {
    pub(super) fn map(_: impl AsFd, _: u64, _: usize) -> Result<Self, MapError> {
        Err(MapError)
    }

    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        &self.0.words[&offset]
    }

    pub(super) fn byte(&self, offset: usize) -> &AtomicU8 {
        &self.0.bytes[&offset]
    }

    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in bytes.iter().enumerate() {
            self.0.plain[&(offset + at)].set(*byte);
        }
    }

    pub(super) fn append_to(&self, into: &mut Vec<u8>, offset: usize, count: usize) {
        into.extend((offset..offset + count).map(|at| self.0.plain[&at].get()));
    }
}
