//! The shared region in one rank: the view that traps, and the one through which Hanare reads and writes.
//!
//! Both map one memfd. The trapped view lies at one address in every rank; a page in it is absent, protected or
//! writable as its state says. Hanare itself never accesses that view. Peers on the host map the memfd a third time,
//! for zero copy.
#![allow(unsafe_code, reason = "memory that the program changes meanwhile, never behind a reference")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use hanare_store::StoreError;
use hanare_sys::features::{Disabled, Features};
use hanare_sys::map::{self, Advice, MapError, Mapping};
use hanare_sys::uffd::{RegisterMode, Uffd, UffdError, feature};
use hanare_sys::{Errno, copy};

use super::away::Away;
use crate::coherence::{PageSet, Run};
use crate::diff;
use crate::limits::WORD_BYTES;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// Address of the region in every rank: far above the addresses that programs and the kernel choose on 47-bit address
/// spaces.
const ADDRESS: usize = 0x2000_0000_0000;
/// Most descriptors that exist at once while the region is made, or stay.
const DESCRIPTORS: usize = 5;
/// Attempts at a call that the kernel asks to repeat.
const ATTEMPTS: usize = 1000;

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegionError {
    /// The machine has no userfaultfd that traps shared memory and the kernel's own accesses.
    #[error("this machine's userfaultfd cannot trap shared pages ({0}); 'hanare doctor' tells how to allow it")]
    Unable(&'static str),
    /// The mechanism failed.
    #[error(transparent)]
    Uffd(#[from] UffdError),
    /// The memory was refused.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The region could not be excluded from children and core dumps.
    #[error("cannot keep shared memory from forked children: {}; free memory", std::io::Error::from_raw_os_error(.0.0))]
    Advise(Errno),
    /// The limit on the length of files, and so of memory objects, is too low.
    #[error(
        "the limit on the length of files is {limit} bytes, and shared memory takes {bytes}; raise 'ulimit -f', or set a \
             smaller HANARE_SHARED_BYTES"
    )]
    FileLimit {
        /// The limit.
        limit: u64,
        /// The requested length.
        bytes: u64,
    },
    /// Something else is mapped at the region's address.
    #[error(
        "the address {ADDRESS:#x}, at which every rank has the shared region, is taken in rank {rank}: {source}; \
             start the program without what maps memory there, or with a smaller HANARE_SHARED_BYTES"
    )]
    Taken {
        /// The rank.
        rank: u16,
        /// The system's error.
        source: MapError,
    },
}

/// The accesses that a page of the trapped view allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Shown {
    Absent,
    Protected,
    Writable,
}

pub(super) struct Region {
    memory: OwnedFd,
    trapped: Mapping,
    io: Mapping,
    /// The twin of each page, at its page's offset. Takes memory only where there was ever a twin.
    twins: Mapping,
    twins_at: Option<u64>,
    uffd: Uffd,
    /// All pages up to the last one ever shown.
    shown: Vec<Shown>,
    /// The last page that was shown with its waiting threads woken.
    last_shown: Option<u32>,
    /// Pages of the memfd that have memory, and twins that have.
    held: PageSet,
    twinned: PageSet,
}

