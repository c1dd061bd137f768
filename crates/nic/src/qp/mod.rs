//! A queue pair: the part common to all transports.

mod aside;
mod attrs;
pub(crate) mod body;
mod keepalive;
pub(crate) mod peer_memory;
mod sink;
pub(crate) mod state;

use bowline_wire::{Bth, FlowKey, OpKind, Opcode, PacketView, Psn, Qpn};

use crate::admit::Admission;
use crate::config::NicConfig;
use crate::counters::{Counters, QpCounters};
use crate::direct::Reach;
use crate::events::EventQueue;
use crate::frame::ECN_ECT0;
use crate::landing::{Landed, Landing};
use crate::memory::{MemoryTable, Peer, Segment};
use crate::queue::{CqTable, RecvQueue, RecvWqe, SendQueue, SrqTable, Wqe};
use crate::rate::{ControlledConnection, Grantor};
use crate::sched::{Limits, Pacer, PathTable, Standing};
use crate::seal::{OpenPackets, SealPackets};
use crate::shim::{Chain, Shim, ShimPeer};
use crate::time::Time;
use crate::transport::{Transport, TransportDescriptor};
use crate::tx::{Flow, TxBatch};
use crate::types::{
    Access, AddressVector, Completion, EndMark, Event, Mtu, QpAttr, QpInit, QpState, SendFlags,
    SendOp, WcOpcode, WcStatus,
};
use aside::Aside;
use attrs::Attrs;
use body::TwoSided;
pub(crate) use body::{Hold, Moving};
pub(crate) use keepalive::Keepalive;
use peer_memory::PeerMemory;
pub(crate) use sink::Sink;
use sink::count_sent;

/// The parts of its NIC that a QP may use while it handles one call.
pub(crate) struct Cx<'a> {
    pub(crate) now: Time,
    pub(crate) memory: &'a mut MemoryTable,
    pub(crate) cqs: &'a mut CqTable,
    pub(crate) srqs: &'a mut SrqTable,
    pub(crate) paths: &'a mut PathTable,
    /// The grantor of credit, if this NIC grants any.
    pub(crate) grants: &'a mut Option<Grantor>,
    pub(crate) counters: &'a mut Counters,
    pub(crate) events: &'a mut EventQueue,
    pub(crate) config: &'a NicConfig,
    /// Reused for each packet's gather list.
    pub(crate) segments: &'a mut Vec<Segment>,
    /// Packets to notify landings of once everything that arrived has been handled.
    pub(crate) landed: &'a mut Vec<Landed>,
    /// The packet being handled did not arrive alone.
    pub(crate) together: bool,
}

impl Cx<'_> {
    pub(crate) fn event(&mut self, event: Event) {
        self.events.push(event, self.counters);
    }
}

/// How a QP fails; [`Qp::finish_call`] acts on it once the transport has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The whole QP stops.
    Whole,
    /// Only sending stops: for unreliable transports.
    SendQueue,
    /// The peer cannot be reached.
    Path,
}

/// The part of a QP that every transport needs.
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    /// The QPN that completions and events name: that of the QP that the program created, wherever
    /// its queues are now.
    pub(crate) reported: Qpn,
    /// Two-sided messages completed, in each direction.
    pub(crate) two_sided: TwoSided,
    /// Slot in the NIC's table.
    pub(crate) index: u32,
    pub(crate) init: QpInit,
    /// Its transport.
    pub(crate) descriptor: &'static TransportDescriptor,
    pub(crate) state: QpState,
    pub(crate) attrs: Attrs,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    /// The flow to the peer, for a connected QP.
    flow: Option<Flow>,
    /// Seals what the QP sends, until a flow to the peer takes it over.
    pub(crate) sealer: Option<Box<dyn SealPackets>>,
    pub(crate) limits: Limits,
    /// Single-packet WRITEs with immediate go to a landing instead of the receive queue.
    pub(crate) lands: bool,
    /// Short WRITEs may be sent as one WRITE per packet. Constant for the life of the connection:
    /// retransmitted packets must equal the originals.
    pub(crate) splits_writes: bool,
    pub(crate) counters: QpCounters,
    /// What sets the peer's memory, or access to it, apart. Boxed, because few QPs have any of it.
    pub(crate) peer_memory: Option<Box<PeerMemory>>,
    failure: Option<Failure>,
    /// Packets to send in addition to the transport's.
    asides: Aside,
    /// No CNP before this.
    next_cnp: Time,
}

