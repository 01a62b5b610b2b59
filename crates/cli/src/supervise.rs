//! Starts the program and waits for its end.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::signals::Forwarder;

/// Why the program did not run to its end.
#[derive(Debug, Error)]
pub(crate) enum SuperviseError {
    /// The kernel refused to run the program.
    #[error("{path} cannot be run: {source}", path = path.display())]
    Spawn {
        /// The program's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The program runs, but the command cannot wait for its end.
    #[error("cannot wait for the program: {0}")]
    Wait(io::Error),
}

/// How the program ended.
pub(crate) enum End {
    /// The program ended with this exit code.
    Exited(u8),
    /// This signal ended the program.
    Signalled {
        /// The signal.
        number: u8,
        /// Whether the kernel wrote a core file or passed one to a program (core_pattern).
        core: bool,
    },
    /// SIGKILL ended the program, and the kernel has ended a process for want of memory meanwhile.
    OutOfMemory,
}

const SIGKILL: u8 = 9;

impl End {
    /// The exit code of `hanare run` for this end.
    pub(crate) fn exit_code(&self) -> u8 {
        match *self {
            End::Exited(code) => code,
            End::Signalled { number, .. } => 128_u8.saturating_add(number),
            End::OutOfMemory => 128 + SIGKILL,
        }
    }

    /// The signal that ended the program, if one did.
    pub(crate) fn signal(&self) -> Option<u8> {
        match *self {
            End::Exited(_) => None,
            End::Signalled { number, .. } => Some(number),
            End::OutOfMemory => Some(SIGKILL),
        }
    }

    /// Whether the kernel dumped core.
    pub(crate) fn dumped_core(&self) -> bool {
        matches!(self, End::Signalled { core: true, .. })
    }

    /// Returns the end that a status from wait(2) describes.
    pub(crate) fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            // By the definition of wait(2)'s status, the code is below 256 and the signal is below 128.
            (Some(code), _) => End::Exited(code as u8),
            (None, Some(signal)) => End::Signalled { number: signal as u8, core: status.core_dumped() },
            (None, None) => End::Exited(0),
        }
    }
}

/// A program that was started.
pub(crate) struct Started {
    child: Child,
    /// The time just before the start.
    pub(crate) began: Instant,
    /// What [`kills_for_memory`] was before the start.
    kills: Option<u64>,
}

/// Starts the program `path` with the arguments `argv` in this command's process group. Removes the environment variables
/// `cleared` and then sets `vars`. The program starts with the default action of each caught signal, but ignores the
/// signals in `forwarder.ignored()`.
pub(crate) fn start(
    path: &Path,
    argv: &[OsString],
    cleared: &[&str],
    vars: &[(OsString, OsString)],
    forwarder: &Forwarder,
) -> Result<Started, SuperviseError> {
    let mut command = Command::new(path);
    command.arg0(argv.first().map_or(path.as_os_str(), OsString::as_os_str)).args(argv.iter().skip(1));
    for name in cleared {
        command.env_remove(name);
    }
    command.envs(vars.iter().map(|(name, value)| (name.as_os_str(), OsStr::new(value))));
    hanare_sys::signal::ignore_in(&mut command, forwarder.ignored());
    let kills = kills_for_memory();
    let began = Instant::now();
    let mut child = command.spawn().map_err(|source| SuperviseError::Spawn { path: path.to_owned(), source })?;
    if let Err(error) = forwarder.started(&child) {
        // Signals that are sent to this command would not reach the program. So the program is killed.
        let _ = child.kill();
        let _ = child.wait();
        return Err(SuperviseError::Wait(error));
    }
    Ok(Started { child, began, kills })
}

/// Returns how often the kernel has ended a process for want of memory, on this machine or in one of its memory cgroups.
/// `None` if the kernel does not say so.
fn kills_for_memory() -> Option<u64> {
    kills(&std::fs::read_to_string("/proc/vmstat").ok()?)
}

fn kills(vmstat: &str) -> Option<u64> {
    vmstat.lines().find_map(|line| line.strip_prefix("oom_kill ")).and_then(|count| count.trim().parse().ok())
}

impl Started {
    /// Returns the number of the program's process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the program's end. Returns it with the run time.
    pub(crate) fn wait(mut self) -> Result<(End, Duration), SuperviseError> {
        let status = self.child.wait().map_err(SuperviseError::Wait)?;
        let elapsed = self.began.elapsed();
        let end = match End::of(status) {
            End::Signalled { number: SIGKILL, .. } if self.kills < kills_for_memory() => End::OutOfMemory,
            end => end,
        };
        Ok((end, elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_of_kills_is_found() {
        assert_eq!(kills("nr_free_pages 7\noom_kill 3\ndrop_pagecache 0\n"), Some(3));
        assert_eq!(kills("nr_free_pages 7\n"), None);
    }
}
