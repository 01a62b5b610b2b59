//! Sets the `loom` configuration. With it, the files of other crates leave out functions that are constant only with
//! the atomics of the standard library.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
