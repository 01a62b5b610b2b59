//! The state of the simulated machine: processes, threads and pages, and where they are.

use std::collections::VecDeque;

use super::draw::Draw;
use super::model::{FirstTouch, Model};
use super::references::{References, Table};

/// The value for "no cluster", "no thread" and "no number".
pub(super) const NONE: u32 = u32::MAX;

/// A parallel process. It has one thread for each processor that it asks for.
#[derive(Debug)]
pub(super) struct Process {
    /// The number of the process's first thread.
    pub(super) first_thread: u32,
    pub(super) processors: u32,
    pub(super) shared_pages: u32,
    pub(super) private_pages: u32,
    /// The number of the process's first page. The shared pages come first, then the private pages of each thread.
    pub(super) first_page: u32,
    /// The cluster of each thread in the process's last run; empty before its first run.
    pub(super) placed: Vec<u32>,
    /// Number of quanta in which the process ran.
    pub(super) quanta: u32,
    /// Mean number of effective clocks of the process's threads, in quanta.
    pub(super) effective_quanta: f64,
    /// Whether the process runs in this quantum. Between two quanta: whether it ran in the last one.
    pub(super) running: bool,
    /// Number of the process's pages in memory, including copies.
    pub(super) resident: u32,
    /// The process's place in the order of arrival.
    pub(super) arrival: u32,
    /// The process's rank among all processes by urgency; 0 is the least urgent.
    pub(super) rank: u32,
    /// Number of the process's threads that wait at a barrier of the whole process.
    pub(super) at_barrier: u32,
}

/// An interval in which a thread executed one reference in each clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// The first clock of the interval.
    pub(super) clock: u64,
    /// The thread's effective clock at the start of the interval.
    pub(super) effective: u64,
    /// The length of the interval, in clocks.
    pub(super) length: u64,
}

/// A thread: the clocks it has executed, and the event it waits for.
#[derive(Debug)]
pub(super) struct Thread<'a> {
    pub(super) process: u32,
    pub(super) references: References<'a>,
    /// Number of effective clocks up to [`since`](Thread::since).
    pub(super) effective: u64,
    /// The clock from which the thread executes, if it is on a processor and not at a barrier. The clock is in the
    /// future while the thread waits for a page.
    pub(super) since: u64,
    /// The clock from which the thread can execute, while it is on no processor.
    pub(super) wake: u64,
    /// Whether the thread waits at a barrier. It reached the barrier at [`effective`](Thread::effective).
    pub(super) at_barrier: bool,
    /// The thread's cluster in this quantum, or [`NONE`].
    pub(super) cluster: u32,
    /// The effective clock of the last write that the thread has waited for, plus one.
    pub(super) paid: u64,
    /// The thread's recent intervals, oldest first.
    pub(super) recent: VecDeque<Interval>,
}

impl Thread<'_> {
    /// Returns the thread's effective clocks up to this moment. In each clock, clusters execute in the order of their
    /// numbers.
    pub(super) fn done(&self, now: Moment) -> u64 {
        if self.at_barrier || self.cluster == NONE {
            return self.effective;
        }
        let until = now.clock + u64::from(self.cluster < now.cluster);
        self.effective + until.saturating_sub(self.since)
    }

    /// Ends the thread's present interval at an effective clock. Drops intervals that ended more than `keep` clocks
    /// earlier.
    pub(super) fn close(&mut self, effective: u64, keep: u64) {
        let length = effective - self.effective;
        if length > 0 {
            let end = self.since + length;
            while self.recent.front().is_some_and(|old| old.clock + old.length + keep < end) {
                self.recent.pop_front();
            }
            self.recent.push_back(Interval { clock: self.since, effective: self.effective, length });
        }
        self.effective = effective;
    }
}

/// A clock, and the cluster whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Moment {
    pub(super) clock: u64,
    pub(super) cluster: u32,
}

/// A page of a process.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) process: u32,
    /// The page's thread, or [`NONE`] for a shared page.
    pub(super) thread: u32,
    /// The page's index in the tables of its threads.
    pub(super) index: u32,
    /// Whether the page has been referenced. If so, its bytes are in a memory or on disk.
    pub(super) exists: bool,
    /// The memories that hold the page, and the page's number in each. Only one memory may hold a private page.
    pub(super) copies: Vec<(u32, u32)>,
}

