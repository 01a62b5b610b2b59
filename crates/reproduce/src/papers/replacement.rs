//! Paper 1: replacement policies, and the cost of the bits that some of them need.

use super::{Scale, bars, lines, percent, ratio, stacked, texts};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Verdict, number};
use crate::results::Results;

/// A program of the paper, with the one that stands for it.
#[derive(Debug)]
pub(super) struct Program {
    /// Its name in the paper.
    pub(super) name: &'static str,
    quick: &'static str,
    full: &'static str,
    /// Local memory in the figures that compare policies, in percent of all. The paper prints those of FT and SP.
    pub(super) percent: u32,
}

/// The programs in the paper's order.
pub(super) const PROGRAMS: [Program; 7] = [
    Program { name: "Himeno", quick: "stencil 16", full: "himeno --size M --iterations 12", percent: 50 },
    Program { name: "IS", quick: "is 16", full: "npb_is.A", percent: 50 },
    Program { name: "FT", quick: "fft 16", full: "npb_ft.A", percent: 77 },
    Program { name: "CG", quick: "cg 16", full: "npb_cg.A", percent: 50 },
    Program { name: "MG", quick: "mg 16", full: "npb_mg.A", percent: 50 },
    Program { name: "SP", quick: "sp 16", full: "npb_sp.W", percent: 55 },
    Program { name: "Cluster", quick: "clustering 16", full: "genes --allocator dlm", percent: 58 },
];
const HIMENO: &Program = &PROGRAMS[0];
const FT: &Program = &PROGRAMS[2];
const SP: &Program = &PROGRAMS[5];
const CLUSTER: &Program = &PROGRAMS[6];

/// A policy: its name in the paper, and ours.
pub(super) type Named = (&'static str, &'static str);

const SIMPLE: &str = "simple";
const HISTORY: &str = "swap-in-history";
/// The intervals between two rounds of clearing by swap count.
const BY_SWAPS: [&str; 3] = ["nru-swaps:swaps=10", "nru-swaps:swaps=50", "nru-swaps:swaps=100"];
const SWAPS: [f64; 3] = [10.0, 50.0, 100.0];
/// Shares of local memory, in percent, of the figures over them.
const PERCENTS: [u32; 4] = [20, 40, 60, 80];
/// The parts of a run time, and their names in the paper.
const PARTS: [&str; 4] = ["calc_s", "swap_s", "set_bit_s", "clear_bit_s"];
const PART_NAMES: [&str; 4] = ["calc", "swap", "set bit", "clear bit"];

const HERE: &str = "Smaller programs of the same shape, pages of 16 KiB instead of 1 MiB, and a private memory server on this \
host instead of one behind a 10 Gbit/s network. So a swap costs microseconds and not a millisecond.";

impl Program {
    fn key(&self) -> String {
        self.name.to_lowercase()
    }

    pub(super) fn command(&self, scale: Scale) -> String {
        format!("{{work}}/{}", scale.pick(self.quick, self.full))
    }

    /// The cell that has all its memory local. Others take their shares from it.
    pub(super) fn whole(&self, scale: Scale) -> Cell {
        let command =
            format!("{{hanare}} run --local 16G --memory 1G --stats-json {{json}} -- {}", self.command(scale));
        Cell::new(self.whole_name(), scale.runs(), scale.limit(), &command)
    }

    pub(super) fn whole_name(&self) -> String {
        format!("whole.{}", self.key())
    }

    pub(super) fn cell_name(&self, percent: u32, policy: &str) -> String {
        let policy: String = policy.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        format!("policy.{}.{percent}.{policy}", self.key())
    }

    pub(super) fn cell(&self, scale: Scale, percent: u32, policy: &str) -> Cell {
        let command = format!(
            "{{hanare}} run --page-size 16K --prefetch none --policy {policy} --local {{share:{}:{percent}}} \
             --stats-json {{json}} -- {}",
            self.whole_name(),
            self.command(scale)
        );
        Cell::new(self.cell_name(percent, policy), scale.runs(), scale.limit(), &command)
    }
}

/// The intervals between two rounds of clearing by timer. The small programs run a tenth of the time at most.
fn by_timer(scale: Scale) -> [&'static str; 3] {
    scale.pick(
        ["nru-timer:ms=10", "nru-timer:ms=50", "nru-timer:ms=100"],
        ["nru-timer:ms=100", "nru-timer:ms=500", "nru-timer:ms=1000"],
    )
}

