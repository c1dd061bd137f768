//! Selective repeat: missing chunks are retransmitted.
//!
//! The receiver acknowledges what has arrived: a cumulative number, and a bitmap from there on. The
//! sender retransmits a chunk that has not been acknowledged for RTT + α·RTT since it left; with
//! NACKs, as soon as the receiver reports a gap.

use std::collections::VecDeque;

use bowline_nic::Time;

use super::{Model, Part, RecvCx, Scheme, SchemeReceiver, SchemeSender, SendCx};
use crate::reliable::Shape;

/// Bytes of an acknowledgement before its bitmap.
const ACK_HEADER: usize = 8;
/// Bytes of bitmap in an acknowledgement.
const ACK_BITMAP: usize = 512;
/// Chunks that may overtake a chunk before it counts as lost.
const REORDER: u32 = 1;
/// Minimum times, for paths whose round trip is negligible beside the hosts' own delays.
const MIN_RTO_NS: u64 = 20_000_000;
const MIN_IDLE_NS: u64 = 2_000_000;
const MIN_ACK_NS: u64 = 500_000;

/// Selective repeat.
#[derive(Clone, Debug)]
pub struct SelectiveRepeat {
    /// The retransmission timeout is 1 + α round trips.
    alpha: f64,
    nack: bool,
}

impl SelectiveRepeat {
    /// Retransmission by timeout alone, after three round trips.
    pub fn with_timeouts() -> SelectiveRepeat {
        SelectiveRepeat { alpha: 2.0, nack: false }
    }

    /// Retransmission as soon as the receiver finds a gap, and by timeout when that fails.
    pub fn with_nack() -> SelectiveRepeat {
        SelectiveRepeat { alpha: 2.0, nack: true }
    }

    /// Sets α: the delay that queues on the path may add, as a fraction of the round trip.
    pub fn alpha(self, alpha: f64) -> SelectiveRepeat {
        SelectiveRepeat { alpha: alpha.max(0.0), ..self }
    }
}

impl Scheme for SelectiveRepeat {
    fn name(&self) -> String {
        if self.nack { "sr-nack" } else { "sr-rto" }.to_owned()
    }

    fn model(&self, shape: &Shape, rtt_ns: u64) -> Option<Model> {
        let rtt = rtt_ns as f64;
        let rto_ns = if self.nack {
            // A gap shows with the next chunks, or after a silence if there are none.
            let at_the_end = f64::from(REORDER + 1) / f64::from(shape.chunks());
            rtt + (rtt / 8.0).max(MIN_IDLE_NS as f64) * at_the_end.min(1.0)
        } else {
            ((1.0 + self.alpha) * rtt).max(MIN_RTO_NS as f64)
        };
        Some(Model::SelectiveRepeat { rto_rtts: rto_ns / rtt })
    }

    fn sender(&self, shape: &Shape) -> Box<dyn SchemeSender> {
        Box::new(Repeater::new(shape, self.alpha))
    }

