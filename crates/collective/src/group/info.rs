//! What two ranks tell each other in order to connect.

use bowline_nic::{Mtu, Remote};
use bowline_sdr::{ReliableInfo, SdrError};
use bowline_wire::{Psn, Qpn};

/// One end of the connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The first PSN that it sends.
    pub psn: Psn,
    /// The largest packets that it accepts.
    pub mtu: Mtu,
    /// The key of its staging ring.
    pub rkey: u32,
    /// The ring's address.
    pub addr: u64,
    /// Number of slots in the ring.
    pub slots: u16,
    /// Size of a slot in bytes.
    pub slot_bytes: u32,
    /// Its XP end for operations with bounds, if it has one.
    pub express: Option<ExpressInfo>,
    /// Its end of an SDR connection, if messages use an SDR scheme.
    pub sdr: Option<SdrEnd>,
}

/// One end of the XP connection between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpressInfo {
    /// Its queue pair.
    pub qpn: Qpn,
    /// The token of the packets that it sends.
    pub token: Psn,
    /// Its queue pair for repairs over XP.
    pub repair_qpn: Qpn,
    /// The token of the packets that this one sends.
    pub repair_token: Psn,
    /// Number of XP slots, which follow those of the ring.
    pub slots: u16,
}

/// One end of an SDR connection, in encoded form. A peer's end is decoded when it is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SdrEnd {
    /// Number of bytes in use.
    len: u8,
    bytes: [u8; SdrEnd::MAX],
}

impl SdrEnd {
    /// Maximum length of an encoded end.
    const MAX: usize = 191;

    /// Encodes an end.
    ///
    /// # Errors
    /// If it is too long.
    pub fn new(info: &ReliableInfo) -> Result<SdrEnd, SdrError> {
        SdrEnd::from_slice(&info.to_bytes()).ok_or(SdrError::Info("it is too long for a group"))
    }

    /// Decodes the end.
    ///
    /// # Errors
    /// If no rank would send it.
    pub fn info(&self) -> Result<ReliableInfo, SdrError> {
        ReliableInfo::from_bytes(&self.bytes[..usize::from(self.len)])
    }

    fn from_slice(info: &[u8]) -> Option<SdrEnd> {
        let mut bytes = [0; SdrEnd::MAX];
        bytes.get_mut(..info.len())?.copy_from_slice(info);
        Some(SdrEnd { len: info.len() as u8, bytes })
    }
}

impl LinkInfo {
    /// Length on the wire in bytes.
    pub const LEN: usize = Self::SDR_AT + 1 + SdrEnd::MAX;
    /// Offset of the SDR end: its length, which is 0 if there is none, then its bytes.
    const SDR_AT: usize = 48;

    /// The remote address of a slot of its ring.
    pub(super) fn slot(&self, slot: u16) -> Remote {
        let at = u64::from(slot) * u64::from(self.slot_bytes);
        Remote { addr: self.addr + at, rkey: self.rkey }
    }

