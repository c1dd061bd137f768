//! Which ranks share a host.

use std::collections::BTreeMap;

use crate::Rank;

/// How many ranks a group has, and which of them share a host. All ranks must have the same view,
/// because they choose algorithms by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    ranks: u32,
    grid: Option<Grid>,
}

/// Several hosts with the same number of ranks each, at least two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// The ranks, host by host. Hosts are ordered by their first rank.
    members: Vec<Rank>,
    /// Number of ranks on each host.
    each: usize,
    /// Number of ranks on each host that talk to other hosts.
    speakers: usize,
}

impl Hosts {
    /// All ranks are on one host, or their hosts are unknown.
    pub fn one(ranks: u32) -> Hosts {
        Hosts { ranks, grid: None }
    }

    /// Takes one value per rank, in rank order. Ranks that share a host have equal values: a
    /// number, a name or an address.
    pub fn new<H: Ord>(hosts: impl IntoIterator<Item = H>) -> Hosts {
        let mut numbers = BTreeMap::new();
        let mut members: Vec<Vec<Rank>> = Vec::new();
        let mut ranks = 0;
        for host in hosts {
            let number = *numbers.entry(host).or_insert(members.len());
            if number == members.len() {
                members.push(Vec::new());
            }
            members[number].push(ranks);
            ranks += 1;
        }
        let each = members.first().map_or(0, Vec::len);
        let is_grid = members.len() > 1 && each > 1 && members.iter().all(|of| of.len() == each);
        Hosts {
            ranks,
            grid: is_grid.then(|| Grid { members: members.concat(), each, speakers: each }),
        }
    }

    /// Only the first `speakers` ranks of each host talk to other hosts, where hosts reduce first;
    /// at least one, and all ranks otherwise.
    #[must_use]
    pub fn with_speakers(mut self, speakers: usize) -> Hosts {
        if let Some(grid) = &mut self.grid {
            grid.speakers = speakers.clamp(1, grid.each);
        }
        self
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// How many hosts there are, and how many ranks on each; `None` if these are not all equal, or
    /// there is one host, or one rank on each.
    pub fn shape(&self) -> Option<(usize, usize)> {
        self.grid().map(|grid| (grid.hosts(), grid.each()))
    }

    /// How many ranks of each host talk to other hosts, where hosts reduce first; `None` as for
    /// [`shape`](Hosts::shape).
    pub fn speakers(&self) -> Option<usize> {
        self.grid().map(Grid::speakers)
    }

    /// The hosts, if there are several with the same number of ranks each, at least two.
    pub(crate) fn grid(&self) -> Option<&Grid> {
        self.grid.as_ref()
    }
}

impl Grid {
    /// The number of hosts.
    pub(crate) fn hosts(&self) -> usize {
        self.members.len() / self.each
    }

    /// The number of ranks on each host.
    pub(crate) fn each(&self) -> usize {
        self.each
    }

    /// The number of ranks on each host that talk to other hosts: those with the lowest indices.
    pub(crate) fn speakers(&self) -> usize {
        self.speakers
    }

    /// The ranks, host by host.
    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The ranks of a rank's host.
    ///
    /// # Panics
    /// If the rank is not in the group.
    pub(crate) fn beside(&self, rank: Rank) -> &[Rank] {
        let (host, _) = self.place(rank);
        &self.members[host * self.each..][..self.each]
    }

    /// The rank at this index on a host.
    pub(crate) fn rank(&self, host: usize, index: usize) -> Rank {
        self.members[host * self.each + index]
    }

    /// The host of a rank, and its index there.
    ///
    /// # Panics
    /// If the rank is not in the group.
    pub(crate) fn place(&self, rank: Rank) -> (usize, usize) {
        let at = self.members.iter().position(|member| *member == rank);
        let at = at.expect("a grid has all ranks");
        (at / self.each, at % self.each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_is_several_hosts_with_as_many_ranks_each() {
        assert_eq!(Hosts::new(["a"; 4]), Hosts::one(4), "one host");
        assert_eq!(Hosts::new(0..4), Hosts::one(4), "one rank on each");
        assert_eq!(Hosts::new([0, 0, 1]), Hosts::one(3), "not as many");
        assert_eq!(Hosts::new([0; 0]), Hosts::one(0));
        let hosts = Hosts::new(["z", "a", "a", "z", "z", "a"]);
        let grid = hosts.grid().unwrap();
        assert_eq!((hosts.ranks(), hosts.shape()), (6, Some((2, 3))));
        assert_eq!(grid.members(), [0, 3, 4, 1, 2, 5], "by first ranks, not by names");
        for rank in 0..6 {
            let (host, index) = grid.place(rank);
            assert_eq!(grid.rank(host, index), rank);
            assert_eq!(grid.beside(rank)[index], rank);
        }
        let renamed = Hosts::new([7, 9, 9, 7, 7, 9]);
        assert_eq!(hosts, renamed, "names do not matter");
    }
}
