//! Tests of rare orders of arrival: one link delays its messages while all other links deliver.

mod common;

use common::{Access, Cluster, News, WORDS};
use hanare_dsm::codec::Bodies;
use hanare_dsm::coherence::{Config, Event, Message, Placement, Protocol, Rank, State};

/// Makes a cluster of three ranks with one page, whose home is rank 2. Rank 0 grants the locks and counts the arrivals.
fn three(protocol: Protocol, migrate: bool) -> Cluster {
    laid_out(Cluster::new(3, 1, protocol, migrate, 1))
}

fn laid_out(mut cluster: Cluster) -> Cluster {
    let placement = Placement::One(Rank(2));
    together(&mut cluster, || Event::Alloc { pages: 1, placement: &placement }, (0, 0));
    cluster
}

/// Lets all ranks make a call while the link `held` delivers nothing. If `held` leads from a rank to itself, all links
/// deliver.
fn together<'a>(cluster: &mut Cluster, call: impl Fn() -> Event<'a>, held: (usize, usize)) {
    let mut heard = Vec::new();
    for rank in 0..3 {
        heard.extend(cluster.step(rank, call()).expect("a right call"));
    }
    heard.extend(cluster.deliver_all_but(held.0, held.1).into_iter().map(|(_, one)| one));
    let failed: Vec<_> = heard.iter().filter(|one| matches!(one, News::Failed(_))).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(heard.iter().filter(|one| matches!(one, News::Finished(_))).count(), 3, "all go on");
}

fn call(cluster: &mut Cluster, rank: usize, event: Event<'_>, held: (usize, usize)) {
    let mut heard = cluster.step(rank, event).expect("a right call");
    heard.extend(cluster.deliver_all_but(held.0, held.1).into_iter().map(|(_, one)| one));
    assert!(heard.iter().any(|one| matches!(one, News::Finished(_))), "the call ends");
}

fn touch(cluster: &mut Cluster, rank: usize, write: bool, held: (usize, usize)) {
    for _ in 0..3 {
        let access = cluster.nodes[rank].access[0];
        if access == Access::Write || access == Access::Read && !write {
            return;
        }
        cluster.step(rank, Event::Touch { page: 0, write }).expect("an allocated page");
        cluster.deliver_all_but(held.0, held.1);
    }
    panic!("rank {rank} does not get the page");
}

fn write(cluster: &mut Cluster, rank: usize, value: u8, held: (usize, usize)) {
    touch(cluster, rank, true, held);
    cluster.nodes[rank].word(WORDS - 1)[0] = value;
}

fn read(cluster: &mut Cluster, rank: usize) -> u8 {
    touch(cluster, rank, false, (0, 0));
    cluster.nodes[rank].word(WORDS - 1)[0]
}

const NONE: (usize, usize) = (0, 0);

#[test]
fn a_page_on_its_way_when_a_lock_comes_is_fetched_again() {
    let mut cluster = three(Protocol::Invalidate, false);
    // A thread of rank 1 requests the page. The home answers, and the answer stays on the slow link.
    let slow = (2, 1);
    cluster.step(1, Event::Touch { page: 0, write: false }).expect("allocated");
    cluster.deliver_all_but(slow.0, slow.1);
    call(&mut cluster, 0, Event::Acquire { lock: 5 }, slow);
    write(&mut cluster, 0, 9, slow);
    call(&mut cluster, 0, Event::Release { lock: 5 }, slow);
    call(&mut cluster, 1, Event::Acquire { lock: 5 }, slow);
    cluster.deliver_all_but(0, 0);
    assert_eq!(read(&mut cluster, 1), 9);
}

#[test]
fn an_update_for_a_copy_just_given_up_is_passed_over() {
    let mut cluster = three(Protocol::Update, false);
    assert_eq!(read(&mut cluster, 1), 0);
    // The home learns only after the next barrier that rank 1 has dropped its copy.
    let slow = (1, 2);
    cluster.step(1, Event::Drop { page: 0 }).expect("allowed");
    write(&mut cluster, 0, 1, slow);
    together(&mut cluster, || Event::Barrier, slow);
    cluster.deliver_all_but(0, 0);
    write(&mut cluster, 0, 2, NONE);
    together(&mut cluster, || Event::Barrier, NONE);
    assert_eq!(read(&mut cluster, 1), 2);
}

