//! How the library is linked.

use std::path::Path;
use std::process::Command;

const UNWINDER: &str = "libgcc_eh.a";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Keeps the memory that jemalloc maps for itself near: its `mmap` and `sbrk` are not those that this library gives the
    // program. Its fork handlers have nothing to do before there is a heap.
    println!("cargo:rustc-link-arg-cdylib=-Wl,--wrap=mmap,--wrap=sbrk,--wrap=pthread_atfork");
    link_unwinder();
}

/// Links the unwinder into the library instead of naming it as one to be loaded: every program of a run loads what this
/// library names, and for a small program that takes as long as all else. Where the compiler has no such archive, it is
/// loaded.
fn link_unwinder() {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let Ok(said) = Command::new(compiler).arg(format!("-print-file-name={UNWINDER}")).output() else { return };
    let path = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    // A compiler that has none repeats the name.
    if let Some(dir) = Path::new(&path).parent().filter(|dir| dir.is_absolute()) {
        println!("cargo:rustc-link-search=native={}", dir.display());
        println!("cargo:rustc-link-lib=static=gcc_eh");
    }
}
