//! The invariant CRC (RoCEv2 annex A17, section 17.3.3.1).
//!
//! CRC-32 over eight bytes of ones (where InfiniBand has a local route header), the IP header, the
//! UDP header and the packet up to the trailer, with everything a router may change replaced by
//! ones: IPv4 TOS, TTL and checksum; IPv6 traffic class, flow label and hop limit; UDP checksum;
//! byte 4 of the BTH. The IPv4 identification and flags *are* covered.
//!
//! CRC-32 is linear: the effect of a changed byte on the checksum depends only on the change and on
//! the number of bytes after it. [`Icrc::with_ip_id_delta`], [`icrc_replace`] and [`solve_ip_id`]
//! rely on that.

mod deltas;
mod flow;
mod fold;
mod live;
mod poly;
mod table;
#[cfg(test)]
mod tests;

use core::mem::MaybeUninit;

pub use deltas::HeaderDeltas;
pub use flow::FlowKey;
pub use live::LiveBytes;

use crate::{Bth, ICRC_LEN};
use flow::{IPV4_UDP_LEN, MaskedHeaders};

/// Register after the eight bytes of ones.
const AFTER_PREFIX: u32 = 0xdebb_20e3;

/// Covered bytes between the IPv4 identification and the end of the UDP header.
const BYTES_AFTER_IP_ID: usize = IPV4_UDP_LEN - 6;

/// The effect of each value of the upper and lower identification byte, alone, on the register at
/// the end of the UDP header.
static IP_ID_DELTA: [[u32; 256]; 2] = ip_id_delta::<BYTES_AFTER_IP_ID>();

const fn ip_id_delta<const BEHIND: usize>() -> [[u32; 256]; 2] {
    let mut deltas = [[0; 256]; 2];
    let mut byte = 0;
    while byte < 256 {
        let upper = table::update(0, &[byte as u8, 0]);
        let lower = table::update(0, &[0, byte as u8]);
        deltas[0][byte] = table::update(upper, &[0; BEHIND]);
        deltas[1][byte] = table::update(lower, &[0; BEHIND]);
        byte += 1;
    }
    deltas
}

/// A running CRC register. Copy it to compute the common part of several packets only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Icrc(u32);

impl Icrc {
    /// The register after the eight bytes of ones, to be fed headers that are already masked.
    pub const START: Self = Self(AFTER_PREFIX);

    /// The register after the masked IP and UDP headers of a datagram that carries
    /// `udp_payload_len` bytes (BTH to ICRC), as our own sockets and rxe send it: no IPv4 options,
    /// DF set.
    ///
    /// `ip_id` has no meaning on IPv6. An IPv4-mapped IPv6 address counts as IPv6: convert one from
    /// a dual-stack socket first (`IpAddr::to_canonical`).
    #[inline]
    pub fn of_headers(flow: &FlowKey, udp_payload_len: usize, ip_id: u16) -> Self {
        match MaskedHeaders::new(flow, udp_payload_len, ip_id) {
            MaskedHeaders::V4(bytes) => Self(table::update(AFTER_PREFIX, &bytes)),
            MaskedHeaders::V6(bytes) => Self(table::update(AFTER_PREFIX, &bytes)),
        }
    }

    /// What [`Icrc::of_headers`] returns for an IPv4 flow when `ip_id` is changed by XOR `delta`.
    ///
    /// There are always 22 bytes between the identification and the end of the UDP header, so this
    /// takes two loads, whatever the flow. Only for a register at the end of IPv4 headers.
    #[inline]
    pub const fn with_ip_id_delta(self, delta: u16) -> Self {
        let [upper, lower] = delta.to_be_bytes();
        Self(self.0 ^ IP_ID_DELTA[0][upper as usize] ^ IP_ID_DELTA[1][lower as usize])
    }

    /// The register after a BTH, whose byte 4 is masked here.
    #[inline]
    pub const fn bth(self, bth: &[u8; Bth::LEN]) -> Self {
        let mut masked = *bth;
        masked[4] = 0xff;
        Self(table::step_block(self.0, &masked))
    }

