//! Tests coherence against a model of release consistency. Random programs run on several ranks, and every link delays
//! its messages at random.
//!
//! The model knows nothing of pages or homes. It records the happens-before order of the program as vector clocks, from
//! locks and memory barriers. It also records all writes of each word. A read may return the value of a write W if W
//! did not happen after the read, and if no other write happened after W and before the read. If the program has no
//! race, exactly one value is allowed. A failing case prints its seed and shape. `HANARE_SEED=n` runs only the seed
//! `n`, with random shapes.

mod common;

use std::collections::HashMap;

use common::{Access, Cluster, News, Random, WORDS};
use hanare_dsm::coherence::{Config, Event, Outcome, Placement, Protocol, Rank, Reduction};
use proptest::prelude::*;

#[derive(Clone, Debug)]
struct Shape {
    ranks: u16,
    pages: u32,
    protocol: Protocol,
    migrate: bool,
    watch: bool,
    one_sided: bool,
    placement: Placement,
    /// Number of threads of a rank that access pages. Only the first thread makes calls.
    threads: usize,
    locks: u64,
    racy: bool,
    /// Whether memory is scarce, so that homes evict pages and diffs are sent early.
    scarce: bool,
    /// Number of memory barriers for which each word keeps its writer.
    sticky: u64,
    calls: usize,
}

/// A call that all ranks make together. All ranks make these calls in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Collective {
    Barrier,
    Alloc(u32),
    FreeOldest,
    Reduce,
}

type Clock = Vec<u32>;

fn join(a: &mut Clock, b: &Clock) {
    a.iter_mut().zip(b).for_each(|(a, b)| *a = (*a).max(*b));
}

#[derive(Clone, Debug)]
struct Write {
    value: u32,
    rank: usize,
    clock: Clock,
}

impl Write {
    fn before(&self, clock: &Clock) -> bool {
        clock[self.rank] >= self.clock[self.rank]
    }
}

#[derive(Clone, Copy, Debug)]
enum Thread {
    Ready,
    Doing { word: u32, write: bool },
    Waiting { word: u32, write: bool },
    Called,
}

struct Program {
    threads: Vec<Thread>,
    clock: Clock,
    /// Number of collective calls that the rank has begun.
    at: usize,
    /// Number of memory barriers that the rank has passed.
    epoch: u64,
    areas: Vec<(u32, u32)>,
    held: Vec<u32>,
    calling: Option<Calling>,
    freeing: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Calling {
    Collective(Collective),
    Acquire(u32),
    Release,
}

struct World {
    shape: Shape,
    seed: u64,
    cluster: Cluster,
    programs: Vec<Program>,
    collectives: Vec<Collective>,
    /// The writes of each word. A word without writes reads as zero.
    writes: HashMap<u32, Vec<Write>>,
    lock_clocks: Vec<Clock>,
    barrier_clocks: Vec<Clock>,
    holders: HashMap<u32, usize>,
    fresh: u32,
    reads: u64,
}

fn mix(a: u64, b: u64, c: u64) -> u64 {
    let mut random = Random(a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ c.wrapping_mul(0xc2b2_ae3d_27d4_eb4f));
    random.next();
    random.next()
}

impl World {
    fn new(seed: u64, shape: Shape) -> Self {
        let n = usize::from(shape.ranks);
        let Shape { ranks, pages, protocol, migrate, watch, one_sided, .. } = shape;
        let cluster = Cluster::with(Config { rank: Rank(0), ranks, pages, protocol, migrate, watch, one_sided }, seed);
        let program = || Program {
            threads: vec![Thread::Ready; shape.threads],
            clock: vec![1; n],
            at: 0,
            epoch: 0,
            areas: Vec::new(),
            held: Vec::new(),
            calling: None,
            freeing: None,
        };
        let mut random = Random(seed ^ 0x5eed);
        let mut collectives = vec![Collective::Alloc(shape.pages.div_ceil(2))];
        for _ in 0..shape.calls {
            collectives.push(match random.below(20) {
                0 => Collective::Alloc(1 + random.below(u64::from(shape.pages)) as u32 / 2),
                1 => Collective::FreeOldest,
                2 => Collective::Reduce,
                _ => Collective::Barrier,
            });
        }
        collectives.push(Collective::Barrier);
        let programs = (0..n).map(|_| program()).collect();
        let lock_clocks = vec![vec![0; n]; shape.locks as usize];
        Self {
            barrier_clocks: vec![vec![0; n]; collectives.len()],
            shape,
            seed,
            cluster,
            programs,
            collectives,
            writes: HashMap::new(),
            lock_clocks,
            holders: HashMap::new(),
            fresh: 0,
            reads: 0,
        }
    }

