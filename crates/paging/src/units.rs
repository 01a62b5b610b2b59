//! Numbers of pages and frames, and conversions between units, blocks and bytes.

use crate::limits;

/// A page. Its number is the number of its first unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u32);

/// A frame: local memory that is not mapped for the program. Each page size has its own pool of frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FrameId {
    /// Whether the frame holds a huge page.
    pub wide: bool,
    /// Index within the class's pool.
    pub index: u32,
}

/// The shape of the far space: the number and size of its units, and the number of units in a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Number of units.
    pub units: u32,
    /// Size of one unit in bytes, a power of two.
    pub unit_bytes: u32,
    /// Number of units of one block, a power of two. It is 1 if the page size is fixed.
    pub block_units: u32,
}

impl Geometry {
    /// Whether the shape is within [`limits`].
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.unit_bytes.is_power_of_two()
            && self.unit_bytes >= limits::UNIT_BYTES_MIN
            && self.block_units.is_power_of_two()
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
