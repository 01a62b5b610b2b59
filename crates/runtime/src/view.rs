//! The program's view of far memory, and the frames beside it: the only room that makes pages appear and vanish.
//!
//! Two mechanisms behind one face. *Userfaultfd*: private anonymous memory; pages are copied in or whole frames moved in
//! and out, and protected against writes while clean. *Protection* (sigsegv mode): shared memory mapped twice; pages are
//! filled through a second mapping that never traps. What traps is guards where the kernel has them ([`guards`]), else the
//! protection of each page. Nothing here decides anything, allocates anything or knows what a server is.

mod access;
mod enter;
mod fork;
mod guards;
mod leave;
mod moving;
#[cfg(test)]
mod tests;

pub(crate) use leave::Moved;

use guards::Guards;

use std::sync::atomic::AtomicBool;

use hanare_paging::FrameId;
use hanare_sys::copy::OwnMemory;
use hanare_sys::futex::LockCell;
use hanare_sys::map::{self, Advice, MapError, Mapping, Prot};
use hanare_sys::thread;
use hanare_sys::uffd::{RegisterMode, Uffd, UffdError, feature};
use hanare_sys::{Errno, again};

use crate::restrictions::Restrictions;
use crate::span::Span;
use crate::windows::{WINDOWS_MAX, Windows};

/// Why the view could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// Address space could not be had.
    #[error("cannot set up far memory: {0}; lower HANARE_RESERVE or raise the limit on address space")]
    Map(#[from] MapError),
    /// The kernel refused to register it.
    #[error("cannot set up far memory: {0}; 'hanare doctor' tells what this machine allows")]
    Uffd(#[from] UffdError),
    /// This process' own memory cannot be opened as a file.
    #[error("cannot open /proc/self/mem: {0}; {advice}", advice = own_memory_advice(*.0))]
    OwnMemory(Errno),
    /// There are too many places of the program's own that are to be far.
    #[error("more than {WINDOWS_MAX} programs and libraries have large arrays; set HANARE_STATIC=off")]
    Windows,
}

fn own_memory_advice(errno: Errno) -> &'static str {
    if errno.0 == libc::ENOENT { "mount /proc" } else { "raise the limit on open files" }
}

/// Bytes of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// How memory of the program's is registered.
const TRAPPING: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };

/// How the view is made.
pub(crate) enum Mechanism {
    /// Userfaultfd, opened with the features the mode needs.
    Uffd(Uffd),
    /// A memfd mapped twice.
    Protection(Protection),
}

/// What traps in a memfd that is mapped twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protection {
    /// The protection of each page: up to two mappings for each in view.
    Pages,
    /// Guards.
    Guards {
        /// Mappings that may be spent on seeing writes to clean pages.
        mappings: usize,
    },
}

/// Sizes of the view, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) reserve: usize,
    pub(crate) unit: usize,
    pub(crate) block: usize,
    pub(crate) small_frames: usize,
    pub(crate) wide_frames: usize,
    /// Places for pages that are moved aside ([`View::move_aside`]), in units.
    pub(crate) aside_units: usize,
}

/// What the view has to know of the program's threads.
#[derive(Clone, Copy)]
pub(crate) struct Program {
    /// Whether it has a single thread.
    pub(crate) is_alone: fn() -> bool,
    /// Whether and how its code can be seen not to run.
    pub(crate) still: fn() -> Option<Still>,
}

/// Why no code of the program ran since this was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Still {
    /// Its only thread is the calling one, which is in the engine with signals blocked.
    Here,
    /// Its only thread had used so much CPU time, in nanoseconds. The same again means that it did not run.
    Ran {
        /// The thread.
        tid: i32,
        /// Its CPU time.
        ns: u64,
    },
}

impl Still {
    /// Whether it is so still. No second thread can have been made by a thread that did not run.
    fn holds(self) -> bool {
        match self {
            Still::Here => true,
            Still::Ran { tid, ns } => thread::run_ns(tid) == Some(ns),
        }
    }
}

pub(crate) struct View {
    base: usize,
    sizes: Sizes,
    /// Where each offset is: in the reservation, save for windows and holes.
    windows: &'static Windows,
    huge: bool,
    uffd: Option<Uffd>,
    /// Start of the second mapping in sigsegv mode, and the file beneath both.
    io_base: usize,
    file: Option<std::os::fd::OwnedFd>,
    guards: Option<LockCell<Guards>>,
    small_pool: usize,
    wide_pool: usize,
    aside_pool: usize,
    zeroes: usize,
    /// Reads pages that the program closed. Held open, for there may be no descriptor left when it is needed.
    memory: Result<OwnMemory, Errno>,
    /// Whether a child may share pages in view, so that MOVE refuses them for that.
    has_forked: AtomicBool,
    restrictions: Restrictions,
    program: Program,
}

