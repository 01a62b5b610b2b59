//! System calls on far buffers in signal modes (sigbus and sigsegv). In these modes a fault raises a signal. The kernel
//! cannot deliver a signal in the middle of a system call, so it fails the call with EFAULT at an absent far page. This
//! module interposes the C library's wrappers and passes near (ordinary) copies of far data to the kernel. In thread
//! mode, and for near data, each call goes unchanged to the C library. The call does not go directly to the kernel,
//! because the C library's functions are cancellation points and do more than the system call.
//!
//! - `near` makes the copies. `data` and `messages` move any number of bytes. `files`, `sockets`, `waiting`, `queues`,
//!   `process` and `stdio` interpose calls with paths and structures. `stack` replaces far signal stacks.
//! - `descriptors` prevents the program from closing Hanare's own descriptors, in every mode.
//! - `aio` refuses asynchronous I/O on far memory.
//! - `identity` keeps the C library's changes of user and groups away from far memory, in every mode.
//! - `limits` shows the program its own resource limits, in every mode.
//! - `pending` shows and takes the signals that wait in this library.
//! - `own` serves accesses to the program's own memory through the kernel.
//! - `splice` serves calls after which the kernel would keep references to pages, in every mode.
//! - `again` serves calls whose arguments only the kernel can interpret (`ioctl`, `fcntl`, `syscall`). It makes the
//!   pages of the arguments present and repeats the failed call.
//!
//! The engine and the connections to the servers also call these functions, even while a fault is being resolved. So
//! symbols are looked up in advance ([`real::resolve`]), and a call with near arguments costs only one additional
//! comparison.

pub(crate) mod again;
mod aio;
pub(crate) mod data;
pub(crate) mod descriptors;
mod files;
mod identity;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod near;
pub(crate) mod own;
pub(crate) mod pending;
pub(crate) mod process;
pub(crate) mod queues;
pub(crate) mod real;
pub(crate) mod sockets;
pub(crate) mod splice;
pub(crate) mod stack;
mod stdio;
mod vectors;
pub(crate) mod waiting;

/// Interposes calls. `$far = $copy` names an argument that may be far, and the expression that makes its near copy.
/// When the call has returned, the copies are written back and freed.
macro_rules! wrap {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $($far:ident = $copy:expr),* })*) => { $(
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $name($($argument: $type),*) -> $result {
            let Some(call) = crate::calls::real::$name.get() else {
                crate::answer::set_errno(libc::ENOSYS);
                return -1;
            };
            // SAFETY: `call` is the C library's `$name`, which has the type below.
            let call = unsafe {
                std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C-unwind" fn($($type),*) -> $result>(call)
            };
            if !crate::calls::near::kernel_is_blind() {
                // SAFETY: the caller keeps the contract of the call.
                return unsafe { call($($argument),*) };
            }
            $(
                // SAFETY: under the contract of the call, the argument is null or valid for the bytes that `$copy`
                // copies.
                let mut $far = unsafe { $copy };
            )*
            $(
                if $far.is_interrupted() {
                    crate::answer::set_errno(libc::EINTR);
                    return -1;
                }
            )*
            // SAFETY: the caller keeps the contract of the call. Near copies replace far arguments.
            let answer = unsafe { call($(crate::calls::near::Argument::<$type>::given(&$argument)),*) };
            $( $far.settle(answer as i64); )*
            answer
        }
    )* };
}
pub(crate) use wrap;
