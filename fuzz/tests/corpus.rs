//! Runs the targets without libFuzzer, on every kept input and on seeded mutations of these inputs.
//!
//! `HANARE_FUZZ_INPUT=TARGET:FILE` runs a target on one input alone, for example on an input that `make fuzz` has kept.
//! `HANARE_TEST_ROUNDS=n` multiplies the number of mutations by `n`.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hanare_fuzz::mutate::Mutator;
use hanare_fuzz::{TARGETS, Target, find};

/// Time limit of one input. It is far longer than any input takes, even on a busy machine.
const INPUT_MAX: Duration = Duration::from_secs(20);
/// Most kept inputs of all targets together. The bound is needed because every clone of the project contains the
/// inputs.
const KEPT_MAX: usize = 200;
/// Most bytes of all kept inputs together.
const KEPT_BYTES_MAX: usize = 300 << 10;

fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("a folder of inputs").map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).expect("an input")).collect()
}

/// Runs a target on one input. If the target fails, keeps the input in a file that the panic message names.
fn run(target: &Target, input: &[u8]) {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    if result.is_ok() && start.elapsed() < INPUT_MAX {
        return;
    }
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{:08x}", target.name, crc32fast::hash(input)));
    std::fs::write(&file, input).expect("a file for the input");
    panic!(
        "target {} fails after {:?}; repeat it with HANARE_FUZZ_INPUT={}:{} cargo test -p hanare-fuzz --test corpus one_input",
        target.name,
        start.elapsed(),
        target.name,
        file.display()
    );
}

fn explore(name: &str) {
    if std::env::var_os("HANARE_FUZZ_INPUT").is_some() {
        return;
    }
    let target = find(name);
    let inputs = corpus(target);
    assert!(!inputs.is_empty(), "no inputs are kept for {name}");
    run(target, &[]);
    inputs.iter().for_each(|input| run(target, input));
    let rounds = std::env::var("HANARE_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(1);
    let mut mutator = Mutator::new(1);
    for _ in 0..target.mutations * rounds {
        let (input, other) = (&inputs[mutator.below(inputs.len())], &inputs[mutator.below(inputs.len())]);
        run(target, &mutator.mutate(input, other));
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            explore(stringify!($name));
        })*

        #[test]
        fn every_target_is_tested_and_its_inputs_are_few() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
            let kept: Vec<Vec<u8>> = TARGETS.iter().flat_map(corpus).collect();
            let bytes: usize = kept.iter().map(Vec::len).sum();
            assert!(kept.len() <= KEPT_MAX && bytes <= KEPT_BYTES_MAX, "{} inputs, {bytes} bytes", kept.len());
        }
    };
}

targets! { frames link guests trace ranks diffs settings specs }

#[test]
fn one_input() {
    let Ok(which) = std::env::var("HANARE_FUZZ_INPUT") else { return };
    let (name, file) = which.split_once(':').expect("TARGET:FILE");
    run(find(name), &std::fs::read(file).expect("the input"));
}
