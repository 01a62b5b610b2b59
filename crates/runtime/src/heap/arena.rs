//! jemalloc over far memory: the extent hooks, by which jemalloc allocates address space, and safe calls of jemalloc.
//!
//! Hanare's own copy of jemalloc (its symbols are prefixed and invisible) serves only far memory. Each arena is created
//! with jemalloc's default hooks, so that the arena's metadata is in near memory. Then the arena receives the hooks of
//! this module, so that every extent for blocks is far. jemalloc itself never accesses far memory. It keeps the bitmaps
//! of slabs in its metadata, and its lists of free blocks in near memory. It does not zero new and discarded extents,
//! because they read as zeroes. It does not overwrite freed blocks.
//!
//! A thread of the program may hold jemalloc's locks while it is in the engine, so the engine never calls jemalloc.
//! jemalloc prepares itself for a fork by its own fork handlers (pthread_atfork). Its constructor registers these
//! handlers before Hanare's handlers. jemalloc's handlers do nothing before there is a heap.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as je;

use super::blocks::CHUNK;
use super::{HeapError, classes, heap};
use crate::ranges;

/// Maximum number of bytes by which an arena extends its address space at a time.
const GROW_MAX: usize = 16 << 20;

struct Hooks(je::extent_hooks_t);

// SAFETY: the table holds only pointers to plain functions, and nothing ever writes to it.
unsafe impl Sync for Hooks {}

/// The hooks of every arena. `dalloc` and `destroy` are absent, so an arena never frees address space. `decommit`
/// discards the pages of free extents.
static HOOKS: Hooks = Hooks(je::extent_hooks_t {
    alloc: Some(take_chunk),
    dalloc: None,
    destroy: None,
    commit: Some(commit),
    decommit: Some(decommit),
    purge_lazy: Some(purge_inside),
    purge_forced: None,
    split: Some(split),
    merge: Some(merge),
});

/// Runs a hook and restores the program's `errno` afterwards. The program expects that `free` and a successful `malloc`
/// do not change `errno`.
fn keeping_errno<T>(hook: impl FnOnce() -> T) -> T {
    // SAFETY: the location of the calling thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to the calling thread's own errno.
    let before = unsafe { errno.read() };
    let result = hook();
    // SAFETY: `errno` points to the calling thread's own errno.
    unsafe { errno.write(before) };
    result
}

unsafe extern "C" fn take_chunk(
    _: *mut je::extent_hooks_t,
    wanted: *mut c_void,
    len: usize,
    align: usize,
    zero: *mut bool,
    committed: *mut bool,
    _: c_uint,
) -> *mut c_void {
    // SAFETY: jemalloc passes a valid pointer `committed`.
    let must_be_committed = unsafe { committed.read() };
    // jemalloc first asks for memory that may have any address and need not be committed. If that fails, jemalloc
    // asks for a given address or for committed memory. This hook refuses these later requests.
    let grows = wanted.is_null() && !must_be_committed;
    let Some(whole) = len.checked_next_multiple_of(CHUNK).filter(|_| grows) else { return null_mut() };
    let Some(heap) = heap() else { return null_mut() };
    let Some(addr) = keeping_errno(|| ranges::take_for_heap(whole, align.max(CHUNK))) else { return null_mut() };
    heap.blocks.add_chunks(addr - heap.base, whole);
    // SAFETY: jemalloc passes a valid pointer `zero`.
    unsafe { zero.write(true) };
    addr as *mut c_void
}

/// Reserves room on the servers for `len` bytes. The pages need no other preparation. Returns true if the servers have
/// no room.
unsafe extern "C" fn commit(
    _: *mut je::extent_hooks_t,
    start: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    !keeping_errno(|| ranges::heap_uses(start as usize + offset, len))
}

/// Discards the pages of a free extent. Returns true, which is a refusal, if the extent does not consist of whole
/// units. A unit that lies only partly in the extent would not read as zeroes.
unsafe extern "C" fn decommit(
    _: *mut je::extent_hooks_t,
    start: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    let addr = start as usize + offset;
    let Some(heap) = heap() else { return true };
    heap.blocks.clear(addr - heap.base, len);
    // SAFETY: jemalloc has no block in a range that it decommits.
    !keeping_errno(|| unsafe { ranges::heap_forgets(addr, len) })
}

/// Discards the whole units inside an extent. jemalloc calls this after `decommit` has refused the extent.
unsafe extern "C" fn purge_inside(
    _: *mut je::extent_hooks_t,
    start: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    // SAFETY: jemalloc has no block in a range that it purges.
    keeping_errno(|| unsafe { ranges::heap_discards(start as usize + offset, len) });
    false
}

