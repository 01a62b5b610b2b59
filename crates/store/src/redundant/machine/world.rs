//! Tests the machine against a plain model: random writes, reads and releases of a program, and servers that delay,
//! refuse, damage, die and come back at any step. A seed determines a world.
//!
//! A part in this world is the version of its unit's write. K parts of the same version give the unit back. Parts of
//! different versions are a torn unit.
//!
//! `HANARE_TEST_SEEDS=n` runs n seeds of each scheme, `HANARE_TEST_STEPS=n` n steps of each seed, and
//! `HANARE_TEST_SEED=n` runs that seed alone.

use std::collections::{BTreeMap, VecDeque};

use hanare_paging::PageId;

use super::*;
use crate::Read;

mod program;
mod servers;

use servers::{Queued, Server};

const EXTENT_UNITS: u32 = 8;
const EXTENTS: u32 = 5;
const UNITS: u32 = EXTENTS * EXTENT_UNITS;
const FRAMES: u32 = 6;
/// The version of a part that was computed from parts of different versions.
const TORN: u32 = u32::MAX;
/// The maximum number of steps until everything has come to rest.
const REST_MAX: u32 = 200_000;

/// A scheme and the number of servers: K, M, servers, hosts.
const SCHEMES: [(u8, u8, usize, u16); 8] =
    [(1, 1, 2, 2), (1, 1, 3, 3), (2, 1, 4, 4), (4, 1, 6, 6), (2, 2, 5, 5), (1, 2, 4, 4), (4, 2, 7, 7), (2, 1, 7, 4)];

pub(super) struct Random(u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }

    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// The page in a frame.
#[derive(Clone, Copy)]
struct Page {
    unit: u32,
    count: u32,
    version: u32,
    /// Whether a server was lost or refused a part during the write, or a part was missing before.
    is_disturbed: bool,
}

/// A read of the program.
struct Expected {
    unit: u32,
    versions: Vec<u32>,
}

pub(super) struct World {
    machine: Machine,
    random: Random,
    servers: Vec<Server>,
    /// The version that the program wrote last into each unit. 0 if it holds nothing.
    model: Vec<u32>,
    /// The units that are being written or read.
    is_busy: Vec<bool>,
    frames: Vec<Option<Page>>,
    reads: BTreeMap<u16, Expected>,
    /// The parts in the memory of the reads.
    landed: BTreeMap<(u16, Landing), Vec<u32>>,
    /// The parts that jobs have computed.
    computed: [Vec<u32>; JOBS],
    /// Requests that no thread has sent yet.
    requests: VecDeque<Request>,
    version: u32,
    /// Whether servers may be lost although pages are lost with them.
    is_doomed: bool,
    /// Whether the world is in its last phase, without further disturbances.
    is_calm: bool,
    /// Whether servers have less room than they report.
    is_tight: bool,
    per_mille_lost: u64,
    per_mille_refused: u64,
    reads_done: u32,
    losses: u32,
    /// What has happened, if a single seed is replayed. It is printed when the seed fails.
    story: Option<Vec<String>>,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let story = self.story.iter().flatten();
            story.clone().skip(story.count().saturating_sub(150)).for_each(|line| eprintln!("{line}"));
        }
    }
}

