//! The SDR QP: ordered messages that complete chunk by chunk.

mod peer;
mod rate;

use std::sync::Arc;

use bowline_nic::{
    Access, AddressVector, Connect, CqId, PacketSeal, PdId, QpInit, Rnic, Time, UdDest,
};
use bowline_wire::Qpn;

use crate::config::{SdrConfig, Transport};
use crate::congestion::Congestion;
use crate::control::{Header, Kind, MAX_CONTROL};
use crate::error::SdrError;
use crate::info::SdrInfo;
use crate::path::{PathMeter, PathStats};
use crate::recv::{Receiver, RecvHandle};
use crate::send::{Injected, PacketQp, SendHandle, Sender, Source, send_queue};
use crate::table::{ChunkBitmap, LandingCounters, LandingStats, PacketLanding, RecvTable};
use crate::ud::Datagrams;
use peer::Peers;
pub use peer::{GroupPath, MAX_MEMBERS};

/// How long a sender waits for receives to be posted before it asks: initial and maximum.
const ASK_MIN_NS: u64 = 5_000_000;
const ASK_MAX_NS: u64 = 500_000_000;

/// A queue pair of partial-completion messages.
///
/// Messages match the peer's receives in posting order. Every packet is a WRITE of its own over an
/// unreliable connection, or a datagram (see [`Transport`]), so that a lost or reordered packet
/// affects no other. A bitmap shows which have arrived, chunk by chunk, and the user decides what
/// to do about the others.
///
/// # Driving it
/// It does no IO: every call takes the NIC on which its objects live. After anything that may have
/// changed the NIC, and when [`poll_timeout`](SdrQp::poll_timeout) has come, the owner calls
/// [`drive`](SdrQp::drive), then calls [`next_control`](SdrQp::next_control) until it returns none.
pub struct SdrQp {
    config: SdrConfig,
    send_cq: CqId,
    data_recv_cq: CqId,
    sender: Sender,
    receiver: Receiver,
    /// Receive queue of packets that are not WRITEs.
    datagrams: Option<Datagrams>,
    counters: Vec<Arc<LandingCounters>>,
    peers: Peers,
    connected: bool,
    /// A control message is due, because the peer asked or should know.
    status_due: bool,
    /// The peer was told that our messages below this number are over.
    told_retired: u64,
    /// Receives that the peer was told of.
    told_posted: u64,
    /// When to ask the peer for receives, and the next waiting time.
    ask_at: Option<Time>,
    ask_ns: u64,
    congestion: Option<Congestion>,
    meter: PathMeter,
    /// Control messages for the user, and the members that sent them.
    inbox: std::collections::VecDeque<(usize, Vec<u8>)>,
}

/// Control messages kept for the user; further ones are dropped, as the network might.
const MAX_INBOX: usize = 1024;

impl SdrQp {
    /// Creates a QP, its internal QPs and its keys, in a protection domain.
    pub fn new(nic: &mut dyn Rnic, pd: PdId, config: &SdrConfig) -> Result<SdrQp, SdrError> {
        SdrQp::with_peers(nic, pd, config, 1)
    }