    /// The register after `bytes`.
    #[inline]
    pub fn update(self, bytes: &[u8]) -> Self {
        Self(fold::update(self.0, bytes))
    }

    /// The register after `bytes`, which are copied to the start of `room` in the same pass.
    ///
    /// If an application writes the bytes meanwhile, as it may while a peer reads them, the
    /// register is that of the copy.
    ///
    /// # Panics
    /// If there is less room than bytes.
    #[inline]
    pub fn update_copying(self, bytes: LiveBytes<'_>, room: &mut [MaybeUninit<u8>]) -> Self {
        Self(fold::copy(self.0, bytes, room))
    }

    /// The checksum, to be stored little-endian.
    #[inline]
    pub const fn finish(self) -> u32 {
        !self.0
    }
}

/// The ICRC of a whole packet, BTH to the end of the pad, under headers as of
/// [`Icrc::of_headers`].
pub fn icrc_of(flow: &FlowKey, ip_id: u16, packet_without_icrc: &[u8]) -> u32 {
    let headers = Icrc::of_headers(flow, packet_without_icrc.len() + ICRC_LEN, ip_id);
    headers.packet(packet_without_icrc).finish()
}

/// Writes the ICRC of a whole packet, BTH to ICRC. IPv6 has no identification to cover.
pub fn write_icrc(flow: &FlowKey, ip_id: u16, packet: &mut [u8]) {
    if let Some((body, icrc)) = packet.split_last_chunk_mut::<ICRC_LEN>() {
        let ip_id = if flow.dst.is_ipv4() { ip_id } else { 0 };
        *icrc = icrc_of(flow, ip_id, body).to_le_bytes();
    }
}

impl Icrc {
    /// The register after a packet without its trailer, BTH masked.
    #[inline]
    pub fn packet(self, packet_without_icrc: &[u8]) -> Self {
        match packet_without_icrc.split_first_chunk() {
            Some((bth, rest)) => self.bth(bth).update(rest),
            // Shorter than a BTH, so not a packet; the sum is still that of the bytes given.
            None => self.update(packet_without_icrc),
        }
    }
}

/// The ICRC after `old` bytes were replaced by as many `new` bytes, followed by `bytes_after`
/// covered bytes (without the trailer). The payload is not read.
///
/// Bytes that the ICRC masks do not count as changed: pass them as equal, or leave them out.
pub const fn icrc_replace(icrc: u32, old: &[u8], new: &[u8], bytes_after: usize) -> u32 {
    debug_assert!(old.len() == new.len(), "an edit in place does not change the length");
    let mut reg = 0;
    let mut i = 0;
    while i < old.len() && i < new.len() {
        reg = table::step(reg, old[i] ^ new[i]);
        i += 1;
    }
    icrc ^ poly::FORWARD.apply(reg, bytes_after)
}

/// The IPv4 identification that the sender must have used, if it alone explains why the ICRC
/// `computed` under `assumed_id` differs from the `received` one.
///
/// A UDP socket does not show the identification. Of 2^32 differences an identification explains
/// 2^16, so this leaves a check of 16 bits. One flipped bit anywhere in a datagram of up to 26 KiB
/// is never mistaken for an identification.
pub const fn solve_ip_id(
    computed: u32,
    received: u32,
    assumed_id: u16,
    udp_payload_len: usize,
) -> Option<u16> {
    // The difference of two identifications, d0 and d1 on the wire, is a polynomial of degree below
    // 16, moved past 32 bits of register and all bytes after it.
    let bytes_after = BYTES_AFTER_IP_ID + udp_payload_len.saturating_sub(ICRC_LEN);
    let delta = poly::BACKWARD.apply(computed ^ received, bytes_after + 4);
    if delta & 0xffff != 0 {
        return None;
    }
    let [_, _, upper, lower] = delta.to_le_bytes();
    Some(assumed_id ^ u16::from_be_bytes([upper, lower]))
}
