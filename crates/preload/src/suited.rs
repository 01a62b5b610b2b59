//! Finds programs that thread mode serves better than sigbus mode. Where the mode is `auto`, these run in thread mode:
//!
//! - programs that import functions which switch stacks, or begin a child on one (`clone`). These stacks may be far, and
//!   the kernel writes no signal frame to an absent page;
//! - programs that import functions for asynchronous I/O. The kernel makes their transfers later, when a page may be absent
//!   again;
//! - programs that import libseccomp. The filter that they set may forbid what a trap does;
//! - debuggers. The kernel writes to their memory for another process;
//! - programs under a debugger, which would stop at each signal. `strace` prints signals and goes on. It stops Hanare's
//!   threads too, so thread mode can hang under it;
//! - Go with C. Its runtime makes system calls on small stacks, which are not trapped.
//!
//! Programs with a sanitizer that Hanare cannot serve are refused.
//!
//! Programs that import functions for io_uring are found in every mode. Its zero-copy sends read a page after it has left the
//! view ([`far::has_rings`]).
//!
//! A library that is loaded later is not looked at. [`far::may_do_async_io`] serves calls by number.

use std::ffi::{CStr, c_int, c_void};
use std::ops::Range;

use crate::go;
use crate::lookups;
use crate::statics::{headers_of, is_object};

/// The functions whose import tells that sigbus mode does not suit. Those of [`RINGS`] tell this too.
const FUNCTIONS: [&[u8]; 14] = [
    b"clone",
    b"makecontext",
    b"make_fcontext",
    b"jump_fcontext",
    b"aio_read",
    b"aio_read64",
    b"aio_write",
    b"aio_write64",
    b"lio_listio",
    b"lio_listio64",
    b"io_setup",
    b"io_queue_init",
    b"seccomp_load",
    b"ptrace",
];

/// The functions whose import tells that the program may use io_uring.
const RINGS: [&[u8]; 4] =
    [b"io_uring_setup", b"io_uring_queue_init", b"io_uring_queue_init_params", b"io_uring_queue_init_mem"];

/// Beginnings of the file names of libraries that define these functions, or import one for few of their users.
const IGNORED: [&[u8]; 6] = [b"libc.so", b"ld-linux", b"linux-vdso", b"libhanare", b"libcrypto.so", b"libtbb"];

/// Maximum number of symbols of one object. It bounds the search if a table is not as expected.
const SYMBOLS_MAX: usize = 1 << 16;
const ENTRIES_MAX: usize = 1 << 10;
const NAME_MAX: usize = 32;

const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// Says why the program is refused for a sanitizer that it was built with. `None` if it is not.
pub(crate) fn sanitizer() -> Option<&'static str> {
    if lookups::is_defined(c"__tsan_init") {
        return Some(
            "the program is built with the thread sanitizer, which uses the same signals and addresses; build it without \
             -fsanitize=thread, or run it without hanare",
        );
    }
    let leaks_are_ignored = ["ASAN_OPTIONS", "LSAN_OPTIONS"]
        .into_iter()
        .any(|name| std::env::var_os(name).is_some_and(|value| value.to_string_lossy().contains("detect_leaks=0")));
    (lookups::is_defined(c"__lsan_do_leak_check") && !leaks_are_ignored).then_some(
        "the program looks for leaks at its end (-fsanitize=leak or address). That stops all threads, also those that bring \
         pages; set ASAN_OPTIONS=detect_leaks=0 and LSAN_OPTIONS=detect_leaks=0",
    )
}

/// The findings from the imports of a program.
#[derive(Clone, Copy, Default)]
pub(crate) struct Imports {
    /// One of [`FUNCTIONS`] is imported.
    has_unsuited: bool,
    /// The program may use io_uring.
    pub(crate) has_rings: bool,
}

impl Imports {
    /// Looks at the imports of all objects. Call it before the program begins.
    pub(crate) fn find() -> Self {
        let mut found = Self::default();
        // SAFETY: `visit` gets the address of `found`, which outlives the call.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut found).cast()) };
        found
    }

