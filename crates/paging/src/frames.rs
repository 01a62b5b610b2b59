//! Free frames of one class, the filled ones (memory behind them) apart from the empty ones (address space only).

/// Which frames of a pool are free.
#[derive(Debug)]
pub(crate) struct Frames {
    filled: Vec<u32>,
    /// Frames that are empty again; beside them, all from `fresh` on were never used.
    empty: Vec<u32>,
    fresh: u32,
    count: u32,
}

impl Frames {
    /// A pool of `count` frames, all empty.
    pub(crate) fn new(count: u32) -> Self {
        Self { filled: Vec::with_capacity(count as usize), empty: Vec::with_capacity(count as usize), fresh: 0, count }
    }

    /// A frame with memory behind it, the most recently used first since its lines may still be cached.
    pub(crate) fn take_filled(&mut self) -> Option<u32> {
        self.filled.pop()
    }

    /// A frame without memory.
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
