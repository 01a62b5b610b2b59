//! A range of the program's addresses, divided into far and near pieces. This room does not know what is done with
//! them.

use hanare::far;

pub(crate) const PAGE: usize = 4096;

/// `[start, end)`, both multiples of the page size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Range {
    /// The pages that overlap `[addr, addr + len)`; `None` if that wraps around the address space.
    pub(crate) fn covering(addr: usize, len: usize) -> Option<Range> {
        let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        Some(Range { start: addr & !(PAGE - 1), end })
    }

    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }

    /// The pieces in order, each with whether it is far.
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

    /// Whether any of it is far.
    pub(crate) fn meets_far(self) -> bool {
        self.pieces().any(|(_, far)| far)
    }

    /// Whether all of it is far, in one piece.
    pub(crate) fn is_far(self) -> bool {
        self.pieces().next() == Some((self, true))
    }
}
