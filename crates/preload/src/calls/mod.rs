//! System calls on far buffers in sigbus and sigsegv mode. In these modes a signal reports an access to an absent page.
//! The kernel cannot raise a signal during a system call, so it fails the call with EFAULT. This module interposes the
//! C library's wrappers and passes near copies of far data to the kernel. In thread mode, and for near data, each call
//! goes straight to the C library. Its functions are cancellation points and do more than the system call.
//!
//! - `near` makes the copies. `data` moves any number of bytes. `files`, `sockets`, `waiting`, `queues`, `process` and
//!   `stdio` copy paths and structures.
//! - `descriptors` protects Hanare's own descriptors from being closed. `identity` ensures that changes of user and
//!   groups in the C library access no far memory. Both work in every mode.
//! - `limits`, in every mode, shows the program its own resource limits.
//! - `own` is about the program's own memory, accessed through the kernel.
//! - `splice`, in every mode, is about pages to which the kernel would keep references.
//! - `again` is for calls whose argument types only the kernel knows (`ioctl`, `fcntl`, `syscall`): a call that fails
//!   is repeated once its pages are present.
//!
//! The engine and the servers' links also call these functions, even while a fault is being resolved. So
//! [`real::resolve`] looks up all symbols beforehand, and a call with near arguments costs only a comparison.

mod again;
pub(crate) mod data;
pub(crate) mod descriptors;
mod files;
mod identity;
pub(crate) mod limits;
pub(crate) mod near;
pub(crate) mod own;
mod process;
pub(crate) mod queues;
pub(crate) mod real;
pub(crate) mod sockets;
pub(crate) mod splice;
mod stack;
mod stdio;
mod vectors;
pub(crate) mod waiting;

/// Interposes one call. `$argument = $copy` names an argument that may be far, and the expression that makes a near
/// copy. After the call, the copies are written back and freed.
macro_rules! wrap {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $($far:ident = $copy:expr),* })*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let Some(call) = crate::calls::real::$name.get() else {
                crate::answer::set_errno(libc::ENOSYS);
                return -1;
            };
            // SAFETY: the symbol is the C library's function of this name, which has this type.
            let call = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(call)
            };
            if !crate::calls::near::kernel_is_blind() {
                // SAFETY: the arguments are the caller's, who keeps the contract of the call.
                return unsafe { call($($argument),*) };
            }
            $(
                // SAFETY: by the contract of the call, the argument is null or valid for the bytes that `$copy` copies.
                let mut $far = unsafe { $copy };
            )*
            // SAFETY: the arguments are the caller's, with near copies in place of far memory.
            let answer = unsafe { call($(crate::calls::near::Argument::<$type>::given(&$argument)),*) };
            $( $far.settle(answer as i64); )*
            answer
        }
    )* };
}
pub(crate) use wrap;