    fn receiver(&self, shape: &Shape) -> Box<dyn SchemeReceiver> {
        Box::new(Acknowledger::new(shape, self.nack))
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct ChunkState {
    /// Receivers that have acknowledged it, as a bit set.
    acked: u64,
    /// Queued to be sent, and not left yet.
    queued: bool,
    /// When it last left.
    sent: Option<Time>,
}

/// The sending end, which is also the fallback of erasure coding.
pub(super) struct Repeater {
    alpha: f64,
    chunks: Vec<ChunkState>,
    /// All receivers, as a bit set, and each one's cumulative acknowledgement.
    all: u64,
    first_unacked: Vec<u32>,
    /// Chunks in the order in which they left.
    flights: VecDeque<(Time, u32)>,
}

impl Repeater {
    pub(super) fn new(shape: &Shape, alpha: f64) -> Repeater {
        Repeater {
            alpha,
            chunks: vec![ChunkState::default(); shape.chunks() as usize],
            all: 1,
            first_unacked: vec![0],
            flights: VecDeque::new(),
        }
    }

    fn rto_ns(&self, cx: &SendCx<'_>) -> u64 {
        ((cx.rtt_ns() as f64 * (1.0 + self.alpha)) as u64).max(MIN_RTO_NS)
    }

    /// Learns how many receivers there are.
    pub(super) fn meet(&mut self, cx: &SendCx<'_>) {
        self.all = cx.live_members();
        self.first_unacked = vec![0; cx.members()];
    }

    /// Whether all receivers have a chunk.
    fn is_acked(&self, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).is_none_or(|state| state.acked & self.all == self.all)
    }

    /// A chunk is about to be sent for the first time.
    pub(super) fn queued(&mut self, chunk: u32) {
        self.chunks[chunk as usize].queued = true;
    }

    /// A data chunk has left.
    pub(super) fn left(&mut self, now: Time, chunk: u32) {
        let is_acked = self.is_acked(chunk);
        if let Some(state) = self.chunks.get_mut(chunk as usize) {
            state.queued = false;
            state.sent = Some(now);
            if !is_acked {
                self.flights.push_back((now, chunk));
            }
        }
    }

    fn ack(&mut self, chunk: u32, member: usize) {
        if let Some(state) = self.chunks.get_mut(chunk as usize) {
            state.acked |= 1 << member;
        }
    }

    /// Retransmits a chunk that the current member lacks, unless it is queued, or left so recently
    /// that the report predates it.
    pub(super) fn repeat(&mut self, cx: &mut SendCx<'_>, chunk: u32) {
        let Some(state) = self.chunks.get_mut(chunk as usize) else { return };
        let Some(sent) = state.sent else { return };
        let rtt = cx.rtt_ns();
        let recent = cx.now().nanos_since(sent) < rtt - rtt / 16;
        let has_it = state.acked >> cx.member() & 1 != 0;
        if !has_it && !state.queued && !recent {
            state.queued = true;
            cx.send_again(Part::Data(chunk));
        }
    }

    /// Retransmits what has not been acknowledged in time, and sets the timer for the next.
    pub(super) fn expire(&mut self, cx: &mut SendCx<'_>) {
        let rto = self.rto_ns(cx);
        // One may have been evicted.
        self.all = cx.live_members();
        while let Some((sent, chunk)) = self.flights.front().copied() {
            let state = self.chunks[chunk as usize];
            let stale = self.is_acked(chunk) || state.sent != Some(sent);
            if !stale && cx.now().nanos_since(sent) < rto {
                cx.set_timer(Some(sent.plus_nanos(rto)));
                return;
            }
            self.flights.pop_front();
            if !stale && !state.queued {
                self.chunks[chunk as usize].queued = true;
                cx.send_again(Part::Data(chunk));
            }
        }
        cx.set_timer(None);
    }
}

impl SchemeSender for Repeater {
    fn start(&mut self, cx: &mut SendCx<'_>) {
        self.meet(cx);
        for chunk in 0..cx.shape().chunks() {
            self.queued(chunk);
            cx.send(Part::Data(chunk));
        }
    }

    fn injected(&mut self, cx: &mut SendCx<'_>, part: Part) {
        if let Part::Data(chunk) = part {
            let first = self.flights.is_empty();
            self.left(cx.now(), chunk);
            if first {
                self.expire(cx);
            }
        }
    }

    fn control(&mut self, cx: &mut SendCx<'_>, message: &[u8]) {
        let Some(ack) = Ack::parse(message) else { return };
        let member = cx.member();
        let Some(first) = self.first_unacked.get(member).copied() else { return };
        for chunk in first..ack.cumulative.min(self.chunks.len() as u32) {
            self.ack(chunk, member);
        }
        self.first_unacked[member] = first.max(ack.cumulative);
        for (index, byte) in ack.bitmap.iter().enumerate() {
            for bit in (0..8).filter(|bit| byte >> bit & 1 != 0) {
                self.ack(ack.cumulative.saturating_add(index as u32 * 8 + bit), member);
            }
        }
        // Chunks beyond the bitmap are not known to be missing.
        let known = ack.cumulative.saturating_add(ack.bitmap.len() as u32 * 8);
        for chunk in ack.cumulative..ack.missing_below.min(known).min(self.chunks.len() as u32) {
            self.repeat(cx, chunk);
        }
        self.expire(cx);
    }

    fn timeout(&mut self, cx: &mut SendCx<'_>) {
        self.expire(cx);
    }
}

/// An acknowledgement.
struct Ack<'a> {
    /// All chunks below this have arrived.
    cumulative: u32,
    /// Missing chunks below this were passed over: a NACK, if it is above `cumulative`.
    missing_below: u32,
    /// Chunks that have arrived, from `cumulative` on.
    bitmap: &'a [u8],
}

impl Ack<'_> {
    fn parse(bytes: &[u8]) -> Option<Ack<'_>> {
        let (head, bitmap) = bytes.split_first_chunk::<ACK_HEADER>()?;
        let (cumulative, missing_below) = head.split_first_chunk::<4>()?;
        Some(Ack {
            cumulative: u32::from_be_bytes(*cumulative),
            missing_below: u32::from_be_bytes(missing_below.try_into().ok()?),
            bitmap,
        })
    }
}

/// The receiving end.
struct Acknowledger {
    nack: bool,
    chunks: u32,
    cumulative: u32,
    /// One past the highest chunk that has arrived.
    high: u32,
    last_progress: Time,
    last_ack: Option<Time>,
    /// There are no gaps below this that have not been reported.
    reported: u32,
    last_nack: Option<Time>,
}

