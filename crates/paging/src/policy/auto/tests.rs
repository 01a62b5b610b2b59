//! Compares the policy `auto` with the policies that it follows.

use super::super::trial::Trial;
use super::*;

fn space(units: u32, hides: bool) -> Space {
    Space { units, block_units: 1, seed: 7, hides }
}

/// Returns the number of misses of a policy in a memory of `capacity` pages, and the number of pages that it unmapped.
/// The policy sees a hit only if the page was unmapped.
fn misses(name: &str, space: Space, capacity: usize, references: &[u32]) -> (u32, u32) {
    let mut trial = Trial::new(super::super::build(name, space).unwrap(), capacity);
    trial.visible = false;
    let (mut hidden, mut hides) = (vec![false; space.units as usize], 0);
    for &page in references {
        if std::mem::take(&mut hidden[page as usize]) && trial.holds(page) {
            trial.policy.referenced(PageId(page), false);
        }
        trial.touch(page);
        while let Some(page) = trial.policy.next_to_hide() {
            assert!(trial.holds(page.0), "{page:?} is in view");
            hidden[page.0 as usize] = true;
            hides += 1;
        }
    }
    (references.len() as u32 - trial.hits, hides)
}

#[test]
fn it_falls_back_soon_where_the_followed_policy_thrashes() {
    const CAPACITY: u32 = 1024;
    // The first loops do not fit into memory, and the candidate followed at the start has the fewest misses. The later
    // loops fit, but that candidate does not admit their pages.
    let long = (0..30).flat_map(|_| 0..CAPACITY + CAPACITY / 2);
    let short = (0..400).flat_map(|_| 4 * CAPACITY..4 * CAPACITY + CAPACITY / 2);
    let references: Vec<u32> = long.chain(short).collect();
    for hides in [true, false] {
        let misses = |name: &str| misses(name, space(8 * CAPACITY, hides), CAPACITY as usize, &references).0;
        let (auto, baseline, followed) = (misses("auto"), misses(CANDIDATES[BASELINE]), misses(CANDIDATES[FIRST]));
        assert!(followed > 4 * baseline, "the trap is one: {followed} misses against {baseline}");
        // Auto must keep most of the advantage on the long loops. On the short loops, it must leave the first candidate
        // soon.
        assert!(auto < baseline / 2 + CAPACITY, "hides {hides}: {auto} misses against {baseline}");
    }
}

#[test]
fn a_guard_that_is_wrong_is_not_believed() {
    const CAPACITY: u32 = 1024;
    // The loop is a little longer than memory, so the baseline keeps nothing of it. But it fits into the larger cache of
    // the guard, because many other pages were used once.
    let rounds = |count| (0..count).flat_map(|_| 0..CAPACITY + CAPACITY / 16);
    let references: Vec<u32> = rounds(5).chain(2 * CAPACITY..6 * CAPACITY).chain(rounds(200)).collect();
    for hides in [true, false] {
        let misses = |name: &str| misses(name, space(8 * CAPACITY, hides), CAPACITY as usize, &references).0;
        let (auto, baseline, followed) = (misses("auto"), misses(CANDIDATES[BASELINE]), misses(CANDIDATES[FIRST]));
        assert!(baseline > 4 * followed, "the loop does not fit: {baseline} misses against {followed}");
        assert!(auto < baseline / 2, "hides {hides}: {auto} misses against {baseline} and {followed}");
    }
}

/// If pages are not unmapped, the sampled pages form a short queue. Here they are used in a loop that does not fit into
/// it, and the program uses nothing else.
#[test]
fn sampled_pages_do_not_evict_each_other_for_ever() {
    const CAPACITY: u32 = 512;
    let space = space(4 * CAPACITY, false);
    let which = Sample::of(space);
    let row: Vec<u32> = (0..CAPACITY).filter(|&page| which.name_of(PageId(page)).is_some()).collect();
    assert_eq!(row.len(), 32);
    let begin: Vec<u32> = (0..4).flat_map(|_| 0..2 * CAPACITY).collect();
    let all: Vec<u32> = begin.iter().copied().chain((0..1000).flat_map(|_| row.iter().copied())).collect();
    let [before, after] = [begin, all].map(|references| misses("auto", space, CAPACITY as usize, &references).0);
    assert!(after - before < 10 * row.len() as u32, "{} misses of {} pages", after - before, row.len());
}

#[test]
fn few_pages_are_hidden_beside_those_that_come() {
    // The loop is 1.5 times as long as memory. Some pages of the loop always stay in memory.
    let references: Vec<u32> = (0..40).flat_map(|_| 0..1536).collect();
    let (misses, hidden) = misses("auto", space(4096, true), 1024, &references);
    assert!(hidden > 500 && hidden <= misses / ARRIVALS_A_LOOK, "{hidden} for {misses} misses");
}
