//! Checks properties that every decoder of outside bytes must have. This library reads no inputs from files.
//!
//! A *target* gives any bytes to decoders, and panics when a decoder lacks one of three properties. First, the decoder
//! refuses an input with an error, or the decoded value encodes to the same bytes again. Second, the decoder allocates
//! no more memory than the length of the input justifies. Third, the decoder returns in bounded time. `fuzz/coverage`
//! runs the targets under libFuzzer. `fuzz/tests/corpus.rs` runs them on the kept inputs of `fuzz/corpus` and on
//! mutations of these inputs.

mod diffs;
mod frames;
mod guests;
mod link;
mod memory;
pub mod mutate;
mod ranks;
mod settings;
mod specs;
mod trace;

/// A named set of decoders under test.
#[derive(Debug)]
pub struct Target {
    /// The target's name, which is also that of its folder in `fuzz/corpus`.
    pub name: &'static str,
    /// The function that gives bytes to the decoders. It panics when a decoder lacks a property that it must have.
    pub run: fn(&[u8]),
    /// Number of mutated inputs that `fuzz/tests/corpus.rs` tries. It is smaller for targets that open a connection for
    /// each input.
    pub mutations: usize,
}

/// All targets.
pub const TARGETS: [Target; 8] = [
    Target { name: "frames", run: frames::run, mutations: 20_000 },
    Target { name: "link", run: link::run, mutations: 1000 },
    Target { name: "guests", run: guests::run, mutations: 300 },
    Target { name: "trace", run: trace::run, mutations: 20_000 },
    Target { name: "ranks", run: ranks::run, mutations: 20_000 },
    Target { name: "diffs", run: diffs::run, mutations: 20_000 },
    Target { name: "settings", run: settings::run, mutations: 20_000 },
    Target { name: "specs", run: specs::run, mutations: 2000 },
];

/// Returns the target with the name `name`.
///
/// # Panics
/// Panics when no target has this name.
#[must_use]
pub fn find(name: &str) -> &'static Target {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target '{name}'; give {}", names()))
}

/// Splits off the first byte of an input, which says how to use the rest.
fn first(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(first, rest)| (*first, rest))
}
