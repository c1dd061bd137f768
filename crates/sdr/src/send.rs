//! The sending half: messages in the order of the peer's receives, divided into packets and spread
//! over channels.

use std::collections::VecDeque;

use bowline_nic::{
    Completion, CqId, MrKey, PostError, Remote, Rnic, SendOp, SendWr, Sge, Time, UdDest,
};
use bowline_wire::Qpn;

use crate::config::{SdrConfig, Transport};
use crate::error::SdrError;
use crate::ud;

/// A message being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SendHandle(pub(crate) u64);

impl SendHandle {
    /// The message's number: it lands in the receive of the same number.
    pub fn number(self) -> u64 {
        self.0
    }
}

/// Local bytes to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Key of their region.
    pub key: MrKey,
    /// Address within it.
    pub addr: u64,
}

/// Bytes of a message that have left the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injected {
    /// The message.
    pub handle: SendHandle,
    /// First byte within it.
    pub offset: u64,
    /// Bytes.
    pub len: u32,
}

/// Messages begun and not over: bounded, since a program may post far ahead of its peer.
const MAX_MESSAGES: u32 = 1 << 16;
/// Requests outstanding on each QP: enough to keep the port busy until the next `drive`, few enough
/// for urgent pieces to overtake what waits.
const QUEUE_DEPTH: u32 = 24;
/// Most bytes of a request. Longer pieces are split, so that others get their turn.
const MAX_PIECE: u64 = 64 << 10;
/// Queue entries for packets that only carry fragments of a user's immediate.
const SPARE_DEPTH: u32 = 40;

/// Requests that a channel's send queue must hold.
pub(crate) fn send_queue(config: &SdrConfig) -> u32 {
    match config.transport {
        Transport::Uc => QUEUE_DEPTH + SPARE_DEPTH,
        Transport::Ud => QUEUE_DEPTH * ud::requests_a_piece(config.layout),
    }
}

/// Most bytes handed to the NIC at a time.
fn max_piece(config: &SdrConfig) -> u64 {
    match config.transport {
        Transport::Uc => MAX_PIECE,
        Transport::Ud => u64::from(ud::PIECE_PACKETS * config.mtu.bytes()),
    }
}

/// A part of a message.
#[derive(Clone, Copy, Debug)]
struct Piece {
    message: u64,
    offset: u64,
    len: u64,
    source: Source,
}

/// A request on a NIC's queue.
#[derive(Clone, Copy, Debug)]
struct Posted {
    piece: Piece,
    /// Index of the QP.
    qp: u32,
    /// An empty packet that carries a fragment of the user's immediate.
    is_fragment: bool,
}

#[derive(Debug)]
struct Message {
    /// Bytes of the whole message.
    len: u64,
    imm: Option<u32>,
    /// Pieces that wait for the peer to post the receive.
    waiting: Vec<Piece>,
    /// Pieces, including split ones, that have not left.
    outstanding: u32,
    ended: bool,
}

/// A QP that sends packets of one generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketQp {
    pub(crate) qpn: Qpn,
    /// Where its datagrams go.
    pub(crate) dest: Option<UdDest>,
    in_flight: u32,
}

impl PacketQp {
    pub(crate) fn new(qpn: Qpn) -> PacketQp {
        PacketQp { qpn, dest: None, in_flight: 0 }
    }
}

/// The sending half of an SDR QP.
pub(crate) struct Sender {
    /// By generation, then channel.
    qps: Vec<PacketQp>,
    /// The peer's root keys, by generation.
    pub(crate) roots: Vec<u32>,
    cq: CqId,
    /// Receives that the peer has posted.
    cleared: u64,
    /// Number of the oldest message in `messages`.
    first: u64,
    messages: VecDeque<Message>,
    ready: VecDeque<Piece>,
    urgent: VecDeque<Piece>,
    /// Requests on the NIC's queues, by the ID that they were posted with.
    posted: Vec<Option<Posted>>,
    free: Vec<u32>,
    next_channel: u32,
    /// Recorded only on request.
    injected: Option<VecDeque<Injected>>,
    pub(crate) packets_sent: u64,
    /// A request failed: the QP is unusable.
    pub(crate) failed: bool,
}

