//! Computes parity parts from data parts, and any part from K others.
//!
//! A part is a linear combination of the data parts over GF(2^8). The coefficients of the parity parts are those of a
//! Cauchy matrix, in which every square submatrix can be inverted. So any K parts determine all others. The columns are
//! scaled so that the first parity part is the exclusive or of the data parts. Scaling a column keeps the property.
//!
//! The coefficients for every choice of K parts are computed once. So a read that has lost a part allocates nothing,
//! takes no lock and inverts no matrix.

use super::machine::parts_of;
use super::{DATA_MAX, PARTS_MAX};

/// The field's polynomial x^8 + x^4 + x^3 + x^2 + 1, without its highest term.
const POLYNOMIAL: u8 = 0x1d;
/// The number of bytes that are multiplied together.
const BLOCK: usize = 64;

/// The coefficients of one part: how often it contains each of K parts.
type Row = [u8; DATA_MAX];

/// The code of a scheme with K data parts and M parity parts.
pub(super) struct Code {
    data: usize,
    parts: usize,
    /// For each set of K parts, as a bit mask: the coefficients by which they give each part. The coefficients are in the
    /// order of the set's parts.
    rows: Vec<[Row; PARTS_MAX]>,
}

fn times(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        sum ^= if b & 1 != 0 { a } else { 0 };
        a = a << 1 ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
        b >>= 1;
    }
    sum
}

/// Returns the inverse of `a`, which is not 0. It is a^254, because a^255 is 1.
fn inverse(a: u8) -> u8 {
    (0..254).fold(1, |power, _| times(power, a))
}

/// Returns how often part `part` contains each data part.
fn generator(data: usize, part: usize) -> Row {
    let mut row = Row::default();
    for (column, coefficient) in row[..data].iter_mut().enumerate() {
        *coefficient = match part.checked_sub(data) {
            None => u8::from(column == part),
            // Copies of a single data part are plain copies.
            Some(_) if data == 1 => 1,
            Some(parity) => {
                let (first, this) = (DATA_MAX ^ column, (DATA_MAX + parity) ^ column);
                times(first as u8, inverse(this as u8))
            }
        };
    }
    row
}

/// Returns the inverse of a matrix with `size` rows and columns. Returns `None` if there is none.
fn inverted(mut matrix: [Row; DATA_MAX], size: usize) -> Option<[Row; DATA_MAX]> {
    let mut result = [Row::default(); DATA_MAX];
    (0..size).for_each(|index| result[index][index] = 1);
    for column in 0..size {
        let pivot = (column..size).find(|&row| matrix[row][column] != 0)?;
        matrix.swap(column, pivot);
        result.swap(column, pivot);
        let scale = inverse(matrix[column][column]);
        for rows in [&mut matrix, &mut result] {
            rows[column].iter_mut().for_each(|value| *value = times(*value, scale));
        }
        for row in (0..size).filter(|&row| row != column) {
            let factor = matrix[row][column];
            for rows in [&mut matrix, &mut result] {
                let from = rows[column];
                rows[row].iter_mut().zip(from).for_each(|(value, from)| *value ^= times(from, factor));
            }
        }
    }
    Some(result)
}

impl Code {
    /// Makes the code with `data` data parts and `parity` parity parts.
    pub(super) fn new(data: u8, parity: u8) -> Self {
        let (data, parts) = (usize::from(data), usize::from(data + parity));
        let rows = (0..1_usize << PARTS_MAX).map(|mask| rows_of(data, parts, mask as u8)).collect();
        Self { data, parts, rows }
    }

    /// Computes the parts of a page of whole units, each of `unit_bytes` bytes. Part `p` goes to the `p`th of the equal
    /// regions of `into`. If `parity_only`, the regions of data parts are left as they are.
    pub(super) fn encode(&self, page: &[u8], unit_bytes: usize, parity_only: bool, into: &mut [u8]) {
        let part_bytes = unit_bytes / self.data;
        let region_bytes = page.len() / self.data;
        let all = ((1_u16 << self.data) - 1) as u8;
        let first = if parity_only { self.data } else { 0 };
        for (part, region) in into.chunks_exact_mut(region_bytes).enumerate().take(self.parts).skip(first) {
            let row = self.rows[usize::from(all)][part];
            for (unit, out) in page.chunks_exact(unit_bytes).zip(region.chunks_exact_mut(part_bytes)) {
                combine(row, unit.chunks_exact(part_bytes), out);
            }
        }
    }

