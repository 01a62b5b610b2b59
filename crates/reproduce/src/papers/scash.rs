//! Paper 3: page transfer by messages and by zero copy, under two protocols.

use super::{Scale, bars, lines, ratio, texts};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Shown, Table, Verdict, number, or_dash};
use crate::results::Results;

const BASIC: &str = "basic";
/// Protocol and transfer of the four bars of the paper, in its order.
const WAYS: [(&str, &str, &str); 4] = [
    ("update, message", "update", "message"),
    ("update, zero copy", "update", "zero-copy"),
    ("invalidate, message", "invalidate", "message"),
    ("invalidate, zero copy", "invalidate", "zero-copy"),
];
const RANKS: [usize; 3] = [2, 4, 8];
const HERE: &str = "Ranks are processes of this host. Zero copy is reading and writing the other process' memory \
(process_vm_readv and process_vm_writev), and a message is a local socket. More ranks than processors take turns: their \
times count waiting for a processor.";

/// Why the protocols do not differ on LU.
const NO_UPDATES: &str = "No page is updated, as figure 13 shows. A block has its home at the rank that computes it, and is \
not written again after another rank has read it. So both protocols move the same pages.";

/// A program of the paper.
#[derive(Debug, Clone, Copy)]
struct Program {
    name: &'static str,
    key: &'static str,
    quick: &'static str,
    full: &'static str,
    /// Seconds on one node of the paper's cluster.
    serial_s: f64,
    /// Speedups at 64 nodes with zero copy: update, invalidate.
    speedups: [f64; 2],
    /// Run time with messages / with zero copy at 64 nodes: update, invalidate.
    gains: [f64; 2],
}

const LAPLACE: Program = Program {
    name: "LAPLACE",
    key: "laplace",
    quick: "laplace -n 1022 -i 50",
    full: "laplace -n 1022 -i 50",
    serial_s: 13.57,
    speedups: [41.1, 42.5],
    gains: [1.05, 1.04],
};
const LU: Program = Program {
    name: "LU",
    key: "lu",
    quick: "lu -n 2048 -b 32",
    full: "lu -n 2048 -b 32",
    serial_s: 131.8,
    speedups: [14.9, 44.3],
    gains: [2.61, 1.24],
};

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    let mut exhibits = vec![table3(scale), figure5(scale), table4(scale), table5(scale), table6(scale)];
    for (program, figures) in [(LAPLACE, [6, 8, 10, 12]), (LU, [7, 9, 11, 13])] {
        exhibits.push(speedup(scale, program, figures[0]));
        exhibits.push(barriers(scale, program, figures[1]));
        exhibits.push(faults(scale, program, figures[2]));
        exhibits.push(transfers(scale, program, figures[3]));
    }
    exhibits
}

fn basic(scale: Scale) -> Vec<Cell> {
    let command = format!("{{hanare}} bench dsm --runs 5 --ranks-max {} --json", scale.pick(8, 16));
    vec![Cell::new(BASIC, 1, scale.limit() * 4, &command)]
}

/// The rows of a table of our figures beside the paper's microseconds.
fn costs(results: &Results, title: &str, rows: &[(&str, &str, f64)]) -> Shown {
    let row = |(name, figure, paper): &(&str, &str, f64)| {
        vec![(*name).to_owned(), or_dash(results.figure(BASIC, figure)), number(*paper)]
    };
    Shown::Table(Table::new(title, &["", "here, us", "paper, us"], rows.iter().map(row).collect()))
}

/// One basic figure divided by another.
fn quotient(results: &Results, figure: &str, other: &str) -> Option<f64> {
    Some(results.figure(BASIC, figure)? / results.figure(BASIC, other)?)
}

fn table3(scale: Scale) -> Exhibit {
    Exhibit::new("3.table3", "The cost of a page transfer", basic(scale), |results| {
        vec![costs(
            results,
            "A page of 4 KiB",
            &[
                ("message", "message_update_us", 122.0),
                ("remote memory write", "zero_copy_update_us", 49.6),
                ("remote memory read", "zero_copy_share_us", 98.4),
            ],
        )]
    })
    .told("Remote memory write is 2.46 x and remote memory read 1.24 x as fast as a message.", HERE)
    .claim("A remote memory write is faster than a message (2.46 x).", |results| {
        Some(Verdict::at_least(
            "message / remote write",
            quotient(results, "message_update_us", "zero_copy_update_us")?,
            1.0,
        ))
    })
    .claim("A remote memory read is faster than a message (1.24 x).", |results| {
        Some(Verdict::at_least(
            "message / remote read",
            quotient(results, "message_share_us", "zero_copy_share_us")?,
            1.0,
        ))
    })
}

