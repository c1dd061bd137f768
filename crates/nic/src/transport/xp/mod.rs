//! XP, OptiNIC's transport: self-describing packets, and requests that end by their deadline. No
//! acknowledgements, retransmissions or ordering. `docs/xp.md` has the rules and the reasons.

mod arrivals;
mod control;
mod layout;
mod loss;
mod reads;
mod requester;
mod responder;

use bowline_wire::{OpKind, Opcode, OpcodeSet, PacketView, Psn, Service, XpEth};

use self::control::{Answering, Probing};
pub(crate) use self::layout::max_stride;
use self::loss::LossLog;
pub use self::loss::LossRecord;
use self::reads::{Reading, Serving};
use self::responder::Slot;
use super::Transport;
use super::descriptor::{MAX_PSNS, Operations, TransportDescriptor};
use crate::frame::FrameMeta;
use crate::qp::{Cx, Progress, QpCore, Sink};
use crate::time::Time;
use crate::train::Train;
use crate::types::{QpState, WcStatus};

/// Properties of XP.
pub(super) static DESCRIPTOR: TransportDescriptor = TransportDescriptor {
    name: "XP",
    service: Service::Xp,
    opcodes: OpcodeSet::range(Opcode::XP_SEND_MIDDLE, Opcode::XP_READ_RESP_LAST)
        .union(OpcodeSet::of(&[Opcode::XP_PROBE, Opcode::XP_FEEDBACK])),
    operations: Operations::SEND
        .union(Operations::SEND_IMM)
        .union(Operations::WRITE)
        .union(Operations::WRITE_IMM)
        .union(Operations::READ)
        .union(Operations::WINDOWS),
    max_packets: MAX_PSNS,
    connected: true,
    reliable: false,
    shimmable: false,
    movable: false,
    landings: false,
    deadlines: true,
    addressed: false,
    annotated: true,
    build: || Box::<Xp>::default(),
};

/// How an XP QP receives: see [`Nic::set_xp`](crate::Nic::set_xp).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XpOptions {
    /// Messages that may be in progress at once: 1, 2, 4, 8 or 16. A message ends when this many
    /// later ones have begun.
    pub window: u8,
    /// How long a message waits for missing fragments once its last one has arrived. 0 ends it at
    /// once.
    pub grace_ns: u64,
    /// Number of loss records kept for partial messages; the oldest are dropped.
    pub loss_log: u32,
}

impl Default for XpOptions {
    /// As in the paper: one message at a time, ended by its last fragment.
    fn default() -> Self {
        XpOptions { window: 1, grace_ns: 0, loss_log: 0 }
    }
}

/// Widest window.
const MAX_WINDOW: u8 = 16;

impl XpOptions {
    /// Whether the values are supported.
    pub(crate) fn is_valid(&self) -> bool {
        self.window.is_power_of_two() && self.window <= MAX_WINDOW
    }
}

/// The XP transport: all that a QP needs while its messages arrive in order, one at a time.
#[derive(Debug)]
pub(crate) struct Xp {
    /// Number of the request at the head of the queue.
    next_seq: u32,
    /// Earlier messages that consume a receive.
    next_recv: u32,
    /// Its next packet to send.
    next_packet: u32,
    /// Highest number seen among the peer's messages.
    top_seq: u32,
    /// Receives below this number are given up, posted or not.
    floor: u32,
    /// Bit i: message `top_seq - i` has ended.
    ended: u16,
    /// Messages that may be in progress at once: a power of two.
    window: u8,
    /// No deadline is earlier than this.
    wake: Time,
    /// The message in progress, if only one may be.
    slot: Slot,
    more: Option<Box<More>>,
}

/// State that a QP needs once something is missing or out of order, once it READs or is READ from,
/// and for options.
#[derive(Debug, Default)]
struct More {
    /// Messages in progress by their receive's number modulo the window, if several may be.
    slots: Vec<Slot>,
    /// Fragments of each slot after a missing one.
    bits: Vec<Vec<u64>>,
    reading: Reading,
    serving: Serving,
    grace_ns: u64,
    log: LossLog,
    probing: Option<Box<Probing>>,
    answering: Option<Box<Answering>>,
}

// OptiNIC's Table 4 has 52 bytes.
const _: () = assert!(size_of::<Xp>() <= 64);

impl Default for Xp {
    fn default() -> Self {
        Xp {
            next_seq: 0,
            next_recv: 0,
            next_packet: 0,
            top_seq: 0,
            floor: 0,
            ended: !0,
            window: 1,
            wake: Time::NEVER,
            slot: Slot::default(),
            more: None,
        }
    }
}

/// The first number of a connection's messages, receives and READs. It spreads the token's bits
/// over all 32, so that a test can start where numbers wrap around.
fn first_number(token: Psn) -> u32 {
    token.get() << 8 | token.get() & 0xff
}

/// Whether number `a` comes before number `b`.
#[inline]
fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

