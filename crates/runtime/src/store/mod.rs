//! Where pages live when they are not here: in slots this process copies itself (`direct`), or on memory servers
//! behind a link (`remote`). This room moves bytes and keeps track of what is held where; it decides nothing about pages.

use hanare_paging::{Event, FrameId, PageId};

use remote::Read;

pub(crate) mod direct;
pub(crate) mod remote;
mod shared;

/// The engine as the store sees it: it has the frames, and learns how each transfer ended.
pub(crate) trait Client: Sync {
    /// The bytes of a frame.
    fn frame(&self, frame: FrameId) -> *mut u8;

    /// Puts the bytes of a read where they belong. `payload` writes them to the address that it is given: the page's own
    /// place, or `spare`, from where they are copied. Returns the event for the pager.
    fn receive(&self, read: Read, spare: *mut u8, payload: impl FnOnce(*mut u8)) -> Event;

    /// A transfer has ended.
    fn ended(&self, event: Event);

    /// Wakes whoever waits for these pages.
    fn notify(&self, page: PageId, count: u32);

    /// A request was sent.
    fn requested(&self);
}

/// Which units are held, and how many of each stretch. A stretch whose last unit is released is free as a whole.
pub(crate) struct Held {
    bits: Vec<u64>,
    per_stretch: Vec<u16>,
    stretch_units: u32,
}

impl Held {
    pub(crate) fn new(units: u32, stretch_units: u32) -> Self {
        let stretches = units.div_ceil(stretch_units) as usize;
        Self { bits: vec![0; units as usize / 64 + 1], per_stretch: vec![0; stretches], stretch_units }
    }

    /// These units are held now.
    pub(crate) fn mark(&mut self, first: u32, count: u32) {
        for unit in first..first + count {
            let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
            if self.bits[word] & bit == 0 {
                self.bits[word] |= bit;
                self.per_stretch[(unit / self.stretch_units) as usize] += 1;
            }
        }
    }

    /// This unit is no longer held; true when nothing of its stretch is.
    pub(crate) fn release(&mut self, unit: u32) -> bool {
        let (word, bit) = (unit as usize / 64, 1 << (unit % 64));
        if self.bits[word] & bit == 0 {
            return false;
        }
        self.bits[word] &= !bit;
        let left = &mut self.per_stretch[(unit / self.stretch_units) as usize];
        *left -= 1;
        *left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_is_free_when_its_last_unit_is_released_and_only_then() {
        let mut held = Held::new(16, 4);
        held.mark(4, 3);
        held.mark(5, 1);
        assert!(!held.release(4) && !held.release(4) && !held.release(6));
        assert!(held.release(5));
        assert!(!held.release(5));
        held.mark(5, 1);
        assert!(held.release(5));
    }
}
