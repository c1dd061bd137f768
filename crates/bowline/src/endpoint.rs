//! What a program tells its peer: the address of a queue pair, and the memory it offers.

use std::net::IpAddr;
use std::ops::Range;

use bowline_nic::{AddressVector, Mtu, QpType, Remote, UdDest};
use bowline_wire::{Psn, Qpn};

use crate::Error;

/// What a peer needs to know about a queue pair.
///
/// Exchange it by any means: [`Channel`](crate::Channel) does so over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its transport.
    pub qp_type: QpType,
    /// The device's address.
    pub addr: IpAddr,
    /// The device's UDP port.
    pub udp_port: u16,
    /// The queue pair's number.
    pub qpn: Qpn,
    /// The first packet sequence number that it will send.
    pub psn: Psn,
    /// The largest MTU of its device.
    pub mtu: Mtu,
    /// READs and atomics that it can have outstanding, and can answer.
    pub rd_atomic: u8,
}

impl Endpoint {
    /// The destination of datagrams to this queue pair, if it is a UD one.
    pub fn datagram(&self, qkey: u32) -> UdDest {
        UdDest { av: AddressVector::new(self.addr), qpn: self.qpn, qkey }
    }
}

/// Memory that a peer offers: a whole region, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteMr {
    /// Address of its first byte, within the peer's region.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key that the peer's device checks.
    pub rkey: u32,
}

impl RemoteMr {
    /// A part of it.
    ///
    /// ```
    /// use bowline::RemoteMr;
    ///
    /// let all = RemoteMr { addr: 0x1000, len: 64, rkey: 7 };
    /// assert_eq!(all.slice(8..16)?.addr, 0x1008);
    /// assert!(all.slice(60..68).is_err());
    /// # Ok::<(), bowline::Error>(())
    /// ```
    pub fn slice(&self, range: Range<u64>) -> Result<RemoteMr, Error> {
        if range.start > range.end || range.end > self.len {
            return Err(Error::OutOfRange {
                start: range.start as usize,
                end: range.end as usize,
                len: self.len as usize,
            });
        }
        Ok(RemoteMr {
            addr: self.addr + range.start,
            len: range.end - range.start,
            rkey: self.rkey,
        })
    }

    /// Its start, for a work request.
    pub fn start(&self) -> Remote {
        Remote { addr: self.addr, rkey: self.rkey }
    }

    /// Its start, if `len` bytes fit.
    pub(crate) fn fit(&self, len: usize) -> Result<Remote, Error> {
        self.slice(0..len as u64).map(|part| part.start())
    }
}
