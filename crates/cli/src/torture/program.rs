//! The checking program of a test. It runs under `hanare run`, so its blocks are far memory. The help does not show it.
//!
//! Each thread has blocks of its own. Each word of a block is a function of the seed, the block, the word's index, and
//! how often its page was rewritten. So a lost, stale or misplaced page is noticed when it is checked.

use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use hanare::stats::{Stats, StatsError};
use hanare_settings::{Settings, SettingsError};
use memmap2::MmapMut;
use thiserror::Error;

use super::plan::Random;
use super::run::Report;
use crate::bench::mix;

/// The size of a page in bytes, and in words.
const PAGE: usize = 4096;
const PAGE_WORDS: usize = PAGE / 8;
/// The size of a block in pages: 2 MiB.
const BLOCK_PAGES: usize = 512;
/// The number of pages that a thread visits at random between two choices.
const RANDOM_VISITS: u64 = 128;
/// One of this number of choices replaces a block.
const REPLACE_EVERY: u64 = 32;
/// The time of the sleeps that show how late this machine wakes a thread.
const NAP: Duration = Duration::from_millis(10);
/// The number of such sleeps between two reports.
const NAPS: u32 = 10;

/// The checking program.
#[derive(Debug, Args)]
pub(crate) struct ProgramArgs {
    #[arg(long)]
    seed: u64,
    /// Bytes of far memory.
    #[arg(long)]
    size: u64,
    #[arg(long)]
    threads: u16,
    #[arg(long)]
    flip_word: bool,
}

/// Why the program did not check anything.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    /// The kernel did not accept the request to kill this process when its starter ends.
    #[error("cannot bind this process to its starter: {0}; run 'hanare torture'")]
    Starter(rustix::io::Errno),
    /// The settings are invalid.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// There are no counters.
    #[error(transparent)]
    Stats(#[from] StatsError),
    /// No thread can be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// Nobody reads the reports.
    #[error("cannot report: {0}; run 'hanare torture'")]
    Report(io::Error),
}

/// What the threads share.
struct Shared {
    began: Instant,
    words: AtomicU64,
    /// The longest time of a finished visit since the last report, in nanoseconds.
    stall_ns: AtomicU64,
    /// When the present visit of each thread began, in nanoseconds since `began`. 0 for none.
    visits: Vec<AtomicU64>,
    ends: AtomicBool,
    running: AtomicUsize,
    wrong: Mutex<Option<String>>,
}

/// Some pages of far memory. It is mapped by the C library's `mmap`, because the allocator of this binary is Hanare's
/// own, whose blocks are always near.
struct Block {
    base: u64,
    memory: MmapMut,
    /// How often each page was written. 0: it reads as zeroes. This vector is near.
    versions: Vec<u32>,
}

impl Block {
    fn new(base: u64) -> Result<Self, String> {
        let memory =
            MmapMut::map_anon(BLOCK_PAGES * PAGE).map_err(|error| format!("no far memory is left: {error}"))?;
        Ok(Self { base, memory, versions: vec![0; BLOCK_PAGES] })
    }

    fn word(&self, index: usize, version: u32) -> u64 {
        word(self.base, index, version)
    }

    /// Checks the words of a page. Returns a description of the first wrong one.
    fn check(&self, page: usize) -> Result<(), String> {
        let version = self.versions[page];
        let first = page * PAGE_WORDS;
        // Keeps the compiler from using what was written before instead of what is there.
        let words = std::hint::black_box(&self.memory[page * PAGE..(page + 1) * PAGE]).as_chunks().0;
        let wrong = (first..).zip(words).find(|(index, word)| u64::from_ne_bytes(**word) != self.word(*index, version));
        wrong.map_or(Ok(()), |(index, found)| {
            let (address, expected) = (&raw const self.memory[8 * index], self.word(index, version));
            let found = u64::from_ne_bytes(*found);
            Err(format!(
                "the word at {address:?}, of version {version}, is {found:#018x} and should be {expected:#018x}"
            ))
        })
    }

