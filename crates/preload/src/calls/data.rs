//! Calls that move bytes. Far bytes pass through a near buffer (in ordinary memory). If the descriptor is a stream of
//! bytes, the bytes pass in pieces. If the descriptor preserves message boundaries, each message passes as a whole. If
//! a call fails after a part of the bytes has moved, the call returns the size of that part, like the kernel.

use std::ffi::{c_int, c_uint, c_void};
use std::mem::{transmute, zeroed};

use libc::{iovec, msghdr, off_t, off64_t, size_t, sockaddr, socklen_t, ssize_t};

use super::near::{Buffer, PIECE, filled, filled_bytes, given_bytes, is_far, kernel_is_blind};
use super::real;
use super::splice::keeps_pages;
use super::vectors::{BUFFERS_MAX, Vectors};
use crate::answer::set_errno;

/// Checks whether a descriptor preserves message boundaries. A call on such a descriptor must not be divided into
/// pieces.
fn keeps_borders(fd: c_int) -> bool {
    let (mut kind, mut len) = (0 as c_int, size_of::<c_int>() as socklen_t);
    let before = crate::answer::errno();
    // SAFETY: the kernel writes its results to `kind` and `len`.
    let answer = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut len) };
    set_errno(before);
    answer == 0 && kind != libc::SOCK_STREAM
}

/// Checks whether a read returns all bytes that it asks for. This is true for a file and for a device of memory
/// (`/dev/zero`, `/dev/urandom`), and false for a pipe or a terminal.
fn is_storage(fd: c_int) -> bool {
    /// Major number of the devices of memory.
    const MEMORY: libc::c_uint = 1;
    let before = crate::answer::errno();
    // SAFETY: zeroes are a valid `stat`, and `fstat` writes to this local variable.
    let (status, answer) = unsafe {
        let mut status: libc::stat = zeroed();
        let answer = libc::fstat(fd, &raw mut status);
        (status, answer)
    };
    set_errno(before);
    answer == 0
        && match status.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFBLK => true,
            libc::S_IFCHR => libc::major(status.st_rdev) == MEMORY,
            _ => false,
        }
}

fn refused(error: c_int) -> ssize_t {
    set_errno(error);
    -1
}

/// How a call continues after a full piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pieces {
    /// All bytes are one piece.
    Whole,
    /// The call continues until no bytes are left or a piece is cut short.
    On,
    /// The call stops, because the remaining bytes may never arrive.
    Stop,
}

impl Pieces {
    /// Returns the maximum size of a piece if the call moves `total` bytes.
    fn most(self, total: usize) -> usize {
        if self == Pieces::Whole { total } else { total.min(PIECE) }
    }
}

/// Returns the size of the next piece. As in the kernel, the piece ends before the first byte that the program may not
/// access. Returns `None` if no byte is accessible, or if a message is not accessible as a whole.
///
/// # Safety
/// `row` has `len` bytes left.
unsafe fn open_piece(row: &Vectors, len: usize, pieces: Pieces, writes: bool) -> Option<usize> {
    // SAFETY: the caller promises that `row` has `len` bytes left.
    let open = unsafe { row.open_bytes(len, writes) };
    (open == len || open > 0 && pieces != Pieces::Whole).then_some(open)
}

/// Copies the bytes of `row` in pieces to a near buffer, and calls `call(buffer, bytes, done)` for each piece. `done`
/// is the number of bytes in earlier pieces.
///
/// # Safety
/// `row` is valid and `total` bytes long.
unsafe fn give(
    mut row: Vectors,
    total: usize,
    pieces: Pieces,
    call: impl Fn(*mut c_void, usize, usize) -> ssize_t,
) -> ssize_t {
    let most = pieces.most(total);
    let Some(buffer) = Buffer::new(most) else { return refused(libc::ENOMEM) };
    let mut done = 0;
    loop {
        // SAFETY: `row` has `total - done` bytes left.
        let Some(piece) = (unsafe { open_piece(&row, most.min(total - done), pieces, false) }) else {
            return if done > 0 { done as ssize_t } else { refused(libc::EFAULT) };
        };
        // SAFETY: `row` has at least `piece` bytes left, and the buffer has room for them.
        unsafe { row.gather(buffer.pointer(), piece) };
        let answer = call(buffer.pointer().cast(), piece, done);
        if answer < 0 {
            return if done > 0 { done as ssize_t } else { answer };
        }
        done += answer as usize;
        if answer as usize != piece || done >= total || pieces != Pieces::On {
            return done as ssize_t;
        }
    }
}

