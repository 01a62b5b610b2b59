//! Compiles the C files and passes options to the linker.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for file in ["src/unwinder.c", "src/execl.c", "src/streams.c", "src/binding.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    // The linker redirects jemalloc's calls of `mmap`, `sbrk` and `pthread_atfork` to functions in the runtime crate
    // (`jemalloc.c`). jemalloc's own memory must stay near, so it must not call the `mmap` and `sbrk` that this library
    // exports to the program. jemalloc's fork handlers must do nothing before its heap is used.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap,--wrap=sbrk,--wrap=pthread_atfork");
    // This library's own calls reach its own functions, whatever functions the program defines. ISO C lets a program
    // define functions with the names `send` or `poll`. Without this option, the library's own calls would reach those.
    // The functions that the library only calls are bound to the C library for the same reason (`binding.c`).
    println!("cargo:rustc-link-arg-cdylib=-Wl,-Bsymbolic-functions");
    link_unwinder();
    let mut compiler = cc::Build::new();
    compiler
        .file("src/execl.c")
        .file("src/streams.c")
        .flag("-fasynchronous-unwind-tables")
        .warnings(true)
        .compile("hanare_execl");
    cc::Build::new().file("src/binding.c").flag("-ffreestanding").warnings(true).compile("hanare_binding");
}

/// Links a substitute for the unwinder, so that the dynamic linker does not load libgcc_s for this library. The
/// substitute is linked as a whole (`+whole-archive`). It comes before the standard library, which must find each
/// function of the substitute.
fn link_unwinder() {
    let mut compiler = cc::Build::new();
    compiler.file("src/unwinder.c").flag("-funwind-tables").flag("-fasynchronous-unwind-tables").warnings(true);
    compiler.cargo_metadata(false).compile("hanare_unwinder");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    println!("cargo:rustc-link-search=native={out}");
    println!("cargo:rustc-link-lib=static:+whole-archive=hanare_unwinder");
}