impl Region {
    /// Makes a region of `bytes` bytes. Behind it in its memfd lie `more` bytes, among them at `twins_at` the twins, if
    /// peers read them.
    pub(super) fn new(bytes: u64, more: u64, twins_at: Option<u64>, rank: u16) -> Result<Self, RegionError> {
        // Without descriptors it would seem as if the machine lacked the feature.
        let spare = || map::memfd("hanare-spare", 0);
        let spares: Result<Vec<OwnedFd>, MapError> = (0..DESCRIPTORS).map(|_| spare()).collect();
        drop(spares?);
        let features = Features::probe(&Disabled::from_env().unwrap_or_default());
        if !features.minor_shmem || !features.continue_ || !features.wp {
            return Err(RegionError::Unable("it lacks minor faults, CONTINUE or write protection of shared memory"));
        }
        let wanted = feature::MINOR_SHMEM | feature::MISSING_SHMEM | feature::WP | feature::WP_HUGETLBFS_SHMEM;
        let uffd = Uffd::open(features.access, wanted)?;
        // Beyond the limit the kernel would send SIGXFSZ.
        match rustix::process::getrlimit(rustix::process::Resource::Fsize).current {
            Some(limit) if limit < bytes + more => return Err(RegionError::FileLimit { limit, bytes: bytes + more }),
            _ => {}
        }
        let memory = map::memfd("hanare-shared", bytes + more)?;
        let io = Mapping::shared(&memory, 0, bytes as usize)?;
        let twins = match twins_at {
            Some(offset) => Mapping::shared(&memory, offset, bytes as usize)?,
            None => Mapping::reserve(bytes as usize, PAGE)?,
        };
        let trapped = Mapping::shared_at(&memory, ADDRESS, bytes as usize).map_err(|source| match source {
            MapError::Shared { errno: Errno(libc::EEXIST), .. } => RegionError::Taken { rank, source },
            _ => RegionError::Map(source),
        })?;
        uffd.register(trapped.addr(), trapped.len(), RegisterMode { missing: true, wp: true, minor: true })?;
        for mapping in [&trapped, &io, &twins] {
            for advice in [Advice::DontFork, Advice::DontDump] {
                // A child that inherited them would write to this rank's pages without a trap.
                // SAFETY: advice about forks and dumps changes no contents.
                unsafe { map::advise(mapping.addr(), mapping.len(), advice) }.map_err(RegionError::Advise)?;
            }
        }
        Ok(Self {
            memory,
            trapped,
            io,
            twins,
            twins_at,
            uffd,
            shown: Vec::new(),
            last_shown: None,
            held: PageSet::default(),
            twinned: PageSet::default(),
        })
    }

    pub(super) fn address_of(&self, page: u32) -> usize {
        self.trapped.addr() + page as usize * PAGE
    }

    /// The page at an address. `None` outside the region.
    pub(super) fn page_at(&self, addr: usize) -> Option<u32> {
        let offset = addr.checked_sub(self.trapped.addr()).filter(|offset| *offset < self.trapped.len())?;
        Some((offset / PAGE) as u32)
    }

    pub(super) fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    /// The descriptor number by which peers open the memory under /proc.
    pub(super) fn memory_number(&self) -> i32 {
        self.memory.as_raw_fd()
    }

    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn range(run: Run) -> (usize, usize) {
        (run.first as usize * PAGE, run.count as usize * PAGE)
    }

    fn shown(&mut self, page: u32) -> &mut Shown {
        let index = page as usize;
        if index >= self.shown.len() {
            self.shown.resize(index + 1, Shown::Absent);
        }
        &mut self.shown[index]
    }

    pub(super) fn is_shown(&self, page: u32) -> bool {
        self.shown.get(page as usize).is_some_and(|shown| *shown != Shown::Absent)
    }

    /// Shows a page and wakes the threads that wait for it.
    pub(super) fn show(&mut self, page: u32, writable: bool) -> Result<(), Errno> {
        let addr = self.address_of(page);
        match (*self.shown(page), writable) {
            (Shown::Absent, _) => {
                let run = Run { first: page, count: 1 };
                self.hold(run)?;
                self.map_in(run, writable)?;
                self.last_shown = Some(page);
            }
            (Shown::Protected, true) => {
                self.set_protection(addr, PAGE, false)?;
                self.last_shown = Some(page);
            }
            (Shown::Writable, false) => self.protect(Run { first: page, count: 1 })?,
            (Shown::Protected, false) | (Shown::Writable, true) => {}
        }
        *self.shown(page) = if writable { Shown::Writable } else { Shown::Protected };
        Ok(())
    }

    /// The last page shown by [`Self::show`] since the previous call. No thread waits for it any more.
    pub(super) fn take_last_shown(&mut self) -> Option<u32> {
        self.last_shown.take()
    }

    /// Notes that a page has received its bytes, and so its memory.
    pub(super) fn came(&mut self, page: u32) {
        self.held.insert(page);
    }

    /// Allocates memory for pages of the memfd that have none: UFFDIO_CONTINUE fails on a hole. A shortage is an error
    /// here; at an access it would be SIGBUS.
    pub(super) fn hold(&mut self, run: Run) -> Result<(), Errno> {
        let new = run.pages().filter(|&page| self.held.insert(page)).count();
        if new == 0 {
            return Ok(());
        }
        let (offset, len) = Self::range(run);
        retry(|| map::allocate(self.memory(), offset as u64, len as u64))
    }

    /// Shows absent pages at once, and wakes the threads that wait for them.
    pub(super) fn show_all(&mut self, run: Run, writable: bool) -> Result<(), Errno> {
        self.hold(run)?;
        self.map_in(run, writable)?;
        let shown = if writable { Shown::Writable } else { Shown::Protected };
        run.pages().for_each(|page| *self.shown(page) = shown);
        Ok(())
    }

