//! The links of the network. A transfer keeps links busy, so that other transfers wait. The paper ignores this effect
//! (section 3.1), so it is an option here.

use super::model::Model;
use super::network::Network;

/// The clock at which each link is free again. Each node below the root has a link to its parent.
#[derive(Debug)]
pub(super) struct Links {
    busy_clk: u64,
    free: Vec<Vec<u64>>,
}

impl Links {
    pub(super) fn new(model: &Model) -> Self {
        let (busy_clk, network) = (u64::from(model.link_clk), &model.network);
        let levels = if busy_clk == 0 { 0 } else { network.height() };
        Self { busy_clk, free: (0..levels).map(|level| vec![0; network.nodes(level) as usize]).collect() }
    }

    /// Moves a page from one cluster to another at `clock`. The transfer needs all links of its path at the same time.
    /// Returns the number of clocks that the transfer waits until all these links are free.
    pub(super) fn transfer(&mut self, network: &Network, from: u32, to: u32, clock: u64) -> u64 {
        let levels = network.levels(from, to).min(self.free.len() as u32);
        let way: Vec<(usize, usize)> = (0..levels)
            .flat_map(|level| [from, to].map(|cluster| (level as usize, network.node(level, cluster) as usize)))
            .collect();
        let start = way.iter().map(|&(level, node)| self.free[level][node]).max().unwrap_or(0).max(clock);
        for (level, node) in way {
            self.free[level][node] = start + self.busy_clk;
        }
        start - clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_over_one_link_wait_for_each_other_and_others_do_not() {
        let network: Network = "2x2".parse().unwrap();
        let mut links = Links { busy_clk: 50, free: vec![vec![0; 4], vec![0; 2]] };
        assert_eq!(links.transfer(&network, 0, 1, 1000), 0);
        assert_eq!(links.transfer(&network, 2, 3, 1000), 0);
        // A transfer from 0 to 2 needs four links. Two of them are busy until clock 1050.
        assert_eq!(links.transfer(&network, 0, 2, 1010), 40);
        assert_eq!(links.transfer(&network, 3, 1, 1060), 40);
        assert_eq!(links.transfer(&network, 0, 1, 2000), 0);
    }
}
