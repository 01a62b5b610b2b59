//! Allocates near memory: the memory of Hanare's own data, which is never far.
//!
//! The preload library replaces the program's `malloc` and `mmap`, and its versions may return far memory. Hanare's own
//! data must never be far: a fault on the pager's own tables, for example, would wait for itself. So this module does
//! not use the replaced functions. It calls glibc's own functions for small blocks, and the kernel by system call
//! number for large ones.
//!
//! Large blocks ([`LARGE`] bytes or more) are mapped as zeroes, without a reservation of swap. So `vec![0; n]` takes no
//! memory until it is accessed.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use hanare_sys::{limits, syscall};

use crate::fatal::{self, EXIT_KERNEL};

/// Blocks of at least this size, in bytes, are separate mappings. Smaller blocks are in glibc's heap.
pub const LARGE: usize = 1 << 20;

/// Size of the kernel's page in bytes. The length of every mapping made here is a multiple of this size.
const PAGE: usize = 4096;

/// Alignment of glibc's blocks in bytes, on the 64-bit machines that Hanare supports.
const MALLOC_ALIGN: usize = 16;

/// The C library's own allocation functions, looked up in that library. The dynamic linker alone could bind even their
/// internal names to another allocator that defines them, such as tcmalloc. That allocator may call `mmap`, which
/// enters Hanare again. Hanare would then enter that allocator a second time.
///
/// Each function is called through a pointer. At first, every pointer holds a function that looks up all functions. All
/// functions come from one allocator. It is the C library's allocator if the library defines all functions. Otherwise,
/// as in a static program, it is the allocator to which the linker has bound the names.
#[cfg(target_env = "gnu")]
mod heap {
    use std::ffi::{CStr, c_void};
    use std::mem::transmute;
    use std::ptr::NonNull;
    use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

    use hanare_sys::symbols::Library;

    macro_rules! own {
        ($(fn $name:ident($($arg:ident: $type:ty),*) -> $result:ty, by $symbol:literal, $place:ident, $first:ident;)*) => {
            mod linked {
                use std::ffi::c_void;
                unsafe extern "C" {
                    $(#[link_name = $symbol] pub(super) fn $name($($arg: $type),*) -> $result;)*
                }
            }

            $(
                static $place: AtomicPtr<c_void> = AtomicPtr::new($first as *mut c_void);

                /// # Safety
                /// The requirements are those of the C library's function.
                unsafe extern "C" fn $first($($arg: $type),*) -> $result {
                    resolve();
                    // SAFETY: the caller meets the requirements of the C library's function.
                    unsafe { $name($($arg),*) }
                }

                /// # Safety
                /// The requirements are those of the C library's function.
                #[inline]
                pub(super) unsafe fn $name($($arg: $type),*) -> $result {
                    let found = $place.load(Relaxed);
                    // SAFETY: `found` always points to a function of this type, from the initial value on. The caller
                    // meets the requirements of the C library's function.
                    unsafe { transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> $result>(found)($($arg),*) }
                }
            )*

            const NAMES: &[&CStr] = &[$(match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without an end"),
            }),*];
            static PLACES: [&AtomicPtr<c_void>; NAMES.len()] = [$(&$place),*];

            /// Looks up all functions. Takes no lock and allocates nothing. Threads that call this at the same time
            /// find the same functions.
            #[cold]
            fn resolve() {
                let mut found: [*mut c_void; NAMES.len()] = [$(linked::$name as *mut c_void),*];
                if let Some(own) = of_the_library() {
                    found = own.map(NonNull::as_ptr);
                }
                for (place, found) in PLACES.iter().zip(found) {
                    place.store(found, Relaxed);
                }
            }
        };
    }

