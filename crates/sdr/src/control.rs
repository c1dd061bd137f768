//! The control channel: short messages over an unreliable QP of their own, which may be lost.
//!
//! Each carries, besides what its user has to say, what both ends always want to know: how many
//! receives are posted (clear to send), which messages are over at their sender, how many packets
//! have landed, and timestamps that give the round trip.

use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, CqId, MrKey, Nic, Payload, PdId, QpInit, RecvWr, Region, SendFlags,
    SendOp, SendWr, Sge, Time, UdDest, WcStatus,
};
use bowline_wire::Qpn;

use crate::config::Transport;
use crate::error::SdrError;
use crate::ud;

/// Longest payload of a control message.
pub const MAX_CONTROL: usize = 960;

const HEADER: usize = 56;
/// Longest control message: over datagrams one packet, whatever the MTU of messages is.
pub(crate) const MAX_MESSAGE: usize = HEADER + MAX_CONTROL;
const VERSION: u8 = 1;
/// Receives kept posted. What finds none is lost, as if by the network.
const RECEIVES: u32 = 256;
const SENDS: u32 = 64;

/// What every control message says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Header {
    /// What it is.
    pub(crate) kind: Kind,
    /// When it was sent, by its sender's clock.
    pub(crate) stamp: u64,
    /// The last stamp that its sender had from us, or zero.
    pub(crate) echo: u64,
    /// How long ago that was.
    pub(crate) held: u64,
    /// Packets that have landed at its sender.
    pub(crate) landed: u64,
    /// Receives that its sender has posted so far.
    pub(crate) posted: u64,
    /// Nothing of its sender's messages below this one will be sent any more.
    pub(crate) retired: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only what the header says.
    #[default]
    Status,
    /// The sender waits for receives to be posted, and wants to know.
    Ask,
    /// Something for the user of the channel.
    User,
}

impl Header {
    fn emit(&self, out: &mut [u8]) {
        out[0] = VERSION;
        out[1] = match self.kind {
            Kind::Status => 0,
            Kind::Ask => 1,
            Kind::User => 2,
        };
        out[2..8].fill(0);
        let words = [self.stamp, self.echo, self.held, self.landed, self.posted, self.retired];
        for (place, word) in out[8..HEADER].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }

    fn parse(bytes: &[u8]) -> Option<Header> {
        let (head, _) = bytes.split_first_chunk::<HEADER>()?;
        if head[0] != VERSION {
            return None;
        }
        let kind = match head[1] {
            0 => Kind::Status,
            1 => Kind::Ask,
            2 => Kind::User,
            _ => return None,
        };
        let mut words = head[8..].chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_be_bytes(bytes)
        });
        let mut word = || words.next().unwrap_or(0);
        let [stamp, echo, held] = [word(), word(), word()];
        let [landed, posted, retired] = [word(), word(), word()];
        Some(Header { kind, stamp, echo, held, landed, posted, retired })
    }
}

/// A control message as it came: header and payload.
pub(crate) struct Received {
    pub(crate) header: Header,
    bytes: [u8; MAX_CONTROL],
    len: usize,
}

