//! The geometry: regions of the tensor, groups of regions, packets of a group.

use std::ops::Range;

/// How regions are distributed over packets.
///
/// A region is transformed on its own and consists of `units` units. A group is `group_regions`
/// regions; it is stored unit by unit, each for all its regions, so its first packet has the first
/// unit of each region, and so on. Regions that do not fill a group belong to the last one: a
/// packet never has two units of a region, unless there are fewer regions than in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Geometry {
    pub(super) regions: usize,
    pub(super) units: usize,
    pub(super) unit_bytes: usize,
    pub(super) group_regions: usize,
}

impl Geometry {
    pub(super) fn region_bytes(&self) -> usize {
        self.units * self.unit_bytes
    }

    pub(super) fn encoded_len(&self) -> usize {
        self.regions * self.region_bytes()
    }

    pub(super) fn packet_bytes(&self) -> usize {
        self.group_regions * self.unit_bytes
    }

    pub(super) fn packets(&self) -> usize {
        self.encoded_len().div_ceil(self.packet_bytes())
    }

    /// A packet's bytes; empty beyond the last packet.
    pub(super) fn packet(&self, index: usize) -> Range<usize> {
        let (bytes, len) = (self.packet_bytes(), self.encoded_len());
        let start = index.saturating_mul(bytes).min(len);
        start..start.saturating_add(bytes).min(len)
    }

    pub(super) fn groups(&self) -> usize {
        (self.regions / self.group_regions).max(usize::from(self.regions > 0))
    }

    /// The regions of a group.
    pub(super) fn group(&self, index: usize) -> Range<usize> {
        assert!(index < self.groups(), "group {index} of {}", self.groups());
        let first = index * self.group_regions;
        let last = index + 1 == self.groups();
        first..if last { self.regions } else { first + self.group_regions }
    }

    /// All packets, in an order that spaces those of a group as far apart as possible.
    pub(super) fn turns(&self) -> impl Iterator<Item = usize> + use<> {
        let (packets, groups, units) = (self.packets(), self.groups(), self.units);
        // The last group has the remaining packets, up to twice as many as the others.
        let most = packets - groups.saturating_sub(1) * units;
        (0..most.max(units)).flat_map(move |turn| {
            (0..groups)
                .filter(move |group| turn < units || group + 1 == groups)
                .map(move |group| group * units + turn)
                .filter(move |packet| *packet < packets)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn geometry(regions: usize) -> Geometry {
        Geometry { regions, units: 64, unit_bytes: 64, group_regions: 16 }
    }

    #[test]
    fn groups_cover_all_regions() {
        for regions in 0..100 {
            let g = geometry(regions);
            let all: Vec<usize> = (0..g.groups()).flat_map(|i| g.group(i)).collect();
            assert_eq!(all, (0..regions).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_packet_has_its_turn_once() {
        for regions in 0..100 {
            let g = geometry(regions);
            let mut turns: Vec<usize> = g.turns().collect();
            turns.sort_unstable();
            assert_eq!(turns, (0..g.packets()).collect::<Vec<_>>(), "{regions}");
        }
    }

    #[test]
    fn packets_of_a_group_are_apart() {
        let g = geometry(16 * 10);
        let turns: Vec<usize> = g.turns().collect();
        for ten in turns.windows(10) {
            let mut groups: Vec<usize> = ten.iter().map(|packet| packet / 64).collect();
            groups.sort_unstable();
            groups.dedup();
            assert_eq!(groups.len(), 10);
        }
    }
}
