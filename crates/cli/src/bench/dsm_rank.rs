//! One rank of `hanare bench dsm`. It makes the calls and accesses that are timed. Rank 0 times and prints.
//!
//! Rank 0 accesses pages whose home is rank 1. Rank 1 waits in a barrier meanwhile. Updates go in the other direction.
#![allow(unsafe_code, reason = "reads and writes shared memory, which no Rust reference may cover")]

use std::collections::BTreeMap;
use std::time::Instant;

use clap::{Args, ValueEnum};
use hanare_dsm::coherence::{Event, Misuse, Outcome, Placement, Rank, Reduction};
use hanare_dsm::live::{Job, JobError, Live};
use thiserror::Error;

const PAGE: usize = 4096;
/// Number of pages accessed in a round.
const PAGES: usize = 64;
/// Number of rounds for each kind of fault, flush and update. The result is the median.
const ROUNDS: usize = 15;
/// Number of empty barriers that are timed.
const BARRIERS: usize = 200;
/// Distance in bytes between two words that [`scatter`] writes.
const SCATTERED: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Part {
    /// Faults and flushes, under the invalidate protocol.
    Faults,
    /// Updates, under the update protocol.
    Updates,
    /// Empty memory barriers.
    Barriers,
}

/// One rank of the benchmark. The help does not show it.
#[derive(Debug, Args)]
pub(crate) struct RankArgs {
    #[arg(long, value_enum)]
    part: Part,
}