impl Transport for Xp {
    fn entered(&mut self, core: &mut QpCore, from: QpState) {
        match core.state {
            QpState::Rtr => {
                let first = first_number(core.attrs.rq_psn);
                self.top_seq = first.wrapping_sub(1);
                self.floor = first;
                core.rq.shift_numbers(first);
            }
            QpState::Rts if from == QpState::Rtr => {
                let first = first_number(core.attrs.sq_psn);
                (self.next_seq, self.next_recv) = (first, first);
            }
            _ => {}
        }
    }

    fn receive(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
        meta: Option<&FrameMeta>,
    ) -> bool {
        let Some(eth) = packet.xpeth() else {
            return self.receive_control(core, cx, packet);
        };
        if eth.token != core.attrs.rq_psn {
            cx.counters.drop_token += 1;
            return false;
        }
        let marked = meta.is_some_and(FrameMeta::congestion_experienced);
        self.count_arrival(packet.as_bytes().len() as u64, marked);
        let wake = self.wake;
        let follows = match packet.info().kind {
            OpKind::Send | OpKind::Write => {
                self.receive_message(core, cx, packet, &eth);
                false
            }
            OpKind::ReadRequest => self.receive_read_request(core, cx, packet, &eth),
            _ => self.receive_read_response(core, cx, packet, &eth),
        };
        follows || self.wake < wake || core.has_failed()
    }

    fn receive_train(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, train: &mut Train<'_>) -> u32 {
        let eth = train.ext().first_chunk().map(XpEth::parse);
        let Some(eth) = eth.filter(|eth| eth.token == core.attrs.rq_psn) else { return 0 };
        let frame_len = train.frame_len() as u64;
        let taken = match train.kind() {
            OpKind::ReadResponse => self.receive_answers(core, cx, train, &eth),
            _ => self.receive_fragments(core, cx, train, &eth),
        };
        self.count_arrival(u64::from(taken) * frame_len, false);
        taken
    }

    fn transmit(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        if self.wake <= cx.now {
            self.expire(core, cx);
        }
        self.begin_probing(core);
        self.answer_probe(core, cx, sink);
        let progress = self.transmit_data(core, cx, sink, budget);
        self.probe(core, cx, sink, progress);
        progress
    }

    fn has_work(&self, core: &QpCore) -> bool {
        self.has_requests(core)
            || self.has_control()
            || self.more.as_ref().is_some_and(|more| more.serving.is_busy())
    }

    fn deadline(&self) -> Time {
        self.wake.min(self.probe_deadline())
    }

    fn in_flight_bytes(&self, _core: &QpCore) -> Option<u64> {
        self.in_flight()
    }

    fn grant(&mut self, bytes: u64) {
        Xp::grant(self, bytes);
    }

    fn handle_timeout(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        if self.wake <= cx.now {
            self.expire(core, cx);
        }
        self.expire_probe(core, cx);
    }

    fn posted(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, deadline: Time) {
        self.wake = self.wake.min(deadline);
        // A receive whose message was given up before the receive was posted.
        self.give_up_before(core, cx, self.floor);
    }

    fn set_options(&mut self, options: &XpOptions) {
        self.window = options.window;
        let window = usize::from(options.window);
        let more = self.more();
        more.slots = vec![Slot::default(); if window > 1 { window } else { 0 }];
        more.grace_ns = options.grace_ns;
        more.log = LossLog::new(options.loss_log);
    }

    fn take_loss(&mut self) -> Option<LossRecord> {
        self.more.as_mut()?.log.pop()
    }

    fn round_trip_ns(&self) -> Option<u64> {
        self.more.as_ref()?.probing.as_ref()?.round_trip_ns()
    }

    fn is_drained(&self, _core: &QpCore) -> bool {
        self.next_packet == 0
    }

    fn abort(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.flush_requests(core, cx, WcStatus::WrFlushErr);
        self.flush_receives(core, cx);
        self.wake = Time::NEVER;
        if let Some(grants) = cx.grants {
            grants.set_want(core.index as usize, 0);
        }
        if let Some(more) = &mut self.more {
            more.serving.stop();
            (more.probing, more.answering) = (None, None);
        }
    }
}

impl Xp {
    /// Sends up to `budget` packets of responses and requests.
    fn transmit_data(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        sink: &mut Sink<'_>,
        budget: u32,
    ) -> Progress {
        // Responses go first, but leave half of a turn to requests.
        let requests = self.has_requests(core);
        let answers = if requests { budget / 2 } else { budget };
        let (sent, progress) = self.transmit_answers(core, cx, sink, answers);
        if !requests || matches!(progress, Progress::Paced | Progress::WindowFull) {
            return progress;
        }
        let requests = self.transmit_requests(core, cx, sink, budget - sent);
        if progress == Progress::More { Progress::More } else { requests }
    }

    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn grace_ns(&self) -> u64 {
        self.more.as_ref().map_or(0, |more| more.grace_ns)
    }

    /// Ends what is due, and determines what is due next.
    fn expire(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        self.wake = Time::NEVER;
        self.expire_receives(core, cx);
        self.expire_requests(core, cx);
    }
}
