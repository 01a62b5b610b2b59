//! The feature bits of UFFDIO_API.

/// Write-protect faults can be trapped (`UFFD_FEATURE_PAGEFAULT_FLAG_WP`).
pub const WP: u64 = 1 << 0;
/// `fork` is reported, and the reader of the event gets a new userfaultfd for the child. This needs `CAP_SYS_PTRACE`.
pub const EVENT_FORK: u64 = 1 << 1;
/// `mremap` is reported.
pub const EVENT_REMAP: u64 = 1 << 2;
/// `madvise(MADV_DONTNEED)` and `MADV_REMOVE` are reported. The caller of madvise sleeps until the event is read.
pub const EVENT_REMOVE: u64 = 1 << 3;
/// `munmap` is reported. The caller of munmap sleeps until the event is read.
pub const EVENT_UNMAP: u64 = 1 << 6;
/// Missing faults of shared memory can be trapped.
pub const MISSING_SHMEM: u64 = 1 << 5;
/// A fault raises SIGBUS in the faulting thread and causes no event. The kernel's own accesses fail with `EFAULT`.
pub const SIGBUS: u64 = 1 << 7;
/// Fault events contain the thread id.
pub const THREAD_ID: u64 = 1 << 8;
/// Minor faults of shared memory (the page is in the page cache but not mapped) can be trapped. UFFDIO_CONTINUE
/// resolves them.
pub const MINOR_SHMEM: u64 = 1 << 10;
/// Fault addresses are not rounded down to the page.
pub const EXACT_ADDRESS: u64 = 1 << 11;
/// Write protection works on shared memory and hugetlbfs.
pub const WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
/// Write-protecting a missing anonymous page leaves a marker in its place, so that the first write traps.
pub const WP_UNPOPULATED: u64 = 1 << 13;
/// Pages can be poisoned, so that accesses raise SIGBUS (Linux 6.6).
pub const POISON: u64 = 1 << 14;
/// The kernel itself resolves write-protect faults and records the writes for PAGEMAP_SCAN (Linux 6.7).
pub const WP_ASYNC: u64 = 1 << 15;
/// Pages can be moved (Linux 6.8).
pub const MOVE: u64 = 1 << 16;
