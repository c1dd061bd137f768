//! The messages that two programs exchange over TCP before their queue pairs can talk.
//!
//! ```text
//! frame:    magic "BWLN" (4)  version (1)  kind (1)  body length (4)  body
//! endpoint: qp type (1)  mtu in bytes (2)  rd_atomic (1)  qpn (4)  psn (4)
//!           ip version, 4 or 6 (1)  udp port (2)  address (16, an IPv4 one is in the first 4)
//!           region count (2)  regions: { address (8)  length (8)  rkey (4) }
//! ```
//! All numbers are big-endian. Nothing is allocated before a length has been checked against
//! [`MAX_BODY`], and an endpoint is accepted only if every field is valid.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_nic::{Mtu, QpType};
use bowline_wire::{Psn, Qpn};

use super::SetupError;
use crate::{Endpoint, RemoteMr};

/// First bytes of every frame.
pub(crate) const MAGIC: [u8; 4] = *b"BWLN";
/// Version of this protocol.
pub(super) const VERSION: u8 = 1;
/// Magic, version, kind and length.
pub(crate) const HEADER_LEN: usize = 10;
/// Longest body that is accepted or sent.
pub const MAX_BODY: usize = 64 * 1024;
/// Most regions in one message.
pub const MAX_REGIONS: usize = 1024;

const REGION_LEN: usize = 20;
const ENDPOINT_LEN: usize = 33;

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Endpoint = 1,
    Barrier = 2,
    Data = 3,
    /// A part of the handshake that authenticates peers.
    Handshake = 4,
    /// The accepting end does not continue; the body is the reason, as a byte.
    Refused = 5,
    /// Asks a member of a group to receive a multicast address as well: see `joining`.
    Join = 6,
    /// Whether the member does, and whether the sender's probe has reached it.
    Joined = 7,
    /// The group does not use the multicast address after all.
    Leave = 8,
}

/// A frame's header with this body.
pub(crate) fn frame(kind: Kind, body: &[u8]) -> Result<Vec<u8>, SetupError> {
    if body.len() > MAX_BODY {
        return Err(SetupError::TooLong { len: body.len() as u64 });
    }
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    out.extend_from_slice(&MAGIC);
    out.push(VERSION);
    out.push(kind as u8);
    out.extend_from_slice(&(body.len() as u32).to_be_bytes());
    out.extend_from_slice(body);
    Ok(out)
}

/// A valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(super) kind: u8,
    /// Length of the body that follows.
    pub(crate) len: usize,
}

impl Header {
    /// The kind of frame, between ends that need not authenticate.
    pub(crate) fn plain_kind(self) -> Result<Kind, SetupError> {
        let kinds = [Kind::Endpoint, Kind::Barrier, Kind::Data, Kind::Join, Kind::Leave];
        let kind = kinds.into_iter().find(|known| *known as u8 == self.kind);
        kind.ok_or(SetupError::Invalid("kind of message"))
    }

    /// The length of the body, if it is of the expected kind.
    pub(super) fn expect(self, expected: Kind) -> Result<usize, SetupError> {
        if self.kind == expected as u8 {
            Ok(self.len)
        } else {
            Err(SetupError::Unexpected { kind: self.kind, expected: expected as u8 })
        }
    }
}

/// Checks a header.
pub(crate) fn parse_header(header: &[u8; HEADER_LEN]) -> Result<Header, SetupError> {
    let [m0, m1, m2, m3, version, kind, l0, l1, l2, l3] = *header;
    if [m0, m1, m2, m3] != MAGIC {
        return Err(SetupError::WrongMagic([m0, m1, m2, m3]));
    }
    if version != VERSION {
        return Err(SetupError::WrongVersion { theirs: version });
    }
    let len = u32::from_be_bytes([l0, l1, l2, l3]);
    if len as usize > MAX_BODY {
        return Err(SetupError::TooLong { len: len.into() });
    }
    Ok(Header { kind, len: len as usize })
}

