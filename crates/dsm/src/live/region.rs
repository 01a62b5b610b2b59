//! The shared region of one rank. The program uses a trapped mapping of the region: a userfaultfd traps its accesses.
//! Hanare uses a second mapping.
//!
//! Both mappings map one memfd. The trapped mapping has the same address in every rank. A page there is absent,
//! write-protected or writable, as the page's state says. Hanare itself never accesses the trapped mapping. With zero
//! copy, peers on the host map the memfd too.
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
/// Number of descriptors that must be free to make the region.
const DESCRIPTORS: usize = 5;
/// Maximum number of attempts at a system call that fails with EAGAIN or EINTR.
const ATTEMPTS: usize = 1000;

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegionError {
    /// The machine has no userfaultfd that traps shared memory and the kernel's own accesses.
    #[error("this machine's userfaultfd cannot trap shared pages ({0}); 'hanare doctor' tells how to allow it")]
    Unable(&'static str),
    /// A userfaultfd call failed.
    #[error(transparent)]
    Uffd(#[from] UffdError),
    /// The kernel refused memory or a mapping.
    #[error(transparent)]
    Map(#[from] MapError),
    /// The region could not be excluded from children and core dumps.
    #[error("cannot keep shared memory from forked children: {}; free memory", std::io::Error::from_raw_os_error(.0.0))]
    Advise(Errno),
    /// The limit on the length of files is too low. It also applies to memfds.
    #[error(
        "the limit on the length of files is {limit} bytes, and shared memory takes {bytes}; raise 'ulimit -f', or set a \
             smaller HANARE_SHARED_BYTES"
    )]
    FileLimit {
        /// The limit, in bytes.
        limit: u64,
        /// The requested length, in bytes.
        bytes: u64,
    },
    /// Something else is mapped at the region's address.
    #[error(
        "the address {ADDRESS:#x}, at which every rank has the shared region, is taken in rank {rank}: {source}; \
             start the program without what maps memory there, or with a smaller HANARE_SHARED_BYTES"
    )]
    Taken {
        /// The number of this rank.
        rank: u16,
        /// The system's error.
        source: MapError,
    },
}

/// The accesses that a page of the trapped mapping allows.
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
    /// The twins of all pages, each at the offset of its page. Only pages that have had a twin use memory here.
    twins: Mapping,
    twins_at: Option<u64>,
    uffd: Uffd,
    /// The accesses allowed to each page, up to the last page that was ever shown.
    shown: Vec<Shown>,
    /// The last page that [`Self::show`] made accessible or writable, or that [`Self::show_again`] mapped. This has also
    /// woken the threads that waited for the page.
    last_shown: Option<u32>,
    /// Pages of the memfd that have memory. `twinned` holds the pages whose twins have memory.
    held: PageSet,
    twinned: PageSet,
}

