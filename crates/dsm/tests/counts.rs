//! Tests of exact costs: the numbers of pages and messages that a program needs.

mod common;

use common::{Access, Cluster, News};
use hanare_dsm::coherence::{Config, Event, Outcome, Placement, Protocol, Rank};

const PROTOCOLS: [Protocol; 3] = [Protocol::Invalidate, Protocol::Update, Protocol::Adaptive];

/// A cluster in which each access or call ends before the next begins.
struct Steps(Cluster);

impl Steps {
    fn new(ranks: u16, pages: u32, protocol: Protocol, migrate: bool, placement: &Placement) -> Self {
        Self::of(Cluster::new(ranks, pages, protocol, migrate, 1), pages, placement)
    }

    /// Makes a cluster in which ranks read offered pages from the home's memory.
    fn one_sided(ranks: u16, pages: u32, protocol: Protocol, placement: &Placement) -> Self {
        let config = Config { rank: Rank(0), ranks, pages, protocol, migrate: false, watch: true, one_sided: true };
        Self::of(Cluster::with(config, 1), pages, placement)
    }

    /// Makes a cluster. If `one_sided` is true, ranks read offered pages from the home's memory. Otherwise they request
    /// all pages.
    fn either(one_sided: bool, ranks: u16, pages: u32, protocol: Protocol, placement: &Placement) -> Self {
        match one_sided {
            true => Self::one_sided(ranks, pages, protocol, placement),
            false => Self::new(ranks, pages, protocol, false, placement),
        }
    }

    /// Makes a cluster that watches no pages, so that all writes to shared pages trap.
    fn without_watch(ranks: u16, pages: u32, protocol: Protocol, placement: &Placement) -> Self {
        let config = Config { rank: Rank(0), ranks, pages, protocol, migrate: false, watch: false, one_sided: false };
        Self::of(Cluster::with(config, 1), pages, placement)
    }

    fn of(mut cluster: Cluster, pages: u32, placement: &Placement) -> Self {
        cluster.chop = false;
        let mut steps = Self(cluster);
        steps.together(|| Event::Alloc { pages, placement });
        steps.0.sent.clear();
        steps
    }

    fn ranks(&self) -> usize {
        self.0.nodes.len()
    }

    /// Lets all ranks make a call, and checks that the call ends on every rank.
    fn together<'a>(&mut self, call: impl Fn() -> Event<'a>) {
        let mut finished = 0;
        let done = |news: &[News]| news.iter().filter(|one| matches!(one, News::Finished(_))).count();
        for rank in 0..self.ranks() {
            finished += done(&self.0.step(rank, call()).expect("a right call"));
        }
        while let Some((_, news)) = self.0.deliver() {
            finished += done(&news);
        }
        assert_eq!(finished, self.ranks(), "every rank goes on");
    }

    /// Makes a rank access a page. A write changes the page's first word.
    fn touch(&mut self, rank: usize, page: u32, write: bool) {
        let enough = |access| access == Access::Write || access == Access::Read && !write;
        for _ in 0..3 {
            if enough(self.0.nodes[rank].access[page as usize]) {
                break;
            }
            self.0.step(rank, Event::Touch { page, write }).expect("an allocated page");
            while self.0.deliver().is_some() {}
        }
        assert!(enough(self.0.nodes[rank].access[page as usize]), "rank {rank} gets page {page}");
        if write {
            let word = self.0.nodes[rank].word(page * common::WORDS);
            let next = u32::from_le_bytes((&*word).try_into().expect("a word")) + 1;
            word.copy_from_slice(&next.to_le_bytes());
        }
    }

    fn sum(&self, of: impl Fn(&hanare_dsm::coherence::Counters) -> u64) -> u64 {
        self.0.nodes.iter().map(|node| of(node.machine.counters())).sum()
    }

    fn sent(&self, name: &str) -> u64 {
        self.0.sent.get(name).copied().unwrap_or(0)
    }
}