/// Calls `call(buffer, bytes, done)` for each piece, and copies the bytes from the near buffer to `row`. `done` is the
/// number of bytes in earlier pieces.
///
/// # Safety
/// `row` is valid and `total` bytes long.
unsafe fn take(
    mut row: Vectors,
    total: usize,
    pieces: Pieces,
    call: impl Fn(*mut c_void, usize, usize) -> ssize_t,
) -> ssize_t {
    let most = pieces.most(total);
    let Some(buffer) = Buffer::new(most) else { return refused(libc::ENOMEM) };
    let mut done = 0;
    loop {
        // SAFETY: `row` has room for `total - done` bytes.
        let Some(piece) = (unsafe { open_piece(&row, most.min(total - done), pieces, true) }) else {
            return if done > 0 { done as ssize_t } else { refused(libc::EFAULT) };
        };
        let answer = call(buffer.pointer().cast(), piece, done);
        if answer < 0 {
            return if done > 0 { done as ssize_t } else { answer };
        }
        // A result larger than the piece is the full length of a message that was cut off.
        let came = (answer as usize).min(piece);
        // SAFETY: `row` has room for `total - done` bytes, and the buffer holds `came` bytes.
        unsafe { row.scatter(buffer.pointer(), came) };
        done += answer as usize;
        if came != piece || answer as usize != piece || done >= total || pieces != Pieces::On {
            return done as ssize_t;
        }
    }
}

fn pieces_of_write(fd: c_int, total: usize) -> Pieces {
    if total > PIECE && keeps_borders(fd) { Pieces::Whole } else { Pieces::On }
}

fn pieces_of_read(fd: c_int, total: usize) -> Pieces {
    match total > PIECE {
        true if is_storage(fd) => Pieces::On,
        true if keeps_borders(fd) => Pieces::Whole,
        _ => Pieces::Stop,
    }
}

fn pieces_of_receive(fd: c_int, total: usize, flags: c_int) -> Pieces {
    if flags & (libc::MSG_PEEK | libc::MSG_ERRQUEUE) != 0 || total > PIECE && keeps_borders(fd) {
        return Pieces::Whole;
    }
    if flags & libc::MSG_WAITALL != 0 { Pieces::On } else { Pieces::Stop }
}

/// Interposes calls on one buffer: `call(fd, buffer, len, more...)`. `$more` is a further argument, such as a file
/// offset. `$next` computes its value for each piece, from the caller's argument and the number of bytes in earlier
/// pieces. `[room]` marks a checked variant (`__read_chk`), which also gets the buffer's size.
macro_rules! one_buffer {
    ($move:ident, $pieces:ident: $($name:ident($($more:ident: $type:ty = $next:expr),*) $([$room:ident])?)*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(
            fd: c_int, buffer: *mut c_void, len: size_t, $($more: $type,)* $($room: size_t)?
        ) -> ssize_t {
            type Call = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t $(, $type)* $(, one_buffer!(@ $room))?) -> ssize_t;
            let Some(call) = real::$name.get() else { return refused(libc::ENOSYS) };
            // SAFETY: `call` is the C library's `$name`, which has the type `Call`.
            let call = unsafe { transmute::<*mut c_void, Call>(call) };
            if !is_far(buffer, len) $(|| len > $room)? {
                // SAFETY: the caller keeps the contract of the call.
                return unsafe { call(fd, buffer, len $(, $more)* $(, $room)?) };
            }
            let one = iovec { iov_base: buffer, iov_len: len };
            // SAFETY: under the contract of the call, `buffer` is valid for `len` bytes.
            unsafe {
                $move(Vectors::new(&raw const one, 1), len, $pieces(fd, len), |near, len, done| {
                    let _ = done;
                    $(let $more = $next(($more, done));)*
                    call(fd, near, len $(, $more)* $(, one_buffer!(@len $room len))?)
                })
            }
        }
    )* };
    (@ $room:ident) => { size_t };
    (@len $room:ident $len:ident) => { $len };
}

