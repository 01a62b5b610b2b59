//! Programs under the preload library without a running engine. Without settings, the library must have no effect. It
//! must refuse bad settings before the program runs. Programs with far memory need a memory server: end-to-end tests
//! run them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the path of the library, which is beside the directory of the test programs.
fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the test's own path");
    let built = test.ancestors().nth(2).expect("a build directory");
    let library = built.join("libhanare_preload.so");
    assert!(library.exists(), "{} is not built", library.display());
    library
}

fn workloads() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../workloads")
}

/// Runs `program` under the library and returns its output. `settings` are the only variables of Hanare in its
/// environment. The command timeout(1) ends the program after 60 seconds.
fn run(program: &Path, args: &[&str], settings: &[(&str, &str)]) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg("env").arg(preload()).arg(program).args(args);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HANARE_") {
            command.env_remove(name);
        }
    }
    command.envs(settings.iter().copied());
    command.output().expect("timeout and env are there")
}

fn preload() -> String {
    format!("LD_PRELOAD={}", library().display())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn without_settings_every_workload_runs_as_it_would_natively() {
    let built = tempfile::tempdir().expect("a temporary directory");
    let out = format!("OUT={}", built.path().display());
    let made = Command::new("make").arg("-s").arg("-C").arg(workloads()).arg(out).output();
    let made = made.expect("make is there");
    assert!(made.status.success(), "{}", text(&made.stderr));
    for (name, args) in [
        ("touch", &["8M", "--random"][..]),
        ("threads", &["--size", "4M", "--ops", "50000", "--share"]),
        ("heap", &["--ops", "100"]),
        ("vector", &["4M"]),
        ("syscalls", &["8M"]),
        ("mapping", &["16M"]),
        ("forks", &["4M"]),
    ] {
        let output = run(&built.path().join(name), args, &[]);
        assert!(output.status.success(), "{name}: {}{}", text(&output.stdout), text(&output.stderr));
        assert!(text(&output.stdout).starts_with(&format!("ok {name}")), "{}", text(&output.stdout));
        assert!(output.stderr.is_empty(), "{name}: {}", text(&output.stderr));
    }
}

#[test]
fn bad_settings_end_the_program_before_it_runs() {
    for (settings, part) in [
        (&[("HANARE_LOCAL", "much")][..], "HANARE_LOCAL: 'much'"),
        (&[("HANARE_LOCAL", "64M")], "no memory server"),
        (&[("HANARE_LOCAL", "0"), ("HANARE_PRIVATE", "/nowhere")], "--local"),
        (&[("HANARE_LOCAL", "64M"), ("HANARE_PRIVATE", "/nowhere/socket")], "/nowhere/socket"),
    ] {
        let output = run(Path::new("echo"), &["ran"], settings);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{settings:?}: {said}");
        assert_eq!(text(&output.stdout), "", "{settings:?}: the program ran");
        assert!(said.starts_with("hanare: ") && said.contains(part), "{settings:?}: {said}");
        assert_eq!(said.matches('\n').count(), 1, "{settings:?}: {said}");
    }
}
