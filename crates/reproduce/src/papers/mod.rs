//! The papers, each with its exhibits. Their numbers are printed here once, beside the cells that are compared with them.

mod beyond;
mod mach;
mod management;
mod replacement;
mod scash;
mod sss;

use std::time::Duration;

use crate::exhibit::{Bars, Exhibit, Lines, Shown};
use crate::results::Results;

/// A paper with its tables and figures.
pub struct Paper {
    /// Its number among the five. 6 is what none of them has.
    pub number: u32,
    /// Its title in English.
    pub title: &'static str,
    /// Its authors.
    pub authors: &'static str,
    /// Its tables and figures.
    pub exhibits: Vec<Exhibit>,
}

/// How large the experiments are.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scale {
    /// Small programs: all papers within a quarter of an hour on two processors.
    Quick,
    /// Programs of the benchmarks' official sizes, as far as they fit into a small machine.
    Full,
}

impl Scale {
    fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }

    /// How often a cell runs whose times count.
    fn runs(self) -> u32 {
        3
    }

    /// The longest time of one run.
    fn limit(self) -> Duration {
        Duration::from_secs(self.pick(30, 600))
    }
}

/// Returns all papers at this scale.
#[must_use]
pub fn papers(scale: Scale) -> Vec<Paper> {
    vec![
        Paper {
            number: 1,
            title: "Page replacement in a user-level remote memory paging system",
            authors: "K. Saito, H. Midorikawa, M. Kai",
            exhibits: replacement::exhibits(scale),
        },
        Paper {
            number: 2,
            title: "Dynamic memory management for the Distributed Large Memory system",
            authors: "K. Saito, H. Midorikawa, M. Kai",
            exhibits: management::exhibits(scale),
        },
        Paper {
            number: 3,
            title: "Page transfer by zero copy in the software shared memory SCASH",
            authors: "H. Harada, H. Tezuka, A. Hori, S. Sumimoto, T. Takahashi, Y. Ishikawa",
            exhibits: scash::exhibits(scale),
        },
        Paper {
            number: 4,
            title: "Prepaging and clustering in Mach's demand paging",
            authors: "Y. Sudo, T. Miyamoto, S. Iwamoto, S. Shibayama",
            exhibits: mach::exhibits(scale),
        },
        Paper {
            number: 5,
            title: "Scheduling by page location in SSS-CORE",
            authors: "Y. Nobukuni, T. Matsumoto, K. Hiraki",
            exhibits: sss::exhibits(scale),
        },
        Paper {
            number: 6,
            title: "Beyond the papers",
            authors: "Policies that tune themselves, and how far the simulator is from live runs",
            exhibits: beyond::exhibits(scale),
        },
    ]
}

/// The quotient of one figure of two cells. `None` if there is none, as of times of something that never happened.
fn ratio(results: &Results, cell: &str, other: &str, figure: &str) -> Option<f64> {
    Some(results.figure(cell, figure)? / results.figure(other, figure)?).filter(|quotient| quotient.is_finite())
}

/// Returns bars with one value for each group and series.
fn bars(
    title: &str,
    unit: &'static str,
    groups: &[String],
    series: &[String],
    value: impl Fn(usize, usize) -> Option<f64>,
) -> Shown {
    let of = |nth: usize| (0..groups.len()).map(|group| value(group, nth)).collect();
    let series = series.iter().enumerate().map(|(nth, name)| (name.clone(), of(nth))).collect();
    Shown::Bars(Bars { title: title.to_owned(), unit, groups: groups.to_vec(), series, is_stacked: false })
}

/// Returns bars as [`bars`] does, with the series upon each other.
fn stacked(
    title: &str,
    unit: &'static str,
    groups: &[String],
    series: &[String],
    value: impl Fn(usize, usize) -> Option<f64>,
) -> Shown {
    match bars(title, unit, groups, series, value) {
        Shown::Bars(bars) => Shown::Bars(Bars { is_stacked: true, ..bars }),
        other => other,
    }
}

/// Returns a line for each name, through one point for each place.
fn lines(
    title: &str,
    unit: &'static str,
    across: &'static str,
    names: &[String],
    places: &[f64],
    value: impl Fn(usize, usize) -> Option<f64>,
) -> Shown {
    let points = |line: usize| places.iter().enumerate().map(|(nth, at)| (*at, value(line, nth))).collect();
    let lines = names.iter().enumerate().map(|(line, name)| (name.clone(), points(line))).collect();
    Shown::Lines(Lines { title: title.to_owned(), unit, across, lines })
}

fn texts(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns a share of 1 as a percentage.
fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::Cell;
    use std::collections::BTreeMap;

    #[test]
    fn each_exhibit_has_a_name_of_its_own_and_cells_of_one_name_are_one_cell() {
        for scale in [Scale::Quick, Scale::Full] {
            let mut ids = Vec::new();
            let mut cells: BTreeMap<String, Cell> = BTreeMap::new();
            for paper in papers(scale) {
                for exhibit in paper.exhibits {
                    assert!(exhibit.id.starts_with(&format!("{}.", paper.number)), "{}", exhibit.id);
                    assert!(!exhibit.cells.is_empty() && !exhibit.there.is_empty(), "{}", exhibit.id);
                    ids.push(exhibit.id);
                    for cell in exhibit.cells {
                        let known = cells.entry(cell.name.clone()).or_insert_with(|| cell.clone());
                        assert_eq!(*known, cell);
                    }
                }
            }
            let count = ids.len();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), count, "{ids:?}");
        }
    }

    #[test]
    fn without_results_every_exhibit_can_be_drawn_and_no_claim_is_judged() {
        let nothing = Results::default();
        for exhibit in papers(Scale::Quick).into_iter().flat_map(|paper| paper.exhibits) {
            assert!(!exhibit.shown(&nothing).is_empty(), "{}", exhibit.id);
            assert!(exhibit.lacks_cells(&nothing), "{}", exhibit.id);
            for claim in &exhibit.claims {
                assert_eq!(claim.judge(&nothing), None, "{}: {}", exhibit.id, claim.text);
            }
        }
    }
}
