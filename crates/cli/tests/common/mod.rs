//! Code that the command's tests share. It runs the command with a bounded wait. A stand-in replaces the preload
//! library, so that the command is tested by itself.
#![allow(dead_code)] // every test file uses its own part

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything. Reaching it fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// One test's own directory: files, TMPDIR, and the stand-in library.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// The result of a run of the command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        // The directory's path is short, because paths of sockets must be short.
        let dir = tempfile::Builder::new().prefix("h").tempdir_in("/tmp").unwrap();
        std::fs::create_dir(dir.path().join("tmp")).unwrap();
        Place { dir }
    }

    /// Makes a place with the stand-in library, which fills the counters that it finds in its environment.
    pub(crate) fn with_library() -> Self {
        let place = Place::new();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand_in.c");
        let library = place.path("libhanare_preload.so");
        place.compile(&[OsStr::new("-shared"), OsStr::new("-fPIC")], &source, &library);
        place
    }

    pub(crate) fn compile(&self, flags: &[&OsStr], source: &Path, output: &Path) {
        let status = Command::new("cc").args(flags).arg("-o").arg(output).arg(source).status().unwrap();
        assert!(status.success(), "cc failed on {}", source.display());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Writes a key file, which only its owner can read.
    pub(crate) fn key(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name, content);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    /// Returns the command with a clean environment. TMPDIR and HANARE_LIB lie in this place.
    pub(crate) fn hanare(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hanare"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HANARE_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command.env("TMPDIR", self.path("tmp")).env("HANARE_LIB", self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs the command to its end. Output goes to files, so that a reader that waits for a pipe's end cannot hang.
    pub(crate) fn run(&self, command: &mut Command) -> Outcome {
        let (out, err) = (self.path("stdout"), self.path("stderr"));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let mut child = command.spawn().unwrap();
        let status = wait(&mut child);
        let read = |path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        Outcome { code: status.code(), stdout: read(&out), stderr: read(&err) }
    }

    /// Asserts that no process is left running and that this place's TMPDIR is empty. A private server is found by its
    /// command line, which names TMPDIR.
    pub(crate) fn assert_nothing_left(&self) {
        let tmp = self.path("tmp");
        until("nothing is left running", || processes_naming(&tmp).is_empty());
        let left: Vec<_> = std::fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }
}

/// Returns the numbers of the processes whose command line names `path`.
pub(crate) fn processes_naming(path: &Path) -> Vec<u32> {
    let needle = path.as_os_str().as_encoded_bytes();
    let names_it = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(needle.len()).any(|window| window == needle)
    };
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(names_it).collect()
}

/// Waits for a condition, at most for [`PATIENCE`].
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a child, at most for [`PATIENCE`], and then kills it.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the command did not end within {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends `signal` to one process.
pub(crate) fn send(pid: u32, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

impl Outcome {
    /// Asserts a refusal: this exit code, nothing on stdout, one line on stderr that begins with "hanare: " and contains
    /// `part`.
    pub(crate) fn assert_refused(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        assert_eq!(self.stderr.lines().count(), 1, "not one line: {self:?}");
        assert!(self.stderr.starts_with("hanare: ") && self.stderr.ends_with('\n'), "{self:?}");
        assert!(self.stderr.contains(part), "{part:?} is not in {self:?}");
    }
}