/// The eight policies with the intervals of figure 7.
pub(super) fn eight(scale: Scale) -> [Named; 8] {
    [
        ("Simple", SIMPLE),
        ("Swap-in history", HISTORY),
        ("Random", "random"),
        ("FIFO", "fifo"),
        ("U-Clock", "clock"),
        ("U-NRU_s", BY_SWAPS[1]),
        ("U-NRU_t", by_timer(scale)[0]),
        ("U-pLRU", "plru"),
    ]
}

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    vec![figure1(scale), figure2(scale), figure3(scale), figure4(scale), figure5(scale), figure6(scale), figure7(scale)]
}

/// The cells of some programs at some shares under some policies, after those that tell how much memory they have.
pub(super) fn cells(scale: Scale, programs: &[&Program], percents: &[u32], policies: &[&str]) -> Vec<Cell> {
    let mut cells: Vec<_> = programs.iter().map(|program| program.whole(scale)).collect();
    for program in programs {
        // Without a share, each program has its own.
        let own = [program.percent];
        for percent in if percents.is_empty() { &own[..] } else { percents } {
            cells.extend(policies.iter().map(|policy| program.cell(scale, *percent, policy)));
        }
    }
    cells
}

/// The part of a cell's run time that is spent in some of [`PARTS`]. The medians of all parts are the whole.
fn share(results: &Results, cell: &str, parts: &[&str]) -> Option<f64> {
    Some(results.sum(cell, parts)? / results.sum(cell, &PARTS)?)
}

fn figure1(scale: Scale) -> Exhibit {
    let policy = by_timer(scale)[1];
    let name = move |percent: u32| HIMENO.cell_name(percent, policy);
    let groups: Vec<_> = PERCENTS.iter().map(|percent| format!("{percent} %")).collect();
    Exhibit::new("1.figure1", "Parts of the run time by local memory", cells(scale, &[HIMENO], &PERCENTS, &[policy]), {
        move |results| {
            let value = |group: usize, part: usize| results.figure(&name(PERCENTS[group]), PARTS[part]);
            vec![stacked("Himeno with U-NRU_t: run time by local memory", "s", &groups, &texts(&PART_NAMES), value)]
        }
    })
    .told("Himeno ELARGE, U-NRU_t with 500 ms: with less local memory, swaps take a larger part and bits a very small one.", HERE)
    .claim("With less local memory, a larger part of the time goes into swaps.", move |results| {
        let (least, most) = (share(results, &name(20), &["swap_s"])?, share(results, &name(80), &["swap_s"])?);
        Some(Verdict::new(least > most, format!("{} at 20 %, {} at 80 %", percent(least), percent(most))))
    })
    .claim("With little local memory, bits take a small part of the time.", move |results| {
        let part = share(results, &name(20), &["set_bit_s", "clear_bit_s"])?;
        Some(Verdict::new(part < 0.1, format!("{} at 20 %, below 10 % asked", percent(part))))
    })
}

fn figure2(scale: Scale) -> Exhibit {
    let policy = by_timer(scale)[1];
    let programs = [HIMENO, FT, CLUSTER];
    let groups = programs.map(|program| program.name.to_owned());
    let part = move |results: &Results, program: &Program, parts: &[&str]| {
        share(results, &program.cell_name(60, policy), parts)
    };
    Exhibit::new("1.figure2", "Parts of the run time by program", cells(scale, &programs, &[60], &[policy]), {
        move |results| {
            let value = |group: usize, nth: usize| Some(100.0 * part(results, programs[group], &[PARTS[nth]])?);
            vec![stacked(
                "U-NRU_t with 60 % local memory: parts of the run time",
                "%",
                &groups,
                &texts(&PART_NAMES),
                value,
            )]
        }
    })
    .told(
        "At about the same share of local memory, FT spends a small part in swaps and Cluster 3.0 most of its time.",
        HERE,
    )
    .claim("Cluster spends a larger part of its time in swaps than FT.", move |results| {
        let (cluster, ft) = (part(results, CLUSTER, &["swap_s"])?, part(results, FT, &["swap_s"])?);
        Some(Verdict::new(cluster > ft, format!("{} and {}", percent(cluster), percent(ft))))
    })
}

/// The mean time between two rounds of clearing, in milliseconds, of the policy that clears each `SWAPS[nth]` swaps.
fn clear_interval_ms(results: &Results, percent: u32, nth: usize) -> Option<f64> {
    let cell = HIMENO.cell_name(percent, BY_SWAPS[nth]);
    Some(1000.0 * results.figure(&cell, "elapsed_s")? * SWAPS[nth] / results.figure(&cell, "pages_in")?)
}

