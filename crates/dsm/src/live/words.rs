//! A part of a rank's memory that ranks of one host share: words, and bytes that only the words guard.
//!
//! `models/` has a module of the same name on loom, and runs every interleaving of what is built on it: `post.rs`,
//! `gates.rs`, `offers.rs`.
#![allow(unsafe_code, reason = "memory that other processes change meanwhile, never behind a reference")]

use std::os::fd::AsFd;

use hanare_sys::map::Mapping;

use crate::sync::atomic::{AtomicU8, AtomicU32};

pub(super) use hanare_sys::map::MapError;

/// A mapped part of a rank's memory.
pub(super) struct Words {
    mapping: Mapping,
}

impl Words {
    /// `len` bytes of a rank's memory from `offset` on.
    pub(super) fn map(memory: impl AsFd, offset: u64, len: usize) -> Result<Self, MapError> {
        Ok(Self { mapping: Mapping::shared(memory, offset, len)? })
    }

    /// The address of `len` bytes from `offset` on.
    #[inline]
    fn at<T>(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.mapping.len()), "within the memory");
        std::ptr::with_exposed_provenance_mut(self.mapping.addr() + offset)
    }

    /// The word at `offset`, a multiple of 4.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "an aligned word");
        // SAFETY: an aligned word of a mapping that lives as long as `self`, accessed as an atomic only.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4)) }
    }

    /// The byte at `offset`.
    #[inline]
    pub(super) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: a byte of a mapping that lives as long as `self`, accessed as an atomic only.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Copies bytes to `offset`. The words say that no other rank accesses these bytes meanwhile. A rank that lies
    /// damages only what it reads itself.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the bytes lie within the mapping, and no reference to them exists in this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }

    /// Appends `count` bytes from `offset` on to `into`. The words say that no other rank changes them meanwhile.
    pub(super) fn append_to(&self, into: &mut Vec<u8>, offset: usize, count: usize) {
        into.reserve(count);
        // SAFETY: the bytes lie within the mapping; `into` has room for them, and is `count` bytes longer afterwards.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset, count), into.as_mut_ptr().add(into.len()), count);
            into.set_len(into.len() + count);
        }
    }
}
