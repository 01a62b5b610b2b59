//! Finds the functions that a loaded library itself defines, by their names.
//!
//! If another object defines the same name, the dynamic linker may return that other definition. Some allocators even
//! define the C library's internal names. This module reads only the tables of the given library in memory, so it
//! cannot find another definition. It calls no function of the C library, allocates nothing and takes no lock. So it may
//! run inside the program's first `malloc`.
//!
//! This module finds only libraries that were loaded with the program. These libraries are the first in the dynamic
//! linker's list and are never unloaded. So the data that this module reads does not change meanwhile. Before each
//! read, the module checks that the address lies in a readable segment of the library.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use libc::{Elf64_Ehdr, Elf64_Phdr, Elf64_Sym};

use crate::raw::syscall;

/// The maximum number of objects that a search visits. No program has more objects. The maximum ends the search even if
/// the list is broken.
const OBJECTS_MAX: usize = 4096;
const CHAIN_MAX: usize = 1 << 16;
const ENTRIES_MAX: usize = 256;
const HEADERS_MAX: usize = 64;
const NAME_MAX: usize = 256;

/// The smallest page size of the kernel, in bytes.
const PAGE: usize = 4096;

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_SONAME: u64 = 14;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
const DT_VERSYM: u64 = 0x6fff_fff0;
const STT_FUNC: u8 = 2;

/// A flag of a symbol's version. A reference without a version is never bound to a symbol with this flag.
const VERSION_HIDDEN: u16 = 0x8000;

/// The beginning of the dynamic linker's `r_debug`. This layout and that of `link_map` (`Link`) never change, because
/// debuggers rely on them.
#[repr(C)]
struct Debug {
    version: i32,
    first: *const Link,
}

#[repr(C)]
struct Link {
    base: usize,
    name: *const u8,
    dynamic: usize,
    next: *const Link,
}

/// One loaded object with its program headers, which describe its segments. The type is small: to copy a large one, the
/// compiler would call `memcpy`. A program may define that function, and even allocate there.
#[derive(Clone, Copy, Debug)]
struct Image {
    base: usize,
    headers: &'static [Elf64_Phdr],
}

/// The tables of a library that was loaded with the program.
#[derive(Clone, Copy, Debug)]
pub struct Library {
    image: Image,
    names: usize,
    symbols: usize,
    hash: usize,
    versions: usize,
    soname: usize,
}

impl Library {
    /// Returns the library with this `soname`. Returns `None` if the program has no such library or no dynamic linker.
    #[must_use]
    pub fn loaded(soname: &CStr) -> Option<Library> {
        let mut link = first_link()?;
        for _ in 0..OBJECTS_MAX {
            // SAFETY: `link` is a member of the dynamic linker's list. The members that were loaded with the program
            // come first and are never freed.
            let object = unsafe { &*link.as_ptr() };
            let library = Image::of(object).and_then(|image| Library::of(image, object.dynamic));
            if let Some(library) = library.filter(|library| library.is_called(soname)) {
                return Some(library);
            }
            link = NonNull::new(object.next.cast_mut())?;
        }
        None
    }

    fn of(image: Image, dynamic: usize) -> Option<Library> {
        let mut library = Library { image, names: 0, symbols: 0, hash: 0, versions: 0, soname: 0 };
        for nth in 0..ENTRIES_MAX {
            let [tag, value]: [u64; 2] = image.read(dynamic.checked_add(nth * 16)?)?;
            let place = match tag {
                DT_NULL => break,
                DT_STRTAB => &mut library.names,
                DT_SYMTAB => &mut library.symbols,
                DT_GNU_HASH => &mut library.hash,
                DT_VERSYM => &mut library.versions,
                DT_SONAME => {
                    library.soname = usize::try_from(value).ok()?;
                    continue;
                }
                _ => continue,
            };
            *place = image.absolute(usize::try_from(value).ok()?);
        }
        [library.names, library.symbols, library.hash, library.soname]
            .iter()
            .all(|&found| found != 0)
            .then_some(library)
    }

    fn is_called(&self, soname: &CStr) -> bool {
        self.has_text(self.soname, soname)
    }

    /// Checks whether the name at this offset in the table of names is `text`.
    fn has_text(&self, offset: usize, text: &CStr) -> bool {
        let text = text.to_bytes_with_nul();
        let Some(start) = self.names.checked_add(offset) else { return false };
        text.len() <= NAME_MAX && text.iter().zip(start..).all(|(&byte, at)| self.image.read(at) == Some(byte))
    }

    /// Checks whether an address lies inside this library.
    #[must_use]
    pub fn holds(&self, addr: usize) -> bool {
        self.image.contains(addr, 1)
    }