fn figure3(scale: Scale) -> Exhibit {
    let names: Vec<_> = SWAPS.iter().map(|swaps| format!("each {swaps} swaps")).collect();
    let places = PERCENTS.map(f64::from);
    Exhibit::new(
        "1.figure3",
        "Real time between two clearings by swap count",
        cells(scale, &[HIMENO], &PERCENTS, &BY_SWAPS),
        {
            move |results| {
                let value = |line: usize, nth: usize| clear_interval_ms(results, PERCENTS[nth], line);
                vec![lines(
                    "Himeno with U-NRU_s: mean time between two clearings",
                    "ms",
                    "local memory, %",
                    &names,
                    &places,
                    value,
                )]
            }
        },
    )
    .told("Himeno with U-NRU_s at 10, 50 and 100 swaps: the interval in time follows the frequency of swaps.", HERE)
    .claim("The more often pages are swapped, the shorter is the interval in time.", |results| {
        let at = |percent| (0..3).map(|nth| clear_interval_ms(results, percent, nth)).collect::<Option<Vec<_>>>();
        let (little, much) = (at(20)?, at(80)?);
        let told = |ms: &[f64]| ms.iter().map(|ms| number(*ms)).collect::<Vec<_>>().join(", ");
        let holds = little.iter().zip(&much).all(|(little, much)| little < much);
        Some(Verdict::new(holds, format!("{} ms at 20 %, {} ms at 80 %", told(&little), told(&much))))
    })
}

fn figure4(scale: Scale) -> Exhibit {
    let policies =
        [("Simple", SIMPLE), ("Swap-in history", HISTORY), ("U-NRU_s", BY_SWAPS[1]), ("U-NRU_t", by_timer(scale)[1])];
    let ours = policies.map(|(_, policy)| policy);
    let groups = policies.map(|(name, _)| name.to_owned());
    let mut all = cells(scale, &[FT], &[FT.percent], &ours);
    all.extend(cells(scale, &[SP], &[SP.percent], &ours));
    let of = |program: &Program, policy: &str| program.cell_name(program.percent, policy);
    let (by_swaps, by_time) = (ours[2], ours[3]);
    Exhibit::new("1.figure4", "Parts of the run time by policy", all, move |results| {
        let drawn = |program: &'static Program| {
            let title = format!("{} with {} % local memory: run time", program.name, program.percent);
            let value = |group: usize, part: usize| results.figure(&of(program, ours[group]), PARTS[part]);
            stacked(&title, "s", &groups, &texts(&PART_NAMES), value)
        };
        vec![drawn(FT), drawn(SP)]
    })
    .told("On FT both U-NRU spend less than half of Simple's time in swaps; the bits eat the gain. On SP they take longer than Simple.", HERE)
    .claim("On FT, U-NRU spends less than half of Simple's time in swaps.", move |results| {
        let least = [by_swaps, by_time].into_iter().map(|policy| ratio(results, &of(FT, policy), &of(FT, SIMPLE), "swap_s"));
        let least = least.collect::<Option<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
        Some(Verdict::at_most("the better of both / Simple", least, 0.5))
    })
    .because(
        "U-NRU swaps in 29 % fewer pages than Simple here, and not half as many.",
    )
    .claim("On FT, bits are set for more pages than are swapped.", move |results| {
        let cell = of(FT, by_swaps);
        let bits = results.sum(&cell, &["faults_hidden", "faults_first_write"])?;
        let swaps = results.figure(&cell, "pages_in")?;
        Some(Verdict::new(bits > swaps, format!("{} bits set, {} pages swapped in", number(bits), number(swaps))))
    })
    .claim("On SP, the whole run is longer under U-NRU than under Simple.", move |results| {
        let longer = [by_swaps, by_time].into_iter().map(|policy| ratio(results, &of(SP, policy), &of(SP, SIMPLE), "elapsed_s"));
        let least = longer.collect::<Option<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
        Some(Verdict::at_least("run time / Simple's", least, 1.0))
    })
    .because(
        "It holds for U-NRU_s. U-NRU_t clears bits by time: this run is short, so it clears them a few times and not thousands of times.",
    )
}

