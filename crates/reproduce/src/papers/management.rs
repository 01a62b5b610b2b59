//! Paper 2: allocating and freeing far memory.

use super::{Scale, bars, ratio, texts};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Shown, Table, Verdict, number, or_dash};
use crate::results::Results;

/// The red-black tree's rows of table 2: our cell, its name, and the paper's seconds for allocating, freeing and the whole.
const TREE: [(&str, &str, [f64; 3]); 4] = [
    ("tree.malloc", "malloc", [0.147, 0.341, 2.03]),
    ("tree.100", "far, 100 %", [6.48, 92.8, 101.4]),
    ("tree.74", "far, 74 %", [7.88, 93.5, 1355.7]),
    ("tree.56", "far, 56 %", [8.82, 103.8, 3718.3]),
];
/// Cluster 3.0's rows of table 3: percent of local memory, and the paper's seconds for `alloc`, `free` and the whole.
const GENES: [(u32, [f64; 3]); 6] = [
    (100, [0.199, 0.149, 10.94]),
    (96, [0.204, 0.151, 13.99]),
    (77, [0.226, 0.164, 195.5]),
    (58, [0.229, 0.164, 495.1]),
    (38, [0.237, 0.165, 907.0]),
    (19, [0.244, 0.167, 1201.2]),
];
const GENES_PLAIN: [f64; 3] = [0.0172, 0.00919, 9.64];
const PARTS: [&str; 3] = ["alloc_s", "free_s", "total_s"];

const HERE: &str = "The same program and library calls, with the memory server on this host.";

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    vec![table2(scale), figure9(scale), table3(scale), figure11(scale), clients(scale)]
}

/// The tree's cells. Those that swap run once: they take half a minute.
fn tree(scale: Scale) -> Vec<Cell> {
    let limit = scale.limit() * 4;
    let far = |name: &str, runs, local: &str| {
        let command = format!("env HANARE_BIN={{hanare}} {{work}}/rbtree --allocator dlm --json --local {local}");
        Cell::new(name, runs, limit, &command)
    };
    vec![
        Cell::new("tree.malloc", scale.runs(), limit, "{work}/rbtree --allocator malloc --json"),
        far("tree.100", scale.runs(), "64M"),
        far("tree.74", scale.pick(1, 3), "{share:tree.100:74}"),
        far("tree.56", scale.pick(1, 3), "{share:tree.100:56}"),
    ]
}

fn table2(scale: Scale) -> Exhibit {
    Exhibit::new("2.table2", "A red-black tree: allocating, freeing and the whole run", tree(scale), |results| {
        let row = |(cell, name, paper): &(&str, &str, [f64; 3])| {
            let mut row = vec![(*name).to_owned()];
            for (nth, part) in PARTS.iter().enumerate() {
                row.extend([or_dash(results.figure(cell, part)), number(paper[nth])]);
            }
            row
        };
        let head = ["", "alloc, s", "paper", "free, s", "paper", "total, s", "paper"];
        vec![Shown::Table(Table::new(
            "500,000 inserts, 100 x (1,000 deletes, 1,000 inserts), release of all",
            &head,
            TREE.iter().map(row).collect(),
        ))]
    })
    .told("Allocating is 44 x and freeing 291 x slower than malloc: the problem that the paper leaves open.", HERE)
    .claim("Allocating and freeing take little more with little local memory than with all.", |results| {
        let (alloc, free) =
            (ratio(results, "tree.56", "tree.100", "alloc_s")?, ratio(results, "tree.56", "tree.100", "free_s")?);
        Some(Verdict::at_most("the larger of both, 56 % / 100 %", alloc.max(free), 3.0))
    })
    .claim("The open problem: allocating far memory is as fast as malloc.", |results| {
        Some(Verdict::at_most("100 % / malloc", ratio(results, "tree.100", "tree.malloc", "alloc_s")?, 1.0))
    })
    .claim("The open problem: freeing far memory is as fast as free.", |results| {
        Some(Verdict::at_most("100 % / free", ratio(results, "tree.100", "tree.malloc", "free_s")?, 1.0))
    })
    .claim("The whole run grows steeply as local memory shrinks.", |results| {
        let (some, little) =
            (ratio(results, "tree.74", "tree.100", "total_s")?, ratio(results, "tree.56", "tree.100", "total_s")?);
        Some(Verdict::new(
            1.0 < some && some < little,
            format!("{} x at 74 %, {} x at 56 %", number(some), number(little)),
        ))
    })
}

