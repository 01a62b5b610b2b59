//! The tree between processors: how many levels a message climbs, and which node is the home of a process (paper 5, 3.1
//! and 3.2).

use std::fmt;

/// Most processors of a machine.
pub const PROCESSORS_MAX: u32 = 4096;
/// Most levels of a tree.
const LEVELS_MAX: usize = 12;

/// A tree whose leaves are clusters. A cluster is a processor with its memory. Clusters are numbered from the left.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Network {
    text: String,
    /// For each level, the number of leaves below one node. Leaves have level 0.
    sizes: Vec<u32>,
}

/// Why a text is not a network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkError(String);

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "'{}' is no network; give the branches of each level from the root down, such as 16, 4x4 or 2x2x2x2: \
             2 to {PROCESSORS_MAX} a level, {LEVELS_MAX} levels and {PROCESSORS_MAX} processors at most",
            self.0
        )
    }
}

impl std::error::Error for NetworkError {}

impl std::str::FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let error = || NetworkError(text.to_owned());
        let branches = text.split('x').map(|part| part.parse::<u32>().ok().filter(|branches| *branches >= 2));
        let branches: Vec<u32> = branches.collect::<Option<_>>().ok_or_else(error)?;
        if branches.len() > LEVELS_MAX {
            return Err(error());
        }
        let mut sizes = vec![1u32];
        for &branches in branches.iter().rev() {
            let size = sizes[sizes.len() - 1].checked_mul(branches).filter(|size| *size <= PROCESSORS_MAX);
            sizes.push(size.ok_or_else(error)?);
        }
        Ok(Self { text: text.to_owned(), sizes })
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Network {
    /// Makes a tree with `clusters` leaves directly below the root.
    #[must_use]
    pub fn flat(clusters: u32) -> Self {
        Self { text: clusters.to_string(), sizes: vec![1, clusters.max(1)] }
    }

    /// Returns the number of clusters.
    #[must_use]
    pub fn clusters(&self) -> u32 {
        self.sizes[self.sizes.len() - 1]
    }

    /// Returns the number of levels above the leaves.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.sizes.len() as u32 - 1
    }

    /// Returns how many levels a message between two clusters climbs: the level of their lowest common node.
    #[must_use]
    pub fn levels(&self, a: u32, b: u32) -> u32 {
        self.sizes.iter().position(|size| a / size == b / size).unwrap_or_default() as u32
    }

    /// Returns the lowest level whose nodes have at least `processors` leaves. The home of a process that asks for
    /// `processors` is on this level.
    #[must_use]
    pub fn home_level(&self, processors: u32) -> u32 {
        self.sizes.iter().position(|size| *size >= processors).unwrap_or(self.sizes.len() - 1) as u32
    }

    /// Returns the clusters below the node of this level that contains `cluster`.
    #[must_use]
    pub fn below(&self, level: u32, cluster: u32) -> std::ops::Range<u32> {
        let size = self.sizes[level as usize];
        let first = cluster / size * size;
        first..first + size
    }

    /// Returns the number of the node of this level that contains `cluster`, counted from the left.
    #[must_use]
    pub(crate) fn node(&self, level: u32, cluster: u32) -> u32 {
        cluster / self.sizes[level as usize]
    }

    /// Returns the number of nodes of this level.
    #[must_use]
    pub(crate) fn nodes(&self, level: u32) -> u32 {
        self.clusters() / self.sizes[level as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_homes_follow_the_tree() {
        let net: Network = "2x4x2".parse().unwrap();
        assert_eq!((net.clusters(), net.height(), net.to_string()), (16, 3, "2x4x2".to_owned()));
        assert_eq!([net.levels(3, 3), net.levels(0, 1), net.levels(1, 2), net.levels(7, 8)], [0, 1, 2, 3]);
        assert_eq!([1, 2, 3, 8, 9, 16].map(|want| net.home_level(want)), [0, 1, 2, 2, 3, 3]);
        assert_eq!((net.below(2, 11), net.below(1, 11), net.node(2, 11), net.nodes(1)), (8..16, 10..12, 1, 8));
        let flat = Network::flat(5);
        assert_eq!((flat.levels(0, 4), flat.home_level(3), flat.below(1, 2)), (1, 1, 0..5));
    }

    #[test]
    fn what_is_no_network_is_refused_with_examples() {
        for text in ["", "1", "0", "x", "4x", "4x-4", "65x64", "4097", "2x2x2x2x2x2x2x2x2x2x2x2x2", "99999999999"] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.contains("2x2x2x2") && error.contains(&format!("'{text}'")), "{error}");
        }
        assert!("4096".parse::<Network>().is_ok());
    }
}
