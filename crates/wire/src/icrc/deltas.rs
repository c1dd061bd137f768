//! ICRC registers of packets whose headers differ only in two fields.

use super::{BYTES_AFTER_IP_ID, Icrc, table};
use crate::{Bth, ImmDt, Psn, Reth, XpEth, XrcEth};

/// The effect of the IPv4 identification and the PSN on a register at the end of all headers.
///
/// The packets of a run differ only in these two. So a sender or receiver computes the register for
/// the first one's headers, with both fields 0, and derives the others by [`Icrc::with_deltas`]:
/// five loads, however long the headers are.
#[derive(Debug)]
pub struct HeaderDeltas {
    /// By value of the upper and the lower byte.
    ip_id: [[u32; 256]; 2],
    /// By value of the upper, the middle and the lower byte.
    psn: [[u32; 256]; 3],
}

static BEHIND_BTH: HeaderDeltas = HeaderDeltas::new::<0>();
static BEHIND_XRC: HeaderDeltas = HeaderDeltas::new::<{ XrcEth::LEN }>();
static BEHIND_XP_SEND: HeaderDeltas = HeaderDeltas::new::<XP_SEND>();
static BEHIND_XP_SEND_IMM: HeaderDeltas = HeaderDeltas::new::<XP_SEND_IMM>();
static BEHIND_XP_WRITE: HeaderDeltas = HeaderDeltas::new::<XP_WRITE>();
static BEHIND_XP_WRITE_IMM: HeaderDeltas = HeaderDeltas::new::<XP_WRITE_IMM>();

const XP_SEND: usize = XpEth::LEN;
const XP_WRITE: usize = XpEth::LEN + Reth::LEN;
const XP_SEND_IMM: usize = XP_SEND + ImmDt::LEN;
const XP_WRITE_IMM: usize = XP_WRITE + ImmDt::LEN;

impl HeaderDeltas {
    /// For packets with this many bytes of extension headers, if such packets form runs.
    #[inline]
    pub const fn behind(ext_len: usize) -> Option<&'static HeaderDeltas> {
        Some(match ext_len {
            0 => &BEHIND_BTH,
            XrcEth::LEN => &BEHIND_XRC,
            XP_SEND => &BEHIND_XP_SEND,
            XP_SEND_IMM => &BEHIND_XP_SEND_IMM,
            XP_WRITE => &BEHIND_XP_WRITE,
            XP_WRITE_IMM => &BEHIND_XP_WRITE_IMM,
            _ => return None,
        })
    }

    const fn new<const EXT: usize>() -> HeaderDeltas {
        // The PSN is the BTH's last three bytes.
        let behind_id = BYTES_AFTER_IP_ID + Bth::LEN + EXT;
        HeaderDeltas {
            ip_id: [of_byte(behind_id + 1), of_byte(behind_id)],
            psn: [of_byte(EXT + 2), of_byte(EXT + 1), of_byte(EXT)],
        }
    }
}

/// The effect of each value of a byte, alone, on a register this many bytes after it.
const fn of_byte(behind: usize) -> [u32; 256] {
    let mut deltas = [0; 256];
    let mut value = 1;
    while value < deltas.len() {
        deltas[value] = if value.is_power_of_two() {
            let mut reg = table::step(0, value as u8);
            let mut i = 0;
            while i < behind {
                reg = table::step(reg, 0);
                i += 1;
            }
            reg
        } else {
            // Linear: the sum of the effects of the lowest bit and of all others.
            let lowest = value & value.wrapping_neg();
            deltas[value ^ lowest] ^ deltas[lowest]
        };
        value += 1;
    }
    deltas
}

impl Icrc {
    /// From a register after all headers of a packet, the register for an IPv4 identification
    /// changed by XOR `ip_id_delta` (0 on IPv6), and a PSN changed by XOR `psn_delta`. `deltas`
    /// must match the length of the headers.
    #[inline]
    pub const fn with_deltas(
        self,
        deltas: &HeaderDeltas,
        ip_id_delta: u16,
        psn_delta: Psn,
    ) -> Self {
        let id = ip_id_delta.to_be_bytes();
        let [_, upper, middle, lower] = psn_delta.get().to_be_bytes();
        Self(
            self.0
                ^ deltas.ip_id[0][id[0] as usize]
                ^ deltas.ip_id[1][id[1] as usize]
                ^ deltas.psn[0][upper as usize]
                ^ deltas.psn[1][middle as usize]
                ^ deltas.psn[2][lower as usize],
        )
    }

    /// The same for a register after the BTH.
    #[inline]
    pub const fn with_deltas_behind_bth(self, ip_id_delta: u16, psn_delta: Psn) -> Self {
        self.with_deltas(&BEHIND_BTH, ip_id_delta, psn_delta)
    }
}