    own! {
        fn malloc(size: usize) -> *mut c_void, by "__libc_malloc", MALLOC, first_malloc;
        fn calloc(count: usize, size: usize) -> *mut c_void, by "__libc_calloc", CALLOC, first_calloc;
        fn realloc(block: *mut c_void, size: usize) -> *mut c_void, by "__libc_realloc", REALLOC, first_realloc;
        fn memalign(align: usize, size: usize) -> *mut c_void, by "__libc_memalign", MEMALIGN, first_memalign;
        fn free(block: *mut c_void) -> (), by "__libc_free", FREE, first_free;
        fn usable_size(block: *mut c_void) -> usize, by "malloc_usable_size", USABLE_SIZE, first_usable_size;
    }

    /// Looks up all functions in the C library. Returns `None` if it does not define all of them.
    fn of_the_library() -> Option<[NonNull<c_void>; NAMES.len()]> {
        let library = Library::loaded(c"libc.so.6")?;
        let mut found = [NonNull::dangling(); NAMES.len()];
        for (place, name) in found.iter_mut().zip(NAMES) {
            *place = library.function(name)?;
        }
        Some(found)
    }

    /// Returns an address in the code of the C library's allocator.
    pub(super) fn code() -> usize {
        if MALLOC.load(Relaxed) == first_malloc as *mut c_void {
            resolve();
        }
        MALLOC.load(Relaxed) as usize
    }

    #[cfg(test)]
    mod tests {
        #[test]
        fn the_functions_are_the_c_librarys_own() {
            assert!(super::of_the_library().is_some());
            assert_ne!(super::code(), super::first_malloc as *const () as usize);
            let found = super::PLACES.map(|place| place.load(super::Relaxed));
            assert_eq!(Some(found), super::of_the_library().map(|own| own.map(super::NonNull::as_ptr)));
        }
    }
}

#[cfg(not(target_env = "gnu"))]
mod heap {
    pub(super) use libc::{calloc, free, malloc, malloc_usable_size as usable_size, memalign, realloc};

    pub(super) fn code() -> usize {
        malloc as *const () as usize
    }
}

/// Calls the C library's own `malloc`, even if the program or a library replaces that name.
pub fn malloc(size: usize) -> *mut u8 {
    // SAFETY: any size is a valid argument.
    unsafe { heap::malloc(size).cast() }
}

/// Calls the C library's own `calloc`.
pub fn calloc(count: usize, size: usize) -> *mut u8 {
    // SAFETY: any pair of numbers is a valid argument, because the library checks the product.
    unsafe { heap::calloc(count, size).cast() }
}

/// Calls the C library's own `memalign`.
pub fn memalign(align: usize, size: usize) -> *mut u8 {
    // SAFETY: any pair of numbers is a valid argument. For a bad alignment, the library returns null.
    unsafe { heap::memalign(align, size).cast() }
}

/// Calls the C library's own `realloc`.
///
/// # Safety
/// `block` is null or a live block of the C library's heap that nothing else uses during the call.
pub unsafe fn realloc(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller guarantees that `block` is null or a live block that nothing else uses.
    unsafe { heap::realloc(block.cast(), size).cast() }
}

/// Calls the C library's own `free`.
///
/// # Safety
/// `block` is null or a live block of the C library's heap that nothing uses afterwards.
pub unsafe fn free(block: *mut u8) {
    // SAFETY: the caller guarantees that `block` is null or a live block that nothing uses afterwards.
    unsafe { heap::free(block.cast()) }
}

/// Calls the C library's own `malloc_usable_size`.
///
/// # Safety
/// `block` is null or a live block of the C library's heap.
pub unsafe fn usable_size(block: *mut u8) -> usize {
    // SAFETY: the caller guarantees that `block` is null or a live block.
    unsafe { heap::usable_size(block.cast()) }
}

/// Returns an address in the code of the library whose allocator this module uses.
pub fn code() -> usize {
    heap::code()
}

/// The allocator of Hanare's own data. `lib.rs` makes it the `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Near;