fn figure5(scale: Scale) -> Exhibit {
    let ranks: &'static [f64] = scale.pick(&[2.0, 4.0, 8.0], &[2.0, 4.0, 8.0, 16.0]);
    let protocols = ["update", "invalidate"];
    Exhibit::new("3.figure5", "The cost of an empty memory barrier", basic(scale), move |results| {
        let value =
            |line: usize, nth: usize| results.figure(BASIC, &format!("{}_barrier_{}_us", protocols[line], ranks[nth]));
        vec![lines("An empty memory barrier", "us", "ranks", &texts(&protocols), ranks, value)]
    })
    .told(
        "An empty memory barrier takes 3 : 2 as long with update as with invalidate: as many barriers as each needs.",
        HERE,
    )
    .claim("An empty memory barrier takes longer with update than with invalidate (3 : 2).", |results| {
        // The least of the runs: a rank that waits for a processor makes both alike.
        let ratio = quotient(results, "update_barrier_2_us_min", "invalidate_barrier_2_us_min")?;
        Some(Verdict::new(ratio > 1.0, format!("{} : 2 with 2 ranks", number(2.0 * ratio))))
    })
}

fn table4(scale: Scale) -> Exhibit {
    Exhibit::new("3.table4", "The cost of a page fault", basic(scale), |results| {
        vec![costs(
            results,
            "A page of 4 KiB",
            &[
                ("read fault, message", "message_read_fault_us", 235.0),
                ("read fault, remote memory read", "zero_copy_read_fault_us", 125.0),
                ("write fault, message", "message_write_fault_us", 82.0),
                ("write fault, remote memory read", "zero_copy_write_fault_us", 82.0),
            ],
        )]
    })
    .told(
        "A read fault is 1.88 x as fast with remote memory read; a write fault needs no transfer and costs the same.",
        HERE,
    )
    .claim("A read fault is faster with remote memory read than with messages (1.88 x).", |results| {
        Some(Verdict::at_least(
            "message / remote read",
            quotient(results, "message_read_fault_us", "zero_copy_read_fault_us")?,
            1.0,
        ))
    })
    .claim("A write fault costs the same with both.", |results| {
        let ratio = quotient(results, "message_write_fault_us", "zero_copy_write_fault_us")?;
        Some(Verdict::new(
            (0.67..=1.5).contains(&ratio),
            format!("message / remote read: {}, 0.67 to 1.5 asked", number(ratio)),
        ))
    })
}

fn table5(scale: Scale) -> Exhibit {
    Exhibit::new("3.table5", "The cost of sharing a page", basic(scale), |results| {
        vec![costs(
            results,
            "A page of 4 KiB, without the trap",
            &[("message", "message_share_us", 219.0), ("remote memory read", "zero_copy_share_us", 112.0)],
        )]
    })
    .told("Sharing a page is 1.96 x as fast with remote memory read: that is what makes read faults faster.", HERE)
    .claim("Sharing a page is faster with remote memory read (1.96 x).", |results| {
        Some(Verdict::at_least(
            "message / remote read",
            quotient(results, "message_share_us", "zero_copy_share_us")?,
            1.0,
        ))
    })
}

fn serial_name(program: &Program) -> String {
    format!("{}.1", program.key)
}

fn name(program: &Program, ranks: usize, way: usize) -> String {
    let (_, protocol, transfer) = WAYS[way];
    format!("{}.{ranks}.{protocol}.{transfer}", program.key)
}

fn serial(scale: Scale, program: &Program) -> Cell {
    let command = format!("{{hanare}} launch -n 1 -- {{work}}/{} --json", scale.pick(program.quick, program.full));
    Cell::new(serial_name(program), scale.runs(), scale.limit(), &command)
}