impl Region {
    /// Makes a region of `bytes` bytes in a new memfd, with `more` bytes behind it. `twins_at` is the offset of the
    /// twins in the memfd. It is `None` if peers do not read twins.
    pub(super) fn new(bytes: u64, more: u64, twins_at: Option<u64>, rank: u16) -> Result<Self, RegionError> {
        // Checks that enough descriptors are free. Otherwise the probe would report that the machine lacks the
        // features.
        let spare = || map::memfd("hanare-spare", 0);
        let spares: Result<Vec<OwnedFd>, MapError> = (0..DESCRIPTORS).map(|_| spare()).collect();
        drop(spares?);
        let features = Features::probe(&Disabled::from_env().unwrap_or_default());
        if !features.minor_shmem || !features.continue_ || !features.wp {
            return Err(RegionError::Unable("it lacks minor faults, CONTINUE or write protection of shared memory"));
        }
        let wanted = feature::MINOR_SHMEM | feature::MISSING_SHMEM | feature::WP | feature::WP_HUGETLBFS_SHMEM;
        let uffd = Uffd::open(features.access, wanted)?;
        // A memfd longer than the limit would make the kernel send SIGXFSZ.
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
                // A child that inherited these mappings would write to this rank's pages without a trap.
                // SAFETY: `mapping` owns the range, and advice about forks and dumps changes no contents.
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

    /// Returns the page at an address. `None` outside the region.
    pub(super) fn page_at(&self, addr: usize) -> Option<u32> {
        let offset = addr.checked_sub(self.trapped.addr()).filter(|offset| *offset < self.trapped.len())?;
        Some((offset / PAGE) as u32)
    }

    pub(super) fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    /// Returns the descriptor number of the memfd. Peers open the memfd through `/proc`.
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

    /// Allows reads, or reads and writes, of a page of the trapped mapping. If the page allows more than before, wakes
    /// the threads that wait for it.
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

    /// Maps a shown page again, on which an access has trapped, and wakes the threads that wait for it. When the kernel
    /// reclaims memory, it unmaps pages of shared memory that were not accessed for a while. It leaves them in the memfd.
    pub(super) fn show_again(&mut self, page: u32) -> Result<(), Errno> {
        let writable = match *self.shown(page) {
            Shown::Absent => return Ok(()),
            Shown::Protected => false,
            Shown::Writable => true,
        };
        self.map_in(Run { first: page, count: 1 }, writable)?;
        self.last_shown = Some(page);
        Ok(())
    }

    /// Returns the last page that [`Self::show`] made accessible or writable since the previous call. No thread waits
    /// for that page any more.
    pub(super) fn take_last_shown(&mut self) -> Option<u32> {
        self.last_shown.take()
    }

    /// Notes that a page has memory, because its bytes were written.
    pub(super) fn came(&mut self, page: u32) {
        self.held.insert(page);
    }

    /// Allocates memory for the pages of a run that have none, because UFFDIO_CONTINUE fails on a page without memory.
    /// If memory is short, this call fails. Without this call, an access to an unallocated page would raise SIGBUS.
    pub(super) fn hold(&mut self, run: Run) -> Result<(), Errno> {
        let new = run.pages().filter(|&page| self.held.insert(page)).count();
        if new == 0 {
            return Ok(());
        }
        let (offset, len) = Self::range(run);
        retry(|| map::allocate(self.memory(), offset as u64, len as u64))
    }

    /// Makes the absent pages of a run accessible, with few system calls. Wakes the threads that wait for them.
    pub(super) fn show_all(&mut self, run: Run, writable: bool) -> Result<(), Errno> {
        self.hold(run)?;
        self.map_in(run, writable)?;
        let shown = if writable { Shown::Writable } else { Shown::Protected };
        run.pages().for_each(|page| *self.shown(page) = shown);
        Ok(())
    }

    /// Lets the kernel map absent pages of the trapped mapping, and wake the threads that wait for them. If the kernel
    /// stops early, the loop continues at the page where the kernel stopped.
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
                    // The page is present already, but its protection is unknown.
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

    /// Sets or clears the write protection of present pages.
    fn set_protection(&self, addr: usize, len: usize, on: bool) -> Result<(), Errno> {
        retry(|| self.uffd.write_protect(addr, len, on, false))
    }

    /// Makes the pages of a run read-only. Absent pages stay absent.
    pub(super) fn protect(&mut self, run: Run) -> Result<(), Errno> {
        self.turn(run, Shown::Writable, Shown::Protected)
    }

    /// Allows writes to the readable pages of a run.
    pub(super) fn unprotect(&mut self, run: Run) -> Result<(), Errno> {
        self.turn(run, Shown::Protected, Shown::Writable)
    }

    /// Changes the pages of a run whose state is `from` to `to`, with one system call for adjacent pages.
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

    /// Unmaps pages from the trapped mapping. The memfd keeps their bytes.
    pub(super) fn hide(&mut self, run: Run) -> Result<(), Errno> {
        let (offset, len) = Self::range(run);
        for page in run.pages() {
            *self.shown(page) = Shown::Absent;
        }
        // SAFETY: the range lies in `trapped`, to which no references exist. The memfd keeps its bytes.
        retry(|| unsafe { map::advise(self.trapped.addr() + offset, len, Advice::DontNeed) })
    }

    /// Unmaps pages, and frees their memory and their twins. The pages read as zeroes from now on.
    pub(super) fn discard(&mut self, run: Run) -> Result<(), Errno> {
        self.hide(run)?;
        self.forget_twins(run)?;
        self.release(run)
    }

    /// Frees the memory of pages that are absent from the trapped mapping.
    pub(super) fn release(&mut self, run: Run) -> Result<(), Errno> {
        for page in run.pages() {
            self.held.remove(page);
        }
        let (offset, len) = Self::range(run);
        retry(|| map::punch_hole(self.memory(), offset as u64, len as u64))
    }

    /// Writes the bytes of pages to the backing store. The pages must be absent from the trapped mapping, and no peer
    /// may have pinned them.
    pub(super) fn put(&self, away: &mut Away, run: Run) -> Result<(), StoreError<'static>> {
        // SAFETY: the run lies in `io`. Its pages are absent from the trapped mapping and have no pins, so no other
        // thread or rank accesses them.
        unsafe { away.write(run, self.bytes(run.first)) }
    }

