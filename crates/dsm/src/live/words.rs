//! A part of a rank's memory that the ranks of one host share. Atomic words in this part guard its other bytes.
//!
//! `models/` replaces this module by a module of the same name that uses loom. With it, the models check the
//! interleavings of `post.rs`, `gates.rs` and `offers.rs`, which use this module.
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
    /// Maps `len` bytes of a rank's memory from `offset` on.
    pub(super) fn map(memory: impl AsFd, offset: u64, len: usize) -> Result<Self, MapError> {
        Ok(Self { mapping: Mapping::shared(memory, offset, len)? })
    }

    /// Returns the address of `len` bytes from `offset` on. Panics if these bytes do not all lie in the mapping.
    #[inline]
    fn at<T>(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.mapping.len()), "within the memory");
        std::ptr::with_exposed_provenance_mut(self.mapping.addr() + offset)
    }

    /// Returns the word at `offset`, a multiple of 4.
    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "an aligned word");
        // SAFETY: `at` returns an aligned word of the mapping, which lives as long as `self`. All code accesses the
        // word as an atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4)) }
    }

    /// Returns the byte at `offset`.
    #[inline]
    pub(super) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `at` returns a byte of the mapping, which lives as long as `self`. All code accesses the byte as an
        // atomic.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Copies bytes to `offset`. The caller uses the atomic words so that no other rank accesses these bytes during the
    /// copy. A faulty rank that ignores the words can only spoil the bytes that it reads itself.
    pub(super) fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: `at` checks that the bytes lie in the mapping. No reference to them exists in this process.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.at(offset, bytes.len()), bytes.len()) };
    }

    /// Appends `count` bytes from `offset` on to `into`. The caller uses the atomic words so that no other rank changes
    /// these bytes during the copy.
    pub(super) fn append_to(&self, into: &mut Vec<u8>, offset: usize, count: usize) {
        into.reserve(count);
        // SAFETY: `at` checks that the bytes lie in the mapping. `into` has room for them, and they are written before
        // its length grows by `count`.
        unsafe {
            std::ptr::copy_nonoverlapping(self.at(offset, count), into.as_mut_ptr().add(into.len()), count);
            into.set_len(into.len() + count);
        }
    }
}
