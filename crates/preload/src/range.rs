//! A range of the program's addresses, divided into far and near pieces. What happens to the pieces is up to the
//! callers.

use hanare::far;

pub(crate) const PAGE: usize = 4096;

/// The addresses from `start` up to but not including `end`. Both are multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Range {
    /// Returns the pages that overlap `[addr, addr + len)`, or `None` if the range wraps around the end of the address
    /// space.
    pub(crate) fn covering(addr: usize, len: usize) -> Option<Range> {
        let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        Some(Range { start: addr & !(PAGE - 1), end })
    }

    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }

    /// Returns the pieces of the range in order. The flag of a piece is true if the piece is far.
    pub(crate) fn pieces(self) -> impl Iterator<Item = (Range, bool)> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            if start >= self.end {
                return None;
            }
            let (far, end) = far::run(start, self.end);
            let piece = Range { start, end };
            start = end;
            Some((piece, far))
        })
    }

    /// Checks whether any part of the range is far.
    pub(crate) fn meets_far(self) -> bool {
        self.pieces().any(|(_, far)| far)
    }

    /// Checks whether the whole range is far, in one piece.
    pub(crate) fn is_far(self) -> bool {
        self.pieces().next() == Some((self, true))
    }
}
