//! Ethernet header with its VLAN tags (IEEE 802.3, 802.1Q).

use crate::{EmitError, ParseError};

const ADDRESSES_LEN: usize = 12;
const ETHERTYPE_LEN: usize = 2;
const TAG_LEN: usize = 4;
const MAX_TAGS: usize = 2;
const TPID_CUSTOMER: u16 = 0x8100;
const TPID_SERVICE: u16 = 0x88a8;

/// Ethertype of IPv4.
pub(crate) const ETHERTYPE_IPV4: u16 = 0x0800;
/// Ethertype of IPv6.
pub(crate) const ETHERTYPE_IPV6: u16 = 0x86dd;

/// Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EthernetHeader {
    /// Destination address.
    pub dst: [u8; 6],
    /// Source address.
    pub src: [u8; 6],
    /// VLAN tags, outermost first.
    pub tags: VlanTags,
    /// Ethertype of the payload.
    pub ethertype: u16,
}

impl EthernetHeader {
    /// Bytes on the wire without VLAN tags.
    pub const MIN_LEN: usize = ADDRESSES_LEN + ETHERTYPE_LEN;

    /// Reads the header at the beginning of `frame`. A third VLAN tag and beyond count as payload.
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        let truncated = |need| ParseError::Truncated { need, have: frame.len() };
        let (dst, rest) = frame.split_first_chunk().ok_or(truncated(Self::MIN_LEN))?;
        let (src, mut rest) = rest.split_first_chunk().ok_or(truncated(Self::MIN_LEN))?;
        let mut tags = VlanTags::EMPTY;
        loop {
            let need = Self::MIN_LEN + tags.as_slice().len() * TAG_LEN;
            let (ethertype, behind) = rest.split_first_chunk().ok_or(truncated(need))?;
            let ethertype = u16::from_be_bytes(*ethertype);
            let tagged = matches!(ethertype, TPID_CUSTOMER | TPID_SERVICE);
            if !tagged || tags.as_slice().len() == MAX_TAGS {
                return Ok(Self { dst: *dst, src: *src, tags, ethertype });
            }
            let (tci, behind) = behind.split_first_chunk().ok_or(truncated(need + TAG_LEN))?;
            tags.push(VlanTag { tpid: ethertype, tci: u16::from_be_bytes(*tci) });
            rest = behind;
        }
    }

    /// Bytes on the wire.
    pub fn header_len(&self) -> usize {
        Self::MIN_LEN + self.tags.as_slice().len() * TAG_LEN
    }

    /// Writes the header to the beginning of `out`.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        let have = out.len();
        let need = self.header_len();
        let out = out.get_mut(..need).ok_or(EmitError::BufferTooSmall { need, have })?;
        let tags = self.tags.as_slice().iter().flat_map(|tag| {
            let [[a, b], [c, d]] = [tag.tpid.to_be_bytes(), tag.tci.to_be_bytes()];
            [a, b, c, d]
        });
        let bytes =
            self.dst.into_iter().chain(self.src).chain(tags).chain(self.ethertype.to_be_bytes());
        out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        Ok(())
    }
}

/// One VLAN tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct VlanTag {
    /// Tag protocol identifier: 0x8100 or 0x88a8.
    pub tpid: u16,
    /// Priority, drop eligibility and VLAN identifier.
    pub tci: u16,
}

/// Up to two VLAN tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanTags {
    tags: [VlanTag; MAX_TAGS],
    len: usize,
}

impl VlanTags {
    /// No tag.
    pub const EMPTY: Self = Self { tags: [VlanTag { tpid: 0, tci: 0 }; MAX_TAGS], len: 0 };

    /// The tags, outermost first, or `None` if there are more than two.
    pub fn new(tags: &[VlanTag]) -> Option<Self> {
        let mut out = Self::EMPTY;
        tags.iter().all(|&tag| out.push(tag)).then_some(out)
    }

    /// The tags, outermost first.
    pub fn as_slice(&self) -> &[VlanTag] {
        self.tags.get(..self.len).unwrap_or_default()
    }

    fn push(&mut self, tag: VlanTag) -> bool {
        match self.tags.get_mut(self.len) {
            Some(place) => {
                *place = tag;
                self.len += 1;
                true
            }
            None => false,
        }
    }
}
