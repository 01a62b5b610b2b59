//! The two engines of the cluster simulation, which must agree in everything; and what the paper claims, on small machines.

use hanare_paging::kinds::First;
use hanare_sim::cluster::Config;
use hanare_sim::cluster::memory::Replacement;
use hanare_sim::cluster::model::{FirstTouch, Frequencies, Group, Model, Rules, Used};
use hanare_sim::cluster::run::{Outcome, Stepping, run};
use hanare_sim::cluster::schedule::{Info, SCHEDULERS};
use proptest::prelude::*;

/// A machine small enough to be run clock by clock.
fn small() -> Model {
    let config = Config::default();
    Model {
        network: "4x2".parse().unwrap(),
        memory_pages: 20,
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
                assert!(outcome.counts.evictions > 100 && outcome.effective_percent > 5.0, "{outcome:?}");
            }
        }
    }
    for info in hanare_paging::policy::POLICIES {
        assert_agree(&model, "algo2", info.name, 1);
        assert_agree(&model, "algo0", &format!("kind+{}", info.name), 1);
    }
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
        priority.used = if given { Used::Given } else { Used::Effective };
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
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

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
