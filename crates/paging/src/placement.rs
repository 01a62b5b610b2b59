//! Which of several memory servers a block of the far space goes to.

/// Spreads blocks over servers in proportion to their sizes, filling all of them evenly.
#[derive(Debug)]
pub struct Placement {
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    capacity: u64,
    used: u64,
}

impl Placement {
    /// Servers with so many blocks of room each.
    #[must_use]
    pub fn new(capacities: &[u64]) -> Self {
        Self { servers: capacities.iter().map(|&capacity| Server { capacity, used: 0 }).collect() }
    }

    /// The server for a new block: the one with the largest free share; none when all are full.
    pub fn place(&mut self) -> Option<usize> {
        let (index, _) = self.servers.iter().enumerate().filter(|(_, server)| server.used < server.capacity).max_by(
            |(a, x), (b, y)| {
                // Shares compared by cross-multiplication: exact, and free of division.
                let left = u128::from(x.capacity - x.used) * u128::from(y.capacity);
                let right = u128::from(y.capacity - y.used) * u128::from(x.capacity);
                left.cmp(&right).then(b.cmp(a))
            },
        )?;
        self.servers[index].used += 1;
        Some(index)
    }

    /// A block of this server is free again.
    pub fn free(&mut self, server: usize) {
        let server = &mut self.servers[server];
        debug_assert!(server.used > 0);
        server.used = server.used.saturating_sub(1);
    }

    /// Marks a server as having no more room than it uses now.
    pub fn close(&mut self, server: usize) {
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