    fn step(&mut self, rank: usize, event: Event<'_>) {
        let news = self.cluster.step(rank, event).expect("the program makes no wrong call");
        self.hear(rank, news);
    }

    fn hear(&mut self, rank: usize, news: Vec<News>) {
        for one in news {
            match one {
                News::Wake(page) => self.wake(rank, |word| word / WORDS == page),
                News::WakeAll => self.wake(rank, |_| true),
                News::Finished(outcome) => self.finished(rank, &outcome),
                News::Failed(failure) => panic!("rank {rank} failed: {failure}"),
            }
        }
    }

    fn wake(&mut self, rank: usize, matches: impl Fn(u32) -> bool) {
        for thread in &mut self.programs[rank].threads {
            if let Thread::Waiting { word, write } = *thread
                && matches(word)
            {
                *thread = Thread::Doing { word, write };
            }
        }
    }

    fn finished(&mut self, rank: usize, outcome: &Outcome) {
        let program = &mut self.programs[rank];
        assert!(matches!(program.threads[0], Thread::Called), "a call ends once");
        program.threads[0] = Thread::Ready;
        match program.calling.take().expect("a call was under way") {
            Calling::Acquire(lock) => {
                assert_eq!(self.holders.insert(lock, rank), None, "lock {lock} has one holder");
                program.held.push(lock);
                join(&mut program.clock, &self.lock_clocks[lock as usize]);
            }
            Calling::Release => {}
            Calling::Collective(Collective::Barrier) => {
                join(&mut program.clock, &self.barrier_clocks[program.at - 1]);
                program.epoch += 1;
            }
            Calling::Collective(Collective::Alloc(pages)) => match outcome {
                Outcome::Allocated { first } => program.areas.push((*first, pages)),
                other => assert_eq!(*other, Outcome::NoRoom),
            },
            Calling::Collective(Collective::FreeOldest) => {
                // No rank accesses the freed pages any more. No rank has allocated them again, because all ranks free
                // before any rank allocates.
                let (first, count) = program.freeing.take().expect("an area was freed");
                (first * WORDS..(first + count) * WORDS).for_each(|word| _ = self.writes.remove(&word));
            }
            Calling::Collective(Collective::Reduce) => {
                let n = u64::from(self.shape.ranks);
                assert_eq!(*outcome, Outcome::Reduced { values: vec![n * (n - 1) / 2, 7 * n] });
            }
        }
    }

    /// Makes a random thread of a random rank take one step.
    fn run_thread(&mut self) {
        let rank = self.cluster.random.below(u64::from(self.shape.ranks)) as usize;
        let thread = self.cluster.random.below(self.shape.threads as u64) as usize;
        match self.programs[rank].threads[thread] {
            Thread::Doing { word, write } => self.attempt(rank, thread, word, write),
            Thread::Waiting { word, write } if self.cluster.random.chance(20) => self.fault(rank, thread, word, write),
            // The rank has made all its collective calls. It only releases the locks that it still holds.
            Thread::Ready if self.programs[rank].at == self.collectives.len() => {
                if thread == 0
                    && let Some(lock) = self.programs[rank].held.pop()
                {
                    self.release(rank, lock);
                }
            }
            Thread::Ready if self.cluster.random.chance(60) => {
                let page = self.cluster.random.below(u64::from(self.shape.pages)) as u32;
                self.step(rank, Event::Drop { page });
            }
            Thread::Ready | Thread::Called if self.shape.scarce && self.cluster.random.chance(150) => {
                self.have_no_room(rank);
            }
            Thread::Ready if thread == 0 && self.cluster.random.chance(150) => self.call(rank),
            Thread::Ready => self.choose(rank, thread),
            Thread::Waiting { .. } | Thread::Called => {}
        }
    }

    /// Simulates a lack of memory: evicts a home page, or sends the diffs of some copies home early.
    fn have_no_room(&mut self, rank: usize) {
        let pages = u64::from(self.shape.pages);
        let first = self.cluster.random.below(pages);
        if self.cluster.random.chance(700) {
            return self.cluster.nodes[rank].take_out(first as u32);
        }
        let count = 1 + self.cluster.random.below(4);
        let some: Vec<u32> = (first..pages.min(first + count)).map(|page| page as u32).collect();
        self.step(rank, Event::Shed { pages: &some });
    }

    fn call(&mut self, rank: usize) {
        let program = &mut self.programs[rank];
        let highest = program.held.last().copied();
        // A rank acquires locks in ascending order, so that no two ranks wait for each other.
        let least = highest.map_or(0, |lock| u64::from(lock) + 1);
        if least < self.shape.locks && self.cluster.random.chance(if least == 0 { 600 } else { 300 }) {
            let lock = (least + self.cluster.random.below(self.shape.locks - least)) as u32;
            program.calling = Some(Calling::Acquire(lock));
            program.threads[0] = Thread::Called;
            return self.step(rank, Event::Acquire { lock });
        }
        if let Some(lock) = program.held.pop() {
            return self.release(rank, lock);
        }
        self.call_together(rank);
    }