/// Shortest time between two CNPs of a QP: N in the DCQCN paper.
const CNP_INTERVAL_NS: u64 = 50_000;

impl QpCore {
    fn new(qpn: Qpn, index: u32, init: &QpInit, max_mtu: Mtu) -> QpCore {
        let own_rq = if init.srq.is_some() { 0 } else { init.max_recv_wr };
        let rq = RecvQueue::new(own_rq, init.max_recv_sge);
        QpCore {
            qpn,
            reported: qpn,
            two_sided: TwoSided::default(),
            index,
            init: *init,
            descriptor: init.qp_type.descriptor(),
            state: QpState::Reset,
            attrs: Attrs::new(max_mtu),
            sq: SendQueue::new(init),
            rq: if init.qp_type.descriptor().deadlines { rq.with_numbers() } else { rq },
            flow: None,
            sealer: None,
            limits: Limits {
                path: None,
                called: false,
                window: None,
                pacer: Pacer::new(
                    Time::ZERO,
                    None,
                    &ControlledConnection::new(init.qp_type.descriptor(), max_mtu),
                ),
                controllers: None,
            },
            lands: false,
            splits_writes: true,
            counters: QpCounters::default(),
            failure: None,
            peer_memory: None,
            asides: Aside::empty(),
            next_cnp: Time::ZERO,
        }
    }

    #[inline]
    pub(crate) fn mtu(&self) -> u32 {
        self.attrs.mtu.bytes()
    }

    /// The peer on whose behalf its packets access memory.
    #[inline]
    pub(crate) fn peer(&self) -> Peer {
        Peer { pd: self.init.pd, qpn: self.qpn }
    }

    /// A BTH to the peer.
    #[inline]
    pub(crate) fn bth(&self, opcode: Opcode, psn: Psn) -> Bth {
        Bth::new(opcode, self.attrs.dest_qpn, psn)
    }

    /// ECN bits for data packets.
    #[inline]
    pub(crate) fn data_ecn(&self) -> u8 {
        if self.limits.pacer.wants_ecn() { ECN_ECT0 } else { 0 }
    }

    /// Builds a new rate controller for the connection, with this QP's factory.
    pub(crate) fn build_controller(&mut self, now: Time) {
        let connection = ControlledConnection::new(self.descriptor, self.attrs.mtu);
        let factory = self.limits.controllers.as_deref();
        self.limits.pacer = Pacer::new(now, factory, &connection);
    }

    /// Connects the QP, which has left any other path, to its peer.
    pub(crate) fn connect(&mut self, av: AddressVector, config: &NicConfig, paths: &mut PathTable) {
        let out = FlowKey {
            src: config.addr,
            dst: av.dst,
            src_port: config.udp_port,
            dst_port: config.peer_udp_port,
        };
        let sealer = self.take_sealer();
        let mut flow = Flow::new(out, av.traffic_class & !crate::frame::ECN_MASK);
        flow.protect(sealer);
        self.flow = Some(flow);
        self.limits.path = Some(paths.acquire(av.dst, self.attrs.dest_qpn.prefix()));
    }

    /// Takes out the sealer, wherever it is.
    pub(crate) fn take_sealer(&mut self) -> Option<Box<dyn SealPackets>> {
        let in_flow = self.flow.as_mut().and_then(Flow::take_sealer);
        self.sealer.take().or(in_flow)
    }

    /// Passes the time to the sealer; returns whether there is one.
    #[inline]
    fn tell_sealer(&mut self, now: Time) -> bool {
        if let Some(sealer) = &mut self.sealer {
            sealer.set_time(now);
        }
        match &mut self.flow {
            Some(flow) if flow.is_protected() => {
                flow.set_time(now);
                true
            }
            _ => false,
        }
    }

