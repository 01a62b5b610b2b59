//! jemalloc over far extents: the extent hooks, and its calls.
//!
//! This process' copy of jemalloc (its symbols are prefixed and invisible) serves far memory and nothing else. Each of
//! its arenas is created with the default hooks, so that the arena's metadata stays in near memory. Then the arena gets
//! our hooks, so that every extent for blocks is far. jemalloc never accesses far memory itself: slabs have their
//! bitmaps in the metadata, free blocks are kept in near stacks, new and discarded extents are known to be zero, and no
//! junk is filled in.
//!
//! A thread of the program may hold jemalloc's locks while it is in the engine, so the engine never calls jemalloc.
//! jemalloc prepares itself for fork (pthread_atfork). Once there is a heap, its constructor registers the handlers,
//! before ours.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tikv_jemalloc_sys as je;

use super::blocks::CHUNK;
use super::{HeapError, classes, with_heap};
use crate::ranges;

/// Most bytes of address space that an arena allocates at a time.
const GROW_MAX: usize = 16 << 20;

struct Hooks(je::extent_hooks_t);

// SAFETY: a table of plain functions that is never written to.
unsafe impl Sync for Hooks {}

/// `dalloc` and `destroy` are absent: an arena keeps its address space, and `decommit` returns its pages.
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

/// Runs a hook and restores the program's `errno`: malloc sets it on failure only, free never.
fn keeping_errno<T>(hook: impl FnOnce() -> T) -> T {
    // SAFETY: the location of the calling thread's errno is always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { errno.read() };
    let result = hook();
    // SAFETY: as above.
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
    // SAFETY: jemalloc passes valid places.
    let must_be_committed = unsafe { committed.read() };
    // An arena grows by a chunk. jemalloc asks for a given address or for committed memory only after that has failed,
    // so such calls are refused.
    let grows = wanted.is_null() && !must_be_committed;
    let Some(whole) = len.checked_next_multiple_of(CHUNK).filter(|_| grows) else { return null_mut() };
    let Some(addr) = keeping_errno(|| ranges::take_for_heap(whole, align.max(CHUNK))) else { return null_mut() };
    with_heap(|heap| heap.blocks.add_chunks(addr - heap.base, whole));
    // SAFETY: as above.
    unsafe { zero.write(true) };
    addr as *mut c_void
}

/// Reserves room on the servers. The pages themselves need no commit. Returns true for a refusal.
unsafe extern "C" fn commit(
    _: *mut je::extent_hooks_t,
    _: *mut c_void,
    _: usize,
    _: usize,
    len: usize,
    _: c_uint,
) -> bool {
    !keeping_errno(|| ranges::heap_uses(len))
}

/// Discards the pages of a free extent. Returns true for a refusal, if a page lies only partly in the extent: it would
/// not read as zeroes.
unsafe extern "C" fn decommit(
    _: *mut je::extent_hooks_t,
    start: *mut c_void,
    _: usize,
    offset: usize,
    len: usize,
    _: c_uint,
) -> bool {
    let addr = start as usize + offset;
    with_heap(|heap| heap.blocks.clear(addr - heap.base, len));
    // SAFETY: jemalloc has no block in a range that it decommits.
    !keeping_errno(|| unsafe { ranges::heap_forgets(addr, len) })
}

/// Discards the whole pages inside an extent, after `decommit` refused it.
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
    /// Number of arenas. Set before `main`, and not written to afterwards.
    #[link_name = "hanare_heap_arenas"]
    safe static ARENAS: c_uint;
}

/// Takes jemalloc's locks for the fork that this thread is about to make, if there is a heap. jemalloc's handlers
/// release them.
pub(super) fn lock_for_fork() {
    // SAFETY: jemalloc's own handler, which a thread runs once per fork.
    unsafe { hanare_heap_before_fork() };
}

/// Whether jemalloc's locks are held, between its handlers in a fork, so that the child finds them free.
pub(super) fn is_locked() -> bool {
    // SAFETY: reads a thread's own flag.
    unsafe { hanare_heap_is_locked() != 0 }
}

/// Checks that the linked jemalloc is configured as `jemalloc.c` says, and makes all its arenas far.
pub(super) fn open() -> Result<(), HeapError> {
    // SAFETY: sets a flag.
    unsafe { hanare_heap_is_used() };
    let arenas: c_uint = read(c"opt.narenas")?;
    let oversize: usize = read(c"opt.oversize_threshold")?;
    let thp: *const libc::c_char = read(c"opt.metadata_thp")?;
    // SAFETY: jemalloc answers with a string of its own that lives for ever.
    let thp = unsafe { CStr::from_ptr(thp) };
    if arenas != ARENAS || oversize != 0 || thp != c"auto" {
        return Err(HeapError::Options);
    }
    check_classes()?;
    for arena in (0..arenas).rev() {
        // jemalloc creates an arena when a thread is bound to it. This thread is bound to the first one in the end.
        write(c"thread.arena", arena)?;
        write_of(c"arena.0.extent_hooks", arena, (&raw const HOOKS.0).cast_mut())?;
        write_of(c"arena.0.retain_grow_limit", arena, GROW_MAX)?;
    }
    Ok(())
}

