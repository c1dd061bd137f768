//! The shim: encoders and decoders of both streams, the negotiation, the controller.

use std::sync::Arc;

use bowline_nic::{
    Mtu, OutPacket, Run, Shim, ShimOut, ShimPeer, Time, TransportDescriptor, TxPacket,
};
use bowline_wire::{
    AnnounceHeader, Bth, Hello, OpKind, Opcode, OpcodeInfo, OpcodeSet, PacketView, Position, Psn,
    Qpn, ReportHeader, Reth, Service, ShimPacket,
};

use crate::control::{Controller, Decision};
use crate::counters::{FecCounters, bump};
use crate::decode::{Cx, Decoder, Up, read_span, span_of};
use crate::encode::{Encoder, Packet, psn_of};
use crate::negotiate::{Identity, Negotiation};
use crate::params::{FecConfig, FecMode, Params};
use crate::pool::Pool;

/// How soon a loss is reported: at once, but not for each packet of a burst.
const LOSS_REPORT_NS: u64 = 2_000_000;

/// Outgoing packets that are summed together: a QP's turn. More would not stay in the L1 cache.
const RUN: u32 = 16;

/// FEC below one QP.
///
/// Requests and READ responses are two streams, coded apart: their PSNs belong to different ends.
pub struct FecShim {
    config: FecConfig,
    pool: Pool,
    counters: Arc<FecCounters>,
    dest_qpn: Qpn,
    mtu: Mtu,
    negotiation: Negotiation,
    controller: Option<Controller>,
    /// The code for blocks that begin from now on.
    params: Option<Params>,
    requests_out: Encoder,
    responses_out: Encoder,
    requests_in: Decoder,
    responses_in: Decoder,
    reports: Reports,
    /// A packet's payload, where runs cannot be observed.
    copy: Vec<u8>,
    /// The earliest of all deadlines; nothing is due before it.
    deadline: Time,
    started: bool,
}

/// When to send reports to a peer that wants them.
#[derive(Debug)]
struct Reports {
    wanted: bool,
    at: Time,
    /// Packet count of the last report.
    expected: u32,
    /// Losses when the next one was scheduled.
    lost: u32,
}

impl Reports {
    const NONE: Reports = Reports { wanted: false, at: Time::NEVER, expected: 0, lost: 0 };
}

impl FecShim {
    /// A shim that takes memory from `pool` and counts in `counters`, both shared with others.
    pub fn new(config: FecConfig, pool: Pool, counters: Arc<FecCounters>) -> FecShim {
        FecShim {
            config,
            pool,
            counters,
            dest_qpn: Qpn::new(0),
            mtu: Mtu::B256,
            negotiation: Negotiation::stopped(),
            controller: None,
            params: None,
            requests_out: Encoder::new(false),
            responses_out: Encoder::new(true),
            requests_in: Decoder::new(false),
            responses_in: Decoder::new(true),
            reports: Reports::NONE,
            copy: Vec::new(),
            deadline: Time::NEVER,
            started: false,
        }
    }

    /// Whether it can code a transport's packets: their sequence numbers must reveal losses, and
    /// their headers must fit a repair's.
    pub fn codes(transport: &TransportDescriptor) -> bool {
        matches!(transport.service, Service::Rc | Service::Uc)
    }

    /// The controller's latest observation and choice, in automatic mode.
    pub fn decision(&self) -> Option<&Decision> {
        self.controller.as_ref().map(Controller::decision)
    }

    fn peer(&self) -> Identity {
        let peer_psn = self.requests_in.next().unwrap_or(Psn::new(0));
        Identity { dest_qpn: self.dest_qpn, peer_psn }
    }

    /// The code to send with, once the peer is known to use it.
    #[inline]
    fn active(&self) -> Option<Params> {
        self.params.filter(|_| self.negotiation.is_known() || self.config.forced)
    }

    fn announcement(&self) -> AnnounceHeader {
        let (r, c) = self.active().map_or((0, 0), |params| (params.r(), params.c()));
        AnnounceHeader { wants_reports: self.controller.is_some(), r, c }
    }