    /// Sends a probe, which the peer answers.
    #[cold]
    pub(crate) fn ask_for_sign(&mut self) {
        self.asides.insert(Aside::PROBE);
    }

    /// Memory of the peer that it may write directly.
    #[inline]
    pub(crate) fn reach(&self) -> Option<&Reach> {
        self.peer_memory.as_ref()?.reach.as_ref()
    }

    /// Neither end writes the other's memory directly any longer.
    pub(crate) fn part_memory(&mut self) {
        if let Some(memory) = &mut self.peer_memory {
            (memory.reach, memory.door) = (None, None);
        }
    }

    /// Takes a receive for a message that begins; `false` if none is posted.
    pub(crate) fn take_recv(&mut self, cx: &mut Cx<'_>, wqe: &mut RecvWqe) -> bool {
        match self.init.srq {
            Some(srq) => cx.srqs.take(srq, wqe, cx.counters, cx.events),
            None => self.rq.take(wqe),
        }
    }

    /// Completes a send, if it asked for a completion.
    #[inline(never)]
    pub(crate) fn complete_send(&mut self, cx: &mut Cx<'_>, wqe: &Wqe, status: WcStatus) {
        if status == WcStatus::Success && !self.is_signaled(wqe.flags) {
            return;
        }
        let completion = Completion {
            wr_id: wqe.wr_id,
            status,
            opcode: wc_opcode(&wqe.op),
            byte_len: wqe.len,
            qpn: self.reported,
            ..Completion::default()
        };
        cx.cqs.push(self.init.send_cq, completion, cx.counters, cx.events);
    }

    /// Completes a send of which this many bytes were sent or read. An early end is reported even
    /// if no completion was asked for.
    pub(crate) fn complete_send_in_part(
        &mut self,
        cx: &mut Cx<'_>,
        wqe: &Wqe,
        byte_len: u32,
        end: EndMark,
    ) {
        if end == EndMark::Whole && !self.is_signaled(wqe.flags) {
            return;
        }
        let completion = Completion {
            wr_id: wqe.wr_id,
            status: WcStatus::Success,
            opcode: wc_opcode(&wqe.op),
            byte_len,
            end,
            qpn: self.reported,
            ..Completion::default()
        };
        cx.cqs.push(self.init.send_cq, completion, cx.counters, cx.events);
    }

    /// Completes a receive; the caller fills in the fields that vary.
    pub(crate) fn complete_recv(&mut self, cx: &mut Cx<'_>, completion: Completion) {
        let completion = Completion { qpn: self.reported, ..completion };
        cx.cqs.push(self.init.recv_cq, completion, cx.counters, cx.events);
    }

    /// Completes a receive with an error.
    pub(crate) fn fail_recv(&mut self, cx: &mut Cx<'_>, wr_id: u64, status: WcStatus) {
        let opcode = WcOpcode::Recv;
        self.complete_recv(cx, Completion { wr_id, status, opcode, ..Completion::default() });
    }

    /// Moves the QP to the error state as soon as the transport returns.
    pub(crate) fn fail(&mut self) {
        self.failure = Some(Failure::Whole);
    }

    /// Stops the send queue as soon as the transport returns.
    pub(crate) fn fail_send_queue(&mut self) {
        self.failure.get_or_insert(Failure::SendQueue);
    }

