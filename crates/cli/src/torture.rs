//! `hanare torture`: does harm to real memory servers while a program checks every word of its far memory.
//!
//! The command starts memory servers and, under `hanare run`, this same binary as a checking program. Then it harms one
//! server after another by a seeded plan: it kills, restarts and stops servers, and cuts, holds up and corrupts their
//! links. Between two harms it waits until every page has all its parts again. So the pages always outlive the next
//! harm.

mod folder;
mod plan;
pub(crate) mod program;
mod relay;
mod round;
mod run;
mod servers;
mod tally;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use hanare_settings::fits::TooMuch;
use hanare_settings::{Redundancy, format_size, human_size, parse_size};
use hanare_wire::KeyError;
use thiserror::Error;

use crate::interrupt::{Interrupt, exit_code};
use crate::message::say;
use crate::run::warn_of_memory;
use folder::Folder;
use plan::Plan;
use round::{Round, Stop};
use tally::Tally;

/// Exit code when a word was wrong, something hung, or the program did not end well.
const EXIT_FOUND: u8 = 1;
/// Smallest far memory of the checking program, in bytes.
const SIZE_MIN: u64 = 16 << 20;
/// Longest time of the test, in minutes.
const MINUTES_MAX: f64 = 1e6;

const EXAMPLES: &str = "\
Examples:
  hanare torture --minutes 3 --seed 7 --servers 4 --redundancy parity:2+1
  hanare torture --minutes 60 --servers 6 --redundancy parity:4+2 --size 256M --local 32M

The servers are processes of this machine. Each second server is behind a relay of the command, through which its link \
is cut, held up or corrupted. A seed gives the same harms in the same order; their moments depend on the machine.
Exit codes: 0 when every word was right, nothing hung and the program ended well. 1 otherwise; one line says what was \
found, and the seed. 125 when the test could not begin or go on. 128 plus the signal's number after Ctrl-C, SIGTERM or \
SIGHUP.";

/// Kill, restart, stop and cut off memory servers while a program checks every word of its far memory.
///
/// Prints what was done, the words that were checked, and the longest stall after each kind of harm. A stall is the
/// time in which the program checks one page.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub(crate) struct TortureArgs {
    /// How long to do harm, in minutes.
    #[arg(long, value_name = "M", default_value = "1", value_parser = parse_minutes)]
    minutes: f64,
    /// Number from which all choices follow.
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Number of memory servers, 2 to 255.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(2..=255))]
    servers: u16,
    /// Parts of each page: mirror (two copies) or parity:K+M (K parts and M parity parts).
    #[arg(long, value_name = "mirror|parity:K+M", default_value = "mirror")]
    redundancy: Redundancy,
    /// Memory of each server. Default: twice what the others need when servers are lost.
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Far memory of the checking program.
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    size: u64,
    /// Local memory of the checking program.
    #[arg(long, value_name = "SIZE", default_value = "16M", value_parser = parse_size)]
    local: u64,
    /// Number of threads of the checking program.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Pause after each harm, in milliseconds, once every page has all its parts again.
    #[arg(long, value_name = "MS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(..=600_000))]
    pause_ms: u64,
    /// End after this number of harms.
    #[arg(long, value_name = "N")]
    harms: Option<u64>,
    /// Write to FILE what happens, each event with the seconds since the start.
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Make the checking program spoil one word of its own, which it must find.
    #[arg(long, hide = true)]
    flip_word: bool,
}

/// Why the test did not begin, or could not go on.
#[derive(Debug, Error)]
pub(crate) enum TortureError {
    /// Pages have no redundancy.
    #[error("--redundancy none loses pages with each lost server; give mirror or parity:K+M")]
    NoRedundancy,
    /// There are too few servers.
    #[error(
        "--redundancy {redundancy} needs {needed} servers, and --servers is {servers}; give more servers or fewer parts"
    )]
    FewServers {
        /// The redundancy.
        redundancy: Redundancy,
        /// The number of servers that it needs.
        needed: u8,
        /// The number of servers.
        servers: u16,
    },
    /// The program is too small to be tested.
    #[error("--size {} is too small for a test; give at least {}", format_size(*.0), format_size(SIZE_MIN))]
    SmallSize(u64),
    /// No page would leave local memory.
    #[error(
        "--local {} holds all of --size {}, so no page would leave; give half of it",
        format_size(*.local), format_size(*.size)
    )]
    LargeLocal {
        /// The local memory, in bytes.
        local: u64,
        /// The far memory, in bytes.
        size: u64,
    },
    /// The servers cannot hold the pages when some of them are lost.
    #[error(
        "--memory {} is too little: after losses, each of the other servers holds up to {}; give more, or a smaller --size",
        format_size(*.memory), human_size(*.needed)
    )]
    LittleMemory {
        /// The memory of each server, in bytes.
        memory: u64,
        /// The memory that each server needs, in bytes.
        needed: u64,
    },
    /// The machine has less memory than asked for.
    #[error(transparent)]
    TooMuch(#[from] TooMuch),
    /// The key cannot be made.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    /// The folder of the key cannot be made.
    #[error("cannot make a folder for the servers' key: {0}; set TMPDIR to a writable directory")]
    Folder(io::Error),
    /// A process could not be started.
    #[error("cannot start {what}: {source}; check 'ulimit -u' and 'ulimit -n'")]
    Start {
        /// The process.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A server ended at its start.
    #[error("a memory server of the test did not start: {0}")]
    Server(String),
    /// The run ended at its start.
    #[error("the run of the test did not start: {0}")]
    Run(String),
    /// The log cannot be made.
    #[error("cannot write --log {path}: {source}", path = path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot print: {0}")]
    Print(io::Error),
}

/// What the test needs to know of its flags.
#[derive(Debug)]
struct Wish {
    seed: u64,
    servers: usize,
    redundancy: Redundancy,
    memory_bytes: u64,
    size_bytes: u64,
    local_bytes: u64,
    threads: u16,
    pause: Duration,
    harms_max: u64,
    flip_word: bool,
    time: Duration,
}

fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= MINUTES_MAX => Ok(minutes),
        _ => Err(format!("give a number of minutes above 0 and up to {MINUTES_MAX}, such as 0.5 or 60")),
    }
}

