//! Runs the commands of a page. Each machine that the page names has a shell of its own, on this machine. `node7` in a
//! command stands for an address of the loopback.

use std::collections::BTreeMap;
use std::io::{PipeWriter, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hanare_tests::{Place, Running, built, patience, until};

use crate::blocks::{Step, is_as_shown};

/// The end of the output of a command: a character that no program of the pages prints.
const END: char = '\u{1e}';
/// The time between two looks at what was printed.
const POLL: Duration = Duration::from_millis(10);
/// The port of memory servers.
const PORT: u16 = 7441;

/// A fresh folder, and the shells that work in it.
pub(crate) struct Shells {
    place: Place,
    shells: BTreeMap<String, Shell>,
    /// The first three numbers of the addresses of all machines.
    network: String,
}

/// A shell with its input and what it has printed.
struct Shell {
    running: Running,
    input: PipeWriter,
    /// Bytes of its output that belong to commands before.
    seen: usize,
    /// Commands so far.
    count: usize,
}

impl Shells {
    /// Makes a folder for a page.
    pub(crate) fn new() -> Shells {
        let place = Place::new();
        std::fs::create_dir(place.path("work")).expect("a folder");
        std::os::unix::fs::symlink(prefix(), place.path(".local")).expect("a link to the installation");
        Shells { place, shells: BTreeMap::new(), network: free_network() }
    }

    /// Writes a file that a page shows.
    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.place.path("work").join(name), self.with_addresses(text, "")).expect("a file of the page");
    }

    /// Runs a command as a reader types it. Returns what is wrong with its output or its end.
    pub(crate) fn run(&mut self, step: &Step, may_fail: bool) -> Result<(), String> {
        if !self.shells.contains_key(&step.host) {
            self.shells.insert(step.host.clone(), Shell::start(&self.place));
        }
        let command = self.with_addresses(&step.command, &step.host);
        let began = Instant::now();
        loop {
            let code = self.shell(step).enter(&command)?;
            let found = if code == 0 || may_fail { self.awaited(step) } else { Err(format!("exit code {code}")) };
            if found.is_ok() || !step.repeats || began.elapsed() > patience() {
                return found.map_err(|why| format!("{why}\n{}", self.printed(step).join("\n")));
            }
            self.shell(step).pass();
            std::thread::sleep(POLL);
        }
    }

    /// Compares what was printed. Waits for the output of a command in the background.
    fn awaited(&mut self, step: &Step) -> Result<(), String> {
        let limit = if step.command.ends_with('&') { patience() } else { Duration::ZERO };
        let began = Instant::now();
        while !self.is_as_shown(step) {
            if began.elapsed() >= limit {
                return Err("it does not print what the page shows, but:".into());
            }
            std::thread::sleep(POLL);
        }
        self.shell(step).pass();
        Ok(())
    }

    fn is_as_shown(&self, step: &Step) -> bool {
        let Some(shown) = &step.output else { return true };
        let shown: Vec<String> = shown.iter().map(|line| line.replace("0.0.0.0", &step.host)).collect();
        is_as_shown(&shown, &self.printed(step), step.numbers_vary)
    }

    /// Returns the lines that were printed since the last command, with the names of machines.
    fn printed(&self, step: &Step) -> Vec<String> {
        let text = self.shells[&step.host].output().replace(&self.network, "node");
        text.lines().map(str::to_owned).collect()
    }

    fn shell(&mut self, step: &Step) -> &mut Shell {
        self.shells.get_mut(&step.host).expect("a shell that was started")
    }

    /// Ends all shells with what they started, and checks that no process and no temporary file is left.
    pub(crate) fn end(mut self) {
        self.shells.clear();
        self.place.assert_nothing_left();
    }

    /// Replaces the names of machines by addresses of the loopback.
    fn with_addresses(&self, text: &str, host: &str) -> String {
        let own = if host.is_empty() { text.to_owned() } else { text.replace("0.0.0.0", host) };
        let mut parts = own.split("node");
        let mut replaced = parts.next().unwrap_or("").to_owned();
        for part in parts {
            replaced += if part.starts_with(|c: char| c.is_ascii_digit()) { &self.network } else { "node" };
            replaced += part;
        }
        replaced
    }
}