fn figure5(scale: Scale) -> Exhibit {
    // The paper takes the longest intervals here.
    let policies = eight(scale).map(|(name, policy)| match name {
        "U-NRU_s" => (name, BY_SWAPS[2]),
        "U-NRU_t" => (name, by_timer(scale)[2]),
        _ => (name, policy),
    });
    let ours = policies.map(|(_, policy)| policy);
    let names = policies.map(|(name, _)| name.to_owned());
    let places = PERCENTS.map(f64::from);
    let of = move |results: &Results, policy: usize, percent: u32, figure: &str| {
        ratio(results, &HIMENO.cell_name(percent, ours[policy]), &HIMENO.cell_name(percent, SIMPLE), figure)
    };
    Exhibit::new(
        "1.figure5",
        "Eight policies by local memory",
        cells(scale, &[HIMENO], &PERCENTS, &ours),
        move |results| {
            let drawn = |title: &str, figure: &'static str| {
                let value = |line: usize, nth: usize| of(results, line, PERCENTS[nth], figure);
                lines(title, "x", "local memory, %", &names, &places, value)
            };
            vec![
                drawn("Himeno: run time / Simple's", "elapsed_s"),
                drawn("Himeno: pages swapped in / Simple's", "pages_in"),
            ]
        },
    )
    .told("Himeno: the more local memory, the further the policies are apart in swaps; less so in time.", HERE)
    .claim("With more local memory, the policies differ more in swaps.", move |results| {
        let apart = |percent| {
            let all = (0..8).map(|nth| of(results, nth, percent, "pages_in")).collect::<Option<Vec<_>>>()?;
            Some(
                all.iter().fold(0.0_f64, |most, it| most.max(*it))
                    - all.iter().fold(f64::INFINITY, |least, it| least.min(*it)),
            )
        };
        let (little, much) = (apart(20)?, apart(80)?);
        Some(Verdict::new(
            much > little,
            format!("{} of Simple's between best and worst at 80 %, {} at 20 %", number(much), number(little)),
        ))
    })
}

fn figure6(scale: Scale) -> Exhibit {
    let timers = by_timer(scale);
    let programs: Vec<&Program> = PROGRAMS.iter().collect();
    let groups: Vec<_> = PROGRAMS.iter().map(|program| program.name.to_owned()).collect();
    let mut policies = vec![SIMPLE];
    policies.extend(BY_SWAPS);
    policies.extend(timers);
    let of = |results: &Results, program: &Program, policy: &str| {
        let cell = |policy| program.cell_name(program.percent, policy);
        ratio(results, &cell(policy), &cell(SIMPLE), "elapsed_s")
    };
    let told = |policy: &str| policy.split('=').next_back().unwrap_or_default().to_owned();
    Exhibit::new("1.figure6", "U-NRU by the interval of clearing", cells(scale, &programs, &[], &policies), move |results| {
        let drawn = |title: &str, policies: [&'static str; 3], unit: &str| {
            let names = policies.map(|policy| format!("{} {unit}", told(policy)));
            bars(title, "x", &groups, &names, |group, nth| of(results, &PROGRAMS[group], policies[nth]))
        };
        vec![
            drawn("U-NRU_s: run time / Simple's", BY_SWAPS, "swaps"),
            drawn("U-NRU_t: run time / Simple's", timers, "ms"),
        ]
    })
    .told("Which interval is best depends on the program: SP takes 15.55 x Simple's time with 10 swaps, Cluster 3.8 x with 1000 ms.", HERE)
    .claim("No interval of clearing is best for all programs.", move |results| {
        let mut best = Vec::new();
        for program in &PROGRAMS {
            let all = BY_SWAPS.iter().chain(&timers).map(|policy| Some((of(results, program, policy)?, *policy)));
            let all = all.collect::<Option<Vec<_>>>()?;
            best.push(all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?.1);
        }
        let told = PROGRAMS.iter().zip(&best).map(|(program, policy)| format!("{} {policy}", program.name));
        let told = told.collect::<Vec<_>>().join(", ");
        best.sort_unstable();
        best.dedup();
        Some(Verdict::new(best.len() > 1, format!("best: {told}")))
    })
    .claim("The wrong interval costs a program more than Simple does.", move |results| {
        let all = PROGRAMS.iter().flat_map(|program| BY_SWAPS.iter().chain(&timers).map(move |policy| (program, policy)));
        let all = all.map(|(program, policy)| Some((of(results, program, policy)?, program.name, *policy)));
        let worst = all.collect::<Option<Vec<_>>>()?.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
        Some(Verdict::new(worst.0 > 1.0, format!("{} x Simple's time on {} with {}", number(worst.0), worst.1, worst.2)))
    })
}

