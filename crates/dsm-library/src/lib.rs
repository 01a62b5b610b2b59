//! `libhanare_dsm.so`: the C functions that `include/dsm.h` declares.
//!
//! The functions are those of `hanare-dsm`. This crate only gives them an allocator that has no lock in common with the
//! program's `malloc`. A signal handler may interrupt `malloc` or `fork` while glibc's locks are held, and then access
//! shared memory. The handler waits until the engine's thread has brought the page. If the engine's thread waited for
//! one of these locks, neither thread would ever go on.
//!
//! The allocator cannot be part of `hanare-dsm`. The `hanare` command also links `hanare-dsm`, and has another
//! allocator.

// Without this line, the linker would leave the C functions out.
extern crate dsm as _;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
