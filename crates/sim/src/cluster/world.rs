//! Faults, transfers and replacement, and the choice of the processes that run in each quantum.
//!
//! Both engines drive this code. Each engine finds the next event in its own way. Each also knows a thread's past
//! references in its own way, and provides them by [`History`].

use hanare_paging::kinds::{Kind, Urgency};
use hanare_paging::policy::{Leave, SpecError};

use super::links::Links;
use super::memory::{Memory, Replacement};
use super::model::Model;
use super::references::Table;
use super::schedule::{self, Info, Landscape};
use super::state::{Interval, Moment, NONE, State};

/// The past references of the threads, as an engine knows them.
pub(super) trait History {
    /// Returns the last effective clock in `range` at which the thread referenced the page at `index` of its table.
    fn last(&self, state: &State<'_>, thread: u32, index: u32, range: std::ops::Range<u64>) -> Option<u64>;
    /// Whether the thread referenced the page at `index` of its table at an effective clock in `range`.
    fn referenced(&self, state: &State<'_>, thread: u32, index: u32, range: std::ops::Range<u64>) -> bool;
    /// Whether a thread wrote the page at `index` of its table less than `clocks` clocks before `now`.
    fn wrote(&self, state: &State<'_>, thread: u32, index: u32, now: Moment, clocks: u64) -> bool;
}

/// The outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// The page is present.
    Ready,
    /// The page will be present at this clock.
    Wait(u64),
    /// No page may leave now. The thread tries again at this clock.
    Retry(u64),
}

/// The thread on a cluster in this quantum.
#[derive(Debug)]
pub(super) struct Runner {
    pub(super) thread: u32,
    /// For each page of the thread's table: the page's number in this memory, or [`NONE`].
    pub(super) ids: Vec<u32>,
    /// The thread's effective clock when its references were last reported to the policy.
    reported: u64,
}

/// The counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of first references to pages.
    pub first_touches: u64,
    /// Number of shared pages copied from another cluster.
    pub copies: u64,
    /// Number of private pages moved from another cluster.
    pub migrations: u64,
    /// Number of pages read from disk.
    pub disk_reads: u64,
    /// Number of pages replaced.
    pub evictions: u64,
    /// Number of clocks that transfers waited for busy links.
    pub link_wait_clk: u64,
    /// Number of clocks for which clusters had a thread, summed over the clusters.
    pub placed_clk: u64,
}

/// The machine with its state and policies.
pub(super) struct World<'a> {
    pub(super) model: &'a Model,
    pub(super) state: State<'a>,
    pub(super) runners: Vec<Option<Runner>>,
    /// The pages that the present fault replaced, as indices into the faulting thread's table. The engine empties the
    /// list.
    pub(super) lost: Vec<u32>,
    pub(super) counts: Counts,
    memories: Vec<Memory>,
    /// For each cluster: the number of pages that it has to hold for the processes that ran there last.
    load: Vec<u64>,
    links: Links,
    scheduler: &'static Info,
    /// The longest time that an update of all copies needs, in clocks.
    update_clk: u64,
}

impl<'a> World<'a> {
    /// # Errors
    /// The policy cannot be built.
    pub(super) fn new(
        model: &'a Model,
        tables: &'a [Table],
        replacement: &Replacement,
        scheduler: &'static Info,
        seed: u64,
    ) -> Result<Self, SpecError> {
        let clusters = model.network.clusters();
        let memory = |cluster| {
            let seed = super::draw::at(seed, 1 << 40, u64::from(cluster));
            Memory::new(model.memory_pages, model.history_pages, replacement, seed)
        };
        Ok(Self {
            model,
            state: State::new(model, tables, seed),
            runners: (0..clusters).map(|_| None).collect(),
            lost: Vec::new(),
            counts: Counts::default(),
            memories: (0..clusters).map(memory).collect::<Result<_, _>>()?,
            load: vec![0; clusters as usize],
            links: Links::new(model),
            scheduler,
            update_clk: u64::from(model.communication_clk) * u64::from(model.network.height()),
        })
    }