    fn set_deadline(&mut self) {
        let ready = self.requests_out.has_ready() || self.responses_out.has_ready();
        self.deadline = if ready { Time::ZERO } else { self.negotiation.deadline() }
            .min(self.requests_in.deadline())
            .min(self.responses_in.deadline())
            .min(self.reports.at);
    }

    /// Codes packets of a run, from `at` on, as long as they are alike, at least one; returns how
    /// many.
    #[inline]
    fn code_some(&mut self, run: &Run<'_>, at: usize, packet: &TxPacket) -> usize {
        let header = run.header(packet);
        let opcode = Opcode(header.first().copied().unwrap_or_default());
        let Some(info) = opcode.info() else { return 1 };
        if info.kind == OpKind::Repair {
            // One of our own late packets.
            return 1;
        }
        if info.position == Position::Middle {
            let response = info.kind == OpKind::ReadResponse;
            let encoder = if response { &mut self.responses_out } else { &mut self.requests_out };
            let added = encoder.add_alike(run, at, &self.pool);
            if added > 0 {
                return added;
            }
        }
        self.code(Packet { header, payload: run.payload(packet) }, info);
        1
    }

    /// Codes any packet that was sent.
    #[inline(never)]
    fn code(&mut self, packet: Packet<'_>, info: &OpcodeInfo) {
        let header = packet.header;
        let psn = psn_of(header);
        let (response, span) = match info.kind {
            OpKind::Send | OpKind::Write => (false, 1),
            OpKind::ReadResponse | OpKind::AtomicAck => (true, 1),
            OpKind::ReadRequest => {
                let reth = header.get(Bth::LEN..).and_then(|ext| ext.first_chunk());
                let span = reth.map_or(1, |reth| read_span(Reth::parse(reth).len, self.mtu));
                self.responses_in.expect(psn, span, &self.pool);
                (false, span)
            }
            OpKind::CompareSwap | OpKind::FetchAdd => {
                self.responses_in.expect(psn, 1, &self.pool);
                (false, 1)
            }
            OpKind::Ack
            | OpKind::Cnp
            | OpKind::Repair
            | OpKind::Probe
            | OpKind::Feedback
            | OpKind::Sealed => return,
        };
        let params = self.active();
        let shared = (&self.pool, &*self.counters);
        let encoder = if response { &mut self.responses_out } else { &mut self.requests_out };
        encoder.add(packet, info, psn, span, params, shared);
    }

    fn flush(&mut self, ecn: u8, out: &mut ShimOut<'_>) {
        let peer = self.peer();
        let shared = (&self.pool, &*self.counters);
        self.requests_out.flush(&peer, ecn, out, shared);
        self.responses_out.flush(&peer, ecn, out, shared);
    }

    /// Handles a packet of the peer's shim.
    #[cold]
    fn on_shim_packet(&mut self, now: Time, packet: &PacketView<'_>, up: Up<'_>) {
        let Some(message) = ShimPacket::parse(packet.payload()) else {
            bump(&self.counters.rejected);
            return;
        };
        self.found(now);
        match message {
            ShimPacket::Repair(header, body) => {
                bump(&self.counters.repairs_received);
                let cx = Cx {
                    now,
                    hold_ns: self.config.hold_ns,
                    pool: &self.pool,
                    counters: &self.counters,
                };
                let decoder =
                    if header.response { &mut self.responses_in } else { &mut self.requests_in };
                decoder.on_repair(cx, &header, body, packet.dest_qpn(), up);
            }
            ShimPacket::Announce(announce) => {
                self.reports.wanted = announce.wants_reports;
                let coding = Params::new(announce.r, announce.c).ok();
                self.requests_in.set_coding(coding);
                self.responses_in.set_coding(coding);
            }
            ShimPacket::Report(report) => self.on_report(now, &report),
        }
    }

    /// The peer has the shim.
    fn found(&mut self, now: Time) {
        if self.negotiation.found() {
            bump(&self.counters.peers_found);
            self.negotiation.announce_soon(now);
        }
    }

