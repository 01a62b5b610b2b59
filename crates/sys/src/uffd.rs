//! userfaultfd: traps accesses to missing or write-protected pages, and resolves them.
//!
//! This module is a thin layer over the ioctls. It reports the kernel's result, and how many bytes a request finished
//! before it failed. It does not know the states of pages. See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and
//! <https://docs.kernel.org/admin-guide/mm/userfaultfd.html>.
//!
//! The caller must know these rules of the kernel:
//! - A request may stop with `EAGAIN` after some bytes. Either the request met a present page, or the address space is
//!   changing. In the second case, a `Remove`, `Unmap`, `Remap` or `Fork` event waits to be read. The caller reads all
//!   events, then repeats the rest of the request.
//! - With [`feature::WP_ASYNC`], write-protecting a missing page leaves a marker in its place. COPY replaces the
//!   marker, but MOVE to this place fails with `EEXIST`. So the caller write-protects only present pages.
//! - MOVE works only on private anonymous memory. The moved pages are not write-protected afterwards.

use crate::descriptors;
use crate::raw::{self, Errno};
use crate::ready::{self, WAITED_MAX};
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
/// The DONTWAKE bit. It is the same in all mode words except that of WRITEPROTECT.
const MODE_DONTWAKE: u64 = 1 << 0;
const COPY_MODE_WP: u64 = 1 << 1;
const MOVE_MODE_ALLOW_SRC_HOLES: u64 = 1 << 1;
const CONTINUE_MODE_WP: u64 = 1 << 1;
const WRITEPROTECT_MODE_WP: u64 = 1 << 0;
const WRITEPROTECT_MODE_DONTWAKE: u64 = 1 << 1;

/// The three words of `struct uffdio_api` or `struct uffdio_writeprotect`.
#[repr(C)]
struct Words3([u64; 3]);
/// The four words of `struct uffdio_register`, `uffdio_zeropage`, `uffdio_continue` or `uffdio_poison`. They are a
/// range (two words), a mode and a result.
#[repr(C)]
struct Words4([u64; 4]);
/// The five words of `struct uffdio_copy` or `uffdio_move`: destination, source, length, mode and result.
#[repr(C)]
struct Words5([u64; 5]);

/// Selects the accesses to a range that trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RegisterMode {
    /// Accesses to missing pages trap.
    pub missing: bool,
    /// Writes to write-protected pages trap.
    pub wp: bool,
    /// An access to shared memory traps if the page is in the page cache but not mapped. The caller should set
    /// `missing` as well. Otherwise an access to a page that is not in the cache creates a zero page.
    pub minor: bool,
}

/// The way in which COPY installs pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyMode {
    /// Install the pages write-protected. The range must be registered with `wp`.
    pub wp: bool,
    /// Do not wake the threads that wait for the pages.
    pub dontwake: bool,
}

/// The way in which MOVE moves pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MoveMode {
    /// Do not wake the threads that wait for the pages.
    pub dontwake: bool,
    /// Skip missing pages of the source instead of failing with `ENOENT`.
    pub allow_src_holes: bool,
}

/// The outcome of a request on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoctlResult {
    /// The number of bytes done, from the start of the range.
    pub done: usize,
    /// The errno with which the request stopped. `None` if the whole range was done.
    pub errno: Option<i32>,
}

impl IoctlResult {
    /// Checks whether the whole range was done.
    #[must_use]
    pub fn is_ok(self) -> bool {
        self.errno.is_none()
    }

    /// Converts the result of an ioctl. `word` is the last word of the ioctl's struct: the number of bytes done, or a
    /// negated errno.
    fn from_words(answer: Result<usize, Errno>, word: u64, len: usize) -> Self {
        let done = usize::try_from(word as i64).unwrap_or(0).min(len);
        match answer {
            Ok(_) if done == len => Self { done, errno: None },
            Ok(_) => Self { done, errno: Some(libc::EAGAIN) },
            Err(Errno(errno)) => Self { done, errno: Some(errno) },
        }
    }
}

/// The descriptors that are ready when [`Uffd::wait`] ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ready {
    /// Whether userfaultfd events can be read.
    pub events: bool,
    /// Whether the `other` descriptor is readable or has failed.
    pub other: bool,
}

