//! The C library's streams move large blocks directly between files and the program's memory. The streams' own system
//! calls are not interposed. So far blocks are moved in pieces through a near (ordinary) buffer.

use std::ffi::{c_char, c_int, c_void};
use std::mem::transmute;

use libc::{FILE, size_t};

use super::near::{Buffer, PIECE, is_far};
use super::real::{self, Real};
use crate::answer::set_errno;
use hanare_sys::copy;

type Blocks = unsafe extern "C-unwind" fn(*mut c_void, size_t, size_t, *mut FILE) -> size_t;
type CheckedBlocks = unsafe extern "C-unwind" fn(*mut c_void, size_t, size_t, size_t, *mut FILE) -> size_t;

unsafe extern "C-unwind" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
}

/// Reads a far block like `fread`, in pieces through a near buffer. Holds the stream's lock during all pieces.
///
/// # Safety
/// The caller keeps the contract of fread(3). `to` is a far block of `total` bytes.
unsafe fn read_pieces(to: *mut c_void, total: usize, stream: *mut FILE, call: Blocks) -> usize {
    let Some(buffer) = Buffer::new(PIECE) else {
        set_errno(libc::ENOMEM);
        return 0;
    };
    let mut done = 0;
    // SAFETY: the caller keeps the contract of fread(3), and each piece is inside the block.
    unsafe {
        flockfile(stream);
        while done < total {
            let piece = PIECE.min(total - done);
            let came = call(buffer.pointer().cast(), 1, piece, stream);
            copy::copy(buffer.pointer(), to.cast::<u8>().add(done), came);
            done += came;
            if came < piece {
                break;
            }
        }
        funlockfile(stream);
    }
    done
}

/// Writes a far block like `fwrite`, in pieces through a near buffer. Holds the stream's lock during all pieces.
///
/// # Safety
/// The caller keeps the contract of fwrite(3). `from` is a far block of `total` bytes.
unsafe fn write_pieces(from: *const c_void, total: usize, stream: *mut FILE, call: Blocks) -> usize {
    let Some(buffer) = Buffer::new(PIECE) else {
        set_errno(libc::ENOMEM);
        return 0;
    };
    let mut done = 0;
    // SAFETY: the caller keeps the contract of fwrite(3), and each piece is inside the block.
    unsafe {
        flockfile(stream);
        while done < total {
            let piece = PIECE.min(total - done);
            copy::copy(from.cast::<u8>().add(done), buffer.pointer(), piece);
            let went = call(buffer.pointer().cast(), 1, piece, stream);
            done += went;
            if went < piece {
                break;
            }
        }
        funlockfile(stream);
    }
    done
}

/// # Safety
/// The caller keeps the contract of fread(3). `real` is a function of the same type as fread(3).
unsafe fn read_blocks(real: &Real, to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    let Some(call) = real.get() else { return 0 };
    // SAFETY: the caller promises that `real` has the type of fread(3).
    let call = unsafe { transmute::<*mut c_void, Blocks>(call) };
    match size.checked_mul(count) {
        // SAFETY: the caller keeps the contract of fread(3).
        Some(total) if is_far(to, total) => unsafe { read_pieces(to, total, stream, call) / size },
        // SAFETY: the caller keeps the contract of fread(3).
        _ => unsafe { call(to, size, count, stream) },
    }
}