    /// Completes a page of whole units from the parts in the mask `have`. The data parts among them are at their places in
    /// the page. `others` has the bytes of the parity parts among them, in ascending order. A copy of a whole page is at
    /// the page's place, too.
    pub(super) fn complete(&self, have: u8, others: &[&[u8]], unit_bytes: usize, page: &mut [u8]) {
        let missing = ((1_u16 << self.data) - 1) as u8 & !have;
        if missing == 0 || self.data == 1 {
            return;
        }
        let part_bytes = unit_bytes / self.data;
        for (index, unit) in page.chunks_exact_mut(unit_bytes).enumerate() {
            let at = index * part_bytes..(index + 1) * part_bytes;
            let mut parts: [&mut [u8]; DATA_MAX] = Default::default();
            parts.iter_mut().zip(unit.chunks_exact_mut(part_bytes)).for_each(|(place, part)| *place = part);
            for part in parts_of(missing).map(usize::from) {
                // No missing part is computed from another one.
                let out = std::mem::take(&mut parts[part]);
                let here = parts_of(have).filter_map(|part| parts[..self.data].get(usize::from(part)));
                let others = others.iter().map(|region| &region[at.clone()]);
                combine(self.rows[usize::from(have)][part], here.map(|part| &**part).chain(others), out);
            }
        }
    }

    /// Computes the part `part` of a run of units from the parts in the mask `have`.
    pub(super) fn part(&self, have: u8, regions: &[&[u8]], part: u8, out: &mut [u8]) {
        let row = self.rows[usize::from(have)][usize::from(part)];
        let len = out.len();
        combine(row, regions.iter().map(|region| &region[..len]), out);
    }
}

/// Returns the coefficients by which the parts in `mask` give each part. All are 0 if the mask has not K parts.
fn rows_of(data: usize, parts: usize, mask: u8) -> [Row; PARTS_MAX] {
    let mut rows = [Row::default(); PARTS_MAX];
    if mask.count_ones() as usize != data || usize::from(mask) >> parts != 0 {
        return rows;
    }
    let mut matrix = [Row::default(); DATA_MAX];
    let have = (0..parts).filter(|part| mask >> part & 1 != 0);
    matrix.iter_mut().zip(have).for_each(|(row, part)| *row = generator(data, part));
    let Some(inverse) = inverted(matrix, data) else {
        debug_assert!(false, "any K parts determine the others");
        return rows;
    };
    for (part, row) in rows[..parts].iter_mut().enumerate() {
        let wanted = generator(data, part);
        for (column, value) in row[..data].iter_mut().enumerate() {
            *value = (0..data).fold(0, |sum, index| sum ^ times(wanted[index], inverse[index][column]));
        }
    }
    rows
}

/// Sets `out` to the sum of the `from`, each times its coefficient.
fn combine<'a>(row: Row, from: impl Iterator<Item = &'a [u8]>, out: &mut [u8]) {
    let mut is_empty = true;
    for (coefficient, from) in row.into_iter().zip(from).filter(|(coefficient, _)| *coefficient != 0) {
        if is_empty && coefficient == 1 {
            out.copy_from_slice(from);
        } else {
            if is_empty {
                out.fill(0);
            }
            add_times(out, from, coefficient);
        }
        is_empty = false;
    }
}

/// Adds `from` times `factor` to `out`. Both are whole blocks long.
fn add_times(out: &mut [u8], from: &[u8], factor: u8) {
    debug_assert!(out.len() == from.len() && out.len().is_multiple_of(BLOCK));
    for (out, from) in out.as_chunks_mut::<BLOCK>().0.iter_mut().zip(from.as_chunks::<BLOCK>().0) {
        let mut words = words_of(from);
        let mut sum = words_of(out);
        let mut rest = factor;
        while rest != 0 {
            if rest & 1 != 0 {
                sum.iter_mut().zip(words).for_each(|(sum, word)| *sum ^= word);
            }
            words.iter_mut().for_each(|word| *word = doubled(*word));
            rest >>= 1;
        }
        out.as_chunks_mut::<8>().0.iter_mut().zip(sum).for_each(|(bytes, word)| *bytes = word.to_ne_bytes());
    }
}

