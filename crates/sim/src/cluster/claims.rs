//! Checks claims against results: the paper's conclusions from its figures (paper 5, section 4), and a claim about the
//! scheduler `settle`, which is not in the paper.
//!
//! Cells are compared seed by seed, because the same seed gives the same order of arrival in all cells. A difference is
//! a tie if its mean is within one standard error of 0. More seeds could decide a tie either way.

use super::cells::Row;
use super::run::Outcome;

/// The result of a claim, or of one of its cases.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The claim holds.
    Holds,
    /// The difference is too small to decide.
    Tied,
    /// The claim does not hold.
    Fails,
}

impl Verdict {
    /// Returns the word for the verdict in the output.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::Tied => "tied",
            Self::Fails => "does not hold",
        }
    }
}

/// One comparison.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// The network, the remote cost, and all other values that distinguish this case.
    pub place: String,
    /// Mean over the seeds of the difference that the claim compares, in points. It is negative if the claim is not
    /// met.
    pub margin_points: f64,
    /// Standard error of `margin_points`, in points; 0 for one seed.
    pub error_points: f64,
    /// The verdict on this case.
    pub verdict: Verdict,
}

/// A claim with all its cases.
#[derive(Clone, PartialEq, Debug)]
pub struct Claim {
    /// The text of the claim.
    pub text: &'static str,
    /// Whether a tie is enough to meet the claim.
    pub tie_is_enough: bool,
    /// The cases in which the claim could be judged. There is at least one.
    pub cases: Vec<Case>,
}

impl Claim {
    /// Returns the verdict on the claim. The claim fails if one case fails.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let any = |verdict| self.count(verdict) > 0;
        match (any(Verdict::Fails), any(Verdict::Tied) && !self.tie_is_enough) {
            (true, _) => Verdict::Fails,
            (false, true) => Verdict::Tied,
            (false, false) => Verdict::Holds,
        }
    }

    /// Returns the number of cases with this verdict.
    #[must_use]
    pub fn count(&self, verdict: Verdict) -> usize {
        self.cases.iter().filter(|case| case.verdict == verdict).count()
    }

    /// Returns the case with the smallest margin.
    #[must_use]
    pub fn least(&self) -> Option<&Case> {
        self.cases.iter().min_by(|a, b| a.margin_points.total_cmp(&b.margin_points))
    }

    /// Returns the claim and its verdict in one line.
    #[must_use]
    pub fn line(&self) -> String {
        let (held, tied) = (self.count(Verdict::Holds), self.count(Verdict::Tied));
        let mut line = format!("{}: {held} of {}", self.text, self.cases.len());
        if tied > 0 {
            line += &format!(", {tied} tied");
        }
        if let Some(case) = self.least() {
            line += &format!("; least {:+.2} ±{:.2} ({})", case.margin_points, case.error_points, case.place);
        }
        line
    }
}

/// Returns all claims that can be judged from these rows.
#[must_use]
pub fn claims(rows: &[Row]) -> Vec<Claim> {
    let all = [
        ("method 3 above method 1, in every cell", false, methods(rows)),
        ("algo4 best of algo0 to algo4 or tied, in every row", true, best(rows)),
        ("schedulers further apart where remote access is dearer, method 3", false, gaps(rows)),
        ("algo2 and algo3 the same in every figure on a flat network", false, same(rows)),
        ("settle (not of the paper) above algo4, method 3", false, settle(rows)),
    ];
    let claims = all.into_iter().map(|(text, tie_is_enough, cases)| Claim { text, tie_is_enough, cases });
    claims.filter(|claim| !claim.cases.is_empty()).collect()
}

/// Names a row's cell: the network, the remote cost and, if asked for, the replacement and the scheduler.
fn place(row: &Row, replacement: bool, scheduler: bool) -> String {
    let mut place = format!("{}, {} clk", row.cell.network, row.cell.remote_cost_clk);
    if replacement {
        place += &format!(", {}", row.cell.replacement.name());
    }
    if scheduler {
        place += &format!(", {}", row.cell.scheduler.name);
    }
    place
}

/// Makes a case from one value for each seed.
fn case(place: String, points: &[f64]) -> Case {
    let count = points.len().max(1) as f64;
    let mean = points.iter().sum::<f64>() / count;
    let squares: f64 = points.iter().map(|point| (point - mean).powi(2)).sum();
    let error = (squares / (count - 1.0).max(1.0) / count).sqrt();
    let verdict = match mean {
        mean if mean.abs() <= error => Verdict::Tied,
        mean if mean > 0.0 => Verdict::Holds,
        _ => Verdict::Fails,
    };
    Case { place, margin_points: mean, error_points: error, verdict }
}

/// Returns for each seed the points by which row `a` is above row `b`.
fn above(a: &Row, b: &Row) -> Vec<f64> {
    let rate = |outcome: &Outcome| outcome.effective_percent;
    a.outcomes.iter().zip(&b.outcomes).map(|(a, b)| rate(a) - rate(b)).collect()
}

