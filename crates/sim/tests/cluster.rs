//! Checks that the two engines of the cluster simulation agree in everything. Checks the paper's claims on small
//! machines.

use hanare_paging::kinds::First;
use hanare_sim::cluster::cells::run_all;
use hanare_sim::cluster::claims::{Verdict, claims};
use hanare_sim::cluster::memory::Replacement;
use hanare_sim::cluster::model::{FirstTouch, Frequencies, Group, Model, Rules};
use hanare_sim::cluster::run::{Outcome, RunError, Stepping, run};
use hanare_sim::cluster::schedule::{Info, SCHEDULERS};
use hanare_sim::cluster::{Config, Row, chart, paper};
use proptest::prelude::*;

/// Returns a machine small enough to be run clock by clock.
fn small() -> Model {
    let config = Config::default();
    Model {
        network: "4x2".parse().unwrap(),
        memory_pages: 14,
        remote_clk: 30,
        disk_clk: 200,
        communication_clk: 4,
        quantum_clk: 1000,
        finish_quanta: 4,
        quanta_max: 12,
        sync_every_clk: 100,
        history_pages: 10,
        processes: vec![
            Group { processors: 2, count: 2, private_pages: 5, shared_pages: 8 },
            Group { processors: 4, count: 1, private_pages: 9, shared_pages: 6 },
            Group { processors: 8, count: 1, private_pages: 3, shared_pages: 12 },
        ],
        ..config.model
    }
}

fn go(model: &Model, scheduler: &str, replacement: &str, seed: u64, stepping: Stepping) -> Outcome {
    let (scheduler, replacement) = (Info::find(scheduler).unwrap(), Replacement::parse(replacement).unwrap());
    run(model, scheduler, &replacement, seed, stepping, &|_| true).unwrap()
}

fn assert_agree(model: &Model, scheduler: &str, replacement: &str, seed: u64) -> Outcome {
    let events = go(model, scheduler, replacement, seed, Stepping::Events);
    let clocks = go(model, scheduler, replacement, seed, Stepping::Clocks);
    assert_eq!(events, clocks, "{scheduler} {replacement} seed {seed} {model:?}");
    events
}

#[test]
fn both_engines_agree_for_every_scheduler_and_every_policy_of_the_pager() {
    let model = small();
    for info in SCHEDULERS {
        for replacement in ["lru", "kind"] {
            for seed in 1..4 {
                let outcome = assert_agree(&model, info.name, replacement, seed);
                assert!(outcome.counts.evictions > 20 && outcome.effective_percent > 1.0, "{outcome:?}");
            }
        }
    }
    for info in hanare_paging::policy::POLICIES {
        assert_agree(&model, "algo2", info.name, 1);
        assert_agree(&model, "algo0", &format!("kind+{}", info.name), 1);
    }
}

#[test]
fn algo2_and_algo3_are_the_same_on_a_flat_network_bit_for_bit() {
    let config = Config::default();
    let model = Model { network: "16".parse().unwrap(), remote_clk: 300, quanta_max: 12, ..config.model };
    for replacement in ["lru", "kind"] {
        for seed in 1..4 {
            let outcome = |name| go(&model, name, replacement, seed, Stepping::Events);
            assert_eq!(outcome("algo2"), outcome("algo3"), "{replacement} seed {seed}");
            assert!(outcome("algo2") != outcome("algo1"));
        }
    }
    // On a tree, the results of the two schedulers differ.
    let tree = Model { network: "4x4".parse().unwrap(), quanta_max: 200, ..model };
    let outcome = |name, seed| go(&tree, name, "kind", seed, Stepping::Events);
    assert!((1..6).any(|seed| outcome("algo2", seed) != outcome("algo3", seed)));
}

/// Runs these settings and returns the rows of rates.
fn rates(seeds: u32, set: &[(&str, &str)]) -> Vec<Row> {
    let mut config = Config::default();
    config.seeds = seeds;
    set.iter().for_each(|(key, value)| config.set(key, value, &|_| Err(String::new())).unwrap());
    config.check().unwrap();
    run_all(&config, 2, &|_| true).unwrap()
}

#[test]
fn table_3_is_met_within_the_bound() {
    let (error, cells) = paper::error(&rates(5, &[])).unwrap();
    assert!(cells == 20 && error <= 5.2, "{error} points over {cells} cells");
}

#[test]
fn what_the_paper_claims_holds_on_every_network() {
    let claims = claims(&rates(5, &[("cells.networks", "['16', '4x4', '2x2x2x2']")]));
    // The claims cover three networks, two remote costs, two methods and five schedulers.
    assert_eq!(claims.iter().map(|claim| claim.cases.len()).collect::<Vec<_>>(), [30, 12, 3, 4]);
    for claim in claims {
        assert_eq!(claim.verdict(), Verdict::Holds, "{}", claim.line());
    }
}

#[test]
fn settle_beats_algo4_where_remote_access_is_dear() {
    let set =
        [("cells.schedulers", "['algo4', 'settle']"), ("cells.replacements", "kind"), ("cells.remote_costs", "300")];
    let rows = rates(10, &set);
    assert!(rows[1].rate() >= rows[0].rate() + 1.0, "{} and {}", rows[0].rate(), rows[1].rate());
    // The scheduler "settle" must not reach its rate by giving some processes more time than others.
    let fairness = |row: &Row| row.mean(|outcome| outcome.fairness);
    assert!(fairness(&rows[1]) >= fairness(&rows[0]) - 0.01);
}

