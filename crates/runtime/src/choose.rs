//! Chooses the trap mode of a run from what the machine allows and what the user asked for.
//!
//! The choice depends only on its arguments. So `hanare doctor` names the same mode that the engine chooses.

use hanare_sys::features::Features;
use hanare_sys::uffd::UffdAccess;
use thiserror::Error;

use hanare_settings::Mode;

/// Why the requested mode does not work.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("trap mode {mode} does not work here: {reason}; use --mode auto, and see 'hanare doctor' for how to get it")]
pub struct ChooseError {
    /// The requested mode.
    pub mode: Mode,
    /// What the machine lacks for this mode.
    pub reason: &'static str,
}

/// Returns the reason why a mode does not work on this machine, or `None` if it works. `Auto` always works, because it
/// can fall back to sigsegv mode, which works on every machine.
#[must_use]
pub fn obstacle(mode: Mode, features: &Features) -> Option<&'static str> {
    match mode {
        Mode::Auto | Mode::Sigsegv => None,
        Mode::Thread | Mode::Sigbus if features.access == UffdAccess::None => Some("userfaultfd cannot be opened"),
        Mode::Thread | Mode::Sigbus if !features.missing => Some("userfaultfd cannot resolve missing pages"),
        Mode::Thread | Mode::Sigbus if !features.wp => Some("userfaultfd cannot protect pages against writes"),
        Mode::Thread if features.access == UffdAccess::UserModeOnly => Some(
            "userfaultfd does not trap the kernel's accesses for this user, so system calls on far memory would fail",
        ),
        Mode::Thread => None,
        Mode::Sigbus if !features.sigbus => Some("userfaultfd cannot answer with SIGBUS"),
        Mode::Sigbus => None,
    }
}

/// Returns whether system calls on far pages (read, write, futex) work in `mode`. They work only if accesses by the
/// kernel trap too.
#[must_use]
pub fn system_calls_work(mode: Mode, features: &Features) -> bool {
    mode == Mode::Thread && matches!(features.access, UffdAccess::Syscall | UffdAccess::Device)
}

/// Returns whether blocks of any size may be far in `mode`, with a reservation of `reserve` bytes. The C library makes
/// system calls on some small blocks itself, without its interposed functions. In sigbus mode a filter traps them.
#[must_use]
pub fn small_blocks_work(mode: Mode, features: &Features, reserve: usize) -> bool {
    system_calls_work(mode, features) || crate::calls::possible(mode, features, reserve).filter
}

/// Returns the mode to use. A requested mode is used if it works on this machine. `Auto` chooses sigbus mode, the fastest,
/// if both traps for system calls work and `serves_calls`: this process serves the trapped calls, or will. Otherwise it
/// chooses thread mode if system calls on far pages work in it, because any program may make such calls. Otherwise it
/// chooses the fastest mode that works.
///
/// # Errors
/// The requested mode does not work on this machine.
pub fn choose(asked: Mode, features: &Features, serves_calls: bool) -> Result<Mode, ChooseError> {
    if asked != Mode::Auto {
        return match obstacle(asked, features) {
            None => Ok(asked),
            Some(reason) => Err(ChooseError { mode: asked, reason }),
        };
    }
    let works = |mode| obstacle(mode, features).is_none();
    let are_trapped = serves_calls && features.calls.filter && features.calls.dispatch;
    Ok(match () {
        () if are_trapped && works(Mode::Sigbus) => Mode::Sigbus,
        () if system_calls_work(Mode::Thread, features) && works(Mode::Thread) => Mode::Thread,
        () if works(Mode::Sigbus) => Mode::Sigbus,
        () => Mode::Sigsegv,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_sys::features::{CallTraps, Disabled};

    /// Returns the features of a machine that supports only what `change` adds.
    fn machine(change: impl FnOnce(&mut Features)) -> Features {
        let nothing = Disabled::parse(&Disabled::WORDS.join(",")).unwrap();
        let mut features = Features::probe(&nothing);
        change(&mut features);
        features
    }

    fn with(access: UffdAccess, sigbus: bool) -> Features {
        machine(|features| {
            features.access = access;
            features.missing = true;
            features.wp = true;
            features.sigbus = sigbus;
        })
    }

    fn trapped(mut features: Features) -> Features {
        features.calls = CallTraps { filter: true, dispatch: true };
        features
    }

    #[test]
    fn auto_takes_the_best_that_works() {
        let full = trapped(with(UffdAccess::Syscall, true));
        assert_eq!(choose(Mode::Auto, &full, true), Ok(Mode::Sigbus));
        assert_eq!(choose(Mode::Auto, &full, false), Ok(Mode::Thread), "nobody serves system calls");
        assert_eq!(choose(Mode::Auto, &trapped(with(UffdAccess::Syscall, false)), true), Ok(Mode::Thread));
        assert_eq!(choose(Mode::Auto, &with(UffdAccess::Syscall, true), true), Ok(Mode::Thread));
        assert_eq!(choose(Mode::Auto, &with(UffdAccess::Device, false), true), Ok(Mode::Thread));
        assert_eq!(choose(Mode::Auto, &with(UffdAccess::UserModeOnly, true), true), Ok(Mode::Sigbus));
        assert_eq!(choose(Mode::Auto, &with(UffdAccess::UserModeOnly, false), true), Ok(Mode::Sigsegv));
        assert!(choose(Mode::Thread, &with(UffdAccess::UserModeOnly, true), true).is_err(), "system calls would fail");
        assert_eq!(choose(Mode::Auto, &machine(|_| {}), true), Ok(Mode::Sigsegv));
        assert_eq!(choose(Mode::Auto, &machine(|f| f.access = UffdAccess::Syscall), true), Ok(Mode::Sigsegv));
    }

    #[test]
    fn a_mode_asked_for_is_taken_or_refused_with_the_reason() {
        let full = with(UffdAccess::Syscall, true);
        for mode in [Mode::Thread, Mode::Sigbus, Mode::Sigsegv] {
            assert_eq!(choose(mode, &full, true), Ok(mode));
        }
        assert_eq!(choose(Mode::Sigsegv, &machine(|_| {}), true), Ok(Mode::Sigsegv));
        for mode in [Mode::Thread, Mode::Sigbus] {
            let message = choose(mode, &machine(|_| {}), true).unwrap_err().to_string();
            assert!(message.contains(&mode.to_string()) && message.contains("hanare doctor"), "{message}");
        }
        assert!(choose(Mode::Sigbus, &with(UffdAccess::Syscall, false), true).is_err());
    }
}
