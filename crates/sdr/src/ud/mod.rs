//! SDR over unreliable datagrams, for NICs without unreliable connections.
//!
//! A packet is a SEND of at most an MTU, with the immediate that its WRITE would have. It lands in
//! one of our receives, and is copied from there into place: without UC each packet costs a request
//! at the sender, a receive, a completion and a copy.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, CqId, ImmSeries, Landing, MrKey, Payload, PdId, PostError, RecvWr,
    Region, Rnic, SendFlags, SendOp, SendWr, Sge, SrqId, Time, UdDest, WcStatus,
};
use bowline_wire::{Grh, Qpn};

use crate::config::SdrConfig;
use crate::control::MAX_MESSAGE;
use crate::error::SdrError;
use crate::imm::ImmLayout;
use crate::recv::Receiver;
use crate::send::{PacketQp, Source};
use crate::table::PacketLanding;

/// Bytes of a receive before a datagram's payload.
pub(crate) const GRH: usize = Grh::LEN;
/// Q_Keys with this bit are the standard's privileged ones: a request with such a key is sent with
/// its QP's own instead.
pub(crate) const PRIVILEGED: u32 = 1 << 31;
/// Most packets handed to the NIC at a time.
pub(crate) const PIECE_PACKETS: u32 = 16;

/// Most requests of a piece: the more packets the message has, the fewer extra ones the user's
/// immediate needs.
pub(crate) fn requests_a_piece(layout: ImmLayout) -> u32 {
    PIECE_PACKETS.max(layout.fragments())
}

/// The packets of a piece of a message.
#[derive(Debug)]
pub(crate) struct Packets {
    /// Their immediates.
    pub(crate) series: ImmSeries,
    pub(crate) source: Source,
    pub(crate) len: u32,
    pub(crate) mtu: u32,
    /// Numbers of empty packets beyond the message that carry a fragment of the user's immediate.
    pub(crate) fragments: Range<u32>,
}

impl Packets {
    /// Posts a request for each. Only the last raises a completion, which means that all have left,
    /// since a QP sends in order.
    pub(crate) fn post(
        &self,
        nic: &mut dyn Rnic,
        now: Time,
        qpn: Qpn,
        dest: UdDest,
        wr_id: u64,
    ) -> Result<(), PostError> {
        let first = self.series.first;
        let end = first + self.len.div_ceil(self.mtu).max(1);
        let mut numbers = (first..end).chain(self.fragments.clone()).peekable();
        while let Some(number) = numbers.next() {
            let offset = if number < end { (number - first) * self.mtu } else { self.len };
            let len = (self.len - offset).min(self.mtu);
            let sge = [Sge::new(self.source.key, self.source.addr + u64::from(offset), len)];
            let is_last = numbers.peek().is_none();
            let wr = SendWr {
                // Not a piece's ID, except for the last.
                payload: Payload::Sges(if len == 0 { &[] } else { &sge }),
                flags: if is_last { SendFlags::SIGNALED } else { SendFlags::empty() },
                ud: Some(dest),
                ..SendWr::new(
                    if is_last { wr_id } else { u64::MAX },
                    SendOp::SendImm(self.series.imm(number - first)),
                    &[],
                )
            };
            nic.post_send(now, qpn, &wr)?;
        }
        Ok(())
    }
}

/// Whether a datagram whose GRH is at `at` of `buffer` comes from the peer. Unlike a connected QP,
/// a UD QP accepts datagrams from anybody who knows its Q_Key.
pub(crate) fn is_from(peer: &UdDest, completion: &Completion, buffer: &Buffer, at: usize) -> bool {
    let mut grh = [0; GRH];
    buffer.read_at(at, &mut grh);
    completion.src_qpn == peer.qpn && source_of(&grh).to_canonical() == peer.av.dst.to_canonical()
}

/// The sender's address: from the IPv6 header, or from an IPv4 header in its second half.
fn source_of(grh: &[u8; GRH]) -> IpAddr {
    match Grh::parse(grh) {
        Ok(header) => IpAddr::V6(header.src),
        Err(_) => IpAddr::V4(Ipv4Addr::new(grh[32], grh[33], grh[34], grh[35])),
    }
}

/// Receives for the data QPs, all of which share one queue.
pub(crate) struct Datagrams {
    pd: PdId,
    pub(crate) recv_cq: CqId,
    pub(crate) srq: SrqId,
    /// The Q_Key that the peer's datagrams must carry.
    pub(crate) qkey: u32,
    receives: u32,
    /// Bytes of a receive.
    size: u32,
    buffer: Arc<Buffer>,
    key: MrKey,
    origins: HashMap<Qpn, Origin>,
}

/// One of our QPs, and its peer.
struct Origin {
    channel: PacketLanding,
    peer: Option<UdDest>,
}