    /// Lets the kernel map absent pages of the trapped view, and wake the threads that wait for them. Continues where
    /// the kernel stopped.
    fn map_in(&self, run: Run, writable: bool) -> Result<(), Errno> {
        let mut addr = self.address_of(run.first);
        let end = addr + run.count as usize * PAGE;
        let mut attempts = 0;
        while addr < end {
            let asked = match writable {
                true => self.uffd.continue_(addr, end - addr, false),
                false => self.uffd.continue_protected(addr, end - addr),
            };
            addr += asked.done;
            attempts = if asked.done > 0 { 0 } else { attempts + 1 };
            match asked.errno {
                None => {}
                Some(libc::EEXIST) => {
                    // The page is present already, and its protection is unknown.
                    self.set_protection(addr, PAGE, !writable)?;
                    retry(|| self.uffd.wake(addr, PAGE))?;
                    addr += PAGE;
                }
                Some(libc::EAGAIN | libc::EINTR) if attempts < ATTEMPTS => {}
                Some(other) => return Err(Errno(other)),
            }
        }
        Ok(())
    }

    /// Sets or clears the protection of present pages.
    fn set_protection(&self, addr: usize, len: usize, on: bool) -> Result<(), Errno> {
        retry(|| self.uffd.write_protect(addr, len, on, false))
    }

    /// Makes the pages of a run read-only; absent ones stay absent.
    pub(super) fn protect(&mut self, run: Run) -> Result<(), Errno> {
        self.turn(run, Shown::Writable, Shown::Protected)
    }

    /// Allows writes to the readable pages of a run.
    pub(super) fn unprotect(&mut self, run: Run) -> Result<(), Errno> {
        self.turn(run, Shown::Protected, Shown::Writable)
    }

    /// Changes the pages of a run whose state is `from` to `to`, in one call for adjacent pages.
    fn turn(&mut self, run: Run, from: Shown, to: Shown) -> Result<(), Errno> {
        let mut pages = run.pages();
        while let Some(first) = pages.find(|&page| self.shown.get(page as usize) == Some(&from)) {
            let more = pages.clone().take_while(|&page| self.shown.get(page as usize) == Some(&from));
            let count = 1 + more.count() as u32;
            let addr = self.address_of(first);
            self.set_protection(addr, count as usize * PAGE, to == Shown::Protected)?;
            (first..first + count).for_each(|page| *self.shown(page) = to);
            pages = first + count..run.pages().end;
        }
        Ok(())
    }

    /// Takes pages out of view; their bytes stay.
    pub(super) fn hide(&mut self, run: Run) -> Result<(), Errno> {
        let (offset, len) = Self::range(run);
        for page in run.pages() {
            *self.shown(page) = Shown::Absent;
        }
        // SAFETY: the region's own pages, to which there are no references. The memfd keeps their bytes.
        retry(|| unsafe { map::advise(self.trapped.addr() + offset, len, Advice::DontNeed) })
    }

    /// Takes pages out of view and frees their memory: they read as zeroes from now on.
    pub(super) fn discard(&mut self, run: Run) -> Result<(), Errno> {
        self.hide(run)?;
        self.forget_twins(run)?;
        self.release(run)
    }

    /// Frees the memory of pages that are out of view.
    pub(super) fn release(&mut self, run: Run) -> Result<(), Errno> {
        for page in run.pages() {
            self.held.remove(page);
        }
        let (offset, len) = Self::range(run);
        retry(|| map::punch_hole(self.memory(), offset as u64, len as u64))
    }

