//! Models of the alias and foreign mappings in `crates/runtime/src/windows.rs`. An alias mapping gives far pages
//! another address. A foreign mapping is one that the program has made over far pages, which are then no longer far.

use std::rc::Rc;

use loom::thread;

use crate::span::{OS_PAGE, Span};
use crate::windows::Windows;

crate::table! {
    a_page_is_where_it_was_or_where_it_goes,
    two_alias_mappings_are_added_at_once,
    a_hole_is_for_good,
}

const BASE: usize = 0x7000_0000_0000;
const ELSEWHERE: usize = 0x5555_0000_3000;
const FOURTH: usize = BASE + 4 * OS_PAGE;

fn span(first: usize, count: usize) -> Span {
    Span { offset: first * OS_PAGE, len: count * OS_PAGE }
}

fn windows() -> Rc<Windows> {
    Rc::new(Windows::new(BASE, 8 * OS_PAGE))
}

/// While an alias mapping is added, each of its pages has its old or its new address. A page is never without an
/// address, and never returns to its old address.
fn a_page_is_where_it_was_or_where_it_goes() {
    let windows = windows();
    let adding = thread::spawn({
        let windows = Rc::clone(&windows);
        move || assert!(windows.add(ELSEWHERE, span(3, 2)))
    });
    let before = windows.offset_of(FOURTH);
    let after = windows.offset_of(ELSEWHERE + OS_PAGE);
    assert!([None, Some(4 * OS_PAGE)].contains(&before) && [None, Some(4 * OS_PAGE)].contains(&after));
    assert!(before.is_some() || after.is_some(), "the page is at no address");
    assert_eq!(windows.offset_of(BASE + OS_PAGE), Some(OS_PAGE), "another page stays where it is");
    let at = windows.whole(span(4, 1));
    assert!([Some(FOURTH), Some(ELSEWHERE + OS_PAGE)].contains(&at), "{at:?}");
    assert!(before.is_some() || at != Some(FOURTH), "the page goes back");
    adding.join().expect("no panic");
    assert_eq!((windows.offset_of(FOURTH), windows.whole(span(4, 1))), (None, Some(ELSEWHERE + OS_PAGE)));
}

/// Two alias mappings that are added at the same time get one entry each. A third mapping is refused when both entries
/// are used.
fn two_alias_mappings_are_added_at_once() {
    let windows = windows();
    let adding = thread::spawn({
        let windows = Rc::clone(&windows);
        move || assert!(windows.add(ELSEWHERE, span(3, 2)))
    });
    assert!(windows.add(ELSEWHERE + 8 * OS_PAGE, span(6, 1)));
    adding.join().expect("no panic");
    assert_eq!(windows.whole(span(3, 2)), Some(ELSEWHERE));
    assert_eq!(windows.whole(span(6, 1)), Some(ELSEWHERE + 8 * OS_PAGE));
    assert!(!windows.add(ELSEWHERE + 16 * OS_PAGE, span(7, 1)));
}

/// Foreign mappings that are recorded at the same time are all kept, and each page is counted once. A page under a
/// foreign mapping never becomes far again.
fn a_hole_is_for_good() {
    let windows = windows();
    let other = thread::spawn({
        let windows = Rc::clone(&windows);
        move || windows.puncture(span(3, 2))
    });
    let first = windows.offset_of(FOURTH);
    windows.puncture(span(2, 2));
    let next = windows.offset_of(FOURTH);
    assert!([None, Some(4 * OS_PAGE)].contains(&first) && (first.is_some() || next.is_none()), "{first:?} {next:?}");
    windows.runs(span(0, 8), |addr, part| assert_eq!(addr, BASE + part.offset));
    other.join().expect("no panic");
    for page in 0..8 {
        let offset = windows.offset_of(BASE + page * OS_PAGE);
        assert_eq!(offset, Some(page * OS_PAGE).filter(|_| !(2..5).contains(&page)));
    }
    assert_eq!(windows.hole_bytes(), 3 * OS_PAGE);
}
