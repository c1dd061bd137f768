//! What the store holds for a connection: its spare, and how to reach the agent that manages it.

use core::net::IpAddr;

use bowline_wire::Qpn;

/// One end of a connection, as its peer needs to know it. It is published under the address and QPN
/// that programs exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Addresses of the two NICs.
    pub addrs: [IpAddr; 2],
    /// The connection's QPNs on them.
    pub qpns: [Qpn; 2],
    /// The agent's QPNs on them.
    pub agents: [Qpn; 2],
    /// The agent's Q_Key.
    pub qkey: u32,
    /// The token that messages about this connection must carry.
    pub token: u128,
    /// Its memory has different keys on the second NIC than on the first: see `mr/` in the store.
    pub keys_differ: bool,
}

/// Bytes that are not an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid store entry: another program or another release may be using the same job name")]
pub struct BadEntry;

/// The first byte: whether keys are the same on both NICs.
const SAME_KEYS: u8 = 1;
const OTHER_KEYS: u8 = 2;
const LEN: usize = 1 + 2 * (17 + 4 + 4) + 4 + 16;

impl Entry {
    /// Encodes the entry for the store.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LEN);
        out.push(if self.keys_differ { OTHER_KEYS } else { SAME_KEYS });
        for i in 0..2 {
            match self.addrs[i] {
                IpAddr::V4(v4) => {
                    out.push(4);
                    out.extend_from_slice(&v4.octets());
                    out.extend_from_slice(&[0; 12]);
                }
                IpAddr::V6(v6) => {
                    out.push(6);
                    out.extend_from_slice(&v6.octets());
                }
            }
            out.extend_from_slice(&self.qpns[i].get().to_be_bytes());
            out.extend_from_slice(&self.agents[i].get().to_be_bytes());
        }
        out.extend_from_slice(&self.qkey.to_be_bytes());
        out.extend_from_slice(&self.token.to_be_bytes());
        out
    }

    /// Decodes what [`Entry::encode`] wrote.
    pub fn decode(bytes: &[u8]) -> Result<Entry, BadEntry> {
        let bytes: &[u8; LEN] = bytes.try_into().map_err(|_| BadEntry)?;
        let keys_differ = match bytes[0] {
            SAME_KEYS => false,
            OTHER_KEYS => true,
            _ => return Err(BadEntry),
        };
        let rail = |i: usize| &bytes[1 + i * 25..][..25];
        let addr = |i: usize| {
            let (family, addr) = (rail(i)[0], &rail(i)[1..17]);
            match family {
                4 => <[u8; 4]>::try_from(&addr[..4]).map(IpAddr::from).map_err(|_| BadEntry),
                6 => <[u8; 16]>::try_from(addr).map(IpAddr::from).map_err(|_| BadEntry),
                _ => Err(BadEntry),
            }
        };
        let qpn = |i: usize, at: usize| {
            let number = be32(&rail(i)[at..]);
            if number > 0xff_ffff { Err(BadEntry) } else { Ok(Qpn::new(number)) }
        };
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[LEN - 16..]);
        Ok(Entry {
            addrs: [addr(0)?, addr(1)?],
            qpns: [qpn(0, 17)?, qpn(1, 17)?],
            agents: [qpn(0, 21)?, qpn(1, 21)?],
            qkey: be32(&bytes[51..]),
            token: u128::from_be_bytes(token),
            keys_differ,
        })
    }
}

fn be32(bytes: &[u8]) -> u32 {
    bytes[..4].iter().fold(0, |n, b| n << 8 | u32::from(*b))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn qpn() -> impl Strategy<Value = Qpn> {
        (0_u32..1 << 24).prop_map(Qpn::new)
    }

    proptest! {
        #[test]
        fn an_entry_survives_the_store(
            v4: [u8; 4],
            v6: [u8; 16],
            qpns in [qpn(), qpn()],
            agents in [qpn(), qpn()],
            qkey: u32,
            token: u128,
            keys_differ: bool,
        ) {
            let addrs = [v4.into(), v6.into()];
            let entry = Entry { addrs, qpns, agents, qkey, token, keys_differ };
            prop_assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
        }

        #[test]
        fn other_bytes_are_refused_or_read_never_worse(bytes: Vec<u8>, cut in 0_usize..80) {
            _ = Entry::decode(&bytes);
            _ = Entry::decode(&bytes[..cut.min(bytes.len())]);
        }
    }
}
