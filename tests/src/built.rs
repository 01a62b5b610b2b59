//! Builds the programs under test. They are built once in each test process, from the current sources.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directories of the built programs.
pub struct Built {
    /// The workspace's directory.
    pub root: PathBuf,
    /// Cargo's target directory.
    pub target: PathBuf,
    /// Cargo's output directory, `release` or `debug`, with the command and the libraries.
    pub profile_dir: PathBuf,
    /// The compiled workloads.
    pub workloads: PathBuf,
}

/// Builds the command, the libraries and the workloads in the profile of this test program, and returns their
/// directories.
pub fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    BUILT.get_or_init(|| {
        let built = Built::beside_this_program();
        built.build_command();
        built.build_workloads();
        built
    })
}

impl Built {
    fn beside_this_program() -> Built {
        // target/PROFILE/deps/TEST-HASH
        let this = std::env::current_exe().expect("the path of this test program");
        let profile_dir = this.parent().and_then(Path::parent).expect("a profile directory").to_owned();
        let target = profile_dir.parent().expect("a target directory").to_owned();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned();
        Built { root, workloads: target.join("workloads"), target, profile_dir }
    }

    fn build_command(&self) {
        let mut cargo = Command::new(cargo());
        cargo.args([
            "build",
            "--quiet",
            "-p",
            "hanare",
            "-p",
            "hanare-preload",
            "-p",
            "hanare-dsm-library",
            "-p",
            "hanare-cli",
        ]);
        cargo.args(["--profile", self.profile()]).arg("--target-dir").arg(&self.target).current_dir(&self.root);
        assert!(cargo.status().expect("cargo runs").success(), "cargo could not build the command");
    }

    fn build_workloads(&self) {
        let mut make = Command::new("make");
        make.arg("--silent").arg("-C").arg(self.root.join("workloads"));
        make.arg("all").arg("shared").arg(format!("OUT={}", self.workloads.display()));
        make.arg(format!("HANARE_LIBDIR={}", self.profile_dir.display()));
        assert!(make.status().expect("make runs").success(), "make could not build the workloads");
    }

    /// Returns the name of the profile for `cargo --profile`.
    pub fn profile(&self) -> &str {
        match self.profile_dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") | None => "dev",
            Some(name) => name,
        }
    }

    /// Returns the path of the `hanare` command.
    pub fn hanare(&self) -> PathBuf {
        self.profile_dir.join("hanare")
    }

    /// Returns the path of a compiled workload.
    pub fn workload(&self, name: &str) -> PathBuf {
        self.workloads.join(name)
    }
}

/// Returns the path of the cargo that runs this test.
pub(crate) fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}
