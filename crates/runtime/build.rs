//! Compiles `src/heap/jemalloc.c`, which holds the options for jemalloc and the functions that it calls.

fn main() {
    println!("cargo:rerun-if-changed=src/heap/jemalloc.c");
    cc::Build::new().file("src/heap/jemalloc.c").cargo_metadata(false).compile("hanare_jemalloc");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={out}");
    // The whole archive is linked. Otherwise the linker would use a weak definition in jemalloc and leave ours out.
    println!("cargo:rustc-link-lib=static:+whole-archive=hanare_jemalloc");
    // jemalloc's own memory must be near, but the preload library's `mmap` and `sbrk` may return far memory. So both
    // are replaced by functions of ours. `pthread_atfork` is replaced too, because jemalloc's fork handlers have
    // nothing to do before there is a heap.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap,--wrap=sbrk,--wrap=pthread_atfork");
}
