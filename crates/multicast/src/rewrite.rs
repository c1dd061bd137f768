//! The changes that turn a packet into a copy, and their effect on its ICRC.

use core::net::IpAddr;

use bowline_wire::{Bth, FlowKey, ICRC_LEN, PacketView, Qpn, Reth, icrc_replace};

use crate::table::Branch;

/// Offset of the destination QPN.
const QPN_AT: usize = 5;
const QPN_LEN: usize = 3;
/// Addresses, ports, length and checksum of UDP, and the BTH up to the QPN: the bytes of a rewrite
/// whose effect on the ICRC is constant, for IPv6. IPv4 needs fewer.
const SPAN_LEN: usize = 32 + 8 + QPN_AT + QPN_LEN;
/// Address and key of a RETH; the length stays.
const PLACE_LEN: usize = 12;
/// Packet lengths for which a branch caches the effect on the ICRC.
const KNOWN_LENGTHS: usize = 4;

/// The changes that turn a packet into the copy for one branch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edit {
    /// Addresses and ports of the copy.
    pub flow: FlowKey,
    qpn: Option<Qpn>,
    /// Where the RETH is, and its new address and key.
    place: Option<(usize, [u8; PLACE_LEN])>,
    icrc: u32,
}

impl Edit {
    /// The top byte of the copy's destination QPN, if it differs from the packet's.
    pub fn prefix(&self) -> Option<u8> {
        self.qpn.map(Qpn::prefix)
    }

    /// The changes that turn the copy back into the packet, which came with `flow`, for group `id`.
    pub(crate) fn inverse(&self, flow: FlowKey, id: Qpn, old: Option<&OldPlace>) -> Edit {
        let before = old.map(|old| (old.at, place_bytes(old.reth.va, old.reth.rkey)));
        let place = self.place.and(before);
        // The CRC is linear: the same difference leads back.
        Edit { flow, qpn: self.qpn.map(|_| id), place, icrc: self.icrc }
    }

    /// The changes that turn another copy of the packet, from which `back` leads back, into this
    /// one.
    pub fn after(self, back: &Edit) -> Edit {
        let (qpn, place) = (self.qpn.or(back.qpn), self.place.or(back.place));
        Edit { qpn, place, icrc: self.icrc ^ back.icrc, ..self }
    }

    /// Rewrites a packet, BTH to ICRC, which must be the one that this edit was made for.
    pub fn apply(&self, packet: &mut [u8]) {
        if let Some(qpn) = self.qpn
            && let Some(place) = packet.get_mut(QPN_AT..QPN_AT + QPN_LEN)
        {
            place.copy_from_slice(&qpn.get().to_be_bytes()[1..]);
        }
        if let Some((at, bytes)) = &self.place
            && let Some(place) = packet.get_mut(*at..*at + PLACE_LEN)
        {
            place.copy_from_slice(bytes);
        }
        if let Some(icrc) = packet.last_chunk_mut::<ICRC_LEN>() {
            *icrc = (u32::from_le_bytes(*icrc) ^ self.icrc).to_le_bytes();
        }
    }
}

/// A RETH to be rewritten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OldPlace {
    /// Its region in the group's table.
    pub(crate) region: usize,
    /// Where the RETH begins in the packet.
    pub(crate) at: usize,
    pub(crate) reth: Reth,
    /// First address of the region, as the sender addresses it.
    pub(crate) base: u64,
}

impl OldPlace {
    /// Where the RETH of a packet is.
    pub(crate) fn reth_at(packet: &PacketView<'_>) -> Option<usize> {
        packet.info().ext.reth.map(|at| Bth::LEN + usize::from(at))
    }
}

/// A branch and its cache.
#[derive(Debug)]
pub(crate) struct Rewriter {
    branch: Branch,
    /// The flow that `known` applies to.
    from: Option<FlowKey>,
    /// Packet lengths and the effect of rewriting addresses and QPN on their ICRCs; 0 marks an
    /// empty entry.
    known: [(usize, u32); KNOWN_LENGTHS],
    /// Which entry to replace next.
    oldest: usize,
}

