//! The kernel features that work for this process on this machine, as plain data. [`Features::probe`] finds them by
//! experiments. A feature that the user disabled counts as absent.
//!
//! This module decides nothing. The runtime chooses the trap mode from these data.

use crate::probe;
use crate::uffd::{UffdAccess, feature};
use std::fmt;
use std::path::Path;

/// The environment variable that disables features.
pub const DISABLE_VARIABLE: &str = "HANARE_DISABLE";

/// The reasons why `HANARE_DISABLE` could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FeaturesError {
    /// `HANARE_DISABLE` contains an unknown word.
    #[error("HANARE_DISABLE: unknown word {word:?}; the words are {}", Disabled::WORDS.join(", "))]
    UnknownWord {
        /// The unknown word.
        word: String,
    },
    /// `HANARE_DISABLE` is not valid Unicode text.
    #[error("HANARE_DISABLE is not valid text; the words are {}", Disabled::WORDS.join(", "))]
    NotText,
}

/// The features that are treated as if the machine lacked them. Each field's comment begins with its word in
/// `HANARE_DISABLE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Disabled {
    /// `move`: moving pages by UFFDIO_MOVE.
    pub move_: bool,
    /// `wp`: write-protect faults, and therefore also `wp_async`.
    pub wp: bool,
    /// `wp_async`: asynchronous write protection.
    pub wp_async: bool,
    /// `userfaultfd`: every way to open userfaultfd.
    pub userfaultfd: bool,
    /// `user_mode_only`: opening userfaultfd for user-mode faults only.
    pub user_mode_only: bool,
    /// `kernel_faults`: opening userfaultfd with full rights. Then only user-mode faults can be trapped.
    pub kernel_faults: bool,
    /// `process_madvise`: dropping many ranges in one call.
    pub process_madvise: bool,
    /// `free_tables`: freeing empty page tables together with the pages that are dropped.
    pub free_tables: bool,
    /// `thp`: transparent huge pages.
    pub thp: bool,
    /// `pagemap_scan`: finding written pages by PAGEMAP_SCAN.
    pub pagemap_scan: bool,
    /// `guards`: guard pages in shared memory.
    pub guards: bool,
    /// `filter`: trapping system calls by a seccomp filter.
    pub filter: bool,
    /// `dispatch`: trapping system calls by Syscall User Dispatch.
    pub dispatch: bool,
    /// `checks`: checking pages that come back from memory servers. Only to measure what checks cost.
    pub checks: bool,
}

impl Disabled {
    /// The words that [`Disabled::parse`] accepts.
    pub const WORDS: [&'static str; 14] = [
        "move",
        "wp",
        "wp_async",
        "userfaultfd",
        "user_mode_only",
        "kernel_faults",
        "process_madvise",
        "free_tables",
        "thp",
        "pagemap_scan",
        "guards",
        "filter",
        "dispatch",
        "checks",
    ];

    /// Reads a comma-separated list of words. Spaces around words and empty words are ignored.
    ///
    /// # Errors
    /// [`FeaturesError::UnknownWord`] if a word is not in [`Disabled::WORDS`].
    pub fn parse(list: &str) -> Result<Self, FeaturesError> {
        let mut disabled = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            *disabled.field(word).ok_or_else(|| FeaturesError::UnknownWord { word: word.to_owned() })? = true;
        }
        Ok(disabled)
    }

    /// Reads the environment variable `HANARE_DISABLE`. Nothing is disabled if the variable is unset.
    ///
    /// # Errors
    /// [`FeaturesError`] if the variable is not text or contains an unknown word.
    pub fn from_env() -> Result<Self, FeaturesError> {
        match std::env::var(DISABLE_VARIABLE) {
            Ok(list) => Self::parse(&list),
            Err(std::env::VarError::NotPresent) => Ok(Self::default()),
            Err(std::env::VarError::NotUnicode(_)) => Err(FeaturesError::NotText),
        }
    }

    fn field(&mut self, word: &str) -> Option<&mut bool> {
        Some(match word {
            "move" => &mut self.move_,
            "wp" => &mut self.wp,
            "wp_async" => &mut self.wp_async,
            "userfaultfd" => &mut self.userfaultfd,
            "user_mode_only" => &mut self.user_mode_only,
            "kernel_faults" => &mut self.kernel_faults,
            "process_madvise" => &mut self.process_madvise,
            "free_tables" => &mut self.free_tables,
            "thp" => &mut self.thp,
            "pagemap_scan" => &mut self.pagemap_scan,
            "guards" => &mut self.guards,
            "filter" => &mut self.filter,
            "dispatch" => &mut self.dispatch,
            "checks" => &mut self.checks,
            _ => return None,
        })
    }
}