    fn with_peers(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &SdrConfig,
        peers: usize,
    ) -> Result<SdrQp, SdrError> {
        config.check()?;
        let max_packets = config.packets(config.max_message);
        let table = RecvTable::new(config.layout, max_packets, config.chunk_shift());
        // All its QPs are on one NIC, and so in one lane.
        let table = Arc::new(table.for_one_lane());
        let internal = config.generations * config.channels;
        let send_cq = nic.create_cq(internal * send_queue(config) + 64)?;
        let mut datagrams = match config.transport {
            Transport::Uc => None,
            Transport::Ud => Some(Datagrams::new(nic, pd, config)?),
        };
        let data_recv_cq = match &datagrams {
            Some(datagrams) => datagrams.recv_cq,
            None => nic.create_cq(1)?,
        };
        let mut packet_qps = Vec::new();
        let mut roots = Vec::new();
        let mut counters = Vec::new();
        for generation in 0..config.generations {
            if datagrams.is_none() {
                roots.push(nic.register_indirect(pd, config.layout.ids(), config.slot_shift())?);
            }
            for _ in 0..config.channels {
                let init = QpInit {
                    recv_cq: data_recv_cq,
                    srq: datagrams.as_ref().map(|datagrams| datagrams.srq),
                    max_send_wr: send_queue(config),
                    max_recv_wr: 0,
                    ..QpInit::new(config.transport.qp_type(), pd, send_cq)
                };
                let qpn = nic.create_qp(&init)?;
                let counted = Arc::new(LandingCounters::default());
                let channel =
                    PacketLanding { table: table.clone(), counters: counted.clone(), generation };
                match &mut datagrams {
                    Some(datagrams) => datagrams.add(qpn, channel),
                    None => nic.set_landing(qpn, Box::new(channel))?,
                }
                counters.push(counted);
                packet_qps.push(PacketQp::new(qpn));
            }
        }
        let peers = Peers::new(nic, pd, send_cq, config.transport, peers)?;
        Ok(SdrQp {
            send_cq,
            data_recv_cq,
            sender: Sender::new(packet_qps, send_cq),
            receiver: Receiver::new(table, roots, config),
            datagrams,
            counters,
            peers,
            connected: false,
            status_due: false,
            told_retired: 0,
            told_posted: 0,
            ask_at: None,
            ask_ns: ASK_MIN_NS,
            congestion: None,
            meter: PathMeter::new(config.mtu.bytes()),
            inbox: std::collections::VecDeque::new(),
            config: config.clone(),
        })
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> SdrInfo {
        let control = &self.peers.all[0].control;
        SdrInfo {
            config: self.config.clone(),
            control: control.qpn,
            token: control.token,
            qpns: self.sender.qps().iter().map(|qp| qp.qpn).collect(),
            roots: self.receiver.roots.iter().map(|key| key.0).collect(),
            qkey: self.datagrams.as_ref().map(|datagrams| datagrams.qkey),
        }
    }

    /// The parameters.
    pub fn config(&self) -> &SdrConfig {
        &self.config
    }

    /// Seals its packets, data and control alike. Call it before connecting: `make` is called once
    /// for each of its queue pairs, in the same order at both ends.
    pub fn seal(
        &mut self,
        nic: &mut dyn Rnic,
        mut make: impl FnMut() -> PacketSeal,
    ) -> Result<(), SdrError> {
        let data = self.sender.qps().iter().map(|qp| qp.qpn);
        data.chain(self.peers.all.iter().map(|peer| peer.control.qpn))
            .try_for_each(|qpn| Ok(nic.seal_qp(qpn, make())?))
    }

    /// Connects to a peer.
    pub fn connect(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        av: AddressVector,
        peer: &SdrInfo,
    ) -> Result<(), SdrError> {
        self.connect_behind(nic, now, av, av, peer)
    }

    /// Connects to a peer whose packets, except control messages, come from `data`: a switch with
    /// an address of its own that copies them.
    pub fn connect_behind(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        av: AddressVector,
        data: AddressVector,
        peer: &SdrInfo,
    ) -> Result<(), SdrError> {
        peer.check_against(&self.config)?;
        let qkey = self.datagrams.as_ref().map(|datagrams| datagrams.qkey);
        let bring_up = |nic: &mut dyn Rnic, qpn, peer, av| match qkey {
            Some(qkey) => Ok(nic.activate(now, qpn, qkey)?),
            None => bring_up(nic, now, qpn, peer, av, &self.config),
        };
        let dest = |qpn| peer.qkey.map(|qkey| UdDest { av, qpn, qkey });
        for (qp, peer_qpn) in self.sender.qps_mut().iter_mut().zip(&peer.qpns) {
            bring_up(nic, qp.qpn, *peer_qpn, data)?;
            qp.dest = dest(*peer_qpn);
        }
        let channel = &mut self.peers.all[0];
        bring_up(nic, channel.control.qpn, peer.control, av)?;
        channel.control.peer = dest(peer.control);
        channel.open(nic, now, peer)?;
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.connect(nic, self.sender.qps())?;
        }
        self.sender.roots.clone_from(&peer.roots);
        self.control_rate(nic, now)?;
        self.connected = true;
        // The answer to it measures the round trip.
        self.status_due = true;
        Ok(())
    }

    fn check_connected(&self) -> Result<(), SdrError> {
        if self.connected { Ok(()) } else { Err(SdrError::NotConnected) }
    }

