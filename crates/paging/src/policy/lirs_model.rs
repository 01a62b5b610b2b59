//! A second, simple implementation of LIRS that follows the paper's figures closely. It searches linearly in two queues
//! of page numbers.

use std::collections::VecDeque;

use super::Lirs;
use crate::policy::trial::{Numbers, Trial};

#[derive(Clone, Copy, PartialEq, Debug)]
enum Status {
    Lir,
    Hir,
    Gone,
}

struct Model {
    capacity: usize,
    hirs: usize,
    ghosts: usize,
    /// Stack S. Its bottom is the first entry.
    stack: VecDeque<(u32, Status)>,
    /// Queue Q. Its first page is evicted next.
    queue: VecDeque<u32>,
    /// Remembered evicted pages, in the order of their eviction.
    gone: Vec<u32>,
    was_full: bool,
}

impl Model {
    fn new(capacity: usize, hir_percent: usize, ghost_percent: usize) -> Self {
        Self {
            capacity,
            hirs: (capacity * hir_percent / 100).max(1),
            ghosts: capacity * ghost_percent / 100,
            stack: VecDeque::new(),
            queue: VecDeque::new(),
            gone: Vec::new(),
            was_full: false,
        }
    }

    fn lirs(&self) -> usize {
        self.stack.iter().filter(|(_, status)| *status == Status::Lir).count()
    }

    fn status(&self, page: u32) -> Option<Status> {
        self.stack.iter().find(|(other, _)| *other == page).map(|(_, status)| *status)
    }

    fn stack_up(&mut self, page: u32, status: Status) {
        self.stack.retain(|(other, _)| *other != page);
        self.stack.push_back((page, status));
    }

    fn settle(&mut self) {
        while self.was_full && self.lirs() > self.capacity - self.hirs {
            let oldest = self.stack.iter().position(|(_, status)| *status == Status::Lir).unwrap();
            let (page, _) = self.stack.remove(oldest).unwrap();
            self.queue.push_back(page);
        }
        while self.stack.front().is_some_and(|(_, status)| *status != Status::Lir) {
            self.stack.pop_front();
        }
        let stack = &self.stack;
        self.gone.retain(|page| stack.contains(&(*page, Status::Gone)));
    }

    fn touch(&mut self, page: u32) -> Option<u32> {
        let status = self.status(page);
        let queued = self.queue.contains(&page);
        if status == Some(Status::Lir) || queued {
            match status {
                Some(_) => {
                    self.queue.retain(|other| *other != page);
                    self.stack_up(page, Status::Lir);
                }
                None => {
                    self.queue.retain(|other| *other != page);
                    self.queue.push_back(page);
                    self.stack_up(page, Status::Hir);
                }
            }
            self.settle();
            return None;
        }
        let mut victim = None;
        if self.lirs() + self.queue.len() == self.capacity {
            self.was_full = true;
            self.settle();
            let leaves = self.queue.pop_front().unwrap();
            if let Some(entry) = self.stack.iter_mut().find(|(other, _)| *other == leaves) {
                entry.1 = Status::Gone;
                self.gone.push(leaves);
            }
            victim = Some(leaves);
        }
        if status == Some(Status::Gone) || !self.was_full || self.lirs() < self.capacity - self.hirs {
            self.stack_up(page, Status::Lir);
        } else {
            self.stack_up(page, Status::Hir);
            self.queue.push_back(page);
        }
        self.settle();
        while self.gone.len() > self.ghosts {
            let oldest = self.gone.remove(0);
            self.stack.retain(|(other, _)| *other != oldest);
        }
        victim
    }
}

#[test]
fn victims_are_the_plain_models_on_random_strings() {
    for seed in 0..40 {
        let mut numbers = Numbers(seed);
        let capacity = 1 + numbers.below(40);
        let pages = capacity + 1 + numbers.below(4 * capacity);
        let (hir, ghost) =
            ([1, 5, 20, 50, 99][numbers.below(5) as usize], [0, 30, 100, 300][numbers.below(4) as usize]);
        let mut trial = Trial::new(Box::new(Lirs::new(pages, hir, ghost)), capacity as usize);
        let mut model = Model::new(capacity as usize, hir as usize, ghost as usize);
        for (at, page) in numbers.references(4000, pages).into_iter().enumerate() {
            assert_eq!(
                trial.touch(page),
                model.touch(page),
                "reference {at} to page {page}: seed {seed}, capacity {capacity}, hir {hir} %, ghosts {ghost} %"
            );
        }
        assert!(trial.hits > 0, "seed {seed}");
    }
}