/// The ways to trap system calls that the kernel cannot carry out on absent pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallTraps {
    /// A seccomp filter traps calls with a pointer into a range of addresses.
    pub filter: bool,
    /// Syscall User Dispatch traps calls from outside the C library.
    pub dispatch: bool,
}

impl CallTraps {
    /// Looks which ways work, apart from those that `disabled` excludes. Changes nothing.
    #[must_use]
    pub fn probe(disabled: &Disabled) -> Self {
        #[cfg(target_arch = "x86_64")]
        let found = crate::calls::available();
        #[cfg(not(target_arch = "x86_64"))]
        let found = Self::default();
        Self { filter: found.filter && !disabled.filter, dispatch: found.dispatch && !disabled.dispatch }
    }
}

/// The result of trying one way to open userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// This way works.
    Works,
    /// The kernel refused this way with this errno.
    Refused(i32),
    /// `HANARE_DISABLE` disables this way.
    Disabled,
}

impl Attempt {
    /// Checks whether this way works.
    #[must_use]
    pub fn works(self) -> bool {
        self == Self::Works
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Works => f.write_str("works"),
            Self::Refused(errno) => write!(f, "refused: {}", crate::Errno(*errno)),
            Self::Disabled => write!(f, "switched off by {DISABLE_VARIABLE}"),
        }
    }
}

/// The kernel's setting for transparent huge pages of anonymous memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thp {
    /// The kernel uses huge pages wherever possible.
    Always,
    /// The kernel uses huge pages only for memory that asked for them by madvise.
    Madvise,
    /// The kernel uses no huge pages.
    Never,
    /// The kernel has no huge pages, or `HANARE_DISABLE` disables them.
    Unavailable,
}

impl Thp {
    /// Checks whether memory that asks for huge pages can get them.
    #[must_use]
    pub fn usable(self) -> bool {
        matches!(self, Self::Always | Self::Madvise)
    }

    fn parse(text: &str) -> Self {
        match text.split_whitespace().find(|word| word.starts_with('[')) {
            Some("[always]") => Self::Always,
            Some("[madvise]") => Self::Madvise,
            Some("[never]") => Self::Never,
            _ => Self::Unavailable,
        }
    }
}

/// The state of the device file `/dev/userfaultfd`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceNode {
    /// The file does not exist (a kernel before 6.1, or a container without the file).
    Absent,
    /// The file exists.
    Present {
        /// Whether this process may open the file for reading and writing.
        permitted: bool,
        /// The permission bits of the file, such as 0o600.
        mode: u32,
        /// The user id of the file's owner.
        uid: u32,
        /// The group id of the file.
        gid: u32,
    },
}

