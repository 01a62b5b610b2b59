//! Properties that every decoder of outside bytes must have, checked by fuzz targets. No file is opened here.
//!
//! A *target* takes any bytes, gives them to decoders, and panics when a decoder lacks one of these properties. An
//! input is refused with an error, or it encodes to the same bytes again. No more memory is allocated than the length
//! of the input justifies. The answer comes in bounded time. `fuzz/coverage` runs the targets under libFuzzer.
//! `fuzz/tests/corpus.rs` runs them on the kept inputs of `fuzz/corpus` and on mutations of these inputs.

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
    /// Gives bytes to the decoders, and panics when one of them lacks a property that it must have.
    pub run: fn(&[u8]),
    /// Number of mutations that the ordinary test tries. It is smaller for targets that open a connection for each
    /// input.
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

/// The target with the name `name`.
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
