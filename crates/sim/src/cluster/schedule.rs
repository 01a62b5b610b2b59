//! Decides which process runs on which clusters: the priorities, the paper's five ways to choose clusters (paper 5,
//! section 3.2), and the assignment of threads to clusters.

use std::cmp::Reverse;

use super::draw::Draw;
use super::model::{Priority, Rules};
use super::network::Network;
use super::state::{NONE, Process, State};

/// The facts that a scheduler knows when it places one process.
pub struct Landscape<'a> {
    /// The tree between the clusters.
    pub network: &'a Network,
    /// For each cluster, whether it is still free.
    pub free: &'a [bool],
    /// Returns the number of the process's pages on a cluster.
    pub pages: &'a dyn Fn(u32) -> u64,
    /// Returns the number of pages that a cluster has to hold for the processes that ran there last: their own pages
    /// and those they share.
    pub load: &'a dyn Fn(u32) -> u64,
    /// The clusters of the process's last run; empty before its first run.
    pub last: &'a [u32],
    /// The number of clusters that the process asks for.
    pub want: u32,
    /// The rules that the paper leaves open.
    pub rules: Rules,
}

impl std::fmt::Debug for Landscape<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Landscape").field("network", &self.network).field("want", &self.want).finish_non_exhaustive()
    }
}

impl Landscape<'_> {
    fn is_free(&self, cluster: u32) -> bool {
        self.free[cluster as usize]
    }

    fn all(&self) -> std::ops::Range<u32> {
        0..self.network.clusters()
    }

    /// Chooses `want` of the free clusters in `clusters`. If `Rules::prefer_most` is set, clusters with more pages of
    /// the process come first. Otherwise, clusters with any page of the process come first. Among equals, the leftmost
    /// come first.
    fn by_pages(&self, clusters: impl Iterator<Item = u32>) -> Option<Vec<u32>> {
        let free = clusters.filter(|&cluster| self.is_free(cluster));
        let most = if self.rules.prefer_most { u64::MAX } else { 1 };
        let mut ranked: Vec<(Reverse<u64>, u32)> =
            free.map(|cluster| (Reverse((self.pages)(cluster).min(most)), cluster)).collect();
        ranked.sort_unstable();
        let chosen: Vec<u32> = ranked.into_iter().take(self.want as usize).map(|(_, cluster)| cluster).collect();
        (chosen.len() == self.want as usize).then_some(chosen)
    }

    /// Returns the home of a process, a node on the lowest level whose nodes have enough clusters. It is the node with
    /// most of the clusters of the process's last run. Before the first run, it is the first node with enough free
    /// clusters.
    fn home(&self) -> Option<std::ops::Range<u32>> {
        let level = self.network.home_level(self.want);
        let mut nodes = (0..self.network.nodes(level)).map(|node| {
            let first = node * self.network.below(level, 0).end;
            self.network.below(level, first)
        });
        if self.last.is_empty() {
            let free = |node: &std::ops::Range<u32>| node.clone().filter(|&cluster| self.is_free(cluster)).count();
            return nodes.find(|node| free(node) >= self.want as usize);
        }
        let of_last = |node: &std::ops::Range<u32>| self.last.iter().filter(|cluster| node.contains(cluster)).count();
        nodes.max_by_key(|node| (of_last(node), Reverse(node.start)))
    }
}

