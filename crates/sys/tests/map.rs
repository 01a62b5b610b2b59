//! Tests of mappings and of raw copies.

mod common;

use common::*;
use hanare_sys::map::{self, Advice, MapError, Mapping, Prot, page_size};
use hanare_sys::pagemap::present_pages;
use hanare_sys::{Errno, copy};

fn foreign(addr: usize, buf: &mut [u8]) -> Result<(), Errno> {
    copy::OwnMemory::open()?.read(addr, buf)
}

#[test]
fn reservations_are_aligned_empty_and_given_back() {
    for align in [page_size(), 64 << 10, 2 << 20, 1 << 30] {
        let mapping = Mapping::reserve(5000, align).unwrap();
        assert_eq!(mapping.addr() % align, 0);
        assert_eq!(mapping.len(), 5000usize.next_multiple_of(page_size()));
        assert_eq!(present_pages(mapping.addr(), mapping.len()).unwrap(), 0);
        fill(mapping.addr(), mapping.len(), 1);
        check(mapping.addr(), mapping.len(), 1);
    }
    let huge = Mapping::reserve(1 << 40, 2 << 20).unwrap();
    write(huge.end() - 8, 7);
    assert_eq!(read(huge.end() - 8), 7);
    // Other tests may map memory in this range as soon as it is unmapped. They map too little to reach its middle.
    let middle = huge.addr() + huge.len() / 2;
    let mut byte = [1];
    assert_eq!(foreign(middle, &mut byte), Ok(()));
    drop(huge);
    assert!(foreign(middle, &mut byte).is_err(), "unmapped on drop");
}

#[test]
fn senseless_shapes_are_refused() {
    assert!(matches!(Mapping::reserve(0, 4096), Err(MapError::Shape { .. })));
    assert!(matches!(Mapping::reserve(4096, 3), Err(MapError::Shape { .. })));
    assert!(matches!(Mapping::reserve(4096, 0), Err(MapError::Shape { .. })));
    assert!(matches!(Mapping::reserve(usize::MAX, 4096), Err(MapError::Shape { .. })));
    assert!(matches!(Mapping::anonymous(1 << 60), Err(MapError::Reserve { .. })));
}

#[test]
fn two_views_of_a_memfd_share_and_a_hole_reads_zero() {
    let page = page_size();
    let object = map::memfd("hanare-test", 4 * page as u64).unwrap();
    let whole = Mapping::shared(&object, 0, 4 * page).unwrap();
    let part = Mapping::shared(&object, page as u64, page).unwrap();
    fill(whole.addr(), 4 * page, 2);
    // SAFETY: both mappings belong to this test, so no other code relies on their contents.
    assert!(unsafe { copy::equal(part.as_ptr(), whole.as_ptr().add(page), page) });
    map::punch_hole(&object, page as u64, page as u64).unwrap();
    check_zero(part.addr(), page);
    check_zero(whole.addr() + page, page);
    assert_ne!(read(whole.addr()), 0);
    assert_ne!(read(whole.addr() + 2 * page), 0);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe { map::advise(whole.addr(), page, Advice::Remove) }.unwrap();
    check_zero(whole.addr(), page);
}

/// Every process of the same user can open a memfd through `/proc`. If it could shorten one, the readers of the mapping
/// would end by SIGBUS.
#[test]
fn no_process_can_change_the_length_of_a_memfd() {
    use rustix::io::Errno;
    use std::os::fd::AsRawFd;
    let page = page_size() as u64;
    let object = map::memfd("hanare-test", 4 * page).unwrap();
    assert!(map::has_sealed_length(&object));
    let mapping = Mapping::shared(&object, 0, 4 * page as usize).unwrap();
    fill(mapping.addr(), mapping.len(), 5);
    let path = format!("/proc/self/fd/{}", object.as_raw_fd());
    let stranger = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    for len in [0, page, 4 * page - 1, 4 * page + 1, 8 * page] {
        assert_eq!(rustix::fs::ftruncate(&stranger, len), Err(Errno::PERM), "to {len} bytes");
    }
    assert!(std::fs::File::options().write(true).truncate(true).open(&path).is_err());
    check(mapping.addr(), mapping.len(), 5);
    let unsealed = rustix::fs::memfd_create("hanare-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert!(
        !map::has_sealed_length(&unsealed) && !map::has_sealed_length(std::fs::File::open("/proc/self/exe").unwrap())
    );
}