impl Acknowledger {
    fn new(shape: &Shape, nack: bool) -> Acknowledger {
        Acknowledger {
            nack,
            chunks: shape.chunks(),
            cumulative: 0,
            high: 0,
            last_progress: Time::ZERO,
            last_ack: None,
            reported: 0,
            last_nack: None,
        }
    }

    fn look(&mut self, cx: &RecvCx<'_>) {
        while self.cumulative < self.chunks && cx.has(Part::Data(self.cumulative)) {
            self.cumulative += 1;
        }
        self.high = cx.high_data(self.high);
    }

    /// Acknowledges what has arrived, and reports that chunks missing below `missing_below` were
    /// passed over.
    fn acknowledge(&mut self, cx: &mut RecvCx<'_>, missing_below: u32) {
        let mut bytes = [0; ACK_HEADER + ACK_BITMAP];
        bytes[..4].copy_from_slice(&self.cumulative.to_be_bytes());
        bytes[4..8].copy_from_slice(&missing_below.to_be_bytes());
        let bits = (self.chunks - self.cumulative).min(ACK_BITMAP as u32 * 8);
        let (mut chunk, end) = (self.cumulative, self.cumulative + bits);
        while chunk < end {
            // Group by group, because each takes a look-up.
            let group = cx.shape().group_of(chunk);
            let (of_group, present) = (cx.shape().group(group), cx.present(group));
            for chunk in chunk..of_group.end.min(end) {
                if present.contains((chunk - of_group.start) as usize) {
                    let bit = chunk - self.cumulative;
                    bytes[ACK_HEADER + bit as usize / 8] |= 1 << (bit % 8);
                }
            }
            chunk = of_group.end;
        }
        self.last_ack = Some(cx.now());
        if missing_below > self.cumulative {
            self.last_nack = Some(cx.now());
        }
        cx.tell(&bytes[..ACK_HEADER + bits.div_ceil(8) as usize]);
    }

    fn ack_ns(cx: &RecvCx<'_>) -> u64 {
        (cx.rtt_ns() / 8).max(MIN_ACK_NS)
    }

    /// Whether there is an unreported gap.
    fn has_new_gap(&self, cx: &RecvCx<'_>, below: u32) -> bool {
        (self.reported.max(self.cumulative)..below).any(|chunk| !cx.has(Part::Data(chunk)))
    }

    fn arm(&self, cx: &mut RecvCx<'_>) {
        let acked = self.last_ack.unwrap_or(Time::ZERO);
        // An acknowledgement is due if something has arrived since the last.
        let ack = (self.last_progress > acked).then(|| acked.plus_nanos(Self::ack_ns(cx)));
        // A message of which nothing has arrived may still be waiting at the sender.
        let nack = (self.nack && self.high > 0).then(|| self.nack_at(cx));
        let at = match (ack, nack) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        cx.set_timer(at);
    }

    /// When to request everything that is missing: the end of the message may be lost, and with it
    /// what would have revealed the gap; or a retransmission may be lost.
    fn nack_at(&self, cx: &RecvCx<'_>) -> Time {
        let rtt = cx.rtt_ns();
        let idle = self.last_progress.plus_nanos((rtt / 8).max(MIN_IDLE_NS));
        match self.last_nack {
            Some(at) => idle.max(at.plus_nanos(rtt + (rtt / 8).max(MIN_IDLE_NS))),
            None => idle,
        }
    }
}

impl SchemeReceiver for Acknowledger {
    fn progress(&mut self, cx: &mut RecvCx<'_>) {
        self.last_progress = cx.now();
        self.look(cx);
        if self.cumulative == self.chunks {
            cx.complete();
            return;
        }
        let below = self.high.saturating_sub(REORDER);
        let is_new_gap = self.nack && self.has_new_gap(cx, below);
        // What has been looked at is either there or about to be reported.
        self.reported = self.reported.max(below);
        if is_new_gap {
            self.acknowledge(cx, below);
        } else if self.last_ack.is_none_or(|at| cx.now().nanos_since(at) >= Self::ack_ns(cx)) {
            self.acknowledge(cx, 0);
        }
        self.arm(cx);
    }

    fn probe(&mut self, cx: &mut RecvCx<'_>) {
        self.look(cx);
        let below = if self.nack { self.chunks } else { 0 };
        self.acknowledge(cx, below);
        self.arm(cx);
    }

    fn timeout(&mut self, cx: &mut RecvCx<'_>) {
        self.look(cx);
        if self.nack && self.high > 0 && cx.now() >= self.nack_at(cx) {
            self.acknowledge(cx, self.chunks);
        } else {
            self.acknowledge(cx, 0);
        }
        self.arm(cx);
    }
}
