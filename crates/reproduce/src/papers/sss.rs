//! Paper 5: scheduling parallel processes where their pages are.

use super::{Scale, bars, lines, texts};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Shown, Table, Verdict, number, or_dash};
use crate::results::Results;

const SCHEDULERS: [&str; 5] = ["algo0", "algo1", "algo2", "algo3", "algo4"];
/// Replacement method 1 and 3 of the paper, as the simulator calls them.
const METHODS: [(&str, &str); 2] = [("method 1", "lru"), ("method 3", "kind")];
/// Table 3: clocks of a remote access, the number of the method, and the rate under each scheduler in percent.
const TABLE3: [(u32, usize, [f64; 5]); 4] = [
    (100, 0, [46.20, 49.12, 46.07, 46.07, 58.64]),
    (100, 1, [85.93, 87.99, 90.41, 90.41, 95.15]),
    (300, 0, [39.18, 36.28, 42.01, 42.01, 56.92]),
    (300, 1, [64.69, 71.75, 78.17, 78.17, 90.21]),
];
/// Networks of figure 1: the branches at each level.
const NETWORKS: [&str; 3] = ["16", "4x4", "2x2x2x2"];
const HERE: &str = "The same simulation with the paper's settings (hanare simulate cluster --print-config). Seeds differ, and so \
do the references that the paper does not print.";

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    vec![table3(scale), figure1(scale)]
}

fn cell_name(remote: u32, network: &str) -> String {
    format!("cluster.{remote}.{network}")
}

fn cell(scale: Scale, remote: u32, network: &str) -> Cell {
    let command = format!(
        "{{hanare}} simulate cluster --network {network} --remote-cost {remote} --scheduler {} --replacement lru,kind --seeds {} \
         --json {{json}}",
        SCHEDULERS.join(","),
        scale.pick(5, 20)
    );
    Cell::new(cell_name(remote, network), 1, scale.limit() * 4, &command)
}

/// The effective execution rate in percent.
fn rate(results: &Results, remote: u32, network: &str, method: usize, scheduler: usize) -> Option<f64> {
    let name = format!("cells.{network}.{}.{}.effective_rate_percent_mean", METHODS[method].1, SCHEDULERS[scheduler]);
    results.figure(&cell_name(remote, network), &name)
}

/// The rates of all schedulers.
fn rates(results: &Results, remote: u32, network: &str, method: usize) -> Option<Vec<f64>> {
    (0..SCHEDULERS.len()).map(|scheduler| rate(results, remote, network, method, scheduler)).collect()
}

fn table3(scale: Scale) -> Exhibit {
    Exhibit::new("5.table3", "The effective execution rate by scheduler", [100, 300].map(|remote| cell(scale, remote, "16")).to_vec(), |results| {
        let row = |(remote, method, paper): &(u32, usize, [f64; 5])| {
            let mut row = vec![format!("{remote} clk, {}", METHODS[*method].0)];
            for (nth, paper) in paper.iter().enumerate() {
                row.extend([or_dash(rate(results, *remote, "16", *method, nth)), number(*paper)]);
            }
            row
        };
        let mut head = vec!["remote access"];
        for scheduler in SCHEDULERS {
            head.extend([scheduler, "paper"]);
        }
        vec![Shown::Table(Table::new("A flat network of 16 processors, %", &head, TABLE3.iter().map(row).collect()))]
    })
    .told("algo4, which uses only clusters that hold a process' pages, is best. Dearer remote access sets the schedulers apart.", HERE)
    .claim("algo4 is best, within a point, in every row.", |results| {
        let mut least = f64::INFINITY;
        for (remote, method, _) in TABLE3 {
            let rates = rates(results, remote, "16", method)?;
            least = least.min(rates[4] - rates[..4].iter().fold(0.0_f64, |most, rate| most.max(*rate)));
        }
        Some(Verdict::new(least > -1.0, format!("{} points ahead of the next at least", number(least))))
    })
    .claim("With method 3, schedulers are further apart where remote access is dearer.", |results| {
        let apart = |remote| {
            let rates = rates(results, remote, "16", 1)?;
            Some(rates.iter().fold(0.0_f64, |most, it| most.max(*it)) - rates.iter().fold(f64::INFINITY, |least, it| least.min(*it)))
        };
        let (cheap, dear) = (apart(100)?, apart(300)?);
        Some(Verdict::new(dear > cheap, format!("{} points at 100 clk, {} at 300", number(cheap), number(dear))))
    })
    .claim("algo2 and algo3 are the same on a flat network.", |results| {
        let mut most = 0.0_f64;
        for (remote, method, _) in TABLE3 {
            let rates = rates(results, remote, "16", method)?;
            most = most.max((rates[2] - rates[3]).abs());
        }
        Some(Verdict::at_most("points apart at most", most, 0.5))
    })
}

fn figure1(scale: Scale) -> Exhibit {
    Exhibit::new(
        "5.figure1",
        "Rates by network, scheduler and replacement",
        NETWORKS.map(|network| cell(scale, 100, network)).to_vec(),
        |results| {
            let drawn = |method: usize| {
                let title = format!("Effective execution rate, {}", METHODS[method].0);
                bars(&title, "%", &texts(&NETWORKS), &texts(&SCHEDULERS), |group, nth| {
                    rate(results, 100, NETWORKS[group], method, nth)
                })
            };
            let places = [0.0, 1.0, 2.0, 3.0, 4.0];
            let names = METHODS.map(|(name, _)| name.to_owned());
            let value = |line: usize, nth: usize| rate(results, 100, "16", line, nth);
            vec![
                drawn(0),
                drawn(1),
                lines("A flat network: the rate over algo0 to algo4", "%", "algo", &names, &places, value),
            ]
        },
    )
    .told("The rate rises from algo0 to algo4, and method 3 beats method 1 for every network and scheduler.", HERE)
    .claim("Method 3 beats method 1 for every network and scheduler.", |results| {
        let mut least = f64::INFINITY;
        for network in NETWORKS {
            let (one, three) = (rates(results, 100, network, 0)?, rates(results, 100, network, 1)?);
            least = one.iter().zip(&three).fold(least, |least, (one, three)| least.min(three - one));
        }
        Some(Verdict::new(least > 0.0, format!("{} points ahead at least", number(least))))
    })
}
