//! Tells `src/version.rs` from which commit, for which target and by which compiler the command is built.
//!
//! Their names do not begin with HANARE_: cargo also sets them for tests, and the command warns of unknown variables.
//! The script runs again only when the commit that is checked out changes. So uncommitted changes are not noticed.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(commit) = commit() {
        println!("cargo:rustc-env=BUILD_COMMIT={commit}");
    }
    let compiler = std::env::var("RUSTC").ok().and_then(|rustc| output(&rustc, &["--version"]));
    // `rustc 1.95.0 (f2d3ce0bd 2026-03-21)`: the number is enough.
    let number = compiler.as_deref().and_then(|line| line.split(' ').nth(1)).unwrap_or("unknown");
    println!("cargo:rustc-env=BUILD_COMPILER={number}");
    for (name, of_cargo) in [("BUILD_TARGET", "TARGET"), ("BUILD_PROFILE", "PROFILE")] {
        println!("cargo:rustc-env={name}={}", std::env::var(of_cargo).unwrap_or_default());
    }
}

/// Returns the commit that is checked out, and has the build script run again when it changes. `None` if this file is
/// in no repository: sources from an archive may lie in a repository of another project.
fn commit() -> Option<String> {
    output("git", &["ls-files", "--error-unmatch", "build.rs"])?;
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"])?;
    // HEAD changes with the branch. Its log also gets a line for each commit. A missing file would count as changed.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = output("git", &["rev-parse", "--git-path", name])
            && std::path::Path::new(&path).exists()
        {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    Some(commit)
}

/// Returns the first line that a program prints. `None` if it is missing or fails.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()?.lines().next().map(str::to_owned)
}
