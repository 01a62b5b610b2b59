//! Compiles what jemalloc needs from us (`src/heap/jemalloc.c`).

fn main() {
    println!("cargo:rerun-if-changed=src/heap/jemalloc.c");
    cc::Build::new().file("src/heap/jemalloc.c").cargo_metadata(false).compile("hanare_jemalloc");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={out}");
    // Linked as a whole archive: jemalloc has a weak definition of its own, which would keep ours out.
    println!("cargo:rustc-link-lib=static:+whole-archive=hanare_jemalloc");
    // jemalloc's own memory must be near, but the preload library's `mmap` and `sbrk` may return far memory. Its fork
    // handlers have nothing to do before there is a heap.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap,--wrap=sbrk,--wrap=pthread_atfork");
}