impl Sender {
    pub(crate) fn new(qps: Vec<PacketQp>, cq: CqId) -> Sender {
        Sender {
            qps,
            roots: Vec::new(),
            cq,
            cleared: 0,
            first: 0,
            messages: VecDeque::new(),
            ready: VecDeque::new(),
            urgent: VecDeque::new(),
            posted: Vec::new(),
            free: Vec::new(),
            next_channel: 0,
            injected: None,
            packets_sent: 0,
            failed: false,
        }
    }

    pub(crate) fn qps(&self) -> &[PacketQp] {
        &self.qps
    }

    pub(crate) fn qps_mut(&mut self) -> &mut [PacketQp] {
        &mut self.qps
    }

    /// Number that the next message will get.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// Nothing more of messages below this will be sent.
    pub(crate) fn retired(&self) -> u64 {
        self.first
    }

    /// Whether `count` more messages can be begun.
    pub(crate) fn check_room_for(&self, count: u32) -> Result<(), SdrError> {
        let fits = self.messages.len() + count as usize <= MAX_MESSAGES as usize;
        if fits { Ok(()) } else { Err(SdrError::Full { max: MAX_MESSAGES }) }
    }

    /// Begins a message, which goes to the next of the peer's receives.
    pub(crate) fn start(
        &mut self,
        config: &SdrConfig,
        len: u64,
        imm: Option<u32>,
    ) -> Result<SendHandle, SdrError> {
        if len > config.max_message {
            return Err(SdrError::TooLong { len, max: config.max_message });
        }
        self.check_room_for(1)?;
        let handle = SendHandle(self.next());
        let message = Message { len, imm, waiting: Vec::new(), outstanding: 0, ended: false };
        self.messages.push_back(message);
        Ok(handle)
    }

    /// Adds a part of a message; an urgent one goes ahead of all others.
    pub(crate) fn add(
        &mut self,
        config: &SdrConfig,
        handle: SendHandle,
        offset: u64,
        len: u64,
        source: Source,
        urgent: bool,
    ) -> Result<(), SdrError> {
        let cleared = handle.0 < self.cleared;
        let message = self.message(handle)?;
        let total = message.len;
        let whole = offset.is_multiple_of(config.mtu.bytes().into())
            && offset.checked_add(len).is_some_and(|end| {
                end <= total && (end == total || end.is_multiple_of(config.mtu.bytes().into()))
            });
        if !whole || (len == 0 && total > 0) {
            return Err(SdrError::Piece { offset, len, total });
        }
        let piece = Piece { message: handle.0, offset, len, source };
        message.outstanding += 1;
        match (cleared, urgent) {
            (false, _) => message.waiting.push(piece),
            (true, false) => self.ready.push_back(piece),
            (true, true) => self.urgent.push_back(piece),
        }
        Ok(())
    }

    /// Nothing more will be added to the message.
    pub(crate) fn end(&mut self, handle: SendHandle) -> Result<(), SdrError> {
        self.message(handle)?.ended = true;
        self.retire();
        Ok(())
    }

    /// Drops what has not been handed to the NIC yet, and ends the message.
    pub(crate) fn cancel(&mut self, handle: SendHandle) -> Result<(), SdrError> {
        let message = self.message(handle)?;
        let mut dropped = message.waiting.drain(..).count() as u32;
        // Usually all of it has left. The queues hold the pieces of all messages under way.
        if message.outstanding > dropped {
            for queue in [&mut self.ready, &mut self.urgent] {
                let before = queue.len();
                queue.retain(|piece| piece.message != handle.0);
                dropped += (before - queue.len()) as u32;
            }
        }
        self.message(handle)?.outstanding -= dropped;
        self.end(handle)
    }

    fn message(&mut self, handle: SendHandle) -> Result<&mut Message, SdrError> {
        let index = handle.0.checked_sub(self.first).ok_or(SdrError::Complete)?;
        let message = self.messages.get_mut(index as usize).filter(|m| !m.ended);
        message.ok_or(SdrError::Complete)
    }

    /// Whether all of an ended message has left.
    pub(crate) fn is_done(&self, handle: SendHandle) -> bool {
        let Some(index) = handle.0.checked_sub(self.first) else { return true };
        self.messages.get(index as usize).is_some_and(|m| m.ended && m.outstanding == 0)
    }

