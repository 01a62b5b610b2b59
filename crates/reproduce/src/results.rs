//! The outcomes of cells.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::figures::Figures;

/// The outcome of one cell.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The command that ran, with all its parts filled in.
    pub command: Vec<String>,
    /// The figures of each run.
    pub runs: Vec<Figures>,
    /// Why the cell has no figures, or not those of all its runs: the last line that it printed.
    pub failed: Option<String>,
}

/// The outcomes of cells by their names.
#[derive(Debug, Default)]
pub struct Results {
    cells: BTreeMap<String, Outcome>,
}

impl Outcome {
    pub(crate) fn of(runs: Vec<Figures>, command: Vec<String>) -> Self {
        Outcome { command, runs, failed: None }
    }

    fn sorted(&self, figure: &str) -> Vec<f64> {
        let mut values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure).copied()).collect();
        values.sort_by(f64::total_cmp);
        values
    }
}

impl Results {
    /// Keeps the outcome of a cell.
    pub fn put(&mut self, cell: String, outcome: Outcome) {
        self.cells.insert(cell, outcome);
    }

    /// Returns the outcome of a cell. `None` if it has not run.
    #[must_use]
    pub fn outcome(&self, cell: &str) -> Option<&Outcome> {
        self.cells.get(cell)
    }

    /// Returns all outcomes in the order of their names.
    pub fn all(&self) -> impl Iterator<Item = (&String, &Outcome)> {
        self.cells.iter()
    }

    /// Returns the median of a figure over the runs of a cell. `None` if the cell failed or has no such figure.
    #[must_use]
    pub fn figure(&self, cell: &str, figure: &str) -> Option<f64> {
        let values = self.whole(cell)?.sorted(figure);
        let middle = values.len() / 2;
        match values.len() {
            0 => None,
            count if count % 2 == 1 => Some(values[middle]),
            _ => Some((values[middle - 1] + values[middle]) / 2.0),
        }
    }

    /// Returns the least and the greatest value of a figure.
    #[must_use]
    pub fn spread(&self, cell: &str, figure: &str) -> Option<(f64, f64)> {
        let values = self.whole(cell)?.sorted(figure);
        Some((*values.first()?, *values.last()?))
    }

    /// Returns the sum of the medians of some figures.
    pub(crate) fn sum(&self, cell: &str, figures: &[&str]) -> Option<f64> {
        figures.iter().map(|figure| self.figure(cell, figure)).sum()
    }

    fn whole(&self, cell: &str) -> Option<&Outcome> {
        self.cells.get(cell).filter(|outcome| outcome.failed.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_and_a_failed_cell_has_none() {
        let run = |value: f64| Figures::from([("s".to_owned(), value)]);
        let mut results = Results::default();
        results.put("odd".to_owned(), Outcome::of([3.0, 1.0, 9.0].map(run).to_vec(), Vec::new()));
        results.put("even".to_owned(), Outcome::of([3.0, 1.0].map(run).to_vec(), Vec::new()));
        let failed = Outcome { failed: Some("killed".to_owned()), ..Outcome::of(vec![run(1.0)], Vec::new()) };
        results.put("failed".to_owned(), failed);
        assert_eq!((results.figure("odd", "s"), results.spread("odd", "s")), (Some(3.0), Some((1.0, 9.0))));
        assert_eq!((results.figure("even", "s"), results.figure("even", "t")), (Some(2.0), None));
        assert_eq!((results.figure("failed", "s"), results.figure("absent", "s")), (None, None));
        assert_eq!((results.sum("odd", &["s", "s"]), results.sum("odd", &["s", "t"])), (Some(6.0), None));
    }
}