impl Page {
    pub(super) fn is_shared(&self) -> bool {
        self.thread == NONE
    }

    /// Returns the page's number in a cluster's memory, or [`NONE`] if that memory does not hold the page.
    pub(super) fn number_on(&self, cluster: u32) -> u32 {
        self.copies.iter().find(|copy| copy.0 == cluster).map_or(NONE, |copy| copy.1)
    }
}

/// The whole state of the simulated machine.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) processes: Vec<Process>,
    pub(super) threads: Vec<Thread<'a>>,
    pub(super) pages: Vec<Page>,
    /// Number of pages of each process on each cluster.
    on: Vec<u32>,
    clusters: u32,
}

impl<'a> State<'a> {
    /// Makes the state before the first quantum. `tables` has one table for each group of processes.
    pub(super) fn new(model: &Model, tables: &'a [Table], seed: u64) -> Self {
        let (mut processes, mut threads, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        for (group, table) in model.processes.iter().zip(tables) {
            for _ in 0..group.count {
                let process = processes.len() as u32;
                let (first_thread, first_page) = (threads.len() as u32, pages.len() as u32);
                let exists = model.first_touch == FirstTouch::Disk;
                let page = |thread, index| Page { process, thread, index, exists, copies: Vec::new() };
                pages.extend((0..group.shared_pages).map(|index| page(NONE, index)));
                for thread in first_thread..first_thread + group.processors {
                    let own = group.shared_pages..group.shared_pages + group.private_pages;
                    pages.extend(own.map(|index| page(thread, index)));
                    threads.push(new_thread(process, References::new(table, seed, thread)));
                }
                processes.push(Process {
                    first_thread,
                    processors: group.processors,
                    shared_pages: group.shared_pages,
                    private_pages: group.private_pages,
                    first_page,
                    placed: Vec::new(),
                    quanta: 0,
                    effective_quanta: 0.0,
                    running: false,
                    resident: 0,
                    arrival: 0,
                    rank: 0,
                    at_barrier: 0,
                });
            }
        }
        let mut arrivals: Vec<u32> = (0..processes.len() as u32).collect();
        if model.arrival_shuffled {
            Draw::new(seed, u64::MAX).shuffle(&mut arrivals);
        }
        for (process, arrival) in processes.iter_mut().zip(arrivals) {
            process.arrival = arrival;
        }
        let clusters = model.network.clusters();
        let on = vec![0; processes.len() * clusters as usize];
        Self { processes, threads, pages, on, clusters }
    }

    /// Returns the number of pages of a process on a cluster.
    pub(super) fn on(&self, process: u32, cluster: u32) -> u32 {
        self.on[(process * self.clusters + cluster) as usize]
    }

    /// Returns the page at this index of a thread's table.
    pub(super) fn page_of(&self, thread: u32, index: u32) -> u32 {
        let process = &self.processes[self.threads[thread as usize].process as usize];
        match index.checked_sub(process.shared_pages) {
            None => process.first_page + index,
            Some(own) => {
                let number = thread - process.first_thread;
                process.first_page + process.shared_pages + number * process.private_pages + own
            }
        }
    }

    /// Notes that a memory now holds a page.
    pub(super) fn put(&mut self, page: u32, cluster: u32, id: u32) {
        let page = &mut self.pages[page as usize];
        page.exists = true;
        page.copies.push((cluster, id));
        self.on[(page.process * self.clusters + cluster) as usize] += 1;
        self.processes[page.process as usize].resident += 1;
    }

    /// Notes that a memory no longer holds a page.
    pub(super) fn take(&mut self, page: u32, cluster: u32) {
        let page = &mut self.pages[page as usize];
        page.copies.retain(|copy| copy.0 != cluster);
        self.on[(page.process * self.clusters + cluster) as usize] -= 1;
        self.processes[page.process as usize].resident -= 1;
    }
}

fn new_thread(process: u32, references: References<'_>) -> Thread<'_> {
    Thread {
        process,
        references,
        effective: 0,
        since: 0,
        wake: 0,
        at_barrier: false,
        cluster: NONE,
        paid: 0,
        recent: VecDeque::new(),
    }
}
