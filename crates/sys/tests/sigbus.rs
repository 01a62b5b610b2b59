//! Tests of SIGBUS mode, in which the faulting thread resolves its own fault in the signal handler.

mod common;

use common::*;
use hanare_sys::map::{Mapping, page_size};
use hanare_sys::pagemap::present_pages;
use hanare_sys::signal::{self, FaultInfo, Verdict};
use hanare_sys::uffd::{CopyMode, Uffd, feature};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Pager {
    uffd: Uffd,
    far: Mapping,
    near: Mapping,
}

static PAGER: OnceLock<Pager> = OnceLock::new();
static READS: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);

fn resolve(fault: FaultInfo) -> Verdict {
    // The signal handler that calls this function must restore errno.
    // SAFETY: `__errno_location` returns the address of this thread's errno, which is always writable.
    unsafe { *libc::__errno_location() = libc::EDOM };
    let Some(pager) = PAGER.get() else {
        return Verdict::NotOurs;
    };
    let addr = fault.addr & !(page_size() - 1);
    if !(pager.far.addr()..pager.far.end()).contains(&addr) || fault.signal != libc::SIGBUS {
        return Verdict::NotOurs;
    }
    let counter = if fault.write == Some(true) { &WRITES } else { &READS };
    counter.fetch_add(1, Ordering::Relaxed);
    let src = pager.near.addr() + (addr - pager.far.addr());
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let copied = unsafe { pager.uffd.copy(addr, src, page_size(), CopyMode::default()) };
    match copied.errno {
        // With EEXIST, another thread has already installed the page.
        None | Some(libc::EEXIST) => Verdict::Handled,
        Some(_) => Verdict::NotOurs,
    }
}

#[test]
fn faults_resolve_in_the_faulting_thread() {
    let features = features();
    need!(features.sigbus, "userfaultfd with SIGBUS");
    let len = 64 * page_size();
    let uffd = Uffd::open(features.access, feature::SIGBUS).unwrap();
    let far = far(&uffd, len, MISSING);
    let (addr, pages) = (far.addr(), len / page_size());
    assert!(PAGER.set(Pager { uffd, far, near: near(len, 1) }).is_ok());
    signal::install(libc::SIGBUS, resolve).unwrap();
    assert!(signal::is_installed(libc::SIGBUS));
    assert!(!signal::is_installed(libc::SIGSEGV));

    // The read below faults. After the read, errno must be unchanged.
    // SAFETY: `__errno_location` returns the address of this thread's errno, which is always accessible.
    unsafe { *libc::__errno_location() = 1234 };
    let value = read(addr + 8);
    // SAFETY: `__errno_location` returns the address of this thread's errno, which is always accessible.
    assert_eq!(unsafe { *libc::__errno_location() }, 1234);
    assert_eq!(value, read(PAGER.get().unwrap().near.addr() + 8));
    assert_eq!((READS.load(Ordering::Relaxed), WRITES.load(Ordering::Relaxed)), (1, 0));
    write(addr + page_size(), read(PAGER.get().unwrap().near.addr() + page_size()));

    let counted = (READS.load(Ordering::Relaxed), WRITES.load(Ordering::Relaxed));
    assert_eq!(counted, (1, 1));
    assert_eq!(present_pages(addr, len).unwrap(), 2);

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| check(addr, len, 1));
        }
    });
    assert_eq!(present_pages(addr, len).unwrap(), pages);
    signal::uninstall(libc::SIGBUS).unwrap();
    assert!(!signal::is_installed(libc::SIGBUS));
}
