//! Runs each page, in a fresh folder.

use hanare_tests::{installed, system_calls_work_on_far_pages};

use crate::blocks::{Block, blocks, loose_commands};
use crate::links::{pages, root};
use crate::shell::Shells;

/// The most commands that may be marked as ones that no test can run.
const NOT_HERE_MAX: usize = 75;

/// Runs the commands of a page, and prints how many were run.
fn run(page: &str) {
    let text = std::fs::read_to_string(root().join(page)).expect("a page");
    let mut shells = Shells::new();
    let mut count = 0;
    for block in blocks(&text) {
        match block {
            Block::File { name, text } => shells.write(&name, &text),
            Block::NotHere { .. } => {}
            Block::Commands(steps) => {
                for (nth, step) in steps.iter().enumerate() {
                    // A page that shows a failure asks for its exit code.
                    let may_fail = steps.get(nth + 1).is_some_and(|next| next.command == "echo $?");
                    let found = shells.run(step, may_fail);
                    found.unwrap_or_else(|why| panic!("{page}:{}: {}: {why}", step.line, step.command));
                    count += 1;
                }
            }
        }
    }
    shells.end();
    assert!(count > 0, "{page}: no commands were found");
    println!("{page}: {count} commands were run");
}

macro_rules! run_pages {
    ($($name:ident $page:literal $(wants $($program:literal in $package:literal)+)? $(if $works:ident)?;)*) => {
        /// The pages that are run.
        const RUN: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                $(if !($(installed($program, $package))&&+) { return; })?
                $(if !$works() { return; })?
                run($page);
            }
        )*
    };
}

run_pages! {
    the_readme "README.md";
    tutorial_laptop "docs/tutorials/laptop.md";
    tutorial_idle_machines "docs/tutorials/idle-machines.md";
    tutorial_c_program "docs/tutorials/c-program.md" wants "cc" in "gcc" "pkg-config" in "pkg-config";
    tutorial_shared_memory "docs/tutorials/shared-memory.md" wants "cc" in "gcc" "pkg-config" in "pkg-config"
        if system_calls_work_on_far_pages;
    park "docs/how-to/park.md" wants "python3" in "python3";
    measure_a_program "docs/how-to/measure-a-program.md";
    ask_for_memory "docs/how-to/ask-for-memory.md";
    install "docs/install.md";
    policies "docs/policies.md";
    watching "docs/watching.md";
    redundancy "docs/redundancy.md";
    report "docs/report.md";
    cluster_simulation "docs/cluster-simulation.md";
    reproduce "docs/reproduce.md";
    settings "docs/settings.md";
    security "docs/security.md";
    slurm "docs/slurm.md";
    run_in_a_container "docs/how-to/run-in-a-container.md";
}

/// A page that has commands to be run must be in the list. A command outside blocks would never be run.
#[test]
fn every_command_of_the_documents_is_run_or_marked() {
    let root = root();
    let mut not_here = 0;
    for page in pages(&root.join("docs")).into_iter().chain([root.join("README.md")]) {
        let name = page.strip_prefix(&root).unwrap_or(&page).to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&page).expect("a page");
        assert_eq!(loose_commands(&text), Vec::<usize>::new(), "{name}: commands of these lines are in no block");
        for block in blocks(&text) {
            match block {
                Block::NotHere { commands } => not_here += commands,
                _ => assert!(RUN.contains(&name.as_str()), "{name} has commands to be run: add it to the list"),
            }
        }
    }
    println!("{} pages are run; {not_here} commands of all pages cannot run here", RUN.len());
    assert!(not_here <= NOT_HERE_MAX, "{not_here} commands cannot run here: mark fewer");
}