    /// The retries are exhausted: the QP is to fail, or to be suspended if it is guarded.
    pub(crate) fn give_up_path(&mut self) {
        self.failure = Some(Failure::Path);
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// Whether the transport takes a packet that shims hand up. An earlier packet may have failed
    /// the QP.
    pub(crate) fn takes(&self, packet: &PacketView<'_>) -> bool {
        !self.has_failed() && self.descriptor.opcodes.contains(packet.opcode())
    }

    /// The connection as shims see it.
    fn shim_peer(&self, rq_psn: Psn) -> ShimPeer {
        ShimPeer {
            transport: self.descriptor,
            mtu: self.attrs.mtu,
            dest_qpn: self.attrs.dest_qpn,
            rq_psn,
        }
    }

    /// Whether a request asks for a completion.
    #[inline]
    fn is_signaled(&self, flags: SendFlags) -> bool {
        self.init.signal_all || flags.contains(SendFlags::SIGNALED)
    }

    pub(crate) fn flush_send_queue(&mut self, cx: &mut Cx<'_>) {
        while let Some(wqe) = self.sq.pop() {
            self.complete_send(cx, &wqe, WcStatus::WrFlushErr);
        }
    }

    pub(crate) fn flush_recv_queue(&mut self, cx: &mut Cx<'_>) {
        let mut wqe = RecvWqe::default();
        while self.rq.take(&mut wqe) {
            self.fail_recv(cx, wqe.wr_id, WcStatus::WrFlushErr);
        }
    }

    /// A frame arrived with a congestion mark: notifies the sender, with a rate limit. If the frame
    /// answers a request of ours, our own controller can react too.
    #[cold]
    pub(crate) fn on_ecn_mark(&mut self, now: Time, packet: &PacketView<'_>) {
        if packet.info().kind == OpKind::ReadResponse {
            let bytes = packet.payload().len() as u64;
            self.limits.pacer.tell(now, |controller| controller.on_marked(now, bytes));
        }
        if now >= self.next_cnp {
            self.next_cnp = now.plus_nanos(CNP_INTERVAL_NS);
            self.asides.insert(Aside::CNP);
        }
    }
}

/// Which kind of completion a request gets.
#[inline]
fn wc_opcode(op: &SendOp) -> WcOpcode {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) => WcOpcode::Send,
        SendOp::Write(_) | SendOp::WriteImm(..) | SendOp::WritePackets(..) => WcOpcode::Write,
        SendOp::Read(_) => WcOpcode::Read,
        SendOp::CompareSwap { .. } => WcOpcode::CompareSwap,
        SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
        SendOp::BindWindow(_) => WcOpcode::BindWindow,
        SendOp::LocalInvalidate(_) => WcOpcode::LocalInvalidate,
    }
}

/// Why a QP stopped transmitting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Nothing to send until something happens.
    Idle,
    /// There is more: its turn ended, or the batch is full.
    More,
    /// There is more, and part of the turn was spent without packets.
    Copied,
    /// Its rate does not allow more before [`Pacer::next`].
    Paced,
    /// The window that it shares with others is full.
    PathFull,
    /// Its own window is full.
    WindowFull,
}

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) core: QpCore,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) shims: Chain,
    /// What admission remembers about the peer.
    pub(crate) admission: Admission,
    /// What holds the QP back while its connection moves.
    pub(crate) moving: Moving,
    /// Watches a silent peer.
    pub(crate) keepalive: Option<Box<Keepalive>>,
    /// Notified of single-packet WRITEs with immediate.
    pub(crate) landing: Option<Box<dyn Landing>>,
    pub(crate) standing: Standing,
    /// Opens what arrives, if the connection is sealed: then nothing else is accepted. A thin
    /// pointer, because most QPs have none.
    pub(crate) opener: Option<Box<Box<dyn OpenPackets>>>,
}

impl Qp {
    pub(crate) fn new(qpn: Qpn, index: u32, init: &QpInit, config: &NicConfig) -> Qp {
        Qp {
            core: QpCore::new(qpn, index, init, config.max_mtu),
            transport: (init.qp_type.descriptor().build)(),
            shims: Chain::default(),
            admission: Admission::default(),
            moving: Moving::default(),
            keepalive: None,
            landing: None,
            standing: Standing::default(),
            opener: None,
        }
    }

    /// A QP without queues, to which another QP's will be attached.
    pub(crate) fn spare(qpn: Qpn, index: u32, init: &QpInit, config: &NicConfig) -> Qp {
        let bare = QpInit { max_send_wr: 0, max_recv_wr: 0, ..*init };
        let mut qp = Qp::new(qpn, index, &bare, config);
        qp.core.init = *init;
        qp.core.sq = SendQueue::placeholder();
        qp.moving.hold = Hold::Away;
        qp
    }

