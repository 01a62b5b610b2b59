//! Helpers of this crate's tests: they fill memory with patterns, wait with a time limit, and skip tests.
#![allow(dead_code, unreachable_pub, reason = "every test file uses a part of it")]

use hanare_sys::features::{Disabled, Features};
use hanare_sys::map::{Mapping, page_size};
use hanare_sys::uffd::{EVENTS_PER_READ, Event, RegisterMode, Uffd};
use std::time::{Duration, Instant};

/// The time limit of every wait. It is longer than any expected delay, so a test that reaches it fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const MISSING: RegisterMode = RegisterMode { missing: true, wp: false, minor: false };
pub const MISSING_WP: RegisterMode = RegisterMode { missing: true, wp: true, minor: false };
pub const WP: RegisterMode = RegisterMode { missing: false, wp: true, minor: false };

pub fn features() -> Features {
    Features::probe(&Disabled::default())
}

/// If the machine lacks a feature, prints the reason and returns from the test, which then counts as passed.
#[macro_export]
macro_rules! need {
    ($present:expr, $what:literal) => {
        if !$present {
            println!("skipped: this machine has no {}", $what);
            return;
        }
    };
}

/// Maps a region of missing pages and registers it with `uffd`.
pub fn far(uffd: &Uffd, len: usize, mode: RegisterMode) -> Mapping {
    let mapping = Mapping::reserve(len, page_size()).unwrap();
    uffd.register(mapping.addr(), mapping.len(), mode).unwrap();
    mapping
}

/// Maps ordinary memory and fills it with a pattern.
pub fn near(len: usize, seed: u64) -> Mapping {
    let mapping = Mapping::anonymous(len).unwrap();
    fill(mapping.addr(), len, seed);
    mapping
}

fn word(seed: u64, index: usize) -> u64 {
    (seed << 32 ^ index as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Writes a pattern in which every word depends on its position and on the seed.
pub fn fill(addr: usize, len: usize, seed: u64) {
    let words: *mut u64 = std::ptr::with_exposed_provenance_mut(addr);
    for index in 0..len / 8 {
        // SAFETY: each caller passes writable memory of its test, and `index` stays below the length.
        unsafe { words.add(index).write_volatile(word(seed, index)) };
    }
}

/// Checks a pattern written by [`fill`].
#[track_caller]
pub fn check(addr: usize, len: usize, seed: u64) {
    for index in 0..len / 8 {
        assert_eq!(read(addr + index * 8), word(seed, index), "word {index} of {len} bytes, seed {seed}");
    }
}

#[track_caller]
pub fn check_zero(addr: usize, len: usize) {
    for index in 0..len / 8 {
        assert_eq!(read(addr + index * 8), 0, "word {index} of {len} bytes");
    }
}

pub fn read(addr: usize) -> u64 {
    let word: *const u64 = std::ptr::with_exposed_provenance(addr);
    // SAFETY: the address belongs to the caller's test. Otherwise the read raises a fault, which the test expects.
    unsafe { word.read_volatile() }
}

pub fn write(addr: usize, value: u64) {
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: the address belongs to the caller's test, so no other code relies on its contents.
    unsafe { word.write_volatile(value) };
}

/// Returns the next events. Fails the test if no event arrives in time.
#[track_caller]
pub fn next_events(uffd: &Uffd) -> Vec<Event> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        let mut events = [Event::EMPTY; EVENTS_PER_READ];
        let count = uffd.read_events(&mut events).expect("a userfaultfd");
        if count > 0 {
            return events[..count].to_vec();
        }
        uffd.wait(None, Some(Duration::from_millis(100))).expect("a userfaultfd");
    }
    panic!("no event within {PATIENCE:?}");
}

/// Returns the size of the huge pages in the mapping that contains `addr`, in KiB.
pub fn huge_kib(addr: usize) -> usize {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in smaps.lines() {
        let range = line.split_whitespace().next().and_then(|word| word.split_once('-'));
        if let Some((start, end)) = range {
            let number = |text| usize::from_str_radix(text, 16).ok();
            if let (Some(start), Some(end)) = (number(start), number(end)) {
                inside = (start..end).contains(&addr);
            }
        }
        if let Some(value) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            return value.trim().trim_end_matches("kB").trim().parse().unwrap();
        }
    }
    0
}
