//! Sets the configuration flag `loom`. Under this flag, the included files of other crates omit `const` functions that
//! make atomics, because loom cannot make an atomic in a `const` function.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
