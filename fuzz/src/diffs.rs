//! The target for diffs of shared pages. An input is either read as a diff, or split into a page and its twin.

use hanare_dsm::diff::{self, Differ};

use crate::first;
use crate::memory::within;

/// Number of page sizes that are tried. The first size is 32 bytes, and each further size is twice the size before.
const DOUBLINGS: u8 = 8;
/// Bit of an input's first byte. If it is set, the rest of the input is a page and its twin. Otherwise the rest is a
/// diff.
const TWO_PAGES: u8 = 0x80;

pub(crate) fn run(data: &[u8]) {
    let Some((how, rest)) = first(data) else { return };
    let page_bytes = 32 << (how % DOUBLINGS);
    if how & TWO_PAGES == 0 {
        within(rest.len() + page_bytes, 8, 16 << 10, || read(rest, page_bytes));
    } else {
        there_and_back(rest, page_bytes);
    }
}

/// Reads any bytes as a diff of a page, and checks that `walk`, `check` and `apply` agree about them.
fn read(diff: &[u8], page_bytes: usize) {
    let before: Vec<u8> = (0..page_bytes).map(|at| at as u8 ^ 0xa5).collect();
    let mut page = before.clone();
    let (mut pieces, mut end) = (0_usize, 0);
    let walked = diff::walk(diff, page_bytes, |at, bytes| {
        assert!(at >= end && !bytes.is_empty() && at + bytes.len() <= page_bytes, "a piece at {at} behind {end}");
        (pieces, end) = (pieces + 1, at + bytes.len());
    });
    assert_eq!(walked, diff::check(diff, page_bytes));
    assert_eq!(walked, diff::apply(diff, &mut page));
    if walked.is_err() {
        assert!(pieces == 0 && page == before, "a refused diff has been applied in part");
        return;
    }
    assert!(pieces > 0, "a diff of nothing");
    // The input need not be the shortest encoding of the changes, so encoding them again may give other bytes. But a
    // new diff of the changed page must give the same page.
    let mut again = Vec::new();
    Differ::new().encode(&before, &page, &mut again);
    let mut copy = before.clone();
    if !again.is_empty() {
        assert_eq!(diff::apply(&again, &mut copy), Ok(()));
    }
    assert!(copy == page, "a diff of a diff's result differs");
}

/// Encodes the difference of two pages and applies it to the first page, which must then equal the second.
fn there_and_back(bytes: &[u8], page_bytes: usize) {
    let (first, second) = bytes.split_at(bytes.len() / 2);
    let page_of = |bytes: &[u8]| {
        let mut page = vec![0; page_bytes];
        page.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        page
    };
    let (mut twin, page) = (page_of(first), page_of(second));
    let mut diff = Vec::new();
    let changed = Differ::new().encode(&twin, &page, &mut diff);
    let different = twin.chunks(4).zip(page.chunks(4)).filter(|(a, b)| a != b).count();
    assert_eq!((changed, diff.is_empty()), (different, different == 0));
    assert!(diff.len() <= diff::bytes_max(page_bytes));
    if page_bytes.is_multiple_of(64) {
        let mut words = 0;
        let any = diff::changed_words(&twin, &page, |at, word| {
            assert_eq!(page[at..at + 4], word);
            words += 1;
        });
        assert_eq!((any, words), (changed > 0, changed));
    }
    if changed > 0 {
        assert_eq!(diff::apply(&diff, &mut twin), Ok(()));
    }
    assert!(twin == page, "a diff applied to the twin does not give the page");
}