/// The cells of a program: alone, and with each number of ranks in each way.
fn all(scale: Scale, program: &Program) -> Vec<Cell> {
    let mut cells = vec![serial(scale, program)];
    for ranks in RANKS {
        for (way, (_, protocol, transfer)) in WAYS.iter().enumerate() {
            let command = format!(
                "{{hanare}} launch -n {ranks} --protocol {protocol} --transfer {transfer} --stats-json {{json}} -- \
                 {{work}}/{} --json",
                scale.pick(program.quick, program.full)
            );
            cells.push(Cell::new(name(program, ranks, way), scale.runs(), scale.limit(), &command));
        }
    }
    cells
}

/// Bars of a figure by ranks and ways.
fn by_ranks(results: &Results, program: Program, title: &str, unit: &'static str, figure: &str, factor: f64) -> Shown {
    let groups: Vec<_> = RANKS.iter().map(|ranks| format!("{ranks} ranks")).collect();
    let ways = WAYS.map(|(name, _, _)| name.to_owned());
    let value = |group: usize, way: usize| Some(factor * results.figure(&name(&program, RANKS[group], way), figure)?);
    bars(&format!("{}: {title}", program.name), unit, &groups, &ways, value)
}

fn table6(scale: Scale) -> Exhibit {
    Exhibit::new(
        "3.table6",
        "The programs on one node",
        [LAPLACE, LU].map(|program| serial(scale, &program)).to_vec(),
        |results| {
            let row = |program: &Program| {
                vec![
                    program.name.to_owned(),
                    or_dash(results.figure(&serial_name(program), "run_s")),
                    number(program.serial_s),
                ]
            };
            vec![Shown::Table(Table::new(
                "Run time",
                &["", "here, s", "paper, s"],
                [LAPLACE, LU].iter().map(row).collect(),
            ))]
        },
    )
    .told("LAPLACE 1022 x 1022 with 50 iterations, and SPLASH-2's LU 2048 x 2048 with blocks of 32.", "The same sizes.")
}

/// Run time on one rank divided by that on `ranks`.
fn gain(results: &Results, program: &Program, ranks: usize, way: usize) -> Option<f64> {
    Some(results.figure(&serial_name(program), "run_s")? / results.figure(&name(program, ranks, way), "run_s")?)
}

fn speedup(scale: Scale, program: Program, figure: usize) -> Exhibit {
    let id = format!("3.figure{figure}");
    let ways = WAYS.map(|(name, _, _)| name.to_owned());
    let places = RANKS.map(|ranks| ranks as f64);
    let title = if program.key == LU.key { "Speedup of LU" } else { "Speedup of LAPLACE" };
    let exhibit = Exhibit::new(&id, title, all(scale, &program), move |results| {
        let value = |line: usize, nth: usize| gain(results, &program, RANKS[nth], line);
        let paper =
            |nth: usize| vec![ways[2 * nth + 1].clone(), number(program.speedups[nth]), number(program.gains[nth])];
        let head = ["the paper, 64 nodes", "speedup", "message / zero copy"];
        vec![
            lines(&format!("{}: run time on 1 rank / on more", program.name), "x", "ranks", &ways, &places, value),
            Shown::Table(Table::new("The paper's numbers", &head, vec![paper(0), paper(1)])),
        ]
    })
    .told("Speedups up to 64 nodes. Zero copy helps LU much and LAPLACE little.", HERE);
    let transfer_gain = move |results: &Results, ranks: usize, way: usize| {
        let time = |way| results.figure(&name(&program, ranks, way), "run_s");
        Some(time(way)? / time(way + 1)?)
    };
    if program.key == LU.key {
        exhibit.claim(
            "Zero copy makes LU faster under both protocols (2.61 x and 1.24 x at 64 nodes).",
            move |results| {
                let (update, invalidate) = (transfer_gain(results, 8, 0)?, transfer_gain(results, 8, 2)?);
                Some(Verdict::at_least("message / zero copy with 8 ranks, the smaller", update.min(invalidate), 1.05))
            },
        )
    } else {
        exhibit.claim("Zero copy changes little for LAPLACE (1.05 x and 1.04 x at 64 nodes).", move |results| {
            let (update, invalidate) = (transfer_gain(results, 2, 0)?, transfer_gain(results, 2, 2)?);
            Some(Verdict::at_most("message / zero copy with 2 ranks, the larger", update.max(invalidate), 1.25))
        })
    }
    .claim("Two ranks are faster than one.", move |results| {
        Some(Verdict::at_least("speedup, invalidate and zero copy", gain(results, &program, 2, 3)?, 1.3))
    })
}