    /// Checks whether sigbus mode suits this process.
    pub(crate) fn suit_signals(self) -> bool {
        !self.has_unsuited && !self.has_rings && !go::is_there() && !is_debugged()
    }

    fn add(&mut self, other: Self) {
        self.has_unsuited |= other.has_unsuited;
        self.has_rings |= other.has_rings;
    }
}

/// Checks whether a process other than `strace` traces this one.
fn is_debugged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    tracer != "0" && std::fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default().trim_end() != "strace"
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, found: *mut c_void) -> c_int {
    // SAFETY: the dynamic linker passes a valid `info`, and the pointer that `find` gave it.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Imports>()) };
    if !is_object(info, &IGNORED) {
        found.add(imports(info));
    }
    c_int::from(found.has_unsuited && found.has_rings)
}

/// Returns what the imports of this object tell.
fn imports(info: &libc::dl_phdr_info) -> Imports {
    let base = info.dlpi_addr as usize;
    let place = |header: &libc::Elf64_Phdr| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        start..start.saturating_add(header.p_memsz as usize)
    };
    let headers = headers_of(info);
    let Some(dynamic) = headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC) else {
        return Imports::default();
    };
    let is_readable = |range: &Range<usize>| {
        let mut segments =
            headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_R != 0);
        segments.any(|header| place(header).start <= range.start && range.end <= place(header).end)
    };
    Tables::of(place(dynamic))
        .filter(|tables| is_readable(&tables.names) && is_readable(&tables.symbols))
        .map_or(Imports::default(), |tables| tables.tell())
}

/// Where an object has the symbols that it imports, and their names.
struct Tables {
    symbols: Range<usize>,
    names: Range<usize>,
}

impl Tables {
    fn of(dynamic: Range<usize>) -> Option<Tables> {
        let (mut symbols, mut names, mut bytes, mut hash) = (0, 0, 0, 0);
        for entry in dynamic.step_by(16).take(ENTRIES_MAX) {
            // SAFETY: `entry` is an entry of the object's dynamic section, which is mapped.
            let [tag, value] = unsafe { (entry as *const [u64; 2]).read() };
            match tag {
                DT_NULL => break,
                DT_SYMTAB => symbols = value as usize,
                DT_STRTAB => names = value as usize,
                DT_STRSZ => bytes = value as usize,
                DT_GNU_HASH => hash = value as usize,
                _ => {}
            }
        }
        if symbols == 0 || names == 0 {
            return None;
        }
        // The table of hashes begins with the number of its buckets and of the first symbol in it. Imported symbols come
        // before that. If it has none, it says 1, and the names follow the symbols.
        // SAFETY: the dynamic linker has made the address of the object's own table absolute.
        let first = if hash == 0 { 1 } else { unsafe { (hash as *const [u32; 2]).read()[1] as usize } };
        let size = size_of::<libc::Elf64_Sym>();
        let count = if first > 1 { first } else { names.saturating_sub(symbols) / size };
        Some(Tables {
            symbols: symbols..symbols + count.min(SYMBOLS_MAX) * size,
            names: names..names.saturating_add(bytes),
        })
    }

    fn tell(&self) -> Imports {
        let mut found = Imports::default();
        for place in self.symbols.clone().step_by(size_of::<libc::Elf64_Sym>()) {
            // SAFETY: `symbols` lies in a readable segment. Any bytes are a symbol.
            let symbol = unsafe { (place as *const libc::Elf64_Sym).read_unaligned() };
            if symbol.st_shndx == 0 {
                found.add(self.of_name(symbol.st_name as usize));
            }
        }
        found
    }

    /// Returns what the import of the name at this offset tells.
    fn of_name(&self, offset: usize) -> Imports {
        let start = self.names.start.saturating_add(offset);
        let len = self.names.end.saturating_sub(start).min(NAME_MAX);
        // SAFETY: `names` lies in a readable segment, and nobody writes there.
        let bytes = unsafe { std::slice::from_raw_parts(start as *const u8, len) };
        let name = CStr::from_bytes_until_nul(bytes).unwrap_or_default().to_bytes();
        Imports { has_unsuited: FUNCTIONS.contains(&name), has_rings: RINGS.contains(&name) }
    }
}