unsafe extern "C" fn split(
    _: *mut je::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

unsafe extern "C" fn merge(
    _: *mut je::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: *mut c_void,
    _: usize,
    _: bool,
    _: c_uint,
) -> bool {
    false
}

// ---- starting -------------------------------------------------------------------------------------------------------

unsafe extern "C" {
    fn hanare_heap_is_used();
    fn hanare_heap_before_fork();
    fn hanare_heap_is_locked() -> c_int;
    /// Number of arenas. C code sets it before `main`, and nothing writes to it afterwards.
    #[link_name = "hanare_heap_arenas"]
    safe static ARENAS: c_uint;
}

/// If there is a heap, acquires jemalloc's locks for a fork that this thread is about to make. jemalloc's fork handlers
/// release the locks after the fork.
pub(super) fn lock_for_fork() {
    // SAFETY: the function runs jemalloc's own fork handler. The forking thread calls it once for each fork.
    unsafe { hanare_heap_before_fork() };
}

/// Checks whether the child of the present fork will find jemalloc's locks free. This is true if this thread holds the
/// locks, because jemalloc's fork handler releases them in the child. This is also true if the handlers of `jemalloc.c`
/// are not linked in, because jemalloc itself then acquires and releases the locks.
pub(super) fn is_locked() -> bool {
    // SAFETY: the function only reads a flag of the calling thread.
    unsafe { hanare_heap_is_locked() != 0 }
}

/// Checks that the linked jemalloc has the options and size classes that this module expects. Creates all arenas and
/// sets their hooks.
pub(super) fn open() -> Result<(), HeapError> {
    let arenas: c_uint = read(c"opt.narenas")?;
    let oversize: usize = read(c"opt.oversize_threshold")?;
    let thp: *const libc::c_char = read(c"opt.metadata_thp")?;
    // SAFETY: jemalloc returns a terminated string that it never frees.
    let thp = unsafe { CStr::from_ptr(thp) };
    if arenas != ARENAS || oversize != 0 || thp != c"auto" {
        return Err(HeapError::Options);
    }
    check_classes()?;
    for arena in (0..arenas).rev() {
        // jemalloc creates an arena when a thread is bound to it. After the loop, this thread is bound to arena 0.
        write(c"thread.arena", arena)?;
        write_of(c"arena.0.extent_hooks", arena, (&raw const HOOKS.0).cast_mut())?;
        write_of(c"arena.0.retain_grow_limit", arena, GROW_MAX)?;
    }
    // From now on a fork acquires jemalloc's locks. If a fork did so earlier, it could hold them while it waits at the
    // gate for the end of the start, and the start would wait for the locks.
    // SAFETY: the function only sets an atomic flag.
    unsafe { hanare_heap_is_used() };
    Ok(())
}

/// Checks that jemalloc's size classes equal those in `classes`. jemalloc has an additional class of 8 bytes, which
/// this module never requests.
fn check_classes() -> Result<(), HeapError> {
    let bins: c_uint = read(c"arenas.nbins")?;
    if bins as usize != classes::SIZES.len() + 1 {
        return Err(HeapError::Options);
    }
    for (class, &size) in classes::SIZES.iter().enumerate() {
        let (mut mib, mut found, mut len) = (mib::<4>(c"arenas.bin.0.size")?, 0usize, size_of::<usize>());
        mib[2] = class + 1;
        let place = (&raw mut found).cast();
        // SAFETY: `mib` names an option in four parts. `place` points to a value of the option's type, with the size
        // `len`.
        let code = unsafe { je::mallctlbymib(mib.as_ptr(), mib.len(), place, &raw mut len, null_mut(), 0) };
        if code != 0 || found != size as usize {
            return Err(HeapError::Options);
        }
    }
    Ok(())
}

fn read<T: Copy>(name: &'static CStr) -> Result<T, HeapError> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    let mut len = size_of::<T>();
    // SAFETY: `name` is terminated, and `value` has room for `len` bytes. jemalloc refuses a length that does not fit
    // the option.
    let code = unsafe { je::mallctl(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut len, null_mut(), 0) };
    // SAFETY: `mallctl` returned 0, so it has written the value.
    if code == 0 { Ok(unsafe { value.assume_init() }) } else { Err(refused(name, code)) }
}

fn write<T: Copy>(name: &'static CStr, mut value: T) -> Result<(), HeapError> {
    // SAFETY: `name` is terminated, and the length is that of `value`. jemalloc refuses a length that does not fit the
    // option.
    let code = unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), (&raw mut value).cast(), size_of::<T>()) };
    if code == 0 { Ok(()) } else { Err(refused(name, code)) }
}

