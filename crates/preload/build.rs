//! Compiles the library's C files and sets its linker options.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for file in ["src/unwinder.c", "src/execl.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    // jemalloc's own memory must stay near, so jemalloc must not call the `mmap` and `sbrk` that this library exports.
    // These options give jemalloc other functions instead. Its `pthread_atfork` is replaced too: before the heap
    // exists, its fork handlers have no work.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap,--wrap=sbrk,--wrap=pthread_atfork");
    link_unwinder();
    let mut compiler = cc::Build::new();
    compiler.file("src/execl.c").flag("-fasynchronous-unwind-tables").warnings(true).compile("hanare_execl");
}

/// Links a substitute for the unwinder, so that the dynamic linker does not load the real one with the library. The
/// linker must keep the whole archive, because the standard library follows it and needs each of its functions.
fn link_unwinder() {
    let mut compiler = cc::Build::new();
    compiler.file("src/unwinder.c").flag("-funwind-tables").flag("-fasynchronous-unwind-tables").warnings(true);
    compiler.cargo_metadata(false).compile("hanare_unwinder");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static:+whole-archive=hanare_unwinder");
}
