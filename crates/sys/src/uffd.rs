//! userfaultfd: traps accesses to missing or write-protected pages, and resolves them.
//!
//! A thin layer over the ioctls. It reports what the kernel did, including how far a request came before it failed. It
//! does not know what a page means. See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and
//! <https://docs.kernel.org/admin-guide/mm/userfaultfd.html>.
//!
//! The caller must know these rules of the kernel:
//! - `EAGAIN` with bytes done: a range met a present page, or the address space is changing (a
//!   `Remove`, `Unmap`, `Remap` or `Fork` event waits to be read). Read all events, then retry the
//!   rest.
//! - [`feature::WP_ASYNC`] implies that write-protecting a missing page leaves a marker in its
//!   place. COPY replaces a marker, MOVE onto one answers `EEXIST`: protect present pages only.
//! - MOVE drops write protection and works on private anonymous memory only.

use crate::descriptors;
use crate::raw::{self, Errno};
use crate::refuse::{self, Call};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

mod event;
pub mod feature;
mod open;

pub use event::{EVENTS_PER_READ, Event};
pub use open::{UffdAccess, UffdError};
use open::{api, create};

const UFFDIO_REGISTER: u32 = 0xC020_AA00;
const UFFDIO_UNREGISTER: u32 = 0x8010_AA01;
const UFFDIO_WAKE: u32 = 0x8010_AA02;
const UFFDIO_COPY: u32 = 0xC028_AA03;
const UFFDIO_ZEROPAGE: u32 = 0xC020_AA04;
const UFFDIO_MOVE: u32 = 0xC028_AA05;
const UFFDIO_WRITEPROTECT: u32 = 0xC018_AA06;
const UFFDIO_CONTINUE: u32 = 0xC020_AA07;
const UFFDIO_POISON: u32 = 0xC020_AA08;

const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WP: u64 = 1 << 1;
const REGISTER_MINOR: u64 = 1 << 2;
/// DONTWAKE: the same bit in all mode words except that of WRITEPROTECT.
const MODE_DONTWAKE: u64 = 1 << 0;
const COPY_MODE_WP: u64 = 1 << 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;
const CONTINUE_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;

/// `struct uffdio_api`, and `uffdio_writeprotect` with other names: three words.
#[repr(C)]
struct Words3([u64; 3]);
/// `struct uffdio_register`, `uffdio_zeropage`, `uffdio_continue`, `uffdio_poison`: a range, a
/// mode, a result.
#[repr(C)]
struct Words4([u64; 4]);
/// `struct uffdio_copy`, `uffdio_move`: destination, source, length, mode, result.
#[repr(C)]
struct Words5([u64; 5]);

/// The accesses to a range that trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegisterMode {
    /// Accesses to missing pages.
    pub missing: bool,
    /// Writes to write-protected pages.
    pub wp: bool,
    /// Accesses to pages that are cached but not mapped (shared memory). Set `missing` as well; otherwise an absent
    /// page becomes zeroes.
    pub minor: bool,
}

/// How COPY installs pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyMode {
    /// Install them write-protected (the range must be registered with `wp`).
    pub wp: bool,
    /// Leave waiting threads asleep.
    pub dontwake: bool,
}

/// How MOVE moves pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveMode {
    /// Leave waiting threads asleep.
    pub dontwake: bool,
    /// Skip holes in the source instead of failing with `ENOENT`.
    pub allow_src_holes: bool,
}

/// How far a ranged request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoctlResult {
    /// Bytes done, from the start of the range.
    pub done: usize,
    /// Why it stopped there; `None` when the whole range was done.
    pub errno: Option<i32>,
}

impl IoctlResult {
    /// True when the whole range was done.
    #[must_use]
    pub fn is_ok(self) -> bool {
        self.errno.is_none()
    }

