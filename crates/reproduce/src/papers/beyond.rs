//! Experiments that none of the papers has: policies that tune themselves, all policies over all sizes of local memory, and how far
//! the simulator is from live runs.

use super::replacement::{Named, PROGRAMS, Program, against, cells, eight};
use super::{Scale, bars, lines};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Shown, Table, Verdict, number, or_dash};
use crate::results::Results;

/// Policies that are younger than the papers.
const YOUNGER: [Named; 6] = [
    ("auto", "auto"),
    ("LRU", "lru"),
    ("ARC", "arc"),
    ("LIRS", "lirs"),
    ("S3-FIFO", "s3-fifo"),
    ("W-TinyLFU", "w-tinylfu"),
];
/// Shares of local memory of the map, in percent of the distinct pages.
const SHARES: [u32; 6] = [15, 25, 40, 50, 60, 75];
/// Policies whose simulation is compared with live runs.
const COMPARED: [&str; 6] = ["simple", "swap-in-history", "fifo", "lru", "lirs", "s3-fifo"];

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    vec![younger(scale), map(scale), simulated(scale)]
}

fn figure_of(policy: &str, figure: &str) -> String {
    format!("rows.{policy}.{figure}")
}

fn trace_name(program: &Program) -> String {
    format!("trace.{}", program.name.to_lowercase())
}

fn map_name(program: &Program, percent: u32) -> String {
    format!("map.{}.{percent}", program.name.to_lowercase())
}

/// The recorded run of a program with a quarter of its memory local.
fn trace(scale: Scale, program: &Program) -> Cell {
    let command = format!(
        "{{hanare}} trace record --output {{file}} --page-size 16K --prefetch none --policy simple --local {{share:{}:25}} -- {}",
        program.whole_name(),
        program.command(scale)
    );
    Cell::new(trace_name(program), 1, scale.limit(), &command)
}

/// The simulation of all policies on a recorded run.
fn simulation(scale: Scale, program: &Program, percent: u32) -> Cell {
    let eight = eight(scale);
    let mut policies: Vec<_> = eight.iter().chain(&YOUNGER).map(|(_, policy)| *policy).collect();
    policies.push("opt");
    let command = format!(
        "{{hanare}} simulate policies --trace {{file:{}}} --local {{pages:{}:{percent}:16384}}p --policies {} --json {{json}}",
        trace_name(program),
        program.whole_name(),
        policies.join(";")
    );
    Cell::new(map_name(program, percent), 1, scale.limit(), &command)
}

fn simulations(scale: Scale, percents: impl Fn(&Program) -> Vec<u32>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for program in &PROGRAMS {
        cells.extend([program.whole(scale), trace(scale, program)]);
        cells.extend(percents(program).into_iter().map(|percent| simulation(scale, program, percent)));
    }
    cells
}

fn younger(scale: Scale) -> Exhibit {
    let programs: Vec<&Program> = PROGRAMS.iter().collect();
    let groups: Vec<_> = PROGRAMS.iter().map(|program| program.name.to_owned()).collect();
    let names = YOUNGER.map(|(name, _)| name.to_owned());
    let eight = eight(scale);
    let mut policies: Vec<_> = eight.iter().map(|(_, policy)| *policy).collect();
    policies.extend(YOUNGER.iter().map(|(_, policy)| policy));
    let all = cells(scale, &programs, &[], &policies);
    Exhibit::new("6.policies", "Younger policies on the seven programs", all, move |results| {
        let drawn = |title: &str, figure: &'static str| {
            let value = |group: usize, nth: usize| against(results, &PROGRAMS[group], YOUNGER[nth].1, "simple", figure);
            bars(title, "x", &groups, &names, value)
        };
        vec![drawn("Run time / Simple's", "elapsed_s"), drawn("Pages swapped in / Simple's", "pages_in")]
    })
    .told(
        "\"A pager that tunes itself\" is what paper 1 leaves open.",
        "The programs and settings of paper 1's figure 7.",
    )
    .claim(
        "auto swaps no more than the best of the eight policies, within 3 %, on 6 of 7 programs.",
        move |results| {
            let mut told = Vec::new();
            let mut held = 0;
            for program in &PROGRAMS {
                let swaps = |policy: &str| results.figure(&program.cell_name(program.percent, policy), "pages_in");
                let best = eight.iter().map(|(_, policy)| swaps(policy)).collect::<Option<Vec<_>>>()?;
                let ratio = swaps("auto")? / best.into_iter().fold(f64::INFINITY, f64::min).max(1.0);
                held += usize::from(ratio <= 1.03);
                told.push(format!("{} {}", program.name, number(ratio)));
            }
            Some(Verdict::new(held >= 6, format!("auto / best: {}", told.join(", "))))
        },
    )
}