// SAFETY: the size in the layout (`is_large`) decides whether a block is in the heap or is a mapping. Every method
// receives the layout of the allocation, so a block is always freed by the allocator it came from. Neither allocator
// unwinds.
unsafe impl GlobalAlloc for Near {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        needed(if is_large(layout.size()) {
            note_large(map(layout.size(), layout.align()), layout.size())
        } else if layout.align() <= MALLOC_ALIGN {
            malloc(layout.size())
        } else {
            memalign(layout.align(), layout.size())
        })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout.size()) {
            return needed(note_large(map(layout.size(), layout.align()), layout.size()));
        }
        if layout.align() <= MALLOC_ALIGN {
            return needed(calloc(1, layout.size()));
        }
        let block = needed(memalign(layout.align(), layout.size()));
        // SAFETY: the block was just allocated with `layout.size()` bytes, and nothing else uses it yet.
        unsafe { block.write_bytes(0, layout.size()) };
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_large(layout.size()) {
            forget_large(block);
            unmap(block as usize, round_up(layout.size()));
        } else {
            // SAFETY: `block` is small, so it is a live block of the C library's heap. The caller does not use it
            // afterwards.
            unsafe { free(block) };
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if !is_large(layout.size()) && !is_large(new_size) && layout.align() <= MALLOC_ALIGN {
            // SAFETY: `block` is small, so it is a live block of the C library's heap. The caller owns it and uses only
            // the result afterwards.
            return needed(unsafe { realloc(block, new_size) });
        }
        if is_large(layout.size()) && is_large(new_size) && layout.align() <= PAGE {
            let moved = needed(remap(block, layout.size(), new_size));
            forget_large(block);
            return note_large(moved, new_size);
        }
        // SAFETY: the caller guarantees that `new_size` is not zero and does not overflow when rounded up to the
        // alignment. Both blocks are valid for the bytes copied and do not overlap. `block` is freed with its own
        // layout.
        unsafe {
            let moved = self.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
            self.dealloc(block, layout);
            moved
        }
    }
}

/// Returns `block`, or ends the run if it is null. Hanare's own code never asks for memory that it could do without.
fn needed(block: *mut u8) -> *mut u8 {
    if block.is_null() {
        fatal::die(
            EXIT_KERNEL,
            format_args!(
                "there is no memory left for Hanare's own tables; check what the program maps against vm.max_map_count, \
                 `ulimit -v`, `ulimit -d` and the memory of its control group"
            ),
        );
    }
    block
}

fn is_large(size: usize) -> bool {
    size >= LARGE
}

/// Rounds up to whole pages. A layout's size is at most `isize::MAX`, so this cannot overflow.
fn round_up(size: usize) -> usize {
    (size + PAGE - 1) & !(PAGE - 1)
}

/// Address and length of each large block, so that the memory of all large blocks can be reported. Blocks that do not
/// fit into the table are not counted.
static LARGE_BLOCKS: [[AtomicUsize; 2]; 64] = [const { [const { AtomicUsize::new(0) }; 2] }; 64];

/// Records a large block in the table and returns the block.
fn note_large(block: *mut u8, len: usize) -> *mut u8 {
    if !block.is_null() {
        let free = |[addr, _]: &&[AtomicUsize; 2]| addr.compare_exchange(0, block as usize, Relaxed, Relaxed).is_ok();
        if let Some([_, held]) = LARGE_BLOCKS.iter().find(free) {
            held.store(len, Relaxed);
        }
    }
    block
}

fn forget_large(block: *mut u8) {
    if let Some([addr, held]) = LARGE_BLOCKS.iter().find(|[addr, _]| addr.load(Relaxed) == block as usize) {
        held.store(0, Relaxed);
        addr.store(0, Relaxed);
    }
}

/// Returns how many bytes of all large blocks are resident.
pub fn large_resident() -> u64 {
    LARGE_BLOCKS.iter().map(|[addr, len]| resident(addr.load(Relaxed), len.load(Relaxed))).sum()
}

