//! One test's directory, and commands that run in it.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::{Running, built, patience, until};

/// The directory of one test, with its files, its TMPDIR, and the output of its programs.
pub struct Place {
    dir: tempfile::TempDir,
    runs: AtomicU32,
}

/// The exit code of a program and its output.
pub struct Outcome {
    /// The exit code; `None` if a signal ended the program.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: String,
}

/// The values that `--stats-json` writes.
pub struct Figures(serde_json::Value);

impl Place {
    /// Makes a new directory. Its path is short, because paths of sockets must be short.
    #[allow(clippy::new_without_default)] // a default value should not create a directory
    pub fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("h").tempdir_in("/tmp").expect("a directory in /tmp");
        std::fs::create_dir(dir.path().join("tmp")).expect("a TMPDIR");
        Place { dir, runs: AtomicU32::new(0) }
    }

    /// Returns the path of `name` in this directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into this directory and returns its path.
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file");
        path
    }

    /// Makes a command with a clean environment: no variables of Hanare except a long `HANARE_TIMEOUT`, none of the
    /// dynamic linker, TMPDIR in this directory, and a locale that compares bytes.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HANARE_") || name == "LD_PRELOAD" {
                command.env_remove(name);
            }
        }
        command.env("TMPDIR", self.path("tmp")).env("LC_ALL", "C").stdin(Stdio::null()).current_dir(self.dir.path());
        // A loaded virtual machine may stop one CPU for several seconds, and with it a memory server. So a server is
        // waited for longer than by default. Tests of silent servers set a time of their own.
        command.env("HANARE_TIMEOUT", "30");
        command
    }

    /// Makes the command `hanare` with these arguments. The command uses the library that was built with it.
    pub fn hanare<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.command(built().hanare());
        command.args(args);
        command
    }

    /// Starts a command.
    pub fn start(&self, command: &mut Command) -> Running {
        let run = self.runs.fetch_add(1, Relaxed);
        Running::start(command, self.path(&format!("stdout{run}")), self.path(&format!("stderr{run}")))
    }

    /// Runs a command to its end, for [`patience`] at most.
    pub fn run(&self, command: &mut Command) -> Outcome {
        self.start(command).finish(patience())
    }

    /// Asserts that TMPDIR is empty, and that no process has this directory's TMPDIR in its command line. A private
    /// server that is still running would have it there.
    pub fn assert_nothing_left(&self) {
        let tmp = self.path("tmp");
        until("nothing is left running", || processes_naming(&tmp).is_empty());
        let left: Vec<_> = std::fs::read_dir(&tmp).expect("TMPDIR").map(|entry| entry.expect("entry").path()).collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Returns the process number of the private server that a run in this directory has started.
    pub fn private_server(&self) -> Option<i32> {
        processes_naming(&self.path("tmp")).first().copied()
    }
}

/// Returns the processes with this test's TMPDIR in their environment whose command line contains `word`. Each argument ends
/// with a zero byte.
pub fn processes_of(place: &Place, word: &str) -> Vec<i32> {
    let tmp = place.path("tmp");
    let own = [b"TMPDIR=", tmp.as_os_str().as_encoded_bytes(), b"\0"].concat();
    let mut found = processes_naming(Path::new(word));
    found.retain(|pid| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(own.len()).any(|window| window == own)
    });
    found
}

/// Returns the processes whose command line names `path`.
fn processes_naming(path: &Path) -> Vec<i32> {
    let needle = path.as_os_str().as_encoded_bytes();
    let names_it = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.windows(needle.len()).any(|window| window == needle)
    };
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).filter(names_it).collect()
}

impl Outcome {
    /// Returns the standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Asserts that the exit code is 0 and that standard error is empty.
    #[track_caller]
    pub fn assert_well(&self, what: &str) {
        assert!(self.code == Some(0) && self.stderr.is_empty(), "{what}: {self:?}");
    }

    /// Asserts that Hanare ended the program. The exit code is `code`, and standard error is one line that begins with
    /// "hanare: " and contains `part`.
    #[track_caller]
    pub fn assert_ended_by_us(&self, code: i32, part: &str) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(self.stderr.lines().count() == 1 && self.stderr.ends_with('\n'), "not one line: {self:?}");
        assert!(self.stderr.starts_with("hanare: ") && self.stderr.contains(part), "{part:?} is not in {self:?}");
    }
}

impl fmt::Debug for Outcome {
    /// Prints the exit code and the end of each output.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out = String::from_utf8_lossy(&self.stdout[self.stdout.len().saturating_sub(600)..]);
        write!(f, "exit code {:?}, {} bytes of stdout ending in {out:?}", self.code, self.stdout.len())?;
        write!(f, ", stderr {:?}", self.stderr.chars().take(2000).collect::<String>())
    }
}

/// Reads the file that `--stats-json` wrote.
#[track_caller]
pub fn figures(path: &Path) -> Figures {
    let bytes = std::fs::read(path).expect("the figures' file");
    Figures(serde_json::from_slice(&bytes).expect("the figures are JSON"))
}

impl Figures {
    /// Returns the value `name`. Fails the test if there is no such value.
    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or_else(|| panic!("no number {name:?} in {}", self.0))
    }

    /// Returns the trap mode that the run used.
    #[track_caller]
    pub fn mode(&self) -> &str {
        self.0["mode"].as_str().unwrap_or_else(|| panic!("no mode in {}", self.0))
    }

    /// Asserts that far memory was paged. At least `bytes` bytes were written back and fetched, and the budget was
    /// never exceeded.
    #[track_caller]
    pub fn assert_paged(&self, bytes: u64, what: &str) {
        let (out, back) = (self.number("bytes_out"), self.number("bytes_in"));
        assert!(out >= bytes && back >= bytes, "{what}: only {out} bytes went out and {back} came back");
        self.assert_within_budget(what);
    }

    /// Asserts that local memory never exceeded the budget.
    #[track_caller]
    pub fn assert_within_budget(&self, what: &str) {
        let (peak, budget) = (self.number("local_bytes_peak"), self.number("local_bytes_budget"));
        assert!((1..=budget).contains(&peak), "{what}: {peak} local bytes at the peak, the budget is {budget}");
    }
}