    /// Serves a fault of the thread on a cluster. The page at `index` of the thread's table is absent.
    pub(super) fn fault(&mut self, history: &impl History, now: Moment, index: u32, write: bool) -> Fault {
        let cluster = now.cluster;
        let Some(runner) = &self.runners[cluster as usize] else { return Fault::Ready };
        let thread = runner.thread;
        let page = self.state.page_of(thread, index);
        while self.memories[cluster as usize].is_full() {
            if !self.evict(history, now) {
                return Fault::Retry(now.clock + u64::from(self.model.communication_clk.max(1)));
            }
        }
        let wait = self.fetch(page, now);
        let (process, kind) = (self.state.pages[page as usize].process, self.kind(page, 1));
        let id = self.memories[cluster as usize].insert(page, process, kind, write);
        self.state.put(page, cluster, id);
        self.report_kind(page, cluster);
        if let Some(runner) = &mut self.runners[cluster as usize] {
            runner.ids[index as usize] = id;
        }
        if wait == 0 { Fault::Ready } else { Fault::Wait(now.clock + wait) }
    }

    /// Returns the time that the bytes of a page take to arrive, in clocks. A private page leaves the memory that it
    /// was in.
    fn fetch(&mut self, page: u32, now: Moment) -> u64 {
        let found = &self.state.pages[page as usize];
        let network = &self.model.network;
        let levels = |from: u32| (network.levels(from, now.cluster), from);
        let nearest = found.copies.iter().map(|copy| levels(copy.0)).min();
        let Some((levels, from)) = nearest else {
            let disk = found.exists;
            self.counts.disk_reads += u64::from(disk);
            self.counts.first_touches += u64::from(!disk);
            return if disk { u64::from(self.model.disk_clk) } else { 0 };
        };
        if found.is_shared() {
            self.counts.copies += 1;
        } else {
            self.counts.migrations += 1;
            let id = found.number_on(from);
            self.memories[from as usize].remove(id, Leave::Forgotten);
            self.state.take(page, from);
        }
        let busy = self.links.transfer(network, from, now.cluster, now.clock);
        self.counts.link_wait_clk += busy;
        u64::from(self.model.remote_clk) * u64::from(levels) + busy
    }

    /// Returns the kind that a page has with `more` further copies.
    fn kind(&self, page: u32, more: usize) -> Kind {
        let page = &self.state.pages[page as usize];
        match (page.is_shared(), page.copies.len() + more) {
            (false, _) => Kind::Private,
            (true, 1) => Kind::LastShared,
            (true, _) => Kind::SharedCopy,
        }
    }

    /// Reports a shared page's kind to the memories that hold the page, except to the memory of cluster `but`. With
    /// more than two copies, the kind has not changed, so nothing is reported.
    fn report_kind(&mut self, page: u32, but: u32) {
        let found = &self.state.pages[page as usize];
        if found.is_shared() && found.copies.len() <= 2 {
            let kind = self.kind(page, 0);
            for &(cluster, id) in found.copies.iter().filter(|copy| copy.0 != but) {
                self.memories[cluster as usize].changed(id, kind);
            }
        }
    }

    /// Makes room for one page. Returns false if no page may leave.
    fn evict(&mut self, history: &impl History, now: Moment) -> bool {
        let victim = self.victim(history, now, true).or_else(|| {
            self.report_references(history, now);
            self.victim(history, now, false)
        });
        let Some(id) = victim else { return false };
        let memory = &mut self.memories[now.cluster as usize];
        let page = memory.page(id);
        memory.remove(id, Leave::Evicted);
        self.state.take(page, now.cluster);
        self.report_kind(page, now.cluster);
        self.counts.evictions += 1;
        let found = &self.state.pages[page as usize];
        if let Some(runner) = &mut self.runners[now.cluster as usize]
            && runner.ids.get(found.index as usize) == Some(&id)
        {
            runner.ids[found.index as usize] = NONE;
            self.lost.push(found.index);
        }
        true
    }

    /// Returns the number of the page that leaves next. A page whose copies are being updated may not leave. If
    /// `unseen` is true, a page that the thread referenced after the last report to the policy may not leave either.
    /// The policy's order does not contain such a reference.
    fn victim(&mut self, history: &impl History, now: Moment, unseen: bool) -> Option<u32> {
        let (state, runner) = (&self.state, self.runners[now.cluster as usize].as_ref()?);
        let (model, update_clk) = (self.model, self.update_clk);
        let thread = &state.threads[runner.thread as usize];
        let since = runner.reported..thread.effective;
        let accept = |id: u32, page: u32| {
            let found = &state.pages[page as usize];
            let own = runner.ids.get(found.index as usize) == Some(&id);
            if own && unseen && history.referenced(state, runner.thread, found.index, since.clone()) {
                return false;
            }
            !(found.is_shared() && found.copies.len() > 1 && under_update(model, update_clk, state, history, page, now))
        };
        let rank = |process: u32| state.processes[process as usize].rank;
        let urgency = Urgency { running: Some(thread.process), of: &rank, first: model.first };
        self.memories[now.cluster as usize].victim(&urgency, &accept)
    }

