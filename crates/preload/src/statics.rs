//! Static arrays: large writable data of the program and its libraries becomes far before `main`.
//!
//! Some data stays near (in ordinary memory):
//! - the data of the C library, the dynamic linker, the unwinder and this library, because the resolution of a fault
//!   needs it;
//! - data that the linker protects after relocation (RELRO), the dynamic section and the initial thread-locals;
//! - the pages of variables that a library shares with the program by a copy relocation (`stdout`, `environ`). The C
//!   library uses these variables with signals blocked;
//! - the pages of the slots through which functions of libraries are called (`.got`, `.got.plt`). If the program takes the
//!   address of `free`, the C library calls `free` through the program's slot, also in a forked child that cannot page yet.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use hanare::adopt::{AdoptError, Piece};
use hanare::far;

use crate::range::PAGE;

/// Beginnings of the file names of objects whose data is never far.
const NEAR_OBJECTS: [&[u8]; 12] = [
    b"libc.so",
    b"libc-2",
    b"ld-linux",
    b"ld-2",
    b"libpthread",
    b"libdl.so",
    b"librt.so",
    b"libgcc_s",
    b"libhanare",
    b"libasan",
    b"libtsan",
    b"libubsan",
];

/// Smallest size in bytes at which data of an object becomes far.
const BYTES_MIN: usize = 64 << 10;

/// Maximum number of entries that are read from a table of the dynamic section. This bound ends the loop if the table
/// has no end mark.
const ENTRIES_MAX: usize = 1 << 24;

const DT_NULL: u64 = 0;
const DT_SYMTAB: u64 = 6;
const DT_RELA: u64 = 7;
const DT_RELASZ: u64 = 8;
const DT_PLTRELSZ: u64 = 2;
const DT_JMPREL: u64 = 23;
#[cfg(target_arch = "x86_64")]
const RELOCATION_COPY: u64 = 5;
#[cfg(not(target_arch = "x86_64"))]
const RELOCATION_COPY: u64 = 1024;
/// The kind of a relocation that fills a slot with the address of a symbol (GLOB_DAT).
const RELOCATION_SLOT: u64 = RELOCATION_COPY + 1;

/// Makes large static arrays far. Call it once, before any code of the program runs.
///
/// # Errors
/// See [`AdoptError`].
pub(crate) fn adopt() -> Result<(), AdoptError> {
    // A library's constructor may have run first and started threads. In that case all data stays near, because data
    // that other threads use cannot be moved.
    if !far::is_alone() {
        return Ok(());
    }
    let mut large = Vec::new();
    // SAFETY: `visit` gets the address of `large`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut large).cast()) };
    if large.is_empty() || !far::is_due(large.iter().map(Range::len).sum()) {
        return Ok(());
    }
    let mappings = private_mappings();
    let mut wholes: Vec<Vec<Piece>> = large.into_iter().flat_map(|range| pieces(range, &mappings)).collect();
    // If there are more than `far::ADOPTED_MAX` arrays, the largest ones become far.
    wholes.sort_by_key(|pieces| std::cmp::Reverse(bytes(pieces)));
    for pieces in wholes.iter().take(far::ADOPTED_MAX) {
        // SAFETY: the pieces are plain data of the program, and only this thread runs the program. The code that
        // resolves faults does not use this data.
        unsafe { far::adopt(pieces) }?;
    }
    Ok(())
}

/// Collects the large data of one object (the program or a library).
unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, large: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a valid `info`, and the pointer `large` that `adopt` gave it.
    let (info, large) = unsafe { (&*info, &mut *large.cast::<Vec<Range<usize>>>()) };
    if !is_object(info, &NEAR_OBJECTS) {
        large.extend(large_data(info));
    }
    0
}

/// Checks whether the file name of an object has one of these beginnings.
pub(crate) fn is_object(info: &libc::dl_phdr_info, beginnings: &[&[u8]]) -> bool {
    if info.dlpi_name.is_null() {
        return false;
    }
    // SAFETY: `dlpi_name` is not null, and the dynamic linker's strings are NUL-terminated.
    let path = unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes();
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    beginnings.iter().any(|beginning| name.starts_with(beginning))
}

