//! Masks and ignored signals for executed programs. The kernel hands on its own mask and actions, in which the program's
//! are missing for the signals that Hanare keeps.

use super::{Action, KERNEL_SET_BYTES, blocked, kernel_action};
use crate::raw;
use libc::c_int;

/// The signals that Hanare may keep: the fault signals and SIGSYS.
const KEPT: [c_int; 3] = [libc::SIGBUS, libc::SIGSEGV, libc::SIGSYS];

/// Gives the kernel the program's mask and ignored signals, until it is dropped after a failed execution. Meanwhile an
/// access to an absent far page ends the process, and so does a trapped call.
#[derive(Debug)]
#[must_use = "the kernel hands the program's mask on only while this value lives"]
pub struct Executing {
    blocked: u64,
    replaced: [Option<Action>; 3],
}

impl Executing {
    /// Blocks the signals that the program blocks in the calling thread. Also ignores those of `kept` that the
    /// program ignores, if `may_ignore` says so: this concerns all threads of the process.
    pub fn begin(kept: u64, may_ignore: impl Fn() -> bool) -> Self {
        let is_ignored = |signal: c_int| {
            kept & 1 << (signal - 1) != 0
                && super::chained(signal).is_ok_and(|action| action.sa_sigaction == libc::SIG_IGN)
                && may_ignore()
        };
        let replaced = KEPT.map(|signal| {
            // Ignored: without the action, the executed program begins with the default one.
            is_ignored(signal).then(|| kernel_action(signal, Some(Action::IGNORE)).ok()).flatten()
        });
        let executing = Self { blocked: blocked() & kept, replaced };
        executing.change_mask(libc::SIG_BLOCK);
        executing
    }

    fn change_mask(&self, how: c_int) {
        if self.blocked != 0 {
            let args = [how as usize, &raw const self.blocked as usize, 0, KERNEL_SET_BYTES, 0, 0];
            // Ignored: the kernel refuses only bad pointers, sizes and requests.
            // SAFETY: the kernel reads a 64-bit signal set of this value.
            let _ = unsafe { raw::syscall(libc::SYS_rt_sigprocmask, args) };
        }
    }
}

impl Drop for Executing {
    fn drop(&mut self) {
        for (signal, action) in KEPT.into_iter().zip(self.replaced) {
            if let Some(action) = action {
                // Ignored: the kernel had this action before.
                let _ = kernel_action(signal, Some(action));
            }
        }
        self.change_mask(libc::SIG_UNBLOCK);
    }
}