/// Runs Jacobi iterations on two grids whose rows are pages. Each rank owns an equal block of rows. It reads its own
/// rows and its neighbours' edge rows of one grid, and writes its own rows of the other grid.
fn laplace(steps: &mut Steps, rows: u32, iterations: u32) {
    let each = rows / steps.ranks() as u32;
    for iteration in 0..iterations {
        let (from, to) = if iteration % 2 == 0 { (0, rows) } else { (rows, 0) };
        for rank in 0..steps.ranks() {
            let (first, end) = (rank as u32 * each, (rank as u32 + 1) * each);
            for row in first.saturating_sub(1)..(end + 1).min(rows) {
                steps.touch(rank, from + row, false);
            }
            for row in first..end {
                steps.touch(rank, to + row, true);
            }
        }
        steps.together(|| Event::Barrier);
    }
}

/// Returns the placement that makes each rank the home of its rows in both grids.
fn by_rows(ranks: u16, rows: u32) -> Placement {
    let owners = (0..2 * ranks).map(|block| Rank(block % ranks)).collect();
    Placement::Owners { pages: rows / u32::from(ranks), whole: false, owners }
}

#[test]
fn laplace_costs_the_edge_rows_of_each_rank_and_nothing_else() {
    for ranks in [1u16, 2, 3, 4, 8] {
        let (rows, iterations) = (u32::from(ranks) * 4, 12u64);
        // There are `ranks - 1` borders between ranks. The two neighbours at a border read one page from each other.
        let edges = 2 * (u64::from(ranks) - 1);
        for protocol in PROTOCOLS {
            let mut steps = Steps::new(ranks, 2 * rows, protocol, false, &by_rows(ranks, rows));
            laplace(&mut steps, rows, iterations as u32);
            let (shares, updates) = (steps.sum(|c| c.pages_fetched), steps.sum(|c| c.pages_updated));
            match protocol {
                Protocol::Invalidate => assert_eq!((shares, updates), (edges * iterations, 0)),
                // The edge rows of each grid are fetched once. From the second barrier on they arrive as updates.
                Protocol::Update => assert_eq!((shares, updates), (2 * edges, edges * (iterations - 1))),
                Protocol::Adaptive => {
                    assert!((edges * iterations..=edges * (iterations + 1)).contains(&(shares + updates)));
                    assert_eq!(updates > 0, edges > 0, "constant readers get updates");
                }
            }
            assert_eq!(steps.sum(|c| c.pages_flushed), 0, "whoever writes is home");
            // Every reader of a changed page learns of the change once per barrier, by one message from each neighbour.
            let told = steps.sent("Settle") + steps.sent("Updates");
            assert_eq!(told, edges * (iterations - 1), "{protocol:?}, {ranks} ranks");
        }
    }
}

#[test]
fn a_home_is_asked_for_a_page_once_and_read_from_then_on() {
    for protocol in PROTOCOLS {
        let (ranks, rows, iterations) = (4u16, 16u32, 12u64);
        let edges = 2 * (u64::from(ranks) - 1);
        let mut steps = Steps::one_sided(ranks, 2 * rows, protocol, &by_rows(ranks, rows));
        laplace(&mut steps, rows, iterations as u32);
        let (shares, updates) = (steps.sum(|c| c.pages_fetched), steps.sum(|c| c.pages_updated));
        assert_eq!((steps.sent("PageRequest"), steps.sent("PageReply")), (2 * edges, 2 * edges), "{protocol:?}");
        assert_eq!((steps.sent("Joined"), steps.0.reads), (shares - 2 * edges, shares - 2 * edges), "{protocol:?}");
        match protocol {
            Protocol::Invalidate => assert_eq!((shares, updates), (edges * iterations, 0)),
            Protocol::Update => assert_eq!((shares, updates), (2 * edges, edges * (iterations - 1))),
            Protocol::Adaptive => assert!(shares + updates <= edges * (iterations + 1)),
        }
    }
}