    /// Reports to a cluster's policy the pages that its thread referenced since the last report, ordered by their last
    /// references.
    fn report_references(&mut self, history: &impl History, now: Moment) {
        let Some(runner) = &mut self.runners[now.cluster as usize] else { return };
        let until = self.state.threads[runner.thread as usize].effective;
        let since = std::mem::replace(&mut runner.reported, until)..until;
        let present = runner.ids.iter().enumerate().filter(|(_, id)| **id != NONE);
        let referenced = present.filter_map(|(index, &id)| {
            history.last(&self.state, runner.thread, index as u32, since.clone()).map(|last| (last, id))
        });
        let mut referenced: Vec<(u64, u32)> = referenced.collect();
        referenced.sort_unstable();
        for (_, id) in referenced {
            self.memories[now.cluster as usize].referenced(id, false);
        }
    }

    /// Returns for how many clocks a write to the page at `index` waits until all copies are updated.
    pub(super) fn update_wait(&self, cluster: u32, index: u32) -> u64 {
        let Some(runner) = &self.runners[cluster as usize] else { return 0 };
        let page = self.state.page_of(runner.thread, index);
        update_time(self.model, &self.state, page, cluster)
    }

    /// Returns the clocks for which past intervals are kept: the longest time that an update needs.
    pub(super) fn keep_clk(&self) -> u64 {
        self.update_clk
    }

    /// Chooses the processes that run from `clock` on, and puts their threads on clusters.
    pub(super) fn begin_quantum(&mut self, clock: u64, seed: u64) {
        let number = clock / u64::from(self.model.quantum_clk);
        let mut draw = super::draw::Draw::new(seed, (1 << 41) + number);
        let mut free = vec![true; self.runners.len()];
        for process in schedule::by_priority(&mut self.state, &self.model.priority, self.scheduler) {
            let state = &self.state;
            let found = &state.processes[process as usize];
            let pages = |cluster| u64::from(state.on(process, cluster));
            let load = |cluster: u32| self.load[cluster as usize];
            let land = Landscape {
                network: &self.model.network,
                free: &free,
                pages: &pages,
                load: &load,
                last: &found.placed,
                want: found.processors,
                rules: self.model.rules,
            };
            let chosen = self.scheduler.place(&land, &mut draw);
            let placed = chosen.map(|chosen| schedule::threads_to_clusters(&found.placed, &chosen, found.processors));
            self.state.processes[process as usize].running = placed.is_some();
            if let Some(placed) = placed {
                placed.iter().for_each(|&cluster| free[cluster as usize] = false);
                self.put_on(process, placed, clock);
            }
        }
    }

    fn put_on(&mut self, process: u32, placed: Vec<u32>, clock: u64) {
        let first = self.state.processes[process as usize].first_thread;
        self.counts.placed_clk += placed.len() as u64 * u64::from(self.model.quantum_clk);
        for (thread, &cluster) in (first..).zip(&placed) {
            let found = &mut self.state.threads[thread as usize];
            found.cluster = cluster;
            found.since = clock.max(found.wake);
            let pages = found.references.table().pages();
            let reported = found.effective;
            let number = |index| self.state.pages[self.state.page_of(thread, index) as usize].number_on(cluster);
            let ids = (0..pages).map(number).collect();
            self.runners[cluster as usize] = Some(Runner { thread, ids, reported });
        }
        let found = &mut self.state.processes[process as usize];
        let pages = u64::from(found.private_pages + found.shared_pages);
        found.placed.iter().for_each(|&cluster| self.load[cluster as usize] -= pages);
        placed.iter().for_each(|&cluster| self.load[cluster as usize] += pages);
        found.quanta += 1;
        found.placed = placed;
    }