/// Returns the file offset of the next piece, after earlier pieces have moved `done` bytes.
fn forward((offset, done): (off_t, usize)) -> off_t {
    offset + done as off_t
}

one_buffer! { take, pieces_of_read:
    read()
    __read()
    __read_chk() [room]
    pread(offset: off_t = forward)
    pread64(offset: off64_t = forward)
    __pread64(offset: off64_t = forward)
    __pread_chk(offset: off_t = forward) [room]
    __pread64_chk(offset: off64_t = forward) [room]
}

one_buffer! { give, pieces_of_write:
    write()
    __write()
    pwrite(offset: off_t = forward)
    pwrite64(offset: off64_t = forward)
    __pwrite64(offset: off64_t = forward)
}

/// Interposes calls on several buffers: `call(fd, buffers, count, more...)`.
macro_rules! many_buffers {
    ($move:ident, $pieces:ident: $($name:ident($($more:ident: $type:ty = $next:expr),*))*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name(fd: c_int, buffers: *const iovec, count: c_int $(, $more: $type)*) -> ssize_t {
            type Call = unsafe extern "C-unwind" fn(c_int, *const iovec, c_int $(, $type)*) -> ssize_t;
            let Some(call) = real::$name.get() else { return refused(libc::ENOSYS) };
            // SAFETY: `call` is the C library's `$name`, which has the type `Call`.
            let call = unsafe { transmute::<*mut c_void, Call>(call) };
            let far = match kernel_is_blind() && count > 0 {
                // SAFETY: under the contract of the call, the table and its buffers are valid.
                true => unsafe { Vectors::new(buffers, count as usize) }.far_bytes(),
                false => None,
            };
            let Some(total) = far else {
                // SAFETY: the caller keeps the contract of the call.
                return unsafe { call(fd, buffers, count $(, $more)*) };
            };
            // SAFETY: under the contract of the call, the table and its buffers are valid.
            unsafe {
                $move(Vectors::new(buffers, count as usize), total, $pieces(fd, total), |near, len, done| {
                    let _ = done;
                    $(let $more = $next(($more, done));)*
                    let one = iovec { iov_base: near, iov_len: len };
                    call(fd, &raw const one, 1 $(, $more)*)
                })
            }
        }
    )* };
}

/// Like [`forward`], but returns an offset of -1 unchanged. The offset -1 stands for the file's own position, which the
/// kernel advances.
fn forward_unless_own((offset, done): (off_t, usize)) -> off_t {
    if offset == -1 { -1 } else { offset + done as off_t }
}

fn same((flags, _done): (c_int, usize)) -> c_int {
    flags
}

many_buffers! { take, pieces_of_read:
    readv()
    preadv(offset: off_t = forward)
    preadv64(offset: off64_t = forward)
    preadv2(offset: off_t = forward_unless_own, flags: c_int = same)
    preadv64v2(offset: off64_t = forward_unless_own, flags: c_int = same)
}

many_buffers! { give, pieces_of_write:
    writev()
    pwritev(offset: off_t = forward)
    pwritev64(offset: off64_t = forward)
    pwritev2(offset: off_t = forward_unless_own, flags: c_int = same)
    pwritev64v2(offset: off64_t = forward_unless_own, flags: c_int = same)
}