#[test]
fn homes_follow_the_writers_of_a_badly_placed_laplace() {
    let (ranks, rows) = (4u16, 16u32);
    let mut steps = Steps::new(ranks, 2 * rows, Protocol::Invalidate, true, &Placement::One(Rank(0)));
    laplace(&mut steps, rows, 8);
    let elsewhere = u64::from(2 * rows) * 3 / 4;
    assert_eq!(steps.sum(|c| c.homes_moved), elsewhere, "each page moves once, to the rank that writes it");
    let flushed = steps.sum(|c| c.pages_flushed);
    assert_eq!(flushed, elsewhere, "and only its first write needed a diff");
    for page in 0..2 * rows {
        let owner = Rank((page % rows / 4) as u16);
        assert!(steps.0.nodes.iter().all(|node| node.machine.home(page) == Some(owner)), "page {page}");
    }
}

#[test]
fn an_empty_memory_barrier_is_two_or_three_meetings() {
    for (protocol, meetings) in [(Protocol::Invalidate, 2), (Protocol::Update, 3), (Protocol::Adaptive, 2)] {
        let mut steps = Steps::new(5, 1, protocol, true, &Placement::Block);
        steps.together(|| Event::Barrier);
        let total: u64 = steps.0.sent.values().sum();
        assert_eq!((steps.sent("Arrive"), steps.sent("Go"), total), (4 * meetings, 4 * meetings, 8 * meetings));
    }
}

#[test]
fn a_flush_is_one_message_a_home_however_many_pages() {
    let mut steps = Steps::new(3, 30, Protocol::Invalidate, false, &Placement::Cyclic(1));
    (0..30).for_each(|page| steps.touch(0, page, true));
    steps.together(|| Event::Barrier);
    assert_eq!((steps.sent("Diffs"), steps.sum(|c| c.pages_flushed)), (2, 20));
    // The only writer has a current copy, so no home sends a settlement.
    assert_eq!((steps.sent("Settle"), steps.sum(|c| c.pages_invalidated)), (0, 0));
}

#[test]
fn several_writers_of_one_page_keep_all_their_words() {
    for protocol in PROTOCOLS {
        let mut steps = Steps::new(4, 1, protocol, false, &Placement::Block);
        for rank in 0..4u32 {
            steps.touch(rank as usize, 0, true);
            steps.0.nodes[rank as usize].word(4 + rank).copy_from_slice(&(rank + 10).to_le_bytes());
        }
        steps.together(|| Event::Barrier);
        for rank in 0..4 {
            steps.touch(rank, 0, false);
            let words: Vec<u8> = (4..8).map(|word| steps.0.nodes[rank].word(word)[0]).collect();
            assert_eq!(words, [10, 11, 12, 13], "{protocol:?}, rank {rank}");
        }
    }
}

#[test]
fn pages_nobody_shares_cost_no_trap_after_the_first_and_no_message() {
    let mut steps = Steps::new(2, 8, Protocol::Update, false, &Placement::Block);
    for _ in 0..5 {
        (0..4).for_each(|page| steps.touch(0, page, true));
        steps.together(|| Event::Barrier);
    }
    assert_eq!(steps.sum(|c| c.write_faults + c.read_faults), 0);
    assert_eq!(steps.0.sent.values().sum::<u64>(), 5 * 6);
}

#[test]
fn pages_written_together_trap_once_and_what_is_written_alone_is_told_alone() {
    let mut steps = Steps::without_watch(2, 3, Protocol::Update, &Placement::One(Rank(0)));
    (0..3).for_each(|page| steps.touch(1, page, false));
    let rounds = 40;
    for round in 0..rounds {
        // Every round writes page 2. Every other round also writes pages 0 and 1.
        let first = if round % 2 == 0 { 0 } else { 2 };
        (first..3).for_each(|page| steps.touch(0, page, true));
        steps.together(|| Event::Barrier);
        for page in 0..3 {
            let written = if page < 2 { round / 2 + 1 } else { round + 1 };
            assert_eq!(
                u32::from(steps.0.nodes[1].word(page * common::WORDS)[0]),
                written,
                "page {page}, round {round}"
            );
        }
    }
    // Pages 0 and 1 are written in every other round. They cause one trap together, except when the guess that they are
    // written together is checked. Page 2 traps in every round, because it is also published in the rounds in between.
    let faults = steps.sum(|c| c.write_faults);
    assert!((rounds / 2 + rounds..=rounds / 2 + rounds + 3).contains(&(faults as u32)), "{faults}");
    assert_eq!(steps.sum(|c| c.pages_updated), u64::from(rounds / 2 * 2 + rounds));
}

