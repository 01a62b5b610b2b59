//! Threads of this process: their ids, their CPUs, their scheduling and their number.

mod place;
mod watch;

pub use place::place_of;
pub use watch::{EndWatch, MemoryWatch};

use crate::descriptors;
use crate::futex::LockCell;
use crate::raw::{self, Errno};
use rustix::fs::{Mode, OFlags};
use rustix::thread::CpuSet;
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// Returns the kernel's id of the calling thread.
#[must_use]
pub fn gettid() -> i32 {
    own_id(libc::SYS_gettid)
}

/// Makes a call that returns an id of the caller. It goes through [`raw::syscall`], because the fault path makes it.
fn own_id(number: libc::c_long) -> i32 {
    // SAFETY: getpid and gettid take no arguments.
    let id = unsafe { raw::syscall(number, [0; 6]) };
    // The kernel never refuses these two calls.
    id.map_or(0, |id| id as i32)
}

/// Returns the effective capabilities of a thread, one bit each. 0 stands for the calling thread. Returns `None` if there
/// is no such thread.
#[must_use]
pub fn capabilities(thread: i32) -> Option<u64> {
    const VERSION_3: u32 = 0x2008_0522;
    let (head, mut sets) = ([VERSION_3, thread as u32], [[0_u32; 3]; 2]);
    let args = [head.as_ptr() as usize, sets.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: `head` has the version and the thread, and `sets` has room for the two records of this version.
    unsafe { raw::syscall(libc::SYS_capget, args) }.ok()?;
    Some(u64::from(sets[0][0]) | u64::from(sets[1][0]) << 32)
}

/// The CPUs that the user allows this process, for example by taskset or a batch system. The first thread that changes
/// its CPUs stores the user's CPUs here before the change. `None` before the first such change.
static ALLOWED: LockCell<Option<CpuSet>> = LockCell::new(None);

/// Returns the kernel's id of the first thread of this process. The process has the same id.
#[must_use]
pub fn first() -> i32 {
    own_id(libc::SYS_getpid)
}

/// Returns the CPUs that the user allows this process. The first call reads and stores them.
fn allowed() -> Result<CpuSet, Errno> {
    let mut allowed = ALLOWED.lock();
    if let Some(set) = *allowed {
        return Ok(set);
    }
    let set = rustix::thread::sched_getaffinity(None)?;
    *allowed = Some(set);
    Ok(set)
}

/// Restricts the calling thread to the given CPUs.
///
/// # Errors
/// `EINVAL` if none of these CPUs exists, or if a number in `cpus` is above 1023.
pub fn set_affinity(cpus: &[usize]) -> Result<(), Errno> {
    allowed()?;
    let mut set = CpuSet::new();
    for &cpu in cpus {
        if cpu >= CpuSet::MAX_CPU {
            return Err(Errno(libc::EINVAL));
        }
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set).map_err(Errno::from)
}

/// Lets the calling thread run on every CPU that the user allows this process, for example by taskset.
///
/// # Errors
/// The kernel's error.
pub fn set_affinity_all() -> Result<(), Errno> {
    rustix::thread::sched_setaffinity(None, &allowed()?).map_err(Errno::from)
}

/// Sets the calling thread's scheduling policy: the real-time policy SCHED_FIFO if `first` is set, else SCHED_OTHER. A
/// thread with SCHED_FIFO runs before every ordinary thread whenever it is ready. Returns `false` if the kernel
/// refuses, for example if the process has neither CAP_SYS_NICE nor a sufficient RLIMIT_RTPRIO.
#[must_use]
pub fn set_first(first: bool) -> bool {
    let policy = if first { libc::SCHED_FIFO } else { libc::SCHED_OTHER } | libc::SCHED_RESET_ON_FORK;
    let param = libc::sched_param { sched_priority: i32::from(first) };
    // SAFETY: the kernel only reads `param`, a local struct. 0 stands for the calling thread.
    unsafe { libc::sched_setscheduler(0, policy, &raw const param) == 0 }
}

/// The shortest time slice that the kernel grants, in nanoseconds.
const SLICE_MIN_NS: u64 = 100_000;

/// Asks the scheduler for the shortest time slices. A waking thread with short slices can run before a computing thread
/// has used up its own slice. This needs no privilege. Returns `false` if the kernel refuses. The request has no effect
/// before Linux 6.12.
#[must_use]
pub fn set_prompt() -> bool {
    // The kernel's `struct sched_attr` with the fields of its first version.
    #[repr(C)]
    struct Attr {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime_ns: u64,
        deadline_ns: u64,
        period_ns: u64,
    }
    // SAFETY: `getpriority` takes and returns only integers. 0 stands for the calling thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attr = Attr {
        size: size_of::<Attr>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime_ns: SLICE_MIN_NS,
        deadline_ns: 0,
        period_ns: 0,
    };
    // SAFETY: the kernel only reads `attr`, a local struct that contains its own size.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) == 0 }
}

