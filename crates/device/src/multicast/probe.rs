//! Packets that show that a multicast address reaches its members.

use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn, write_icrc};

/// The secret number of a group's probes, from the authenticated set-up connection.
pub type Nonce = [u8; 16];

/// BTH and DETH. The opcode is that of a datagram, which no group carries: a late probe is dropped.
const HEADERS_LEN: usize = 20;
/// Everything that a group's packet may have besides its payload: BTH, RETH, immediate data, ICRC.
const MOST_OVERHEAD: usize = 12 + 16 + 4 + 4;

/// A probe as long as the longest packet of a group with this MTU: a path that carries only shorter
/// ones does not carry the group.
pub(super) fn probe(flow: &FlowKey, id: Qpn, nonce: &Nonce, mtu_bytes: u32) -> Vec<u8> {
    let mut bytes = vec![0; mtu_bytes as usize + MOST_OVERHEAD];
    if let Some(bth) = bytes.first_chunk_mut() {
        Bth::new(Opcode::UD_SEND_ONLY, id, Psn::new(0)).emit(bth);
    }
    bytes[HEADERS_LEN..HEADERS_LEN + nonce.len()].copy_from_slice(nonce);
    write_icrc(flow, 0, &mut bytes);
    bytes
}

/// Whether a frame is a probe with this number.
pub(super) fn is_probe(frame: &[u8], nonce: &Nonce) -> bool {
    frame.first() == Some(&Opcode::UD_SEND_ONLY.0)
        && frame.get(HEADERS_LEN..).is_some_and(|body| body.starts_with(nonce))
}
