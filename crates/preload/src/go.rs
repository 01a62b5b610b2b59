//! Programs in Go that use C (cgo). Go's runtime gets memory from the C library's `mmap`, but returns parts of it by
//! its own `madvise` calls, which are not interposed. The engine would keep the bytes of the returned parts. So Go's
//! mappings are near. Blocks that C code gets from `malloc` are far.
//!
//! In signal modes, Go's static arrays are near too. The runtime accesses them with every signal blocked, also by its
//! own system calls, and the kernel kills a thread that faults while the trap's signal is blocked. Go's mappings also
//! contain the stacks of goroutines and of signal handlers. The kernel cannot write a signal frame to an absent page,
//! which is another reason to keep them near in signal modes.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use hanare::far;

use crate::range::PAGE;

/// Whether code written in Go is linked into this process.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// The C library's `_dl_find_object`, which takes no lock. Null before glibc 2.35.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The result of `_dl_find_object`: flags, the start and end of an object in memory, and fields that are not used here.
#[repr(C)]
struct Object {
    flags: u64,
    start: usize,
    end: usize,
    rest: [u64; 12],
}

/// The name in the notes that Go's linker writes to ELF files, with its final zero.
const NOTE_NAME: &[u8] = b"Go\0";

/// Looks for Go in the objects that the process is linked with. Go is recognised by the note that its linker writes. If
/// a build omits that note, Go is recognised by the function through which C calls Go (`crosscall2`).
pub(crate) fn find() {
    // SAFETY: `dlsym` only needs terminated names, and both names are C string literals.
    let (entry, find_object) = unsafe {
        let find_object = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        (libc::dlsym(libc::RTLD_DEFAULT, c"crosscall2".as_ptr()), find_object)
    };
    FIND_OBJECT.store(find_object, Ordering::Relaxed);
    let mut found = !entry.is_null();
    // SAFETY: `look` gets the address of `found`, a `bool` that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    IS_THERE.store(found, Ordering::Relaxed);
}

/// Checks whether the program's static arrays must stay near.
pub(crate) fn keeps_statics() -> bool {
    IS_THERE.load(Ordering::Relaxed) && far::trap_signal().is_some()
}

/// Checks whether a mapping must stay near, if code at the address `caller` asks for it. If Go is linked into the
/// process, all mappings stay near, because the call may come from Go through a function of the C library. A Go library
/// that is loaded later is recognised by the address `caller`.
pub(crate) fn keeps_mapping(caller: usize) -> bool {
    IS_THERE.load(Ordering::Relaxed) || is_go(caller)
}

/// Checks whether the code at `caller` belongs to an object (program or library) written in Go.
fn is_go(caller: usize) -> bool {
    type Call = unsafe extern "C" fn(*const c_void, *mut Object) -> c_int;
    let call = FIND_OBJECT.load(Ordering::Relaxed);
    if call.is_null() {
        return false;
    }
    let mut object = Object { flags: 0, start: 0, end: 0, rest: [0; 12] };
    // SAFETY: `call` is the C library's function of this type. It accepts any address, and `object` is large enough for
    // the result.
    if unsafe { transmute::<*mut c_void, Call>(call)(caller as *const c_void, &raw mut object) } != 0 {
        return false;
    }
    // SAFETY: the object's code makes this call, so the object is loaded, and its first page starts with this header.
    let header = unsafe { &*(object.start as *const libc::Elf64_Ehdr) };
    let headers_end = header.e_phoff as usize + usize::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>();
    if !header.e_ident.starts_with(b"\x7fELF") || headers_end > PAGE {
        return false;
    }
    // The addresses in a position-independent object are relative to its start.
    let base = if header.e_type == libc::ET_DYN { object.start } else { 0 };
    // SAFETY: the check above ensures that the headers end within the object's first page, which is mapped.
    let headers = unsafe {
        let first = (object.start + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        std::slice::from_raw_parts(first, usize::from(header.e_phnum))
    };
    // SAFETY: these are the program headers of an object that is loaded at `base`.
    unsafe { names_go(headers, base) }
}

/// # Safety
/// `dl_iterate_phdr` calls it, with the address of a `bool` in `found`.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a description that is valid during the call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: a loaded object has `dlpi_phnum` headers, and `find` passes the address of a `bool`.
    unsafe {
        let headers = std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum));
        let is_go = names_go(headers, info.dlpi_addr as usize);
        *found.cast::<bool>() |= is_go;
        c_int::from(is_go)
    }
}

/// Checks whether an object has a note of Go.
///
/// # Safety
/// The headers belong to an object that is loaded at `base`.
unsafe fn names_go(headers: &[libc::Elf64_Phdr], base: usize) -> bool {
    headers.iter().filter(|header| header.p_type == libc::PT_NOTE).any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        // SAFETY: the header describes the object's notes, which the dynamic linker has mapped and no code writes.
        has_go(unsafe { std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) })
    })
}

/// Checks whether one of these notes is Go's. A note has three words (name length, description length, type). The name
/// and the description follow, each padded to words.
fn has_go(mut notes: &[u8]) -> bool {
    let word = |notes: &[u8], nth: usize| -> Option<usize> {
        let bytes = notes.get(nth * 4..nth * 4 + 4)?;
        Some(u32::from_le_bytes(bytes.try_into().ok()?) as usize)
    };
    while let (Some(name), Some(description)) = (word(notes, 0), word(notes, 1)) {
        let end = 12 + name.next_multiple_of(4);
        if notes.get(12..12 + name).is_some_and(|name| name.starts_with(NOTE_NAME)) {
            return true;
        }
        notes = notes.get(end + description.next_multiple_of(4)..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(name: &[u8], description: &[u8]) -> Vec<u8> {
        let mut note = Vec::new();
        for word in [name.len(), description.len(), 4] {
            note.extend((word as u32).to_le_bytes());
        }
        for part in [name, description] {
            note.extend(part);
            note.resize(note.len().next_multiple_of(4), 0);
        }
        note
    }

    #[test]
    fn the_note_of_go_is_found_among_others_and_nothing_beyond_the_end_is_read() {
        let gnu = note(b"GNU\0", &[1; 20]);
        let go = note(b"Go\0\0", &[2; 83]);
        assert!(has_go(&go) && has_go(&[gnu.clone(), go.clone()].concat()));
        assert!(!has_go(&gnu) && !has_go(&[]) && !has_go(&[gnu.clone(), gnu].concat()));
        for cut in 0..12 + NOTE_NAME.len() {
            assert!(!has_go(&go[..cut]));
        }
        assert!(!has_go(&[0xff; 40]));
    }
}