    /// Encodes it.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[0..4].copy_from_slice(&self.qpn.get().to_be_bytes());
        out[4..8].copy_from_slice(&self.psn.get().to_be_bytes());
        out[8..10].copy_from_slice(&(self.mtu.bytes() as u16).to_be_bytes());
        out[10..12].copy_from_slice(&self.slots.to_be_bytes());
        out[12..16].copy_from_slice(&self.rkey.to_be_bytes());
        out[16..24].copy_from_slice(&self.addr.to_be_bytes());
        out[24..28].copy_from_slice(&self.slot_bytes.to_be_bytes());
        if let Some(express) = self.express {
            out[28..32].copy_from_slice(&express.qpn.get().to_be_bytes());
            out[32..36].copy_from_slice(&express.token.get().to_be_bytes());
            out[38..40].copy_from_slice(&express.slots.to_be_bytes());
            out[40..44].copy_from_slice(&express.repair_qpn.get().to_be_bytes());
            out[44..48].copy_from_slice(&express.repair_token.get().to_be_bytes());
        }
        if let Some(sdr) = self.sdr {
            out[Self::SDR_AT] = sdr.len;
            out[Self::SDR_AT + 1..].copy_from_slice(&sdr.bytes);
        }
        out
    }

    /// Decodes it; `None` for anything that no rank sends.
    pub fn from_bytes(bytes: &[u8]) -> Option<LinkInfo> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let u32_at = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_be_bytes(*b));
        let u16_at = |at: usize| bytes[at..].first_chunk().map(|b| u16::from_be_bytes(*b));
        let below_2_24 = |value: &u32| *value < 1 << 24;
        let qpn_at = |at: usize| {
            let qpn = Qpn::new(u32_at(at).filter(below_2_24).filter(|qpn| *qpn >= 2)?);
            Some(qpn).filter(|qpn| *qpn != Qpn::MULTICAST)
        };
        let express = match u16_at(38)? {
            0 => None,
            slots => {
                let token_at = |at: usize| u32_at(at).filter(below_2_24).map(Psn::new);
                Some(ExpressInfo {
                    qpn: qpn_at(28)?,
                    token: token_at(32)?,
                    repair_qpn: qpn_at(40)?,
                    repair_token: token_at(44)?,
                    slots,
                })
            }
        };
        let sdr = match usize::from(bytes[Self::SDR_AT]) {
            0 => None,
            len => Some(SdrEnd::from_slice(bytes[Self::SDR_AT + 1..].get(..len)?)?),
        };
        let addr = bytes[16..].first_chunk().map(|b| u64::from_be_bytes(*b))?;
        let (slots, slot_bytes) = (u16_at(10)?, u32_at(24)?);
        let all_slots = u64::from(slots) + express.map_or(0, |express| u64::from(express.slots));
        let nacks = u64::from(u16::MAX) * super::nack::AREA_BYTES as u64;
        addr.checked_add(all_slots * u64::from(slot_bytes) + nacks)?;
        Some(LinkInfo {
            qpn: qpn_at(0)?,
            psn: Psn::new(u32_at(4).filter(below_2_24)?),
            mtu: Mtu::from_bytes(u16_at(8)?.into())?,
            rkey: u32_at(12)?,
            addr,
            slots,
            slot_bytes,
            express,
            sdr,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_what_was_told_or_nothing() {
        let info = LinkInfo {
            qpn: Qpn::new(0x01_0203),
            psn: Psn::new(0xff_ffff),
            mtu: Mtu::B4096,
            rkey: 0xdead_beef,
            addr: 0x7f00_0000_1000,
            slots: 8,
            slot_bytes: 1 << 17,
            express: None,
            sdr: None,
        };
        let sdr = SdrEnd::from_slice(&[7; SdrEnd::MAX]);
        let long = LinkInfo { sdr, ..info };
        assert_eq!(LinkInfo::from_bytes(&long.to_bytes()), Some(long));
        let express = ExpressInfo {
            qpn: Qpn::new(7),
            token: Psn::new(0xabc),
            repair_qpn: Qpn::new(8),
            repair_token: Psn::new(0xdef),
            slots: 16,
        };
        let both = LinkInfo { express: Some(express), ..info };
        assert_eq!(LinkInfo::from_bytes(&both.to_bytes()), Some(both));
        let bytes = info.to_bytes();
        assert_eq!(LinkInfo::from_bytes(&bytes), Some(info));
        assert_eq!(LinkInfo::from_bytes(&bytes[1..]), None);
        let wrong = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            LinkInfo::from_bytes(&bytes)
        };
        assert_eq!(wrong(0, 1), None, "a QPN has 24 bits");
        assert_eq!(wrong(4, 1), None, "and so has a PSN");
        assert_eq!(wrong(9, 1), None, "no MTU");
        assert_eq!(wrong(48, 192), None, "longer than there is room for");
        assert_eq!(LinkInfo::from_bytes(&LinkInfo { addr: u64::MAX - 9, ..info }.to_bytes()), None);
    }
}
