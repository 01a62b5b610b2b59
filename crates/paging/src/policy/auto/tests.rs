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
fn it_falls_back_where_more_pages_return_than_in_the_baselines_cache() {
    // The sampled pages are referenced in a loop. Half of the other pages return. Their rate is about that of the
    // sampled pages, or four times as high.
    for (often, falls_back) in [(1, false), (4, true)] {
        let mut auto = Auto::new(space(4096, true));
        let (sampled, others): (Vec<_>, Vec<_>) = (0..4096).map(PageId).partition(|&page| auto.name_of(page).is_some());
        let (_, returning) = others.split_at(others.len() / 2);
        others.iter().for_each(|&page| auto.inserted(page, Cause::Read));
        returning.iter().for_each(|&page| auto.removed(page, Leave::Evicted));
        sampled.iter().for_each(|&page| auto.inserted(page, Cause::Read));
        let mut sampled = sampled.iter().cycle();
        for (step, &page) in (0..4 * often).flat_map(|_| returning).enumerate() {
            auto.inserted(page, Cause::Read);
            auto.removed(page, Leave::Evicted);
            if step % (7 * often) == 0
                && let Some(&page) = sampled.next()
            {
                auto.referenced(page, false);
            }
        }
        assert_eq!(auto.bar_all.times > 0, falls_back, "{:?}", auto.record);
    }
}

#[test]
fn few_pages_are_hidden_beside_those_that_come() {
    // The loop is 1.5 times as long as memory. Some pages of the loop always stay in memory.
    let references: Vec<u32> = (0..40).flat_map(|_| 0..1536).collect();
    let (misses, hidden) = misses("auto", space(4096, true), 1024, &references);
    assert!(hidden > 500 && hidden <= misses / ARRIVALS_A_HIDE, "{hidden} for {misses} misses");
}