    fn rewrite(&mut self, page: usize) {
        let version = self.versions[page].wrapping_add(1);
        let words = self.memory[page * PAGE..(page + 1) * PAGE].as_chunks_mut().0;
        for (index, place) in (page * PAGE_WORDS..).zip(words.iter_mut()) {
            *place = word(self.base, index, version).to_ne_bytes();
        }
        std::hint::black_box(words);
        self.versions[page] = version;
    }
}

/// Returns the word of a block at an index.
fn word(base: u64, index: usize, version: u32) -> u64 {
    let number = base.wrapping_add(index as u64).wrapping_add(u64::from(version) << 40);
    if version == 0 { 0 } else { mix(number) }
}

/// One thread of the program.
struct Worker<'a> {
    shared: &'a Shared,
    nth: usize,
    random: Random,
    blocks: Vec<Block>,
    /// The number of visits after which a word is spoilt.
    flip_in: Option<u32>,
}

impl Worker<'_> {
    fn work(&mut self) -> Result<(), String> {
        while !self.shared.ends.load(Relaxed) {
            let block = self.random.below(self.blocks.len() as u64) as usize;
            let choice = self.random.next();
            if choice.is_multiple_of(REPLACE_EVERY) && self.flip_in.is_none() {
                let base = self.random.next();
                self.blocks[block] = Block::new(base)?;
            } else if choice % 2 == 1 {
                let rewrite = choice & 2 == 0;
                (0..BLOCK_PAGES).try_for_each(|page| self.visit(block, page, rewrite))?;
            } else {
                for _ in 0..RANDOM_VISITS {
                    let block = self.random.below(self.blocks.len() as u64) as usize;
                    let choice = self.random.next();
                    self.visit(block, (choice >> 8) as usize % BLOCK_PAGES, !choice.is_multiple_of(4))?;
                }
            }
        }
        (0..self.blocks.len())
            .try_for_each(|block| (0..BLOCK_PAGES).try_for_each(|page| self.visit(block, page, false)))
    }

    /// Checks a page, and rewrites it if wanted. Takes the time.
    fn visit(&mut self, block: usize, page: usize, rewrite: bool) -> Result<(), String> {
        let begun = Instant::now();
        let since = begun.duration_since(self.shared.began).as_nanos() as u64;
        self.shared.visits[self.nth].store(since.max(1), Relaxed);
        self.blocks[block].check(page)?;
        if rewrite {
            self.blocks[block].rewrite(page);
        }
        self.shared.stall_ns.fetch_max(begun.elapsed().as_nanos() as u64, Relaxed);
        self.shared.visits[self.nth].store(0, Relaxed);
        self.shared.words.fetch_add(PAGE_WORDS as u64, Relaxed);
        if let Some(left) = &mut self.flip_in {
            *left = left.saturating_sub(1);
            if *left == 0 {
                *left = u32::MAX;
                self.blocks[block].memory[page * PAGE + 139] ^= 1 << 5;
            }
        }
        Ok(())
    }
}

impl Shared {
    fn report(&self, stats: &Stats, late: Duration, is_done: bool) -> Report {
        let now_ns = self.began.elapsed().as_nanos() as u64;
        let begun = self.visits.iter().map(|visit| visit.load(Relaxed)).filter(|begun| *begun > 0);
        let lasting_ns = begun.map(|begun| now_ns.saturating_sub(begun)).max().unwrap_or(0);
        let wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report {
            words: self.words.load(Relaxed),
            stall_us: self.stall_ns.swap(0, Relaxed).max(lasting_ns) / 1000,
            late_us: late.as_micros() as u64,
            fetched_bytes: stats.bytes_in.load(Relaxed),
            servers_lost: stats.servers_lost.load(Relaxed),
            behind_bytes: stats.parts_behind_bytes.load(Relaxed),
            rebuilt_bytes: stats.parts_rebuilt_bytes.load(Relaxed),
            degraded_ms: stats.degraded_ns.load(Relaxed) / 1_000_000,
            is_done: is_done && wrong.is_none(),
            wrong,
        }
    }
}

