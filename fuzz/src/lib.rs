//! The promises of every decoder of outside bytes, as fuzz targets. No file is opened here.
//!
//! A *target* takes any bytes, gives them to decoders, and panics when one breaks a promise: an input is refused with
//! an error, or it encodes to the same bytes again; no more memory is allocated than the length of the input justifies;
//! the answer comes in bounded time. `fuzz/coverage` runs the targets under libFuzzer, `fuzz/tests/corpus.rs` runs them
//! on the kept inputs of `fuzz/corpus` and on mutations of these.

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

/// Decoders under test.
#[derive(Debug)]
pub struct Target {
    /// The name, which is also that of the folder in `fuzz/corpus`.
    pub name: &'static str,
    /// Gives bytes to the decoders; panics when one breaks a promise.
    pub run: fn(&[u8]),
    /// Number of mutations that the ordinary test tries. It is smaller where each takes a connection.
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

/// The target of this name.
///
/// # Panics
/// There is none.
#[must_use]
pub fn find(name: &str) -> &'static Target {
    let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no target '{name}'; give {}", names()))
}

/// Splits off the first byte of an input, which says how to use the rest.
fn first(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(first, rest)| (*first, rest))
}