    /// Evicts pages that are out of view and that no peer has pinned.
    pub(super) fn put(&self, away: &mut Away, run: Run) -> Result<(), StoreError<'static>> {
        // SAFETY: the run lies in the mapping, and no other thread or rank sees it.
        unsafe { away.write(run, self.bytes(run.first)) }
    }

    /// Brings back pages that are out of view and have no memory.
    pub(super) fn fetch(&mut self, away: &mut Away, pages: &[u32]) -> Result<(), StoreError<'static>> {
        // SAFETY: the pages lie in the mapping one after another, and no other thread or rank sees them.
        unsafe { away.read(pages, |page| self.bytes(page)) }
    }

    /// Whether a page that is out of view holds only zeroes.
    pub(super) fn is_zero(&self, page: u32) -> bool {
        static ZEROES: [u8; PAGE] = [0; PAGE];
        // SAFETY: the page lies in the mapping, and there is no reference to it.
        unsafe { copy::equal(self.bytes(page), ZEROES.as_ptr(), PAGE) }
    }

    /// Frees the memory of twins.
    pub(super) fn forget_twins(&mut self, run: Run) -> Result<(), Errno> {
        let twins = run.pages().filter(|&page| self.twinned.remove(page)).count();
        if twins == 0 {
            return Ok(());
        }
        let (offset, len) = Self::range(run);
        if let Some(first) = self.twins_at {
            return retry(|| map::punch_hole(self.memory(), first + offset as u64, len as u64));
        }
        // SAFETY: twins that are no longer needed, and there are no references to them.
        retry(|| unsafe { map::advise(self.twins.addr() + offset, len, Advice::DontNeed) })
    }

    /// Pages of memory that the region takes now: pages and twins.
    pub(super) fn pages_held(&self) -> usize {
        self.held.len() + self.twinned.len()
    }

    /// Whether a page has a twin.
    pub(super) fn has_twin(&self, page: u32) -> bool {
        self.twinned.contains(page)
    }

    /// Twins that take memory now.
    pub(super) fn twins_held(&self) -> usize {
        self.twinned.len()
    }

    pub(super) fn wake(&self, run: Run) -> Result<(), Errno> {
        let (offset, len) = Self::range(run);
        match len {
            0 => Ok(()),
            _ => retry(|| self.uffd.wake(self.trapped.addr() + offset, len)),
        }
    }

    /// Wakes all threads that wait for any page.
    pub(super) fn wake_all(&self) -> Result<(), Errno> {
        retry(|| self.uffd.wake(self.trapped.addr(), self.trapped.len()))
    }

    /// Ends all access of the program: an access ends it with SIGSEGV instead of waiting for ever.
    pub(super) fn close(&mut self) -> Result<(), Errno> {
        let (addr, len) = (self.trapped.addr(), self.trapped.len());
        self.uffd.unregister(addr, len).or_else(|error| match error {
            UffdError::Unregister { errno, .. } => Err(errno),
            _ => Ok(()),
        })?;
        // SAFETY: replaces the region's own mapping, to which there are no references, by nothing.
        retry(|| unsafe { map::replace_with_none(addr, len) })
    }

    /// Address of a page's bytes for Hanare.
    pub(super) fn bytes(&self, page: u32) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.io.addr() + page as usize * PAGE)
    }

    /// Copies a page out.
    pub(super) fn read(&self, page: u32, into: &mut [u8; PAGE]) {
        // SAFETY: the page lies in the mapping, and `into` is ours alone. A word that is being written may be torn, as a
        // racing read of it could be.
        unsafe { copy::copy(self.bytes(page), into.as_mut_ptr(), PAGE) };
    }

    /// Writes bytes into a page.
    #[inline]
    pub(super) fn write(&self, page: u32, at: usize, from: &[u8]) {
        assert!(at + from.len() <= PAGE, "a piece lies in its page");
        if let Ok(word) = <[u8; 4]>::try_from(from) {
            // Most pieces of a diff are one word, and a call for each would cost more than they do.
            // SAFETY: within the mapping as just checked; there is no reference to it.
            return unsafe { self.bytes(page).add(at).cast::<[u8; 4]>().write_volatile(word) };
        }
        // SAFETY: within the mapping as just checked; there is no reference to it.
        unsafe { copy::copy(from.as_ptr(), self.bytes(page).add(at), from.len()) };
    }

    /// Writes zeroes over a page.
    pub(super) fn clear(&self, page: u32) {
        // SAFETY: as for `write`.
        unsafe { copy::zero(self.bytes(page), PAGE) };
    }

    /// Makes the twin of a page.
    pub(super) fn make_twin(&mut self, page: u32) {
        self.twinned.insert(page);
        // SAFETY: both mappings have this length, and there is no reference to either. The page is protected or not
        // shown.
        unsafe { copy::copy(self.bytes(page), self.twin(page), PAGE) };
    }

    /// Renews the twin of a page, if they differ. Returns whether they did.
    pub(super) fn renew_twin(&self, page: u32) -> bool {
        // SAFETY: both mappings have this length, and there is no reference to either. The next comparison sees words
        // that are being written meanwhile.
        unsafe {
            let differ = !copy::equal(self.bytes(page), self.twin(page), PAGE);
            if differ {
                copy::copy(self.bytes(page), self.twin(page), PAGE);
            }
            differ
        }
    }

    /// Copies a twin out.
    pub(super) fn read_twin(&self, page: u32, into: &mut [u8; PAGE]) {
        // SAFETY: the twin lies in its mapping, and `into` is ours alone.
        unsafe { copy::copy(self.twin(page), into.as_mut_ptr(), PAGE) };
    }

    fn twin(&self, page: u32) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.twins.addr() + page as usize * PAGE)
    }

    /// Writes the words in which a page differs from its twin into the memory of a peer. Returns whether there are any.
    pub(super) fn put_changed(&self, peer: &Mapping, page: u32) -> bool {
        let theirs = Self::theirs(peer, page);
        let (mut twin, mut bytes) = ([0; PAGE], [0; PAGE]);
        self.read_twin(page, &mut twin);
        self.read(page, &mut bytes);
        diff::changed_words(&twin, &bytes, |at, word| {
            // SAFETY: `at` is a word of a page that lies in the mapping, to which there is no reference. Other ranks
            // may be writing other words of the page.
            unsafe { theirs.add(at).cast::<[u8; WORD_BYTES]>().write_volatile(word) }
        })
    }

    fn theirs(peer: &Mapping, page: u32) -> *mut u8 {
        let offset = page as usize * PAGE;
        assert!(offset + PAGE <= peer.len(), "every rank's region is as long");
        std::ptr::with_exposed_provenance_mut(peer.addr() + offset)
    }

    /// Copies a page, or its twin, from a peer's memory at its offset.
    pub(super) fn take_from(&self, peer: &Mapping, page: u32) {
        // SAFETY: both lie in mappings of one length, and there is no reference to either. Words that are being written
        // may be torn, as racing reads of them could be.
        unsafe { copy::copy(Self::theirs(peer, page), self.bytes(page), PAGE) };
    }

    /// Copies a page, or its twin, into the memory of a peer.
    pub(super) fn put_into(&self, peer: &Mapping, page: u32, of_twin: bool) {
        let from = if of_twin { self.twin(page) } else { self.bytes(page) };
        // SAFETY: as above; a twin belongs to Hanare.
        unsafe { copy::copy(from, Self::theirs(peer, page), PAGE) };
    }
}