fn figure7(scale: Scale) -> Exhibit {
    let policies = eight(scale);
    let ours = policies.map(|(_, policy)| policy);
    let programs: Vec<&Program> = PROGRAMS.iter().collect();
    let groups: Vec<_> = PROGRAMS.iter().map(|program| program.name.to_owned()).collect();
    let names = policies.map(|(name, _)| name.to_owned());
    let shown = move |results: &Results| {
        let drawn = |title: &str, figure: &'static str| {
            let value = |group: usize, nth: usize| against(results, &PROGRAMS[group], ours[nth], SIMPLE, figure);
            bars(title, "x", &groups, &names, value)
        };
        vec![drawn("Run time / Simple's", "elapsed_s"), drawn("Pages swapped in / Simple's", "pages_in")]
    };
    let (by_swaps, by_time) = (ours[5], ours[6]);
    Exhibit::new("1.figure7", "Eight policies on seven programs", cells(scale, &programs, &[], &ours), shown)
        .told("Swap-in history is never worse than Simple. The others win here and lose there.", HERE)
        .claim("Swap-in history never swaps more than Simple.", |results| {
            let (worst, name) = extreme(results, HISTORY, SIMPLE, &PROGRAMS.each_ref(), f64::max)?;
            Some(Verdict::at_most(&format!("at most, on {name}"), worst, 1.01))
        })
        .claim("Random swaps less than Simple on Cluster or CG, and more on another program.", |results| {
            let (least, at_best) = extreme(results, "random", SIMPLE, &[CLUSTER, &PROGRAMS[3]], f64::min)?;
            let (most, at_worst) = extreme(results, "random", SIMPLE, &PROGRAMS.each_ref(), f64::max)?;
            let told = format!("{} x on {at_best}, {} x on {at_worst}", number(least), number(most));
            Some(Verdict::new(least < 1.0 && most > 1.0, told))
        })
        .claim("FIFO is below Simple on the whole.", |results| {
            let all = PROGRAMS.iter().map(|program| against(results, program, "fifo", SIMPLE, "pages_in"));
            let all = all.collect::<Option<Vec<_>>>()?;
            Some(Verdict::at_least("mean of swaps / Simple's", all.iter().sum::<f64>() / all.len() as f64, 1.0))
        })
        .claim("U-Clock swaps less than FIFO on FT, SP and Cluster.", |results| {
            let (worst, name) = extreme(results, "clock", "fifo", &[FT, SP, CLUSTER], f64::max)?;
            Some(Verdict::at_most(&format!("swaps / FIFO's at most, on {name}"), worst, 1.0))
        })
        .claim("U-NRU swaps less than Swap-in history on Himeno and FT.", move |results| {
            let better = |policy| extreme(results, policy, HISTORY, &[HIMENO, FT], f64::max);
            let (worst, name) = [better(by_swaps)?, better(by_time)?].into_iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(Verdict::at_most(&format!("swaps / its swaps at most, on {name}"), worst, 1.0))
        })
        .claim("U-pLRU is better than Simple on MG, FT or Cluster, and worse on Himeno, IS or CG.", |results| {
            let (least, at_best) = extreme(results, "plru", SIMPLE, &[&PROGRAMS[4], FT, CLUSTER], f64::min)?;
            let (most, at_worst) = extreme(results, "plru", SIMPLE, &[HIMENO, &PROGRAMS[1], &PROGRAMS[3]], f64::max)?;
            let told = format!("{} x on {at_best}, {} x on {at_worst}", number(least), number(most));
            Some(Verdict::new(least < 1.0 && most > 1.0, told))
        })
}

/// A figure of a program under a policy, divided by that under another.
pub(super) fn against(results: &Results, program: &Program, policy: &str, other: &str, figure: &str) -> Option<f64> {
    let cell = |policy| program.cell_name(program.percent, policy);
    ratio(results, &cell(policy), &cell(other), figure)
}

/// The program at which the swaps under a policy, divided by those under another, are extreme.
fn extreme(
    results: &Results,
    policy: &str,
    other: &str,
    programs: &[&'static Program],
    choose: fn(f64, f64) -> f64,
) -> Option<(f64, &'static str)> {
    let all =
        programs.iter().map(|program| Some((against(results, program, policy, other, "pages_in")?, program.name)));
    all.collect::<Option<Vec<_>>>()?
        .into_iter()
        .reduce(|one, two| if choose(one.0, two.0) == one.0 { one } else { two })
}