    fn on_report(&mut self, now: Time, report: &ReportHeader) {
        let Some(controller) = &mut self.controller else { return };
        let params = controller.on_report(now, report).params;
        if params != self.params {
            self.params = params;
            bump(&self.counters.changes);
            self.negotiation.announce_soon(now);
        }
    }

    /// Schedules a report if something has arrived since the last.
    #[inline]
    fn plan_report(&mut self, now: Time) -> bool {
        if !self.reports.wanted {
            return false;
        }
        let (requests, responses) = (&self.requests_in.losses, &self.responses_in.losses);
        if requests.expected.wrapping_add(responses.expected) == self.reports.expected {
            return false;
        }
        let lost = requests.lost().wrapping_add(responses.lost());
        let news = core::mem::replace(&mut self.reports.lost, lost) != lost;
        let at = now.plus_nanos(if news { LOSS_REPORT_NS } else { self.config.report_ns });
        let sooner = at < self.reports.at && (news || self.reports.at == Time::NEVER);
        if sooner {
            self.reports.at = at;
        }
        sooner
    }

    fn report(&mut self, now: Time, out: &mut ShimOut<'_>) {
        if self.reports.at > now || out.room() == 0 {
            return;
        }
        // The next packet schedules the next report, and must not take the fast path.
        self.requests_in.catch_up();
        let mut report = ReportHeader::default();
        self.requests_in.losses.report(&mut report);
        self.responses_in.losses.report(&mut report);
        self.reports.at = Time::NEVER;
        self.reports.expected = report.expected;
        let header = self.peer().report(&report);
        out.send_copy(&header, &[], 0);
    }
}

impl Shim for FecShim {
    fn opcodes(&self, transport: &TransportDescriptor) -> OpcodeSet {
        // Greetings are acknowledgements, which RC accepts anyway.
        let greeting = Opcode::RC_ACK;
        let own = OpcodeSet::of(&[Opcode::RC_REPAIR]);
        if transport.opcodes.contains(greeting) { own } else { own.with(greeting) }
    }

    fn started(&mut self, now: Time, peer: &ShimPeer) {
        self.stopped();
        if !FecShim::codes(peer.transport) {
            return;
        }
        let service = peer.transport.service;
        (self.dest_qpn, self.mtu) = (peer.dest_qpn, peer.mtu);
        self.requests_out.start(peer.mtu);
        self.responses_out.start(peer.mtu);
        self.requests_in.start(service, peer.mtu, Some(peer.rq_psn));
        self.responses_in.start(service, peer.mtu, None);
        self.negotiation = Negotiation::start(now, &self.config);
        match self.config.mode {
            FecMode::Off => {}
            FecMode::Fixed(params) => self.params = Some(params),
            FecMode::Auto(config) => self.controller = Some(Controller::new(config)),
        }
        self.started = true;
        self.set_deadline();
    }

    fn stopped(&mut self) {
        self.requests_out.stop(&self.pool);
        self.responses_out.stop(&self.pool);
        self.requests_in.stop(&self.pool);
        self.responses_in.stop(&self.pool);
        self.negotiation = Negotiation::stopped();
        self.controller = None;
        self.params = None;
        self.reports = Reports::NONE;
        self.deadline = Time::NEVER;
        self.started = false;
    }

    #[inline]
    fn run_len(&self) -> u32 {
        // A block's repairs follow its last packet.
        let whole = self.params.map_or(RUN, |params| params.r().into());
        let requests = self.requests_out.block_left().unwrap_or(whole);
        let responses = self.responses_out.block_left().unwrap_or(whole);
        RUN.min(requests).min(responses)
    }

    fn passed(&mut self, _now: Time, out: &mut ShimOut<'_>) -> u32 {
        if !self.started {
            return RUN;
        }
        let run = out.run();
        let mut at = 0;
        while let Some(packet) = run.packets().get(at) {
            at += self.code_some(&run, at, packet);
        }
        if self.requests_out.has_ready() || self.responses_out.has_ready() {
            self.flush(out.data_ecn(), out);
            self.set_deadline();
        }
        self.run_len()
    }