/// The features that work for this process on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Features {
    /// The best of the working ways to open userfaultfd.
    pub access: UffdAccess,
    /// The result of opening by the system call with full rights.
    pub syscall: Attempt,
    /// The result of opening through `/dev/userfaultfd`.
    pub device: Attempt,
    /// The result of opening by the system call for user-mode faults only.
    pub user_mode_only: Attempt,
    /// Whether accesses to missing pages trap, and UFFDIO_COPY resolves these faults.
    pub missing: bool,
    /// Whether writes to write-protected pages can be trapped.
    pub wp: bool,
    /// Whether UFFDIO_MOVE moves pages.
    pub move_: bool,
    /// Whether the kernel can resolve write-protect faults itself and record them (`UFFD_FEATURE_WP_ASYNC`).
    pub wp_async: bool,
    /// Whether userfaultfd can raise a SIGBUS in the faulting thread instead of reporting the fault.
    pub sigbus: bool,
    /// Whether fault events can contain the thread id.
    pub thread_id: bool,
    /// Whether minor faults of shared memory can be trapped.
    pub minor_shmem: bool,
    /// Whether UFFDIO_CONTINUE resolves minor faults.
    pub continue_: bool,
    /// Whether UFFDIO_POISON works.
    pub poison: bool,
    /// Whether fork events are available. They need `CAP_SYS_PTRACE`.
    pub event_fork: bool,
    /// Whether `process_madvise(self, MADV_DONTNEED)` works.
    pub process_madvise: bool,
    /// Whether MADV_DONTNEED frees the page tables that it leaves empty (Linux 6.14, on x86-64).
    pub frees_tables: bool,
    /// Whether PAGEMAP_SCAN works on asynchronously write-protected memory. It needs `wp_async`.
    pub pagemap_scan: bool,
    /// Whether guard pages work in shared memory (MADV_GUARD_INSTALL).
    pub guards: bool,
    /// The ways to trap system calls.
    pub calls: CallTraps,
    /// The kernel's setting for transparent huge pages.
    pub thp: Thp,
    /// The number of mappings that a process may have (`vm.max_map_count`). `None` if it is unknown.
    pub max_map_count: Option<u64>,
    /// The kernel's release, such as `6.18.44`.
    pub kernel_release: String,
    /// The value of `vm.unprivileged_userfaultfd`. `None` if the kernel does not have this setting.
    pub unprivileged_userfaultfd: Option<u64>,
    /// The state of `/dev/userfaultfd`.
    pub device_node: DeviceNode,
}

impl Features {
    /// Checks whether the kernel reports support for UFFDIO_MOVE. This takes one or two attempts to open userfaultfd
    /// and moves no page. [`Features::probe`] moves a page instead.
    #[must_use]
    pub fn kernel_moves(disabled: &Disabled) -> bool {
        !disabled.move_
            && [UffdAccess::Syscall, UffdAccess::Device].into_iter().any(|access| probe::has(access, feature::MOVE))
    }

    /// Tries every feature that `disabled` does not exclude, on a few pages that it maps for this purpose. This takes
    /// about a millisecond.
    #[must_use]
    pub fn probe(disabled: &Disabled) -> Self {
        let full = |access| {
            if disabled.kernel_faults { Attempt::Disabled } else { probe::opens(access, disabled) }
        };
        let syscall = full(UffdAccess::Syscall);
        let device = full(UffdAccess::Device);
        let user_mode_only =
            if disabled.user_mode_only { Attempt::Disabled } else { probe::opens(UffdAccess::UserModeOnly, disabled) };
        let access = match (syscall, device, user_mode_only) {
            (Attempt::Works, _, _) => UffdAccess::Syscall,
            (_, Attempt::Works, _) => UffdAccess::Device,
            (_, _, Attempt::Works) => UffdAccess::UserModeOnly,
            _ => UffdAccess::None,
        };
        let wp = !disabled.wp && tried(|| probe::write_protect(access));
        let wp_async = wp && !disabled.wp_async && probe::has(access, feature::WP | feature::WP_ASYNC);
        Self {
            access,
            syscall,
            device,
            user_mode_only,
            missing: tried(|| probe::copy(access)),
            wp,
            move_: !disabled.move_ && tried(|| probe::move_pages(access)),
            wp_async,
            sigbus: probe::has(access, feature::SIGBUS),
            thread_id: probe::has(access, feature::THREAD_ID),
            minor_shmem: probe::has(access, feature::MINOR_SHMEM | feature::MISSING_SHMEM),
            continue_: probe::minor_continue(access),
            poison: probe::poison(access),
            event_fork: probe::has(access, feature::EVENT_FORK),
            process_madvise: !disabled.process_madvise && probe::process_madvise(),
            frees_tables: !disabled.free_tables && probe::frees_tables(),
            pagemap_scan: wp_async && !disabled.pagemap_scan && probe::pagemap_scan(access),
            guards: !disabled.guards && probe::guards(),
            calls: CallTraps::probe(disabled),
            thp: if disabled.thp { Thp::Unavailable } else { thp() },
            max_map_count: number("/proc/sys/vm/max_map_count"),
            kernel_release: text("/proc/sys/kernel/osrelease").unwrap_or_default(),
            unprivileged_userfaultfd: number("/proc/sys/vm/unprivileged_userfaultfd"),
            device_node: device_node(Path::new("/dev/userfaultfd")),
        }
    }
}

