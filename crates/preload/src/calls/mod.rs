//! System calls on far buffers, where the trap is a signal (sigbus and sigsegv mode): the kernel cannot raise it and
//! answers EFAULT. The C library's wrappers of the calls are interposed, and what is far is handed to the kernel as a near
//! copy. In thread mode, and where nothing is far, each goes straight to the C library, whose functions are cancellation
//! points and know what else there is to do.
//!
//! - `near` makes the copies; `data` moves bytes of any number; `files`, `sockets`, `waiting`, `queues`, `process` and `stdio`
//!   take paths and structures.
//! - `descriptors` keeps Hanare's own from being closed, and `identity` the C library's changes of user and groups from far
//!   memory; both in every mode.
//! - `limits` is for every mode: what the program may have, as it knows it.
//! - `own` is for the program's own memory by way of the kernel.
//! - `splice` is for every mode: what the kernel would keep references to.
//! - `again` serves the calls whose arguments only the kernel knows (`ioctl`, `fcntl`, `syscall`): a call that failed is
//!   made again once its pages are there.
//!
//! Engine and servers' links make calls of their own through here, also while a fault is resolved. So no symbol is looked
//! up then ([`real::resolve`]), and what is near costs a comparison.

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

/// Interposes one call. `$argument = $copy` names what may be far and how it is made near; the copies go back, and are
/// given up, when the call has returned.
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
                // SAFETY: the caller's arguments, under the contract of the call.
                return unsafe { call($($argument),*) };
            }
            $(
                // SAFETY: the contract of the call makes the argument null or valid for what is copied.
                let mut $far = unsafe { $copy };
            )*
            // SAFETY: as above, with near copies in place of what is far.
            let answer = unsafe { call($(crate::calls::near::Argument::<$type>::given(&$argument)),*) };
            $( $far.settle(answer as i64); )*
            answer
        }
    )* };
}
pub(crate) use wrap;
