//! Reference strings: the pages that were referenced, in order, and the pages that the program discarded in between.

use std::fmt;

use hanare_paging::limits;
use hanare_paging::policy::{Cause, Leave};
use hanare_paging::trace::{Header, Reader, Record, TraceError};

/// One step of a reference string.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A page was read.
    Read(u32),
    /// A page was written to.
    Write(u32),
    /// The program discarded a page. Its bytes are no longer needed.
    Discard(u32),
    /// This number of milliseconds passed.
    Pass(u32),
}

const READ: u32 = 0;
const WRITE: u32 = 1;
const DISCARD: u32 = 2;
const PASS: u32 = 3;
const SHIFT: u32 = 30;
const PASS_MAX: u64 = (1 << SHIFT) - 1;

// The page and the kind of a step share 32 bits, because a string has many steps.
const _: () = assert!(limits::UNITS_MAX <= 1 << SHIFT);

/// A reference string. It needs four bytes for each step.
#[derive(Clone, Debug, Default)]
pub struct RefString {
    steps: Vec<u32>,
    pages: u32,
    distinct: u32,
    references: u64,
}

/// Why a text is not a reference string.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StringError {
    line: usize,
    offset: usize,
    what: String,
}

impl fmt::Display for StringError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, offset, what } = self;
        write!(f, "line {line} (offset {offset}): {what}; give one page number below {} a line", limits::UNITS_MAX)?;
        f.write_str(", with a 'w' behind it for a write")
    }
}

impl std::error::Error for StringError {}

impl RefString {
    /// Makes the string of these steps. Leaves out pages beyond a pager's limit.
    #[must_use]
    pub fn new(steps: impl IntoIterator<Item = Step>) -> Self {
        let mut string = Self::default();
        let mut seen = Vec::new();
        for step in steps {
            string.push(step, &mut seen);
        }
        string
    }

    fn push(&mut self, step: Step, seen: &mut Vec<u64>) {
        let (kind, number) = match step {
            Step::Read(page) => (READ, page),
            Step::Write(page) => (WRITE, page),
            Step::Discard(page) => (DISCARD, page),
            Step::Pass(ms) => (PASS, ms),
        };
        if kind != PASS {
            if number >= limits::UNITS_MAX {
                return;
            }
            self.pages = self.pages.max(number + 1);
        }
        if kind == READ || kind == WRITE {
            self.references += 1;
            let (word, bit) = (number as usize / 64, 1 << (number % 64));
            if seen.len() <= word {
                seen.resize(word + 1, 0);
            }
            self.distinct += u32::from(seen[word] & bit == 0);
            seen[word] |= bit;
        }
        self.steps.push(kind << SHIFT | number.min(PASS_MAX as u32));
    }

    /// Reads plain text. Each line holds a decimal page number, followed by `w` for a write.
    ///
    /// # Errors
    /// A line has another form and is not empty. The message names the line.
    pub fn from_text(bytes: &[u8]) -> Result<Self, StringError> {
        let (mut string, mut seen, mut offset) = (Self::default(), Vec::new(), 0);
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(line);
            let text = text.trim();
            let number = text.strip_suffix(['w', 'W']).map(str::trim_end);
            let page = number.unwrap_or(text).parse().ok().filter(|&page| page < limits::UNITS_MAX);
            match page {
                Some(page) => {
                    string.push(if number.is_some() { Step::Write(page) } else { Step::Read(page) }, &mut seen)
                }
                None if text.is_empty() => {}
                None => {
                    let what = format!("'{}' is no page number", text.chars().take(40).collect::<String>());
                    return Err(StringError { line: index + 1, offset, what });
                }
            }
            offset += line.len() + 1;
        }
        Ok(string)
    }

    /// Makes the string of a recorded run: the references that the policy saw, the discards, and the time that passed.
    ///
    /// # Errors
    /// The trace is incomplete.
    pub fn from_trace(bytes: &[u8]) -> Result<(Header, Self), TraceError> {
        let mut reader = Reader::new(bytes)?;
        let (mut string, mut seen) = (Self::default(), Vec::new());
        let mut told_ms = None;
        for record in reader.by_ref() {
            let step = match record? {
                Record::Inserted(page, Cause::Read) | Record::Referenced(page, false) => Step::Read(page.0),
                Record::Inserted(page, Cause::Write) | Record::Referenced(page, true) => Step::Write(page.0),
                Record::Removed(page, Leave::Forgotten) | Record::Forgotten(page) => Step::Discard(page.0),
                Record::Tick(ms) => {
                    let passed = ms.saturating_sub(told_ms.unwrap_or(ms)).min(PASS_MAX);
                    told_ms = Some(ms);
                    Step::Pass(passed as u32)
                }
                _ => continue,
            };
            string.push(step, &mut seen);
        }
        Ok((reader.header().clone(), string))
    }

    /// Returns the steps in order.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        (0..self.steps.len()).map(|index| self.step(index))
    }

    /// Returns one step.
    ///
    /// # Panics
    /// Panics if `index` is not below [`RefString::len`].
    #[must_use]
    pub fn step(&self, index: usize) -> Step {
        let (kind, number) = (self.steps[index] >> SHIFT, self.steps[index] & PASS_MAX as u32);
        match kind {
            READ => Step::Read(number),
            WRITE => Step::Write(number),
            DISCARD => Step::Discard(number),
            _ => Step::Pass(number),
        }
    }

    /// Returns the number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the string has no steps.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns a number that is above every page number of the string.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Returns the number of distinct pages referenced.
    #[must_use]
    pub fn distinct(&self) -> u32 {
        self.distinct
    }

    /// Returns the number of references.
    #[must_use]
    pub fn references(&self) -> u64 {
        self.references
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_line_by_line_and_a_bad_line_is_named() {
        let string = RefString::from_text(b"3\n7 w\r\n\n 3w\n").unwrap();
        assert_eq!(string.steps().collect::<Vec<_>>(), [Step::Read(3), Step::Write(7), Step::Write(3)]);
        assert_eq!((string.distinct(), string.pages(), string.references()), (2, 8, 3));
        for (text, part) in [
            (&b"1\nx\n"[..], "line 2 (offset 2): 'x'"),
            (b"134217728", "'134217728'"),
            (b"-1", "'-1'"),
            (b"\xff", "line 1"),
        ] {
            let error = RefString::from_text(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
