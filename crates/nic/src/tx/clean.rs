//! Paths that cannot corrupt a packet, so that its ICRC need not be computed.

use core::net::IpAddr;

/// A peer engine: its address, its UDP port, and the top byte of its QPNs.
pub type PeerEngine = (IpAddr, u16, u8);

/// The peers that a port reaches through memory.
///
/// Packets for them have a zero ICRC field, and arrive as
/// [`IpId::Unsummed`](crate::IpId::Unsummed). Otherwise they look as on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanPaths {
    /// Sorted.
    peers: Vec<PeerEngine>,
}

impl CleanPaths {
    /// Paths to these peers.
    pub fn new(peers: impl IntoIterator<Item = PeerEngine>) -> CleanPaths {
        let mut peers: Vec<PeerEngine> = peers.into_iter().collect();
        peers.sort_unstable();
        peers.dedup();
        CleanPaths { peers }
    }

    /// Whether the path to a peer is clean.
    #[inline]
    pub fn contains(&self, peer: PeerEngine) -> bool {
        self.peers.binary_search(&peer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bowline_wire::{Bth, FlowKey, ICRC_LEN, Opcode, Psn, Qpn, ROCE_UDP_PORT, icrc_of};

    use super::*;
    use crate::memory::Segment;
    use crate::tx::{Flow, HeaderBuf, TxBatch, TxCaps};

    fn flow_to(last: u8) -> Flow {
        let [src, dst] = [1, last].map(|i| IpAddr::from([10, 0, 0, i]));
        let port = ROCE_UDP_PORT;
        Flow::new(FlowKey { src, dst, src_port: port, dst_port: port }, 0)
    }

    fn header(prefix: u32, psn: u32) -> HeaderBuf {
        let qpn = Qpn::new(prefix << 16 | 1);
        HeaderBuf::new(&Bth::new(Opcode::RC_WRITE_MIDDLE, qpn, Psn::new(psn)))
    }

    #[test]
    fn only_packets_for_peers_in_memory_go_without_an_icrc() {
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_000 };
        let mut batch = TxBatch::new(caps, 64);
        let peer = (IpAddr::from([10, 0, 0, 2]), ROCE_UDP_PORT, 3);
        batch.set_clean_paths(Some(&Arc::new(CleanPaths::new([peer]))));
        let payload = [7; 256];
        // The address and the engine at it decide.
        for (dst, prefix) in [(2, 3), (2, 4), (3, 3)] {
            let mut flow = flow_to(dst);
            batch.push(&mut flow, 0, &header(prefix, 0), &[Segment::of_slice(&payload)]);
            batch.push_run(&mut flow, 0, &header(prefix, 1), Segment::of_slice(&payload), 128);
            batch.push_late(&mut flow, 0, &header(prefix, 3), &[1; 300]);
        }
        batch.append_late();
        let mut unsummed = 0;
        for burst in batch.bursts() {
            let clean = burst.dst == peer.0 && burst.prefix() == peer.2;
            assert_eq!(burst.is_summed(), !clean);
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let (body, icrc) = batch.bytes(packet).split_last_chunk::<ICRC_LEN>().unwrap();
                let flow = flow_to(if burst.dst == peer.0 { 2 } else { 3 });
                let wanted = if clean { 0 } else { icrc_of(flow.key(), id as u16, body) };
                assert_eq!(u32::from_le_bytes(*icrc), wanted);
                unsummed += usize::from(clean);
            }
        }
        assert_eq!(unsummed, 4);
    }

    #[test]
    fn a_packet_that_middleware_sends_on_stays_as_it_was_made() {
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_000 };
        let mut batch = TxBatch::new(caps, 64);
        let key = *flow_to(2).key();
        let frame = [0; 64];
        batch.push_unsummed(&key, 0, &frame);
        batch.push_unsummed(&key, 0, &frame);
        batch.push_summed(&key, 0, 0, &frame);
        let summed: Vec<_> =
            batch.bursts().iter().map(|b| (b.is_summed(), b.packet_count())).collect();
        assert_eq!(summed, [(false, 2), (true, 1)]);
    }
}
