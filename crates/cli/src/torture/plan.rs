//! The seeded plan: which harm comes next, to which servers, and how long it lasts.

use std::time::Duration;

use crate::bench::mix;

/// A kind of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// SIGKILL to a server, and a new server at its address.
    Kill,
    /// SIGTERM to a server, and a new server at its address.
    Restart,
    /// SIGSTOP to a server, and SIGCONT after a while.
    Stop,
    /// Nothing passes a server's link for a while.
    Partition,
    /// A server's link is closed.
    Cut,
    /// A bit of what passes a server's link is flipped.
    Corrupt,
}

impl Kind {
    pub(super) const ALL: [Kind; 6] =
        [Kind::Kill, Kind::Stop, Kind::Restart, Kind::Partition, Kind::Cut, Kind::Corrupt];

    /// The name of one harm of this kind.
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Kill => "kill",
            Kind::Restart => "restart",
            Kind::Stop => "stop",
            Kind::Partition => "partition",
            Kind::Cut => "cut",
            Kind::Corrupt => "corruption",
        }
    }

    /// Whether the harm needs a relay between the run and the server.
    fn needs_relay(self) -> bool {
        matches!(self, Kind::Partition | Kind::Cut | Kind::Corrupt)
    }
}

/// One harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Harm {
    pub(super) kind: Kind,
    /// The indices of the servers, in order.
    pub(super) servers: Vec<usize>,
    /// How long a server is away, stopped or cut off.
    pub(super) time: Duration,
    /// A number for further choices.
    pub(super) number: u64,
}

/// Whether a relay is between the run and this server.
pub(super) fn has_relay(server: usize) -> bool {
    server % 2 == 1
}

/// The plan. Equal seeds give equal harms.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    random: Random,
    /// The kinds of the present turn that are still to come. In each turn, each kind comes once.
    deck: Vec<Kind>,
}

impl Plan {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random(mix(seed)), deck: Vec::new() }
    }

    /// Returns the next harm to one of `servers` servers. A kill hits up to `losses_max` servers at once.
    pub(super) fn next(&mut self, servers: usize, losses_max: usize) -> Harm {
        if self.deck.is_empty() {
            self.deck = Kind::ALL.to_vec();
        }
        let kind = self.deck.swap_remove(self.random.below(self.deck.len() as u64) as usize);
        let mut choices: Vec<usize> = (0..servers).filter(|&index| !kind.needs_relay() || has_relay(index)).collect();
        let wanted = if kind == Kind::Kill { 1 + self.random.below(losses_max.max(1) as u64) as usize } else { 1 };
        let mut chosen = Vec::new();
        while chosen.len() < wanted && !choices.is_empty() {
            chosen.push(choices.swap_remove(self.random.below(choices.len() as u64) as usize));
        }
        chosen.sort_unstable();
        let (least_ms, span_ms) = match kind {
            Kind::Kill | Kind::Restart => (0, 1500),
            _ => (200, 2800),
        };
        let time = Duration::from_millis(least_ms + self.random.below(span_ms + 1));
        Harm { kind, servers: chosen, time, number: self.random.next() }
    }
}

/// Seeded random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Returns a number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_harms_and_each_turn_has_every_kind() {
        let harms = |seed: u64| {
            let mut plan = Plan::new(seed);
            (0..60).map(|_| plan.next(5, 2)).collect::<Vec<_>>()
        };
        assert_eq!(harms(7), harms(7));
        assert_ne!(harms(7), harms(8));
        for turn in harms(7).chunks(Kind::ALL.len()) {
            let mut kinds: Vec<Kind> = turn.iter().map(|harm| harm.kind).collect();
            kinds.sort_unstable();
            let mut all = Kind::ALL.to_vec();
            all.sort_unstable();
            assert_eq!(kinds, all);
        }
    }

    #[test]
    fn no_harm_hits_more_servers_than_may_be_lost() {
        let mut plan = Plan::new(1);
        for _ in 0..600 {
            let harm = plan.next(6, 2);
            let most = if harm.kind == Kind::Kill { 2 } else { 1 };
            assert!((1..=most).contains(&harm.servers.len()), "{harm:?}");
            assert!(harm.servers.is_sorted_by(|a, b| a < b) && harm.servers.iter().all(|&server| server < 6));
            assert!(!harm.kind.needs_relay() || harm.servers.iter().all(|&server| has_relay(server)), "{harm:?}");
            assert!(harm.time <= Duration::from_secs(3));
            assert!(harm.kind != Kind::Stop || harm.time >= Duration::from_millis(200));
        }
    }
}
