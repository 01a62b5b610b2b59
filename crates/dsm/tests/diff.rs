//! Tests diffs against a simple model, which compares pages word by word.

use hanare_dsm::diff::{self, Differ};
use proptest::prelude::*;

/// Returns the page that a home must have after it has applied a diff to `other`. Words of `page` that differ from the
/// twin come from `page`, and all other words come from `other`.
fn merged(twin: &[u8], page: &[u8], other: &[u8]) -> Vec<u8> {
    let word = |index: usize| index / 4 * 4..index / 4 * 4 + 4;
    (0..page.len()).map(|i| if twin[word(i)] != page[word(i)] { page[i] } else { other[i] }).collect()
}

/// Generates a twin and its page after writes: no words, a few words, many words or all words changed.
fn written() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let size = prop_oneof![Just(32usize), Just(64), Just(256), Just(4096), Just(16384)];
    (size, any::<u64>(), 0u32..5).prop_map(|(size, seed, kind)| {
        let mut state = seed | 1;
        let mut next = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        let twin: Vec<u8> = (0..size).map(|_| next() as u8).collect();
        let mut page = twin.clone();
        let touches = [0, 3, size / 16, size, 0][kind as usize];
        for _ in 0..touches {
            let first = next() as usize % size;
            let length = 1 + next() as usize % if kind == 3 { 40 } else { 6 };
            page[first..(first + length).min(size)].iter_mut().for_each(|byte| *byte = next() as u8);
        }
        if kind == 4 {
            page.iter_mut().for_each(|byte| *byte = !*byte);
        }
        (twin, page)
    })
}

fn encode(twin: &[u8], page: &[u8]) -> (usize, Vec<u8>) {
    let mut out = vec![0xaa; 3];
    let changed = Differ::new().encode(twin, page, &mut out);
    assert_eq!(out[..3], [0xaa; 3], "what was there before stays");
    (changed, out.split_off(3))
}

proptest! {
    #[test]
    fn a_diff_carries_the_words_that_changed_and_nothing_else((twin, page) in written(), fill in any::<u8>()) {
        let (changed, bytes) = encode(&twin, &page);
        let differing = twin.chunks(4).zip(page.chunks(4)).filter(|(a, b)| a != b).count();
        prop_assert_eq!(changed, differing);
        prop_assert_eq!(bytes.is_empty(), changed == 0);
        prop_assert!(bytes.len() <= diff::bytes_max(page.len()));
        if changed > 0 {
            // The home's page has other bytes. The words that are not in the diff must stay.
            let mut home = vec![fill; page.len()];
            let expected = merged(&twin, &page, &home);
            diff::apply(&bytes, &mut home).expect("our own diff");
            prop_assert_eq!(&home, &expected);
            if page.len() >= 64 {
                home.fill(fill);
                let any = diff::changed_words(&twin, &page, |at, word| home[at..at + 4].copy_from_slice(&word));
                prop_assert!(any);
                prop_assert_eq!(home, expected);
            }
        }
    }

    #[test]
    fn bytes_from_nowhere_never_write_beyond_a_page_or_half_a_diff(
        (twin, page) in written(),
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (_, mut bytes) = encode(&twin, &page);
        if !bytes.is_empty() {
            let index = at.index(bytes.len());
            bytes[index] ^= with;
            bytes.truncate(cut.index(bytes.len()) + 1);
        }
        let mut home = twin.clone();
        if diff::apply(&bytes, &mut home).is_err() {
            prop_assert_eq!(home, twin);
        }
    }
}

#[test]
fn each_form_is_used_where_it_is_shortest() {
    let twin = vec![0u8; 4096];
    let with = |words: &[usize]| {
        let mut page = twin.clone();
        words.iter().for_each(|word| page[word * 4] = 1);
        encode(&twin, &page).1.len()
    };
    assert_eq!(with(&[7]), 4 + 4 + 4, "one run");
    assert_eq!(with(&[7, 8, 9]), 4 + 4 + 12, "neighbours are one run");
    assert_eq!(with(&(62..70).collect::<Vec<_>>()), 4 + 4 + 32, "also across 64 words");
    let scattered: Vec<usize> = (0..256).map(|n| n * 4).collect();
    assert_eq!(with(&scattered), 4 + 128 + 256 * 4, "a bit a word");
    let all: Vec<usize> = (0..1024).collect();
    assert_eq!(with(&all), 4 + 4096, "the whole page");
}
