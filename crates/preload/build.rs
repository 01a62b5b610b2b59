//! Keeps the memory that jemalloc maps for itself near: its `mmap` is not the one this library gives the program.

fn main() {
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap");
}