    /// Adds a shim below the QP, outside of all others.
    pub(crate) fn push_shim(&mut self, shim: Box<dyn Shim>) {
        self.shims.push(shim, self.core.descriptor);
        // A code closes its block at the end of a message: one message per packet would double the
        // traffic.
        self.core.splits_writes = false;
    }

    /// A request was posted: if a fence waits for it, requests behind it are withheld.
    #[inline]
    pub(crate) fn posted(&mut self, flags: SendFlags) {
        if self.moving.fence_wanted && self.core.is_signaled(flags) {
            self.moving.fence_wanted = false;
            let tail = self.core.sq.tail();
            let from = self.core.sq.withheld_from().map_or(tail, |withheld| withheld.min(tail));
            self.core.sq.withhold_from(from);
            // Requests that waited for a key now wait for the fence as well.
            self.moving.starved = false;
        }
        if self.core.peer_keys().is_some() {
            self.starve(self.core.sq.tail() - 1);
        }
    }

    /// Whether a call to [`Qp::transmit`] might send something.
    pub(crate) fn wants_transmit(&self) -> bool {
        !self.moving.hold.is_deaf()
            && (!self.core.asides.is_empty() || self.transport.has_work(&self.core))
    }

    /// The earliest of its deadlines.
    #[inline]
    pub(crate) fn deadline(&self) -> Time {
        if self.moving.hold.is_deaf() {
            return Time::NEVER;
        }
        let mut at = self.transport.deadline();
        if let Some(watch) = &self.keepalive {
            at = at.min(watch.deadline());
        }
        if self.standing.paced {
            at = at.min(self.core.limits.pacer.next());
        }
        at.min(self.shims.deadline())
    }

    /// Sends up to `budget` packets.
    pub(crate) fn transmit(
        &mut self,
        cx: &mut Cx<'_>,
        batch: &mut TxBatch,
        budget: u32,
    ) -> Progress {
        self.standing.paced = false;
        if self.moving.hold.is_deaf() {
            return Progress::Idle;
        }
        let is_sealed = self.core.tell_sealer(cx.now);
        if self.shims_are_due(cx.now) {
            if batch.room() < self.shims.max_out() {
                return Progress::More;
            }
            self.shims_timeout(cx, batch);
        }
        if !self.core.asides.is_empty() && batch.room() > 0 {
            self.send_asides(cx, batch, is_sealed);
        }
        self.core.limits.pacer.begin_turn(cx.now);
        let mut sink = Sink::new(batch, &mut self.shims, is_sealed);
        if !sink.has_room() {
            return Progress::More;
        }
        let progress = self.transport.transmit(&mut self.core, cx, &mut sink, budget);
        sink.finish(&mut self.core, cx);
        self.standing.paced = progress == Progress::Paced;
        if progress == Progress::Idle {
            self.core.limits.pacer.rest(cx.now);
        }
        if self.core.limits.pacer.is_controlled() {
            let in_flight = self.transport.in_flight_bytes(&self.core);
            self.core.limits.pacer.end_turn(cx.now, in_flight, progress == Progress::Idle);
        }
        self.finish_call(cx);
        if self.core.state == QpState::Err && self.transport.has_work(&self.core) {
            // It has just failed, and must still tell the peer why.
            return Progress::More;
        }
        // A shim's additions to the packets just sent do not wait for others.
        if self.shims_are_due(cx.now) { Progress::More } else { progress }
    }

    fn shims_are_due(&self, now: Time) -> bool {
        self.shims.deadline() <= now
    }

    fn shims_timeout(&mut self, cx: &mut Cx<'_>, batch: &mut TxBatch) {
        let Some(mut flow) = self.core.flow.take() else {
            return;
        };
        let (core, transport) = (&mut self.core, &mut self.transport);
        let (now, ecn) = (cx.now, core.data_ecn());
        let to = (batch, &mut flow);
        let (packets, bytes) = self.shims.handle_timeout(now, to, ecn, &mut |packet| {
            if core.takes(packet) {
                transport.receive(core, cx, packet, None);
            }
        });
        count_sent(core, cx, packets, bytes);
        core.flow = Some(flow);
        self.finish_call(cx);
    }