#[test]
fn copies_zeroes_and_comparisons_touch_their_range_only() {
    let page = page_size();
    let (a, b) = (near(2 * page, 3), near(2 * page, 4));
    let (edge, len) = (24, page);
    // SAFETY: both mappings belong to this test and are longer than the copied bytes, so every access stays inside
    // them.
    unsafe {
        let (source, target) = (a.as_ptr().cast_const().add(edge), b.as_ptr().add(edge));
        assert!(!copy::equal(source, target, len));
        copy::copy(source, target, len);
        assert!(copy::equal(source, target, len));
        assert!(!copy::equal(source, target, len + 8));
        assert!(!copy::equal(source.sub(8), target.sub(8), len));
        copy::zero(target, len);
    }
    check_zero(b.addr() + edge, len);
    assert_ne!(read(b.addr() + edge - 8), 0);
    assert_ne!(read(b.addr() + edge + len), 0);
}

#[test]
fn foreign_reads_see_behind_prot_none() {
    let page = page_size();
    let memory = near(2 * page, 5);
    let expected: Vec<u8> = (0..2 * page / 8).flat_map(|i| read(memory.addr() + i * 8).to_ne_bytes()).collect();
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe { map::protect(memory.addr(), 2 * page, Prot::NONE) }.unwrap();
    let mut seen = vec![0; 2 * page];
    foreign(memory.addr(), &mut seen).unwrap();
    assert_eq!(seen, expected);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe { map::protect(memory.addr(), 2 * page, Prot::READ) }.unwrap();
    check(memory.addr(), 2 * page, 5);
}

#[test]
fn replaced_and_advised_ranges_lose_their_pages() {
    let page = page_size();
    let memory = near(4 * page, 6);
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    unsafe {
        map::replace_with_none(memory.addr() + page, page).unwrap();
        map::advise(memory.addr() + 2 * page, page, Advice::DontNeed).unwrap();
        map::advise(memory.addr(), 4 * page, Advice::DontFork).unwrap();
        map::advise(memory.addr(), 4 * page, Advice::DontDump).unwrap();
    }
    assert_eq!(present_pages(memory.addr(), 4 * page).unwrap(), 2);
    check_zero(memory.addr() + 2 * page, page);
    assert_ne!(read(memory.addr()), 0);
    assert_ne!(read(memory.addr() + 3 * page), 0);
    let mut seen = [1; 8];
    foreign(memory.addr() + page, &mut seen).unwrap();
    assert_eq!(seen, [0; 8]);
}

#[test]
fn populated_memory_is_present_before_the_first_touch() {
    let memory = Mapping::reserve(64 << 10, page_size()).unwrap();
    // SAFETY: the mapping belongs to this test, so no other code relies on its contents.
    match unsafe { map::advise(memory.addr(), memory.len(), Advice::PopulateWrite) } {
        Err(errno) if errno.0 == libc::EINVAL => println!("skipped: no MADV_POPULATE_WRITE"),
        result => {
            result.unwrap();
            let pages = memory.len() / page_size();
            assert_eq!(present_pages(memory.addr(), memory.len()).unwrap(), pages);
        }
    }
}

#[test]
fn a_leaked_mapping_stays() {
    let len = page_size();
    let addr = near(len, 7).leak();
    check(addr, len, 7);
    let none = Mapping::reserve_none(len).unwrap();
    let mut byte = [1];
    foreign(none.addr(), &mut byte).unwrap();
    assert_eq!(byte, [0]);
}
