//! Random signs: a hash of the seed, the region and the position in it, so that all ranks have the
//! same ones and none are stored.

/// The fractional part of the golden ratio: it makes neighbours differ in many bits.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The signs of one region.
#[derive(Clone, Copy)]
pub(super) struct Signs(u64);

impl Signs {
    #[inline(always)]
    pub(super) fn new(seed: u64, region: u64) -> Self {
        Self(mix64(seed ^ mix64(region.wrapping_add(GOLDEN))))
    }

    /// Word `i` of the region: 32 random bits. Multiplications of 32 bits, since vectors have them.
    #[inline(always)]
    pub(super) fn word(self, i: u32) -> u32 {
        let mut x = (self.0 as u32).wrapping_add(i.wrapping_mul(GOLDEN as u32));
        x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b) ^ (self.0 >> 32) as u32;
        x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
        x ^ x >> 16
    }
}

/// A permutation of all words in which every bit depends on every other.
#[inline(always)]
fn mix64(mut x: u64) -> u64 {
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_are_balanced_and_depend_on_everything() {
        let mut ones = [0u32; 32];
        let (mut by_seed, mut by_region, mut by_word) = (0, 0, 0);
        for region in 0..64 {
            for i in 0..64 {
                let word = Signs::new(7, region).word(i);
                (0..32).for_each(|bit| ones[bit] += word >> bit & 1);
                by_seed += (word ^ Signs::new(8, region).word(i)).count_ones();
                by_region += (word ^ Signs::new(7, region + 1).word(i)).count_ones();
                by_word += (word ^ Signs::new(7, region).word(i + 1)).count_ones();
            }
        }
        // 4096 fair coins are within 5 standard deviations of 2048, and 131072 of 65536.
        assert!(ones.iter().all(|n| n.abs_diff(2048) < 160), "{ones:?}");
        for changed in [by_seed, by_region, by_word] {
            assert!(changed.abs_diff(65536) < 905, "{changed}");
        }
    }
}
