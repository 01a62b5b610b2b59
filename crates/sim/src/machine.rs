//! A small machine: a memory of a fixed number of pages, a policy that chooses which page leaves, and counters. The
//! machine follows the pager's rules, but a page arrives or leaves in no time. Every page in memory may be chosen as a
//! victim.

use std::fmt;

use hanare_paging::policy::{Cause, Leave, Policy};
use hanare_paging::{PageId, limits};

use crate::string::{RefString, Step};

/// Which references to pages in memory the policy sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visible {
    /// The policy sees the references that trap in a live run. These are the first write to a page that a read brought
    /// in, and the next access to a page that was unmapped for the policy.
    Traps,
    /// The policy sees all references, as the literature on replacement assumes.
    All,
}

/// The costs of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Number of references to pages that were not in memory.
    pub misses: u64,
    /// Number of misses of pages that had been written back. Their bytes come over the link.
    pub transfers_in: u64,
    /// Number of pages that were evicted with changed bytes.
    pub write_backs: u64,
    /// Number of pages that were unmapped for the policy.
    pub protects: u64,
}

/// The error of a policy that broke its contract: it named no victim, although a page had to leave. The field is the
/// number of pages in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoVictim(pub u32);

impl fmt::Display for NoVictim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it named none of {} pages in view as a victim", self.0)
    }
}

impl std::error::Error for NoVictim {}

const IN_VIEW: u8 = 1;
/// The page was written since it came in, so a further write does not trap. When the page is evicted, it is written
/// back.
const OPEN: u8 = 2;
const HIDDEN: u8 = 4;
/// The server has bytes of the page.
const HELD: u8 = 8;

/// Number of steps between two reports of progress.
const STRIDE: usize = 1 << 16;

/// The simulated memory. Its state is one byte for each page.
pub(crate) struct Memory {
    pages: Vec<u8>,
    in_view: u32,
    capacity: u32,
    pub(crate) figures: Figures,
}

impl Memory {
    pub(crate) fn new(pages: u32, capacity: u32) -> Self {
        Self { pages: vec![0; pages as usize], in_view: 0, capacity, figures: Figures::default() }
    }

    pub(crate) fn has(&self, page: u32) -> bool {
        self.pages[page as usize] & IN_VIEW != 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.in_view >= self.capacity
    }

    /// Brings in a page after a miss.
    pub(crate) fn take_in(&mut self, page: u32, write: bool) {
        let flags = &mut self.pages[page as usize];
        self.figures.misses += 1;
        self.figures.transfers_in += u64::from(*flags & HELD != 0);
        *flags = *flags & HELD | IN_VIEW | if write { OPEN } else { 0 };
        self.in_view += 1;
    }

    pub(crate) fn put_out(&mut self, page: u32) {
        let flags = &mut self.pages[page as usize];
        if *flags & OPEN != 0 {
            self.figures.write_backs += 1;
            *flags = HELD;
        }
        *flags &= HELD;
        self.in_view -= 1;
    }

    /// Drops a page's bytes in memory and on the server. Returns whether the page was in memory.
    pub(crate) fn discard(&mut self, page: u32) -> bool {
        let was = self.has(page);
        self.in_view -= u32::from(was);
        self.pages[page as usize] = 0;
        was
    }

    /// References a page in memory. Returns whether the access traps.
    pub(crate) fn reference(&mut self, page: u32, write: bool) -> bool {
        let flags = &mut self.pages[page as usize];
        let traps = *flags & HIDDEN != 0 || write && *flags & OPEN == 0;
        *flags &= !HIDDEN;
        *flags |= if write { OPEN } else { 0 };
        traps
    }

    fn hide(&mut self, page: PageId) {
        if let Some(flags) = self.pages.get_mut(page.0 as usize)
            && *flags & (IN_VIEW | HIDDEN) == IN_VIEW
        {
            *flags |= HIDDEN;
            self.figures.protects += 1;
        }
    }

    fn evict(&mut self, policy: &mut dyn Policy) -> Result<(), NoVictim> {
        let victim = policy.victim(&|page| self.pages.get(page.0 as usize).is_some_and(|flags| flags & IN_VIEW != 0));
        let victim = victim.filter(|page| (page.0 as usize) < self.pages.len() && self.has(page.0));
        let victim = victim.ok_or(NoVictim(self.in_view))?;
        policy.removed(victim, Leave::Evicted);
        self.put_out(victim.0);
        Ok(())
    }
}