fn words_of(block: &[u8; BLOCK]) -> [u64; BLOCK / 8] {
    let mut words = [0; BLOCK / 8];
    words.iter_mut().zip(block.as_chunks::<8>().0).for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
    words
}

/// Doubles each of the eight bytes of a word in the field.
fn doubled(word: u64) -> u64 {
    let high = word >> 7 & 0x0101_0101_0101_0101;
    ((word & 0x7f7f_7f7f_7f7f_7f7f) << 1) ^ (high * u64::from(POLYNOMIAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_blocks_are_products_of_bytes() {
        for factor in 0..=u8::MAX {
            let from: Vec<u8> = (0..=u8::MAX).collect();
            let mut out = vec![0x5a; 256];
            add_times(&mut out, &from, factor);
            assert!(from.iter().zip(&out).all(|(from, out)| *out == 0x5a ^ times(*from, factor)), "{factor}");
            assert!(factor == 0 || times(factor, inverse(factor)) == 1, "{factor}");
        }
    }

    /// Tests all schemes, and in each of them all choices of K parts.
    #[test]
    fn any_k_parts_give_the_page_and_every_part() {
        const UNIT: usize = 4096;
        for (data, parity) in [1, 2, 4].into_iter().flat_map(|data| (1..=8 - data).map(move |parity| (data, parity))) {
            let code = Code::new(data, parity);
            let (parts, part_bytes) = (data + parity, UNIT / usize::from(data));
            let mut random = 0x1234_5678_u32;
            let mut byte = || {
                random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (random >> 24) as u8
            };
            let page: Vec<u8> = (0..3 * UNIT).map(|_| byte()).collect();
            let mut all = vec![0; 3 * part_bytes * usize::from(parts)];
            code.encode(&page, UNIT, false, &mut all);
            let regions: Vec<&[u8]> = all.chunks_exact(3 * part_bytes).collect();
            for have in
                (0..=u8::MAX).filter(|have| have.count_ones() == u32::from(data) && usize::from(*have) >> parts == 0)
            {
                let some: Vec<&[u8]> =
                    (0..parts).filter(|part| have >> part & 1 != 0).map(|part| regions[usize::from(part)]).collect();
                // A missing part's place may hold any bytes.
                let mut back = vec![0xee; page.len()];
                let placed: Vec<usize> =
                    parts_of(have).map(usize::from).filter(|part| *part < usize::from(data) || data == 1).collect();
                for (part, from) in placed.iter().zip(&some) {
                    let at = if data == 1 { 0 } else { part * part_bytes };
                    let units = back.chunks_exact_mut(UNIT).zip(from.chunks_exact(part_bytes));
                    units.for_each(|(unit, from)| unit[at..at + part_bytes].copy_from_slice(from));
                }
                code.complete(have, &some[placed.len()..], UNIT, &mut back);
                assert!(back == page, "{data}+{parity}, parts {have:b}");
                for part in 0..parts {
                    let mut out = vec![0; 3 * part_bytes];
                    code.part(have, &some, part, &mut out);
                    assert!(out == regions[usize::from(part)], "{data}+{parity}, part {part} from {have:b}");
                }
            }
        }
    }

    #[test]
    fn the_first_parity_part_is_the_exclusive_or_and_copies_are_copies() {
        let page: Vec<u8> = (0..4096_u32).map(|at| (at * 7 % 251) as u8).collect();
        let mut parts = [0; 3 * 2048];
        Code::new(2, 1).encode(&page, 4096, false, &mut parts);
        assert!((0..2048).all(|at| parts[4096 + at] == page[at] ^ page[2048 + at]) && parts[..4096] == page);
        let mut copies = [0; 3 * 4096];
        Code::new(1, 2).encode(&page, 4096, false, &mut copies);
        assert!(copies.chunks_exact(4096).all(|copy| copy == page));
    }
}