    fn outgoing(&mut self, _now: Time, packet: OutPacket<'_>, out: &mut ShimOut<'_>) {
        let info = packet.header.as_slice().first().and_then(|code| Opcode(*code).info());
        let (true, Some(info)) = (self.started, info) else {
            return out.send(packet);
        };
        // What is coded is what is sent, even if the application changes its memory meanwhile.
        let mut payload = core::mem::take(&mut self.copy);
        payload.clear();
        packet.append_payload(&mut payload);
        self.code(Packet { header: packet.header.as_slice(), payload: &payload }, info);
        out.send_copy(packet.header, &payload, packet.ecn);
        self.copy = payload;
        if self.requests_out.has_ready() || self.responses_out.has_ready() {
            self.flush(out.data_ecn(), out);
            self.set_deadline();
        }
    }

    fn ignores(&mut self, packet: &PacketView<'_>) -> bool {
        let repair = packet.opcode() == Opcode::RC_REPAIR;
        let message = repair.then(|| ShimPacket::parse(packet.payload())).flatten();
        let Some(ShimPacket::Repair(header, _)) = message else {
            return false;
        };
        let decoder = if header.response { &self.responses_in } else { &self.requests_in };
        let ignores = self.negotiation.is_known() && decoder.has_no_use_for(&header);
        if ignores {
            bump(&self.counters.repairs_received);
            bump(&self.counters.wasted);
        }
        ignores
    }

    #[inline]
    fn follows(&mut self, packet: &PacketView<'_>) -> bool {
        self.requests_in.follow(packet)
    }

    fn follows_run(&mut self, packets: &[u8], len: usize) -> usize {
        self.requests_in.follow_run(packets, len)
    }

    fn incoming(&mut self, now: Time, packet: &PacketView<'_>, up: Up<'_>) -> bool {
        if !self.started {
            up(packet);
            return false;
        }
        let mtu = self.mtu;
        let cx =
            Cx { now, hold_ns: self.config.hold_ns, pool: &self.pool, counters: &self.counters };
        let mut changed = match packet.info().kind {
            OpKind::Send | OpKind::Write => self.requests_in.on_packet(cx, packet, 1, up),
            OpKind::ReadRequest | OpKind::CompareSwap | OpKind::FetchAdd => {
                self.requests_in.on_packet(cx, packet, span_of(packet, mtu), up)
            }
            OpKind::ReadResponse | OpKind::AtomicAck => {
                self.responses_in.on_packet(cx, packet, 1, up)
            }
            OpKind::Ack if Hello::is(packet) => {
                self.found(now);
                self.negotiation.announce_soon(now);
                true
            }
            OpKind::Ack => self.responses_in.on_ack(cx, packet, up),
            OpKind::Repair => {
                self.on_shim_packet(now, packet, up);
                true
            }
            OpKind::Cnp | OpKind::Probe | OpKind::Feedback | OpKind::Sealed => {
                up(packet);
                false
            }
        };
        changed |= self.plan_report(now);
        if changed {
            self.set_deadline();
        }
        changed
    }

    #[inline]
    fn poll_timeout(&self) -> Option<Time> {
        (self.deadline != Time::NEVER).then_some(self.deadline)
    }

    fn handle_timeout(&mut self, now: Time, out: &mut ShimOut<'_>, up: Up<'_>) {
        self.flush(0, out);
        let (peer, announcement) = (self.peer(), self.announcement());
        self.negotiation.transmit(now, &peer, &announcement, out);
        self.report(now, out);
        let cx =
            Cx { now, hold_ns: self.config.hold_ns, pool: &self.pool, counters: &self.counters };
        self.requests_in.handle_timeout(cx, up);
        self.responses_in.handle_timeout(cx, up);
        self.set_deadline();
    }
}

impl Drop for FecShim {
    fn drop(&mut self) {
        // The pool outlives it, and others need its memory.
        self.stopped();
    }
}