    /// Reads the outcome of an ioctl. Its last word contains the bytes done, or a negated errno.
    fn from_words(answer: Result<usize, Errno>, word: u64, len: usize) -> Self {
        let done = usize::try_from(word as i64).unwrap_or(0).min(len);
        match answer {
            Ok(_) if done == len => Self { done, errno: None },
            Ok(_) => Self { done, errno: Some(libc::EAGAIN) },
            Err(Errno(errno)) => Self { done, errno: Some(errno) },
        }
    }
}

/// The reasons why a [`Uffd::wait`] ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// Events can be read.
    pub events: bool,
    /// The other descriptor is readable or has failed.
    pub other: bool,
}

/// An open userfaultfd. All methods but the constructors are allocation-free and async-signal-safe.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: u64,
}

impl Uffd {
    /// Opens a userfaultfd (close-on-exec, non-blocking) that has all the [`feature`] bits of
    /// `wanted`.
    ///
    /// # Errors
    /// [`UffdError::Features`] names the bits this kernel lacks; [`UffdError::Open`] and
    /// [`UffdError::Api`] carry the refusal.
    pub fn open(access: UffdAccess, wanted: u64) -> Result<Self, UffdError> {
        let fd = create(access)?;
        match api(fd.as_raw_fd(), wanted) {
            Ok(_) => Ok(Self { fd: descriptors::keep(fd), features: wanted }),
            // A refused UFFDIO_API leaves the descriptor unchanged, so that another one can ask for the known features.
            Err(errno) => match api(fd.as_raw_fd(), 0) {
                Ok(supported) if wanted & !supported != 0 => Err(UffdError::Features { absent: wanted & !supported }),
                _ => Err(UffdError::Api { wanted, errno }),
            },
        }
    }

    /// The [`feature`] bits this kernel knows.
    ///
    /// # Errors
    /// As [`Uffd::open`].
    pub fn supported(access: UffdAccess) -> Result<u64, UffdError> {
        let fd = create(access)?;
        api(fd.as_raw_fd(), 0).map_err(|errno| UffdError::Api { wanted: 0, errno })
    }

    /// The feature bits it was opened with.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Makes accesses to the pages of a range trap. Both ends are page-aligned. Registering again changes the mode.
    ///
    /// # Errors
    /// [`UffdError::Register`]: `EINVAL` for memory that cannot be registered, `EBUSY` when another
    /// descriptor has it.
    pub fn register(&self, addr: usize, len: usize, mode: RegisterMode) -> Result<(), UffdError> {
        let bits = flag(mode.missing, REGISTER_MISSING) | flag(mode.wp, REGISTER_WP) | flag(mode.minor, REGISTER_MINOR);
        let mut words = Words4([addr as u64, len as u64, bits, 0]);
        let register = || {
            refuse::draw(Call::Register)?;
            // SAFETY: `words` is a struct uffdio_register; registering only makes accesses trap.
            unsafe { self.ioctl(UFFDIO_REGISTER, &mut words) }.map(drop)
        };
        raw::again(register).map_err(|errno| UffdError::Register { addr, len, errno })
    }

