//! What a rank wrote: a page against its twin, word by word.
//!
//! A diff names the words that changed and carries their new values, nothing else: several ranks may write different
//! words of one page, so a whole page is sent only when every word of it changed. Three forms, whichever is shortest
//! (`docs/wire-format.md` draws them): runs of words, a bit a word and the words, or all words.

use crate::limits::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, WORD_BYTES};

/// Bytes compared at once: a cache line, a few vector instructions.
const LINE: usize = 64;
const LINE_WORDS: usize = LINE / WORD_BYTES;
const MASK_WORDS: usize = PAGE_BYTES_MAX / WORD_BYTES / 64;

const FORM_RUNS: u32 = 1;
const FORM_BITS: u32 = 2;
const FORM_WHOLE: u32 = 3;

/// Bytes of the head of a diff: its form and how many runs or words follow.
const HEAD: usize = 4;
/// Bytes in front of the words of a run: its first word and its length.
const RUN_HEAD: usize = 4;

/// The longest diff of a page of so many bytes.
#[must_use]
pub fn bytes_max(page_bytes: usize) -> usize {
    HEAD + page_bytes / WORD_BYTES / 8 + page_bytes
}

/// Whether pages of this size can be compared: whole lines of 32 bytes, within the limits.
#[must_use]
pub fn page_bytes_is_valid(page_bytes: usize) -> bool {
    (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) && page_bytes.is_power_of_two()
}

/// Why bytes are not a diff of a page of that size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a diff that does not fit its page")]
pub struct BadDiff;

/// Finds what differs, and compares as it goes.
///
/// Kept between pages so that a flush allocates nothing.
#[derive(Debug)]
pub struct Differ {
    /// A bit for each word that changed, the first word lowest.
    mask: Box<[u64; MASK_WORDS]>,
}

impl Default for Differ {
    fn default() -> Self {
        Self::new()
    }
}

impl Differ {
    /// One that has compared nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self { mask: Box::new([0; MASK_WORDS]) }
    }

    /// Appends the diff that makes `page` of `twin` to `out`; returns how many words changed. Nothing is appended when
    /// none did.
    ///
    /// # Panics
    /// When the two are not of one size, or that size is not [`page_bytes_is_valid`].
    pub fn encode(&mut self, twin: &[u8], page: &[u8], out: &mut Vec<u8>) -> usize {
        assert!(
            twin.len() == page.len() && page_bytes_is_valid(page.len()),
            "a page and its twin are of one valid size"
        );
        let words = page.len() / WORD_BYTES;
        let mask = &mut self.mask[..words.div_ceil(64)];
        compare(twin, page, mask);
        let (changed, runs) = count(mask);
        if changed == 0 {
            return 0;
        }
        if changed == words {
            out.extend_from_slice(&(FORM_WHOLE << 24 | words as u32).to_le_bytes());
            out.extend_from_slice(page);
        } else if runs * RUN_HEAD <= words.div_ceil(8) {
            out.extend_from_slice(&(FORM_RUNS << 24 | runs as u32).to_le_bytes());
            encode_runs(mask, page, out);
        } else {
            out.extend_from_slice(&(FORM_BITS << 24 | changed as u32).to_le_bytes());
            encode_bits(mask, page, words, out);
        }
        changed
    }
}

/// Sets a bit in `mask` for each word that differs.
fn compare(twin: &[u8], page: &[u8], mask: &mut [u64]) {
    mask.fill(0);
    for (line, (a, b)) in twin.chunks(LINE).zip(page.chunks(LINE)).enumerate() {
        // Most lines are equal, and comparing whole slices is what the C library does fastest.
        if a != b {
            let bits = line_bits(a, b);
            let at = line * LINE_WORDS;
            mask[at / 64] |= bits << (at % 64);
        }
    }
}

/// A bit for each word of a line that differs.
fn line_bits(a: &[u8], b: &[u8]) -> u64 {
    let words = a.chunks_exact(WORD_BYTES).zip(b.chunks_exact(WORD_BYTES));
    words.enumerate().fold(0, |bits, (index, (a, b))| bits | u64::from(a != b) << index)
}

/// How many bits are set, and how many runs they form.
fn count(mask: &[u64]) -> (usize, usize) {
    let (mut changed, mut runs, mut before) = (0, 0, 0);
    for &bits in mask {
        changed += bits.count_ones() as usize;
        // A run begins where a bit is set and the one below is not.
        runs += (bits & !(bits << 1 | before)).count_ones() as usize;
        before = bits >> 63;
    }
    (changed, runs)
}