/// Returns how many bytes of a page-aligned mapped range are resident. Pages that are swapped out do not count.
pub fn resident(addr: usize, len: usize) -> u64 {
    let mut pages = [0u8; 4096];
    let mut bytes = 0;
    for from in (0..len).step_by(pages.len() * PAGE) {
        let part = (len - from).min(pages.len() * PAGE);
        // SAFETY: `mincore` does not access the range. It writes one byte to `pages` for each page of the range. `part`
        // is at most `pages.len()` pages long.
        if unsafe { syscall(libc::SYS_mincore, [addr + from, part, pages.as_mut_ptr() as usize, 0, 0, 0]) }.is_ok() {
            bytes += pages[..part.div_ceil(PAGE)].iter().filter(|&&page| page & 1 != 0).count() * PAGE;
        }
    }
    bytes as u64
}

/// Returns whether all pages of a page-aligned range are mapped.
pub fn is_mapped(addr: usize, len: usize) -> bool {
    (addr..addr + len).step_by(PAGE).all(|page| {
        let mut there = 0_u8;
        // SAFETY: `mincore` does not access the page. It writes one byte to `there`.
        unsafe { syscall(libc::SYS_mincore, [page, PAGE, &raw mut there as usize, 0, 0, 0]) }.is_ok()
    })
}

/// Maps zeroed memory with this alignment. Returns null if the kernel refuses.
fn map(size: usize, align: usize) -> *mut u8 {
    let len = round_up(size);
    if align <= PAGE {
        return map_pages(len);
    }
    let Some(wide) = len.checked_add(align) else {
        return null_mut();
    };
    let start = map_pages(wide);
    if start.is_null() {
        return start;
    }
    let lead = start.align_offset(align);
    unmap(start as usize, lead);
    let block = start.wrapping_add(lead);
    unmap(block as usize + len, wide - lead - len);
    block
}

fn map_pages(len: usize) -> *mut u8 {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new anonymous mapping at an address of the kernel's choice changes no existing memory. The system call
    // is made by number, because the name `mmap` may be replaced by a library.
    let map = || unsafe { syscall(libc::SYS_mmap, [0, len, prot as usize, flags as usize, usize::MAX, 0]) };
    limits::holding(len, true, map).map_or(null_mut(), |addr| without_dump(addr, len))
}

/// Excludes a new mapping from core files. Hanare's tables span gigabytes of mostly unused addresses, and a debugger
/// would write all of them as zeroes. If the kernel refuses, core files are larger, but nothing else changes.
fn without_dump(addr: usize, len: usize) -> *mut u8 {
    // SAFETY: MADV_DONTDUMP does not change the contents of memory.
    let _ = unsafe { syscall(libc::SYS_madvise, [addr, len, libc::MADV_DONTDUMP as usize, 0, 0, 0]) };
    addr as *mut u8
}

fn remap(block: *mut u8, old_size: usize, new_size: usize) -> *mut u8 {
    let (old_len, new_len) = (round_up(old_size), round_up(new_size));
    let may_move = libc::MREMAP_MAYMOVE as usize;
    // SAFETY: `block` is a mapping of `old_len` bytes made by `map`. If the call succeeds, its owner uses only the new
    // address.
    let map = || unsafe { syscall(libc::SYS_mremap, [block as usize, old_len, new_len, may_move, 0, 0]) };
    let addr = limits::holding(new_len.saturating_sub(old_len), true, map);
    if addr.is_ok() {
        limits::give_back(old_len.saturating_sub(new_len), true);
    }
    addr.map_or(null_mut(), |addr| addr as *mut u8)
}

