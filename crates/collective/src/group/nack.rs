//! The missing ranges of a message as a bitmap.
//!
//! A bit stands for a granule: a packet, or several if a slot has too many packets. Ranges are
//! rounded outwards.

use std::ops::Range;

use bowline_nic::Mtu;

/// Size of the area for the bitmap of one slot, in bytes.
pub(super) const AREA_BYTES: usize = 256;

/// How the bytes of a slot map to the bits of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granules {
    granule_bytes: u32,
    count: u32,
}

impl Granules {
    pub(super) fn new(mtu: Mtu, slot_bytes: u32) -> Granules {
        let mut granule_bytes = mtu.bytes();
        while slot_bytes.div_ceil(granule_bytes) > 8 * AREA_BYTES as u32 {
            granule_bytes *= 2;
        }
        Granules { granule_bytes, count: slot_bytes.div_ceil(granule_bytes) }
    }

    /// Length of a request in bytes.
    pub(super) fn bytes(self) -> usize {
        self.count.div_ceil(8) as usize
    }

    /// Encodes a request for these ranges, or for everything.
    pub(super) fn encode(self, missing: Option<&[Range<u32>]>) -> Vec<u8> {
        let mut bits = vec![0u8; self.bytes()];
        let everything = 0..self.count * self.granule_bytes;
        let everything = [everything];
        for range in missing.unwrap_or(&everything).iter().filter(|range| !range.is_empty()) {
            let first = range.start / self.granule_bytes;
            let last = ((range.end - 1) / self.granule_bytes).min(self.count - 1);
            for granule in first..=last {
                bits[granule as usize / 8] |= 1 << (granule % 8);
            }
        }
        bits
    }

    /// The ranges of a request, with adjacent ones merged. They may reach beyond the end of a
    /// message.
    pub(super) fn decode(self, bits: &[u8]) -> Vec<Range<u32>> {
        let is_set = |granule: &u32| {
            bits.get(*granule as usize / 8).is_some_and(|byte| byte >> (granule % 8) & 1 != 0)
        };
        let mut ranges: Vec<Range<u32>> = Vec::new();
        for granule in (0..self.count).filter(is_set) {
            let (start, end) = (granule * self.granule_bytes, (granule + 1) * self.granule_bytes);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_come_back_rounded_to_packets() {
        let granules = Granules::new(Mtu::B1024, 10_000);
        assert_eq!(granules.bytes(), 2);
        let missing = [1024..2048, 2048..3000, 9_216..10_000];
        assert_eq!(granules.decode(&granules.encode(Some(&missing))), [1024..3072, 9_216..10_240]);
        assert_eq!(granules.decode(&granules.encode(Some(&[]))), []);
        let all = 0..10_240;
        assert_eq!(granules.decode(&granules.encode(None)), [all]);
    }

    #[test]
    fn requests_for_long_slots_are_coarse() {
        let granules = Granules::new(Mtu::B256, 16 << 20);
        assert_eq!(granules.bytes(), AREA_BYTES);
        let (asked, one) = (9_000..9_001, 8192..16_384);
        assert_eq!(granules.decode(&granules.encode(Some(&[asked]))), [one]);
        let beyond = (16 << 20) - 1..(16 << 20) + 9;
        assert_eq!(granules.decode(&granules.encode(Some(&[beyond]))).len(), 1);
    }
}