    /// Reads the bytes of pages from the backing store. The pages must be absent from the trapped mapping, and have no
    /// memory.
    pub(super) fn fetch(&mut self, away: &mut Away, pages: &[u32]) -> Result<(), StoreError<'static>> {
        // SAFETY: the pages lie in `io`, where adjacent pages have adjacent addresses. They are absent from the trapped
        // mapping and have no pins, so no other thread or rank accesses them.
        unsafe { away.read(pages, |page| self.bytes(page)) }
    }

    /// Returns whether a page that is absent from the trapped mapping holds only zeroes.
    pub(super) fn is_zero(&self, page: u32) -> bool {
        static ZEROES: [u8; PAGE] = [0; PAGE];
        // SAFETY: the page lies in `io`, `ZEROES` is as long as a page, and no reference to the page exists.
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
        // SAFETY: the range lies in the private mapping `twins`, to which no references exist. Its contents are no
        // longer needed.
        retry(|| unsafe { map::advise(self.twins.addr() + offset, len, Advice::DontNeed) })
    }

    /// Returns the number of pages of memory that the region and its twins use now.
    pub(super) fn pages_held(&self) -> usize {
        self.held.len() + self.twinned.len()
    }

    /// Returns whether a page has a twin.
    pub(super) fn has_twin(&self, page: u32) -> bool {
        self.twinned.contains(page)
    }

    /// Returns the number of twins that have memory.
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

    /// Unmaps the region from the program. A later access of the program raises SIGSEGV instead of waiting for ever.
    pub(super) fn close(&mut self) -> Result<(), Errno> {
        let (addr, len) = (self.trapped.addr(), self.trapped.len());
        self.uffd.unregister(addr, len).or_else(|error| match error {
            UffdError::Unregister { errno, .. } => Err(errno),
            _ => Ok(()),
        })?;
        // SAFETY: the range is `trapped`, to which no references exist. Inaccessible memory replaces the range.
        retry(|| unsafe { map::replace_with_none(addr, len) })
    }

    /// Returns the address of a page's bytes in Hanare's own mapping.
    pub(super) fn bytes(&self, page: u32) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.io.addr() + page as usize * PAGE)
    }

    /// Copies a page's bytes to `into`.
    pub(super) fn read(&self, page: u32, into: &mut [u8; PAGE]) {
        // SAFETY: the page lies in `io`, and `into` is borrowed exclusively. If another thread writes a word during the
        // copy, the copied word may be torn, which `copy` permits.
        unsafe { copy::copy(self.bytes(page), into.as_mut_ptr(), PAGE) };
    }

    /// Writes bytes into a page.
    #[inline]
    pub(super) fn write(&self, page: u32, at: usize, from: &[u8]) {
        assert!(at + from.len() <= PAGE, "a piece lies in its page");
        if let Ok(word) = <[u8; 4]>::try_from(from) {
            // Most pieces of a diff are one word. A call of `copy` for each would cost more than the write itself.
            // SAFETY: the piece lies in its page, as the assertion checked, and no reference to the page exists.
            return unsafe { self.bytes(page).add(at).cast::<[u8; 4]>().write_volatile(word) };
        }
        // SAFETY: the piece lies in its page, as the assertion checked, and no reference to the page exists.
        unsafe { copy::copy(from.as_ptr(), self.bytes(page).add(at), from.len()) };
    }

    /// Writes zeroes over a page.
    pub(super) fn clear(&self, page: u32) {
        // SAFETY: the page lies in `io`, and no reference to it exists.
        unsafe { copy::zero(self.bytes(page), PAGE) };
    }

    /// Makes the twin of a page.
    pub(super) fn make_twin(&mut self, page: u32) {
        self.twinned.insert(page);
        // SAFETY: the page lies in `io` and its twin in `twins`, and no references to them exist. If the page is
        // watched, the program may write it during the copy. The twin may then be torn, which `copy` permits, and the
        // next comparison finds the difference.
        unsafe { copy::copy(self.bytes(page), self.twin(page), PAGE) };
    }

    /// Copies a page to its twin if the two differ. Returns whether they differed.
    pub(super) fn renew_twin(&self, page: u32) -> bool {
        // SAFETY: the page lies in `io` and its twin in `twins`, and no references to them exist. If a word is written
        // during the copy, the twin may be torn, which `copy` permits. The next comparison finds the difference.
        unsafe {
            let differ = !copy::equal(self.bytes(page), self.twin(page), PAGE);
            if differ {
                copy::copy(self.bytes(page), self.twin(page), PAGE);
            }
            differ
        }
    }

    /// Copies a twin's bytes to `into`.
    pub(super) fn read_twin(&self, page: u32, into: &mut [u8; PAGE]) {
        // SAFETY: the twin lies in `twins`, and `into` is borrowed exclusively.
        unsafe { copy::copy(self.twin(page), into.as_mut_ptr(), PAGE) };
    }

    fn twin(&self, page: u32) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.twins.addr() + page as usize * PAGE)
    }

    /// Writes into a peer's memory the words in which a page differs from its twin. Returns whether any word differs.
    pub(super) fn put_changed(&self, peer: &Mapping, page: u32) -> bool {
        let theirs = Self::theirs(peer, page);
        let (mut twin, mut bytes) = ([0; PAGE], [0; PAGE]);
        self.read_twin(page, &mut twin);
        self.read(page, &mut bytes);
        diff::changed_words(&twin, &bytes, |at, word| {
            // SAFETY: `theirs` is a page of the mapping `peer`, and `at` is the offset of a word in it. No reference to
            // the page exists. Other ranks write only other words of the page meanwhile.
            unsafe { theirs.add(at).cast::<[u8; WORD_BYTES]>().write_volatile(word) }
        })
    }

    fn theirs(peer: &Mapping, page: u32) -> *mut u8 {
        let offset = page as usize * PAGE;
        assert!(offset + PAGE <= peer.len(), "every rank's region is as long");
        std::ptr::with_exposed_provenance_mut(peer.addr() + offset)
    }

    /// Copies a page of a peer's memory to the page of the same number. `peer` may be a mapping of the peer's twins.
    pub(super) fn take_from(&self, peer: &Mapping, page: u32) {
        // SAFETY: the pages lie in `peer` and in `io`, and no references to them exist. If a word is written during the
        // copy, the copied word may be torn, which `copy` permits.
        unsafe { copy::copy(Self::theirs(peer, page), self.bytes(page), PAGE) };
    }

    /// Copies a page, or its twin, into a peer's memory.
    pub(super) fn put_into(&self, peer: &Mapping, page: u32, of_twin: bool) {
        let from = if of_twin { self.twin(page) } else { self.bytes(page) };
        // SAFETY: the pages lie in `io` or `twins`, and in `peer`. No references to them exist. If a word is written
        // during the copy, the copied word may be torn, which `copy` permits.
        unsafe { copy::copy(from, Self::theirs(peer, page), PAGE) };
    }
}

