//! Tests of SIGSEGV mode, which traps accesses by mprotect and needs no privilege.

mod common;

use common::*;
use hanare_sys::map::{self, Prot, page_size};
use hanare_sys::signal::{self, FaultInfo, SignalError, SignalMask, Verdict};
use std::sync::atomic::{AtomicUsize, Ordering};

static START: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);
static READS: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);

/// The fault handler under test. A read fault makes the page readable, and a write fault makes it writable.
fn open_page(fault: FaultInfo) -> Verdict {
    let addr = fault.addr & !(page_size() - 1);
    if !(START.load(Ordering::Relaxed)..END.load(Ordering::Relaxed)).contains(&addr) {
        return Verdict::NotOurs;
    }
    let (counter, prot) = match fault.write {
        Some(false) => (&READS, Prot::READ),
        Some(true) | None => (&WRITES, Prot::READ_WRITE),
    };
    counter.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    match unsafe { map::protect(addr, page_size(), prot) } {
        Ok(()) => Verdict::Handled,
        Err(_) => Verdict::NotOurs,
    }
}

fn blocked_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

#[test]
fn protected_pages_open_on_touch() {
    let page = page_size();
    let mask = blocked_mask();
    let memory = near(4 * page, 1);
    START.store(memory.addr(), Ordering::Relaxed);
    END.store(memory.end(), Ordering::Relaxed);
    signal::install(libc::SIGSEGV, open_page).unwrap();
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe { map::protect(memory.addr(), memory.len(), Prot::NONE) }.unwrap();
    check(memory.addr(), 2 * page, 1);
    let traps = || (READS.load(Ordering::Relaxed), WRITES.load(Ordering::Relaxed));
    if cfg!(target_arch = "x86_64") {
        assert_eq!(traps(), (2, 0));
        write(memory.addr(), 5);
        assert_eq!(traps(), (2, 1), "a write to a page opened for reading traps again");
        write(memory.addr() + 2 * page, 6);
        assert_eq!(traps(), (2, 2), "a write to a closed page traps once");
    }
    write(memory.addr(), 5);
    write(memory.addr() + 2 * page, 6);
    assert_eq!(read(memory.addr()), 5);
    assert_eq!(read(memory.addr() + 2 * page), 6);
    assert_eq!(blocked_mask(), mask, "a handled fault leaves the signal mask as it was");

    assert_eq!(signal::install(libc::SIGTERM, open_page), Err(SignalError::NotAFaultSignal(15)));
    {
        let _outer = SignalMask::block_all();
        // These signals are never blocked. SIGKILL and SIGSTOP cannot be blocked. `SignalMask` does not block signals
        // 32 and 33, because the C library uses them.
        let passing = [libc::SIGKILL, libc::SIGSTOP, 32, 33].map(|signal| 1u64 << (signal - 1)).iter().sum::<u64>();
        assert_eq!(blocked_mask(), !passing);
        drop(SignalMask::block_all());
        assert_eq!(blocked_mask(), !passing, "guards nest");
    }
    assert_eq!(blocked_mask(), mask);
}