/// Returns the program headers of an object.
pub(crate) fn headers_of(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the dynamic linker describes a loaded object, which has `dlpi_phnum` program headers at `dlpi_phdr`.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

/// Returns the writable data of an object as page-aligned ranges of at least `threshold()` bytes.
fn large_data(info: &libc::dl_phdr_info) -> Vec<Range<usize>> {
    let headers = headers_of(info);
    let base = info.dlpi_addr as usize;
    let range = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    };
    let mut ranges: Vec<Range<usize>> = headers
        .iter()
        .filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W != 0)
        .map(|header| outward(range(header)))
        .filter(|range| range.len() >= far::threshold())
        .collect();
    if ranges.is_empty() {
        return ranges;
    }
    for header in headers {
        match header.p_type {
            // The dynamic linker rounds both ends of this range down to a page border, and write-protects the result.
            libc::PT_GNU_RELRO => cut(&mut ranges, inward(range(header))),
            libc::PT_TLS => cut(&mut ranges, outward(range(header))),
            libc::PT_DYNAMIC => {
                cut(&mut ranges, outward(range(header)));
                for shared in shared(range(header)) {
                    cut(&mut ranges, outward(shared));
                }
            }
            _ => {}
        }
    }
    ranges.retain(|range| range.len() >= threshold());
    ranges
}

/// Returns the ranges of this object that libraries use: copies of their variables (copy relocations), and the slots through
/// which functions are called.
fn shared(dynamic: Range<usize>) -> Vec<Range<usize>> {
    let (mut symbols, mut table, mut bytes, mut calls, mut call_bytes) = (0, 0, 0, 0, 0);
    for entry in dynamic.step_by(16).take(ENTRIES_MAX) {
        // SAFETY: `entry` is an entry of the object's dynamic section, which is mapped.
        let [tag, value] = unsafe { (entry as *const [u64; 2]).read() };
        match tag {
            DT_NULL => break,
            DT_SYMTAB => symbols = value as usize,
            DT_RELA => table = value as usize,
            DT_RELASZ => bytes = value as usize,
            DT_JMPREL => calls = value as usize,
            DT_PLTRELSZ => call_bytes = value as usize,
            _ => {}
        }
    }
    let mut found = Vec::new();
    if symbols != 0 && table != 0 {
        let object = link_base(table);
        found.extend(relocations(table, bytes).filter(|[_, info, _]| info & 0xffff_ffff == RELOCATION_COPY).map(
            |[place, info, _]| {
                let symbol = symbols + (info >> 32) as usize * size_of::<libc::Elf64_Sym>();
                // SAFETY: a relocation names a symbol of the object's own table, so `symbol` points into that table.
                let size = unsafe { (*(symbol as *const libc::Elf64_Sym)).st_size } as usize;
                let start = object.wrapping_add(place as usize);
                start..start.saturating_add(size.max(1))
            },
        ));
        found.extend(slots(
            relocations(table, bytes).filter(|[_, info, _]| info & 0xffff_ffff == RELOCATION_SLOT),
            object,
        ));
    }
    if calls != 0 {
        found.extend(slots(relocations(calls, call_bytes), link_base(calls)));
    }
    found
}

/// Returns the entries of a table of relocations: the place, the kind with the symbol, and the addend.
fn relocations(table: usize, bytes: usize) -> impl Iterator<Item = [u64; 3]> {
    let entries = (table..table.saturating_add(bytes)).step_by(24).take(ENTRIES_MAX);
    // SAFETY: the dynamic linker has made the table's address absolute. The table consists of entries of three words
    // each and ends at `table + bytes`.
    entries.map(|entry| unsafe { (entry as *const [u64; 3]).read() })
}