type Transfer = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int) -> ssize_t;
type Addressed<A, L> = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, c_int, A, L) -> ssize_t;

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(call) = real::recv.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `recv`, which has the type `Transfer`.
    let call = unsafe { transmute::<*mut c_void, Transfer>(call) };
    if !is_far(buffer, len) {
        // SAFETY: the caller keeps the contract of recv(2).
        return unsafe { call(fd, buffer, len, flags) };
    }
    let one = iovec { iov_base: buffer, iov_len: len };
    let pieces = pieces_of_receive(fd, len, flags);
    // SAFETY: under the contract of recv(2), `buffer` is valid for `len` bytes.
    unsafe { take(Vectors::new(&raw const one, 1), len, pieces, |near, len, _| call(fd, near, len, flags)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    type Call = unsafe extern "C-unwind" fn(c_int, *mut c_void, size_t, size_t, c_int) -> ssize_t;
    if len <= room {
        // SAFETY: the caller keeps the contract of recv(2).
        return unsafe { recv(fd, buffer, len, flags) };
    }
    let Some(call) = real::__recv_chk.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `__recv_chk`, which has the type `Call`. It ends the program, because `len`
    // exceeds the buffer's size `room`.
    unsafe { transmute::<*mut c_void, Call>(call)(fd, buffer, len, room, flags) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn send(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    let Some(call) = real::send.get() else { return refused(libc::ENOSYS) };
    if keeps_pages(fd, flags) {
        return refused(libc::ENOBUFS);
    }
    // SAFETY: `call` is the C library's `send`, which has the type `Transfer`.
    let call = unsafe { transmute::<*mut c_void, Transfer>(call) };
    if !is_far(buffer, len) {
        // SAFETY: the caller keeps the contract of send(2).
        return unsafe { call(fd, buffer, len, flags) };
    }
    let one = iovec { iov_base: buffer, iov_len: len };
    let pieces = pieces_of_write(fd, len);
    // SAFETY: under the contract of send(2), `buffer` is valid for `len` bytes.
    unsafe { give(Vectors::new(&raw const one, 1), len, pieces, |near, len, _| call(fd, near, len, flags)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    let Some(call) = real::recvfrom.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `recvfrom`, which has the type `Addressed<*mut sockaddr, *mut socklen_t>`.
    let call = unsafe { transmute::<*mut c_void, Addressed<*mut sockaddr, *mut socklen_t>>(call) };
    if !kernel_is_blind() {
        // SAFETY: the caller keeps the contract of recvfrom(2).
        return unsafe { call(fd, buffer, len, flags, address, address_len) };
    }
    // SAFETY: under the contract of recvfrom(2), `address_len` is null or valid. If it is valid, `address` is null or
    // valid for `*address_len` bytes.
    let (near_address, near_len) = unsafe {
        let room = if address_len.is_null() { 0 } else { address_len.read() as usize };
        (filled_bytes(address, room), filled(address_len))
    };
    let (address, address_len) = (near_address.pointer().cast(), near_len.pointer().cast());
    if !is_far(buffer, len) {
        // SAFETY: the caller keeps the contract of recvfrom(2).
        return unsafe { call(fd, buffer, len, flags, address, address_len) };
    }
    let one = iovec { iov_base: buffer, iov_len: len };
    let pieces = pieces_of_receive(fd, len, flags);
    let receive = |near, len, _| {
        // SAFETY: the caller keeps the contract of recvfrom(2), and near copies replace far arguments.
        unsafe { call(fd, near, len, flags, address, address_len) }
    };
    // SAFETY: under the contract of recvfrom(2), `buffer` is valid for `len` bytes.
    unsafe { take(Vectors::new(&raw const one, 1), len, pieces, receive) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> ssize_t {
    type Call = unsafe extern "C-unwind" fn(
        c_int,
        *mut c_void,
        size_t,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t;
    if len <= room {
        // SAFETY: the caller keeps the contract of recvfrom(2).
        return unsafe { recvfrom(fd, buffer, len, flags, address, address_len) };
    }
    let Some(call) = real::__recvfrom_chk.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `__recvfrom_chk`, which has the type `Call`. It ends the program, because `len`
    // exceeds the buffer's size `room`.
    unsafe { transmute::<*mut c_void, Call>(call)(fd, buffer, len, room, flags, address, address_len) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buffer: *mut c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> ssize_t {
    let Some(call) = real::sendto.get() else { return refused(libc::ENOSYS) };
    if keeps_pages(fd, flags) {
        return refused(libc::ENOBUFS);
    }
    // SAFETY: `call` is the C library's `sendto`, which has the type `Addressed<*const sockaddr, socklen_t>`.
    let call = unsafe { transmute::<*mut c_void, Addressed<*const sockaddr, socklen_t>>(call) };
    // SAFETY: under the contract of sendto(2), `address` is null or valid for `address_len` bytes.
    let near_address = unsafe { given_bytes(address, address_len as usize) };
    let address = near_address.pointer().cast_const().cast();
    if !is_far(buffer, len) {
        // SAFETY: the caller keeps the contract of sendto(2).
        return unsafe { call(fd, buffer, len, flags, address, address_len) };
    }
    let one = iovec { iov_base: buffer, iov_len: len };
    let pieces = pieces_of_write(fd, len);
    let send = |near, len, _| {
        // SAFETY: the caller keeps the contract of sendto(2), and near copies replace far arguments.
        unsafe { call(fd, near, len, flags, address, address_len) }
    };
    // SAFETY: under the contract of sendto(2), `buffer` is valid for `len` bytes.
    unsafe { give(Vectors::new(&raw const one, 1), len, pieces, send) }
}

type OnMessage = unsafe extern "C-unwind" fn(c_int, *mut msghdr, c_int) -> ssize_t;

/// Returns the header of a message and the number of bytes in its buffers, if any part of the message is far. Otherwise
/// returns `None`.
///
/// # Safety
/// `message` is null or valid for recvmsg(2).
pub(super) unsafe fn far_message(message: *const msghdr) -> Option<(msghdr, usize)> {
    if message.is_null() || !kernel_is_blind() {
        return None;
    }
    // SAFETY: `message` is not null, so it is valid.
    let header = unsafe { message.read() };
    if header.msg_iovlen > BUFFERS_MAX {
        // The kernel refuses it.
        return None;
    }
    // SAFETY: the buffers of a valid message are valid.
    let row = unsafe { Vectors::new(header.msg_iov, header.msg_iovlen) };
    let rest = is_far(message.cast(), size_of::<msghdr>())
        || is_far(header.msg_name, header.msg_namelen as usize)
        || is_far(header.msg_control, header.msg_controllen);
    match row.far_bytes() {
        Some(total) => Some((header, total)),
        // SAFETY: the caller promises that the message is valid, so `header` is the header of a valid message.
        None if rest => Some((header, unsafe { length(&header) })),
        None => None,
    }
}

/// Returns the number of bytes in a message's buffers.
///
/// # Safety
/// `header` is the header of a valid message.
pub(super) unsafe fn length(header: &msghdr) -> usize {
    // SAFETY: `index` is below the number of buffers of a valid message.
    (0..header.msg_iovlen).map(|index| unsafe { (*header.msg_iov.add(index)).iov_len }).fold(0, usize::saturating_add)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let Some(call) = real::sendmsg.get() else { return refused(libc::ENOSYS) };
    if keeps_pages(fd, flags) {
        return refused(libc::ENOBUFS);
    }
    // SAFETY: `call` is the C library's `sendmsg`, which has the type `OnMessage`.
    let call = unsafe { transmute::<*mut c_void, OnMessage>(call) };
    // SAFETY: the caller keeps the contract of sendmsg(2).
    let Some((header, total)) = (unsafe { far_message(message) }) else {
        // SAFETY: the caller keeps the contract of sendmsg(2).
        return unsafe { call(fd, message.cast_mut(), flags) };
    };
    // SAFETY: under the contract of sendmsg(2), the name and the control data are valid for the lengths in `header`.
    let (name, control) = unsafe {
        (
            given_bytes(header.msg_name, header.msg_namelen as usize),
            given_bytes(header.msg_control, header.msg_controllen),
        )
    };
    let send = |near, len, done| {
        let mut one = iovec { iov_base: near, iov_len: len };
        let mut header = header;
        (header.msg_name, header.msg_iov, header.msg_iovlen) = (name.pointer(), &raw mut one, 1);
        // The ancillary data is sent with the first piece.
        (header.msg_control, header.msg_controllen) =
            if done == 0 { (control.pointer(), header.msg_controllen) } else { (std::ptr::null_mut(), 0) };
        // SAFETY: all parts of this message are near and valid.
        unsafe { call(fd, &raw mut header, flags) }
    };
    // SAFETY: the buffers of the caller's message are valid and hold `total` bytes.
    unsafe { give(Vectors::new(header.msg_iov, header.msg_iovlen), total, pieces_of_write(fd, total), send) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(call) = real::recvmsg.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `recvmsg`, which has the type `OnMessage`.
    let call = unsafe { transmute::<*mut c_void, OnMessage>(call) };
    // SAFETY: the caller keeps the contract of recvmsg(2).
    let Some((header, total)) = (unsafe { far_message(message) }) else {
        // SAFETY: the caller keeps the contract of recvmsg(2).
        return unsafe { call(fd, message, flags) };
    };
    // SAFETY: under the contract of recvmsg(2), the name and the control data are valid for the lengths in `header`.
    let (name, control) = unsafe {
        (
            filled_bytes(header.msg_name.cast::<u8>(), header.msg_namelen as usize),
            filled_bytes(header.msg_control.cast::<u8>(), header.msg_controllen),
        )
    };
    // Only one call is made, even if few bytes arrive, because the ancillary data belongs to these bytes.
    let pieces = match pieces_of_receive(fd, total, flags) {
        Pieces::On => Pieces::Whole,
        other => other,
    };
    let told = std::cell::Cell::new(header);
    let receive = |near, len, _| {
        let mut one = iovec { iov_base: near, iov_len: len };
        let mut header = header;
        (header.msg_name, header.msg_control) = (name.pointer(), control.pointer());
        (header.msg_iov, header.msg_iovlen) = (&raw mut one, 1);
        // SAFETY: all parts of this message are near and valid.
        let answer = unsafe { call(fd, &raw mut header, flags) };
        told.set(header);
        answer
    };
    // SAFETY: the buffers of the caller's message are valid and hold `total` bytes.
    let answer = unsafe { take(Vectors::new(header.msg_iov, header.msg_iovlen), total, pieces, receive) };
    if answer >= 0 {
        let told = told.get();
        // SAFETY: `message` is valid and writable under the contract of recvmsg(2). The kernel would write the same
        // three fields.
        unsafe {
            (*message).msg_namelen = told.msg_namelen;
            (*message).msg_controllen = told.msg_controllen;
            (*message).msg_flags = told.msg_flags;
        }
    }
    answer
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C-unwind" fn getrandom(buffer: *mut c_void, len: size_t, flags: c_uint) -> ssize_t {
    type Call = unsafe extern "C-unwind" fn(*mut c_void, size_t, c_uint) -> ssize_t;
    let Some(call) = real::getrandom.get() else { return refused(libc::ENOSYS) };
    // SAFETY: `call` is the C library's `getrandom`, which has the type `Call`.
    let call = unsafe { transmute::<*mut c_void, Call>(call) };
    if !is_far(buffer, len) {
        // SAFETY: the caller keeps the contract of getrandom(2).
        return unsafe { call(buffer, len, flags) };
    }
    let one = iovec { iov_base: buffer, iov_len: len };
    // SAFETY: under the contract of getrandom(2), `buffer` is valid for `len` bytes.
    unsafe { take(Vectors::new(&raw const one, 1), len, Pieces::On, |near, len, _| call(near, len, flags)) }
}
