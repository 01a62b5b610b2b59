//! Tests that find written pages by asynchronous write protection and PAGEMAP_SCAN.

mod common;

use common::*;
use hanare_sys::map::{Mapping, page_size};
use hanare_sys::pagemap::{Pagemap, PagemapError, Region, present_pages};
use hanare_sys::uffd::{CopyMode, MoveMode, Uffd, feature};

fn page_list(regions: &[Region], base: usize) -> Vec<usize> {
    let page = page_size();
    regions
        .iter()
        .flat_map(|region| (region.start as usize..region.end as usize).step_by(page))
        .map(|addr| (addr - base) / page)
        .collect()
}

/// Makes a region of `pages` pages under asynchronous write protection. Installs the pages with the numbers in
/// `present` by COPY. The other pages are missing.
fn protected(uffd: &Uffd, pages: usize, present: std::ops::Range<usize>) -> Mapping {
    let page = page_size();
    let far = far(uffd, pages * page, MISSING_WP);
    let source = near(pages * page, 1);
    let mode = CopyMode { wp: true, dontwake: false };
    for index in present {
        let (dst, src) = (far.addr() + index * page, source.addr() + index * page);
        // SAFETY: both mappings belong to this test, so no other code relies on their contents.
        assert!(unsafe { uffd.copy(dst, src, page, mode) }.is_ok());
    }
    far
}

#[test]
fn exactly_the_written_pages_are_reported_and_protected_again() {
    let features = features();
    need!(features.pagemap_scan, "PAGEMAP_SCAN");
    let uffd = Uffd::open(features.access, feature::WP | feature::WP_ASYNC).unwrap();
    let far = protected(&uffd, 16, 0..12);
    let page = page_size();
    let pagemap = Pagemap::open().unwrap();
    let scan = |wp_matching| {
        let mut out = [Region::EMPTY; 16];
        let scan = pagemap.scan_written(far.addr(), far.end(), wp_matching, &mut out).unwrap();
        assert_eq!(scan.walk_end, far.end());
        page_list(&out[..scan.regions], far.addr())
    };
    assert_eq!(scan(false), [0usize; 0], "a page copied write-protected is clean");
    for index in [1, 4, 5, 11] {
        write(far.addr() + index * page, 1);
    }
    assert_eq!(scan(false), [1, 4, 5, 11]);
    assert_eq!(scan(true), [1, 4, 5, 11]);
    assert_eq!(scan(true), [0usize; 0]);
    write(far.addr() + 5 * page, 2);
    assert_eq!(scan(true), [5]);
    assert_eq!(read(far.addr() + 5 * page), 2);
    assert_eq!(present_pages(far.addr(), far.len()).unwrap(), 12);
}

#[test]
fn a_full_output_tells_where_to_go_on() {
    let features = features();
    need!(features.pagemap_scan, "PAGEMAP_SCAN");
    let uffd = Uffd::open(features.access, feature::WP | feature::WP_ASYNC).unwrap();
    let far = protected(&uffd, 8, 0..8);
    let pagemap = Pagemap::open().unwrap();
    for index in [0, 2, 4, 6] {
        write(far.addr() + index * page_size(), 1);
    }
    let mut found = Vec::new();
    let mut start = far.addr();
    while start < far.end() {
        let mut out = [Region::EMPTY; 1];
        let scan = pagemap.scan_written(start, far.end(), true, &mut out).unwrap();
        found.extend(page_list(&out[..scan.regions], far.addr()));
        assert!(scan.walk_end > start);
        start = scan.walk_end;
    }
    assert_eq!(found, [0, 2, 4, 6]);
}

/// Checks that a scan leaves no markers in the places of missing pages. The kernel's fast path would leave such
/// markers, and a later MOVE to these places would fail with EEXIST.
#[test]
fn scanning_leaves_missing_pages_free_for_move() {
    let features = features();
    need!(features.pagemap_scan && features.move_, "PAGEMAP_SCAN with UFFDIO_MOVE");
    let bits = feature::WP | feature::WP_ASYNC | feature::MOVE;
    let uffd = Uffd::open(features.access, bits).unwrap();
    let far = protected(&uffd, 4, 0..2);
    let frame = near(page_size(), 3);
    let mut out = [Region::EMPTY; 4];
    let pagemap = Pagemap::open().unwrap();
    let scan = pagemap.scan_written(far.addr(), far.end(), true, &mut out).unwrap();
    assert_eq!(scan.regions, 0);
    let dst = far.addr() + 3 * page_size();
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    let moved = unsafe { uffd.move_pages(dst, frame.addr(), page_size(), MoveMode::default()) };
    assert!(moved.is_ok(), "{moved:?}");
    check(dst, page_size(), 3);
    let scan = pagemap.scan_written(far.addr(), far.end(), true, &mut out).unwrap();
    assert_eq!(page_list(&out[..scan.regions], far.addr()), [3], "a moved page counts as written");
}

#[test]
fn memory_that_is_not_registered_is_refused() {
    let features = features();
    need!(features.pagemap_scan, "PAGEMAP_SCAN");
    let memory = near(page_size(), 1);
    let mut out = [Region::EMPTY; 1];
    let error = Pagemap::open().unwrap().scan_written(memory.addr(), memory.end(), false, &mut out);
    assert!(matches!(error, Err(PagemapError::Scan { errno, .. }) if errno.0 == libc::EPERM), "{error:?}");
}

#[test]
fn present_pages_are_counted_across_read_chunks() {
    let page = page_size();
    let memory = Mapping::reserve(1500 * page, page).unwrap();
    assert_eq!(present_pages(memory.addr(), memory.len()).unwrap(), 0);
    for index in [0, 511, 512, 1499] {
        write(memory.addr() + index * page, 1);
    }
    assert_eq!(present_pages(memory.addr(), memory.len()).unwrap(), 4);
    assert_eq!(present_pages(memory.addr() + page, 511 * page).unwrap(), 1);
}

#[test]
fn memory_is_absent_until_one_of_its_pages_is_accessed() {
    let features = features();
    need!(features.pagemap_scan, "PAGEMAP_SCAN");
    let (page, pagemap) = (page_size(), Pagemap::open().unwrap());
    let memory = Mapping::reserve(1500 * page, page).unwrap();
    let is_absent = |first, count| {
        let start = memory.addr() + first * page;
        pagemap.is_absent(start, start + count * page).unwrap()
    };
    assert!(is_absent(0, 1500));
    write(memory.addr() + 1499 * page, 1);
    assert!(!is_absent(0, 1500));
    assert!(is_absent(0, 1499));
    assert!(!is_absent(1499, 1));
}
