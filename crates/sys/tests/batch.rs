//! Tests of batched dropping: exactly the pushed ranges lose their bytes.

mod common;

use common::*;
use hanare_sys::Errno;
use hanare_sys::batch::{BATCH_RANGES_MAX, DontNeedBatch};
use hanare_sys::map::page_size;

/// Drops every third of 300 pages, and checks the bytes of all 300 pages.
fn drops_exactly(batch: &mut DontNeedBatch) {
    let page = page_size();
    let pages = 3 * 100;
    let memory = near(pages * page, 1);
    let copy = near(pages * page, 1);
    for index in (1..pages).step_by(3) {
        assert!(batch.push(memory.addr() + index * page, page));
    }
    assert_eq!(batch.len(), 100);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe { batch.flush(|addr, _, errno| panic!("{addr:#x}: {errno}")) };
    assert!(batch.is_empty());
    for index in 0..pages {
        let (addr, twin) = (memory.addr() + index * page, copy.addr() + index * page);
        for offset in (0..page).step_by(8) {
            let expected = if index % 3 == 1 { 0 } else { read(twin + offset) };
            assert_eq!(read(addr + offset), expected, "page {index}, offset {offset}");
        }
    }
}

#[test]
fn together_in_one_call() {
    let features = features();
    need!(features.process_madvise, "process_madvise of itself");
    let mut batch = DontNeedBatch::new(true);
    drops_exactly(&mut batch);
    drops_exactly(&mut batch);
    assert!(batch.uses_process_madvise());
}

#[test]
fn one_by_one() {
    let mut batch = DontNeedBatch::new(false);
    drops_exactly(&mut batch);
    assert!(!batch.uses_process_madvise());
}

#[test]
fn adjacent_ranges_merge_and_a_full_batch_says_so() {
    let mut batch = DontNeedBatch::new(false);
    let page = page_size();
    assert!(batch.push(page, page) && batch.push(2 * page, 3 * page));
    assert_eq!(batch.len(), 1);
    for index in 1..BATCH_RANGES_MAX {
        assert!(batch.push((10 + 2 * index) * page, page));
    }
    assert!(batch.is_full());
    assert!(!batch.push(page, page));
    assert!(batch.push((11 + 2 * (BATCH_RANGES_MAX - 1)) * page, page), "merging still fits");
    batch.clear();
    assert!(batch.is_empty());
}

/// Checks a batch of three ranges, of which the kernel refuses to drop the second. The first and the third range must
/// still be dropped. The refusal must not change how later batches are dropped.
fn goes_on_behind(refused: usize, errno: i32, use_process_madvise: bool) {
    let page = page_size();
    let memory = near(4 * page, 2);
    let mut batch = DontNeedBatch::new(use_process_madvise);
    let used = batch.uses_process_madvise();
    assert!(batch.push(memory.addr(), page));
    assert!(batch.push(refused, page));
    assert!(batch.push(memory.addr() + 2 * page, page));
    let mut told = Vec::new();
    // SAFETY: the first and third range belong to this test, so no other code relies on their contents. The kernel does
    // not change the refused range.
    unsafe { batch.flush(|addr, _, errno| told.push((addr, errno))) };
    assert_eq!(told, [(refused, Errno(errno))]);
    check_zero(memory.addr(), page);
    check_zero(memory.addr() + 2 * page, page);
    assert_ne!(read(memory.addr() + page), 0);
    assert_ne!(read(memory.addr() + 3 * page), 0);
    assert_eq!(batch.uses_process_madvise(), used);
}

#[test]
fn a_hole_is_reported_and_passed_over() {
    // Nothing is mapped at this address, because the kernel never chooses such a low address for a mapping.
    const UNMAPPED: usize = 0x10000;
    goes_on_behind(UNMAPPED, libc::ENOMEM, features().process_madvise);
    goes_on_behind(UNMAPPED, libc::ENOMEM, false);
}

#[test]
fn a_locked_page_is_reported_and_passed_over() {
    let locked = near(page_size(), 3);
    // SAFETY: mlock only keeps the page in memory. It changes no contents.
    let answer = unsafe { libc::mlock(locked.as_ptr().cast(), page_size()) };
    need!(answer == 0, "memory to lock");
    goes_on_behind(locked.addr(), libc::EINVAL, features().process_madvise);
    goes_on_behind(locked.addr(), libc::EINVAL, false);
    check(locked.addr(), page_size(), 3);
}