impl Rewriter {
    pub(crate) fn new(branch: Branch) -> Rewriter {
        Rewriter { branch, from: None, known: [(0, 0); KNOWN_LENGTHS], oldest: 0 }
    }

    /// Where copies go.
    pub(crate) fn dst(&self) -> IpAddr {
        self.branch.dst
    }

    /// The edit for a packet of `len` bytes to the group `id`.
    pub(crate) fn edit(
        &mut self,
        from: &FlowKey,
        id: Qpn,
        len: usize,
        old: Option<&OldPlace>,
    ) -> Edit {
        let leaf = self.branch.leaf.as_ref();
        let (src, src_port) =
            self.branch.src.map_or((from.src, from.src_port), |origin| (origin.addr, origin.port));
        let flow = FlowKey { src, src_port, dst: self.branch.dst, dst_port: from.dst_port };
        let qpn = leaf.map(|leaf| leaf.qpn);
        let place = old.zip(leaf).and_then(|(old, leaf)| {
            let to = leaf.places.get(old.region)?;
            let va = to.va.wrapping_add(old.reth.va.wrapping_sub(old.base));
            Some((old, place_bytes(va, to.rkey)))
        });
        let mut icrc = self.constant(from, &flow, (id, qpn.unwrap_or(id)), len);
        if let Some((old, new)) = &place {
            let before = place_bytes(old.reth.va, old.reth.rkey);
            let behind = len.saturating_sub(old.at + PLACE_LEN + ICRC_LEN);
            icrc ^= icrc_replace(0, &before, new, behind);
        }
        let place = place.map(|(old, new)| (old.at, new));
        Edit { flow, qpn, place, icrc }
    }

    /// The effect of the change of addresses, port and QPN on the ICRC of a packet of this length.
    fn constant(&mut self, from: &FlowKey, to: &FlowKey, qpns: (Qpn, Qpn), len: usize) -> u32 {
        if self.from.as_ref() != Some(from) {
            self.from = Some(*from);
            self.known = Default::default();
        }
        if let Some((_, icrc)) = self.known.iter().find(|(known, _)| *known == len) {
            return *icrc;
        }
        let icrc = header_delta(from, to, qpns, len);
        self.known[self.oldest] = (len, icrc);
        self.oldest = (self.oldest + 1) % KNOWN_LENGTHS;
        icrc
    }
}

fn place_bytes(va: u64, rkey: u32) -> [u8; PLACE_LEN] {
    let mut bytes = [0; PLACE_LEN];
    bytes[..8].copy_from_slice(&va.to_be_bytes());
    bytes[8..].copy_from_slice(&rkey.to_be_bytes());
    bytes
}

fn header_delta(from: &FlowKey, to: &FlowKey, (old, new): (Qpn, Qpn), len: usize) -> u32 {
    let (before, used) = span(from, old);
    let (after, _) = span(to, new);
    let behind = len.saturating_sub(QPN_AT + QPN_LEN + ICRC_LEN);
    icrc_replace(0, &before[..used], &after[..used], behind)
}