/// An open userfaultfd. Its methods are allocation-free and async-signal-safe, except the constructors.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
    features: u64,
}

impl Uffd {
    /// Opens a userfaultfd (close-on-exec, non-blocking) with all the [`feature`] bits in `wanted`.
    ///
    /// # Errors
    /// [`UffdError::Features`] names the bits that this kernel lacks. [`UffdError::Open`] and [`UffdError::Api`]
    /// contain the kernel's error.
    pub fn open(access: UffdAccess, wanted: u64) -> Result<Self, UffdError> {
        let fd = create(access)?;
        match api(fd.as_raw_fd(), wanted) {
            Ok(_) => Ok(Self { fd: descriptors::keep(fd), features: wanted }),
            // A refused UFFDIO_API leaves the descriptor unchanged. So a second UFFDIO_API on the same descriptor can
            // ask for the supported features.
            Err(errno) => match api(fd.as_raw_fd(), 0) {
                Ok(supported) if wanted & !supported != 0 => Err(UffdError::Features { absent: wanted & !supported }),
                _ => Err(UffdError::Api { wanted, errno }),
            },
        }
    }

    /// Returns the [`feature`] bits that this kernel supports.
    ///
    /// # Errors
    /// [`UffdError::Open`] and [`UffdError::Api`] contain the kernel's error.
    pub fn supported(access: UffdAccess) -> Result<u64, UffdError> {
        let fd = create(access)?;
        api(fd.as_raw_fd(), 0).map_err(|errno| UffdError::Api { wanted: 0, errno })
    }

    /// Returns the feature bits that this userfaultfd was opened with.
    #[must_use]
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Makes accesses to the pages of a range trap. Both ends of the range are page-aligned. Registering a range again
    /// changes its mode.
    ///
    /// # Errors
    /// [`UffdError::Register`]. Its errno is `EINVAL` for memory that cannot be registered, and `EBUSY` if the range is
    /// registered with another userfaultfd.
    pub fn register(&self, addr: usize, len: usize, mode: RegisterMode) -> Result<(), UffdError> {
        let bits = flag(mode.missing, REGISTER_MISSING) | flag(mode.wp, REGISTER_WP) | flag(mode.minor, REGISTER_MINOR);
        let mut words = Words4([addr as u64, len as u64, bits, 0]);
        let register = || {
            refuse::draw(Call::Register)?;
            // SAFETY: `words` is a struct uffdio_register. Registering a range changes no contents; it only makes
            // accesses trap.
            unsafe { self.ioctl(UFFDIO_REGISTER, &mut words) }.map(drop)
        };
        raw::again(register).map_err(|errno| UffdError::Register { addr, len, errno })
    }

    /// Ends the trapping of accesses to a range. Wakes all threads that wait for pages of the range. Missing pages then
    /// read as zeroes.
    ///
    /// # Errors
    /// [`UffdError::Unregister`] if the kernel refuses.
    pub fn unregister(&self, addr: usize, len: usize) -> Result<(), UffdError> {
        let mut words = [addr as u64, len as u64];
        // SAFETY: `words` is a struct uffdio_range. Unregistering a range changes no contents of present pages.
        unsafe { self.ioctl(UFFDIO_UNREGISTER, &mut words) }.map(drop).map_err(|errno| UffdError::Unregister {
            addr,
            len,
            errno,
        })
    }

    /// Installs copies of the pages at `src` as the missing pages at `dst`, and wakes the threads that wait for them.
    /// The result's errno is `EEXIST` if a page is present, and `EAGAIN` if the request stopped in the middle. In both
    /// cases, `done` counts the installed bytes.
    ///
    /// # Safety
    /// The contents of the pages at `dst` change, so the caller must own them. The `len` bytes at `src` must be mapped
    /// and readable.
    pub unsafe fn copy(&self, dst: usize, src: usize, len: usize, mode: CopyMode) -> IoctlResult {
        let bits = flag(mode.wp, COPY_MODE_WP) | flag(mode.dontwake, MODE_DONTWAKE);
        if let Err(Errno(errno)) = refuse::draw(Call::Copy) {
            return IoctlResult { done: 0, errno: Some(errno) };
        }
        let part = refuse::shorten(Call::Copy, len);
        let mut words = Words5([dst as u64, src as u64, part as u64, bits, 0]);
        // SAFETY: `words` is a struct uffdio_copy. The caller owns the contents of `dst`, which the kernel changes.
        // `src` is mapped.
        let answer = unsafe { self.ioctl(UFFDIO_COPY, &mut words) };
        IoctlResult::from_words(answer, words.0[4], len)
    }

