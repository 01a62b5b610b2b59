//! The sizes of small blocks: jemalloc's size classes with a quantum of 16 bytes. When the heap is opened, the module
//! `arena` checks that the linked jemalloc has the same classes.

/// Minimum alignment and minimum size of a block, in bytes.
pub(super) const GRAIN: usize = 16;

/// Size of the largest small block, in bytes.
pub(super) const SMALL_MAX: usize = 14336;

/// Number of classes. Up to 128 bytes, the sizes grow in steps of 16 bytes. Beyond, each power of two has four classes.
const CLASSES: usize = 35;

/// The block size of each class in bytes, in ascending order.
pub(super) const SIZES: [u16; CLASSES] = sizes();

/// 2^28 divided by the size of each class, rounded up. The division of an offset in a page by the size is replaced by a
/// multiplication by this factor. The quotient is exact because 4095 * 14336 < 2^28.
const RECIPROCALS: [u32; CLASSES] = reciprocals();

/// The class of a block. The index is the block's size in multiples of [`GRAIN`].
static CLASS_OF: [u8; SMALL_MAX / GRAIN + 1] = class_of();

const fn sizes() -> [u16; CLASSES] {
    let mut sizes = [0; CLASSES];
    let (mut class, mut size, mut step) = (0, 0, GRAIN);
    while class < CLASSES {
        size += step;
        sizes[class] = size as u16;
        class += 1;
        // The first eight classes are 16 bytes apart. Then each power of two has four classes.
        if class >= 8 && class.is_multiple_of(4) {
            step = size / 4;
        }
    }
    assert!(sizes[CLASSES - 1] as usize == SMALL_MAX);
    sizes
}

const fn reciprocals() -> [u32; CLASSES] {
    let (mut factors, mut class) = ([0; CLASSES], 0);
    while class < CLASSES {
        factors[class] = (1u32 << 28).div_ceil(SIZES[class] as u32);
        class += 1;
    }
    factors
}

/// Returns `offset_in_page` modulo the block size of the class. Uses no division.
#[inline]
pub(super) fn modulo_size(offset_in_page: usize, class: usize) -> usize {
    let blocks = (offset_in_page as u64 * u64::from(RECIPROCALS[class])) >> 28;
    offset_in_page - blocks as usize * SIZES[class] as usize
}

const fn class_of() -> [u8; SMALL_MAX / GRAIN + 1] {
    let mut table = [0; SMALL_MAX / GRAIN + 1];
    let (mut grains, mut class) = (0, 0);
    while grains < table.len() {
        if grains * GRAIN > SIZES[class] as usize {
            class += 1;
        }
        table[grains] = class as u8;
        grains += 1;
    }
    table
}

/// Returns the class of the smallest blocks that hold `size` bytes. Returns `None` if `size` exceeds [`SMALL_MAX`].
#[inline]
pub(super) fn class_for(size: usize) -> Option<usize> {
    CLASS_OF.get(size.div_ceil(GRAIN)).map(|&class| class as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_has_the_smallest_class_that_holds_it() {
        for size in 0..=SMALL_MAX {
            let class = class_for(size).expect("small");
            assert!(SIZES[class] as usize >= size, "{size}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < size, "{size} has class {class}");
        }
        assert_eq!(class_for(SMALL_MAX + 1), None);
        for (class, &size) in SIZES.iter().enumerate() {
            for offset in 0..4096 {
                assert_eq!(modulo_size(offset, class), offset % size as usize, "{offset} modulo {size}");
            }
        }
        assert_eq!(&SIZES[6..12], &[112, 128, 160, 192, 224, 256]);
    }
}