impl Received {
    pub(crate) fn payload(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The channel's QP and its receive buffers.
pub(crate) struct Control {
    pub(crate) qpn: Qpn,
    recv_cq: CqId,
    buffer: Arc<Buffer>,
    key: MrKey,
    /// Bytes of a receive in front of the message: room for a datagram's GRH.
    headroom: usize,
    /// Where datagrams go and come from.
    pub(crate) peer: Option<UdDest>,
    /// Messages that could not be sent because the queue was full.
    pub(crate) dropped: u64,
}

impl Control {
    pub(crate) fn new(
        nic: &mut Nic,
        pd: PdId,
        send_cq: CqId,
        transport: Transport,
    ) -> Result<Control, SdrError> {
        let headroom = if transport == Transport::Ud { ud::GRH } else { 0 };
        let recv_cq = nic.create_cq(RECEIVES)?;
        let buffer = Buffer::new(RECEIVES as usize * (headroom + MAX_MESSAGE));
        let key = nic.register(pd, Region::owned(buffer.clone()), 0, Access::LOCAL_WRITE)?;
        let init = QpInit {
            recv_cq,
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: MAX_MESSAGE as u32,
            ..QpInit::new(transport.qp_type(), pd, send_cq)
        };
        let qpn = nic.create_qp(&init)?;
        Ok(Control { qpn, recv_cq, buffer, key, headroom, peer: None, dropped: 0 })
    }

    /// Posts all receives: once the QP is out of the reset state.
    pub(crate) fn listen(&self, nic: &mut Nic) -> Result<(), SdrError> {
        (0..u64::from(RECEIVES)).try_for_each(|slot| self.post_recv(nic, slot))
    }

    fn post_recv(&self, nic: &mut Nic, slot: u64) -> Result<(), SdrError> {
        let size = (self.headroom + MAX_MESSAGE) as u32;
        let sge = Sge::new(self.key, slot * u64::from(size), size);
        Ok(nic.post_recv(self.qpn, &RecvWr { wr_id: slot, sges: &[sge] })?)
    }

    /// Sends a message, or, if too many are on their way, drops it: whoever depends on one sends it
    /// again after a while.
    pub(crate) fn send(&mut self, nic: &mut Nic, now: Time, header: &Header, payload: &[u8]) {
        debug_assert!(payload.len() <= MAX_CONTROL, "a control message is one packet");
        let mut bytes = [0; MAX_MESSAGE];
        header.emit(&mut bytes);
        let len = payload.len().min(MAX_CONTROL);
        bytes[HEADER..HEADER + len].copy_from_slice(&payload[..len]);
        let wr = SendWr {
            // None of the pieces'.
            wr_id: u64::MAX,
            op: SendOp::Send,
            payload: Payload::Inline(&bytes[..HEADER + len]),
            flags: SendFlags::empty(),
            ud: self.peer,
        };
        if nic.post_send(now, self.qpn, &wr).is_err() {
            self.dropped += 1;
        }
    }

    /// The next message that makes sense.
    pub(crate) fn next(&mut self, nic: &mut Nic) -> Option<Received> {
        loop {
            let mut polled = [Completion::default()];
            if nic.poll_cq(self.recv_cq, &mut polled).ok()? == 0 {
                return None;
            }
            let [completion] = polled;
            if completion.status != WcStatus::Success {
                // A datagram that is too long takes its receive with it. One that was flushed must
                // not be posted again: it would be flushed again, for ever.
                if completion.status == WcStatus::LocLenErr {
                    let _ = self.post_recv(nic, completion.wr_id);
                }
                continue;
            }
            let mut bytes = [0; MAX_MESSAGE];
            let len = (completion.byte_len as usize).saturating_sub(self.headroom).min(bytes.len());
            let at = completion.wr_id as usize * (self.headroom + MAX_MESSAGE);
            self.buffer.read_at(at + self.headroom, &mut bytes[..len]);
            let known =
                self.peer.is_none_or(|peer| ud::is_from(&peer, &completion, &self.buffer, at));
            // A QP in error takes no receives; then nothing comes any more either.
            let _ = self.post_recv(nic, completion.wr_id);
            if !known {
                continue;
            }
            if let Some(header) = Header::parse(&bytes[..len]) {
                let mut received = Received { header, bytes: [0; MAX_CONTROL], len: len - HEADER };
                received.bytes[..len - HEADER].copy_from_slice(&bytes[HEADER..len]);
                return Some(received);
            }
        }
    }

    pub(crate) fn destroy(&self, nic: &mut Nic) {
        // Each may be gone already, with the device.
        let _ = nic.destroy_qp(self.qpn);
        let _ = nic.deregister(self.key);
        let _ = nic.destroy_cq(self.recv_cq);
    }
}
