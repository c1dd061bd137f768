//! What the tests of several modules need.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU32, Ordering};

use bowline_nic::{FrameMeta, HeaderBuf, IpId, TxBatch, pad_of};
use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn, icrc_of};

/// A loopback address that no other test uses: by process, and by call within it.
pub(crate) fn fresh_addr() -> IpAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let call = NEXT.fetch_add(1, Ordering::Relaxed);
    let pid = std::process::id();
    // 22 bits within 127.64.0.0/10: odd, so neither a network nor a usual 127.0.0.x.
    let host = (pid.wrapping_mul(61).wrapping_add(call)) & 0x001f_ffff;
    Ipv4Addr::from(0x7f40_0000 | host << 1 | 1).into()
}

/// A UC WRITE_ONLY header without RETH is no legal packet, but all that a port looks at.
pub(crate) fn header(qpn: u32, psn: u32, payload_len: usize) -> HeaderBuf {
    let mut bth = Bth::new(Opcode(0x07), Qpn::new(qpn), Psn::new(psn));
    bth.pad = pad_of(payload_len);
    HeaderBuf::new(&bth)
}

/// Whole packets with a recognisable payload, pushed to a batch the way middleware does: BTH,
/// `payload_len` bytes, ICRC. Packet `i` has PSN `first_psn + i`.
pub(crate) fn push_packets(
    batch: &mut TxBatch,
    key: &FlowKey,
    qpn: u32,
    first_psn: u32,
    lens: &[usize],
) {
    for (i, &len) in lens.iter().enumerate() {
        let psn = first_psn + i as u32;
        let mut frame = header(qpn, psn, len).as_slice().to_vec();
        frame.extend((0..len).map(|b| (b as u32).wrapping_mul(31).wrapping_add(psn) as u8));
        let icrc = icrc_of(key, 0, &frame);
        frame.extend_from_slice(&icrc.to_le_bytes());
        batch.push_owned(key, 0, 0, frame);
    }
}

/// Whether a received frame's ICRC is that of its envelope, guessed identification included.
pub(crate) fn icrc_is_right(meta: &FrameMeta, dst_port: u16, frame: &[u8]) -> bool {
    let (IpId::Known(id) | IpId::Guess(id)) = meta.ip_id;
    let key = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port, dst_port };
    let Some((body, trailer)) = frame.split_last_chunk::<4>() else {
        return false;
    };
    icrc_of(&key, id, body) == u32::from_le_bytes(*trailer)
}