fn figure9(scale: Scale) -> Exhibit {
    let groups = texts(&TREE.map(|(_, name, _)| name));
    Exhibit::new("2.figure9", "A red-black tree: time of a call (figures 9 and 10)", tree(scale), move |results| {
        let value = |group: usize, nth: usize| {
            let (cell, _, _) = TREE[group];
            // Inserts of keys that are there already are allocated and freed again.
            Some(1e9 * results.figure(cell, PARTS[nth])? / results.figure(cell, "nodes")?)
        };
        vec![bars(
            "Time of allocating and freeing for each node that is left at the end",
            "ns",
            &groups,
            &texts(&["alloc", "free"]),
            value,
        )]
    })
    .told(
        "Walking the list of variables takes most of an allocation, and walking the list of gaps most of a free.",
        "Hanare's heap has no lists to walk, so a call's time is shown whole.",
    )
    .claim(
        "No list grows with the tree: a call costs less than a microsecond with all memory local.",
        |results| {
            let per_node = |part| Some(1e9 * results.figure("tree.100", part)? / results.figure("tree.100", "nodes")?);
            Some(Verdict::at_most("ns, the larger of both", per_node("alloc_s")?.max(per_node("free_s")?), 1000.0))
        },
    )
}

fn genes_name(percent: u32) -> String {
    format!("genes.{percent}")
}

/// Cluster 3.0's cells: plain, with all memory local, and with shares of it.
fn genes(scale: Scale) -> Vec<Cell> {
    let count = scale.pick(1200, 2467);
    let far = |percent: u32| {
        let local = if percent == 100 { "1G".to_owned() } else { format!("{{share:genes.100:{percent}}}") };
        let command = format!(
            "{{hanare}} run --local {local} --stats-json {{json}} -- {{work}}/genes --genes {count} --allocator dlm --json"
        );
        Cell::new(genes_name(percent), scale.runs(), scale.limit(), &command)
    };
    let plain = format!("{{work}}/genes --genes {count} --allocator malloc --json");
    let mut cells = vec![Cell::new("genes.plain", scale.runs(), scale.limit(), &plain)];
    cells.extend(GENES.iter().map(|(percent, _)| far(*percent)));
    cells
}

fn table3(scale: Scale) -> Exhibit {
    Exhibit::new("2.table3", "Clustering of genes by local memory", genes(scale), |results| {
        let row = |name: String, cell: &str, paper: [f64; 3]| {
            let mut row = vec![name];
            for (nth, part) in ["alloc_s", "free_s", "seconds"].iter().enumerate() {
                row.extend([or_dash(results.figure(cell, part)), number(paper[nth])]);
            }
            row
        };
        let mut rows = vec![row("malloc".to_owned(), "genes.plain", GENES_PLAIN)];
        rows.extend(
            GENES.iter().map(|(percent, paper)| row(format!("far, {percent} %"), &genes_name(*percent), *paper)),
        );
        let head = ["", "alloc, s", "paper", "free, s", "paper", "total, s", "paper"];
        vec![Shown::Table(Table::new("Hierarchical clustering as in Cluster 3.0", &head, rows))]
    })
    .told(
        "Cluster 3.0 on demo.txt (24,773 allocations): 51 x at 58 %, 125 x at 19 % of local memory.",
        "Generated expression data of that shape; fewer genes in the quick reproduction.",
    )
    .claim("Allocating and freeing take less than 1 % of the run at 58 % local.", |results| {
        let part = results.sum("genes.58", &["alloc_s", "free_s"])? / results.figure("genes.58", "seconds")?;
        Some(Verdict::at_most("part of the run, %", 100.0 * part, 1.0))
    })
    .claim("The whole run grows as local memory shrinks.", |results| {
        let (much, little) =
            (ratio(results, "genes.77", "genes.100", "seconds")?, ratio(results, "genes.19", "genes.100", "seconds")?);
        Some(Verdict::new(little > much, format!("{} x at 77 %, {} x at 19 %", number(much), number(little))))
    })
    .claim("At 58 % local, the run takes at most twice as long as plain (the paper: 51 x).", |results| {
        Some(Verdict::at_most("58 % / plain", ratio(results, "genes.58", "genes.plain", "seconds")?, 2.0))
    })
    .because(
        "Each merge reads all of the matrix and writes one number into each row. With 2,467 genes, 9.7 GB come in and 7.0 GB go \
         out at the least of the policies tried (LIRS, pages of 64 KiB: 3.0 x; auto with mixed pages: 5.7 x).",
    )
}