impl World {
    fn new(seed: u64, scheme: usize, mistake: Option<Mistake>) -> Self {
        let (data, parity, count, hosts) = SCHEMES[scheme];
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d);
        for _ in 0..4 {
            random.below(2);
        }
        let sizes = Sizes { units: UNITS, extent_units: EXTENT_UNITS, frames: FRAMES, data, parity, job_units: 3 };
        let mut members = Vec::new();
        let mut servers = Vec::new();
        let is_tight = random.chance(250);
        for index in 0..count {
            // A tight server has less room than it reports.
            let room = if is_tight { 2 + random.below(u64::from(EXTENTS)) } else { u64::from(EXTENTS) };
            members.push(Member::new(index as u16 % hosts, u64::from(EXTENTS), false));
            servers.push(Server::new(room));
        }
        let is_doomed = random.chance(125);
        let mut machine = Machine::new(sizes, members);
        machine.mistake = mistake;
        let per_mille_lost = [0, 5, 20, 60][random.below(4) as usize];
        Self {
            machine,
            servers,
            model: vec![0; UNITS as usize],
            is_busy: vec![false; UNITS as usize],
            frames: vec![None; FRAMES as usize],
            reads: BTreeMap::new(),
            landed: BTreeMap::new(),
            computed: std::array::from_fn(|_| Vec::new()),
            requests: VecDeque::new(),
            version: 0,
            is_doomed: is_doomed || is_tight,
            is_calm: false,
            is_tight,
            per_mille_lost,
            per_mille_refused: if is_tight { 5 } else { 0 },
            reads_done: 0,
            losses: 0,
            story: number("HANARE_TEST_SEED").map(|_| Vec::new()),
            random,
        }
    }

    fn is_over(&self) -> bool {
        match self.machine.fatal() {
            None => false,
            Some(fatal) => {
                assert!(self.is_doomed, "the run ends by {fatal:?} although enough parts are left");
                true
            }
        }
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(line());
        }
    }

    /// Carries out what the machine wants, as the store does.
    fn obey(&mut self) {
        while let Some(order) = self.machine.next_order() {
            self.note(|| format!("{order:?}"));
            match order {
                Order::Write { member, part, frame } => {
                    let page = self.frames[frame as usize].expect("a page in the frame");
                    if !self.servers[member].is_there {
                        continue;
                    }
                    if self.servers[member].has_room_for(page.unit / EXTENT_UNITS) {
                        self.servers[member].queue.push_back(Queued::Page { frame, part });
                    } else {
                        self.disturb();
                        self.machine.refused(frame, member);
                    }
                }
                Order::WriteRebuilt { member, job } => {
                    let Job { unit, count, part, .. } = self.machine.job(job);
                    if !self.servers[member].is_there {
                        continue;
                    }
                    if self.servers[member].has_room_for(unit / EXTENT_UNITS) {
                        assert_eq!(self.computed[job].len(), count as usize);
                        let versions = std::mem::take(&mut self.computed[job]);
                        self.servers[member].queue.push_back(Queued::Rebuilt { job, unit, part, versions });
                    } else {
                        self.machine.rebuilt_refused(job, member);
                    }
                }
                Order::Release { member, unit, count } => self.servers[member].release(unit, count),
            }
        }
        while let Some(request) = self.machine.next_request() {
            self.note(|| format!("{request:?}"));
            self.requests.push_back(request);
        }
        while let Some((frame, unit)) = self.machine.next_given() {
            self.given(frame, unit);
        }
    }

    /// Marks all writes under way as disturbed.
    fn disturb(&mut self) {
        self.frames.iter_mut().flatten().for_each(|page| page.is_disturbed = true);
    }

    /// A frame is given back. The machine has promised that no sender needs it any more, and that all parts of its page
    /// are held, as far as their servers are there.
    fn given(&mut self, frame: u32, unit: u32) {
        self.note(|| format!("frame {frame} is given back"));
        let page = self.frames[frame as usize].take().expect("a frame is given back once");
        assert_eq!(page.unit, unit);
        for (index, server) in self.servers.iter().enumerate().filter(|(_, server)| !server.is_stopped) {
            let needs = |queued: &Queued| matches!(queued, Queued::Page { frame: other, .. } if *other == frame);
            assert!(!server.queue.iter().any(needs), "server {index} still needs frame {frame}");
        }
        for unit in page.unit..page.unit + page.count {
            self.is_busy[unit as usize] = false;
            let readable = self.machine.readable(unit);
            assert!(page.is_disturbed || readable == self.machine.all_parts(), "unit {unit} lacks a part");
        }
        self.check();
    }

    /// Checks that each good part is where the machine says, and has the last version.
    fn check(&self) {
        for unit in (0..UNITS).filter(|&unit| !self.machine.writing.has(unit)) {
            let version = self.model[unit as usize];
            let readable = self.machine.readable(unit);
            assert!(version != 0 || readable == 0, "unit {unit} was released");
            let extent = unit / EXTENT_UNITS;
            let mut hosts = Vec::new();
            for part in parts_of(self.machine.homed(extent)) {
                let home = self.machine.home(extent, part).expect("a home");
                assert!(self.servers[home].is_there, "part {part} of extent {extent} is on a lost server");
                let host = home % usize::from(self.hosts());
                assert!(!hosts.contains(&host), "two parts of extent {extent} are on host {host}");
                hosts.push(host);
                if readable >> part & 1 != 0 {
                    let found = self.servers[home].held[unit as usize];
                    assert_eq!(found, Some((part, version)), "part {part} of unit {unit} on server {home}");
                }
            }
            let enough = self.machine.is_enough(readable) || version == 0;
            assert!(enough || self.is_doomed, "unit {unit} is lost");
        }
        let held = (0..EXTENTS).map(|extent| {
            (extent * EXTENT_UNITS..(extent + 1) * EXTENT_UNITS).filter(|&unit| self.machine.is_used(unit)).count()
        });
        assert!(held.eq(self.machine.used.iter().map(|&used| usize::from(used))), "the units in use are counted");
    }

    fn hosts(&self) -> u16 {
        let (data, parity) = (self.machine.sizes.data, self.machine.sizes.parity);
        let is_it =
            |scheme: &&(u8, u8, usize, u16)| (scheme.0, scheme.1, scheme.2) == (data, parity, self.servers.len());
        SCHEMES.iter().find(is_it).map_or(1, |scheme| scheme.3)
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..3 => self.write(),
            3..6 => self.begin_read(),
            6 => self.release(),
            7 => self.hedge(),
            8 => self.rebuild(),
            9 => self.compute(),
            10..12 => self.send_request(),
            12 => self.disturb_servers(),
            _ => self.serve(),
        }
        self.obey();
    }

    /// Lets everything under way end, and then lets the lost servers come back until every page is whole.
    fn come_to_rest(&mut self) {
        self.is_calm = true;
        for round in 0.. {
            if self.is_over() {
                return;
            }
            let is_quiet = self.requests.is_empty() && self.servers.iter().all(Server::is_quiet);
            if is_quiet && self.machine.is_idle() && self.servers.iter().all(|server| server.is_there) {
                // Where room is short, some parts stay missing.
                if self.machine.is_whole() || self.is_tight {
                    return;
                }
            }
            assert!(round < REST_MAX, "it never ends: {}", self.stand());
            match self.random.below(8) {
                0 => self.rebuild(),
                1 => self.compute(),
                2 | 3 => self.send_request(),
                4 => self.bring_back(),
                _ => self.serve(),
            }
            self.obey();
        }
    }

    fn stand(&self) -> String {
        let queues: Vec<_> =
            self.servers.iter().map(|server| (server.is_there, server.queue.len(), server.reads.len())).collect();
        let reads = READS - self.machine.free_reads.len();
        format!(
            "servers {queues:?}, {reads} reads, {} extents behind, jobs {:?}",
            self.machine.behind_count, self.machine.jobs
        )
    }

    /// Reads every page, without and with M servers lost.
    fn read_all(&mut self) {
        for lost in 0..=self.machine.sizes.parity {
            if lost > 0 {
                self.lose(usize::from(lost) - 1);
                self.obey();
            }
            let mut unit = 0;
            while unit < UNITS && !self.is_over() {
                let count = (unit..UNITS).take_while(|&unit| self.model[unit as usize] != 0).count() as u32;
                if count > 0 {
                    self.read_run(unit, count);
                }
                unit += count + 1;
                self.finish_reads();
            }
        }
    }

    fn finish_reads(&mut self) {
        let mut rounds = 0;
        while !self.reads.is_empty() && !self.is_over() {
            rounds += 1;
            assert!(rounds < REST_MAX, "a read never ends: {}", self.stand());
            if self.random.chance(500) {
                self.send_request()
            } else {
                self.serve()
            }
            self.obey();
        }
    }

    /// Releases every page. Afterwards no server holds anything.
    fn release_all(&mut self) {
        for unit in 0..UNITS {
            self.model[unit as usize] = 0;
        }
        (0..EXTENTS).for_each(|extent| self.machine.release(extent * EXTENT_UNITS, EXTENT_UNITS));
        self.obey();
        assert!(self.machine.used.iter().all(|&used| used == 0) && self.machine.extents_used() == 0);
        if self.is_doomed {
            // Parts of lost pages may be left.
            return;
        }
        for (index, server) in self.servers.iter().enumerate().filter(|(_, server)| server.is_there) {
            let left: Vec<usize> = (0..server.held.len()).filter(|&unit| server.held[unit].is_some()).collect();
            assert!(left.is_empty(), "server {index} still holds {left:?}");
        }
        assert!(self.machine.members.iter().all(|member| !member.is_in_use()), "no server is a home");
    }
}