/// Marks the calling thread, and threads that it starts, as computing threads (SCHED_BATCH). A waking batch thread does
/// not preempt the thread that woke it. This needs no privilege. Returns `false` if the thread does not have the
/// ordinary policy (SCHED_OTHER).
#[must_use]
pub fn set_patient() -> bool {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: `sched_getscheduler` takes and returns only integers. 0 stands for the calling thread.
    let is_ordinary = unsafe { libc::sched_getscheduler(0) == libc::SCHED_OTHER };
    // SAFETY: the kernel only reads `param`, a local struct.
    is_ordinary && unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const param) == 0 }
}

/// Sets the lowest priority (nice 19) for the calling thread. The thread then hardly runs while another thread wants
/// its CPU. Returns `false` if the kernel refuses.
#[must_use]
pub fn set_last() -> bool {
    // Linux keeps a nice value for each thread, and 0 stands for the calling thread.
    // SAFETY: `setpriority` takes and returns only integers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) == 0 }
}

/// A guard that restricts another thread of this process to one CPU.
///
/// Dropping the guard restores the thread's previous CPUs. The caller must drop the guard before the thread runs.
/// Otherwise the thread, and all threads and children that it starts, are restricted to one CPU.
#[derive(Debug)]
pub struct Confined {
    tid: rustix::process::Pid,
    before: CpuSet,
    only: CpuSet,
}

impl Confined {
    /// Restricts thread `tid` to `cpu`. Returns `None` if the thread may not run on `cpu`, if it may run only on `cpu`
    /// already, or if the kernel refuses. Allocation-free.
    #[must_use]
    pub fn to(tid: i32, cpu: usize) -> Option<Self> {
        let tid = rustix::process::Pid::from_raw(tid)?;
        let before = rustix::thread::sched_getaffinity(Some(tid)).ok()?;
        if cpu >= CpuSet::MAX_CPU || !before.is_set(cpu) || before.count() < 2 {
            return None;
        }
        let mut only = CpuSet::new();
        only.set(cpu);
        rustix::thread::sched_setaffinity(Some(tid), &only).ok()?;
        Some(Self { tid, before, only })
    }
}

impl Drop for Confined {
    fn drop(&mut self) {
        // The program, or another process, may have chosen other CPUs meanwhile. These stay.
        if rustix::thread::sched_getaffinity(Some(self.tid)).is_ok_and(|now| now == self.only) {
            // Ignored: the call fails if the thread has ended. The call also fails if another process has meanwhile
            // forbidden all the previous CPUs. In this case, the kernel has already moved the thread.
            let _ = rustix::thread::sched_setaffinity(Some(self.tid), &self.before);
        }
    }
}

/// Returns the number of CPUs that the user allows this process, at least 1.
#[must_use]
pub fn cpus_allowed() -> usize {
    allowed().map_or(1, |set| (set.count() as usize).max(1))
}

/// Restricts the calling thread, and threads that it starts from now on, to one share of the CPUs that the user allows
/// this process. These CPUs are divided into `shares` shares of nearly equal size. `share` is the number of the share,
/// from 0.
///
/// # Errors
/// `EINVAL` if there are fewer CPUs than shares, or if `share` is not below `shares`. Otherwise the kernel's error.
pub fn set_affinity_share(share: usize, shares: usize) -> Result<(), Errno> {
    let set = allowed()?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
    if share >= shares || cpus.len() < shares {
        return Err(Errno(libc::EINVAL));
    }
    set_affinity(&cpus[share * cpus.len() / shares..(share + 1) * cpus.len() / shares])
}

