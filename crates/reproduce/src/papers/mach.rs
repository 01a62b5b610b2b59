//! Paper 4: loading several pages at a time.

use super::{Scale, bars, ratio, texts};
use crate::cell::Cell;
use crate::exhibit::{Exhibit, Shown, Table, Verdict, number, or_dash};
use crate::results::Results;

/// Pages that one load brings, with the paper's milliseconds for each page (table 1).
const LOADS: [(u32, f64); 4] = [(1, 25.3), (2, 18.4), (4, 16.6), (8, 15.1)];
/// Table 2: of the compiler's 64 pages, those loaded.
const LOADED: [u32; 4] = [62, 63, 64, 64];
/// Table 3: pages a load, and the seconds of emacs and gcc with 4 MB and with 64 MB of main memory.
const AT_ONCE: [(u32, [f64; 2], [f64; 2]); 3] =
    [(1, [14.9, 32.4], [8.3, 23.6]), (2, [14.9, 32.2], [7.0, 22.0]), (4, [14.8, 32.2], [7.1, 21.4])];
const HERE: &str = "Pages of 4 KiB from a memory server on this host instead of pages of 8 KiB from a disk.";
const SOURCE: &str = "compiler.source";
const WHOLE: &str = "compiler.whole";

pub(super) fn exhibits(scale: Scale) -> Vec<Exhibit> {
    vec![
        table1(scale),
        compiler(scale, "4.figure1", "prepaging", "The compiler with prepaging"),
        compiler(scale, "4.figure2", "cluster", "The compiler with clustering"),
        table2(scale),
        table3(scale),
    ]
}

/// Returns the setting of a prefetcher that loads `pages` pages at a time. It holds back while what it loads goes unused. In the paper, such
/// pages are the first to be replaced.
fn way(prefetcher: &str, pages: u32) -> String {
    if pages == 1 { "none".to_owned() } else { format!("{prefetcher}:pages={pages}") }
}

fn load_name(pages: u32) -> String {
    format!("load.{pages}")
}

fn table1(scale: Scale) -> Exhibit {
    let cell = |(pages, _): &(u32, f64)| {
        let command = format!(
            "{{hanare}} bench paging --link tcp --pattern seq --page-size 4K --runs 3 --size {}M --prefetch {} --json",
            scale.pick(64, 512),
            way("prepaging", *pages)
        );
        Cell::new(load_name(*pages), 1, scale.limit() * 2, &command)
    };
    Exhibit::new("4.table1", "The time to load a page, by pages a load", LOADS.iter().map(cell).collect(), |results| {
        let row = |(pages, paper): &(u32, f64)| {
            vec![pages.to_string(), or_dash(results.figure(&load_name(*pages), "us_per_touch")), number(1000.0 * paper)]
        };
        vec![Shown::Table(Table::new(
            "Time of each page",
            &["pages a load", "here, us", "paper, us"],
            LOADS.iter().map(row).collect(),
        ))]
    })
    .told("A page costs less the more pages a load brings: 25.3 ms alone, 15.1 ms with 8.", HERE)
    .claim("A page costs less if a load brings several; between 2 and 8 it differs little.", |results| {
        let costs = LOADS.iter().map(|(pages, _)| results.figure(&load_name(*pages), "us_per_touch"));
        let costs = costs.collect::<Option<Vec<_>>>()?;
        let told = costs.iter().map(|cost| number(*cost)).collect::<Vec<_>>().join(", ");
        Some(Verdict::new(costs[1..].iter().all(|cost| *cost < costs[0]), format!("{told} us")))
    })
}

fn compiler_name(prefetcher: &str, pages: u32) -> String {
    if pages == 1 { "compiler.1".to_owned() } else { format!("compiler.{prefetcher}.{pages}") }
}

/// The compiler's cells: a source, the compiler with all its memory local, and with half of it.
fn compilers(scale: Scale, prefetcher: &str) -> Vec<Cell> {
    let functions = scale.pick(1200, 6000);
    let source = format!(
        "awk 'BEGIN {{ for (i = 0; i < {functions}; i++) printf \"int f%d(int a, int b) {{ for (int i = 0; i < a; i++) \
         b = b * %d + (a ^ i) %% (b | 1); return b; }}\\n\", i, i + 3 }}' >{{file}}"
    );
    let compile = |more: &str| {
        format!(
            "{{hanare}} run --far all --page-size 4K {more} --stats-json {{json}} -- cc -O1 -x c -c -o /dev/null {{file:{SOURCE}}}"
        )
    };
    let mut cells = vec![
        Cell::script(SOURCE, 1, scale.limit(), &source),
        Cell::new(WHOLE, 1, scale.limit(), &compile("--local 16G --memory 1G")),
    ];
    for (pages, _) in LOADS {
        let more = format!("--local {{share:{WHOLE}:50}} --prefetch {}", way(prefetcher, pages));
        cells.push(Cell::new(compiler_name(prefetcher, pages), scale.runs(), scale.limit(), &compile(&more)));
    }
    cells
}

