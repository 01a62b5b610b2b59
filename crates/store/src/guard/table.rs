//! A table of notes about units (base pages). It has its memory from the start, and uses only the part of it that
//! belongs to units which were sent.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hanare_sys::map::{self, Advice, MapError, Mapping, page_size};

/// A table with `WORDS` words for each unit, all zero at first.
pub(super) struct Table<const WORDS: usize> {
    notes: Mapping,
    units: u32,
}

impl<const WORDS: usize> Table<WORDS> {
    pub(super) fn new(units: u32) -> Result<Self, MapError> {
        let bytes = units.max(1) as usize * size_of::<[AtomicU64; WORDS]>();
        let notes = Mapping::reserve(bytes, page_size())?;
        // A huge page would take 2 MiB for the first unit.
        // Ignored: a kernel that refuses this advice has no huge pages.
        // SAFETY: `notes` is a new mapping of our own, and the advice changes no contents.
        let (Ok(()) | Err(_)) = unsafe { map::advise(notes.addr(), notes.len(), Advice::NoHugePage) };
        Ok(Self { notes, units })
    }

    /// Returns the note about a unit. `None` if the table has no such unit.
    fn note(&self, unit: u32) -> Option<&[AtomicU64; WORDS]> {
        let notes = self.notes.as_ptr().cast::<[AtomicU64; WORDS]>().cast_const();
        // SAFETY: the mapping has `units` notes from its start on, and belongs to `self`. It is aligned to a page, and
        // zeroes are valid atomics. Nothing else accesses it.
        (unit < self.units).then(|| unsafe { &*notes.add(unit as usize) })
    }

    /// Replaces the note about a unit.
    pub(super) fn set(&self, unit: u32, words: [u64; WORDS]) {
        let note = self.note(unit);
        debug_assert!(note.is_some(), "unit {unit} is not in the table");
        note.into_iter().flatten().zip(words).for_each(|(into, word)| into.store(word, Relaxed));
    }

    /// Returns the words of the note about a unit. All are zero if the unit has none.
    pub(super) fn get(&self, unit: u32) -> [u64; WORDS] {
        self.note(unit).map_or([0; WORDS], |note| std::array::from_fn(|nth| note[nth].load(Relaxed)))
    }

    /// Returns a copy, as a fork makes it.
    #[cfg(test)]
    pub(super) fn copied(&self) -> Self {
        let copy = Self::new(self.units).expect("room");
        (0..self.units).for_each(|unit| copy.set(unit, self.get(unit)));
        copy
    }
}