/// Repeats an operation that the kernel asks to repeat.
fn retry(mut once: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    for _ in 0..ATTEMPTS {
        match once() {
            Err(Errno(libc::EAGAIN | libc::EINTR)) => {}
            other => return other,
        }
    }
    Err(Errno(libc::EAGAIN))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    /// The kernel's state of a page of the trapped view: whether it is present, and whether it is protected.
    fn state(region: &Region, page: u32) -> (bool, bool) {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("this process's own");
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, (region.address_of(page) / PAGE * 8) as u64).expect("an entry");
        let entry = u64::from_le_bytes(entry);
        (entry & 1 << 63 != 0, entry & 1 << 57 != 0)
    }

    /// Guards against a bug: a page that the kernel had already mapped made all pages behind it count as shown and
    /// protected.
    #[test]
    fn pages_behind_one_that_is_there_already_are_shown_too() {
        let mut region = Region::new(64 * PAGE as u64, 0, None, 0).expect("a region");
        for (first, writable) in [(0, false), (16, true)] {
            let run = Run { first, count: 16 };
            let stray = Run { first: first + 5, count: 2 };
            region.hold(run).expect("memory");
            region.map_in(stray, !writable).expect("mapped");
            region.show_all(run, writable).expect("shown");
            for page in run.pages() {
                assert_eq!(state(&region, page), (true, !writable), "page {page}");
            }
        }
        region.map_in(Run { first: 40, count: 1 }, true).expect_err("a hole is no page");
    }

    #[test]
    fn what_the_kernel_asks_to_repeat_is_repeated_and_nothing_else_is_taken_for_done() {
        let answer = |errnos: &[i32]| {
            let mut errnos = errnos.iter();
            retry(|| errnos.next().map_or(Ok(()), |&errno| Err(Errno(errno))))
        };
        assert_eq!(answer(&[libc::EAGAIN, libc::EINTR]), Ok(()));
        for errno in [libc::ENOMEM, libc::ENOENT, libc::EFAULT, libc::EEXIST, libc::EBADF] {
            assert_eq!(answer(&[libc::EAGAIN, errno]), Err(Errno(errno)));
        }
        assert_eq!(answer(&[libc::EAGAIN; ATTEMPTS]), Err(Errno(libc::EAGAIN)));
    }
}