/// A scheduler that a user can choose.
#[derive(Clone, Copy)]
pub struct Info {
    /// Its name.
    pub name: &'static str,
    /// A one-line description.
    pub summary: &'static str,
    place: fn(&Landscape<'_>, &mut Draw) -> Option<Vec<u32>>,
    /// Whether a process has a higher priority if its pages are where it ran last.
    weighs: bool,
}

impl std::fmt::Debug for Info {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// All schedulers, in the order of the output.
pub const SCHEDULERS: &[Info] = &[
    Info { name: "algo0", summary: "any free clusters, drawn at random", place: algo0, weighs: false },
    Info { name: "algo1", summary: "the leftmost free clusters", place: algo1, weighs: false },
    Info {
        name: "algo2",
        summary: "the home subtree, else anywhere, where most own pages are",
        place: algo2,
        weighs: false,
    },
    Info { name: "algo3", summary: "only the home subtree, where most own pages are", place: algo3, weighs: false },
    Info { name: "algo4", summary: "only clusters that hold own pages", place: algo4, weighs: false },
    Info {
        name: "settle",
        summary: "ours: one block each, chosen by load; weighs pages against urgency",
        place: settle,
        weighs: true,
    },
];

fn algo0(land: &Landscape<'_>, draw: &mut Draw) -> Option<Vec<u32>> {
    let mut free: Vec<u32> = land.all().filter(|&cluster| land.is_free(cluster)).collect();
    draw.shuffle(&mut free);
    (free.len() >= land.want as usize).then(|| free[..land.want as usize].to_vec())
}

fn algo1(land: &Landscape<'_>, _: &mut Draw) -> Option<Vec<u32>> {
    let chosen: Vec<u32> = land.all().filter(|&cluster| land.is_free(cluster)).take(land.want as usize).collect();
    (chosen.len() == land.want as usize).then_some(chosen)
}

fn algo2(land: &Landscape<'_>, _: &mut Draw) -> Option<Vec<u32>> {
    land.home().and_then(|home| land.by_pages(home)).or_else(|| land.by_pages(land.all()))
}

fn algo3(land: &Landscape<'_>, _: &mut Draw) -> Option<Vec<u32>> {
    land.by_pages(land.home()?)
}

/// Places a process on clusters that hold its pages. A process that has not run yet is placed as by `algo2`. If all its
/// pages on a cluster were replaced, a process may have pages on fewer clusters than it wants. Then a
/// [rule](Rules::lost_waits) decides whether the process waits or is placed as by `algo2`.
fn algo4(land: &Landscape<'_>, draw: &mut Draw) -> Option<Vec<u32>> {
    let has_pages = |cluster: &u32| (land.pages)(*cluster) > 0;
    let is_lost = || !land.rules.lost_waits && land.all().filter(has_pages).count() < land.want as usize;
    if land.last.is_empty() || is_lost() {
        return algo2(land, draw);
    }
    land.by_pages(land.all().filter(has_pages))
}

/// Always runs a process on the clusters of its first run. For its first run, the process gets the block whose clusters
/// have the fewest pages to hold for the processes that ran there last. Blocks have the sizes of a buddy system, so
/// processes in disjoint blocks fill the machine together. A process whose clusters are in use does not run. No process
/// starves, because the most urgent process is placed first, when all clusters are free.
fn settle(land: &Landscape<'_>, _: &mut Draw) -> Option<Vec<u32>> {
    if !land.last.is_empty() {
        return land.last.iter().all(|&cluster| land.is_free(cluster)).then(|| land.last.to_vec());
    }
    let clusters = land.network.clusters();
    let size = land.want.next_power_of_two();
    let blocks = (0..clusters).step_by(size as usize).map(|first| first..(first + size).min(clusters));
    let choices = blocks.filter_map(|block| {
        let mut free: Vec<(u64, u32)> =
            block.filter(|&cluster| land.is_free(cluster)).map(|cluster| ((land.load)(cluster), cluster)).collect();
        free.sort_unstable();
        free.truncate(land.want as usize);
        let load: u64 = free.iter().map(|(load, _)| load).sum();
        (free.len() == land.want as usize).then_some((load, free))
    });
    choices.min().map(|(_, free)| free.into_iter().map(|(_, cluster)| cluster).collect())
}

/// Chooses the nodes for a job, as [algo4](SCHEDULERS) chooses clusters for a process. Chooses the nodes with most
/// pages. If fewer than `want` nodes hold pages, adds any other nodes. Returns `None` if there are fewer than `want`
/// nodes.
#[must_use]
pub fn propose(pages: &[u64], want: u32) -> Option<Vec<u32>> {
    if pages.is_empty() || (pages.len() as u64) < u64::from(want) {
        return None;
    }
    let network = Network::flat(pages.len() as u32);
    let free = vec![true; pages.len()];
    let land = Landscape {
        network: &network,
        free: &free,
        pages: &|node| pages[node as usize],
        load: &|_| 0,
        // Any clusters here tell `algo4` that the job ran before, so that `algo4` chooses the nodes by their pages.
        last: &[0],
        want,
        rules: Rules { prefer_most: true, lost_waits: false },
    };
    algo4(&land, &mut Draw::new(0, 0))
}

impl Info {
    /// Returns the scheduler with this name.
    ///
    /// # Errors
    /// There is no such scheduler. The message lists all schedulers.
    pub fn find(name: &str) -> Result<&'static Self, String> {
        SCHEDULERS.iter().find(|info| info.name == name).ok_or_else(|| {
            let all: Vec<&str> = SCHEDULERS.iter().map(|info| info.name).collect();
            format!("no scheduler is called '{name}'; there are {}", all.join(", "))
        })
    }