fn unmap(addr: usize, len: usize) {
    if len > 0 {
        // SAFETY: callers pass a whole mapping made here, or its beginning or end, which nothing uses afterwards. The
        // call never splits a mapping, so it cannot exceed the limit on mappings.
        if unsafe { syscall(libc::SYS_munmap, [addr, len, 0, 0, 0, 0]) }.is_ok() {
            limits::give_back(len, true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(block: *mut u8, len: usize, seed: u8) {
        for at in 0..len {
            // SAFETY: `block` is a block of the test with at least `len` bytes.
            unsafe { block.add(at).write((at as u8).wrapping_mul(31) ^ seed) };
        }
    }

    fn check(block: *mut u8, len: usize, seed: u8) {
        for at in 0..len {
            // SAFETY: `block` is a block of the test with at least `len` bytes, which `fill` has written.
            let found = unsafe { block.add(at).read() };
            assert_eq!(found, (at as u8).wrapping_mul(31) ^ seed, "byte {at} of {len}");
        }
    }

    #[test]
    fn blocks_of_every_kind_are_aligned_and_keep_their_bytes() {
        for align in [1, 16, 64, 4096, 1 << 16, 1 << 21] {
            for size in [1, 100, 4096, LARGE - 1, LARGE, LARGE + 1, 3 * LARGE + 5] {
                let layout = Layout::from_size_align(size, align).expect("valid");
                // SAFETY: the layout is valid and its size is not zero. The block is freed once, with the same layout.
                unsafe {
                    let block = Near.alloc(layout);
                    assert!(!block.is_null());
                    assert_eq!(block as usize % align, 0, "size {size} align {align}");
                    fill(block, size, 7);
                    check(block, size, 7);
                    Near.dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn zeroed_blocks_are_zero_after_dirty_ones_were_freed() {
        for align in [8, 256] {
            for size in [64, 5000, LARGE + 12345] {
                let layout = Layout::from_size_align(size, align).expect("valid");
                // SAFETY: the layout is valid and its size is not zero. Each block is freed once, with the same layout.
                unsafe {
                    let dirty = Near.alloc(layout);
                    fill(dirty, size, 0xff);
                    Near.dealloc(dirty, layout);
                    let block = Near.alloc_zeroed(layout);
                    for at in 0..size {
                        assert_eq!(block.add(at).read(), 0);
                    }
                    Near.dealloc(block, layout);
                }
            }
        }
    }

    #[test]
    fn growing_and_shrinking_across_the_border_keeps_the_bytes() {
        let sizes = [10, 5000, LARGE - 1, LARGE, 4 * LARGE, 9 * LARGE + 1, 2 * LARGE, LARGE - 8, 64];
        for align in [8, 128, 1 << 14] {
            let mut size = 100;
            let mut layout = Layout::from_size_align(size, align).expect("valid");
            // SAFETY: `block` is always passed with its current layout, and is freed once.
            unsafe {
                let mut block = Near.alloc(layout);
                for (round, &next) in sizes.iter().enumerate() {
                    fill(block, size, round as u8);
                    block = Near.realloc(block, layout, next);
                    assert_eq!(block as usize % align, 0);
                    check(block, size.min(next), round as u8);
                    size = next;
                    layout = Layout::from_size_align(size, align).expect("valid");
                }
                Near.dealloc(block, layout);
            }
        }
    }

    #[test]
    fn what_is_touched_of_large_blocks_is_counted() {
        let layout = Layout::from_size_align(8 * LARGE, 8).expect("valid");
        // SAFETY: the layout is valid. The block is freed once, and only bytes inside it are written.
        unsafe {
            let block = Near.alloc_zeroed(layout);
            assert_eq!(resident(block as usize, layout.size()), 0);
            for page in [0, 1, 700] {
                block.add(page * PAGE).write(1);
            }
            assert_eq!(resident(block as usize, layout.size()), 3 * PAGE as u64);
            assert!(large_resident() >= 3 * PAGE as u64);
            Near.dealloc(block, layout);
        }
    }

    #[test]
    fn an_impossible_size_is_null() {
        assert!(map(1 << 60, 1 << 21).is_null());
    }
}