fn barriers(scale: Scale, program: Program, figure: usize) -> Exhibit {
    let shown = move |results: &Results| {
        vec![
            by_ranks(results, program, "memory barriers, all ranks together", "s", "barrier_ns", 1e-9),
            by_ranks(results, program, "page updates in them, all ranks together", "s", "update_ns", 1e-9),
        ]
    };
    let exhibit = Exhibit::new(&format!("3.figure{figure}"), "Time in memory barriers", all(scale, &program), shown)
        .told("The time of memory barriers, and the part of it in which pages are updated.", HERE);
    if program.key == LU.key {
        return exhibit.claim(
            "Memory barriers of LU take less time with zero copy than with messages.",
            move |results| {
                let gain = |way| ratio(results, &name(&program, 8, way), &name(&program, 8, way + 1), "barrier_ns");
                Some(Verdict::at_least("message / zero copy with 8 ranks, the smaller", gain(0)?.min(gain(2)?), 1.0))
            },
        );
    }
    exhibit.claim("Updating pages takes less of the barriers with zero copy than with messages.", move |results| {
        let gain = ratio(results, &name(&program, 8, 0), &name(&program, 8, 1), "update_ns")?;
        Some(Verdict::at_least("message / zero copy with 8 ranks, update", gain, 1.0))
    })
}

fn faults(scale: Scale, program: Program, figure: usize) -> Exhibit {
    let exhibit = Exhibit::new(
        &format!("3.figure{figure}"),
        "Time in the page fault handler",
        all(scale, &program),
        move |results| {
            vec![
                by_ranks(results, program, "the fault handler, all ranks together", "s", "fault_ns", 1e-9),
                by_ranks(results, program, "sharing of pages in it, all ranks together", "s", "share_ns", 1e-9),
            ]
        },
    )
    .told("The time of the fault handler, and the part of it in which pages are shared.", HERE);
    if program.key != LU.key {
        return exhibit;
    }
    exhibit
        .claim("The fault handler of LU takes longer with invalidate than with update.", move |results| {
            let time = |way| results.figure(&name(&program, 8, way), "fault_ns");
            Some(Verdict::at_least("invalidate / update with 8 ranks and zero copy", time(3)? / time(1)?, 1.0))
        })
        .because(NO_UPDATES)
}

fn transfers(scale: Scale, program: Program, figure: usize) -> Exhibit {
    let exhibit =
        Exhibit::new(&format!("3.figure{figure}"), "Page updates and shares", all(scale, &program), move |results| {
            vec![
                by_ranks(results, program, "pages updated", "", "page_updates", 1.0),
                by_ranks(results, program, "pages shared", "", "page_shares", 1.0),
            ]
        })
        .told("How many pages are updated and shared. These counts do not depend on the machine.", HERE);
    let count = move |results: &Results, way: usize, figure: &str| results.figure(&name(&program, 8, way), figure);
    if program.key == LU.key {
        exhibit
            .claim("LU moves more pages with update than with invalidate.", move |results| {
                let pages = |way| Some(count(results, way, "page_updates")? + count(results, way, "page_shares")?);
                let (update, invalidate) = (pages(1)?, pages(3)?);
                let told = format!("{} and {} with 8 ranks", number(update), number(invalidate));
                Some(Verdict::new(update > invalidate, told))
            })
            .because(NO_UPDATES)
    } else {
        exhibit.claim(
            "LAPLACE's updates are about as many as its shares with invalidate: few are in vain.",
            move |results| {
                let ratio = count(results, 1, "page_updates")? / count(results, 3, "page_shares")?;
                Some(Verdict::new(
                    (0.5..=1.5).contains(&ratio),
                    format!("{} x with 8 ranks, 0.5 to 1.5 asked", number(ratio)),
                ))
            },
        )
    }
}