    /// Whether the peer has posted the message's receive.
    pub(crate) fn is_cleared(&self, handle: SendHandle) -> bool {
        handle.0 < self.cleared
    }

    /// Whether everything added to a message has left.
    pub(crate) fn is_idle(&self, handle: SendHandle) -> bool {
        let index = handle.0.checked_sub(self.first);
        let message = index.and_then(|index| self.messages.get(index as usize));
        message.is_none_or(|message| message.outstanding == 0)
    }

    fn retire(&mut self) {
        while self.messages.front().is_some_and(|m| m.ended && m.outstanding == 0) {
            self.messages.pop_front();
            self.first += 1;
        }
    }

    /// The peer has posted `posted` receives. An impossible number is ignored.
    pub(crate) fn clear(&mut self, config: &SdrConfig, posted: u64) {
        if posted <= self.cleared || posted > self.next() + u64::from(config.layout.ids()) {
            return;
        }
        for number in self.cleared.max(self.first)..posted.min(self.next()) {
            let message = &mut self.messages[(number - self.first) as usize];
            self.ready.extend(message.waiting.drain(..));
        }
        self.cleared = posted;
    }

    /// Whether nothing that could be sent is waiting.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        self.ready.is_empty()
            && self.urgent.is_empty()
            && self.qps.iter().all(|qp| qp.in_flight == 0)
    }

    /// Whether a message waits for the peer to post its receive.
    pub(crate) fn waits(&self) -> bool {
        let cleared = self.cleared.saturating_sub(self.first) as usize;
        self.messages.iter().skip(cleared).any(|m| !m.ended || m.outstanding > 0)
    }

    /// Accounts for what has left, and hands the NIC more.
    pub(crate) fn drive(&mut self, nic: &mut dyn Rnic, now: Time, config: &SdrConfig) {
        self.reap(nic, config);
        for queue in [true, false] {
            while let Some(piece) = self.take(queue) {
                if !self.post(nic, now, config, piece, queue) {
                    return;
                }
            }
        }
    }

    fn take(&mut self, urgent: bool) -> Option<Piece> {
        if urgent { self.urgent.pop_front() } else { self.ready.pop_front() }
    }

    fn put_back(&mut self, piece: Piece, urgent: bool) {
        if urgent { self.urgent.push_front(piece) } else { self.ready.push_front(piece) }
    }

    fn reap(&mut self, nic: &mut dyn Rnic, config: &SdrConfig) {
        let mut polled = [Completion::default(); 32];
        while let Ok(count @ 1..) = nic.poll_cq(self.cq, &mut polled) {
            for completion in &polled[..count] {
                self.completed(completion, config);
            }
        }
        self.retire();
    }

    fn completed(&mut self, completion: &Completion, config: &SdrConfig) {
        let index = completion.wr_id as usize;
        let Some(posted) = self.posted.get_mut(index).and_then(Option::take) else {
            // A control message, or a datagram that is not the last of its piece: these complete
            // only when they fail.
            self.failed = true;
            return;
        };
        let Posted { piece, qp, is_fragment } = posted;
        self.free.push(index as u32);
        self.qps[qp as usize].in_flight -= 1;
        self.failed |= completion.status != bowline_nic::WcStatus::Success;
        self.packets_sent += u64::from(config.packets(piece.len));
        let handle = SendHandle(piece.message);
        if let Some(index) = piece.message.checked_sub(self.first)
            && let Some(message) = self.messages.get_mut(index as usize)
        {
            message.outstanding -= 1;
        }
        if let Some(injected) = self.injected.as_mut().filter(|_| !is_fragment) {
            let len = piece.len as u32;
            injected.push_back(Injected { handle, offset: piece.offset, len });
        }
    }

    /// Hands a piece, or its beginning, to the NIC; `false` if the queue is full.
    fn post(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        config: &SdrConfig,
        piece: Piece,
        urgent: bool,
    ) -> bool {
        let Some(qp) = self.pick_qp(config, piece.message) else {
            self.put_back(piece, urgent);
            return false;
        };
        let head = Piece { len: piece.len.min(max_piece(config)), ..piece };
        match self.post_piece(nic, now, config, head, qp) {
            Ok(()) => {}
            Err(PostError::Full) => {
                self.put_back(piece, urgent);
                return false;
            }
            Err(_) => {
                self.failed = true;
                return false;
            }
        }
        if head.len < piece.len {
            let rest = Piece {
                offset: piece.offset + head.len,
                len: piece.len - head.len,
                source: Source { addr: piece.source.addr + head.len, ..piece.source },
                ..piece
            };
            let index = (piece.message - self.first) as usize;
            self.messages[index].outstanding += 1;
            self.put_back(rest, urgent);
        }
        true
    }

    /// The next channel of the message's generation with queue space, round robin.
    fn pick_qp(&mut self, config: &SdrConfig, number: u64) -> Option<u32> {
        let (generation, _) = config.place(number);
        let channels = config.channels;
        let qp = (0..channels)
            .map(|i| generation * channels + (self.next_channel + i) % channels)
            .find(|qp| self.qps[*qp as usize].in_flight < QUEUE_DEPTH)?;
        self.next_channel = (qp % channels + 1) % channels;
        Some(qp)
    }

    fn post_piece(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        config: &SdrConfig,
        piece: Piece,
        qp: u32,
    ) -> Result<(), PostError> {
        let message = &self.messages[(piece.message - self.first) as usize];
        let (generation, id) = config.place(piece.message);
        let packet = (piece.offset / u64::from(config.mtu.bytes())) as u32;
        let user = message.imm.unwrap_or(0);
        let series = config.layout.series(id, packet, user);
        let (packets, has_imm) = (config.packets(message.len), message.imm.is_some());
        let is_last = piece.offset + piece.len == message.len;
        // A message of few packets has too few immediates for the user's: empty packets beyond its
        // end carry the rest.
        let fragments = if has_imm && is_last { packets..config.layout.fragments() } else { 0..0 };
        let PacketQp { qpn, dest, .. } = self.qps[qp as usize];
        if let Some(dest) = dest {
            let (source, len) = (piece.source, piece.len as u32);
            let packets = ud::Packets { series, source, len, mtu: config.mtu.bytes(), fragments };
            packets.post(nic, now, qpn, dest, self.next_wr_id())?;
            self.packets_sent += packets.fragments.len() as u64;
            self.note_posted(Posted { piece, qp, is_fragment: false });
            return Ok(());
        }
        let slot = config.slot(piece.message) << config.slot_shift();
        let remote = Remote { addr: slot + piece.offset, rkey: self.roots[generation as usize] };
        let sges = [Sge::new(piece.source.key, piece.source.addr, piece.len as u32)];
        let sges = if piece.len == 0 { &sges[..0] } else { &sges[..] };
        let op = SendOp::WritePackets(remote, series);
        nic.post_send(now, qpn, &SendWr::new(self.next_wr_id(), op, sges))?;
        self.note_posted(Posted { piece, qp, is_fragment: false });
        for packet in fragments {
            let imm = config.layout.series(id, packet, user).imm(0);
            let wr = SendWr::new(self.next_wr_id(), SendOp::WriteImm(remote, imm), &[]);
            // If the queue is full, the immediate waits until the piece is sent again, if it is.
            if nic.post_send(now, qpn, &wr).is_err() {
                break;
            }
            self.messages[(piece.message - self.first) as usize].outstanding += 1;
            let piece = Piece { len: 0, ..piece };
            self.note_posted(Posted { piece, qp, is_fragment: true });
        }
        Ok(())
    }

    /// The ID for the next request.
    fn next_wr_id(&self) -> u64 {
        self.free.last().map_or(self.posted.len() as u64, |index| u64::from(*index))
    }

    fn note_posted(&mut self, posted: Posted) {
        self.qps[posted.qp as usize].in_flight += 1;
        match self.free.pop() {
            Some(index) => self.posted[index as usize] = Some(posted),
            None => self.posted.push(Some(posted)),
        }
    }

    /// Records what leaves, for [`Sender::next_injected`].
    pub(crate) fn track_injected(&mut self) {
        self.injected.get_or_insert_default();
    }

    /// The next piece that has left, in order.
    pub(crate) fn next_injected(&mut self) -> Option<Injected> {
        self.injected.as_mut()?.pop_front()
    }
}