    fn release(&mut self, rank: usize, lock: u32) {
        let program = &mut self.programs[rank];
        program.calling = Some(Calling::Release);
        program.threads[0] = Thread::Called;
        join(&mut self.lock_clocks[lock as usize], &program.clock);
        program.clock[rank] += 1;
        self.holders.remove(&lock);
        self.step(rank, Event::Release { lock });
    }

    fn call_together(&mut self, rank: usize) {
        let program = &mut self.programs[rank];
        let Some(&what) = self.collectives.get(program.at) else { return };
        if what == Collective::FreeOldest && program.threads[1..].iter().any(|t| !matches!(t, Thread::Ready)) {
            return;
        }
        program.at += 1;
        program.calling = Some(Calling::Collective(what));
        program.threads[0] = Thread::Called;
        match what {
            Collective::Barrier => {
                join(&mut self.barrier_clocks[program.at - 1], &program.clock);
                program.clock[rank] += 1;
                self.step(rank, Event::Barrier);
            }
            Collective::Alloc(pages) => {
                let placement = self.shape.placement.clone();
                self.step(rank, Event::Alloc { pages, placement: &placement });
            }
            Collective::FreeOldest if program.areas.len() > 1 => {
                let (first, count) = program.areas.remove(0);
                program.freeing = Some((first, count));
                self.step(rank, Event::Free { first });
            }
            Collective::FreeOldest => {
                program.calling = None;
                program.threads[0] = Thread::Ready;
            }
            Collective::Reduce => {
                self.step(rank, Event::Reduce { reduction: Reduction::SumI64, values: &[rank as u64, 7] });
            }
        }
    }

    /// Picks a word that this thread may access now.
    fn choose(&mut self, rank: usize, thread: usize) {
        let program = &self.programs[rank];
        if program.areas.is_empty() {
            return;
        }
        let random = &mut self.cluster.random;
        let (first, count) = program.areas[random.below(program.areas.len() as u64) as usize];
        let word = first * WORDS + random.below(u64::from(count * WORDS)) as u32;
        let write = random.chance(500);
        let class = word % 4;
        let allowed = if class == 0 && self.shape.locks > 0 {
            let lock = (u64::from(word / 4) % self.shape.locks) as u32;
            thread == 0 && program.held.contains(&lock)
        } else if class == 3 && self.shape.racy {
            true
        } else {
            // Between two barriers, either all ranks may only read a word, or a single rank may read and write it.
            let era = program.epoch / self.shape.sticky;
            let writer = mix(self.seed, u64::from(word / 3), era) % u64::from(self.shape.ranks);
            let quiet = mix(self.seed, u64::from(word), program.epoch ^ 0xabcd).is_multiple_of(3);
            if quiet { !write } else { writer == rank as u64 }
        };
        if allowed {
            self.programs[rank].threads[thread] = Thread::Doing { word, write };
        }
    }

    fn fault(&mut self, rank: usize, thread: usize, word: u32, write: bool) {
        self.programs[rank].threads[thread] = Thread::Waiting { word, write };
        self.step(rank, Event::Touch { page: word / WORDS, write });
    }

    fn attempt(&mut self, rank: usize, thread: usize, word: u32, write: bool) {
        match (self.cluster.nodes[rank].access[(word / WORDS) as usize], write) {
            (Access::Write, true) => self.write(rank, word),
            (Access::Write | Access::Read, false) => self.read(rank, word),
            _ => return self.fault(rank, thread, word, write),
        }
        self.programs[rank].threads[thread] = Thread::Ready;
    }

    fn write(&mut self, rank: usize, word: u32) {
        self.fresh += 1;
        let value = self.fresh;
        self.cluster.nodes[rank].word(word).copy_from_slice(&value.to_le_bytes());
        self.programs[rank].clock[rank] += 1;
        let clock = self.programs[rank].clock.clone();
        let writes = self.writes.entry(word).or_default();
        // Forgets writes that no read may return any more. Such a write is overwritten by a write that all ranks know.
        let known = |w: &Write| self.programs.iter().all(|program| w.before(&program.clock));
        let hidden: Vec<bool> = writes
            .iter()
            .map(|w| writes.iter().any(|by| by.value != w.value && w.before(&by.clock) && known(by)))
            .collect();
        let mut hidden = hidden.into_iter();
        writes.retain(|_| hidden.next() != Some(true));
        writes.push(Write { value, rank, clock });
    }

