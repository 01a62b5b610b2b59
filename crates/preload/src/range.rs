//! A range of the program's addresses, cut into what lies in the far reservation and what does not. It must not know
//! what is done with either.

use hanare::far;

pub(crate) const PAGE: usize = 4096;

/// A page-granular range that was asked about, cut in three. Each part may be empty (`start == end`).
pub(crate) struct Parts {
    pub(crate) before: Range,
    pub(crate) far: Range,
    pub(crate) after: Range,
}

/// `[start, end)`, both multiples of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Range {
    /// The pages that meet `[addr, addr + len)`; `None` when that wraps around the address space.
    pub(crate) fn covering(addr: usize, len: usize) -> Option<Range> {
        let end = addr.checked_add(len)?.checked_next_multiple_of(PAGE)?;
        Some(Range { start: addr & !(PAGE - 1), end })
    }

    pub(crate) fn len(self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Cuts the range at the edges of the far reservation. A range around the whole reservation counts as near: no
    /// program unmaps 256 GiB it never asked for.
    pub(crate) fn cut(self) -> Parts {
        let (mut from, mut to) = (self.start, self.start);
        if !self.is_empty() {
            let first = far::contains(self.start);
            let last = far::contains(self.end - PAGE);
            (from, to) = match (first, last) {
                (true, true) => (self.start, self.end),
                (true, false) => (self.start, edge(self, true)),
                (false, true) => (edge(self, false), self.end),
                (false, false) => (self.start, self.start),
            };
        }
        Parts {
            before: Range { start: self.start, end: from },
            far: Range { start: from, end: to },
            after: Range { start: to, end: self.end },
        }
    }
}

/// The one page boundary in `range` where being inside the reservation ends being `first`.
fn edge(range: Range, first: bool) -> usize {
    let (mut same, mut other) = (range.start, range.end - PAGE);
    while other - same > PAGE {
        let middle = same + (other - same) / 2 / PAGE * PAGE;
        if far::contains(middle) == first { same = middle } else { other = middle }
    }
    other
}
