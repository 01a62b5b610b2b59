//! Calls that pass addresses or options of sockets, or return pairs of descriptors.

use std::ffi::{c_int, c_void};

use libc::{sockaddr, socklen_t};

use super::near::{Near, filled, filled_bytes, given_bytes};
use super::wrap;

/// Makes a `Near` for the buffer of an address that the call writes. `len` points to the size of the buffer.
///
/// # Safety
/// `len` is null or valid. `address` is null or valid for `*len` bytes.
unsafe fn filled_address<'a, T>(address: *mut T, len: *const socklen_t) -> Near<'a> {
    // SAFETY: the caller promises that `len` is null or valid, and that `address` is null or valid for `*len` bytes.
    unsafe { filled_bytes(address, if len.is_null() { 0 } else { len.read() as usize }) }
}

wrap! {
    bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int { address = given_bytes(address, len as usize) }
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int { address = given_bytes(address, len as usize) }
    __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
        address = given_bytes(address, len as usize)
    }
    accept(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        address = filled_address(address, len), len = filled(len)
    }
    accept4(fd: c_int, address: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
        address = filled_address(address, len), len = filled(len)
    }
    getsockname(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        address = filled_address(address, len), len = filled(len)
    }
    getpeername(fd: c_int, address: *mut sockaddr, len: *mut socklen_t) -> c_int {
        address = filled_address(address, len), len = filled(len)
    }
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int {
        value = filled_address(value, len), len = filled(len)
    }
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int) -> c_int {
        fds = filled_bytes(fds, 2 * size_of::<c_int>())
    }
    pipe(fds: *mut c_int) -> c_int { fds = filled_bytes(fds, 2 * size_of::<c_int>()) }
    __pipe(fds: *mut c_int) -> c_int { fds = filled_bytes(fds, 2 * size_of::<c_int>()) }
    pipe2(fds: *mut c_int, flags: c_int) -> c_int { fds = filled_bytes(fds, 2 * size_of::<c_int>()) }
}
