//! Numbers of pages and frames, and conversions between units, blocks and bytes.

use crate::limits;

/// Largest number of units of a middle page. The accessed units of a run are bits of a word.
const RUN_UNITS_MAX: u32 = u16::BITS;

/// A page. Its number is the number of its first unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u32);

/// The size of a page. With a fixed page size, all pages are base pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Size {
    /// A base page: one unit.
    Small = 0,
    /// A middle page: [`Geometry::middle_units`] units.
    Middle,
    /// A huge page: one block.
    Wide,
}

impl Size {
    /// All sizes, the smallest first.
    pub const ALL: [Self; 3] = [Self::Small, Self::Middle, Self::Wide];
}

/// A frame: local memory that is not mapped for the program. Each page size has its own pool of frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameId {
    /// The size of the page that the frame holds.
    pub size: Size,
    /// Index within the class's pool.
    pub index: u32,
}

/// The shape of the far space: the number and size of its units, and the number of units in larger pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of units.
    pub units: u32,
    /// Size of one unit in bytes, a power of two.
    pub unit_bytes: u32,
    /// Number of units of one block, a power of two. It is 1 if the page size is fixed.
    pub block_units: u32,
    /// Number of units of one middle page, a power of two. It is 1 if there are no middle pages.
    pub middle_units: u32,
}

impl Geometry {
    /// Whether the shape is within [`limits`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.unit_bytes.is_power_of_two()
            && self.unit_bytes >= limits::UNIT_BYTES_MIN
            && self.block_units.is_power_of_two()
            && self.middle_units.is_power_of_two()
            && (self.middle_units == 1 || self.middle_units < self.block_units && self.middle_units <= RUN_UNITS_MAX)
            && u64::from(self.unit_bytes) * u64::from(self.block_units) <= u64::from(limits::PAGE_BYTES_MAX)
            && self.units > 0
            && self.units <= limits::UNITS_MAX
            && self.units.is_multiple_of(self.block_units)
    }

    /// Returns the number of units of a placement extent. All pages of an extent are placed on the same server. Its
    /// size is that of the largest page.
    #[must_use]
    pub fn stretch_units(&self) -> u32 {
        limits::PAGE_BYTES_MAX / self.unit_bytes
    }

    /// Whether blocks may consist of middle pages.
    #[must_use]
    pub fn has_middle(&self) -> bool {
        self.middle_units > 1
    }

    /// Returns the number of units of one page.
    #[must_use]
    pub fn span_of(&self, size: Size) -> u32 {
        match size {
            Size::Small => 1,
            Size::Middle => self.middle_units,
            Size::Wide => self.block_units,
        }
    }

    /// Returns the number of units of a run. All pages in a run have the same size. A run is a middle page or consists of
    /// base pages, or it belongs to a huge page. Without middle pages, a run is a block.
    #[must_use]
    pub fn run_units(&self) -> u32 {
        if self.has_middle() { self.middle_units } else { self.block_units }
    }

    /// Returns the block that contains a unit.
    #[must_use]
    pub fn block(&self, unit: u32) -> u32 {
        unit / self.block_units
    }

    /// Returns the number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.units / self.block_units
    }

    /// Returns the first unit of the block that contains a unit.
    #[must_use]
    pub fn block_start(&self, unit: u32) -> u32 {
        unit & !(self.block_units - 1)
    }
}
