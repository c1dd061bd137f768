//! Probes: packets by which a process learns its index in the group of sockets.
//!
//! The kernel moves the last socket of a group into the place of one that closes, and tells nobody.
//! A probe for index `i` is steered to whatever socket is at `i`; whoever receives it is there. A
//! probe past the end of the group is steered by its flow, and as all probes of a round have the
//! same flow they reach one socket, which has a probe of its own with a smaller index: of the
//! probes that a process gets in a round, the smallest is true.

use bowline_wire::Bth;

/// An opcode of the range that the standard leaves to manufacturers, and that nobody sends.
pub(super) const PROBE_OPCODE: u8 = 0xdf;
/// The top QPN byte of probes; no process has it.
pub(super) const PROBE_PREFIX: u8 = 0xff;

/// Bytes of a probe: a BTH, the round, and four bytes where a packet has its ICRC.
pub(super) const PROBE_LEN: usize = Bth::LEN + 8 + 4;

/// A probe for `index` of the round `nonce`.
pub(super) fn emit(index: u8, nonce: u64) -> [u8; PROBE_LEN] {
    let mut out = [0; PROBE_LEN];
    out[0] = PROBE_OPCODE;
    out[5] = PROBE_PREFIX;
    out[6] = index;
    out[Bth::LEN..Bth::LEN + 8].copy_from_slice(&nonce.to_le_bytes());
    out
}

/// The index and the round of a probe; `None` if `frame` is something else.
pub(super) fn parse(frame: &[u8]) -> Option<(u8, u64)> {
    let frame: &[u8; PROBE_LEN] = frame.try_into().ok()?;
    if frame[0] != PROBE_OPCODE || frame[5] != PROBE_PREFIX {
        return None;
    }
    let nonce = frame[Bth::LEN..].first_chunk()?;
    Some((frame[6], u64::from_le_bytes(*nonce)))
}
