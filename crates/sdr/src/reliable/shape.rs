//! How a message is divided into chunks, and chunks into groups that share parity.

use std::ops::Range;

/// A message's chunks and groups. All but the last chunk have the same length, all but the last
/// group the same number of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub(crate) len: u64,
    pub(crate) chunk_bytes: u32,
    pub(crate) mtu: u32,
    /// Data chunks of a full group.
    pub(crate) k: u32,
    /// Parity chunks that a full group may have.
    pub(crate) m: u32,
}

impl Shape {
    /// Bytes of the message.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the message has no bytes. It still has one chunk.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of every chunk but the last.
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Payload of a packet.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }

    /// Data chunks of a full group.
    pub fn k(&self) -> u32 {
        self.k
    }

    /// Parity chunks that a full group may have.
    pub fn m(&self) -> u32 {
        self.m
    }

    /// Data chunks.
    pub fn chunks(&self) -> u32 {
        self.len.div_ceil(self.chunk_bytes.into()).max(1) as u32
    }

    /// Groups of chunks.
    pub fn groups(&self) -> u32 {
        self.chunks().div_ceil(self.k)
    }

    /// The data chunks of a group.
    pub fn group(&self, group: u32) -> Range<u32> {
        let first = group * self.k;
        first..(first + self.k).min(self.chunks())
    }

    /// The group of a data chunk.
    pub fn group_of(&self, chunk: u32) -> u32 {
        chunk / self.k
    }

    /// The bytes of a data chunk within the message.
    pub fn chunk(&self, chunk: u32) -> Range<u64> {
        let first = u64::from(chunk) * u64::from(self.chunk_bytes);
        first..(first + u64::from(self.chunk_bytes)).min(self.len)
    }

    /// The bytes of a group's data within the message.
    pub fn group_bytes(&self, group: u32) -> Range<u64> {
        let chunks = self.group(group);
        self.chunk(chunks.start).start..self.chunk(chunks.end - 1).end
    }

    /// Parity chunks of a group: fewer for a short last group, in proportion, but at least one.
    pub fn parity_chunks(&self, group: u32) -> u32 {
        let data = self.group(group).len() as u32;
        (self.m * data).div_ceil(self.k).min(self.m)
    }

    /// Bytes of each parity chunk of a group: as long as the longest data chunk, in whole packets.
    pub fn parity_bytes(&self, group: u32) -> u32 {
        let first = self.chunk(self.group(group).start);
        ((first.end - first.start) as u32).next_multiple_of(self.mtu)
    }

    /// Bytes of all data and all parity.
    pub fn coded_bytes(&self) -> u64 {
        let parity: u64 = (0..self.groups())
            .map(|g| u64::from(self.parity_chunks(g)) * u64::from(self.parity_bytes(g)))
            .sum();
        self.len + parity
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn chunks_and_groups_cover_the_message_exactly(
            len in 0u64..200_000, packets in 1u32..5, k in 1u32..10, m in 0u32..5,
        ) {
            let shape = Shape { len, chunk_bytes: packets * 256, mtu: 256, k, m };
            let mut at = 0;
            for group in 0..shape.groups() {
                prop_assert_eq!(shape.group_bytes(group).start, at);
                for chunk in shape.group(group) {
                    prop_assert_eq!(shape.group_of(chunk), group);
                    prop_assert_eq!(shape.chunk(chunk).start, at);
                    at = shape.chunk(chunk).end;
                    let bytes = shape.chunk(chunk).end - shape.chunk(chunk).start;
                    prop_assert!(bytes <= shape.parity_bytes(group).into());
                }
                prop_assert_eq!(shape.group_bytes(group).end, at);
                prop_assert_eq!(shape.parity_chunks(group) == 0, m == 0);
                prop_assert!(shape.parity_chunks(group) <= m);
                prop_assert!(shape.parity_bytes(group) <= shape.chunk_bytes);
            }
            prop_assert_eq!(at, len);
        }
    }
}