/// # Safety
/// The caller keeps the contract of fwrite(3). `real` is a function of the same type as fwrite(3).
unsafe fn write_blocks(real: &Real, from: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    let Some(call) = real.get() else { return 0 };
    // SAFETY: the caller promises that `real` has the type of fwrite(3).
    let call = unsafe { transmute::<*mut c_void, Blocks>(call) };
    match size.checked_mul(count) {
        // SAFETY: the caller keeps the contract of fwrite(3).
        Some(total) if is_far(from, total) => unsafe { write_pieces(from, total, stream, call) / size },
        // SAFETY: the caller keeps the contract of fwrite(3).
        _ => unsafe { call(from, size, count, stream) },
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fread(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    // SAFETY: the caller keeps the contract of fread(3).
    unsafe { read_blocks(&real::fread, to, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fread_unlocked(to: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    // SAFETY: the caller keeps the contract of fread_unlocked(3).
    unsafe { read_blocks(&real::fread_unlocked, to, size, count, stream) }
}

/// # Safety
/// The caller keeps the contract of fread(3). `checked` is the variant of `real` that ends the program if the block is
/// too small.
unsafe fn read_checked(
    real: &Real,
    checked: &Real,
    to: *mut c_void,
    room: size_t,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    if size.checked_mul(count).is_some_and(|total| total <= room && is_far(to, total)) {
        // SAFETY: the caller keeps the contract of fread(3).
        return unsafe { read_blocks(real, to, size, count, stream) };
    }
    let Some(call) = checked.get() else { return 0 };
    // SAFETY: `call` is the C library's function `checked`, which has the type `CheckedBlocks`. Its arguments are the
    // caller's.
    unsafe { transmute::<*mut c_void, CheckedBlocks>(call)(to, room, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fread_chk(
    to: *mut c_void,
    room: size_t,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: the caller keeps the contract of fread(3).
    unsafe { read_checked(&real::fread, &real::__fread_chk, to, room, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __fread_unlocked_chk(
    to: *mut c_void,
    room: size_t,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: the caller keeps the contract of fread_unlocked(3).
    unsafe { read_checked(&real::fread_unlocked, &real::__fread_unlocked_chk, to, room, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fwrite(from: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
    // SAFETY: the caller keeps the contract of fwrite(3).
    unsafe { write_blocks(&real::fwrite, from, size, count, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fwrite_unlocked(
    from: *mut c_void,
    size: size_t,
    count: size_t,
    stream: *mut FILE,
) -> size_t {
    // SAFETY: the caller keeps the contract of fwrite_unlocked(3).
    unsafe { write_blocks(&real::fwrite_unlocked, from, size, count, stream) }
}

/// # Safety
/// The caller keeps the contract of fputs(3). `real` has the type of fputs(3), and `blocks` has the type of fwrite(3).
unsafe fn put_text(real: &Real, blocks: &Real, text: *const c_char, stream: *mut FILE) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const c_char, *mut FILE) -> c_int;
    if super::near::kernel_is_blind() {
        // SAFETY: under the contract of fputs(3), `text` is NUL-terminated.
        let len = unsafe { libc::strlen(text) };
        if is_far(text.cast(), len) {
            // SAFETY: `text` has `len` bytes, and `blocks` has the type of fwrite(3).
            let went = unsafe { write_blocks(blocks, text.cast_mut().cast(), 1, len, stream) };
            return if went == len { 1 } else { libc::EOF };
        }
    }
    let Some(call) = real.get() else { return libc::EOF };
    // SAFETY: the caller keeps the contract of fputs(3), and `call` has its type.
    unsafe { transmute::<*mut c_void, Call>(call)(text, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fputs(text: *const c_char, stream: *mut FILE) -> c_int {
    // SAFETY: the caller keeps the contract of fputs(3).
    unsafe { put_text(&real::fputs, &real::fwrite, text, stream) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn fputs_unlocked(text: *const c_char, stream: *mut FILE) -> c_int {
    // SAFETY: the caller keeps the contract of fputs_unlocked(3).
    unsafe { put_text(&real::fputs_unlocked, &real::fwrite_unlocked, text, stream) }
}

unsafe extern "C" {
    static stdout: *mut FILE;
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn puts(text: *const c_char) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*const c_char) -> c_int;
    // SAFETY: under the contract of puts(3), `text` is NUL-terminated.
    if super::near::kernel_is_blind() && is_far(text.cast(), unsafe { libc::strlen(text) }) {
        // SAFETY: `stdout` is the C library's stream, and both strings are NUL-terminated. The stream's lock keeps the
        // two writes together.
        unsafe {
            flockfile(stdout);
            let put = put_text(&real::fputs, &real::fwrite, text, stdout);
            let ended =
                if put == libc::EOF { put } else { put_text(&real::fputs, &real::fwrite, c"\n".as_ptr(), stdout) };
            funlockfile(stdout);
            return ended;
        }
    }
    let Some(call) = real::puts.get() else { return libc::EOF };
    // SAFETY: `call` is the C library's `puts`, which has the type `Call`. The argument is the caller's.
    unsafe { transmute::<*mut c_void, Call>(call)(text) }
}

/// setvbuf(3). In signal modes (sigbus and sigsegv), a stream does not use a far `buffer`, but allocates its own.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setvbuf(stream: *mut FILE, buffer: *mut c_char, mode: c_int, len: size_t) -> c_int {
    type Call = unsafe extern "C-unwind" fn(*mut FILE, *mut c_char, c_int, size_t) -> c_int;
    let Some(call) = real::setvbuf.get() else { return -1 };
    let (buffer, len) = if is_far(buffer.cast(), len) { (std::ptr::null_mut(), 0) } else { (buffer, len) };
    // SAFETY: `call` is the C library's `setvbuf`, which has the type `Call`. `buffer` is null or the program's buffer.
    unsafe { transmute::<*mut c_void, Call>(call)(stream, buffer, mode, len) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn setbuf(stream: *mut FILE, buffer: *mut c_char) {
    type Call = unsafe extern "C-unwind" fn(*mut FILE, *mut c_char);
    if is_far(buffer.cast(), libc::BUFSIZ as usize) {
        return;
    }
    let Some(call) = real::setbuf.get() else { return };
    // SAFETY: `call` is the C library's `setbuf`, which has the type `Call`. The arguments are the caller's.
    unsafe { transmute::<*mut c_void, Call>(call)(stream, buffer) }
}