/// Repeats an operation while it fails with EAGAIN or EINTR, at most `ATTEMPTS` times.
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

    /// The kernel's state of a page of the trapped mapping: present or not, and write-protected or not.
    fn state(region: &Region, page: u32) -> (bool, bool) {
        let pagemap = std::fs::File::open("/proc/self/pagemap").expect("this process's own");
        let mut entry = [0; 8];
        pagemap.read_exact_at(&mut entry, (region.address_of(page) / PAGE * 8) as u64).expect("an entry");
        let entry = u64::from_le_bytes(entry);
        (entry & 1 << 63 != 0, entry & 1 << 57 != 0)
    }

    /// Checks that `show_all` maps the pages behind a page that the kernel has already mapped, with the right
    /// protection.
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

    /// When the kernel reclaims memory, it unmaps pages that are shown. Here MADV_PAGEOUT has it do so.
    #[test]
    fn pages_that_the_kernel_unmapped_are_shown_again() {
        const PAGEOUT: usize = 21;
        let mut region = Region::new(64 * PAGE as u64, 0, None, 0).expect("a region");
        for (page, writable) in [(3, false), (9, true)] {
            region.show(page, writable).expect("shown");
            assert_eq!(state(&region, page), (true, !writable), "page {page}");
            let args = [region.address_of(page), PAGE, PAGEOUT, 0, 0, 0];
            // SAFETY: the page lies in `trapped`, to which no references exist. The memfd keeps its bytes.
            unsafe { hanare_sys::syscall(libc::SYS_madvise, args) }.expect("advice");
            if state(&region, page).0 {
                println!("this kernel does not unmap the page");
                continue;
            }
            assert!(region.is_shown(page));
            region.show_again(page).expect("shown again");
            assert_eq!(state(&region, page), (true, !writable), "page {page}");
            region.show_again(page).expect("a page that is mapped stays so");
            assert_eq!(state(&region, page), (true, !writable), "page {page}");
        }
        region.show_again(20).expect("a page that is not shown stays absent");
        assert!(!state(&region, 20).0);
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