impl View {
    /// Reserves and registers far memory and its frames.
    pub(crate) fn new(mechanism: Mechanism, sizes: Sizes, huge: bool, program: Program) -> Result<Self, ViewError> {
        let align = HUGE_PAGE;
        let Trap { uffd, file, guards } = Trap::new(mechanism, &sizes)?;
        let (base, io_base) = match &file {
            Some(file) => (
                Mapping::shared_aligned(file, sizes.reserve, align)?.leak(),
                Mapping::shared_aligned(file, sizes.reserve, align)?.leak(),
            ),
            None => (Mapping::reserve(sizes.reserve, align)?.leak(), 0),
        };
        let view = Self {
            base,
            sizes,
            windows: Box::leak(Box::new(Windows::new(base, sizes.reserve))),
            huge,
            uffd,
            io_base,
            file,
            guards,
            small_pool: pool(sizes.small_frames * sizes.unit, align)?,
            wide_pool: pool(sizes.wide_frames * sizes.block, align)?,
            aside_pool: pool(sizes.aside_units * sizes.unit, align)?,
            zeroes: Mapping::anonymous(sizes.block.max(sizes.unit))?.leak(),
            memory: Ok(OwnMemory::open().map_err(ViewError::OwnMemory)?),
            has_forked: AtomicBool::new(false),
            restrictions: Restrictions::new(sizes.reserve),
            program,
        };
        if view.file.is_some() {
            // SAFETY: the range was mapped just now and nothing points into it.
            again(|| unsafe { map::protect(base, sizes.reserve, Prot::NONE) })
                .map_err(|errno| refused(&view, errno))?;
        }
        view.advise_all()?;
        view.register()?;
        Ok(view)
    }