fn compiler(scale: Scale, id: &str, prefetcher: &'static str, title: &'static str) -> Exhibit {
    let groups: Vec<_> = LOADS.iter().map(|(pages, _)| pages.to_string()).collect();
    Exhibit::new(id, title, compilers(scale, prefetcher), move |results| {
        let value = |group: usize, _| results.figure(&compiler_name(prefetcher, LOADS[group].0), "elapsed_s");
        vec![bars("Run time of the compiler by pages a load", "s", &groups, &texts(&[prefetcher]), value)]
    })
    .told(
        "A compilation of sed is 3 to 5 % shorter. There is no difference between the two ways, nor between 2 and 8 pages.",
        "A C compiler on a generated source with half of its memory local.",
    )
    .claim("Loading several pages at a time shortens the run (3 to 5 %).", move |results| {
        let times = LOADS[1..].iter().map(|(pages, _)| {
            ratio(results, &compiler_name(prefetcher, *pages), &compiler_name(prefetcher, 1), "elapsed_s")
        });
        let best = times.collect::<Option<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
        Some(Verdict::at_most("the best / one page", best, 1.0))
    })
}

fn table2(scale: Scale) -> Exhibit {
    let loaded = |results: &Results, pages: u32| results.figure(&compiler_name("prepaging", pages), "pages_in");
    Exhibit::new("4.table2", "Pages loaded by prepaging", compilers(scale, "prepaging"), move |results| {
        let row = |(nth, (pages, _)): (usize, &(u32, f64))| {
            vec![pages.to_string(), or_dash(loaded(results, *pages)), LOADED[nth].to_string()]
        };
        let head = ["pages a load", "loaded here", "the paper, of 64"];
        vec![Shown::Table(Table::new("Pages loaded", &head, LOADS.iter().enumerate().map(row).collect()))]
    })
    .told(
        "Of the compiler's 64 pages, 62 are loaded one by one and 64 with 8 at a time: few are in vain.",
        "The compiler of figures 1 and 2. Half of its memory is local, so a page may be loaded many times.",
    )
    .claim("Few of the pages that prepaging loads are in vain.", move |results| {
        let more = loaded(results, 8)? / loaded(results, 1)?;
        Some(Verdict::at_most("loaded 8 at a time / one by one", more, 1.1))
    })
    .because(
        "The paper's compiler has memory for all its pages and loads each once. Here half of its memory is local, so pages \
         that come early are evicted before their use.",
    )
}

fn at_once_name(percent: u32, pages: u32) -> String {
    format!("both.{percent}.{pages}")
}

fn table3(scale: Scale) -> Exhibit {
    let megabytes = scale.pick(16, 128);
    let mut cells = Vec::new();
    for percent in [10, 75] {
        for (pages, _, _) in AT_ONCE {
            let run = |program: &str| {
                let local = 1024 * megabytes * percent / 100;
                let prefetch = way("prepaging", pages);
                format!(
                    "{{hanare}} run --local {local}K --prefetch {prefetch} -- {{work}}/{program} {megabytes} >/dev/null"
                )
            };
            let script = format!("{} & {} && wait $!", run("stencil"), run("rbtree"));
            cells.push(Cell::script(at_once_name(percent, pages), scale.runs(), scale.limit(), &script));
        }
    }
    let took = |results: &Results, percent: u32, pages: u32| results.figure(&at_once_name(percent, pages), "took_s");
    Exhibit::new("4.table3", "Two programs at once with little and with enough memory", cells, move |results| {
        let row = |(pages, little, enough): &(u32, [f64; 2], [f64; 2])| {
            vec![
                pages.to_string(),
                or_dash(took(results, 10, *pages)),
                or_dash(took(results, 75, *pages)),
                format!("{} and {}", little[0], little[1]),
                format!("{} and {}", enough[0], enough[1]),
            ]
        };
        let head = ["pages a load", "10 % local, s", "75 % local, s", "paper: 4 MB, s", "paper: 64 MB, s"];
        vec![Shown::Table(Table::new("Time until both have ended", &head, AT_ONCE.iter().map(row).collect()))]
    })
    .told(
        "emacs and gcc at once: with 64 MB both gain; with 4 MB the gain is lost, and never becomes a loss.",
        "A stencil and a red-black tree. The prefetcher may hold back while what it loads goes unused.",
    )
    .claim("With little memory, prepaging is never a loss.", move |results| {
        let worst = [2, 4].map(|pages| Some(took(results, 10, pages)? / took(results, 10, 1)?));
        Some(Verdict::at_most("run time / without, the larger", worst[0]?.max(worst[1]?), 1.05))
    })
}