#[test]
fn contention_costs_and_a_stopped_run_says_so() {
    let busy = |clk| rates(1, &[("costs.link_clk", clk), ("cells.networks", "4x4"), ("scheduling.quanta_max", "8")]);
    for (free, busy) in busy("0").iter().zip(busy("100")) {
        assert_eq!(free.outcomes[0].counts.link_wait_clk, 0);
        assert!(busy.outcomes[0].counts.link_wait_clk > 0 && busy.rate() < free.rate(), "{:?}", busy.cell);
    }
    let seen = std::sync::Mutex::new(0.0);
    let stop_at_half = |part: f64| {
        let mut seen = seen.lock().unwrap();
        *seen = part;
        part < 0.5
    };
    let error = run_all(&Config::default(), 1, &stop_at_half).unwrap_err();
    assert_eq!(error, RunError::Stopped);
    assert!((0.5..0.7).contains(&seen.into_inner().unwrap()));
}

#[test]
fn the_page_has_a_panel_a_cost_a_line_a_network_and_method_and_nothing_from_elsewhere() {
    let rows = rates(2, &[("cells.networks", "['16', '4x4']"), ("scheduling.quanta_max", "3")]);
    let html = chart::page("<b>", "a & b", &rows);
    assert_eq!(html.matches("<svg").count(), 2);
    assert_eq!(html.matches("<polyline").count(), 2 * 4);
    assert_eq!(html.matches("<tr><td>").count(), rows.len());
    assert_eq!(html.matches("<li><strong>").count(), claims(&rows).len());
    assert!(html.contains("the paper's Table 3") && html.contains("58.64"));
    assert!(html.contains("&lt;b&gt;") && !html.contains("<b>") && html.contains("a &amp; b"));
    assert!(!html.contains("http") && !html.contains("src=") && !html.contains("NaN"));
    assert!(!chart::page("empty", "", &[]).contains("NaN"));
}

fn frequencies() -> impl Strategy<Value = Frequencies> {
    let file = |weights| Frequencies::Weights { file: String::new(), weights };
    prop_oneof![
        Just(Frequencies::Uniform),
        (0.1..3.0).prop_map(Frequencies::Zipf),
        prop::collection::vec(0.01..5.0, 32).prop_map(file),
    ]
}

prop_compose! {
    fn groups()(groups in prop::collection::vec((1u32..=8, 1u32..3, 0u32..20, 0u32..20), 1..5)) -> Vec<Group> {
        let group = |(processors, count, private_pages, shared_pages): (u32, u32, u32, u32)| Group {
            processors,
            count,
            private_pages: if shared_pages == 0 { private_pages.max(1) } else { private_pages },
            shared_pages,
        };
        groups.into_iter().map(group).collect()
    }
}

prop_compose! {
    fn costs()(
        remote_clk in 0u32..60, disk_clk in 0u32..500, communication_clk in 0u32..12, sync_clk in 0u32..20,
        link_clk in prop_oneof![Just(0u32), 1u32..40], quantum_clk in 200u32..1500,
    ) -> Model {
        Model { remote_clk, disk_clk, communication_clk, sync_clk, link_clk, quantum_clk, ..small() }
    }
}

prop_compose! {
    fn models()(
        costs in costs(), network in prop_oneof![Just("8"), Just("2x4"), Just("2x2x2"), Just("3x3")],
        memory_pages in 1u32..60, history_pages in 0u32..30, processes in groups(),
        shared in frequencies(), private in frequencies(), percents in (0u32..=100, 0u32..=100),
        sync in (prop_oneof![Just(0u32), 1u32..300], 0u32..5),
        flags in any::<[bool; 7]>(),
    ) -> Model {
        let [disk, writers_wait, owner, prefer_most, lost_waits, given, arrival_shuffled] = flags;
        let mut priority = costs.priority.clone();
        priority.waiting = if given { 1.0 } else { 0.0 };
        Model {
            network: network.parse().unwrap(),
            memory_pages,
            history_pages,
            processes,
            shared,
            private,
            shared_percent: percents.0,
            write_percent: percents.1,
            sync_every_clk: sync.0,
            sync_threads: sync.1,
            first_touch: if disk { FirstTouch::Disk } else { FirstTouch::Free },
            writers_wait,
            first: if owner { First::Owner } else { First::Kind },
            rules: Rules { prefer_most, lost_waits },
            arrival_shuffled,
            priority,
            ..costs
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_engines_agree_on_any_machine(
        model in models(), seed in 0u64..1000, scheduler in 0..SCHEDULERS.len(),
        replacement in prop_oneof![
            Just("lru"), Just("kind"), Just("arc"), Just("kind+2q"), Just("kind+clock"), Just("random"), Just("kind+lirs")
        ],
    ) {
        let model = Model { quanta_max: 6, ..model };
        let outcome = assert_agree(&model, SCHEDULERS[scheduler].name, replacement, seed);
        prop_assert!((0.0..=100.0).contains(&outcome.effective_percent));
        prop_assert!(outcome.fairness <= 1.0 + 1e-9);
    }
}
