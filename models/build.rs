//! Sets the configuration flag `loom`. Under this flag, the included files of other crates omit functions that can only
//! be `const` with the atomics of the standard library.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
