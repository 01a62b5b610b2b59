//! The free frames of one page size, and the frame of each page. A free frame is *filled* if it still has physical
//! memory, and *empty* if it is only a range of addresses.

use crate::units::{Geometry, PageId, Size};

/// The free frames of a pool.
#[derive(Debug)]
pub(crate) struct Frames {
    filled: Vec<u32>,
    /// Frames that were used and whose memory was then returned. Frames with a number from `fresh` on are also empty,
    /// because they were never used.
    empty: Vec<u32>,
    fresh: u32,
    count: u32,
}

impl Frames {
    /// Makes a pool of `count` frames, all empty.
    pub(crate) fn new(count: u32) -> Self {
        Self { filled: Vec::with_capacity(count as usize), empty: Vec::with_capacity(count as usize), fresh: 0, count }
    }

    /// Returns a free frame with memory behind it. The most recently used frame comes first, because its cache lines
    /// may still be present.
    pub(crate) fn take_filled(&mut self) -> Option<u32> {
        self.filled.pop()
    }

    /// Returns a free frame that has no memory.
    pub(crate) fn take_empty(&mut self) -> Option<u32> {
        self.empty.pop().or_else(|| {
            let frame = self.fresh;
            (frame < self.count).then(|| {
                self.fresh += 1;
                frame
            })
        })
    }

    pub(crate) fn put_filled(&mut self, frame: u32) {
        debug_assert!(frame < self.count && !self.filled.contains(&frame));
        self.filled.push(frame);
    }

    pub(crate) fn put_empty(&mut self, frame: u32) {
        debug_assert!(frame < self.count && !self.empty.contains(&frame));
        self.empty.push(frame);
    }

    pub(crate) fn filled(&self) -> u32 {
        self.filled.len() as u32
    }

    pub(crate) fn has_empty(&self) -> bool {
        !self.empty.is_empty() || self.fresh < self.count
    }
}

/// Maps a page's number to the number of its frame, for each page that has a frame.
///
/// Memory use: one word for each page. If base pages have no frames, it is one word for each run
/// ([`Geometry::run_units`]), or nothing if there are no blocks.
#[derive(Debug)]
pub(crate) struct Places {
    /// The frame number plus one, or 0 for no frame. Entries of pages that never had a frame are never written, so they
    /// need no physical memory.
    of: Vec<u32>,
    /// Number of units for each entry: 1, or the units of a run if base pages have no frames.
    units: u32,
}

impl Places {
    pub(crate) fn new(geometry: &Geometry, small_have_frames: bool) -> Self {
        let (words, units) = match (small_have_frames, geometry.block_units) {
            (true, _) => (geometry.units, 1),
            (false, 1) => (0, 1),
            (false, _) => (geometry.units / geometry.run_units(), geometry.run_units()),
        };
        Self { of: vec![0; words as usize], units }
    }

    /// Returns the index of a page's word in `of`, or `None` for a page that can have no frame.
    fn at(&self, page: PageId, size: Size) -> Option<usize> {
        (size != Size::Small || self.units == 1)
            .then_some((page.0 / self.units) as usize)
            .filter(|&at| at < self.of.len())
    }

    pub(crate) fn get(&self, page: PageId, size: Size) -> Option<u32> {
        self.of[self.at(page, size)?].checked_sub(1)
    }

    pub(crate) fn set(&mut self, page: PageId, size: Size, frame: Option<u32>) {
        let word = frame.map_or(0, |frame| frame + 1);
        if let Some(at) = self.at(page, size)
            && self.of[at] != word
        {
            self.of[at] = word;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_keep_the_frames_they_are_given_and_take_a_word_where_they_can_have_one() {
        let plain = Geometry { units: 64, unit_bytes: 4096, block_units: 1, middle_units: 1 };
        let mixed = Geometry { block_units: 16, ..plain };
        let three = Geometry { middle_units: 4, ..mixed };
        for (geometry, small, words) in [
            (plain, true, 64),
            (mixed, true, 64),
            (mixed, false, 4),
            (three, true, 64),
            (three, false, 16),
            (plain, false, 0),
        ] {
            let mut places = Places::new(&geometry, small);
            assert_eq!(places.of.len(), words);
            for size in Size::ALL {
                if size != Size::Small && geometry.span_of(size) == 1 {
                    continue;
                }
                let has = size != Size::Small || small;
                places.set(PageId(32), size, Some(0));
                assert_eq!(places.get(PageId(32), size), has.then_some(0));
                assert_eq!(places.get(PageId(16), size), None);
                places.set(PageId(32), size, None);
                assert_eq!(places.get(PageId(32), size), None);
            }
        }
    }
}