impl Datagrams {
    pub(crate) fn new(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &SdrConfig,
    ) -> Result<Datagrams, SdrError> {
        let port_mtu = nic.config().max_mtu;
        if config.mtu > port_mtu || (port_mtu.bytes() as usize) < MAX_MESSAGE {
            let (mtu, port) = (config.mtu.bytes(), port_mtu.bytes());
            let why = format!(
                "datagrams of {mtu} bytes, and {MAX_MESSAGE} for control, do not fit the port's {port}"
            );
            return Err(SdrError::Config { what: "MTU", why });
        }
        // A datagram that finds none is lost, as if by the network.
        let receives = nic.datagram_receives() * config.channels;
        let size = GRH as u32 + config.mtu.bytes();
        let buffer = Buffer::new(receives as usize * size as usize);
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, Access::LOCAL_WRITE)?;
        Ok(Datagrams {
            pd,
            recv_cq: nic.create_cq(receives)?,
            srq: nic.create_srq(pd, receives, 1)?,
            qkey: u32::from_be_bytes(nic.draw_secret()) & !PRIVILEGED,
            receives,
            size,
            buffer,
            key,
            origins: HashMap::new(),
        })
    }

    /// Assigns one of our QPs to a channel.
    pub(crate) fn add(&mut self, qpn: Qpn, channel: PacketLanding) {
        self.origins.insert(qpn, Origin { channel, peer: None });
    }

    /// Accepts datagrams from the peers of our QPs from now on.
    pub(crate) fn connect(&mut self, nic: &mut dyn Rnic, qps: &[PacketQp]) -> Result<(), SdrError> {
        for qp in qps {
            if let Some(origin) = self.origins.get_mut(&qp.qpn) {
                origin.peer = qp.dest;
            }
        }
        Ok((0..u64::from(self.receives)).try_for_each(|slot| self.post(nic, slot))?)
    }

    fn post(&self, nic: &mut dyn Rnic, slot: u64) -> Result<(), PostError> {
        let sge = Sge::new(self.key, slot * u64::from(self.size), self.size);
        nic.post_srq_recv(self.srq, &RecvWr::new(slot, &[sge]))
    }

    /// Checks that a message can be placed where its receiver wants it.
    pub(crate) fn check_writable(
        &self,
        nic: &dyn Rnic,
        buffer: Source,
        len: u64,
    ) -> Result<(), SdrError> {
        // A region has no holes: what holds for both ends holds for everything between them.
        for offset in [0, len.saturating_sub(1)].into_iter().filter(|_| len > 0) {
            let byte = Sge::new(buffer.key, buffer.addr.saturating_add(offset), 1);
            nic.with_slices(self.pd, &[], &[byte], |_, _| ())?;
        }
        Ok(())
    }

    /// Copies what has arrived into place.
    pub(crate) fn land(&mut self, nic: &mut dyn Rnic, receiver: &Receiver, config: &SdrConfig) {
        let mut polled = [Completion::default(); 32];
        while let Ok(count @ 1..) = nic.poll_cq(self.recv_cq, &mut polled) {
            for completion in &polled[..count] {
                self.land_one(nic, receiver, config, completion);
                // The queue has space for what has been taken from it.
                let _ = self.post(nic, completion.wr_id);
            }
        }
    }

    fn land_one(
        &mut self,
        nic: &dyn Rnic,
        receiver: &Receiver,
        config: &SdrConfig,
        completion: &Completion,
    ) {
        let Some(Origin { channel, peer }) = self.origins.get_mut(&completion.qpn) else { return };
        let at = completion.wr_id * u64::from(self.size);
        // A datagram longer than its receive does not come from a peer of this protocol.
        let imm = completion.imm.filter(|_| completion.status == WcStatus::Success);
        let from_peer = peer.is_some_and(|p| is_from(&p, completion, &self.buffer, at as usize));
        let Some(imm) = imm.filter(|_| from_peer) else { return channel.refused() };
        let len = completion.byte_len.saturating_sub(GRH as u32);
        let generation = channel.generation;
        let Some(place) = receiver.place_of(config, generation, imm, len) else {
            return channel.late();
        };
        if len > 0 {
            let from = Sge::new(self.key, at + GRH as u64, len);
            let to = Sge::new(place.key, place.addr, len);
            let copied = nic.with_slices(self.pd, &[from], &[to], |from, to| {
                to.iter_mut().zip(from).for_each(|(to, from)| to.copy_from_slice(from));
            });
            // The receiver's memory was deregistered.
            if copied.is_err() {
                return channel.late();
            }
        }
        channel.landed(imm, len);
    }

    /// Removes what the destroyed QPs have used; their completion queue belongs to their owner.
    pub(crate) fn destroy(&self, nic: &mut dyn Rnic) {
        // Any of them may be gone already, with the device.
        let _ = nic.destroy_srq(self.srq);
        let _ = nic.deregister(self.key);
    }
}

#[cfg(test)]
mod tests;