    /// Receives posted so far.
    pub fn posted(&self) -> u64 {
        self.receiver.posted
    }

    /// The only peer has said, over another channel than this QP's, that it has posted so many
    /// receives. Control messages say so too; those that it sent before this end was connected are
    /// lost, and asking takes a round trip.
    pub fn hear_posted(&mut self, posted: u64) {
        let most = self.sender.next() + u64::from(self.config.layout.ids());
        if let [peer] = &mut self.peers.all[..] {
            peer.hear_posted(posted, most);
            self.sender.clear(&self.config, self.peers.posted());
        }
    }

    /// The round trip to reckon with until one is timed.
    pub fn assume_rtt(&mut self, rtt_ns: u64) {
        self.meter.assume_rtt(rtt_ns);
    }

    /// Whether `count` more messages can be begun now.
    pub fn send_room_for(&self, count: u32) -> Result<(), SdrError> {
        self.check_connected()?;
        self.sender.check_room_for(count)
    }

    /// Starts a message of `len` bytes into the peer's next receive, to be filled piece by piece.
    pub fn send_start(&mut self, len: u64, imm: Option<u32>) -> Result<SendHandle, SdrError> {
        self.check_connected()?;
        self.sender.start(&self.config, len, imm)
    }

    /// Sends bytes `offset..offset + len` of a message: whole packets, or up to the message's end.
    /// The same bytes may be sent again, `urgent` ones before all others.
    pub fn send_continue(
        &mut self,
        handle: SendHandle,
        offset: u64,
        len: u64,
        source: Source,
        urgent: bool,
    ) -> Result<(), SdrError> {
        self.sender.add(&self.config, handle, offset, len, source, urgent)
    }

    /// Nothing more will be added to the message.
    pub fn send_end(&mut self, handle: SendHandle) -> Result<(), SdrError> {
        self.sender.end(handle)
    }

    /// Ends a message, and drops what has not left yet.
    pub fn send_cancel(&mut self, handle: SendHandle) -> Result<(), SdrError> {
        self.sender.cancel(handle)
    }

    /// Sends a whole message into the peer's next receive.
    pub fn send_post(
        &mut self,
        source: Source,
        len: u64,
        imm: Option<u32>,
    ) -> Result<SendHandle, SdrError> {
        let handle = self.send_start(len, imm)?;
        self.sender.add(&self.config, handle, 0, len, source, false)?;
        self.sender.end(handle)?;
        Ok(handle)
    }

    /// Whether all of an ended message has left, so that its buffer is the caller's again.
    pub fn send_poll(&self, handle: SendHandle) -> bool {
        self.sender.is_done(handle)
    }

    /// Whether the peer has posted the message's receive.
    pub fn is_cleared(&self, handle: SendHandle) -> bool {
        self.sender.is_cleared(handle)
    }

    /// Whether everything added to a message so far has left, although more may follow.
    pub fn send_is_idle(&self, handle: SendHandle) -> bool {
        self.sender.is_idle(handle)
    }

    /// Records every piece that leaves: the caller takes them with
    /// [`next_injected`](SdrQp::next_injected) after each [`drive`](SdrQp::drive).
    pub fn track_injected(&mut self) {
        self.sender.track_injected();
    }

    /// The next piece that has left.
    pub fn next_injected(&mut self) -> Option<Injected> {
        self.sender.next_injected()
    }