    /// Ends the trapping of a range and wakes all threads that wait in it. Missing pages then read as zeroes.
    ///
    /// # Errors
    /// [`UffdError::Unregister`].
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), UffdError> {
        let mut words = [addr as u64, len as u64];
        // SAFETY: `words` is a struct uffdio_range; unregistering changes no present page.
        unsafe { self.ioctl(UFFDIO_UNREGISTER, &mut words) }.map(drop).map_err(|errno| UffdError::Unregister {
            addr,
            len,
            errno,
        })
    }

    /// Installs copies of the pages at `src` as the missing pages at `dst`, and wakes the threads that wait for them.
    /// `EEXIST` for a present page, `EAGAIN` when the request stopped in the middle; in both cases `done` says how far
    /// it came.
    ///
    /// # Safety
    /// The pages at `dst` become what `src` holds, so the caller must own their contents; `len`
    /// bytes at `src` must be mapped memory.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize, mode: CopyMode) -> IoctlResult {
        let bits = flag(mode.wp, COPY_MODE_WP) | flag(mode.dontwake, MODE_DONTWAKE);
        if let Err(Errno(errno)) = refuse::draw(Call::Copy) {
            return IoctlResult { done: 0, errno: Some(errno) };
        }
        let part = refuse::shorten(Call::Copy, len);
        let mut words = Words5([dst as u64, src as u64, part as u64, bits, 0]);
        // SAFETY: `words` is a struct uffdio_copy; the caller owns the destination's contents.
        let answer = unsafe { self.ioctl(UFFDIO_COPY, &mut words) };
        IoctlResult::from_words(answer, words.0[4], len)
    }

    /// Installs zero pages as the missing pages of a range and wakes the threads that wait for them.
    ///
    /// # Safety
    /// The missing pages of the range become zeroes, so the caller must own their contents.
    pub unsafe fn zeropage(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_zeropage; the caller owns the range's contents.
        let answer = unsafe { self.ioctl(UFFDIO_ZEROPAGE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Moves the pages at `src` to the missing pages at `dst` without copying. `dst` must be
    /// registered here; `src` is missing afterwards, and traps if it is registered too. `EBUSY` for
    /// a page that is pinned or shared with a child: COPY it in that case. `ENOENT` for a hole
    /// unless holes are allowed.
    ///
    /// # Safety
    /// The contents of both ranges change, so the caller must own both.
    pub unsafe fn move_pages(&self, dst: usize, src: usize, len: usize, mode: MoveMode) -> IoctlResult {
        let bits = flag(mode.dontwake, MODE_DONTWAKE) | flag(mode.allow_src_holes, MOVE_MODE_ALLOW_SRC_HOLES);
        if let Err(Errno(errno)) = refuse::draw(Call::Move) {
            return IoctlResult { done: 0, errno: Some(errno) };
        }
        let part = refuse::shorten(Call::Move, len);
        let mut words = Words5([dst as u64, src as u64, part as u64, bits, 0]);
        // SAFETY: `words` is a struct uffdio_move; the caller owns the contents of both ranges.
        let answer = unsafe { self.ioctl(UFFDIO_MOVE, &mut words) };
        IoctlResult::from_words(answer, words.0[4], len)
    }

    /// Maps the cached pages of a shared range (resolves minor faults) and wakes the threads that wait for them.
    pub fn continue_(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_continue; it maps what the shared object holds
        // already.
        let answer = unsafe { self.ioctl(UFFDIO_CONTINUE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Like [`Uffd::continue_`], but maps the pages write-protected, so that no write comes before the protection.
    /// Needs Linux 6.4 and a range registered with `wp`.
    pub fn continue_protected(&self, addr: usize, len: usize) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, CONTINUE_MODE_WP, 0]);
        // SAFETY: as for `continue_`.
        let answer = unsafe { self.ioctl(UFFDIO_CONTINUE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Makes accesses to the missing pages of a range raise SIGBUS for good.
    ///
    /// # Safety
    /// The caller must own the range: every later touch of it dies.
    pub unsafe fn poison(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_poison; the caller owns the range.
        let answer = unsafe { self.ioctl(UFFDIO_POISON, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Sets or removes write protection of the present pages of a range (registered with `wp`). Removing it wakes the
    /// threads that wait, unless `dontwake` is set. Setting it wakes none.
    ///
    /// # Errors
    /// `EAGAIN` while an event waits to be read (nothing done), `ENOENT` for a range that is not
    /// registered so.
    pub fn write_protect(&self, addr: usize, len: usize, on: bool, dontwake: bool) -> Result<(), Errno> {
        refuse::draw(Call::WriteProtect)?;
        // The kernel refuses DONTWAKE together with WP.
        let bits = flag(on, WRITEPROTECT_MODE_WP) | flag(dontwake && !on, WRITEPROTECT_MODE_DONTWAKE);
        let mut words = Words3([addr as u64, len as u64, bits]);
        // SAFETY: `words` is a struct uffdio_writeprotect; protection changes no contents.
        unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut words) }.map(drop)
    }

    /// Checks that the descriptor is still this userfaultfd. A program may have closed it by a system call of its own,
    /// and may use its number for something else.
    ///
    /// # Errors
    /// `EBADF` or `ENOTTY` when it is not.
    pub fn check(&self) -> Result<(), Errno> {
        match self.wake(0, 0) {
            Err(Errno(lost @ (libc::EBADF | libc::ENOTTY))) => Err(Errno(lost)),
            // The probe's range is empty, so the kernel refuses it with another error.
            _ => Ok(()),
        }
    }

    /// Wakes the threads that wait in a range. Each repeats its access, and traps again if the page is still missing.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not page-aligned or empty.
    pub fn wake(&self, addr: usize, len: usize) -> Result<(), Errno> {
        refuse::draw(Call::Wake)?;
        let mut words = [addr as u64, len as u64];
        // SAFETY: `words` is a struct uffdio_range; a spurious wake-up is harmless.
        unsafe { self.ioctl(UFFDIO_WAKE, &mut words) }.map(drop)
    }

    /// Reads the pending events, at most [`EVENTS_PER_READ`], into the front of `events`. Returns their number, 0 if
    /// none is pending. Never blocks.
    ///
    /// # Errors
    /// `EBADF` and the like: the descriptor is no userfaultfd any more, so no fault will ever be read.
    pub fn read_events(&self, events: &mut [Event; EVENTS_PER_READ]) -> Result<usize, Errno> {
        let mut messages = [[0u64; 4]; EVENTS_PER_READ];
        let bytes = loop {
            let args = [self.fd.as_raw_fd() as usize, messages.as_mut_ptr() as usize, size_of_val(&messages), 0, 0, 0];
            // SAFETY: the kernel writes at most the size of `messages` into `messages`.
            let read = || unsafe { raw::syscall(libc::SYS_read, args) };
            match refuse::draw(Call::ReadEvents).and_then(|()| read()) {
                Ok(bytes) => break bytes,
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => return Ok(0),
                Err(errno) => return Err(errno),
            }
        };
        let mut count = 0;
        for message in &messages[..bytes / size_of::<[u64; 4]>()] {
            if let Some(event) = Event::decode(*message) {
                events[count] = event;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Sleeps until an event is pending, `other` is readable, or the time is over. A signal may end the sleep early,
    /// with nothing ready.
    ///
    /// # Errors
    /// `EBADF` when the descriptor is open no more; `ENOMEM`.
    pub fn wait(&self, other: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> Result<Ready, Errno> {
        let limit = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = [
            PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(other.unwrap_or(self.fd.as_fd()), PollFlags::IN),
        ];
        let used = if other.is_some() { 2 } else { 1 };
        let mut poll = || rustix::event::poll(&mut fds[..used], limit.as_ref()).map_err(Errno::from);
        match refuse::draw(Call::Poll).and_then(|()| poll()) {
            Ok(_) => {}
            Err(Errno(libc::EINTR | libc::EAGAIN)) => return Ok(Ready::default()),
            Err(errno) => return Err(errno),
        }
        if fds[0].revents().contains(PollFlags::NVAL) {
            return Err(Errno(libc::EBADF));
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready { events: ready(&fds[0]), other: used == 2 && ready(&fds[1]) })
    }

    /// # Safety
    /// `T` must be the struct that `request` expects, and the request's effect on memory sound.
    #[inline]
    unsafe fn ioctl<T>(&self, request: u32, argument: &mut T) -> Result<usize, Errno> {
        // SAFETY: `argument` is valid for reads and writes of its struct; the rest is the caller's
        // promise.
        unsafe { raw::ioctl(self.fd.as_raw_fd(), request, &raw mut *argument as usize) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn flag(on: bool, bit: u64) -> u64 {
    if on { bit } else { 0 }
}
