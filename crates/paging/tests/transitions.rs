//! Checks that the table of transitions in ARCHITECTURE.md equals the table in the code.

use std::fmt::Write;

use hanare_paging::{COMPLETIONS, TRANSITIONS};

const BEGIN: &str = "<!-- transitions: printed by crates/paging/tests/transitions.rs -->\n";
const END: &str = "<!-- end of transitions -->\n";

fn printed() -> String {
    let mut text = String::from("| from | to | when |\n| --- | --- | --- |\n");
    for step in TRANSITIONS {
        writeln!(text, "| {:?} | {:?} | {} |", step.from, step.to, step.when).expect("a string takes all");
    }
    text.push_str("\n| completion | legal in |\n| --- | --- |\n");
    for (name, states) in COMPLETIONS {
        let states: Vec<String> = states.iter().map(|state| format!("{state:?}")).collect();
        writeln!(text, "| {name} | {} |", states.join(", ")).expect("a string takes all");
    }
    text
}

#[test]
fn the_documented_table_is_the_one_in_force() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md");
    let document = std::fs::read_to_string(path).expect("ARCHITECTURE.md can be read");
    let shown = document.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map_or("", |(shown, _)| shown);
    assert_eq!(shown, printed(), "replace what stands between the two marks by:\n{}", printed());
}

#[test]
fn no_transition_stands_in_the_table_twice() {
    let pairs = TRANSITIONS.iter().map(|step| (step.from as u8, step.to as u8));
    assert_eq!(pairs.collect::<std::collections::BTreeSet<_>>().len(), TRANSITIONS.len());
}