    /// Returns the clusters for a process, or `None` if the process does not run in this quantum.
    pub(super) fn place(&self, land: &Landscape<'_>, draw: &mut Draw) -> Option<Vec<u32>> {
        (self.place)(land, draw)
    }
}

/// Sorts the processes by urgency, the most urgent first, and sets the rank of each.
///
/// A scheduler that [weighs](Info::weighs) pages raises a process's priority by up to `priority.near` quanta. It adds
/// all these quanta if every page that the process needs is on the clusters of its last run, and a proportional part
/// otherwise. So processes alternate less often, and the process with the fewest pages to fetch continues or returns
/// first. No process is delayed by more than `priority.near` quanta.
pub(super) fn by_priority(state: &mut State<'_>, priority: &Priority, scheduler: &Info) -> Vec<u32> {
    let near = |process: u32| {
        let found = &state.processes[process as usize];
        let needed = u64::from(found.processors) * u64::from(found.shared_pages + found.private_pages);
        let there: u64 = found.placed.iter().map(|&cluster| u64::from(state.on(process, cluster))).sum();
        (there as f64 / needed as f64).min(1.0)
    };
    let bonus = |process| if scheduler.weighs { priority.near * near(process) } else { 0.0 };
    let bonus: Vec<f64> = (0..state.processes.len() as u32).map(bonus).collect();
    let processes = &mut state.processes;
    let value = |process: &Process| {
        let weight = f64::from(process.processors) / priority.processors_unit;
        let ran = if process.running { priority.ran_last } else { 0.0 };
        let waited = f64::from(process.quanta) - process.effective_quanta;
        let used = process.effective_quanta + priority.waiting * waited;
        ran - priority.per_quantum * used * weight
            - priority.per_pages * f64::from(process.resident) / priority.pages_unit
    };
    let mut order: Vec<u32> = (0..processes.len() as u32).collect();
    let values: Vec<f64> = processes.iter().map(value).zip(bonus).map(|(value, bonus)| value + bonus).collect();
    order.sort_by(|&a, &b| {
        let (x, y) = (a as usize, b as usize);
        values[y].total_cmp(&values[x]).then(processes[x].arrival.cmp(&processes[y].arrival))
    });
    for (rank, &process) in order.iter().rev().enumerate() {
        processes[process as usize].rank = rank as u32;
    }
    order
}

/// Returns the cluster of each thread. A thread that last ran on one of the chosen clusters gets that cluster again.
/// The other threads get the remaining clusters in order (paper 5, end of 3.2).
pub(super) fn threads_to_clusters(last: &[u32], chosen: &[u32], threads: u32) -> Vec<u32> {
    let mut placed = vec![NONE; threads as usize];
    let mut others: Vec<u32> = chosen.to_vec();
    for (thread, cluster) in last.iter().enumerate() {
        if let Some(at) = others.iter().position(|other| other == cluster) {
            placed[thread] = others.remove(at);
        }
    }
    others.sort_unstable();
    let free = placed.iter_mut().filter(|cluster| **cluster == NONE);
    free.zip(others).for_each(|(thread, cluster)| *thread = cluster);
    placed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Config;
    use crate::cluster::state::State;

    /// Returns the choice of a scheduler on a network. The arguments give the pages on each cluster, the taken
    /// clusters, and the clusters of the last run.
    fn choose(name: &str, network: &str, pages: &[u64], taken: &[u32], last: &[u32], want: u32) -> Option<Vec<u32>> {
        let network: Network = network.parse().unwrap();
        let free: Vec<bool> = (0..network.clusters()).map(|cluster| !taken.contains(&cluster)).collect();
        let on = |cluster: u32| pages.get(cluster as usize).copied().unwrap_or(0);
        let rules = Rules { prefer_most: true, lost_waits: true };
        // The further left a cluster is, the more pages it has to hold.
        let load = |cluster: u32| u64::from(100 - cluster);
        let land = Landscape { network: &network, free: &free, pages: &on, load: &load, last, want, rules };
        Info::find(name).unwrap().place(&land, &mut Draw::new(1, 1))
    }

    #[test]
    fn algo0_draws_and_algo1_takes_the_leftmost() {
        let drawn = choose("algo0", "16", &[], &[3], &[], 5).unwrap();
        assert!(drawn.len() == 5 && !drawn.contains(&3) && drawn != [0, 1, 2, 4, 5], "{drawn:?}");
        assert_eq!(choose("algo1", "16", &[], &[0, 2], &[], 3), Some(vec![1, 3, 4]));
        for name in ["algo0", "algo1", "algo2", "algo3", "settle"] {
            assert_eq!(choose(name, "4", &[], &[2], &[], 4), None, "{name}");
            assert_eq!(choose(name, "4", &[], &[], &[], 4).map(|chosen| chosen.len()), Some(4), "{name}");
        }
    }

    #[test]
    fn algo2_leaves_its_home_where_algo3_waits() {
        // The home is the second group of four, where the process ran last. Most of its pages are in the third group.
        let pages = [0, 0, 0, 0, 1, 5, 2, 0, 9, 9, 9, 9];
        assert_eq!(choose("algo2", "4x4", &pages, &[], &[4, 5, 6], 3), Some(vec![5, 6, 4]));
        assert_eq!(choose("algo3", "4x4", &pages, &[], &[4, 5, 6], 3), Some(vec![5, 6, 4]));
        assert_eq!(choose("algo2", "4x4", &pages, &[4, 5], &[4, 5, 6], 3), Some(vec![8, 9, 10]));
        assert_eq!(choose("algo3", "4x4", &pages, &[4, 5], &[4, 5, 6], 3), None);
        // Before the first run, the home is the first group with enough free clusters.
        assert_eq!(choose("algo3", "4x4", &[], &[1, 2], &[], 3), Some(vec![4, 5, 6]));
        assert_eq!(choose("algo2", "4x4", &[], &[1, 5, 6, 8, 9, 12, 13], &[], 3), Some(vec![0, 2, 3]));
    }

    #[test]
    fn algo4_takes_clusters_with_pages_only_and_waits_for_them() {
        let pages = [0, 3, 0, 7, 0, 1];
        assert_eq!(choose("algo4", "8", &pages, &[], &[1, 3], 2), Some(vec![3, 1]));
        assert_eq!(choose("algo4", "8", &pages, &[3], &[1, 3], 2), Some(vec![1, 5]));
        assert_eq!(choose("algo4", "8", &pages, &[3, 1], &[1, 3], 2), None);
        assert_eq!(choose("algo4", "8", &[], &[0], &[], 2), Some(vec![1, 2]));
    }

    #[test]
    fn settle_stays_in_the_block_with_least_to_hold() {
        assert_eq!(choose("settle", "4x4", &[9; 16], &[], &[], 3), Some(vec![15, 14, 13]));
        assert_eq!(choose("settle", "4x4", &[9; 16], &[13, 14], &[], 3), Some(vec![11, 10, 9]));
        assert_eq!(choose("settle", "4x4", &[], &[], &[1, 7, 4], 3), Some(vec![1, 7, 4]));
        assert_eq!(choose("settle", "4x4", &[], &[7], &[1, 7, 4], 3), None);
        // The last block has only one cluster, so a process that wants three of the five clusters gets the first block.
        assert_eq!(choose("settle", "5", &[], &[], &[], 3), Some(vec![3, 2, 1]));
    }

    #[test]
    fn a_job_goes_to_the_nodes_with_most_pages() {
        assert_eq!(propose(&[5, 0, 9, 7], 2), Some(vec![2, 3]));
        assert_eq!(propose(&[5, 0, 9, 0], 3), Some(vec![2, 0, 1]));
        assert_eq!(propose(&[0, 0], 2), Some(vec![0, 1]));
        assert_eq!(propose(&[u64::MAX, 1], 3), None);
        assert_eq!((propose(&[], 1), propose(&[], 0), propose(&[1], 0)), (None, None, Some(vec![])));
    }

    #[test]
    fn threads_stay_on_the_clusters_they_had_and_the_others_fill_up_in_order() {
        assert_eq!(threads_to_clusters(&[4, 9, 2, 7], &[7, 1, 4, 3], 4), [4, 1, 3, 7]);
        assert_eq!(threads_to_clusters(&[], &[7, 1, 4], 3), [1, 4, 7]);
    }

    #[test]
    fn who_used_more_or_waited_less_is_less_urgent() {
        let config = Config::default();
        let tables: Vec<_> = config.model.processes.iter().map(|group| config.model.table(group)).collect();
        let mut state = State::new(&config.model, &tables, 1);
        let priority = Priority {
            waiting: 0.5,
            per_quantum: 1.0,
            processors_unit: 8.0,
            per_pages: 0.1,
            pages_unit: 640.0,
            ran_last: 0.75,
            near: 0.0,
        };
        // All processes have four processors. Process 2 has used least. Process 3 has used as much as process 0, and
        // has also waited. Process 1 ran in the last quantum.
        for (process, quanta, effective, running) in
            [(0, 2, 2.0, false), (1, 3, 3.0, true), (2, 1, 1.0, false), (3, 4, 2.0, false)]
        {
            let found = &mut state.processes[process];
            (found.quanta, found.effective_quanta, found.running) = (quanta, effective, running);
        }
        state.processes.truncate(4);
        let algo4 = Info::find("algo4").unwrap();
        assert_eq!(by_priority(&mut state, &priority, algo4), [2, 1, 0, 3]);
        assert_eq!([0, 1, 2, 3].map(|process: usize| state.processes[process].rank), [1, 2, 3, 0]);
        // Pages in memory lower a process's priority. For a scheduler that weighs pages, pages where the process ran
        // last raise the priority.
        state.processes[2].resident = 10_000;
        assert_eq!(by_priority(&mut state, &priority, algo4), [1, 0, 3, 2]);
    }

    #[test]
    fn an_unknown_scheduler_is_answered_with_all() {
        let error = Info::find("algo5").unwrap_err();
        assert!(error.contains("'algo5'") && error.contains("algo0") && error.contains("settle"), "{error}");
    }
}