#[test]
fn a_home_does_not_move_to_a_writer_that_gave_its_copy_up() {
    let mut cluster = three(Protocol::Invalidate, true);
    write(&mut cluster, 1, 1, NONE);
    together(&mut cluster, || Event::Barrier, NONE);
    // Rank 1 is the only writer again, and publishes its write by a lock. Then rank 1 drops its copy. The home learns
    // of the drop only after the barrier.
    let slow = (1, 2);
    call(&mut cluster, 1, Event::Acquire { lock: 5 }, NONE);
    write(&mut cluster, 1, 2, NONE);
    call(&mut cluster, 1, Event::Release { lock: 5 }, NONE);
    cluster.step(1, Event::Drop { page: 0 }).expect("allowed");
    together(&mut cluster, || Event::Barrier, slow);
    cluster.deliver_all_but(0, 0);
    assert_eq!((read(&mut cluster, 0), read(&mut cluster, 1)), (2, 2));
}

#[test]
fn a_thread_that_touches_a_page_while_another_is_in_the_barrier_is_waked_at_its_end() {
    for protocol in [Protocol::Invalidate, Protocol::Update, Protocol::Adaptive] {
        let mut cluster = three(protocol, false);
        write(&mut cluster, 1, 5, NONE);
        for has_touched in [true, false] {
            let mut heard = cluster.step(1, Event::Barrier).expect("a right call");
            if has_touched {
                heard.extend(cluster.step(1, Event::Touch { page: 0, write: true }).expect("an allocated page"));
                // Rank 1 may write immediately, because its copy is still dirty.
                assert!(heard.contains(&News::Wake(0)), "{heard:?}");
            }
            cluster.step(0, Event::Barrier).expect("a right call");
            cluster.step(2, Event::Barrier).expect("a right call");
            heard.clear();
            let (mut put_off, mut over) = (false, false);
            for _ in 0..200 {
                let news: Vec<News> = match cluster.deliver() {
                    Some((1, news)) => news,
                    Some(_) => continue,
                    None => break,
                };
                over |= news.iter().any(|one| matches!(one, News::Finished(_)));
                heard.extend(news);
                if has_touched && !over && !put_off && cluster.nodes[1].access[0] == Access::Read {
                    put_off = true;
                    heard.extend(cluster.step(1, Event::Touch { page: 0, write: true }).expect("an allocated page"));
                }
            }
            assert!(over, "the barrier ends");
            assert_eq!(put_off, has_touched);
            assert_eq!(heard.contains(&News::WakeAll), has_touched, "{protocol:?}: {heard:?}");
        }
    }
}

/// A free must wait for pages that were requested together with the page before them. No thread waits for such a page.
/// If the home freed the page before the request arrives, the home would report an error and end the job.
#[test]
fn an_allocation_goes_when_the_pages_asked_for_ahead_are_here() {
    let mut cluster = Cluster::new(3, 4, Protocol::Invalidate, false, 1);
    let placement = Placement::Owners { pages: 4, whole: true, owners: vec![Rank(2)] };
    together(&mut cluster, || Event::Alloc { pages: 4, placement: &placement }, NONE);
    cluster.step(1, Event::Touch { page: 0, write: false }).expect("an allocated page");
    cluster.deliver_from(1, 2).expect("the first request");
    cluster.deliver_from(2, 1).expect("its answer");
    assert_eq!(cluster.nodes[1].access, [Access::Read, Access::None, Access::None, Access::None]);
    let mut heard = Vec::new();
    for rank in 0..3 {
        heard.extend(cluster.step(rank, Event::Free { first: 0 }).expect("a right call"));
    }
    heard.extend(cluster.deliver_all_but(1, 2).into_iter().map(|(_, one)| one));
    assert!(heard.is_empty(), "nobody goes on: {heard:?}");
    while let Some((_, news)) = cluster.deliver() {
        heard.extend(news);
    }
    assert_eq!(heard.iter().filter(|one| matches!(one, News::Finished(_))).count(), 3, "{heard:?}");
}

