//! The Internet checksum (RFC 1071).

/// A running ones' complement sum.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum(u64);

impl Sum {
    /// Adds `bytes` as big-endian words; an odd last byte is padded with a zero.
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let (words, last) = bytes.as_chunks::<2>();
        let sum: u64 = words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum();
        let last = last.first().map_or(0, |&byte| u64::from(byte) << 8);
        Self(self.0 + sum + last)
    }

    /// Adds one word.
    pub(crate) fn word(self, word: u16) -> Self {
        Self(self.0 + u64::from(word))
    }

    /// The checksum: the complement of the sum with its carries folded in.
    pub(crate) fn finish(self) -> u16 {
        let mut sum = self.0;
        while sum >> 16 != 0 {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}