    /// Installs zero pages as the missing pages of a range and wakes the threads that wait for them.
    ///
    /// # Safety
    /// The missing pages of the range become zeroes, so the caller must own the contents of the range.
    pub unsafe fn zeropage(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_zeropage. The caller owns the contents of the range, which become zero.
        let answer = unsafe { self.ioctl(UFFDIO_ZEROPAGE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Moves the pages at `src` to the missing pages at `dst` without copying. `dst` must be registered with this
    /// userfaultfd. Afterwards, the pages at `src` are missing. Accesses to them trap if `src` is registered too.
    ///
    /// The result's errno is `EBUSY` if a page is pinned or shared with a child. The caller can COPY such a page
    /// instead. The errno is `ENOENT` if a page of `src` is missing and `allow_src_holes` is not set.
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
        // SAFETY: `words` is a struct uffdio_move. The caller owns the contents of both ranges, which the kernel
        // changes.
        let answer = unsafe { self.ioctl(UFFDIO_MOVE, &mut words) };
        IoctlResult::from_words(answer, words.0[4], len)
    }

    /// Resolves minor faults: maps the pages of a shared range that are in the page cache but not mapped. Wakes the
    /// threads that wait for these pages.
    pub fn continue_(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_continue. The call only maps pages that the shared object already
        // contains.
        let answer = unsafe { self.ioctl(UFFDIO_CONTINUE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Like [`Uffd::continue_`], but maps the pages write-protected. So no write can happen between the mapping and the
    /// protection. Needs Linux 6.4 and a range that is registered with `wp`.
    pub fn continue_protected(&self, addr: usize, len: usize) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, CONTINUE_MODE_WP, 0]);
        // SAFETY: `words` is a struct uffdio_continue. The call only maps pages that the shared object already
        // contains.
        let answer = unsafe { self.ioctl(UFFDIO_CONTINUE, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Makes every later access to the missing pages of a range raise SIGBUS.
    ///
    /// # Safety
    /// The caller must own the range, because no later access to its missing pages succeeds.
    pub unsafe fn poison(&self, addr: usize, len: usize, dontwake: bool) -> IoctlResult {
        let mut words = Words4([addr as u64, len as u64, flag(dontwake, MODE_DONTWAKE), 0]);
        // SAFETY: `words` is a struct uffdio_poison. The caller owns the range, so no other code needs its missing
        // pages.
        let answer = unsafe { self.ioctl(UFFDIO_POISON, &mut words) };
        IoctlResult::from_words(answer, words.0[3], len)
    }

    /// Sets (`on`) or removes write protection of the present pages of a range. The range must be registered with `wp`.
    /// Removing the protection wakes the threads that wait for pages of the range, but not if `dontwake` is set.
    /// Setting the protection wakes no thread.
    ///
    /// # Errors
    /// `EAGAIN` if an event waits to be read; then no page has changed. `ENOENT` if the range is not registered with
    /// `wp`.
    pub fn write_protect(&self, addr: usize, len: usize, on: bool, dontwake: bool) -> Result<(), Errno> {
        refuse::draw(Call::WriteProtect)?;
        // The kernel refuses the flag DONTWAKE together with the flag WP.
        let bits = flag(on, WRITEPROTECT_MODE_WP) | flag(dontwake && !on, WRITEPROTECT_MODE_DONTWAKE);
        let mut words = Words3([addr as u64, len as u64, bits]);
        // SAFETY: `words` is a struct uffdio_writeprotect. Changing the protection changes no contents; it only makes
        // writes trap.
        unsafe { self.ioctl(UFFDIO_WRITEPROTECT, &mut words) }.map(drop)
    }

    /// Checks that the descriptor is still this userfaultfd. The program may have closed the descriptor by a direct
    /// system call, and may have opened another file under its number.
    ///
    /// # Errors
    /// `EBADF` if the descriptor is closed. `ENOTTY` if its number now belongs to a file that is not a userfaultfd.
    pub fn check(&self) -> Result<(), Errno> {
        match self.wake(0, 0) {
            Err(Errno(lost @ (libc::EBADF | libc::ENOTTY))) => Err(Errno(lost)),
            // A userfaultfd also refuses this wake, because its range is empty, but with another error.
            _ => Ok(()),
        }
    }

    /// Wakes the threads that wait in a range. Each thread repeats its access, and traps again if the page is still
    /// missing.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not page-aligned or empty.
    pub fn wake(&self, addr: usize, len: usize) -> Result<(), Errno> {
        refuse::draw(Call::Wake)?;
        let mut words = [addr as u64, len as u64];
        // SAFETY: `words` is a struct uffdio_range. A wake-up changes no memory, and a thread that is woken too early
        // only traps again.
        unsafe { self.ioctl(UFFDIO_WAKE, &mut words) }.map(drop)
    }

    /// Reads the pending events, at most [`EVENTS_PER_READ`], into the front of `events`. Returns the number of events,
    /// which is 0 if none is pending. Never blocks.
    ///
    /// # Errors
    /// The kernel's error, such as `EBADF` if the descriptor is closed. After an error, no more events can be read from
    /// this userfaultfd.
    pub fn read_events(&self, events: &mut [Event; EVENTS_PER_READ]) -> Result<usize, Errno> {
        let mut messages = [[0u64; 4]; EVENTS_PER_READ];
        let bytes = loop {
            let args = [self.fd.as_raw_fd() as usize, messages.as_mut_ptr() as usize, size_of_val(&messages), 0, 0, 0];
            // SAFETY: the kernel writes at most `size_of_val(&messages)` bytes into `messages`.
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

    /// Sleeps until an event is pending, one of the first [`WAITED_MAX`] `others` is readable, or `timeout` has passed. A
    /// signal may end the sleep early. After a timeout or a signal, the result says that nothing is ready. If the kernel
    /// refuses to wait ([`ready::nap`]), this call naps, and the result says that all are ready.
    ///
    /// # Errors
    /// `EBADF` if this userfaultfd's descriptor is closed. `ENOMEM` if the kernel has no memory.
    pub fn wait<'a>(
        &'a self,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> Result<Ready, Errno> {
        let limit = timeout.and_then(|time| Timespec::try_from(time).ok());
        let mut fds: [PollFd<'a>; 1 + WAITED_MAX] =
            std::array::from_fn(|_| PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::IN));
        let others = fds[1..].iter_mut().zip(others);
        let used = 1 + others.map(|(place, fd)| *place = PollFd::from_borrowed_fd(fd, PollFlags::IN)).count();
        let mut poll = || rustix::event::poll(&mut fds[..used], limit.as_ref()).map_err(Errno::from);
        match refuse::draw(Call::Poll).and_then(|()| poll()) {
            Ok(_) => {}
            Err(Errno(libc::EINTR | libc::EAGAIN)) => return Ok(Ready::default()),
            Err(Errno(libc::EINVAL)) => {
                ready::nap(timeout.unwrap_or(Duration::MAX));
                return Ok(Ready { events: true, other: used > 1 });
            }
            Err(errno) => return Err(errno),
        }
        if fds[0].revents().contains(PollFlags::NVAL) {
            return Err(Errno(libc::EBADF));
        }
        let ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        Ok(Ready { events: ready(&fds[0]), other: fds[1..used].iter().any(ready) })
    }

    /// Makes an ioctl on this userfaultfd.
    ///
    /// # Safety
    /// `T` must be the struct that `request` expects, and the request's effect on memory must be sound.
    #[inline]
    unsafe fn ioctl<T>(&self, request: u32, argument: &mut T) -> Result<usize, Errno> {
        // SAFETY: `argument` is a unique reference to the struct that the kernel reads and writes. The caller
        // guarantees that `T` fits `request` and that the effect of `request` is sound.
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