/// Makes a cluster of three ranks that read offered pages from the home's memory. The home is rank 2. It has written 1
/// to the last word of its page, and offers the page.
fn three_that_read(protocol: Protocol) -> Cluster {
    let config = Config { rank: Rank(0), ranks: 3, pages: 1, protocol, migrate: false, watch: true, one_sided: true };
    let mut cluster = Cluster::with(config, 1);
    cluster.chop = false;
    let mut cluster = laid_out(cluster);
    assert_eq!(read(&mut cluster, 1), 0);
    write(&mut cluster, 2, 1, NONE);
    together(&mut cluster, || Event::Barrier, NONE);
    cluster
}

/// Makes rank 1 read the page, while its message to the home is delayed. Then makes the home write the page.
fn read_and_written(cluster: &mut Cluster) {
    let reads = cluster.reads;
    cluster.step(1, Event::Touch { page: 0, write: false }).expect("an allocated page");
    assert_eq!((cluster.reads, cluster.nodes[1].word(WORDS - 1)[0]), (reads + 1, 1), "without a message of the home");
    if cluster.nodes[2].access[0] != Access::Write {
        cluster.step(2, Event::Touch { page: 0, write: true }).expect("an allocated page");
    }
    cluster.nodes[2].word(WORDS - 1)[0] = 2;
}

/// A home must process the messages of readers before it releases a lock. Otherwise it would assume that no rank shares
/// its page, and would not publish its write.
#[test]
fn a_home_hears_of_a_reader_before_it_gives_a_lock_back() {
    for protocol in [Protocol::Invalidate, Protocol::Adaptive] {
        let mut cluster = three_that_read(protocol);
        call(&mut cluster, 2, Event::Acquire { lock: 0 }, NONE);
        read_and_written(&mut cluster);
        call(&mut cluster, 2, Event::Release { lock: 0 }, NONE);
        call(&mut cluster, 1, Event::Acquire { lock: 0 }, NONE);
        assert_eq!(read(&mut cluster, 1), 2, "{protocol:?}");
    }
}

/// A home must process the messages of readers before it settles at a barrier. Otherwise it would settle the writes of
/// rank 0 only with the sharers that it already knows.
#[test]
fn a_home_hears_of_a_reader_before_it_settles_at_a_barrier() {
    for protocol in [Protocol::Invalidate, Protocol::Update, Protocol::Adaptive] {
        let mut cluster = three_that_read(protocol);
        write(&mut cluster, 0, 2, NONE);
        cluster.step(2, Event::Barrier).expect("a right call");
        cluster.step(1, Event::Touch { page: 0, write: false }).expect("an allocated page");
        assert_eq!(cluster.nodes[1].word(WORDS - 1)[0], 1, "{protocol:?}: its home goes on without a message");
        (0..2).for_each(|rank| _ = cluster.step(rank, Event::Barrier).expect("a right call"));
        (1..3).for_each(|rank| _ = cluster.deliver_from(rank, 0).expect("it arrives"));
        // The home continues and receives the diff of rank 0 before any message of rank 1.
        (0..2).for_each(|_| _ = cluster.deliver_from(0, 2).expect("on its way"));
        while cluster.deliver().is_some() {}
        assert_eq!(read(&mut cluster, 1), 2, "{protocol:?}");
    }
}

#[test]
fn what_a_home_wrote_unseen_is_told_to_a_reader_of_whom_it_heard_late() {
    let mut cluster = three_that_read(Protocol::Invalidate);
    write(&mut cluster, 2, 2, NONE);
    together(&mut cluster, || Event::Barrier, NONE);
    assert_eq!(cluster.nodes[2].machine.state(0), State::Open, "nobody shares it");
    cluster.nodes[2].word(WORDS - 1)[0] = 3;
    cluster.send(1, Rank(2), &Message::Joined { page: 0 }, &Bodies::new());
    while cluster.deliver().is_some() {}
    together(&mut cluster, || Event::Barrier, NONE);
    assert_eq!(cluster.nodes[2].machine.counters().pages_updated, 0);
    assert_eq!(cluster.sent.get("Settle").copied(), Some(2), "it is told at the next barrier");
}
