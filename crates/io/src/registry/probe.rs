//! Probes: packets by which a process learns its index in the group of sockets.
//!
//! The kernel moves the last socket of a group to the index of one that closes, and tells nobody. A
//! probe for index `i` is steered to the socket at `i`, so its receiver is at `i`. A probe past the
//! end of the group is steered by its flow, and as all probes of a round have the same flow they
//! reach one socket, which also gets a probe with its own, smaller index: of the probes that a
//! process receives in a round, the smallest is right.

use bowline_wire::Bth;

/// An opcode from the manufacturer-specific range that nobody sends.
pub(super) const PROBE_OPCODE: u8 = 0xdf;
/// The top QPN byte of probes; no process has it.
pub(super) const PROBE_PREFIX: u8 = 0xff;

/// Bytes of a probe: a BTH, the round, and four bytes in place of the ICRC.
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