/// Returns the CPU on which the calling thread runs at this moment.
#[must_use]
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// Returns the CPU on which thread `tid` of this process last ran. Returns `None` if there is no such thread.
/// Allocation-free. Opening a file is most of the cost, so keep a [`CpuWatch`] for frequent calls.
#[must_use]
pub fn cpu_of(tid: i32) -> Option<usize> {
    CpuWatch::open(tid)?.cpu()
}

/// A reference to the memory in which the kernel stores the CPU of one thread: the thread's restartable-sequences area.
/// The C library registers this area (from glibc 2.35 on). The kernel updates the area before the thread returns from
/// the kernel to the program.
#[derive(Clone, Copy, Debug)]
pub struct CpuCell {
    tid: i32,
    cpu: &'static AtomicU32,
}

impl CpuCell {
    /// Returns the cell of the calling thread, which must be the first thread of its process. The areas of other
    /// threads are freed when these threads end. Returns `None` for any other thread, or if the C library registers no
    /// area.
    #[must_use]
    pub fn of_first_thread() -> Option<Self> {
        let tid = gettid();
        if tid != rustix::process::getpid().as_raw_nonzero().get() {
            return None;
        }
        // SAFETY: `dlsym` gets terminated names. If the C library defines these symbols, both are integers that live as
        // long as the process.
        let (offset, size) = unsafe {
            (
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<isize>().as_ref()?,
                libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()).cast::<u32>().as_ref()?,
            )
        };
        if *size < 8 {
            return None;
        }
        // SAFETY: `*offset` leads to the thread's `struct rseq`, which begins with two aligned 32-bit CPU numbers. The
        // first thread's area is never freed. This code only reads the second number, atomically.
        let cpu = unsafe { &*thread_pointer().wrapping_offset(*offset).wrapping_add(4).cast::<AtomicU32>() };
        Some(Self { tid, cpu })
    }

    /// Returns the CPU that the kernel last stored for thread `tid`. Returns `None` if the cell belongs to another
    /// thread, or if the area is not registered.
    #[must_use]
    pub fn cpu(&self, tid: i32) -> Option<usize> {
        let cpu = self.cpu.load(Ordering::Relaxed);
        // If the area is not registered, it contains a negative number, which is above this maximum as an unsigned
        // number.
        (tid == self.tid && cpu < 1 << 16).then_some(cpu as usize)
    }
}

/// Returns the base address of the calling thread's thread-local storage.
fn thread_pointer() -> *mut u8 {
    let pointer: *mut u8;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction only reads the first word of the thread control block. By the ABI, this word is always
    // mapped and contains the thread pointer.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the instruction only reads the thread pointer register, which user code may read.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem, preserves_flags));
    }
    pointer
}

/// Reports repeatedly on which CPU one thread of this process last ran.
#[derive(Debug)]
pub struct CpuWatch {
    stat: OwnedFd,
}

impl CpuWatch {
    /// Opens a watch of thread `tid`. Returns `None` if there is no such thread. Allocation-free.
    #[must_use]
    pub fn open(tid: i32) -> Option<Self> {
        let mut path = [0u8; 64];
        write!(&mut path[..], "/proc/self/task/{tid}/stat\0").ok()?;
        let path = std::ffi::CStr::from_bytes_until_nul(&path).ok()?;
        let stat = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        Some(Self { stat: descriptors::keep(stat) })
    }

    /// Returns the CPU on which the thread last ran. Returns `None` if the thread has ended. Allocation-free.
    #[must_use]
    pub fn cpu(&self) -> Option<usize> {
        let mut text = [0u8; 1024];
        let len = rustix::io::pread(&self.stat, &mut text, 0).ok()?;
        parse_stat_cpu(&text[..len])
    }
}

/// Returns the CPU in a line of a `stat` file: field 39 (`processor`), see `proc_pid_stat(5)`.
fn parse_stat_cpu(stat: &[u8]) -> Option<usize> {
    std::str::from_utf8(stat_field(stat, 39)?).ok()?.trim_end().parse().ok()
}

/// Returns the field with this number in a line of a `stat` file. `number` must be at least 3. The name in field 2 may
/// contain spaces and parentheses, so the function starts to count after the last parenthesis.
fn stat_field(stat: &[u8], number: usize) -> Option<&[u8]> {
    let behind_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    stat[behind_name..].split(|&byte| byte == b' ').filter(|field| !field.is_empty()).nth(number - 3)
}