fn map(scale: Scale) -> Exhibit {
    let eight = eight(scale);
    let mut policies: Vec<Named> = [eight[0], eight[3], eight[4], eight[7]].to_vec();
    policies.extend(YOUNGER);
    policies.push(("OPT", "opt"));
    let places = SHARES.map(f64::from);
    Exhibit::new(
        "6.map",
        "Misses over local memory, all programs",
        simulations(scale, |_| SHARES.to_vec()),
        move |results| {
            let drawn = |program: &Program| {
                let names: Vec<_> = policies.iter().map(|(name, _)| (*name).to_owned()).collect();
                let value = |line: usize, nth: usize| {
                    let cell = map_name(program, SHARES[nth]);
                    let misses = |policy| results.figure(&cell, &figure_of(policy, "misses"));
                    Some(misses(policies[line].1)? / misses("opt")?)
                };
                lines(&format!("{}: misses / OPT's", program.name), "x", "local memory, %", &names, &places, value)
            };
            PROGRAMS.iter().map(drawn).collect()
        },
    )
    .told(
        "No paper has this map: all policies on all programs over all sizes.",
        "Simulated on runs recorded with 25 % local memory.",
    )
    .claim("No policy misses less than OPT.", move |results| {
        let mut least = f64::INFINITY;
        for program in &PROGRAMS {
            for share in SHARES {
                let cell = map_name(program, share);
                let opt = results.figure(&cell, &figure_of("opt", "misses"))?;
                for (_, policy) in eight.iter().chain(&YOUNGER) {
                    least = least.min(results.figure(&cell, &figure_of(policy, "misses"))? / opt);
                }
            }
        }
        Some(Verdict::at_least("misses / OPT's", least, 1.0))
    })
}

/// Live and simulated misses of a policy.
fn misses(results: &Results, program: &Program, policy: &str) -> Option<(f64, f64)> {
    let live =
        results.sum(&program.cell_name(program.percent, policy), &["faults_read", "faults_write", "faults_zero"])?;
    let simulated = results.figure(&map_name(program, program.percent), &figure_of(policy, "misses"))?;
    Some((live, simulated))
}

fn simulated(scale: Scale) -> Exhibit {
    let mut all = simulations(scale, |program| vec![program.percent]);
    let programs: Vec<&Program> = PROGRAMS.iter().collect();
    all.extend(cells(scale, &programs, &[], &COMPARED));
    Exhibit::new("6.simulated", "Simulated and live misses", all, |results| {
        let rows = PROGRAMS.iter().flat_map(|program| COMPARED.iter().map(move |policy| (program, *policy)));
        let row = |(program, policy): (&Program, &str)| {
            let (live, simulated) = misses(results, program, policy).unzip();
            let apart = live.zip(simulated).map(|(live, simulated)| 100.0 * (simulated / live - 1.0));
            vec![format!("{}, {policy}", program.name), or_dash(live), or_dash(simulated), or_dash(apart)]
        };
        vec![Shown::Table(Table::new("Misses", &["", "live", "simulated", "apart, %"], rows.map(row).collect()))]
    })
    .told(
        "How far may a simulation on a recorded run be trusted?",
        "The simulator sees the references that trapped in the recorded run.",
    )
    .claim("Simulated misses are within 5 % of live ones (median).", |results| {
        let mut apart = Vec::new();
        for program in &PROGRAMS {
            for policy in COMPARED {
                let (live, simulated) = misses(results, program, policy)?;
                apart.push((simulated / live - 1.0).abs());
            }
        }
        apart.sort_by(f64::total_cmp);
        Some(Verdict::at_most("median, %", 100.0 * apart[apart.len() / 2], 5.0))
    })
}