/// Maximum number of tries of an experiment. A single one may fail although the mechanism works: the kernel lacks memory,
/// or uses the page itself at that moment.
const TRIES: usize = 8;

/// Repeats an experiment until it succeeds, and returns whether it did.
fn tried(experiment: impl Fn() -> bool) -> bool {
    (0..TRIES).any(|_| experiment())
}

fn text(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number(path: &str) -> Option<u64> {
    text(path)?.parse().ok()
}

fn thp() -> Thp {
    text("/sys/kernel/mm/transparent_hugepage/enabled").map_or(Thp::Unavailable, |text| Thp::parse(&text))
}

fn device_node(path: &Path) -> DeviceNode {
    let Ok(stat) = rustix::fs::stat(path) else {
        return DeviceNode::Absent;
    };
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    DeviceNode::Present {
        permitted: rustix::fs::access(path, access).is_ok(),
        mode: stat.st_mode & 0o7777,
        uid: stat.st_uid,
        gid: stat.st_gid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_sets_its_own_field_only() {
        for word in Disabled::WORDS {
            let mut disabled = Disabled::parse(word).unwrap();
            assert_ne!(disabled, Disabled::default(), "{word}");
            *disabled.field(word).unwrap() = false;
            assert_eq!(disabled, Disabled::default(), "{word}");
        }
    }

    #[test]
    fn lists_may_have_spaces_and_empty_words() {
        let disabled = Disabled::parse(" move, ,wp_async,").unwrap();
        assert_eq!(disabled, Disabled { move_: true, wp_async: true, ..Disabled::default() });
        assert_eq!(Disabled::parse("").unwrap(), Disabled::default());
    }

    #[test]
    fn an_unknown_word_is_named_with_the_known_ones() {
        let message = Disabled::parse("move,mvoe").unwrap_err().to_string();
        assert!(message.contains("\"mvoe\""), "{message}");
        for word in Disabled::WORDS {
            assert!(message.contains(word), "{message} lacks {word}");
        }
    }

    #[test]
    fn the_bracketed_thp_word_counts() {
        assert_eq!(Thp::parse("always [madvise] never"), Thp::Madvise);
        assert_eq!(Thp::parse("[always] madvise never"), Thp::Always);
        assert_eq!(Thp::parse("always madvise [never]"), Thp::Never);
        assert_eq!(Thp::parse(""), Thp::Unavailable);
        assert!(!Thp::Never.usable() && Thp::Madvise.usable());
    }

    #[test]
    fn a_missing_device_is_absent_and_a_file_shows_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        assert_eq!(device_node(&path), DeviceNode::Absent);
        std::fs::write(&path, "").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o640);
        std::fs::set_permissions(&path, mode).unwrap();
        assert!(matches!(device_node(&path), DeviceNode::Present { permitted: true, mode: 0o640, .. }));
    }

    #[test]
    fn what_is_disabled_is_not_found() {
        let all = Disabled::parse(&Disabled::WORDS.join(",")).unwrap();
        let features = Features::probe(&all);
        assert_eq!(features.access, UffdAccess::None);
        assert_eq!(features.syscall, Attempt::Disabled);
        assert_eq!(features.device, Attempt::Disabled);
        assert_eq!(features.user_mode_only, Attempt::Disabled);
        assert!(!features.missing && !features.wp && !features.move_ && !features.wp_async);
        assert!(!features.process_madvise && !features.frees_tables && !features.pagemap_scan && !features.guards);
        assert!(!features.thp.usable());
        assert_eq!(features.calls, CallTraps::default());
    }

    #[test]
    fn one_disabled_feature_leaves_the_others() {
        let plain = Features::probe(&Disabled::default());
        let moveless = Features::probe(&Disabled { move_: true, ..Disabled::default() });
        assert_eq!(moveless, Features { move_: false, ..plain.clone() });
        let user = Features::probe(&Disabled { kernel_faults: true, ..Disabled::default() });
        assert_ne!(user.access, UffdAccess::Syscall);
        assert_ne!(user.access, UffdAccess::Device);
        assert!(!plain.kernel_release.is_empty());
    }
}
