//! Opens a userfaultfd in one of several ways, makes the UFFDIO_API handshake, and defines the errors of this module.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::Words3;
use crate::raw::{self, Errno};

const UFFD_API: u64 = 0xAA;
const UFFD_USER_MODE_ONLY: usize = 1;
const USERFAULTFD_IOC_NEW: u32 = 0xAA00;
const UFFDIO_API: u32 = 0xC018_AA3F;

/// The reasons why a userfaultfd or one of its ranges could not be set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UffdError {
    /// Every way to open a userfaultfd is forbidden or disabled.
    #[error("userfaultfd is not available to this process; run `hanare doctor` to see why")]
    NoAccess,
    /// The kernel refused to create the descriptor.
    #[error("cannot open a userfaultfd by {access}: {errno}; run `hanare doctor` for how to allow it")]
    Open {
        /// The way that was tried.
        access: UffdAccess,
        /// The kernel's error.
        errno: Errno,
    },
    /// UFFDIO_API failed although the kernel supports every wanted feature.
    #[error("the kernel refused the userfaultfd features {wanted:#x}: {errno}")]
    Api {
        /// The requested feature bits.
        wanted: u64,
        /// The kernel's error.
        errno: Errno,
    },
    /// This kernel lacks some of the wanted features.
    #[error("this kernel's userfaultfd lacks the features {absent:#x}; use a newer kernel or another trap mode")]
    Features {
        /// The feature bits that the kernel lacks.
        absent: u64,
    },
    /// A range could not be registered.
    #[error("cannot register {len} bytes at {addr:#x} with userfaultfd: {errno}")]
    Register {
        /// The address of the first byte of the range.
        addr: usize,
        /// The length of the range in bytes.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
    /// A range could not be unregistered.
    #[error("cannot unregister {len} bytes at {addr:#x} from userfaultfd: {errno}")]
    Unregister {
        /// The address of the first byte of the range.
        addr: usize,
        /// The length of the range in bytes.
        len: usize,
        /// The kernel's error.
        errno: Errno,
    },
}

/// The ways to open a userfaultfd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UffdAccess {
    /// `userfaultfd(2)` with full rights (root, or `vm.unprivileged_userfaultfd=1`).
    Syscall,
    /// The device `/dev/userfaultfd`, with full rights.
    Device,
    /// `userfaultfd(2)` with `UFFD_USER_MODE_ONLY`. Accesses by the kernel (in system calls) then fail with `EFAULT`.
    UserModeOnly,
    /// No way works.
    None,
}

impl std::fmt::Display for UffdAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Syscall => "the system call",
            Self::Device => "/dev/userfaultfd",
            Self::UserModeOnly => "the system call, user mode only",
            Self::None => "no way",
        })
    }
}

/// Creates a userfaultfd, but does not make the UFFDIO_API handshake.
pub(super) fn create(access: UffdAccess) -> Result<OwnedFd, UffdError> {
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let opened = match access {
        UffdAccess::None => return Err(UffdError::NoAccess),
        UffdAccess::Syscall => open_syscall(flags),
        UffdAccess::UserModeOnly => open_syscall(flags | UFFD_USER_MODE_ONLY),
        UffdAccess::Device => open_device(flags),
    };
    opened.map_err(|errno| UffdError::Open { access, errno })
}

fn open_syscall(flags: usize) -> Result<OwnedFd, Errno> {
    // SAFETY: userfaultfd(2) takes one integer. The result is a new descriptor that nothing else owns.
    unsafe {
        let fd = raw::syscall(libc::SYS_userfaultfd, [flags, 0, 0, 0, 0, 0])?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

fn open_device(flags: usize) -> Result<OwnedFd, Errno> {
    use rustix::fs::{Mode, OFlags};
    let device = rustix::fs::open(c"/dev/userfaultfd", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    // SAFETY: USERFAULTFD_IOC_NEW takes the flags by value. The result is a new descriptor that nothing else owns.
    unsafe {
        let fd = raw::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags)?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Makes the UFFDIO_API handshake. Returns the features that this kernel supports.
pub(super) fn api(fd: RawFd, wanted: u64) -> Result<u64, Errno> {
    let mut words = Words3([UFFD_API, wanted, 0]);
    // SAFETY: `words` is a struct uffdio_api, which the kernel reads and writes.
    unsafe { raw::ioctl(fd, UFFDIO_API, &raw mut words as usize) }?;
    Ok(words.0[1])
}
