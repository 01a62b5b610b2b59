//! A started program. Its output goes to files. The test waits for it only for a bounded time, and kills it when the
//! test ends.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{Outcome, PATIENCE};

const POLL: Duration = Duration::from_millis(2);

/// A program that runs in its own process group. Dropping this value kills the group.
pub struct Running {
    child: Child,
    stdout: PathBuf,
    stderr: PathBuf,
    ended: bool,
}

impl Running {
    /// Starts a command. Its output goes to files, because reading from a pipe could block while some process keeps the
    /// pipe open.
    pub(crate) fn start(command: &mut Command, stdout: PathBuf, stderr: PathBuf) -> Running {
        let create = |path| File::create(path).expect("a file for output");
        command.stdout(create(&stdout)).stderr(create(&stderr)).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Running { child, stdout, stderr, ended: false }
    }

    /// Waits until the program ends. If it runs for longer than `limit`, kills its group and fails the test.
    pub fn finish(mut self, limit: Duration) -> Outcome {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            if began.elapsed() > limit {
                let stand = self.stand();
                self.kill();
                panic!("still running after {limit:?}: {:?}\n{stand}", self.outcome(None));
            }
            std::thread::sleep(POLL);
        };
        self.ended = true;
        self.outcome(status.code())
    }

    /// Describes each thread of the group, for the message of a failure: its name, its system call with arguments, and
    /// the kernel function in which it waits.
    fn stand(&self) -> String {
        let mut stand = String::new();
        let entries = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
        for process in entries("/proc") {
            let path = process.path();
            let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
            // The name is in parentheses. The fields after it are state, parent and group.
            let stat = read("stat");
            let group = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(2));
            if group != Some(&self.child.id().to_string()) {
                continue;
            }
            stand += &format!("{}: {}\n", path.display(), read("cmdline").replace('\0', " "));
            for thread in entries(&path.join("task").to_string_lossy()) {
                let read = |name: &str| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
                let [name, call, wait] = ["comm", "syscall", "wchan"].map(read);
                stand += &format!("    {} in {} at {wait}\n", name.trim(), call.trim());
            }
        }
        stand
    }

    /// Whether the program still runs.
    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child of ours").is_none()
    }

    /// Returns the number of the program's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns what the program has written to standard error so far.
    pub fn said_so_far(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.stderr).expect("output")).into_owned()
    }

    fn outcome(&self, code: Option<i32>) -> Outcome {
        let read = |path| std::fs::read(path).expect("output");
        let stderr = String::from_utf8_lossy(&read(&self.stderr)).into_owned();
        Outcome { code, stdout: read(&self.stdout), stderr }
    }

    /// Sends a signal to the program's process group, whose number is that of the child. The number is not reused
    /// before the child is waited for.
    pub fn signal(&self, signal: Signal) {
        let group = Pid::from_raw(self.child.id() as i32).expect("a process number");
        // The call fails only if the group is empty, so its result is ignored.
        let _ = kill_process_group(group, signal);
    }

    /// Returns the CPU time that the processes of the program's group have used so far.
    pub fn cpu_time(&self) -> Duration {
        let group = self.child.id().to_string();
        let ticks = std::fs::read_dir("/proc").expect("/proc").flatten().filter_map(|entry| {
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // The name in parentheses may contain any character. The fields after it begin with state, parent and
            // group. User time and system time follow later.
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            let ticks = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
            (*fields.get(2)? == group).then_some(ticks(11)? + ticks(12)?)
        });
        Duration::from_millis(ticks.sum::<u64>() * 1000 / rustix::param::clock_ticks_per_second())
    }

    fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

/// Waits until `condition` holds. Fails the test after [`PATIENCE`].
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(POLL);
    }
}