/// The end of the run of set bits that begins at `from`.
fn run_end(mask: &[u64], from: usize) -> usize {
    let mut at = from;
    loop {
        let Some(bits) = mask.get(at / 64) else { return at };
        let left = 64 - at % 64;
        let ones = (bits >> (at % 64)).trailing_ones() as usize;
        at += ones.min(left);
        if ones < left {
            return at;
        }
    }
}

fn encode_runs(mask: &[u64], page: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while at < mask.len() * 64 {
        let bits = mask[at / 64] >> (at % 64);
        if bits == 0 {
            at = (at / 64 + 1) * 64;
            continue;
        }
        let first = at + bits.trailing_zeros() as usize;
        let end = run_end(mask, first);
        out.extend_from_slice(&(first as u16).to_le_bytes());
        out.extend_from_slice(&((end - first) as u16).to_le_bytes());
        out.extend_from_slice(&page[first * WORD_BYTES..end * WORD_BYTES]);
        at = end;
    }
}

fn encode_bits(mask: &[u64], page: &[u8], words: usize, out: &mut Vec<u8>) {
    let bytes = words.div_ceil(8);
    for (index, bits) in mask.iter().enumerate() {
        let take = (bytes - index * 8).min(8);
        out.extend_from_slice(&bits.to_le_bytes()[..take]);
    }
    for (index, &bits) in mask.iter().enumerate() {
        let mut bits = bits;
        while bits != 0 {
            let at = (index * 64 + bits.trailing_zeros() as usize) * WORD_BYTES;
            out.extend_from_slice(&page[at..at + WORD_BYTES]);
            bits &= bits - 1;
        }
    }
}

/// Hands the pieces of a diff to `put` as (byte offset in the page, bytes), in ascending order.
///
/// # Errors
/// When the bytes are not a diff of a page of that size; nothing was handed over then.
pub fn walk(diff: &[u8], page_bytes: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    walk_once(diff, page_bytes, |_, _| ())?;
    walk_once(diff, page_bytes, &mut put)
}

fn walk_once(diff: &[u8], page_bytes: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let (head, body) = diff.split_at_checked(HEAD).ok_or(BadDiff)?;
    let head = u32::from_le_bytes(head.try_into().map_err(|_| BadDiff)?);
    let n = (head & 0xff_ffff) as usize;
    let words = page_bytes / WORD_BYTES;
    match head >> 24 {
        FORM_RUNS => walk_runs(body, n, words, put),
        FORM_BITS => walk_bits(body, n, words, put),
        FORM_WHOLE if body.len() == page_bytes && n == words => {
            put(0, body);
            Ok(())
        }
        _ => Err(BadDiff),
    }
}

fn walk_runs(mut body: &[u8], runs: usize, words: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let mut least = 0;
    for _ in 0..runs {
        let (head, rest) = body.split_at_checked(RUN_HEAD).ok_or(BadDiff)?;
        let first = usize::from(u16::from_le_bytes([head[0], head[1]]));
        let length = usize::from(u16::from_le_bytes([head[2], head[3]]));
        if first < least || length == 0 || first + length > words {
            return Err(BadDiff);
        }
        let (bytes, rest) = rest.split_at_checked(length * WORD_BYTES).ok_or(BadDiff)?;
        put(first * WORD_BYTES, bytes);
        (least, body) = (first + length, rest);
    }
    if body.is_empty() && runs > 0 { Ok(()) } else { Err(BadDiff) }
}

fn walk_bits(body: &[u8], changed: usize, words: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let (bits, values) = body.split_at_checked(words.div_ceil(8)).ok_or(BadDiff)?;
    let set: usize = bits.iter().map(|byte| byte.count_ones() as usize).sum();
    if set != changed || values.len() != changed * WORD_BYTES || changed == 0 {
        return Err(BadDiff);
    }
    let mut values = values.chunks_exact(WORD_BYTES);
    for (index, &byte) in bits.iter().enumerate() {
        let mut byte = byte;
        while byte != 0 {
            let word = index * 8 + byte.trailing_zeros() as usize;
            put(word * WORD_BYTES, values.next().ok_or(BadDiff)?);
            byte &= byte - 1;
        }
    }
    Ok(())
}

/// Writes what a diff says into `page`.
///
/// # Errors
/// When the bytes are not a diff of a page of that size; the page is then as it was.
pub fn apply(diff: &[u8], page: &mut [u8]) -> Result<(), BadDiff> {
    walk(diff, page.len(), |at, bytes| page[at..at + bytes.len()].copy_from_slice(bytes))
}
