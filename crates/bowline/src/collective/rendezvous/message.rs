//! Offers as bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bowline_collective::{LinkInfo, Rank};
use bowline_io::Ticket;

use super::{Offers, PeerEnd};

const MAGIC: [u8; 4] = *b"BLC3";
const HEADER_LEN: usize = 4 + 4 + 4 + HOST_LEN + Ticket::LEN;
/// IP version, address, UDP port.
const HOST_LEN: usize = 1 + 16 + 2;
pub(super) const END_LEN: usize = 4 + HOST_LEN + Ticket::LEN + LinkInfo::LEN;

impl Offers {
    /// Length of a rank's offers, in a group of `ranks`.
    pub(crate) fn len(ranks: u32) -> usize {
        HEADER_LEN + ranks as usize * LinkInfo::LEN
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(Offers::len(self.links.len() as u32));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.rank.to_be_bytes());
        out.extend_from_slice(&(self.links.len() as u32).to_be_bytes());
        out.extend_from_slice(&host_bytes(self.addr, self.udp_port));
        out.extend_from_slice(&ticket_bytes(self.rings));
        for link in &self.links {
            out.extend_from_slice(&link.map_or([0; LinkInfo::LEN], |link| link.to_bytes()));
        }
        out
    }
}

/// The offer for rank `to` of `ranks` in encoded offers, or why there is none.
pub(crate) fn end_for(bytes: &[u8], to: Rank, ranks: u32) -> Result<PeerEnd, &'static str> {
    let (magic, rest) = bytes.split_first_chunk().ok_or("it ends too early")?;
    if *magic != MAGIC {
        return Err("it is of another release");
    }
    let (rank, rest) = rest.split_first_chunk().ok_or("it ends too early")?;
    let (count, rest) = rest.split_first_chunk().ok_or("it ends too early")?;
    let (host, rest) = rest.split_first_chunk().ok_or("it ends too early")?;
    let (rings, links) = rest.split_first_chunk().ok_or("it ends too early")?;
    let (rank, count) = (u32::from_be_bytes(*rank), u32::from_be_bytes(*count));
    if count != ranks || links.len() != ranks as usize * LinkInfo::LEN {
        return Err("it is of a group of another size");
    }
    let (addr, udp_port) = host_from(host).ok_or("its address is not one host's")?;
    let at = to as usize * LinkInfo::LEN;
    let link = links.get(at..at + LinkInfo::LEN).and_then(LinkInfo::from_bytes);
    let link = link.ok_or("it has no connection for this rank")?;
    Ok(PeerEnd { rank, addr, udp_port, rings: Ticket::from_bytes(rings), link })
}

impl PeerEnd {
    pub(super) fn to_bytes(self) -> Vec<u8> {
        let mut out = self.rank.to_be_bytes().to_vec();
        out.extend_from_slice(&host_bytes(self.addr, self.udp_port));
        out.extend_from_slice(&ticket_bytes(self.rings));
        out.extend_from_slice(&self.link.to_bytes());
        out
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<PeerEnd> {
        let (rank, rest) = bytes.split_first_chunk()?;
        let (host, rest) = rest.split_first_chunk()?;
        let (rings, link) = rest.split_first_chunk()?;
        let (addr, udp_port) = host_from(host)?;
        let (rank, rings) = (u32::from_be_bytes(*rank), Ticket::from_bytes(rings));
        let link = LinkInfo::from_bytes(link)?;
        Some(PeerEnd { rank, addr, udp_port, rings, link })
    }
}

/// All zero stands for no ticket.
fn ticket_bytes(ticket: Option<Ticket>) -> [u8; Ticket::LEN] {
    ticket.map_or([0; Ticket::LEN], |ticket| ticket.to_bytes())
}

fn host_bytes(addr: IpAddr, port: u16) -> [u8; HOST_LEN] {
    let mut out = [0; HOST_LEN];
    match addr {
        IpAddr::V4(addr) => {
            out[0] = 4;
            out[1..5].copy_from_slice(&addr.octets());
        }
        IpAddr::V6(addr) => {
            out[0] = 6;
            out[1..17].copy_from_slice(&addr.octets());
        }
    }
    out[17..].copy_from_slice(&port.to_be_bytes());
    out
}

fn host_from(bytes: &[u8; HOST_LEN]) -> Option<(IpAddr, u16)> {
    let [version, rest @ ..] = bytes;
    let (octets, port) = rest.split_first_chunk::<16>()?;
    let addr = match version {
        4 => IpAddr::V4(Ipv4Addr::from(*octets.first_chunk::<4>()?)),
        6 => IpAddr::V6(Ipv6Addr::from(*octets)),
        _ => return None,
    };
    let one_host = !addr.is_unspecified() && !addr.is_multicast();
    one_host.then_some((addr, u16::from_be_bytes(port.try_into().ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mtu, Psn, Qpn};

    fn offers() -> Offers {
        let link = |qpn| LinkInfo {
            qpn: Qpn::new(qpn),
            psn: Psn::new(7),
            mtu: Mtu::B4096,
            rkey: 9,
            addr: 0x1000,
            slots: 8,
            slot_bytes: 4096,
            express: None,
            sdr: None,
        };
        Offers {
            rank: 1,
            addr: "127.0.0.7".parse().unwrap(),
            udp_port: 4791,
            rings: Ticket::from_bytes(&[3; Ticket::LEN]),
            links: vec![Some(link(20)), None, Some(link(22))],
        }
    }

    #[test]
    fn each_rank_finds_its_own_end() {
        let offers = offers();
        let bytes = offers.to_bytes();
        assert_eq!(bytes.len(), Offers::len(3));
        let end = end_for(&bytes, 2, 3).unwrap();
        assert_eq!((end.rank, end.addr, end.link), (1, offers.addr, offers.links[2].unwrap()));
        assert_eq!(end.rings, offers.rings);
        let apart = Offers { rings: None, ..offers };
        assert_eq!(end_for(&apart.to_bytes(), 2, 3).unwrap().rings, None);
        assert_eq!(PeerEnd::from_bytes(&end.to_bytes()), Some(end));
        assert_eq!(end.to_bytes().len(), END_LEN);
    }

    #[test]
    fn what_others_write_is_checked() {
        let bytes = offers().to_bytes();
        assert!(end_for(&bytes, 1, 3).is_err(), "a rank has no connection to itself");
        assert!(end_for(&bytes, 0, 4).is_err());
        assert!(end_for(&bytes, 3, 3).is_err());
        for cut in 0..bytes.len() {
            assert!(end_for(&bytes[..cut], 0, 3).is_err(), "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0xff;
            // Any result but a panic.
            let _ = end_for(&wrong, 0, 3);
            let _ = PeerEnd::from_bytes(&wrong);
        }
    }
}