/// Returns the row with this replacement and scheduler that has the network and the remote cost of `row`.
fn beside<'a>(rows: &'a [Row], row: &Row, replacement: &str, scheduler: &str) -> Option<&'a Row> {
    rows.iter().find(|other| {
        same_machine(other, row)
            && other.cell.replacement.name() == replacement
            && other.cell.scheduler.name == scheduler
    })
}

fn same_machine(a: &Row, b: &Row) -> bool {
    (&a.cell.network, a.cell.remote_cost_clk) == (&b.cell.network, b.cell.remote_cost_clk)
}

fn of(row: &Row, replacement: &str, scheduler: &str) -> bool {
    row.cell.replacement.name() == replacement && row.cell.scheduler.name == scheduler
}

/// Whether the row's scheduler is one of the paper's.
fn of_paper(row: &Row) -> bool {
    row.cell.scheduler.name.starts_with("algo")
}

fn methods(rows: &[Row]) -> Vec<Case> {
    let kinds = rows.iter().filter(|row| row.cell.replacement.name() == "kind");
    let pairs = kinds.filter_map(|kind| Some((kind, beside(rows, kind, "lru", kind.cell.scheduler.name)?)));
    pairs.map(|(kind, lru)| case(place(kind, false, true), &above(kind, lru))).collect()
}

/// Returns the rows with the network, remote cost and replacement of `row`, but with another scheduler of the paper.
fn rivals<'a>(rows: &'a [Row], row: &'a Row) -> impl Iterator<Item = &'a Row> {
    rows.iter().filter(|other| {
        of_paper(other)
            && same_machine(other, row)
            && other.cell.replacement.name() == row.cell.replacement.name()
            && other.cell.scheduler.name != row.cell.scheduler.name
    })
}

fn best(rows: &[Row]) -> Vec<Case> {
    let highest = |row| rivals(rows, row).max_by(|a, b| a.rate().total_cmp(&b.rate()));
    let pairs =
        rows.iter().filter(|row| row.cell.scheduler.name == "algo4").filter_map(|row| Some((row, highest(row)?)));
    pairs.map(|(row, rival)| case(place(row, true, false), &above(row, rival))).collect()
}

/// Returns for each seed the difference between the best and the worst of the paper's schedulers under method 3.
fn gap(rows: &[Row], like: &Row) -> Vec<f64> {
    let mut mine: Vec<&Row> = rivals(rows, like).chain([like]).collect();
    mine.sort_by(|a, b| a.rate().total_cmp(&b.rate()));
    mine.first().zip(mine.last()).map_or(Vec::new(), |(lowest, highest)| above(highest, lowest))
}

fn gaps(rows: &[Row]) -> Vec<Case> {
    // Each pair of network and remote cost counts once. Its row with `algo4` represents the pair.
    let of_algo4 = || rows.iter().filter(|row| of(row, "kind", "algo4") && rivals(rows, row).next().is_some());
    let mut cases = Vec::new();
    for cheap in of_algo4() {
        let dearer = of_algo4().filter(|row| {
            row.cell.network == cheap.cell.network && row.cell.remote_cost_clk > cheap.cell.remote_cost_clk
        });
        if let Some(dear) = dearer.min_by_key(|row| row.cell.remote_cost_clk) {
            let wider: Vec<f64> =
                gap(rows, dear).iter().zip(gap(rows, cheap)).map(|(dear, cheap)| dear - cheap).collect();
            let (from, to) = (cheap.cell.remote_cost_clk, dear.cell.remote_cost_clk);
            cases.push(case(format!("{}, {from} to {to} clk", cheap.cell.network), &wider));
        }
    }
    cases
}

fn same(rows: &[Row]) -> Vec<Case> {
    let flat = rows.iter().filter(|row| row.cell.network.height() == 1 && row.cell.scheduler.name == "algo2");
    let pairs = flat.filter_map(|row| Some((row, beside(rows, row, &row.cell.replacement.name(), "algo3")?)));
    let judged = pairs.map(|(row, other)| {
        let verdict = if row.outcomes == other.outcomes { Verdict::Holds } else { Verdict::Fails };
        Case { verdict, ..case(place(row, true, false), &above(row, other)) }
    });
    judged.collect()
}