/// Runs one world. Returns the numbers of reads and of losses.
fn run(seed: u64, scheme: usize, steps: u32, mistake: Option<Mistake>) -> (u32, u32) {
    let mut world = World::new(seed, scheme, mistake);
    for step in 0..steps {
        world.step();
        if world.is_over() {
            return (world.reads_done, world.losses);
        }
        if step % 32 == 0 {
            world.check();
        }
    }
    world.come_to_rest();
    if !world.is_over() {
        world.check();
        world.read_all();
    }
    if !world.is_over() {
        world.come_to_rest();
        world.release_all();
    }
    (world.reads_done, world.losses)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn each_read_returns_the_last_write_whatever_the_servers_do() {
    let seeds = match number("HANARE_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("HANARE_TEST_SEEDS").unwrap_or(300),
    };
    let steps = number("HANARE_TEST_STEPS").map_or(2000, |steps| steps as u32);
    let (mut reads, mut losses) = (0, 0);
    for (scheme, named) in SCHEMES.iter().enumerate() {
        for seed in seeds.clone() {
            let ended = std::panic::catch_unwind(|| run(seed, scheme, steps, None));
            let (read, lost) = ended.unwrap_or_else(|panic| {
                eprintln!("HANARE_TEST_SEED={seed} HANARE_TEST_STEPS={steps} fails with {named:?}");
                std::panic::resume_unwind(panic)
            });
            reads += read;
            losses += lost;
        }
    }
    assert!(reads > 0 && (seeds.clone().count() < 10 || losses > 0), "{reads} reads, {losses} losses");
}

/// Tests the tests: each built-in mistake is found within 100 seeds of some scheme.
#[test]
fn built_in_mistakes_are_found() {
    let mistakes = [Mistake::AcknowledgesEarly, Mistake::RebuildsStale, Mistake::ReleasesLate, Mistake::LandsLate];
    for mistake in mistakes {
        let fails = |seed: u64| {
            (0..SCHEMES.len())
                .any(|scheme| std::panic::catch_unwind(|| run(seed, scheme, 2000, Some(mistake))).is_err())
        };
        let found = (0..100).find(|&seed| fails(seed));
        assert!(found.is_some(), "{mistake:?} is not found");
        eprintln!("{mistake:?} is found by seed {found:?}");
    }
}