/// Source address to QPN, as the ICRC covers them, with zeros for what no rewrite changes; and the
/// length of that.
fn span(flow: &FlowKey, qpn: Qpn) -> ([u8; SPAN_LEN], usize) {
    let mut bytes = [0; SPAN_LEN];
    let mut at = 0;
    let mut put = |part: &[u8]| {
        bytes[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    };
    for addr in [flow.src, flow.dst] {
        match addr {
            IpAddr::V4(v4) => put(&v4.octets()),
            IpAddr::V6(v6) => put(&v6.octets()),
        }
    }
    put(&flow.src_port.to_be_bytes());
    put(&flow.dst_port.to_be_bytes());
    put(&[0; 4 + QPN_AT]);
    put(&qpn.get().to_be_bytes()[1..]);
    (bytes, at)
}

#[cfg(test)]
mod tests {
    use bowline_wire::{Opcode, Packet, Psn, icrc_of};
    use proptest::prelude::*;

    use super::*;
    use crate::table::{Leaf, Origin, Place};
    use crate::testing::data_packet;

    fn addr(v6: bool, host: u16) -> IpAddr {
        if v6 {
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 7, host])
        } else {
            IpAddr::from([10, 1, (host >> 8) as u8, host as u8])
        }
    }

    proptest! {
        #[test]
        fn an_edited_packet_has_the_icrc_that_would_be_computed(
            v6: bool,
            opcode in prop::sample::select(vec![
                Opcode::RC_SEND_ONLY, Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE,
                Opcode::RC_WRITE_LAST_IMM, Opcode::RC_WRITE_ONLY, Opcode::RC_WRITE_ONLY_IMM,
            ]),
            lens in prop::collection::vec(0_usize..700, 1..12),
            ports: [u16; 2],
            hosts in prop::array::uniform4(any::<u16>()),
            (va, to_va, rkeys, qpn) in any::<(u64, u64, [u32; 2], u32)>(),
            (terminates, is_leaf, damage) in any::<(bool, bool, bool)>(),
        ) {
            let id = Qpn::new(0xfe_0007);
            let from = FlowKey {
                src: addr(v6, hosts[0]),
                dst: addr(v6, hosts[1]),
                src_port: ports[0],
                dst_port: 4791,
            };
            let places = vec![Place { va: to_va, rkey: rkeys[1] }];
            let leaf = Leaf { qpn: Qpn::new(qpn), places };
            let mut rewriter = Rewriter::new(Branch {
                dst: addr(v6, hosts[2]),
                src: terminates.then_some(Origin { addr: addr(v6, hosts[3]), port: ports[1] }),
                leaf: is_leaf.then_some(leaf),
            });
            // A second branch, whose copies are made of the first one's.
            let mut other = Rewriter::new(Branch {
                dst: addr(v6, hosts[3]),
                src: None,
                leaf: damage.then(|| Leaf {
                    qpn: Qpn::new(!qpn),
                    places: vec![Place { va: !to_va, rkey: !rkeys[1] }],
                }),
            });
            let base = va.wrapping_sub(24);
            // Lengths recur, as in bursts, so that both the cached and the computed path are taken.
            for len in lens.iter().chain(&lens) {
                let reth = Reth { va, rkey: rkeys[0], len: *len as u32 };
                let mut bytes = data_packet(&from, opcode, id, Psn::new(9), *len, reth);
                // Corruption in transit must stay detectable.
                if damage {
                    bytes[9] ^= 4;
                }
                let view = PacketView::parse(&bytes).expect("well formed");
                let at = OldPlace::reth_at(&view);
                let old = at.map(|at| OldPlace { region: 0, at, reth, base });
                let edit = rewriter.edit(&from, id, bytes.len(), old.as_ref());
                let before = bytes.clone();
                edit.apply(&mut bytes);
                let mut back = bytes.clone();
                let inverse = edit.inverse(from, id, old.as_ref());
                inverse.apply(&mut back);
                prop_assert_eq!(&back, &before);
                let other = other.edit(&from, id, bytes.len(), old.as_ref());
                other.apply(&mut back);
                let mut across = bytes.clone();
                other.after(&inverse).apply(&mut across);
                prop_assert_eq!(across, back);
                let view = PacketView::parse(&bytes).expect("well formed");
                prop_assert_eq!(view.dest_qpn(), if is_leaf { Qpn::new(qpn) } else { id });
                if let Some(reth) = view.reth().filter(|_| is_leaf) {
                    prop_assert_eq!((reth.va, reth.rkey), (to_va.wrapping_add(24), rkeys[1]));
                }
                let body = &bytes[..bytes.len() - ICRC_LEN];
                let is_right = icrc_of(&edit.flow, 0, body) == Packet::from(view).icrc;
                prop_assert_eq!(is_right, !damage);
            }
        }
    }
}
