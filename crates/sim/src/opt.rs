//! OPT: evicts the page whose next reference is farthest away (Belady, "A study of replacement algorithms for a
//! virtual-storage computer", 1966). The whole string is known in advance. No policy has fewer misses.

use std::collections::BinaryHeap;

use crate::machine::{Figures, Memory};
use crate::string::{RefString, Step};

/// The value for the next reference of a page that is discarded first, or is not referenced again.
const NEVER: u32 = u32::MAX;

/// Runs OPT over a reference string in a memory of `capacity` pages, at least one. The state needs eight bytes for each
/// step and four for each page.
#[must_use]
pub fn run(string: &RefString, capacity: u32) -> Figures {
    let later = next_touches(string);
    let capacity = capacity.max(1);
    let mut memory = Memory::new(string.pages(), capacity);
    let mut next_of = vec![0; string.pages() as usize];
    // The heap may hold outdated entries. After a page is referenced again, its old entry lies in the past, so it sorts
    // below every valid entry. The entry of a page that left is skipped when it is popped.
    let mut farthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
    for (index, step) in string.steps().enumerate() {
        let (page, write) = match step {
            Step::Read(page) => (page, false),
            Step::Write(page) => (page, true),
            Step::Discard(page) => {
                memory.discard(page);
                continue;
            }
            Step::Pass(_) => continue,
        };
        if memory.has(page) {
            memory.reference(page, write);
        } else {
            while memory.is_full() {
                let Some((next, other)) = farthest.pop() else { break };
                if memory.has(other) && next_of[other as usize] == next {
                    memory.put_out(other);
                }
            }
            memory.take_in(page, write);
        }
        next_of[page as usize] = later[index];
        farthest.push((later[index], page));
        if farthest.len() > 4 * capacity as usize + 1024 {
            farthest.retain(|&(next, page)| memory.has(page) && next_of[page as usize] == next);
        }
    }
    memory.figures
}

/// Returns for each step the index of the next reference to its page, or `NEVER` if a discard comes first.
fn next_touches(string: &RefString) -> Vec<u32> {
    let mut later = vec![NEVER; string.len()];
    let mut next_of = vec![NEVER; string.pages() as usize];
    for index in (0..string.len()).rev() {
        match string.step(index) {
            Step::Read(page) | Step::Write(page) => {
                later[index] = next_of[page as usize];
                // An index beyond 32 bits counts as `NEVER`. A string of that length would need 16 GiB.
                next_of[page as usize] = u32::try_from(index).unwrap_or(NEVER);
            }
            Step::Discard(page) => next_of[page as usize] = NEVER,
            Step::Pass(_) => {}
        }
    }
    later
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_textbook_string_faults_nine_times_in_three_frames() {
        let pages = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1];
        assert_eq!(run(&RefString::new(pages.map(Step::Read)), 3).misses, 9);
    }

    #[test]
    fn a_page_about_to_be_discarded_leaves_first() {
        let references = [0, 1, 2].map(Step::Read);
        let string =
            |first| RefString::new(references.into_iter().chain([Step::Discard(first), Step::Read(0), Step::Read(1)]));
        assert_eq!(run(&string(2), 2).misses, 4);
        assert_eq!(run(&string(0), 2).misses, 4);
        assert_eq!(run(&string(0), 3).misses, 4);
    }
}