/// Checks words until standard input ends. Returns 1 if a word was wrong.
pub(crate) fn program(args: &ProgramArgs) -> Result<u8, ProgramError> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(ProgramError::Starter)?;
    let settings = Settings::from_env()?;
    let stats = Stats::attach(settings.stats_fd, settings.stats_pid)?;
    let threads = usize::from(args.threads);
    let shared = Shared {
        began: Instant::now(),
        words: AtomicU64::new(0),
        stall_ns: AtomicU64::new(0),
        visits: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        ends: AtomicBool::new(false),
        running: AtomicUsize::new(threads),
        wrong: Mutex::new(None),
    };
    std::thread::scope(|scope| {
        let shared = &shared;
        for nth in 0..threads {
            let work = move || {
                let worked = worker(args, shared, nth).and_then(|mut worker| worker.work());
                if let Err(wrong) = worked {
                    shared.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(wrong);
                    shared.ends.store(true, Relaxed);
                    // A visit that found a wrong word does not last.
                    shared.visits[nth].store(0, Relaxed);
                }
                shared.running.fetch_sub(1, Release);
            };
            if let Err(error) = std::thread::Builder::new().spawn_scoped(scope, work) {
                shared.ends.store(true, Relaxed);
                return Err(ProgramError::Thread(error));
            }
        }
        report_until_end(shared, &stats)
    })
}

fn worker<'a>(args: &ProgramArgs, shared: &'a Shared, nth: usize) -> Result<Worker<'a>, String> {
    let mut random = Random(mix(args.seed ^ ((nth as u64) << 32)));
    let blocks = (args.size / (BLOCK_PAGES * PAGE_WORDS * 8) as u64 / u64::from(args.threads)).max(1);
    let blocks = (0..blocks).map(|_| Block::new(random.next())).collect::<Result<_, _>>()?;
    Ok(Worker { shared, nth, random, blocks, flip_in: (args.flip_word && nth == 0).then_some(300) })
}

/// Prints reports until all threads have ended.
fn report_until_end(shared: &Shared, stats: &Stats) -> Result<u8, ProgramError> {
    let (asked, ends) = (std::sync::Arc::new(AtomicBool::new(false)), &shared.ends);
    let ask = asked.clone();
    // This thread is not of the scope, because the process may end without it.
    let waiting = std::thread::Builder::new().spawn(move || {
        // An end and an error both mean that nobody wants more.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ask.store(true, Relaxed);
    });
    if let Err(error) = waiting {
        ends.store(true, Relaxed);
        return Err(ProgramError::Thread(error));
    }
    loop {
        let mut late = Duration::ZERO;
        for _ in 0..NAPS {
            let begun = Instant::now();
            std::thread::sleep(NAP);
            late = late.max(begun.elapsed().saturating_sub(NAP));
        }
        if asked.load(Relaxed) {
            ends.store(true, Relaxed);
        }
        let is_done = shared.running.load(Acquire) == 0;
        let report = shared.report(stats, late, is_done);
        let line = serde_json::to_string(&report).map_err(|error| ProgramError::Report(error.into()))?;
        let said = writeln!(io::stdout(), "{line}");
        if let Err(error) = said {
            ends.store(true, Relaxed);
            return Err(ProgramError::Report(error));
        }
        if is_done {
            return Ok(u8::from(report.wrong.is_some()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_a_lost_and_a_misplaced_word_are_found() {
        let mut block = Block::new(mix(1)).unwrap();
        block.check(3).unwrap();
        block.rewrite(3);
        block.rewrite(3);
        block.check(3).unwrap();
        let index = 3 * PAGE_WORDS + 100;
        let right = block.word(index, 2);
        let put = |block: &mut Block, word: u64| block.memory[8 * index..][..8].copy_from_slice(&word.to_ne_bytes());
        for wrong in [block.word(index, 1), 0, block.word(index + PAGE_WORDS, 2)] {
            put(&mut block, wrong);
            let found = block.check(3).unwrap_err();
            assert!(found.contains("version 2") && found.contains(&format!("{right:#018x}")), "{found}");
        }
        put(&mut block, right);
        (0..BLOCK_PAGES).for_each(|page| block.check(page).unwrap());
    }
}