    /// Returns this library's function with this name. If the function has several versions, returns the default one,
    /// to which a reference without a version is bound. Returns `None` if this library does not define the function.
    #[must_use]
    pub fn function(&self, name: &CStr) -> Option<NonNull<c_void>> {
        let [buckets, first, filter_words, _]: [u32; 4] = self.image.read(self.hash)?;
        let next = |hash: u32, &byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(byte));
        let wanted = name.to_bytes().iter().fold(5381, next);
        let (buckets, first) = (buckets as usize, first as usize);
        let heads = self.hash.checked_add(16 + filter_words as usize * 8)?;
        let chains = heads.checked_add(buckets * 4)?;
        let head: u32 = self.image.read(heads.checked_add((wanted as usize).checked_rem(buckets)? * 4)?)?;
        let head = head as usize;
        for nth in (head..).take(CHAIN_MAX) {
            // An empty bucket contains 0, which is below `first`. In this case, `checked_sub` fails and the function
            // returns `None`.
            let hash: u32 = self.image.read(chains.checked_add(nth.checked_sub(first)? * 4)?)?;
            if hash | 1 == wanted | 1
                && let Some(found) = self.defined(nth, name)
            {
                return Some(found);
            }
            if hash & 1 == 1 {
                return None;
            }
        }
        None
    }

    /// Returns the address of symbol number `nth`. Returns `None` if this symbol is not a function with this name, or
    /// not its default version.
    fn defined(&self, nth: usize, name: &CStr) -> Option<NonNull<c_void>> {
        let symbol: Elf64_Sym = self.image.read(self.symbols.checked_add(nth.checked_mul(size_of::<Elf64_Sym>())?)?)?;
        let is_function = symbol.st_info & 0xf == STT_FUNC && symbol.st_shndx != 0;
        if !is_function || !self.has_text(symbol.st_name as usize, name) {
            return None;
        }
        if self.versions != 0 {
            let version: u16 = self.image.read(self.versions.checked_add(nth * 2)?)?;
            if version & VERSION_HIDDEN != 0 {
                return None;
            }
        }
        let addr = self.image.base.checked_add(usize::try_from(symbol.st_value).ok()?)?;
        self.image.contains(addr, 1).then(|| NonNull::new(addr as *mut c_void)).flatten()
    }
}

impl Image {
    /// Finds the program headers of an object. Returns `None` if the object's ELF header is not at its base. This is
    /// so for a program that is linked to a fixed address.
    fn of(object: &Link) -> Option<Image> {
        let base = object.base;
        if base == 0 || !is_mapped(base) {
            return None;
        }
        // SAFETY: `base` is the start of a mapped page, so the read stays inside the page. Any bytes are a valid
        // `Elf64_Ehdr`.
        let header = unsafe { (base as *const Elf64_Ehdr).read() };
        let (start, count) = (usize::try_from(header.e_phoff).ok()?, usize::from(header.e_phnum).min(HEADERS_MAX));
        let fits = start.checked_add(count * size_of::<Elf64_Phdr>()).is_some_and(|end| end <= PAGE)
            && start % align_of::<Elf64_Phdr>() == 0;
        if header.e_ident[..4] != *b"\x7fELF" || usize::from(header.e_phentsize) != size_of::<Elf64_Phdr>() || !fits {
            return None;
        }
        // SAFETY: `fits` is true, so all these headers lie inside the mapped page at `base`, and are aligned. The object
        // is never unloaded, and nothing writes its headers.
        let headers = unsafe { std::slice::from_raw_parts((base + start) as *const Elf64_Phdr, count) };
        let is_dynamic = |header: &Elf64_Phdr| {
            header.p_type == libc::PT_DYNAMIC && base.wrapping_add(header.p_vaddr as usize) == object.dynamic
        };
        headers.iter().any(is_dynamic).then_some(Image { base, headers })
    }

    /// Checks whether `len` bytes at this address lie inside one readable segment of the object.
    fn contains(&self, addr: usize, len: usize) -> bool {
        self.headers.iter().any(|header| {
            let at = addr.wrapping_sub(self.base.wrapping_add(header.p_vaddr as usize));
            let size = header.p_memsz as usize;
            let is_readable = header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0;
            is_readable && at < size && len <= size - at
        })
    }

    /// Returns the value at an address of the object. Returns `None` if the value is not inside a readable segment.
    fn read<T: Plain>(&self, addr: usize) -> Option<T> {
        // SAFETY: `contains` has checked that the value lies inside a readable segment, which is never unmapped. Any
        // bytes are a valid `T`.
        self.contains(addr, size_of::<T>()).then(|| unsafe { (addr as *const T).read_unaligned() })
    }