    fn register(&self) -> Result<(), ViewError> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        uffd.register(self.base, self.sizes.reserve, TRAPPING)?;
        self.register_frames()
    }

    fn register_frames(&self) -> Result<(), ViewError> {
        let Some(uffd) = &self.uffd else { return Ok(()) };
        // MOVE wants its destination registered; with write-protect mode alone the frames themselves never trap.
        for (addr, len) in self.pools() {
            uffd.register(addr, len, RegisterMode { missing: false, wp: true, minor: false })?;
        }
        Ok(())
    }

    fn pools(&self) -> impl Iterator<Item = (usize, usize)> {
        let small = (self.small_pool, (self.sizes.small_frames * self.sizes.unit).next_multiple_of(HUGE_PAGE));
        let wide = (self.wide_pool, self.sizes.wide_frames * self.sizes.block);
        let aside = (self.aside_pool, (self.sizes.aside_units * self.sizes.unit).next_multiple_of(HUGE_PAGE));
        [small, wide, aside].into_iter().filter(|&(addr, len)| addr != 0 && len > 0)
    }

    fn advise_all(&self) -> Result<(), ViewError> {
        let ranges = [(self.base, self.sizes.reserve), (self.io_base, self.sizes.reserve)];
        ranges
            .into_iter()
            .chain(self.pools())
            .filter(|&(addr, _)| addr != 0)
            .try_for_each(|(addr, len)| self.advise(addr, len))
    }

    /// Advises a whole range of the view's.
    fn advise(&self, addr: usize, len: usize) -> Result<(), ViewError> {
        // A huge page would fill all frames and places in it with the first one that is written, and MOVE wants its
        // destination empty.
        let shares_huge =
            (addr == self.small_pool || addr == self.aside_pool) && !self.sizes.unit.is_multiple_of(HUGE_PAGE);
        let size = if self.huge && !shares_huge { Advice::HugePage } else { Advice::NoHugePage };
        for advice in [size, Advice::DontFork, Advice::DontDump] {
            // SAFETY: the range is our own mapping; none of the three changes its contents.
            let advised = again(|| unsafe { map::advise(addr, len, advice) });
            // A kernel built without huge pages does not know the word, and has none.
            let unknown = advice == size && advised == Err(Errno(libc::EINVAL));
            advised.or(if unknown { Ok(()) } else { advised }).map_err(|errno| MapError::Reserve { len, errno })?;
        }
        Ok(())
    }

    /// Shows `span`, so far untouched, at `addr` instead of in the reservation. Whatever is mapped at `addr` is replaced.
    /// On an error the range reads as plain zeroes, or nothing is mapped there.
    ///
    /// # Safety
    /// The caller owns `addr..addr + span.len` (whole pages) and its contents, and nobody touches it meanwhile.
    pub(crate) unsafe fn add_window(&self, addr: usize, span: Span) -> Result<(), ViewError> {
        let guards = self.guards();
        if !self.windows.add(addr, span) {
            return Err(ViewError::Windows);
        }
        match &self.file {
            Some(file) => {
                // SAFETY: passed on from the caller.
                again(|| unsafe { map::replace_with_shared(addr, span.len, file, span.offset as u64, Prot::NONE) })
            }
            // SAFETY: passed on from the caller.
            None => again(|| unsafe { map::replace_with_anonymous(addr, span.len) }),
        }
        .map_err(|errno| ViewError::Map(MapError::Reserve { len: span.len, errno }))?;
        self.advise(addr, span.len)?;
        if let Some(guards) = guards {
            self.match_window(&guards, span)
                .map_err(|errno| ViewError::Map(MapError::Reserve { len: span.len, errno }))?;
        }
        match &self.uffd {
            Some(uffd) => Ok(uffd.register(addr, span.len, TRAPPING)?),
            None => Ok(()),
        }
    }

    /// Makes `span` a hole for good. Nothing of it is in view; whoever maps something there does it afterwards.
    pub(crate) fn puncture(&self, span: Span) {
        // Held so that nobody opens the stretch just now, whose guards would go to what is mapped there next.
        let _guards = self.guards();
        self.windows.puncture(span);
    }

    pub(crate) fn base(&self) -> usize {
        self.base
    }

    pub(crate) fn windows(&self) -> &'static Windows {
        self.windows
    }

    /// The offset of a far address; `None` for one that is not far.
    #[inline]
    pub(crate) fn offset_of(&self, addr: usize) -> Option<usize> {
        self.windows.offset_of(addr)
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.reserve
    }

    pub(crate) fn uffd(&self) -> Option<&Uffd> {
        self.uffd.as_ref()
    }

    /// Whether the program has a single thread.
    pub(crate) fn is_alone(&self) -> bool {
        (self.program.is_alone)()
    }

    /// Whether MOVE can be used, and with it a page told that a transfer holds (is pinned).
    pub(crate) fn sees_pins(&self) -> bool {
        self.uffd.as_ref().is_some_and(|uffd| uffd.features() & feature::MOVE != 0)
    }

    /// Address of a frame's bytes.
    pub(crate) fn frame(&self, frame: FrameId) -> *mut u8 {
        let (pool, size) = match frame.wide {
            true => (self.wide_pool, self.sizes.block),
            false => (self.small_pool, self.sizes.unit),
        };
        (pool + frame.index as usize * size) as *mut u8
    }

    /// Where bytes for a page can be received straight into view, if the mechanism has such a place.
    pub(crate) fn receive_place(&self, offset: usize) -> Option<*mut u8> {
        (self.io_base != 0).then_some((self.io_base + offset) as *mut u8)
    }

    pub(crate) fn zeroes(&self) -> *const u8 {
        self.zeroes as *const u8
    }
}

/// What a view traps by.
struct Trap {
    uffd: Option<Uffd>,
    file: Option<std::os::fd::OwnedFd>,
    guards: Option<LockCell<Guards>>,
}

impl Trap {
    fn new(mechanism: Mechanism, sizes: &Sizes) -> Result<Self, ViewError> {
        let protection = match mechanism {
            Mechanism::Uffd(uffd) => return Ok(Self { uffd: Some(uffd), file: None, guards: None }),
            Mechanism::Protection(protection) => protection,
        };
        let guards = match protection {
            Protection::Pages => None,
            Protection::Guards { mappings } => Some(Guards::new(sizes.reserve, sizes.unit, mappings)),
        };
        Ok(Self { uffd: None, file: Some(map::memfd("hanare-view", sizes.reserve as u64)?), guards })
    }
}

fn refused(view: &View, errno: hanare_sys::Errno) -> ViewError {
    ViewError::Map(MapError::Reserve { len: view.sizes.reserve, errno })
}

fn pool(len: usize, align: usize) -> Result<usize, MapError> {
    if len == 0 {
        return Ok(0);
    }
    Ok(Mapping::reserve(len.next_multiple_of(align), align)?.leak())
}