/// The descriptor of `/proc/self/task` that [`count`] keeps open, or -1. [`count`] opens the directory again after a
/// fork, if the descriptor is closed, or if its number now belongs to another file.
static TASK_FD: AtomicI32 = AtomicI32::new(-1);
/// The id of the process that opened the descriptor in `TASK_FD`.
static TASK_PID: AtomicI32 = AtomicI32::new(0);
/// The inode of the directory behind `TASK_FD`.
static TASK_INODE: AtomicU64 = AtomicU64::new(0);

/// Returns the number of threads of this process, at least 1. Makes two short system calls and allocates nothing.
/// Returns `usize::MAX` if the number is unknown. A small number could make a caller believe that its thread is the
/// only one.
#[must_use]
pub fn count() -> usize {
    count_by_kept_fd().or_else(count_by_new_fd).unwrap_or(usize::MAX)
}

fn count_by_kept_fd() -> Option<usize> {
    let fd = TASK_FD.load(Ordering::Acquire);
    if fd < 0 || TASK_PID.load(Ordering::Relaxed) != own_id(libc::SYS_getpid) {
        return None;
    }
    // If the program has closed the descriptor, or opened another file with this number, fstat fails or the inode
    // differs.
    let stat = stat_of(fd)?;
    (stat.st_ino == TASK_INODE.load(Ordering::Relaxed)).then(|| threads_of(stat.st_nlink))
}

/// Counts the threads by opening the task directory again, and keeps the new descriptor for later calls. Then closes
/// the previously kept descriptor if it still belongs to Hanare. In a forked child, this is the descriptor inherited
/// from the parent. If two threads run this function at the same time, the kept values may not match, and the next call
/// opens the directory again.
fn count_by_new_fd() -> Option<usize> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(c"/proc/self/task", flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&fd).ok()?;
    let inode = TASK_INODE.swap(stat.st_ino, Ordering::Relaxed);
    TASK_PID.store(own_id(libc::SYS_getpid), Ordering::Relaxed);
    let before = TASK_FD.swap(descriptors::keep(fd).into_raw_fd(), Ordering::AcqRel);
    if descriptors::forget(before) && inode_of(before) == Some(inode) {
        // Ignored: the kernel closes the descriptor in any case.
        // SAFETY: `before` is an open descriptor of Hanare. Only this thread took it out of `TASK_FD` and out of the
        // record, so it has no other owner.
        drop(unsafe { OwnedFd::from_raw_fd(before) });
    }
    Some(threads_of(stat.st_nlink))
}

fn inode_of(fd: RawFd) -> Option<u64> {
    stat_of(fd).map(|stat| stat.st_ino)
}