/// Checks the flags, before anything is started.
fn check(args: &TortureArgs) -> Result<Wish, TortureError> {
    let (redundancy, servers) = (args.redundancy, args.servers);
    if redundancy.is_none() {
        return Err(TortureError::NoRedundancy);
    }
    if servers < redundancy.parts().into() {
        return Err(TortureError::FewServers { redundancy, needed: redundancy.parts(), servers });
    }
    if args.size < SIZE_MIN {
        return Err(TortureError::SmallSize(args.size));
    }
    if args.local >= args.size {
        return Err(TortureError::LargeLocal { local: args.local, size: args.size });
    }
    let needed = needed_bytes(args.size, redundancy, servers.into());
    let memory = args.memory.unwrap_or(needed.saturating_mul(2));
    if memory < needed {
        return Err(TortureError::LittleMemory { memory, needed });
    }
    warn_of_memory(&[("--memory", memory)])?;
    Ok(Wish {
        seed: args.seed,
        servers: servers.into(),
        redundancy,
        memory_bytes: memory,
        size_bytes: args.size,
        local_bytes: args.local,
        threads: args.threads,
        pause: Duration::from_millis(args.pause_ms),
        harms_max: args.harms.unwrap_or(u64::MAX),
        flip_word: args.flip_word,
        time: Duration::from_secs_f64(args.minutes * 60.0),
    })
}

/// Returns the memory that each server needs when as many servers are lost as the redundancy survives, in bytes. A
/// server holds one part of a page at most. A quarter more is for pages in transit, and 8 MiB for extents that are
/// partly used.
fn needed_bytes(size: u64, redundancy: Redundancy, servers: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let part = size / u64::from(redundancy.data);
    let left = servers.saturating_sub(redundancy.parity.into()).max(1);
    let share = part.saturating_mul(redundancy.parts().into()) / left;
    let held = part.min(share);
    (held.saturating_add(held / 4).saturating_add(8 * MIB)).div_ceil(MIB).saturating_mul(MIB)
}

/// Runs the test and prints its figures.
pub(crate) fn torture(args: &TortureArgs) -> Result<u8, TortureError> {
    let wish = check(args)?;
    let interrupt = Interrupt::install().map_err(TortureError::Signals)?;
    let log = args
        .log
        .as_ref()
        .map(|path| File::create(path).map_err(|source| TortureError::Log { path: path.clone(), source }));
    let mut tally = Tally::new(log.transpose()?);
    let folder = Folder::new()?;
    let mut plan = Plan::new(wish.seed);
    let end = Instant::now() + wish.time;
    let stop = loop {
        let number = tally.runs;
        let round = Round::new(&wish, &folder, &interrupt, &mut plan, &mut tally);
        match round.and_then(|mut round| round.go(end)) {
            Ok(()) if Instant::now() < end && tally.harms() < wish.harms_max => {}
            Ok(()) => break None,
            Err(stop) => break Some((stop, number)),
        }
    };
    tally.print(&wish).map_err(TortureError::Print)?;
    match stop {
        None => Ok(0),
        Some((Stop::Found(what), number)) => {
            let (harms, seed) = (tally.harms(), wish.seed);
            say(&format!("torture: {what} (seed {seed}, harm {harms}, run {number})"));
            Ok(EXIT_FOUND)
        }
        Some((Stop::Interrupted(signal), _)) => Ok(exit_code(signal)),
        Some((Stop::Own(error), _)) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_are_above_zero() {
        assert_eq!(parse_minutes("0.1"), Ok(0.1));
        for text in ["0", "-1", "NaN", "inf", "", "much"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn servers_hold_what_lost_servers_held() {
        const MIB: u64 = 1 << 20;
        let parity = |data, parity| Redundancy { data, parity };
        // A server holds at most one copy: of four servers, three share two copies.
        assert_eq!(needed_bytes(48 * MIB, Redundancy::MIRROR, 4), 48 * MIB);
        assert_eq!(needed_bytes(48 * MIB, Redundancy::MIRROR, 2), 68 * MIB);
        assert_eq!(needed_bytes(64 * MIB, parity(4, 1), 5), 28 * MIB);
        assert_eq!(needed_bytes(64 * MIB, parity(4, 2), 8), 28 * MIB);
    }
}