#[test]
fn a_page_its_home_writes_again_and_again_traps_twice_and_is_told_when_it_was_written() {
    for (protocol, one_sided) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, false), (protocol, true)]) {
        let mut steps = Steps::either(one_sided, 2, 1, protocol, &Placement::One(Rank(0)));
        steps.touch(1, 0, false);
        let rounds = 60;
        for round in 0..rounds {
            if round % 3 == 0 {
                steps.touch(0, 0, true);
            }
            steps.together(|| Event::Barrier);
            steps.touch(1, 0, false);
            assert_eq!(steps.0.nodes[1].word(0)[0], round / 3 + 1, "{protocol:?}, round {round}");
        }
        assert_eq!(steps.sum(|c| c.write_faults), 2, "{protocol:?}");
        let told = u64::from(rounds / 3);
        let came = steps.sum(|c| c.pages_updated + c.pages_fetched);
        assert!((told..=told + 1).contains(&came), "{protocol:?}: {came} times for {told} writes");
        // No rank writes the page any more. So its watch ends, and the page is write-protected.
        (0..20).for_each(|_| steps.together(|| Event::Barrier));
        assert!(steps.0.nodes[0].machine.watched().is_empty(), "{protocol:?}");
        assert_eq!(steps.0.nodes[0].access[0], Access::Read, "{protocol:?}");
    }
}

/// Checks that a reader of a watched page gets the bytes that the home had at the last barrier. Suppose the reader got
/// newer bytes, and the home then restored the old bytes. The next comparison would find no difference, and the reader
/// would keep the wrong bytes.
#[test]
fn a_reader_of_a_watched_page_never_keeps_what_was_there_between_two_barriers() {
    for (protocol, one_sided) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, false), (protocol, true)]) {
        let mut steps = Steps::either(one_sided, 3, 1, protocol, &Placement::One(Rank(0)));
        steps.touch(1, 0, false);
        for _ in 0..3 {
            steps.touch(0, 0, true);
            steps.together(|| Event::Barrier);
            steps.touch(1, 0, false);
        }
        assert_eq!(steps.0.nodes[0].machine.watched(), [0], "{protocol:?}");
        let before = steps.0.nodes[0].word(1).to_vec();
        steps.0.nodes[0].word(1).copy_from_slice(&[7; 4]);
        steps.touch(2, 0, false);
        steps.0.nodes[0].word(1).copy_from_slice(&before);
        steps.together(|| Event::Barrier);
        steps.touch(2, 0, false);
        assert_eq!(steps.0.nodes[2].word(1), before, "{protocol:?}");
    }
}

/// Checks that readers of a watched page also receive the words that another rank writes. These words are not in the
/// page's twin.
#[test]
fn a_watched_page_that_another_rank_writes_is_told_whole() {
    for (protocol, one_sided) in PROTOCOLS.into_iter().flat_map(|protocol| [(protocol, false), (protocol, true)]) {
        let mut steps = Steps::either(one_sided, 3, 1, protocol, &Placement::One(Rank(0)));
        steps.touch(1, 0, false);
        for round in 0..12 {
            steps.touch(0, 0, true);
            if round % 4 == 3 {
                steps.touch(2, 0, true);
                // Undoes the change that `touch` made to word 0, because the home writes word 0. Rank 2 writes only
                // word 5.
                steps.0.nodes[2].word(0)[0] -= 1;
                steps.0.nodes[2].word(5)[0] = round;
            }
            steps.together(|| Event::Barrier);
            steps.touch(1, 0, false);
            let words = [steps.0.nodes[1].word(0)[0], steps.0.nodes[1].word(5)[0]];
            assert_eq!(words, [round + 1, ((round + 1) / 4 * 4).saturating_sub(1)], "{protocol:?}, round {round}");
        }
    }
}