/// Returns the state of an open descriptor (fstat). Returns `None` if it is not open. The call goes through
/// [`raw::syscall`], because the fault path makes it: in the program's thread, other calls would be trapped.
fn stat_of(fd: RawFd) -> Option<libc::stat> {
    let mut stat = std::mem::MaybeUninit::<libc::stat>::uninit();
    let args = [fd as usize, stat.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel writes a struct stat, and nothing if it refuses.
    unsafe { raw::syscall(libc::SYS_fstat, args).ok().map(|_| stat.assume_init()) }
}

/// Converts the link count of the task directory into the number of threads. The count is the number of threads plus 2.
fn threads_of(links: impl Into<u64>) -> usize {
    (links.into().saturating_sub(2) as usize).max(1)
}

/// The address of the C library's count of threads. The C library ends the process when the last counted thread ends.
/// Null before the first call of [`find_counted`], or if the C library does not export the count.
static COUNTED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// Finds the C library's count of threads by a name that it exports for debuggers. A thread must call this function
/// before it starts another thread that makes an [`Uncounted`]. The new thread cannot make the lookup itself, because
/// the lookup takes the dynamic linker's lock. A thread that waits for the new thread may hold this lock.
pub fn find_counted() {
    if COUNTED.load(Ordering::Acquire).is_null() {
        // SAFETY: `dlsym` gets a terminated name and only looks it up.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__nptl_nthreads".as_ptr()) };
        COUNTED.store(found.cast(), Ordering::Release);
    }
}

/// A guard that removes the calling thread from the C library's count of threads. While the guard lives, the C library
/// does not wait for this thread when it decides whether to end the process.
#[derive(Debug)]
pub struct Uncounted(Option<&'static AtomicU32>);

impl Uncounted {
    /// Removes the calling thread from the count. Until this function returns, another counted thread must exist.
    #[must_use]
    #[allow(clippy::new_without_default)] // it changes what the process counts
    pub fn new() -> Self {
        // SAFETY: `COUNTED` is null or the address of an aligned 32-bit number in the C library, which is never
        // unloaded. The C library changes this number only atomically.
        let counted = unsafe { COUNTED.load(Ordering::Acquire).as_ref() };
        // The count must not become zero. Otherwise the C library would end the process when this thread ends.
        let less = |count: u32| count.checked_sub(1).filter(|&left| left > 0);
        Self(counted.filter(|counted| counted.fetch_update(Ordering::AcqRel, Ordering::Relaxed, less).is_ok()))
    }
}

impl Drop for Uncounted {
    fn drop(&mut self) {
        if let Some(counted) = self.0 {
            counted.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Returns field 52 (`exit_code`) of a stat line, see `proc_pid_stat(5)`. Returns `None` if the thread has not ended.
fn ended_with(stat: &[u8]) -> Option<i32> {
    let state = stat_field(stat, 3)?;
    if !matches!(state, b"Z" | b"X") {
        return None;
    }
    std::str::from_utf8(stat_field(stat, 52)?).ok()?.trim_end().parse().ok()
}

/// Sets the calling thread's name for `ps -L` and `top -H`. If the name is longer than 15 bytes, only its first 15
/// bytes are used.
pub fn set_name(name: &str) {
    let mut bytes = [0u8; 16];
    let len = name.len().min(15);
    bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
    if let Ok(name) = std::ffi::CStr::from_bytes_until_nul(&bytes) {
        // Ignored: a wrong name does no harm, because no code depends on it.
        let _ = rustix::thread::set_name(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cell_of_another_thread_is_refused() {
        // The test harness runs each test in a new thread, never in the first thread.
        assert!(CpuCell::of_first_thread().is_none());
    }

    #[test]
    fn a_confined_thread_gets_back_what_it_was_allowed() {
        let before = rustix::thread::sched_getaffinity(None).unwrap();
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| before.is_set(cpu)).unwrap();
        let confined = Confined::to(gettid(), cpu);
        assert_eq!(confined.is_some(), before.count() > 1);
        let meanwhile = rustix::thread::sched_getaffinity(None).unwrap();
        assert!(meanwhile.is_set(cpu) && meanwhile.count() == 1);
        drop(confined);
        assert!(rustix::thread::sched_getaffinity(None).unwrap() == before);
    }

    #[test]
    fn what_has_ended_says_how() {
        let line = |state: &str| {
            let fields: Vec<String> = (4..52).map(|field| field.to_string()).collect();
            format!("77 (a) Z) {state} {} 1792\n", fields.join(" "))
        };
        assert_eq!(ended_with(line("Z").as_bytes()), Some(7 << 8));
        assert_eq!(ended_with(line("S").as_bytes()), None);
        assert_eq!(EndWatch::open().unwrap().status(), None);
    }

    #[test]
    fn an_uncounted_thread_is_counted_again() {
        find_counted();
        // SAFETY: `COUNTED` is null or the address of the C library's count, which is never unmapped.
        let Some(counted) = (unsafe { COUNTED.load(Ordering::Acquire).as_ref() }) else {
            println!("skipped: this C library does not say how many threads it counts");
            return;
        };
        let changed = || {
            let before = counted.load(Ordering::Relaxed);
            let uncounted = Uncounted::new();
            let during = counted.load(Ordering::Relaxed);
            drop(uncounted);
            (during + 1, counted.load(Ordering::Relaxed)) == (before, before)
        };
        // Other tests may start threads at the same time and change the count. So one success in 1000 attempts is
        // enough.
        assert!((0..1000).any(|_| changed()));
    }

    #[test]
    fn a_thread_name_with_spaces_and_parentheses_does_not_shift_fields() {
        let mut line = String::from("77 (a) b (c) S");
        for field in 4..=52 {
            line.push_str(&format!(" {field}"));
        }
        assert_eq!(parse_stat_cpu(line.as_bytes()), Some(39));
        assert_eq!(parse_stat_cpu(b"77 (short) S 1 2"), None);
        assert_eq!(parse_stat_cpu(b""), None);
    }
}