    /// Removes all threads from their clusters at the end of a quantum. `clock` is the first clock of the next quantum.
    pub(super) fn end_quantum(&mut self, history: &impl History, clock: u64) {
        let keep = self.keep_clk();
        for cluster in 0..self.runners.len() as u32 {
            let Some(runner) = &self.runners[cluster as usize] else { continue };
            let thread = &mut self.state.threads[runner.thread as usize];
            if !thread.at_barrier {
                let effective = thread.effective + clock.saturating_sub(thread.since);
                thread.close(effective, keep);
                thread.wake = thread.since.max(clock);
            }
            self.report_references(history, Moment { clock, cluster });
        }
        for process in &mut self.state.processes {
            let (first, count) = (process.first_thread as usize, process.processors as usize);
            let effective: u64 = self.state.threads[first..first + count].iter().map(|thread| thread.effective).sum();
            process.effective_quanta = effective as f64 / count as f64 / f64::from(self.model.quantum_clk);
        }
        for runner in self.runners.iter_mut() {
            if let Some(runner) = runner.take() {
                self.state.threads[runner.thread as usize].cluster = NONE;
            }
        }
    }

    /// Notes that a thread arrived at a synchronisation. `number` counts the synchronisations. If the thread is the
    /// last of its group, returns the group, and the thread does not wait.
    pub(super) fn arrive(&mut self, thread: u32, number: u64, seed: u64) -> Option<Vec<u32>> {
        let process = self.state.threads[thread as usize].process;
        let found = &mut self.state.processes[process as usize];
        let all = found.first_thread..found.first_thread + found.processors;
        self.state.threads[thread as usize].at_barrier = true;
        let group: Vec<u32> = match self.model.sync_threads {
            0 => {
                found.at_barrier += 1;
                if found.at_barrier < found.processors {
                    return None;
                }
                found.at_barrier = 0;
                all.collect()
            }
            size => {
                let mut order: Vec<u32> = all.collect();
                super::draw::Draw::new(seed ^ super::draw::mix(number), u64::from(process)).shuffle(&mut order);
                let is_mine = |group: &&[u32]| group.contains(&thread);
                order.chunks(size as usize).find(is_mine).map(<[u32]>::to_vec).unwrap_or_default()
            }
        };
        let effective = self.state.threads[thread as usize].effective;
        let is_there = |&thread: &u32| {
            let thread = &self.state.threads[thread as usize];
            thread.at_barrier && thread.effective == effective
        };
        if !group.iter().all(is_there) {
            return None;
        }
        group.iter().for_each(|&thread| self.state.threads[thread as usize].at_barrier = false);
        Some(group)
    }

    /// Lets a group of threads continue at this clock. A thread without a processor continues in its next quantum.
    pub(super) fn release(&mut self, group: &[u32], clock: u64) {
        for &thread in group {
            let thread = &mut self.state.threads[thread as usize];
            (thread.since, thread.wake) = (clock, clock);
        }
    }
}

/// Whether an update of a page is in progress. An update lasts until all copies have the last write.
fn under_update(
    model: &Model,
    most_clk: u64,
    state: &State<'_>,
    history: &impl History,
    page: u32,
    now: Moment,
) -> bool {
    let found = &state.pages[page as usize];
    let process = &state.processes[found.process as usize];
    if !process.running || most_clk == 0 {
        return false;
    }
    (process.first_thread..).zip(&process.placed).any(|(thread, &cluster)| {
        history.wrote(state, thread, found.index, now, most_clk)
            && history.wrote(state, thread, found.index, now, update_time(model, state, page, cluster))
    })
}

/// Returns the clocks until a write on a cluster has reached all copies of a page.
fn update_time(model: &Model, state: &State<'_>, page: u32, cluster: u32) -> u64 {
    let copies = state.pages[page as usize].copies.iter();
    let levels = copies.map(|copy| model.network.levels(cluster, copy.0)).max().unwrap_or(0);
    u64::from(model.communication_clk) * u64::from(levels)
}

/// Returns the clock at which a thread executed the effective clock `effective`. Returns `None` if the thread did not
/// execute it in this interval.
pub(super) fn clock_of(interval: &Interval, effective: u64) -> Option<u64> {
    let after = effective.checked_sub(interval.effective).filter(|after| *after < interval.length)?;
    Some(interval.clock + after)
}
