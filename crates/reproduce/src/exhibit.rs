//! A table or a figure of a paper, with what it takes to make it here.

use crate::cell::Cell;
use crate::results::Results;

/// A table or a figure of a paper.
pub struct Exhibit {
    /// The name to ask for it by, such as `1.figure7`.
    pub id: String,
    /// Its title, in a few words.
    pub title: &'static str,
    /// The experiment of the paper, and its finding.
    pub there: &'static str,
    /// The experiment here, where that is another one.
    pub here: &'static str,
    /// The commands that it takes, those before others whose results they use.
    pub cells: Vec<Cell>,
    /// The sentences of the paper that it supports.
    pub claims: Vec<Claim>,
    show: Show,
}

type Show = Box<dyn Fn(&Results) -> Vec<Shown>>;
type Judge = Box<dyn Fn(&Results) -> Option<Verdict>>;

/// A sentence of a paper, judged by the figures.
pub struct Claim {
    /// The sentence, in our words.
    pub text: &'static str,
    /// Why it does not hold here, where it does not: a cause that was measured.
    pub cause: Option<&'static str>,
    judge: Judge,
}

/// The judgement of a claim.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// Whether it holds here.
    pub holds: bool,
    /// The figures that decide, as text.
    pub measured: String,
}

/// A drawing or a table.
#[derive(Debug, Clone, PartialEq)]
pub enum Shown {
    /// Bars in groups, or upon each other.
    Bars(Bars),
    /// Lines through points.
    Lines(Lines),
    /// Numbers in rows.
    Table(Table),
}

/// Bars in groups: one of each series in each group.
#[derive(Debug, Clone, PartialEq)]
pub struct Bars {
    /// The title.
    pub title: String,
    /// The unit of the values.
    pub unit: &'static str,
    /// The names of the groups.
    pub groups: Vec<String>,
    /// The series. A value that is missing leaves its place empty.
    pub series: Vec<(String, Vec<Option<f64>>)>,
    /// Whether the series stand upon each other: one bar a group.
    pub is_stacked: bool,
}

/// Places on the horizontal axis with their values. A value that is missing leaves a gap.
pub type Points = Vec<(f64, Option<f64>)>;

/// Lines through points.
#[derive(Debug, Clone, PartialEq)]
pub struct Lines {
    /// The title.
    pub title: String,
    /// The unit of the vertical axis.
    pub unit: &'static str,
    /// The quantity on the horizontal axis, with its unit.
    pub across: &'static str,
    /// The lines, each with its name and its points from left to right.
    pub lines: Vec<(String, Points)>,
}

/// Numbers in rows. The first column has names.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// The title.
    pub title: String,
    /// The names of the columns.
    pub head: Vec<String>,
    /// The rows.
    pub rows: Vec<Vec<String>>,
}

impl Exhibit {
    /// Makes an exhibit without claims.
    pub(crate) fn new(
        id: &str,
        title: &'static str,
        cells: Vec<Cell>,
        show: impl Fn(&Results) -> Vec<Shown> + 'static,
    ) -> Self {
        let (claims, show) = (Vec::new(), Box::new(show));
        Exhibit { id: id.to_owned(), title, there: "", here: "", cells, claims, show }
    }

    /// Says what the paper measured, and what is measured here.
    pub(crate) fn told(mut self, there: &'static str, here: &'static str) -> Self {
        (self.there, self.here) = (there, here);
        self
    }

    /// Adds a claim.
    pub(crate) fn claim(mut self, text: &'static str, judge: impl Fn(&Results) -> Option<Verdict> + 'static) -> Self {
        self.claims.push(Claim { text, cause: None, judge: Box::new(judge) });
        self
    }

    /// Says why the last claim does not hold here, where it does not.
    pub(crate) fn because(mut self, cause: &'static str) -> Self {
        if let Some(claim) = self.claims.last_mut() {
            claim.cause = Some(cause);
        }
        self
    }

    /// Returns the drawings and tables.
    #[must_use]
    pub fn shown(&self, results: &Results) -> Vec<Shown> {
        (self.show)(results)
    }

    /// Whether one of its cells failed or has not run.
    #[must_use]
    pub fn lacks_cells(&self, results: &Results) -> bool {
        self.cells.iter().any(|cell| results.outcome(&cell.name).is_none_or(|outcome| outcome.failed.is_some()))
    }
}

impl Claim {
    /// Judges the claim. `None` if figures are missing.
    #[must_use]
    pub fn judge(&self, results: &Results) -> Option<Verdict> {
        (self.judge)(results)
    }
}

impl Verdict {
    pub(crate) fn new(holds: bool, measured: impl Into<String>) -> Self {
        Verdict { holds, measured: measured.into() }
    }

    /// The verdict on "`what` is at most `bound`".
    pub(crate) fn at_most(what: &str, value: f64, bound: f64) -> Self {
        Verdict::new(value <= bound, format!("{what}: {}, at most {} asked", number(value), number(bound)))
    }

    /// The verdict on "`what` is at least `bound`".
    pub(crate) fn at_least(what: &str, value: f64, bound: f64) -> Self {
        Verdict::new(value >= bound, format!("{what}: {}, at least {} asked", number(value), number(bound)))
    }
}

impl Table {
    pub(crate) fn new(title: impl Into<String>, head: &[&str], rows: Vec<Vec<String>>) -> Self {
        Table { title: title.into(), head: head.iter().map(|name| (*name).to_owned()).collect(), rows }
    }
}

/// Returns a number with three significant digits, and without decimals if it is whole or large.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size < 1e6 && value.fract() == 0.0 => grouped(value),
        size if size >= 100.0 => grouped(value),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        size if size >= 0.1 => format!("{value:.3}"),
        size if size >= 1e-3 => format!("{value:.4}"),
        _ => format!("{value:.1e}"),
    }
}

/// Returns a number as text, or a dash for one that is missing.
pub(crate) fn or_dash(value: Option<f64>) -> String {
    value.map_or("–".to_owned(), number)
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.00012, "1.2e-4"),
            (0.0123, "0.0123"),
            (0.5, "0.500"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (20.0, "20"),
            (-1_234_567.0, "-1,234,567"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!((or_dash(None).as_str(), or_dash(Some(2.5)).as_str()), ("–", "2.50"));
    }

    #[test]
    fn a_verdict_says_what_was_asked() {
        let verdict = Verdict::at_most("run time / Simple's", 1.05, 1.0);
        assert_eq!((verdict.holds, verdict.measured.as_str()), (false, "run time / Simple's: 1.05, at most 1 asked"));
        assert!(Verdict::at_least("speed", 2.0, 2.0).holds);
    }
}
