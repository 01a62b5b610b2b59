//! Receives a run of units (base pages) to places that need not adjoin.

use std::io::IoSliceMut;
use std::marker::PhantomData;

use hanare_wire::limits::PIECES_MAX;
use hanare_wire::{LinkError, ReadReplies};

use crate::guard::{Damaged, Guard};

/// The memory for the units of a read. The value owns this memory while it exists.
pub(super) struct Scattered<'a> {
    at: *mut u8,
    /// The number of bytes of a piece: one unit, or all of them if they adjoin.
    piece_bytes: usize,
    pieces: usize,
    /// The number of units of a piece.
    piece_units: u32,
    /// The number of bytes between the first bytes of two pieces.
    stride: usize,
    owned: PhantomData<&'a mut u8>,
}

impl Scattered<'_> {
    /// Describes memory for `len` bytes of units, of `unit_bytes` each. The first unit is at `at`, and each further unit
    /// `stride` bytes after the last.
    ///
    /// # Safety
    /// The memory is there for each unit, and no other code accesses it while the value exists. `stride` is at least
    /// `unit_bytes`.
    pub(super) unsafe fn new(at: *mut u8, len: usize, unit_bytes: usize, stride: usize) -> Self {
        debug_assert!(stride >= unit_bytes && len.is_multiple_of(unit_bytes));
        let units = len / unit_bytes;
        let (piece_bytes, pieces, piece_units) =
            if stride == unit_bytes { (len, 1, units as u32) } else { (unit_bytes, units, 1) };
        Self { at, piece_bytes, pieces, piece_units, stride, owned: PhantomData }
    }

    /// Returns the pieces from `first` on.
    fn pieces_from(&mut self, first: usize) -> impl Iterator<Item = &mut [u8]> {
        let Self { at, piece_bytes, stride, .. } = *self;
        (first..self.pieces).map(move |index| {
            // SAFETY: this value owns the memory of all pieces, and is borrowed mutably. Two pieces do not overlap, because
            // `stride` is not less than the length of a piece.
            unsafe { std::slice::from_raw_parts_mut(at.wrapping_add(index * stride), piece_bytes) }
        })
    }

    /// Receives the payload of the last reply, which has the bytes of all units.
    ///
    /// # Errors
    /// The errors of the link. The bytes are then undefined.
    pub(super) fn receive(&mut self, link: &mut ReadReplies) -> Result<(), LinkError> {
        if self.pieces == 1 {
            return self.pieces_from(0).try_for_each(|piece| link.receive_payload(piece));
        }
        for first in (0..self.pieces).step_by(PIECES_MAX) {
            let mut window: [IoSliceMut<'_>; PIECES_MAX] = std::array::from_fn(|_| IoSliceMut::new(&mut []));
            let count = window
                .iter_mut()
                .zip(self.pieces_from(first))
                .map(|(place, piece)| *place = IoSliceMut::new(piece))
                .count();
            link.receive_pieces(&mut window[..count])?;
        }
        Ok(())
    }

    /// Checks the received units, numbered from `unit` on, and opens them if they are sealed.
    ///
    /// # Errors
    /// A unit is not as it was sent. None of the bytes may be used.
    pub(super) fn open(&mut self, guard: &Guard, unit: u32) -> Result<(), Damaged> {
        let piece_units = self.piece_units;
        (unit..=u32::MAX)
            .step_by(piece_units.max(1) as usize)
            .zip(self.pieces_from(0))
            .try_for_each(|(unit, piece)| guard.open(unit, piece))
    }
}
