//! Counts the pages that are looked at in searches for a victim, while a program fills memory faster than a server takes
//! pages.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hanare_paging::policy::{self, Cause, Leave, Policy};
use hanare_paging::{Action, Actions, Class, Config, Event, Geometry, PageId, Pager, Space, prefetch};

const BLOCK: u32 = 512;
const UNITS: u32 = 64 * BLOCK;
const BUDGET: u32 = 16 * BLOCK;

/// Asks another policy, and counts the pages that the pager refuses or accepts.
struct Counting {
    inner: Box<dyn Policy>,
    looks: Arc<AtomicU64>,
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counting")
    }
}

impl Policy for Counting {
    fn inserted(&mut self, page: PageId, cause: Cause) {
        self.inner.inserted(page, cause);
    }

    fn referenced(&mut self, page: PageId, write: bool) {
        self.inner.referenced(page, write);
    }

    fn removed(&mut self, page: PageId, why: Leave) {
        self.inner.removed(page, why);
    }

    fn victim(&mut self, accept: &dyn Fn(PageId) -> bool) -> Option<PageId> {
        let looks = &self.looks;
        self.inner.victim(&|page| {
            looks.fetch_add(1, Relaxed);
            accept(page)
        })
    }
}

#[test]
fn searches_do_not_look_at_every_dirty_page_for_each_write_back() {
    let config = Config {
        geometry: Geometry { units: UNITS, unit_bytes: 4096, block_units: BLOCK },
        budget_units: BUDGET,
        small: Class { moves: true, frames: 4 },
        wide: Class { moves: true, frames: 4 },
        direct: false,
        hides_in_place: false,
        ahead_units: 2,
    };
    let space = Space { units: UNITS, block_units: BLOCK, seed: 1, hides: true };
    let looks = Arc::<AtomicU64>::default();
    let inner = policy::build("fifo", space).expect("a known policy");
    let policy = Box::new(Counting { inner, looks: Arc::clone(&looks) });
    let prefetcher = prefetch::build("none", space).expect("a known prefetcher");
    let mut pager = Pager::new(&config, policy, prefetcher).expect("a valid configuration");
    let (mut actions, mut writing, mut ended) = (Actions::new(), VecDeque::new(), 0u64);
    for unit in (0..UNITS).map(|turn| turn % 61 * BLOCK + turn / 61) {
        let mut events = vec![Event::Fault { unit, write: true }];
        while !pager.is_accessible(unit, true) || !events.is_empty() {
            let event = events.pop().or_else(|| {
                ended += 1;
                writing.pop_front()
            });
            actions.clear();
            pager.step(event.expect("a write-back, whose end makes room"), &mut actions);
            for action in actions.as_slice() {
                match *action {
                    Action::Fetch { page, .. } => events.push(Event::Fetched { page, ok: true }),
                    Action::Install { page, .. } => {
                        events.push(Event::Arrived { page, count: 1, certain: true, ok: true });
                    }
                    Action::TakeOut { page, .. } => events.push(Event::TakenOut { page, ok: true, changed: true }),
                    Action::Open { page } => events.push(Event::Opened { page }),
                    Action::WriteBack { page, frame, .. } => {
                        writing.push_back(Event::WrittenBack { page, frame, changed: true, ok: true })
                    }
                    Action::FreeFrame { frame } => events.push(Event::FrameFreed { frame }),
                    _ => {}
                }
            }
        }
    }
    assert!(ended > 1000, "{ended} write-backs");
    let looks = looks.load(Relaxed) / ended;
    assert!(looks < 500, "{looks} pages for each write-back");
}