impl Shell {
    fn start(place: &Place) -> Shell {
        let (reader, mut input) = std::io::pipe().expect("a pipe");
        let mut bash = place.command("bash");
        bash.args(["--norc", "--noprofile"]).current_dir(place.path("work"));
        let bin = place.path(".local/bin");
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        bash.env("HOME", place.path(""))
            .env("PATH", path)
            .env("COLUMNS", "80")
            .env("HANARE_ALLOW_SAME_HOST", "on")
            .stdin(Stdio::from(reader));
        let running = place.start(&mut bash);
        // The figures of a run are on standard error. A page shows both outputs as a terminal does.
        input.write_all(b"exec >&2\n").expect("the shell reads");
        Shell { running, input, seen: 0, count: 0 }
    }

    /// Runs a command and returns its exit code.
    fn enter(&mut self, command: &str) -> Result<i32, String> {
        self.count += 1;
        let end = format!("{END}{} ", self.count);
        // The braces keep the rest of the script from a command that reads its input.
        let script = format!("{{\n{command}\n}} </dev/null\ncode=$?; printf '{end}%s\\n' $code; (exit $code)\n");
        self.input.write_all(script.as_bytes()).map_err(|error| format!("the shell is gone: {error}"))?;
        let began = Instant::now();
        loop {
            let said = self.running.said_so_far();
            let code = said.split_once(&end).and_then(|(_, rest)| rest.split_once('\n'));
            if let Some((code, _)) = code {
                return code.parse().map_err(|_| format!("no exit code: {code:?}"));
            }
            if !self.running.runs() || began.elapsed() > patience() {
                return Err(format!("it does not end, or it ended the shell\n{}", self.output()));
            }
            std::thread::sleep(POLL);
        }
    }

    /// Leaves what was printed so far to the commands so far.
    fn pass(&mut self) {
        self.seen = self.running.said_so_far().len();
    }

    /// Returns what was printed since then, without the marks at the ends of commands.
    fn output(&self) -> String {
        let said = self.running.said_so_far();
        let lines = said.get(self.seen..).unwrap_or("").split_inclusive('\n');
        let text = lines.map(|line| match line.split_once(END) {
            Some(("", _)) => String::new(),
            Some((before, _)) => format!("{before}\n"),
            None => line.to_owned(),
        });
        text.collect()
    }
}

/// Returns the folder of an installation by `make install`, which all pages use.
pub(crate) fn prefix() -> PathBuf {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    let install = || {
        let built = built();
        let prefix = built.target.join("pages").join(built.profile());
        let mut make = Command::new("make");
        make.args(["--silent", "install"]).current_dir(&built.root).env("CARGO_TARGET_DIR", &built.target);
        make.arg(format!("PREFIX={}", prefix.display())).arg(format!("PROFILE={}", built.profile()));
        let done = make.output().expect("make runs");
        assert!(done.status.success(), "make install: {done:?}");
        prefix
    };
    PREFIX.get_or_init(install).clone()
}

/// Returns the first three numbers of addresses of the loopback at which nobody listens.
fn free_network() -> String {
    let mut network = String::new();
    let mut tries = 0;
    until("addresses of the loopback are free", || {
        let seed = std::process::id().wrapping_mul(31) + tries * 7 + thread_number();
        network = format!("127.{}.{}.", 1 + seed / 250 % 250, 1 + seed % 250);
        tries += 1;
        (1..=9).all(|host| TcpListener::bind((format!("{network}{host}"), PORT)).is_ok())
    });
    network
}

/// Returns a number that no other page of this test has.
fn thread_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    static COUNT: AtomicU32 = AtomicU32::new(0);
    COUNT.fetch_add(1, Relaxed)
}