    /// Posts `len` bytes at `buffer` for the peer's next message, and tells the peer.
    pub fn recv_post(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        buffer: Source,
        len: u64,
    ) -> Result<RecvHandle, SdrError> {
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.check_writable(nic, buffer, len)?;
            // What came before the receive was posted does not belong to its message.
            datagrams.land(nic, &self.receiver, &self.config);
        }
        self.receiver.post(nic, now, &self.config, buffer, len)
    }

    /// Skips the peer's next message.
    pub fn recv_skip(&mut self, now: Time) -> Result<RecvHandle, SdrError> {
        self.receiver.skip(&self.config, now)
    }

    /// Whether the next `count` receives could be posted now.
    pub fn recv_room_for(&self, now: Time, count: u32) -> Result<(), SdrError> {
        self.receiver.check_room_for(&self.config, now, count)
    }

    /// Which chunks of a message have arrived.
    pub fn recv_bitmap(&self, handle: RecvHandle) -> Result<ChunkBitmap<'_>, SdrError> {
        Ok(self.receiver.table.chunks(self.receiver.slot(&self.config, handle)?))
    }

    /// The sender's immediate, once enough packets have come.
    pub fn recv_imm(&self, handle: RecvHandle) -> Result<Option<u32>, SdrError> {
        Ok(self.receiver.table.user_imm(self.receiver.slot(&self.config, handle)?))
    }

    /// Ends a receive, complete or not: from now on packets of its message are discarded, and its
    /// buffer is the caller's again.
    pub fn recv_complete(
        &mut self,
        nic: &mut dyn Rnic,
        handle: RecvHandle,
    ) -> Result<(), SdrError> {
        self.receiver.complete(nic, &self.config, handle)
    }

    /// Counts bytes `offset..offset + len` of a receive as arrived although nothing will come for
    /// them: the message is shorter than its buffer. The range covers whole packets.
    pub fn recv_fill(&self, handle: RecvHandle, offset: u64, len: u64) -> Result<(), SdrError> {
        let id = self.receiver.slot(&self.config, handle)?;
        let mtu = u64::from(self.config.mtu.bytes());
        let packets = (offset / mtu) as u32..((offset + len) / mtu) as u32;
        self.receiver.table.fill(id, packets);
        Ok(())
    }

    /// Calls `f` with the receives in which a chunk, or the sender's immediate, was completed since
    /// the last call.
    pub fn take_progress(&self, mut f: impl FnMut(RecvHandle)) {
        let ids = u64::from(self.config.layout.ids());
        let posted = self.receiver.posted;
        self.receiver.table.take_dirty(|id| {
            // The latest message with that ID.
            let behind = (posted + ids - 1 - u64::from(id)) % ids + 1;
            if let Some(number) = posted.checked_sub(behind) {
                f(RecvHandle(number));
            }
        });
    }

    /// Sends the peer a control message of at most [`MAX_CONTROL`] bytes. It may be lost.
    pub fn send_control(&mut self, nic: &mut dyn Rnic, now: Time, payload: &[u8]) {
        self.control_out(nic, now, Kind::User, payload);
    }

    /// The next control message from the peer.
    pub fn next_control(&mut self) -> Option<Vec<u8>> {
        self.next_control_from().map(|(_, message)| message)
    }

    /// The next control message, and the group member that sent it.
    pub fn next_control_from(&mut self) -> Option<(usize, Vec<u8>)> {
        self.inbox.pop_front()
    }

    fn control_out(&mut self, nic: &mut dyn Rnic, now: Time, kind: Kind, payload: &[u8]) {
        let header = Header {
            kind,
            // Zero means none.
            stamp: now.as_nanos().max(1),
            landed: self.landing_stats().packets,
            posted: self.receiver.posted,
            retired: self.sender.retired(),
            // The per-peer fields are filled in later.
            ..Header::default()
        };
        self.status_due = false;
        self.told_retired = header.retired;
        self.told_posted = header.posted;
        self.peers.send(nic, now, &header, payload);
    }

    /// Processes what has happened on the NIC and does what is due.
    pub fn drive(&mut self, nic: &mut dyn Rnic, now: Time) {
        if !self.connected {
            return;
        }
        if let Some(datagrams) = &mut self.datagrams {
            datagrams.land(nic, &self.receiver, &self.config);
        }
        for member in 0..self.peers.all.len() {
            while let Some(received) = self.peers.all[member].control.next(nic) {
                if !self.peers.is_live(member) {
                    continue;
                }
                self.on_header(nic, now, member, &received.header);
                if received.header.kind == Kind::User && self.inbox.len() < MAX_INBOX {
                    self.inbox.push_back((member, received.payload().to_vec()));
                }
            }
        }
        self.sender.drive(nic, now, &self.config);
        self.meter.on_sent(now, self.sender.packets_sent);
        self.drive_congestion(nic, now);
        self.ask_if_stuck(nic, now);
        // Before the peer runs out of places for its receives.
        let untold = self.sender.retired() - self.told_retired;
        let clears = self.receiver.posted > self.told_posted;
        if self.status_due || clears || untold >= (self.config.places() / 4).max(1) {
            self.control_out(nic, now, Kind::Status, &[]);
        }
    }

    fn on_header(&mut self, nic: &mut dyn Rnic, now: Time, member: usize, header: &Header) {
        let landed_here = self.landing_stats().packets;
        let most = self.sender.next() + u64::from(self.config.layout.ids());
        self.peers.all[member].hear(now, header, landed_here, most);
        if self.peers.is_slowest(member) {
            self.hear_report(nic, now, header);
        }
        let since = now.as_nanos().checked_sub(header.echo).filter(|_| header.echo != 0);
        if let Some(rtt) = since.and_then(|since| since.checked_sub(header.held)) {
            self.meter.on_rtt(now, rtt.max(1));
            self.receiver.hear_jitter(self.meter.jitter_ns());
        }
        self.meter.on_landed(now, self.peers.landed());
        self.sender.clear(&self.config, self.peers.posted());
        self.receiver.hear_retired(now, header.retired);
        // A peer without an echo of its stamp waits for one to measure the round trip.
        self.status_due |= matches!(header.kind, Kind::Ask | Kind::Stamp) || header.echo == 0;
    }

    /// A clear-to-send may have been lost: a sender that waits for one asks now and then.
    fn ask_if_stuck(&mut self, nic: &mut dyn Rnic, now: Time) {
        if !self.sender.waits() {
            self.ask_at = None;
            self.ask_ns = ASK_MIN_NS;
            return;
        }
        match self.ask_at {
            Some(at) if at <= now => {
                self.control_out(nic, now, Kind::Ask, &[]);
                self.ask_ns = (self.ask_ns * 2).min(ASK_MAX_NS);
                self.ask_at = Some(now.plus_nanos(self.ask_ns));
            }
            Some(_) => {}
            None => self.ask_at = Some(now.plus_nanos(self.ask_ns)),
        }
    }

    /// The peer's messages below this number are known to be over at the peer, which will send
    /// nothing more of them.
    pub fn peer_retired(&self) -> u64 {
        self.receiver.retired()
    }

    /// When to call [`drive`](SdrQp::drive) if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let stamp_at = self.congestion.as_ref().and_then(Congestion::stamp_at);
        self.ask_at.into_iter().chain(stamp_at).min()
    }

    /// Whether the QP can no longer send: a request failed, or the NIC refused one.
    pub fn has_failed(&self) -> bool {
        self.sender.failed
    }

    /// What is known of the path to the peer.
    pub fn path(&self) -> PathStats {
        self.meter.stats()
    }

    /// What has landed, on all channels.
    pub fn landing_stats(&self) -> LandingStats {
        let none = LandingStats { refused: self.peers.refused(), ..LandingStats::default() };
        self.counters.iter().fold(none, |sum, counters| {
            let s = counters.snapshot();
            LandingStats {
                packets: sum.packets + s.packets,
                duplicates: sum.duplicates + s.duplicates,
                late: sum.late + s.late,
                refused: sum.refused + s.refused,
            }
        })
    }

    /// Removes the QP's objects from the NIC.
    pub fn destroy(self, nic: &mut dyn Rnic) {
        // Any of them may be gone already, with the device.
        for qp in self.sender.qps() {
            let _ = nic.destroy_qp(qp.qpn);
        }
        self.peers.all.iter().for_each(|peer| peer.control.destroy(nic));
        for root in &self.receiver.roots {
            let _ = nic.deregister(*root);
        }
        if let Some(datagrams) = &self.datagrams {
            datagrams.destroy(nic);
        }
        let _ = nic.destroy_cq(self.send_cq);
        let _ = nic.destroy_cq(self.data_recv_cq);
    }
}

const _: () = assert!(MAX_CONTROL >= 256, "selective acknowledgements need some room");

/// Takes a UC QP from reset to ready to send.
fn bring_up(
    nic: &mut dyn Rnic,
    now: Time,
    qpn: Qpn,
    peer: Qpn,
    av: AddressVector,
    config: &SdrConfig,
) -> Result<(), SdrError> {
    let connect = Connect {
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
        av,
        path_mtu: config.mtu,
        ..Connect::new(av.dst, peer)
    };
    Ok(nic.connect(now, qpn, &connect)?)
}

#[cfg(test)]
mod tests;