/// Returns the range of the words that these relocations fill. The linker puts the slots of a table side by side.
fn slots(relocations: impl Iterator<Item = [u64; 3]>, object: usize) -> Option<Range<usize>> {
    let places = relocations.map(|[place, ..]| object.wrapping_add(place as usize));
    let (first, last) = places.fold((usize::MAX, 0), |(first, last), place| (first.min(place), last.max(place)));
    (first <= last).then(|| first..last.saturating_add(size_of::<usize>()))
}

/// Returns the load offset of the object that contains `addr`: its address in memory minus its address in the file.
/// Returns 0 if no object contains `addr`.
fn link_base(addr: usize) -> usize {
    // SAFETY: zeroes are a valid `Dl_info`.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut map: *mut LinkMap = std::ptr::null_mut();
    // SAFETY: `dladdr1` accepts any address. It writes its results to `found` and `map`.
    let known = unsafe { dladdr1(addr as *const c_void, &raw mut found, (&raw mut map).cast(), RTLD_DL_LINKMAP) };
    // SAFETY: `map` points to a link map of the dynamic linker, which begins with the object's load offset.
    if known != 0 && !map.is_null() { unsafe { (*map).addr } } else { 0 }
}

#[repr(C)]
struct LinkMap {
    addr: usize,
}

const RTLD_DL_LINKMAP: c_int = 2;

unsafe extern "C" {
    fn dladdr1(addr: *const c_void, info: *mut libc::Dl_info, extra: *mut *mut c_void, flags: c_int) -> c_int;
}

fn outward(range: Range<usize>) -> Range<usize> {
    range.start & !(PAGE - 1)..range.end.next_multiple_of(PAGE)
}

fn inward(range: Range<usize>) -> Range<usize> {
    range.start & !(PAGE - 1)..range.end & !(PAGE - 1)
}

/// Removes the range `out` from `ranges`.
fn cut(ranges: &mut Vec<Range<usize>>, out: Range<usize>) {
    if out.is_empty() {
        return;
    }
    for range in std::mem::take(ranges) {
        let before = range.start..range.end.min(out.start);
        let after = range.start.max(out.end)..range.end;
        ranges.extend([before, after].into_iter().filter(|part| !part.is_empty()));
    }
}

/// A writable private mapping of this process. `file` is true if it maps a file.
struct Private {
    range: Range<usize>,
    file: bool,
}

/// Returns the writable private mappings of this process. Returns an empty list if `/proc` cannot be read. Then no
/// static array becomes far.
fn private_mappings() -> Vec<Private> {
    let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    text.lines().filter_map(private_mapping).collect()
}

/// Reads a line of `/proc/self/maps` like `5555-6666 rw-p 00001000 08:01 1234 /bin/program`. Returns `None` if the
/// mapping is not private and writable, or is executable.
fn private_mapping(line: &str) -> Option<Private> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    let plain = fields.next()? == "rw-p";
    let inode = fields.nth(2)?;
    plain.then_some(Private { range, file: inode != "0" })
}

/// Returns the parts of `range` that are mapped as plain data and have at least `threshold()` bytes. Each part is a
/// list of pieces, divided at the borders of mappings.
fn pieces(range: Range<usize>, mappings: &[Private]) -> Vec<Vec<Piece>> {
    let mut parts: Vec<Vec<Piece>> = Vec::new();
    for mapping in mappings {
        let (addr, end) = (range.start.max(mapping.range.start), range.end.min(mapping.range.end));
        if addr >= end {
            continue;
        }
        let piece = Piece { addr, len: end - addr, file: mapping.file };
        match parts.last_mut() {
            Some(part) if part.last().is_some_and(|last| last.addr + last.len == addr) => part.push(piece),
            _ => parts.push(vec![piece]),
        }
    }
    parts.retain(|part| bytes(part) >= threshold());
    parts
}

fn bytes(pieces: &[Piece]) -> usize {
    pieces.iter().map(|piece| piece.len).sum()
}

/// Returns the smallest size in bytes at which data becomes far. Smaller data is not worth a mapping, even if `--far`
/// makes smaller allocations far.
fn threshold() -> usize {
    far::threshold().max(BYTES_MIN)
}