/// Why a rank measured nothing.
#[derive(Debug, Error)]
pub(crate) enum RankError {
    /// The rank's environment is invalid.
    #[error(transparent)]
    Job(#[from] JobError),
    /// The rank could not connect to the other ranks.
    #[error("{0}")]
    Start(String),
    /// A call of shared memory failed.
    #[error(transparent)]
    Misuse(#[from] Misuse),
    /// There is no shared memory left for the benchmark.
    #[error("no shared memory for the benchmark; start it by 'hanare bench dsm'")]
    Room,
    /// A page did not hold what the other rank wrote.
    #[error("page {page} of shared memory holds {found} and should hold {expected}")]
    Wrong {
        /// The page.
        page: usize,
        /// The value that the page holds.
        found: u32,
        /// The value that the page should hold.
        expected: u32,
    },
}

/// The medians of one launch, in microseconds.
pub(super) type Figures = BTreeMap<String, f64>;

/// Measures one part. Rank 0 prints the figures as one JSON object.
pub(crate) fn rank(args: &RankArgs) -> Result<u8, RankError> {
    let live =
        Live::start(Job::from_env(|name| std::env::var(name).ok())?).map_err(|error| RankError::Start(error.why))?;
    let mut bench = Bench { live, is_first: live.job().rank == Rank(0), figures: Figures::new() };
    match args.part {
        Part::Faults => bench.faults()?,
        Part::Updates => bench.updates()?,
        Part::Barriers => bench.barriers()?,
    }
    live.call(Event::Shutdown)?;
    hanare_dsm::capi::leave_counts(live);
    live.end();
    if bench.is_first {
        println!("{}", serde_json::json!(bench.figures));
    }
    Ok(0)
}

struct Bench {
    live: &'static Live,
    is_first: bool,
    figures: Figures,
}

/// Returns the time of one call, in microseconds.
fn timed(what: impl FnOnce() -> Result<(), RankError>) -> Result<f64, RankError> {
    let began = Instant::now();
    what()?;
    Ok(began.elapsed().as_nanos() as f64 / 1e3)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(0.0)
}

impl Bench {
    fn alloc(&self, pages: usize, home: Rank) -> Result<usize, RankError> {
        let placement = Placement::One(home);
        match self.live.call(Event::Alloc { pages: pages as u32, placement: &placement })? {
            Outcome::Allocated { first } => Ok(self.live.address_of(first)),
            _ => Err(RankError::Room),
        }
    }

    fn barrier(&self) -> Result<(), RankError> {
        self.live.call(Event::Barrier)?;
        Ok(())
    }

    /// Returns the time of a memory barrier, in microseconds. A reduction right before the barrier synchronises the
    /// ranks, so the time includes no wait for late ranks.
    fn barrier_us(&self) -> Result<f64, RankError> {
        self.live.call(Event::Reduce { reduction: Reduction::MaxI64, values: &[0] })?;
        timed(|| self.barrier())
    }

    /// Returns the sum of a number over all ranks.
    fn sum(&self, number: u64) -> Result<f64, RankError> {
        match self.live.call(Event::Reduce { reduction: Reduction::SumI64, values: &[number] })? {
            Outcome::Reduced { values } => Ok(values.first().copied().unwrap_or(0) as f64),
            _ => Ok(0.0),
        }
    }

    /// Returns the median time of an empty barrier of all ranks, in microseconds.
    fn empty_barrier_us(&self, count: usize) -> Result<f64, RankError> {
        self.barrier()?;
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            times.push(self.barrier_us()?);
        }
        Ok(median(times))
    }

    fn barriers(&mut self) -> Result<(), RankError> {
        let empty_us = self.empty_barrier_us(BARRIERS)?;
        self.figures.insert("barrier_us".to_owned(), empty_us);
        Ok(())
    }

    /// Measures read faults, write faults, and flushes of pages with one and with 256 dirty words.
    fn faults(&mut self) -> Result<(), RankError> {
        let base = self.alloc(PAGES, Rank(1))?;
        let empty_us = self.empty_barrier_us(BARRIERS)?;
        let (mut reads, mut writes, mut misses) = (Vec::new(), Vec::new(), Vec::new());
        let (mut one, mut many) = (Vec::new(), Vec::new());
        let mut shares = Vec::new();
        for round in 0..3 * ROUNDS {
            if !self.is_first {
                (0..PAGES).for_each(|page| store(base + page * PAGE + 8, round as u32));
            }
            self.barrier()?;
            if self.is_first {
                let before = self.live.counts();
                let access: &mut dyn FnMut(usize) = match round % 3 {
                    2 => &mut |page| misses.extend(time_store(base + page * PAGE, round as u32 + 1)),
                    _ => &mut |page| reads.extend(time_load(base + page * PAGE)),
                };
                // The order is descending. A fault also fetches pages at higher addresses, so in ascending order few
                // accesses would fault.
                (0..PAGES).rev().for_each(access);
                let after = self.live.counts();
                shares.push((after.share_ns - before.share_ns) as f64 / 1e3 / PAGES as f64);
                check(base, PAGES, round as u32)?;
                if round % 3 < 2 {
                    (0..PAGES).for_each(|page| writes.extend(time_store(base + page * PAGE, round as u32 + 1)));
                }
                if round % 3 == 1 {
                    (0..PAGES).for_each(|page| scatter(base + page * PAGE, round as u32));
                }
            }
            let us = self.barrier_us()?;
            let per_page = (us - empty_us) / PAGES as f64;
            match round % 3 {
                0 => one.push(per_page),
                1 => many.push(per_page),
                _ => {}
            }
        }
        let figures = [("empty_us", vec![empty_us]), ("read_fault_us", reads), ("write_fault_us", writes)];
        let more = [("write_miss_us", misses), ("share_us", shares), ("flush_1_us", one), ("flush_256_us", many)];
        self.figures.extend(figures.into_iter().chain(more).map(|(name, times)| (name.to_owned(), median(times))));
        Ok(())
    }

    /// Measures barriers in which rank 0 updates rank 1's copy of one page, and then its copies of many pages. The
    /// single page is measured first, while no other pages are shared.
    fn updates(&mut self) -> Result<(), RankError> {
        let empty_us = self.empty_barrier_us(BARRIERS)?;
        let (one, _) = self.update_rounds(1, empty_us)?;
        let (many, parts) = self.update_rounds(PAGES, empty_us)?;
        for (name, times) in
            [("empty_us", vec![empty_us]), ("update_1_us", one), ("update_us", many), ("transfer_us", parts)]
        {
            self.figures.insert(name.to_owned(), median(times));
        }
        Ok(())
    }

    /// Measures rounds in which rank 0 writes `pages` pages of which rank 1 has copies. Returns the time per page of
    /// each round, and the part of it for sending and receiving, in microseconds.
    fn update_rounds(&mut self, pages: usize, empty_us: f64) -> Result<(Vec<f64>, Vec<f64>), RankError> {
        let base = self.alloc(pages, Rank(0))?;
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS as u32 {
            let before = self.live.counts().update_ns;
            if self.is_first {
                (0..pages).for_each(|page| store(base + page * PAGE + 8, round));
            }
            let us = self.barrier_us()?;
            // In the first round, rank 1 fetches the pages. In later rounds, rank 0 sends updates.
            if round > 0 {
                whole.push((us - empty_us) / pages as f64);
                parts.push(self.sum(self.live.counts().update_ns - before)? / 1e3 / pages as f64);
            }
            if !self.is_first {
                check(base, pages, round)?;
            }
            self.barrier()?;
        }
        Ok((whole, parts))
    }
}

/// Checks that every page holds the value that was written in this round.
fn check(base: usize, pages: usize, expected: u32) -> Result<(), RankError> {
    let wrong = (0..pages).map(|page| (page, load(base + page * PAGE + 8))).find(|(_, found)| *found != expected);
    wrong.map_or(Ok(()), |(page, found)| Err(RankError::Wrong { page, found, expected }))
}

fn load(addr: usize) -> u32 {
    let word: *const u32 = std::ptr::with_exposed_provenance(addr);
    // SAFETY: callers pass only aligned addresses in the allocation of shared memory, which is mapped in this process.
    unsafe { word.read_volatile() }
}

fn store(addr: usize, value: u32) {
    let word: *mut u32 = std::ptr::with_exposed_provenance_mut(addr);
    // SAFETY: callers pass only aligned addresses in the allocation of shared memory, which is mapped in this process.
    unsafe { word.write_volatile(value) };
}

fn time_load(addr: usize) -> Option<f64> {
    timed(|| {
        load(addr);
        Ok(())
    })
    .ok()
}

fn time_store(addr: usize, value: u32) -> Option<f64> {
    timed(|| {
        store(addr, value);
        Ok(())
    })
    .ok()
}

/// Writes 256 words of a page, no two of them adjacent. The word that `check` reads is not among them.
fn scatter(page: usize, value: u32) {
    (0..PAGE).step_by(SCATTERED).for_each(|at| store(page + at, value + 77));
}
