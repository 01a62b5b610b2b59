//! Programs in Go that use C (cgo). Go's runtime maps memory with the C library's `mmap`, but gives parts of it back
//! with its own `madvise` system calls. These system calls are not interposed, so the engine would keep bytes that the
//! program has given back. Therefore Go's mappings are near (ordinary memory). Blocks that C code gets from `malloc`
//! are far.
//!
//! In signal modes (sigbus and sigsegv), Go's static arrays are near too. Go's runtime accesses them with every signal
//! blocked, and the kernel kills a thread that faults while the trap signal is blocked. The runtime also passes them to
//! its own system calls. In signal modes, Go's mappings must be near for a second reason: they contain the stacks of
//! goroutines and of signal handlers. The kernel cannot write a signal frame to an absent page.

use std::ffi::{c_int, c_void};
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use hanare::far;

use crate::range::PAGE;

/// True if Go is linked into this process.
static IS_THERE: AtomicBool = AtomicBool::new(false);

/// Address of the C library's `_dl_find_object`, which takes no lock. Null if glibc is older than 2.35.
static FIND_OBJECT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// The result of `_dl_find_object`: flags, the start and the end of an object in memory, and fields that are not used
/// here.
#[repr(C)]
struct Object {
    flags: u64,
    start: usize,
    end: usize,
    rest: [u64; 12],
}

/// The owner's name in the notes that Go's linker writes, with its final zero.
const NOTE_NAME: &[u8] = b"Go\0";

/// Looks for Go in the objects that the process is linked with. An object is Go's if it has a note of Go's linker. A
/// build may leave this note out. So a process that has `crosscall2`, the function through which C calls Go, also
/// counts as linked with Go.
pub(crate) fn find() {
    // SAFETY: `dlsym` gets NUL-terminated names.
    let (entry, find_object) = unsafe {
        let find_object = libc::dlsym(libc::RTLD_DEFAULT, c"_dl_find_object".as_ptr());
        (libc::dlsym(libc::RTLD_DEFAULT, c"crosscall2".as_ptr()), find_object)
    };
    FIND_OBJECT.store(find_object, Ordering::Relaxed);
    let mut found = !entry.is_null();
    // SAFETY: `look` gets the address of `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut found).cast()) };
    IS_THERE.store(found, Ordering::Relaxed);
}

/// Checks whether Go is linked into this process.
pub(crate) fn is_there() -> bool {
    IS_THERE.load(Ordering::Relaxed)
}

/// Checks whether the program's static arrays must stay near.
pub(crate) fn keeps_statics() -> bool {
    IS_THERE.load(Ordering::Relaxed) && far::trap_signal().is_some()
}

/// Checks whether a mapping that code at `caller` asks for must stay near. If Go is linked into the process, all
/// mappings stay near: Go may have called a function of the C library that calls `mmap`. Otherwise a mapping stays near
/// if `caller` is in a Go library that was loaded later.
pub(crate) fn keeps_mapping(caller: usize) -> bool {
    let is_kept = IS_THERE.load(Ordering::Relaxed) || is_go(caller);
    #[cfg(target_arch = "x86_64")]
    if is_kept {
        crate::trapped::leave_go_alone();
    }
    is_kept
}

/// Checks whether the code at `caller` belongs to an object of Go.
fn is_go(caller: usize) -> bool {
    type Call = unsafe extern "C" fn(*const c_void, *mut Object) -> c_int;
    let call = FIND_OBJECT.load(Ordering::Relaxed);
    if call.is_null() {
        return false;
    }
    let mut object = Object { flags: 0, start: 0, end: 0, rest: [0; 12] };
    // SAFETY: `call` is `_dl_find_object`, which accepts any address. `object` is local and long enough for its result.
    if unsafe { transmute::<*mut c_void, Call>(call)(caller as *const c_void, &raw mut object) } != 0 {
        return false;
    }
    // SAFETY: the object is loaded, because its code makes this call. Its first page begins with its ELF header.
    let header = unsafe { &*(object.start as *const libc::Elf64_Ehdr) };
    let headers_end = header.e_phoff as usize + usize::from(header.e_phnum) * size_of::<libc::Elf64_Phdr>();
    if !header.e_ident.starts_with(b"\x7fELF") || headers_end > PAGE {
        return false;
    }
    // The addresses in a position-independent object are relative to its start.
    let base = if header.e_type == libc::ET_DYN { object.start } else { 0 };
    // SAFETY: `headers_end` is at most `PAGE`, so the headers are in the object's first page.
    let headers = unsafe {
        let first = (object.start + header.e_phoff as usize) as *const libc::Elf64_Phdr;
        std::slice::from_raw_parts(first, usize::from(header.e_phnum))
    };
    // SAFETY: `headers` and `base` belong to a loaded object.
    unsafe { names_go(headers, base) }
}

/// # Safety
/// `info` is valid during the call, and `found` is the address of a `bool`.
unsafe extern "C" fn look(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
    // SAFETY: `dl_iterate_phdr` passes an `info` that is valid during the call.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: a loaded object has `dlpi_phnum` headers at `dlpi_phdr`. `find` passes the address of a `bool`.
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
    // A wrong address of notes does not keep the kernel from running a program.
    let end = |header: &libc::Elf64_Phdr| header.p_vaddr.checked_add(header.p_memsz);
    let holds = |part: &libc::Elf64_Phdr, notes: &libc::Elf64_Phdr| {
        part.p_type == libc::PT_LOAD && part.p_vaddr <= notes.p_vaddr && end(notes).is_some() && end(notes) <= end(part)
    };
    let is_loaded = |notes: &&libc::Elf64_Phdr| headers.iter().any(|part| holds(part, notes));
    headers.iter().filter(|header| header.p_type == libc::PT_NOTE).filter(is_loaded).any(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        // SAFETY: the object's notes are mapped at `start` for `p_memsz` bytes, as a part of it that is loaded holds
        // them, and no code writes them.
        has_go(unsafe { std::slice::from_raw_parts(start as *const u8, header.p_memsz as usize) })
    })
}

/// Checks whether one of these notes is Go's. A note begins with three words: the name's length, the description's
/// length, and a type. The name and the description follow, each padded to whole words.
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

    #[test]
    fn notes_are_read_only_where_the_object_is_loaded() {
        let go = note(b"Go\0\0", &[2; 83]);
        let header = |p_type, at: u64, bytes: usize| libc::Elf64_Phdr {
            p_type,
            p_flags: 0,
            p_offset: 0,
            p_vaddr: at,
            p_paddr: 0,
            p_filesz: bytes as u64,
            p_memsz: bytes as u64,
            p_align: 4,
        };
        let at = go.as_ptr() as u64;
        let loaded = header(libc::PT_LOAD, at, go.len());
        // SAFETY: the bytes of `go` are readable. Nothing is mapped at the other addresses, which must not be read.
        let names = |notes| unsafe { names_go(&[loaded, notes], 0) };
        assert!(names(header(libc::PT_NOTE, at, go.len())));
        assert!(!names(header(libc::PT_NOTE, 64, go.len())));
        assert!(!names(header(libc::PT_NOTE, at, go.len() + 1)));
        assert!(!names(header(libc::PT_NOTE, u64::MAX - 3, go.len())));
    }
}
