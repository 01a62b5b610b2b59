//! Diffs: the words in which a page differs from its twin.
//!
//! A diff contains the positions and the new values of the words that changed, and nothing else. A whole page is sent
//! only if all its words changed, because other ranks may have written the other words. A diff has the shortest of
//! three forms (`docs/wire-format.md` draws them): runs of changed words; a bitmap with one bit for each word, followed
//! by the changed words; or all words of the page.

use crate::limits::{PAGE_BYTES_MAX, PAGE_BYTES_MIN, WORD_BYTES};

/// Number of bytes compared in one step: one cache line. A comparison takes a few vector instructions.
const LINE: usize = 64;
const LINE_WORDS: usize = LINE / WORD_BYTES;
const MASK_WORDS: usize = PAGE_BYTES_MAX / WORD_BYTES / 64;

const FORM_RUNS: u32 = 1;
const FORM_BITS: u32 = 2;
const FORM_WHOLE: u32 = 3;

/// Size in bytes of a diff's head, which contains the diff's form and the number of runs or words that follow.
const HEAD: usize = 4;
/// Size in bytes of a run's head, which contains the index of the run's first word and the number of words.
const RUN_HEAD: usize = 4;

/// Returns the length in bytes of the longest diff of a page of `page_bytes` bytes.
#[must_use]
pub fn bytes_max(page_bytes: usize) -> usize {
    HEAD + page_bytes / WORD_BYTES / 8 + page_bytes
}

/// Checks whether pages of this size can be compared. The size must be a power of two within the limits.
#[must_use]
pub fn page_bytes_is_valid(page_bytes: usize) -> bool {
    (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&page_bytes) && page_bytes.is_power_of_two()
}

/// The error for bytes that are not a diff of a page of the given size.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a diff that does not fit its page")]
pub struct BadDiff;

/// Compares pages with their twins and encodes the differences.
///
/// A caller keeps one `Differ` for many pages, so that a flush allocates no memory.
#[derive(Debug)]
pub struct Differ {
    /// One bit for each word of the page, set if the word changed. The lowest bit belongs to the first word.
    mask: Box<[u64; MASK_WORDS]>,
}

impl Default for Differ {
    fn default() -> Self {
        Self::new()
    }
}

impl Differ {
    /// Makes an encoder.
    #[must_use]
    pub fn new() -> Self {
        Self { mask: Box::new([0; MASK_WORDS]) }
    }

    /// Appends to `out` the diff that turns `twin` into `page`. Returns the number of words that changed. If no word
    /// changed, nothing is appended.
    ///
    /// # Panics
    /// When `twin` and `page` differ in length, or [`page_bytes_is_valid`] refuses their length.
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
            encode_bits(mask, page, changed, out);
        }
        changed
    }
}

/// Calls `put` with the byte offset and the new value of each word in which `page` differs from `twin`. Returns whether
/// any word differs. Both slices must have the same length, which must be a multiple of 64 bytes.
pub fn changed_words(twin: &[u8], page: &[u8], mut put: impl FnMut(usize, [u8; WORD_BYTES])) -> bool {
    let mut any = false;
    let lines = twin.as_chunks::<LINE>().0.iter().zip(page.as_chunks::<LINE>().0);
    for (line, (a, b)) in lines.enumerate() {
        let mut bits = line_bits(a, b);
        any |= bits != 0;
        let words = b.as_chunks::<WORD_BYTES>().0;
        while bits != 0 {
            let index = bits.trailing_zeros() as usize;
            if let Some(&word) = words.get(index) {
                put(line * LINE + index * WORD_BYTES, word);
            }
            bits &= bits - 1;
        }
    }
    any
}

/// Sets a bit in `mask` for each word in which `page` differs from `twin`, and clears all other bits.
fn compare(twin: &[u8], page: &[u8], mask: &mut [u64]) {
    mask.fill(0);
    let (twin_lines, twin_rest) = twin.as_chunks::<LINE>();
    let (page_lines, page_rest) = page.as_chunks::<LINE>();
    for (line, (a, b)) in twin_lines.iter().zip(page_lines).enumerate() {
        let at = line * LINE_WORDS;
        mask[at / 64] |= line_bits(a, b) << (at % 64);
    }
    // Words remain here only if the page is shorter than a line.
    let words = twin_rest.chunks_exact(WORD_BYTES).zip(page_rest.chunks_exact(WORD_BYTES));
    for (index, (a, b)) in words.enumerate() {
        mask[0] |= u64::from(a != b) << index;
    }
}

/// Returns one bit for each word of a line, set if the word differs. The loop has a fixed number of steps and no
/// branch, so the compiler turns it into a few vector instructions.
#[inline]
fn line_bits(a: &[u8; LINE], b: &[u8; LINE]) -> u64 {
    let (a, b) = (a.as_chunks::<WORD_BYTES>().0, b.as_chunks::<WORD_BYTES>().0);
    let mut bits = 0_u32;
    for index in 0..LINE_WORDS {
        bits |= u32::from(u32::from_ne_bytes(a[index]) != u32::from_ne_bytes(b[index])) << index;
    }
    u64::from(bits)
}

/// Returns the number of set bits, and the number of runs that they form.
fn count(mask: &[u64]) -> (usize, usize) {
    let (mut changed, mut runs, mut before) = (0, 0, 0);
    for &bits in mask {
        changed += bits.count_ones() as usize;
        // A run begins at each set bit whose next lower bit is clear.
        runs += (bits & !(bits << 1 | before)).count_ones() as usize;
        before = bits >> 63;
    }
    (changed, runs)
}