/// Runs a policy over a reference string in a memory of `capacity` pages, at least one. Now and then calls `report`
/// with the number of steps done since the last call.
///
/// # Errors
/// The policy names no victim, although a page must leave.
pub fn run(
    string: &RefString,
    policy: &mut dyn Policy,
    capacity: u32,
    visible: Visible,
    report: &dyn Fn(u64),
) -> Result<Figures, NoVictim> {
    let mut memory = Memory::new(string.pages(), capacity.max(1));
    let mut now_ms = 0;
    for (index, step) in string.steps().enumerate() {
        match step {
            Step::Read(page) => reference(&mut memory, policy, page, false, visible)?,
            Step::Write(page) => reference(&mut memory, policy, page, true, visible)?,
            Step::Discard(page) if memory.discard(page) => policy.removed(PageId(page), Leave::Forgotten),
            Step::Discard(page) => policy.forgotten(PageId(page)),
            Step::Pass(ms) => {
                now_ms += u64::from(ms);
                policy.tick(now_ms);
            }
        }
        unmap_requested(&mut memory, policy, visible);
        if index % STRIDE == STRIDE - 1 {
            report(STRIDE as u64);
        }
    }
    report((string.len() % STRIDE) as u64);
    Ok(memory.figures)
}

fn reference(
    memory: &mut Memory,
    policy: &mut dyn Policy,
    page: u32,
    write: bool,
    visible: Visible,
) -> Result<(), NoVictim> {
    if memory.has(page) {
        if memory.reference(page, write) || visible == Visible::All {
            policy.referenced(PageId(page), write);
        }
        return Ok(());
    }
    policy.coming(PageId(page));
    while memory.is_full() {
        memory.evict(policy)?;
    }
    memory.take_in(page, write);
    policy.inserted(PageId(page), if write { Cause::Write } else { Cause::Read });
    Ok(())
}

/// Unmaps the pages that the policy asks for. If every reference is visible, no page needs to be unmapped, and the
/// policy's requests are ignored.
fn unmap_requested(memory: &mut Memory, policy: &mut dyn Policy, visible: Visible) {
    for _ in 0..limits::HIDES_MAX {
        match policy.next_to_hide() {
            Some(page) if visible == Visible::Traps => memory.hide(page),
            Some(_) => {}
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hanare_paging::Space;
    use hanare_paging::policy::build;

    /// A policy that asks to unmap every page as soon as the page comes in, and records the calls to the policy.
    #[derive(Default)]
    struct Observer {
        requests: Vec<PageId>,
        seen: Vec<(u32, bool)>,
    }

    impl Policy for Observer {
        fn inserted(&mut self, page: PageId, _cause: Cause) {
            self.requests.push(page);
        }
        fn referenced(&mut self, page: PageId, write: bool) {
            self.seen.push((page.0, write));
        }
        fn removed(&mut self, _page: PageId, _why: Leave) {}
        fn victim(&mut self, _accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
            None
        }
        fn next_to_hide(&mut self) -> Option<PageId> {
            self.requests.pop()
        }
        fn hides(&self) -> bool {
            true
        }
    }

    #[test]
    fn traps_show_the_first_write_and_the_next_touch_of_a_hidden_page() {
        let string =
            RefString::new([0, 1, 0, 0, 1].map(Step::Read).into_iter().chain([Step::Write(0), Step::Write(0)]));
        let mut observer = Observer::default();
        let figures = run(&string, &mut observer, 2, Visible::Traps, &|_| {}).unwrap();
        assert_eq!(observer.seen, [(0, false), (1, false), (0, true)]);
        assert_eq!(figures, Figures { misses: 2, protects: 2, ..Figures::default() });
        let mut observer = Observer::default();
        let figures = run(&string, &mut observer, 2, Visible::All, &|_| {}).unwrap();
        assert_eq!(observer.seen.len(), 5);
        assert_eq!(figures.protects, 0);
        assert_eq!(
            run(&RefString::new([1, 2, 3].map(Step::Read)), &mut observer, 2, Visible::All, &|_| {}),
            Err(NoVictim(2))
        );
    }

    #[test]
    fn bytes_travel_only_for_pages_that_were_written() {
        let mut fifo = build("fifo", Space { units: 8, block_units: 1, seed: 0, hides: true }).unwrap();
        let steps = [
            Step::Write(0),
            Step::Read(1),
            Step::Read(2),
            Step::Read(0),
            Step::Read(1),
            Step::Discard(0),
            Step::Read(0),
        ];
        let figures = run(&RefString::new(steps), &mut *fifo, 2, Visible::Traps, &|_| {}).unwrap();
        assert_eq!(figures, Figures { misses: 6, transfers_in: 1, write_backs: 1, protects: 0 });
    }
}