    fn read(&mut self, rank: usize, word: u32) {
        self.reads += 1;
        let bytes = self.cluster.nodes[rank].word(word);
        let value = u32::from_le_bytes(bytes.try_into().expect("a word"));
        let clock = &self.programs[rank].clock;
        let writes = self.writes.get(&word).map_or(&[][..], Vec::as_slice);
        let first = Write { value: 0, rank, clock: vec![0; clock.len()] };
        let returned = writes.iter().find(|w| w.value == value).or((value == 0).then_some(&first));
        let Some(returned) = returned else {
            panic!("rank {rank} reads {value} in word {word}, never written or hidden for long: {writes:?}");
        };
        let hides = |w: &&Write| w.value != value && w.before(clock) && (value == 0 || returned.before(&w.clock));
        if let Some(by) = writes.iter().find(hides) {
            panic!("rank {rank} at {clock:?} reads {returned:?} in word {word}, hidden by {by:?}");
        }
    }

    fn is_over(&self) -> bool {
        let ready = |program: &Program| {
            program.at == self.collectives.len()
                && program.held.is_empty()
                && program.threads.iter().all(|thread| matches!(thread, Thread::Ready))
        };
        self.programs.iter().all(ready) && self.cluster.is_still()
    }

    fn run(&mut self) {
        for _ in 0..400_000u32 {
            if self.is_over() {
                return self.read_everything();
            }
            if !self.cluster.is_still() && self.cluster.random.chance(500) {
                if let Some((rank, news)) = self.cluster.deliver() {
                    self.hear(rank, news);
                }
            } else {
                self.run_thread();
            }
        }
        let threads: Vec<_> = self.programs.iter().map(|p| (p.at, &p.threads, p.calling, &p.held)).collect();
        panic!("the program does not end: {threads:?}, {} collectives", self.collectives.len());
    }

    /// Makes every rank read every word after the last barrier.
    fn read_everything(&mut self) {
        for rank in 0..usize::from(self.shape.ranks) {
            for (first, count) in self.programs[rank].areas.clone() {
                for word in first * WORDS..(first + count) * WORDS {
                    self.programs[rank].threads[0] = Thread::Doing { word, write: false };
                    for _ in 0..1000 {
                        match self.programs[rank].threads[0] {
                            Thread::Ready => break,
                            Thread::Doing { word, write } => self.attempt(rank, 0, word, write),
                            _ => {
                                let (to, news) = self.cluster.deliver().expect("something is on its way");
                                self.hear(to, news);
                            }
                        }
                    }
                    assert!(matches!(self.programs[rank].threads[0], Thread::Ready), "the last read of {word} ends");
                }
            }
        }
    }
}

fn placements(ranks: u16) -> impl Strategy<Value = Placement> {
    prop_oneof![
        Just(Placement::Block),
        (1u32..4).prop_map(Placement::Cyclic),
        (0..ranks).prop_map(|rank| Placement::One(Rank(rank))),
        Just(Placement::FirstTouch),
        (1u32..4, proptest::collection::vec((0..ranks).prop_map(Rank), 1..5))
            .prop_map(|(pages, owners)| Placement::Owners { pages, whole: pages > 2, owners }),
    ]
}

fn shapes() -> impl Strategy<Value = Shape> {
    let protocols = prop_oneof![Just(Protocol::Invalidate), Just(Protocol::Update), Just(Protocol::Adaptive)];
    (1u16..6).prop_flat_map(move |ranks| {
        let program = (1usize..3, 0u64..4, any::<(bool, bool)>(), prop_oneof![Just(1u64), Just(6)], 3usize..40);
        let often = || prop_oneof![3 => Just(true), 1 => Just(false)];
        let policies = (any::<bool>(), often(), often());
        (2u32..14, protocols.clone(), policies, placements(ranks), program).prop_map(
            move |(
                pages,
                protocol,
                (migrate, watch, one_sided),
                placement,
                (threads, locks, (racy, scarce), sticky, calls),
            )| {
                Shape {
                    ranks,
                    pages,
                    protocol,
                    migrate,
                    // Watched pages must not be evicted.
                    watch: watch && !scarce,
                    one_sided,
                    placement,
                    threads,
                    locks,
                    racy,
                    scarce,
                    sticky,
                    calls,
                }
            },
        )
    })
}

fn only_seed() -> Option<u64> {
    std::env::var("HANARE_SEED").ok().and_then(|seed| seed.parse().ok())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Every read returns a value that release consistency allows, in whatever order the messages arrive. Every call
    /// ends, and no thread waits for ever. After each step, a page's access is the one that its state requires.
    #[test]
    fn reads_return_what_release_consistency_allows(seed in any::<u64>(), shape in shapes()) {
        World::new(only_seed().unwrap_or(seed), shape).run();
    }
}
