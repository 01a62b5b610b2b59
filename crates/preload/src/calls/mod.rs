//! System calls on far buffers in sigbus and sigsegv mode. There the trap is a signal, which the kernel cannot raise
//! during a system call, so the kernel fails the call with EFAULT. This room interposes the C library's wrappers and
//! passes near copies of far data to the kernel. In thread mode, and for near data, each call goes straight to the C
//! library, whose functions are cancellation points and do more than the system call.
//!
//! - `near` makes the copies. `data` moves any number of bytes. `files`, `sockets`, `waiting`, `queues`, `process` and
//!   `stdio` handle paths and structures.
//! - `descriptors` protects Hanare's own descriptors from being closed. `identity` keeps the C library's changes of
//!   user and groups away from far memory. Both work in every mode.
//! - `limits`, in every mode, shows the program its own resource limits.
//! - `own` handles access to the program's own memory through the kernel.
//! - `splice`, in every mode, handles pages to which the kernel would keep references.
//! - `again` serves calls whose arguments only the kernel knows (`ioctl`, `fcntl`, `syscall`): a call that failed is
//!   repeated once its pages are present.
//!
//! The engine and the servers' links also call these functions, even while a fault is being resolved. So symbols are
//! looked up beforehand ([`real::resolve`]), and near arguments cost only a comparison.

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

/// Interposes one call. `$argument = $copy` names an argument that may be far, and how to make a near copy. When the
/// call has returned, the copies are written back and freed.
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
                // SAFETY: the contract of the call makes the argument null or valid for what is copied.
                let mut $far = unsafe { $copy };
            )*
            // SAFETY: as above, with near copies of far arguments.
            let answer = unsafe { call($(crate::calls::near::Argument::<$type>::given(&$argument)),*) };
            $( $far.settle(answer as i64); )*
            answer
        }
    )* };
}
pub(crate) use wrap;
