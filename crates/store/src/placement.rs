//! Chooses the memory server for each block of the far address space.

/// Spreads blocks over servers in proportion to their room, so that all servers fill evenly. Other clients use the
/// servers too. So a server's later report of its room replaces the earlier one.
#[derive(Debug)]
pub(crate) struct Placement {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    /// The number of blocks that the server can hold, as far as known. Blocks in use are included.
    capacity: u64,
    used: u64,
    /// The maximum number of blocks that may be placed on this server.
    limit: u64,
}

impl Placement {
    /// Creates a placement for servers with these capacities, in blocks.
    #[must_use]
    pub(crate) fn new(capacities: &[u64]) -> Self {
        Self { servers: capacities.iter().map(|&capacity| Server { capacity, used: 0, limit: u64::MAX }).collect() }
    }

    /// Limits the number of blocks on a server, however much room the server has.
    pub(crate) fn limit(&mut self, server: usize, blocks: u64) {
        let server = &mut self.servers[server];
        server.limit = blocks;
        server.capacity = server.capacity.min(blocks);
    }

    /// Places a new block on the server with the largest free share of its capacity. Returns the server, or `None` if
    /// all are full.
    pub(crate) fn place(&mut self) -> Option<usize> {
        let (index, _) = self.servers.iter().enumerate().filter(|(_, server)| server.used < server.capacity).max_by(
            |(a, x), (b, y)| {
                // The shares are compared by cross-multiplication, which is exact and needs no division.
                let left = u128::from(x.capacity - x.used) * u128::from(y.capacity);
                let right = u128::from(y.capacity - y.used) * u128::from(x.capacity);
                left.cmp(&right).then(b.cmp(a))
            },
        )?;
        self.servers[index].used += 1;
        Some(index)
    }

    /// Places a new block on this server if more than `margin` blocks are free there. Returns true if it did so.
    pub(crate) fn follow(&mut self, server: usize, margin: u64) -> bool {
        let server = &mut self.servers[server];
        let follows = server.capacity - server.used > margin;
        server.used += u64::from(follows);
        follows
    }

    /// Frees a block of this server.
    pub(crate) fn free(&mut self, server: usize) {
        let server = &mut self.servers[server];
        debug_assert!(server.used > 0);
        server.used = server.used.saturating_sub(1);
    }

    /// Sets the number of blocks that a server can hold, including those in use.
    pub(crate) fn set_capacity(&mut self, server: usize, blocks: u64) {
        let server = &mut self.servers[server];
        server.capacity = blocks.min(server.limit).max(server.used);
    }

    /// Returns the number of blocks that all servers together can hold, and the number of blocks in use.
    #[must_use]
    pub(crate) fn capacity_and_used(&self) -> (u64, u64) {
        self.servers.iter().fold((0, 0), |(capacity, used), server| (capacity + server.capacity, used + server.used))
    }

    /// Returns the number of blocks that a server can hold, including those in use.
    #[must_use]
    pub(crate) fn capacity_of(&self, server: usize) -> u64 {
        self.servers[server].capacity
    }

    /// Marks a server as full. Sets its capacity to the number of blocks in use.
    pub(crate) fn close(&mut self, server: usize) {
        let server = &mut self.servers[server];
        server.capacity = server.used;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_spread_in_proportion_to_the_sizes() {
        let mut placement = Placement::new(&[100, 300]);
        let mut counts = [0; 2];
        for _ in 0..200 {
            counts[placement.place().expect("room is left")] += 1;
        }
        assert_eq!(counts, [50, 150]);
    }

    #[test]
    fn what_a_server_says_of_its_room_counts_from_then_on() {
        let mut placement = Placement::new(&[10, 10]);
        for _ in 0..10 {
            placement.place();
        }
        // Other clients use all room of the first server, and have freed some of the second.
        placement.set_capacity(0, 3);
        placement.set_capacity(1, 8);
        assert_eq!(
            (placement.capacity_of(0), placement.capacity_of(1), placement.capacity_and_used()),
            (5, 8, (13, 10))
        );
        assert_eq!([(); 4].map(|()| placement.place()), [Some(1), Some(1), Some(1), None]);
        // The limit still applies when the server reports more room.
        placement.limit(0, 6);
        placement.set_capacity(0, 1000);
        assert_eq!((placement.place(), placement.place()), (Some(0), None));
    }

    #[test]
    fn a_full_server_is_passed_over_and_a_freed_block_is_used_again() {
        let mut placement = Placement::new(&[1, 2]);
        for _ in 0..3 {
            assert!(placement.place().is_some());
        }
        assert_eq!(placement.place(), None);
        placement.free(0);
        assert_eq!(placement.place(), Some(0));
        placement.free(1);
        placement.close(1);
        assert_eq!(placement.place(), None);
    }
}