/// Encodes an endpoint and the regions that its owner offers.
pub(crate) fn encode_endpoint(
    endpoint: &Endpoint,
    regions: &[RemoteMr],
) -> Result<Vec<u8>, SetupError> {
    if regions.len() > MAX_REGIONS {
        return Err(SetupError::TooManyRegions { count: regions.len() });
    }
    let mut out = Vec::with_capacity(ENDPOINT_LEN + regions.len() * REGION_LEN);
    out.push(endpoint.qp_type.code());
    out.extend_from_slice(&(endpoint.mtu.bytes() as u16).to_be_bytes());
    out.push(endpoint.rd_atomic);
    out.extend_from_slice(&endpoint.qpn.get().to_be_bytes());
    out.extend_from_slice(&endpoint.psn.get().to_be_bytes());
    let (version, address) = match endpoint.addr {
        IpAddr::V4(a) => {
            let mut padded = [0; 16];
            padded[..4].copy_from_slice(&a.octets());
            (4, padded)
        }
        IpAddr::V6(a) => (6, a.octets()),
    };
    out.push(version);
    out.extend_from_slice(&endpoint.udp_port.to_be_bytes());
    out.extend_from_slice(&address);
    put_regions(&mut out, regions);
    Ok(out)
}

/// Appends a list of at most [`MAX_REGIONS`] regions.
pub(super) fn put_regions(out: &mut Vec<u8>, regions: &[RemoteMr]) {
    out.extend_from_slice(&(regions.len() as u16).to_be_bytes());
    for region in regions {
        out.extend_from_slice(&region.addr.to_be_bytes());
        out.extend_from_slice(&region.len.to_be_bytes());
        out.extend_from_slice(&region.rkey.to_be_bytes());
    }
}

/// Reads and checks what [`encode_endpoint`] wrote, or what somebody else claims it did.
pub(crate) fn decode_endpoint(body: &[u8]) -> Result<(Endpoint, Vec<RemoteMr>), SetupError> {
    let mut r = Reader { rest: body };
    let [code] = r.array()?;
    let qp_type = QpType::from_code(code).ok_or(SetupError::Invalid("QP type"))?;
    let mtu = u16::from_be_bytes(r.array()?);
    let mtu = Mtu::from_bytes(mtu.into()).ok_or(SetupError::Invalid("MTU"))?;
    let [rd_atomic] = r.array()?;
    let qpn = below_2_24(r.u32()?).ok_or(SetupError::Invalid("QP number"))?;
    let psn = below_2_24(r.u32()?).ok_or(SetupError::Invalid("packet sequence number"))?;
    // 0 and 1 are the management QPs, and the last number is every multicast member.
    if qpn < 2 || Qpn::new(qpn) == Qpn::MULTICAST {
        return Err(SetupError::Invalid("QP number"));
    }
    let [ip_version] = r.array()?;
    let udp_port = u16::from_be_bytes(r.array()?);
    let addr = address(ip_version, r.array()?)?;
    let count = usize::from(u16::from_be_bytes(r.array()?));
    if count > MAX_REGIONS {
        return Err(SetupError::TooManyRegions { count });
    }
    let regions = r.regions(count)?;
    let (qpn, psn) = (Qpn::new(qpn), Psn::new(psn));
    Ok((Endpoint { qp_type, addr, udp_port, qpn, psn, mtu, rd_atomic }, regions))
}

fn below_2_24(value: u32) -> Option<u32> {
    (value < 1 << 24).then_some(value)
}

fn address(version: u8, octets: [u8; 16]) -> Result<IpAddr, SetupError> {
    let addr = match version {
        4 => {
            let [a, b, c, d, ..] = octets;
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        6 => IpAddr::V6(Ipv6Addr::from(octets)),
        _ => return Err(SetupError::Invalid("IP version")),
    };
    if addr.is_unspecified() || addr.is_multicast() || addr == IpAddr::V4(Ipv4Addr::BROADCAST) {
        return Err(SetupError::Invalid("address: it is not one host's"));
    }
    Ok(addr)
}

/// The unread rest of a body.
pub(super) struct Reader<'a> {
    pub(super) rest: &'a [u8],
}

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], SetupError> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(SetupError::Truncated)?;
        self.rest = rest;
        Ok(*head)
    }

    pub(super) fn u32(&mut self) -> Result<u32, SetupError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// The list of regions at the end of a body.
    pub(super) fn regions(&mut self, count: usize) -> Result<Vec<RemoteMr>, SetupError> {
        if self.rest.len() != count * REGION_LEN {
            return Err(SetupError::Invalid("length of the region list"));
        }
        (0..count).map(|_| self.region()).collect()
    }

    fn region(&mut self) -> Result<RemoteMr, SetupError> {
        let addr = u64::from_be_bytes(self.array()?);
        let len = u64::from_be_bytes(self.array()?);
        let rkey = self.u32()?;
        addr.checked_add(len).ok_or(SetupError::Invalid("region: it wraps around"))?;
        Ok(RemoteMr { addr, len, rkey })
    }
}

#[cfg(test)]
#[path = "message_tests.rs"]
mod tests;