/// Returns the end (exclusive) of the run of set bits that begins at `from`.
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

fn encode_bits(mask: &[u64], page: &[u8], changed: usize, out: &mut Vec<u8>) {
    let bytes = (page.len() / WORD_BYTES).div_ceil(8);
    let start = out.len();
    out.resize(start + bytes + changed * WORD_BYTES, 0);
    let (bitmap, values) = out[start..].split_at_mut(bytes);
    for (piece, bits) in bitmap.chunks_mut(8).zip(mask) {
        piece.copy_from_slice(&bits.to_le_bytes()[..piece.len()]);
    }
    let mut values = values.as_chunks_mut::<WORD_BYTES>().0.iter_mut();
    let words = page.as_chunks::<WORD_BYTES>().0;
    for (block, &bits) in words.chunks(64).zip(mask) {
        let mut bits = bits;
        while bits != 0 {
            if let (Some(value), Some(word)) = (values.next(), block.get(bits.trailing_zeros() as usize)) {
                *value = *word;
            }
            bits &= bits - 1;
        }
    }
}

/// Calls `put` with the byte offset in the page and the bytes of each piece of a diff, in ascending order.
///
/// # Errors
/// When `diff` is not a diff of a page of `page_bytes` bytes. Then `put` was not called.
pub fn walk(diff: &[u8], page_bytes: usize, put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    check(diff, page_bytes)?;
    walk_checked(diff, page_bytes, put)
}

/// Checks whether `diff` is a diff of a page of `page_bytes` bytes.
///
/// # Errors
/// When `diff` is not a diff of a page of this size.
pub fn check(diff: &[u8], page_bytes: usize) -> Result<(), BadDiff> {
    let (form, n, body) = head(diff)?;
    let words = page_bytes / WORD_BYTES;
    match form {
        FORM_RUNS => walk_runs(body, n, words, |_, _| ()),
        FORM_BITS => split_bits(body, n, words).map(|_| ()),
        FORM_WHOLE if body.len() == page_bytes && n == words => Ok(()),
        _ => Err(BadDiff),
    }
}

/// Calls `put` with each piece of a diff, like [`walk`], but does not check the diff first. For a diff that has not
/// passed [`check`], `put` may be called with some pieces before the error is found. All these pieces lie within the
/// page.
///
/// # Errors
/// When `diff` is not a diff of a page of `page_bytes` bytes.
pub fn walk_checked(diff: &[u8], page_bytes: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let (form, n, body) = head(diff)?;
    let words = page_bytes / WORD_BYTES;
    match form {
        FORM_RUNS => walk_runs(body, n, words, put),
        FORM_BITS => walk_bits(body, n, words, put),
        FORM_WHOLE if body.len() == page_bytes && n == words => {
            put(0, body);
            Ok(())
        }
        _ => Err(BadDiff),
    }
}

/// Splits a diff into its form, its number of runs or words, and the bytes that follow.
fn head(diff: &[u8]) -> Result<(u32, usize, &[u8]), BadDiff> {
    let (head, body) = diff.split_first_chunk::<HEAD>().ok_or(BadDiff)?;
    let head = u32::from_le_bytes(*head);
    Ok((head >> 24, (head & 0xff_ffff) as usize, body))
}

fn walk_runs(mut body: &[u8], runs: usize, words: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let mut least = 0;
    for _ in 0..runs {
        let (head, rest) = body.split_first_chunk::<RUN_HEAD>().ok_or(BadDiff)?;
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

/// Splits the bytes behind the head of a diff in bitmap form into the bitmap and the changed words.
fn split_bits(body: &[u8], changed: usize, words: usize) -> Result<(&[u8], &[u8]), BadDiff> {
    let (bits, values) = body.split_at_checked(words.div_ceil(8)).ok_or(BadDiff)?;
    let set: usize = blocks(bits).map(|bits| bits.count_ones() as usize).sum();
    let fits = set == changed && values.len() == changed * WORD_BYTES && changed > 0;
    if fits { Ok((bits, values)) } else { Err(BadDiff) }
}

fn walk_bits(body: &[u8], changed: usize, words: usize, mut put: impl FnMut(usize, &[u8])) -> Result<(), BadDiff> {
    let (bits, values) = split_bits(body, changed, words)?;
    let mut values = values.as_chunks::<WORD_BYTES>().0.iter();
    for (index, mut bits) in blocks(bits).enumerate() {
        while bits != 0 {
            let word = index * 64 + bits.trailing_zeros() as usize;
            put(word * WORD_BYTES, values.next().ok_or(BadDiff)?);
            bits &= bits - 1;
        }
    }
    Ok(())
}

/// Returns the bitmap in blocks of 64 bits.
fn blocks(bits: &[u8]) -> impl Iterator<Item = u64> {
    bits.chunks(8).map(|bytes| {
        let mut block = [0; 8];
        block[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(block)
    })
}

/// Writes a diff into `page`.
///
/// # Errors
/// When `diff` is not a diff of a page of this size. Then the page is unchanged.
pub fn apply(diff: &[u8], page: &mut [u8]) -> Result<(), BadDiff> {
    walk(diff, page.len(), |at, bytes| page[at..at + bytes.len()].copy_from_slice(bytes))
}