/// Checks the size classes. jemalloc has one more class, of 8 bytes, which is never requested.
fn check_classes() -> Result<(), HeapError> {
    let bins: c_uint = read(c"arenas.nbins")?;
    if bins as usize != classes::SIZES.len() + 1 {
        return Err(HeapError::Options);
    }
    for (class, &size) in classes::SIZES.iter().enumerate() {
        let (mut mib, mut found, mut len) = (mib::<4>(c"arenas.bin.0.size")?, 0usize, size_of::<usize>());
        mib[2] = class + 1;
        let place = (&raw mut found).cast();
        // SAFETY: a name of four parts, and a place for the value of this option's type.
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
    // SAFETY: a terminated name, and a place of `len` bytes for the value; jemalloc refuses another length.
    let code = unsafe { je::mallctl(name.as_ptr(), value.as_mut_ptr().cast(), &raw mut len, null_mut(), 0) };
    // SAFETY: the call wrote the value when it returned 0.
    if code == 0 { Ok(unsafe { value.assume_init() }) } else { Err(refused(name, code)) }
}

fn write<T: Copy>(name: &'static CStr, mut value: T) -> Result<(), HeapError> {
    // SAFETY: a terminated name and a value with its length; jemalloc refuses another one.
    let code = unsafe { je::mallctl(name.as_ptr(), null_mut(), null_mut(), (&raw mut value).cast(), size_of::<T>()) };
    if code == 0 { Ok(()) } else { Err(refused(name, code)) }
}

/// Writes an option of one arena; `name` is that of arena 0.
fn write_of<T: Copy>(name: &'static CStr, arena: c_uint, mut value: T) -> Result<(), HeapError> {
    let mut mib = mib::<3>(name)?;
    mib[1] = arena as usize;
    // SAFETY: a name of three parts and a value with its length; jemalloc refuses another one.
    let code = unsafe {
        je::mallctlbymib(mib.as_ptr(), mib.len(), null_mut(), null_mut(), (&raw mut value).cast(), size_of::<T>())
    };
    if code == 0 { Ok(()) } else { Err(refused(name, code)) }
}

fn mib<const PARTS: usize>(name: &'static CStr) -> Result<[usize; PARTS], HeapError> {
    let (mut mib, mut parts) = ([0; PARTS], PARTS);
    // SAFETY: a terminated name and a place for `parts` numbers.
    let code = unsafe { je::mallctlnametomib(name.as_ptr(), mib.as_mut_ptr(), &raw mut parts) };
    if code == 0 && parts == PARTS { Ok(mib) } else { Err(refused(name, code)) }
}

fn refused(name: &'static CStr, code: i32) -> HeapError {
    HeapError::Refused { option: name, source: std::io::Error::from_raw_os_error(code) }
}

/// Length of `hanare_jemalloc_maps` in jemalloc.c: address and length of each mapping that jemalloc made for itself, or
/// zeroes.
const MAPS_MAX: usize = 256;

unsafe extern "C" {
    #[link_name = "hanare_jemalloc_maps"]
    safe static MAPS: [[AtomicUsize; 2]; MAPS_MAX];
}

/// The mappings of jemalloc's metadata, as address and length.
pub(super) fn metadata() -> impl Iterator<Item = (usize, usize)> {
    MAPS.iter().map(|[addr, len]| (addr.load(Relaxed), len.load(Relaxed))).filter(|&(_, len)| len > 0)
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/// A block of `size` bytes (at least 16), aligned to 16; `None` with errno when there is no room.
#[inline]
pub(super) fn alloc(size: usize) -> Option<NonNull<u8>> {
    // SAFETY: any size is valid.
    NonNull::new(unsafe { je::malloc(size) }.cast())
}

/// The same at a multiple of `align`, a power of two.
pub(super) fn alloc_aligned(size: usize, align: usize) -> Option<NonNull<u8>> {
    // SAFETY: a size that is not zero and a power of two.
    NonNull::new(unsafe { je::mallocx(size, je::MALLOCX_ALIGN(align)) }.cast())
}

/// Usable bytes of a block with this requested size and alignment.
pub(super) fn size_for(size: usize, align: usize) -> usize {
    // SAFETY: a size that is not zero and a power of two.
    unsafe { je::nallocx(size, je::MALLOCX_ALIGN(align)) }
}

/// # Safety
/// `block` is a live block of these calls, of `size` bytes, that nothing uses afterwards.
#[inline]
pub(super) unsafe fn free_sized(block: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { je::sdallocx(block.cast(), size, 0) }
}

/// # Safety
/// `block` is a live block of these calls that nothing uses afterwards.
pub(super) unsafe fn free(block: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { je::dallocx(block.cast(), 0) }
}

/// # Safety
/// `block` is a live block of these calls.
pub(super) unsafe fn size_of_block(block: *mut u8) -> usize {
    // SAFETY: the caller's promise.
    unsafe { je::sallocx(block.cast(), 0) }
}

/// Resizes a block in place, as far as possible, and returns its new size.
///
/// # Safety
/// `block` is a live block of these calls that nobody else uses during the call.
pub(super) unsafe fn resize_in_place(block: *mut u8, size: usize) -> usize {
    // SAFETY: the caller's promise; the size is not zero.
    unsafe { je::xallocx(block.cast(), size, 0, 0) }
}
