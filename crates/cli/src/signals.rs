//! Passes each signal that is sent to `hanare run` on to the program, once.
//!
//! The program runs in the command's process group, so the terminal's signals (Ctrl-C, hang-up) reach it directly.
//! Signals that another process sends to the command alone are passed on. The command survives all of them and ends
//! when the program has ended. A signal may be ignored when the command starts, such as SIGINT in a background job of a
//! script. Then the program also starts with this signal ignored. The signal is still passed on, because the program
//! may have begun to catch it.

use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::exfiltrator::origin::{Origin, WithOrigin};
use signal_hook::iterator::{Handle, SignalsInfo};
use signal_hook::low_level::siginfo::Cause;

const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

enum Target {
    /// The program has not started. These signals wait for it in the order of their arrival, each at most once.
    Awaited { pending: Vec<i32> },
    /// The program runs. Its pidfd never refers to another process, even if the kernel reuses the process number.
    Running { pid: i32, pidfd: OwnedFd },
}

/// Passes signals on until it is stopped.
pub(crate) struct Forwarder {
    target: Arc<Mutex<Target>>,
    ignored: u64,
    handle: Handle,
    thread: JoinHandle<()>,
}

impl Forwarder {
    /// Begins to catch signals.
    pub(crate) fn install() -> io::Result<Self> {
        // An inherited "ignore" for SIGCHLD would reap the program before its exit code is read. Any handler prevents
        // that.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let ignored = ignored_mask();
        let mut signals = SignalsInfo::<WithOrigin>::new(FORWARDED)?;
        let handle = signals.handle();
        let target = Arc::new(Mutex::new(Target::Awaited { pending: Vec::new() }));
        let shared = Arc::clone(&target);
        let thread = std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            for origin in signals.forever() {
                pass_on(&mut lock(&shared), &origin, ignored);
            }
        })?;
        Ok(Forwarder {
            target,
            ignored: FORWARDED.iter().fold(0, |mask, &signal| mask | ignored & bit(signal)),
            handle,
            thread,
        })
    }

    /// Returns the first signal that arrived before the program was started. `None` if there is none.
    pub(crate) fn pending(&self) -> Option<i32> {
        match &*lock(&self.target) {
            Target::Awaited { pending } => pending.first().copied(),
            Target::Running { .. } => None,
        }
    }

    /// Returns the signals that must be ignored when the program starts: bit n-1 for signal n.
    pub(crate) fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Records the started program, and sends it the signals that arrived before its start.
    pub(crate) fn started(&self, program: &Child) -> io::Result<()> {
        let pid = Pid::from_child(program);
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let mut target = lock(&self.target);
        if let Target::Awaited { pending } = &*target {
            pending.iter().for_each(|&signal| send(&pidfd, signal));
        }
        *target = Target::Running { pid: pid.as_raw_nonzero().get(), pidfd };
        Ok(())
    }

    /// Ends the forwarding. Later signals have no effect.
    pub(crate) fn stop(self) {
        self.handle.close();
        // Ignored: an error means that the thread has panicked, and the panic has been printed.
        let _ = self.thread.join();
    }
}

fn lock(target: &Mutex<Target>) -> MutexGuard<'_, Target> {
    target.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_on(target: &mut Target, origin: &Origin, ignored: u64) {
    match target {
        Target::Awaited { .. } if ignored & bit(origin.signal) != 0 => {}
        Target::Awaited { pending } => note(pending, origin.signal),
        Target::Running { pid, pidfd } => {
            let from_terminal = origin.cause == Cause::Kernel;
            // A program that signals its own process group has already received the signal.
            let from_program = origin.process.as_ref().is_some_and(|sender| sender.pid == *pid);
            if !from_terminal && !from_program {
                send(pidfd, origin.signal);
            }
        }
    }
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Adds a signal to the pending ones. A signal is pending only once, as in the kernel.
fn note(pending: &mut Vec<i32>, signal: i32) {
    if !pending.contains(&signal) {
        pending.push(signal);
    }
}

fn send(pidfd: &OwnedFd, signal: i32) {
    if let Some(signal) = Signal::from_named_raw(signal) {
        // Ignored: this fails only if the program has ended.
        let _ = pidfd_send_signal(pidfd, signal);
    }
}

/// Returns the signals that this process ignores: bit n-1 for signal n.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_signals_that_came_before_the_program_wait_for_it() {
        let mut pending = Vec::new();
        [SIGUSR1, SIGTERM, SIGUSR1].into_iter().for_each(|signal| note(&mut pending, signal));
        assert_eq!(pending, [SIGUSR1, SIGTERM]);
    }
}