    /// Converts an address from the object's dynamic section into an absolute address. The dynamic linker has already
    /// converted these addresses in place, except in the vDSO.
    fn absolute(&self, value: usize) -> usize {
        if self.contains(value, 1) { value } else { self.base.wrapping_add(value) }
    }
}

/// Marks the types for which any bytes are a valid value.
///
/// # Safety
/// Any bytes are a valid value of the type.
unsafe trait Plain: Copy {}
// SAFETY: u8 is a plain number, so any bytes are valid.
unsafe impl Plain for u8 {}
// SAFETY: u16 is a plain number, so any bytes are valid.
unsafe impl Plain for u16 {}
// SAFETY: u32 is a plain number, so any bytes are valid.
unsafe impl Plain for u32 {}
// SAFETY: the array holds plain numbers, so any bytes are valid.
unsafe impl Plain for [u32; 4] {}
// SAFETY: the array holds plain numbers, so any bytes are valid.
unsafe impl Plain for [u64; 2] {}
// SAFETY: the struct holds plain numbers, so any bytes are valid.
unsafe impl Plain for Elf64_Sym {}

/// Returns the head of the dynamic linker's list.
#[cfg(target_env = "gnu")]
fn first_link() -> Option<NonNull<Link>> {
    unsafe extern "C" {
        static _r_debug: Debug;
    }
    // SAFETY: the dynamic linker defines `_r_debug`, and sets its head before any other code of the process runs.
    NonNull::new(unsafe { _r_debug.first }.cast_mut())
}

#[cfg(not(target_env = "gnu"))]
fn first_link() -> Option<NonNull<Link>> {
    None
}

/// Checks whether memory is mapped at this page.
fn is_mapped(page: usize) -> bool {
    let mut there = 0_u8;
    // SAFETY: mincore does not access `page`. It asks for one page, so it writes one byte, to `there`.
    unsafe { syscall(libc::SYS_mincore, [page, PAGE, &raw mut there as usize, 0, 0, 0]) }.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library() -> Library {
        Library::loaded(c"libc.so.6").expect("the C library of this program")
    }

    fn by_linker(name: &CStr) -> *mut c_void {
        // SAFETY: `dlsym` gets a terminated name and only looks it up.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    }

    #[test]
    fn functions_are_where_the_dynamic_linker_finds_them() {
        for name in
            [c"malloc", c"__libc_malloc", c"__libc_free", c"malloc_usable_size", c"getauxval", c"open", c"write"]
        {
            let found = library().function(name).unwrap_or_else(|| panic!("{name:?}"));
            assert_eq!(found.as_ptr(), by_linker(name), "{name:?}");
        }
    }

    #[test]
    fn what_is_not_there_is_not_found() {
        for nth in 0..20_000 {
            let name = std::ffi::CString::new(format!("no_such_{nth}")).expect("a name");
            assert!(library().function(&name).is_none(), "{name:?}");
        }
        // The library defines no function with any of these names. They are a variable, a prefix of a function's name,
        // an empty name, and a function's name with one more letter.
        for name in [c"environ", c"mallo", c"", c"__libc_mallocs"] {
            assert!(library().function(name).is_none(), "{name:?}");
        }
        assert!(Library::loaded(c"libnone.so.1").is_none());
    }

    /// Makes a library inside an array. The hash table and all other tables begin at the start of the array.
    fn made(words: &[u32]) -> Library {
        let start = words.as_ptr() as usize;
        let whole = Elf64_Phdr {
            p_type: libc::PT_LOAD,
            p_flags: libc::PF_R,
            p_offset: 0,
            p_vaddr: 0,
            p_paddr: 0,
            p_filesz: 0,
            p_memsz: size_of_val(words) as u64,
            p_align: 1,
        };
        let image = Image { base: start, headers: Box::leak(Box::new([whole])) };
        Library { image, names: start, symbols: start, hash: start, versions: 0, soname: 0 }
    }

    #[test]
    fn broken_tables_find_nothing_and_end() {
        for head in [[0, 0, 0, 0], [1, 0, 0, 0], [1, 9, 0, 0], [u32::MAX; 4], [1, 0, u32::MAX, 0], [1 << 20, 1, 1, 6]] {
            for fill in [0, 1, 2, 7, u32::MAX, u32::MAX - 1] {
                let mut words = vec![fill; 100_000];
                words[..4].copy_from_slice(&head);
                for name in [c"malloc", c"free", c""] {
                    assert!(made(&words).function(name).is_none(), "{head:?} {fill}");
                    assert!(made(&words[..4]).function(name).is_none(), "{head:?} {fill}");
                }
            }
        }
        assert!(made(&[]).function(c"malloc").is_none());
    }
}