#[test]
fn a_block_that_is_read_whole_comes_with_one_trap_and_others_page_by_page() {
    for (pages, whole, expected) in [(4, true, 4), (8, true, 8), (16, true, 8), (4, false, 1)] {
        for protocol in PROTOCOLS {
            let placement = Placement::Owners { pages, whole, owners: vec![Rank(0), Rank(0), Rank(1)] };
            let mut steps = Steps::new(2, 48, protocol, false, &placement);
            steps.touch(1, 0, false);
            assert_eq!(steps.sum(|c| c.pages_fetched), expected, "{protocol:?}, blocks of {pages}");
            assert_eq!(steps.sum(|c| c.read_faults), 1);
        }
    }
}

#[test]
fn first_touch_makes_a_home() {
    let mut steps = Steps::new(3, 6, Protocol::Invalidate, false, &Placement::FirstTouch);
    (0..6).for_each(|page| steps.touch(2, page, true));
    (0..6).for_each(|page| steps.touch(1, page, false));
    for page in 0..6 {
        assert_eq!(steps.0.nodes[1].machine.home(page), Some(Rank(2)));
        assert_eq!(steps.0.nodes[1].word(page * common::WORDS)[0], 1);
    }
}

#[test]
fn calls_that_do_not_match_end_the_job_on_every_rank() {
    let placement = Placement::Block;
    let different: [[Event<'_>; 2]; 3] = [
        [Event::Barrier, Event::Shutdown],
        [Event::Alloc { pages: 1, placement: &placement }, Event::Alloc { pages: 2, placement: &placement }],
        [Event::Alloc { pages: 1, placement: &placement }, Event::Alloc { pages: 1, placement: &Placement::Cyclic(1) }],
    ];
    for [one, other] in different {
        let mut steps = Steps::new(3, 4, Protocol::Update, false, &Placement::One(Rank(1)));
        steps.together(|| Event::Free { first: 0 });
        let mut failed = 0;
        let count = |news: Vec<News>| news.iter().filter(|one| matches!(one, News::Failed(_))).count();
        failed += count(steps.0.step(0, one).expect("allowed"));
        failed += count(steps.0.step(2, other).expect("allowed"));
        while let Some((_, news)) = steps.0.deliver() {
            failed += count(news);
        }
        assert_eq!(failed, 3);
    }
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let mut steps = Steps::new(2, 4, Protocol::Update, false, &Placement::Block);
    let placement = Placement::One(Rank(2));
    for wrong in [
        Event::Touch { page: 4, write: false },
        Event::Release { lock: 1 },
        Event::Acquire { lock: 1 << 16 },
        Event::Alloc { pages: 0, placement: &Placement::Block },
        Event::Alloc { pages: 1, placement: &placement },
        Event::Free { first: 1 },
        Event::Reduce { reduction: hanare_dsm::coherence::Reduction::SumF64, values: &[] },
    ] {
        let said = format!("{wrong:?}");
        assert!(steps.0.step(0, wrong).is_err(), "{said}");
    }
    steps.together(|| Event::Barrier);
    steps.together(|| Event::Shutdown);
    assert!(steps.0.step(0, Event::Barrier).is_err());
}

#[test]
fn a_full_region_says_so_on_every_rank() {
    let mut steps = Steps::new(2, 4, Protocol::Update, false, &Placement::Block);
    let placement = Placement::Block;
    let mut no_room = 0;
    let mut count = |news: Vec<News>| no_room += news.iter().filter(|n| **n == News::Finished(Outcome::NoRoom)).count();
    for rank in 0..2 {
        count(steps.0.step(rank, Event::Alloc { pages: 1, placement: &placement }).expect("allowed"));
    }
    while let Some((_, news)) = steps.0.deliver() {
        count(news);
    }
    assert_eq!(no_room, 2);
}