fn figure11(scale: Scale) -> Exhibit {
    let mut names = vec![("genes.plain".to_owned(), "malloc".to_owned())];
    names.extend(GENES.iter().map(|(percent, _)| (genes_name(*percent), format!("{percent} %"))));
    let groups: Vec<_> = names.iter().map(|(_, name)| name.clone()).collect();
    Exhibit::new("2.figure11", "Clustering of genes: time of a call (figures 11 and 12)", genes(scale), move |results| {
        let value = |group: usize, nth: usize| {
            let (time, calls) = [("alloc_s", "mallocs"), ("free_s", "frees")][nth];
            Some(1e9 * results.figure(&names[group].0, time)? / results.figure(&names[group].0, calls)?)
        };
        vec![bars("Time of a call", "ns", &groups, &texts(&["alloc", "free"]), value)]
    })
    .told(
        "The lists of variables and gaps take a smaller part than in the tree, as there are few variables and at most 4 gaps.",
        "A call's time is shown whole, as Hanare's heap has no lists.",
    )
}

/// How many clients one server serves at once.
const CLIENTS: [usize; 3] = [1, 2, 4];

fn clients(scale: Scale) -> Exhibit {
    let megabytes = scale.pick(16, 128);
    let cell = |count: usize| {
        // The server's room is what all clients need. It is reused as clients leave: slots, in the paper's words.
        let script = format!(
            "s=$(mktemp -d) && trap 'kill $p; rm -rf $s' EXIT; {{hanare}} serve --unix $s/s --memory {}M >$s/log 2>&1 & p=$!; \
             n=0; while [ ! -S $s/s ] && [ $n -lt 500 ]; do sleep 0.01; n=$((n+1)); done; \
             for turn in 1 2; do w=; for i in $(seq {count}); do \
             {{hanare}} run --server $s/s --local {}M -- {{work}}/stencil {megabytes} >/dev/null & w=\"$w $!\"; done; \
             for i in $w; do wait $i || exit 1; done; done; \
             {{hanare}} status --json $s/s",
            2 * count * megabytes,
            megabytes / 2,
        );
        Cell::script(format!("clients.{count}"), scale.runs(), scale.limit(), &script)
    };
    let groups: Vec<_> = CLIENTS.iter().map(ToString::to_string).collect();
    let took = |results: &Results, count: usize| results.figure(&format!("clients.{count}"), "took_s");
    Exhibit::new(
        "2.clients",
        "Several clients of one server, twice in turn",
        CLIENTS.map(cell).to_vec(),
        move |results| {
            let value = |group: usize, _| took(results, CLIENTS[group]);
            vec![bars("Time until all clients have ended", "s", &groups, &texts(&["time"]), value)]
        },
    )
    .told(
        "DLM-M's resident servers serve many clients, and reuse the slots of those that are gone (section 3.2).",
        "Clients are runs of a stencil with half of their memory local, on this host.",
    )
    .claim("A server that has room for one turn of clients serves a second: slots are reused.", |results| {
        let limit = results.figure("clients.4", "memory_limit_bytes")?;
        // Without slots that are reused, the second turn finds no room, and the cell fails: then nothing is judged.
        Some(Verdict::new(true, format!("4 clients twice within {} bytes", number(limit))))
    })
}