fn settle(rows: &[Row]) -> Vec<Case> {
    let settled = rows.iter().filter(|row| of(row, "kind", "settle"));
    let pairs = settled.filter_map(|row| Some((row, beside(rows, row, "kind", "algo4")?)));
    pairs.map(|(row, other)| case(place(row, false, false), &above(row, other))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::cells::Cell;
    use crate::cluster::memory::Replacement;
    use crate::cluster::schedule::Info;
    use crate::cluster::world::Counts;

    fn row(network: &str, remote_cost_clk: u32, replacement: &str, scheduler: &str, rates: &[f64]) -> Row {
        let outcome = |&effective_percent: &f64| Outcome {
            effective_percent,
            quanta: 1,
            finished: true,
            placed_percent: 100.0,
            fairness: 1.0,
            counts: Counts::default(),
            effective_clk: Vec::new(),
        };
        let cell = Cell {
            network: network.parse().unwrap(),
            remote_cost_clk,
            replacement: Replacement::parse(replacement).unwrap(),
            scheduler: Info::find(scheduler).unwrap(),
        };
        Row { cell, outcomes: rates.iter().map(outcome).collect() }
    }

    fn judged(rows: &[Row]) -> Vec<(&'static str, Verdict)> {
        claims(rows).iter().map(|claim| (claim.text.split(' ').next().unwrap(), claim.verdict())).collect()
    }

    #[test]
    fn a_difference_within_one_standard_error_is_a_tie() {
        // The differences are 1, 2 and 3 points, so the result is 2 +- 0.58. The comparison is made seed by seed,
        // because the rates differ much more from seed to seed.
        let with = |shift: f64| {
            judged(&[
                row("4", 1, "lru", "algo0", &[10.0, 40.0, 90.0]),
                row("4", 1, "kind", "algo0", &[11.0 + shift, 42.0 + shift, 93.0 + shift]),
            ])
        };
        assert_eq!(with(0.0), [("method", Verdict::Holds)]);
        assert_eq!(with(-1.4), [("method", Verdict::Holds)]);
        assert_eq!(with(-1.5), [("method", Verdict::Tied)]);
        assert_eq!(with(-2.5), [("method", Verdict::Tied)]);
        assert_eq!(with(-2.6), [("method", Verdict::Fails)]);
    }

    #[test]
    fn one_cell_against_a_claim_is_enough_and_is_named() {
        let rows = [
            row("4", 1, "lru", "algo0", &[10.0]),
            row("4", 1, "kind", "algo0", &[11.0]),
            row("2x2", 1, "lru", "algo0", &[10.0]),
            row("2x2", 1, "kind", "algo0", &[9.5]),
        ];
        let claims = claims(&rows);
        assert_eq!((claims.len(), claims[0].verdict()), (1, Verdict::Fails));
        assert!(claims[0].line().ends_with(": 1 of 2; least -0.50 ±0.00 (2x2, 1 clk, algo0)"), "{}", claims[0].line());
    }

    #[test]
    fn algo4_may_tie_and_is_not_measured_against_ours() {
        let with = |algo4: f64| {
            let rows = [
                row("2x2", 1, "arc", "algo1", &[50.0]),
                row("2x2", 1, "arc", "algo3", &[70.0]),
                row("2x2", 1, "arc", "algo4", &[algo4]),
                row("2x2", 1, "arc", "settle", &[90.0]),
            ];
            judged(&rows)
        };
        assert_eq!(with(70.1), [("algo4", Verdict::Holds)]);
        assert_eq!(with(70.0), [("algo4", Verdict::Holds)]);
        assert_eq!(with(69.9), [("algo4", Verdict::Fails)]);
    }

    #[test]
    fn the_gap_is_between_the_highest_and_the_lowest_of_one_cost_and_the_next() {
        let with = |lowest: f64| {
            let rows = [
                row("2x2", 300, "kind", "algo0", &[lowest]),
                row("2x2", 300, "kind", "algo4", &[80.0]),
                row("2x2", 100, "kind", "algo0", &[70.0]),
                row("2x2", 100, "kind", "algo4", &[90.0]),
            ];
            claims(&rows).into_iter().find(|claim| claim.text.starts_with("schedulers")).unwrap()
        };
        assert_eq!((with(59.0).verdict(), with(60.0).verdict()), (Verdict::Holds, Verdict::Tied));
        let fails = with(61.0);
        assert_eq!((fails.verdict(), fails.cases.len()), (Verdict::Fails, 1));
        assert_eq!(fails.cases[0].place, "2x2, 100 to 300 clk");
    }

    #[test]
    fn flat_networks_are_compared_in_every_figure_and_settle_with_algo4() {
        let mut rows = vec![
            row("4", 1, "lru", "algo2", &[50.0]),
            row("4", 1, "lru", "algo3", &[50.0]),
            row("2x2", 1, "lru", "algo2", &[50.0]),
            row("2x2", 1, "lru", "algo3", &[60.0]),
        ];
        assert_eq!(judged(&rows), [("algo2", Verdict::Holds)]);
        rows[1].outcomes[0].quanta = 2;
        assert_eq!(judged(&rows), [("algo2", Verdict::Fails)]);
        let rows = [row("4", 1, "kind", "algo4", &[50.0]), row("4", 1, "kind", "settle", &[51.0])];
        assert_eq!(judged(&rows), [("settle", Verdict::Holds)]);
        assert!(claims(&rows[..1]).is_empty() && claims(&[]).is_empty());
    }
}
