//! Sets `loom`: the files of other crates leave out what only constants of the standard library can do.

fn main() {
    println!("cargo::rustc-cfg=loom");
}