    /// Carries out a failure that the transport has asked for, and reports a drained send queue.
    pub(crate) fn finish_call(&mut self, cx: &mut Cx<'_>) {
        match self.core.failure.take() {
            None => {}
            Some(Failure::Whole) => self.enter_error(cx),
            Some(Failure::SendQueue) => {
                self.core.state = QpState::Sqe;
                self.core.flush_send_queue(cx);
            }
            Some(Failure::Path) if self.moving.guarded => {
                self.moving.hold = Hold::All;
                cx.event(Event::PathFailed(self.core.qpn));
            }
            Some(Failure::Path) => self.fail_unreachable(cx),
        }
        if self.core.state == QpState::Sqd
            && self.core.attrs.sqd_notify
            && self.transport.is_drained(&self.core)
        {
            self.core.attrs.sqd_notify = false;
            cx.event(Event::SqDrained(self.core.reported));
        }
    }

    /// To the error state: the oldest request has exhausted its retries.
    pub(crate) fn fail_unreachable(&mut self, cx: &mut Cx<'_>) {
        if let Some(wqe) = self.core.sq.pop() {
            self.core.complete_send(cx, &wqe, WcStatus::RetryExcErr);
        }
        if self.keepalive.is_some() {
            cx.event(Event::PeerLost(self.core.reported));
        }
        self.enter_error(cx);
    }

    /// To the error state: everything outstanding is flushed.
    pub(crate) fn enter_error(&mut self, cx: &mut Cx<'_>) {
        self.core.state = QpState::Err;
        self.core.failure = None;
        self.core.part_memory();
        self.shims.stop();
        self.transport.abort(&mut self.core, cx);
        self.core.flush_send_queue(cx);
        self.core.flush_recv_queue(cx);
        if self.core.init.srq.is_some() {
            cx.event(Event::LastWqeReached(self.core.reported));
        }
    }

    /// Back to the state it was created in; outstanding requests vanish.
    pub(crate) fn reset(&mut self, cx: &mut Cx<'_>) {
        self.shims.stop();
        self.transport.abort(&mut self.core, cx);
        self.transport = (self.core.descriptor.build)();
        self.leave_path(cx.paths);
        self.admission = Admission::default();
        self.keepalive = None;
        self.moving.let_go();
        self.standing.paced = false;
        let core = &mut self.core;
        core.sq.clear();
        core.rq.clear();
        core.sq.release();
        cx.cqs.purge(core.init.send_cq, core.reported);
        cx.cqs.purge(core.init.recv_cq, core.reported);
        core.state = QpState::Reset;
        core.two_sided = TwoSided::default();
        core.attrs = Attrs::new(cx.config.max_mtu);
        core.flow = None;
        core.sealer = None;
        core.part_memory();
        core.failure = None;
        core.asides = Aside::empty();
        core.next_cnp = Time::ZERO;
        self.opener = None;
    }

    /// Applies attributes that [`state::check`] has accepted.
    pub(crate) fn apply(&mut self, attr: &QpAttr, cx: &mut Cx<'_>) {
        let from = self.core.state;
        let to = attr.state.unwrap_or(from);
        if to == QpState::Reset {
            return self.reset(cx);
        }
        state::assign(&mut self.core.attrs, attr);
        if !self.core.attrs.access.contains(Access::REMOTE_WRITE)
            && let Some(memory) = &mut self.core.peer_memory
        {
            memory.door = None;
        }
        if let Some(av) = attr.av {
            self.leave_path(cx.paths);
            self.admission.forget_flow();
            self.core.connect(av, cx.config, cx.paths);
        }
        if to == QpState::Err {
            return self.enter_error(cx);
        }
        self.core.state = to;
        if from != to {
            self.transport.entered(&mut self.core, from);
        }
        if from != to && to == QpState::Rtr {
            self.core.build_controller(cx.now);
            self.shims.start(cx.now, &self.core.shim_peer(self.core.attrs.rq_psn));
        }
        self.finish_call(cx);
    }
}
