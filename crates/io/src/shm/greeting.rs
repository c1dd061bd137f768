//! The message with which a writer offers a ring.

use std::net::{IpAddr, Ipv6Addr};

use bowline_nic::PeerEngine;

use super::ring::is_capacity;

const MAGIC: [u8; 8] = *b"bwlring1";
pub(super) const GREETING_LEN: usize = 40;
/// The reader's reply if it accepts the ring.
pub(super) const ANSWER: [u8; 8] = *b"bwlring+";
/// The writer's message to wake its reader.
pub(super) const WAKE: [u8; 1] = [1];

/// The offer of a ring from one engine to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    /// The writer.
    pub(super) from: PeerEngine,
    /// The reader's prefix.
    pub(super) to_prefix: u8,
    /// The ring's capacity in bytes.
    pub(super) capacity: usize,
}

impl Greeting {
    pub(super) fn emit(&self) -> [u8; GREETING_LEN] {
        let (addr, port, prefix) = self.from;
        let addr = match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut out = [0; GREETING_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[8..24].copy_from_slice(&addr.octets());
        out[24..26].copy_from_slice(&port.to_le_bytes());
        out[26] = prefix;
        out[27] = self.to_prefix;
        out[32..].copy_from_slice(&(self.capacity as u64).to_le_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Greeting> {
        let bytes: &[u8; GREETING_LEN] = bytes.try_into().ok()?;
        let addr = Ipv6Addr::from(*bytes[8..].first_chunk::<16>()?);
        let capacity = u64::from_le_bytes(*bytes[32..].first_chunk()?);
        let right = bytes[..8] == MAGIC && bytes[28..32] == [0; 4] && is_capacity(capacity);
        right.then_some(Greeting {
            from: (
                IpAddr::V6(addr).to_canonical(),
                u16::from_le_bytes([bytes[24], bytes[25]]),
                bytes[26],
            ),
            to_prefix: bytes[27],
            capacity: usize::try_from(capacity).ok()?,
        })
    }
}

/// The name under which an engine listens for rings.
pub(super) fn name_of(uid: u32, (addr, udp_port, prefix): PeerEngine) -> String {
    format!("bowline-shm/{uid}/{addr}/{udp_port}/{prefix:02x}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_greeting_is_read_as_it_was_written(
            addr: [u8; 4], port: u16, prefix: u8, to_prefix: u8, shift in 16u32..=26
        ) {
            let from = (IpAddr::from(addr), port, prefix);
            let greeting = Greeting { from, to_prefix, capacity: 1 << shift };
            prop_assert_eq!(Greeting::parse(&greeting.emit()), Some(greeting));
        }

        #[test]
        fn any_bytes_are_a_greeting_or_none(bytes: Vec<u8>) {
            if let Some(greeting) = Greeting::parse(&bytes) {
                prop_assert_eq!(greeting.emit().to_vec(), bytes);
            }
        }
    }

    #[test]
    fn a_ring_of_a_foolish_size_is_refused() {
        let from = (IpAddr::from([127, 0, 0, 1]), 4791, 1);
        for capacity in [0, 1, 4096, (1 << 20) + 1, 1 << 40] {
            let greeting = Greeting { from, to_prefix: 2, capacity };
            assert_eq!(Greeting::parse(&greeting.emit()), None, "{capacity}");
        }
    }
}