/// Writes an option of the arena with index `arena`. `name` is the name of this option for arena 0.
fn write_of<T: Copy>(name: &'static CStr, arena: c_uint, mut value: T) -> Result<(), HeapError> {
    let mut mib = mib::<3>(name)?;
    mib[1] = arena as usize;
    // SAFETY: `mib` names an option in three parts, and the length is that of `value`. jemalloc refuses a length that
    // does not fit the option.
    let code = unsafe {
        je::mallctlbymib(mib.as_ptr(), mib.len(), null_mut(), null_mut(), (&raw mut value).cast(), size_of::<T>())
    };
    if code == 0 { Ok(()) } else { Err(refused(name, code)) }
}

fn mib<const PARTS: usize>(name: &'static CStr) -> Result<[usize; PARTS], HeapError> {
    let (mut mib, mut parts) = ([0; PARTS], PARTS);
    // SAFETY: `name` is terminated, and `mib` has room for `parts` numbers.
    let code = unsafe { je::mallctlnametomib(name.as_ptr(), mib.as_mut_ptr(), &raw mut parts) };
    if code == 0 && parts == PARTS { Ok(mib) } else { Err(refused(name, code)) }
}

fn refused(name: &'static CStr, code: i32) -> HeapError {
    HeapError::Refused { option: name, source: std::io::Error::from_raw_os_error(code) }
}

/// Number of entries of `hanare_jemalloc_maps` in jemalloc.c. An entry has the address and the length of a mapping that
/// jemalloc made for its metadata. An unused entry is zero.
const MAPS_MAX: usize = 256;

unsafe extern "C" {
    #[link_name = "hanare_jemalloc_maps"]
    safe static MAPS: [[AtomicUsize; 2]; MAPS_MAX];
}

/// Returns the address and the length of each mapping with jemalloc's metadata.
pub(super) fn metadata() -> impl Iterator<Item = (usize, usize)> {
    MAPS.iter().map(|[addr, len]| (addr.load(Relaxed), len.load(Relaxed))).filter(|&(_, len)| len > 0)
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/// Allocates a block of `size` bytes (at least 16), aligned to 16 bytes. Returns `None` and sets errno if there is no
/// room.
#[inline]
pub(super) fn alloc(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: `malloc` accepts any size.
    NonNull::new(unsafe { je::malloc(size) }.cast())
}

/// Allocates a block of `size` bytes at a multiple of `align`, which is a power of two. Returns `None` if there is no
/// room.
pub(super) fn alloc_aligned(size: usize, align: usize) -> Option<NonNull<u8>> {
    // SAFETY: the caller passes a `size` that is not zero and an `align` that is a power of two.
    NonNull::new(unsafe { je::mallocx(size, je::MALLOCX_ALIGN(align)) }.cast())
}

/// Returns the usable size in bytes of a block that is requested with this size and alignment.
pub(super) fn size_for(size: usize, align: usize) -> usize {
    // SAFETY: the caller passes a `size` that is not zero and an `align` that is a power of two.
    unsafe { je::nallocx(size, je::MALLOCX_ALIGN(align)) }
}

/// Frees a block of known size.
///
/// # Safety
/// A function of this module allocated `block` with `size` usable bytes. The block is not yet freed, and nothing uses
/// it after the call.
#[inline]
pub(super) unsafe fn free_sized(block: *mut u8, size: usize) {
    // SAFETY: the caller promises a live block of jemalloc with `size` bytes, which nothing uses afterwards.
    unsafe { je::sdallocx(block.cast(), size, 0) }
}

/// Frees a block.
///
/// # Safety
/// A function of this module allocated `block`. The block is not yet freed, and nothing uses it after the call.
pub(super) unsafe fn free(block: *mut u8) {
    // SAFETY: the caller promises a live block of jemalloc, which nothing uses afterwards.
    unsafe { je::dallocx(block.cast(), 0) }
}

/// Returns the usable size of a block, in bytes.
///
/// # Safety
/// A function of this module allocated `block`, and it is not yet freed.
pub(super) unsafe fn size_of_block(block: *mut u8) -> usize {
    // SAFETY: the caller promises a live block of jemalloc.
    unsafe { je::sallocx(block.cast(), 0) }
}

/// Resizes a block in place, as far as possible. Returns the new usable size of the block, in bytes.
///
/// # Safety
/// A function of this module allocated `block`. It is not yet freed, and no other code uses it during the call.
pub(super) unsafe fn resize_in_place(block: *mut u8, size: usize) -> usize {
    // SAFETY: the caller promises a live block of jemalloc that no other code uses meanwhile. `size` is not zero.
    unsafe { je::xallocx(block.cast(), size, 0, 0) }
}
