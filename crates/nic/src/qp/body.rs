//! The state that makes up a connection: a QP's queues and its transport. It can move from one NIC
//! to another if both have the same memory registered under the same keys.

use std::sync::Arc;

use bowline_wire::{Psn, Qpn};

use super::{Aside, Attrs, Cx, Keepalive, Qp};
use crate::admit::Admission;
use crate::counters::QpCounters;
use crate::queue::{RecvQueue, SendQueue};
use crate::rate::ControllerFactory;
use crate::seal::{OpenPackets, SealPackets};
use crate::transport::{Position, Transport};
use crate::types::{Completion, QpState, SendOp};

/// Two-sided messages (SENDs and WRITEs with immediate) completed on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TwoSided {
    /// Sent and acknowledged.
    pub(crate) sent: u64,
    /// Received whole.
    pub(crate) received: u64,
}

/// Which part of a QP is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Hold {
    /// Nothing is.
    #[default]
    Nothing,
    /// It neither sends nor receives. Posted requests queue up.
    All,
    /// Its queues and its transport are on another NIC.
    Away,
}

impl Hold {
    /// Whether packets for the QP are dropped.
    #[inline]
    pub(crate) fn is_deaf(self) -> bool {
        matches!(self, Hold::All | Hold::Away)
    }
}

/// What holds a QP back while its connection moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moving {
    pub(crate) hold: Hold,
    /// The doorbell is to be withheld after the next request that asks for a completion.
    pub(crate) fence_wanted: bool,
    /// The doorbell is withheld before a request whose key is not known here.
    pub(crate) starved: bool,
    /// A path failure suspends the QP instead of failing it.
    pub(crate) guarded: bool,
}

impl Moving {
    /// Nothing holds the QP back any longer.
    pub(crate) fn let_go(&mut self) {
        self.hold = Hold::Nothing;
        self.fence_wanted = false;
        self.starved = false;
    }
}

/// How far a restarted connection skips its PSNs ahead: a quarter of the PSN space, which is more
/// than can be in flight.
const RESTART_AHEAD: u32 = 1 << 22;

// An end that restarts before its peer may send a shim's greetings, which look like stale
// acknowledgements. To the peer, some restarts behind, they must be stale or ahead, never valid.
const _: () = assert!(RESTART_AHEAD.is_multiple_of(2 * bowline_wire::STALE_BY));

/// How much of a connection's state moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// All of it: the protocol continues where it was.
    Transport,
    /// The unfinished requests. A new transport starts them from the beginning.
    Requests,
}

/// What the sender of a restarted connection must know about its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Two-sided messages that it has received whole ([`QpBody::received`]).
    pub received: u64,
    /// PSN that it expects ([`QpBody::expected_psn`]).
    pub psn: Psn,
}

/// A connection in transit between two NICs.
pub struct QpBody {
    pub(crate) state: QpState,
    pub(crate) attrs: Attrs,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) window: Option<u32>,
    pub(crate) controllers: Option<Arc<dyn ControllerFactory>>,
    pub(crate) counters: QpCounters,
    pub(crate) two_sided: TwoSided,
    pub(crate) reported: Qpn,
    pub(crate) splits_writes: bool,
    pub(crate) keepalive: Option<Box<Keepalive>>,
    /// Unpolled completions of sends and receives: they move too, so that a connection's
    /// completions stay in one place and in order.
    pub(crate) completed: [Vec<Completion>; 2],
    /// Seals and opens its packets: moved, not rebuilt, so that the counters continue.
    pub(crate) sealer: Option<Box<dyn SealPackets>>,
    pub(crate) opener: Option<Box<Box<dyn OpenPackets>>>,
    /// How far the transport had got.
    pub(crate) position: Position,
    pub(crate) carry: Carry,
}

impl QpBody {
    /// Two-sided messages received whole since the connection began.
    pub fn received(&self) -> u64 {
        self.two_sided.received
    }

    /// Unfinished requests.
    pub fn outstanding(&self) -> u64 {
        self.sq.tail() - self.sq.head()
    }

    /// Requests completed and messages received since the connection began: if this has not grown,
    /// the connection has made no progress.
    pub fn progress(&self) -> u64 {
        self.sq.head() + self.two_sided.received
    }

    /// Whether an atomic has been sent and its response is missing: only the peer's NIC knows
    /// whether it was carried out.
    pub fn has_atomic_in_flight(&self) -> bool {
        (self.sq.head()..self.position.started).any(|number| {
            let op = self.sq.get(number).map(|wqe| wqe.op);
            matches!(op, Some(SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }))
        })
    }

    /// The PSN that the peer's next request must have. A restarted connection expects one far ahead
    /// of everything that may still be in flight, so that no old packet can be taken for a new one.
    pub fn expected_psn(&self) -> Psn {
        match self.carry {
            Carry::Transport => self.position.expected,
            Carry::Requests => self.position.expected.add(RESTART_AHEAD),
        }
    }
}

impl Qp {
    /// Takes the connection out. What remains has a number and attributes, and waits for this or
    /// another connection to be attached.
    pub(crate) fn detach(&mut self, cx: &mut Cx<'_>, carry: Carry) -> Box<QpBody> {
        self.shims.stop();
        let (core, transport) = (&mut self.core, &mut self.transport);
        let position = transport.position();
        transport.suspend(core, cx);
        if carry == Carry::Requests
            && let Some(wqe) = transport.give_back()
        {
            match core.init.srq {
                Some(srq) => cx.srqs.give_back(srq, &wqe),
                None => core.rq.give_back(&wqe),
            }
        }
        self.leave_path(cx.paths);
        let core = &mut self.core;
        let fresh = (core.descriptor.build)();
        let moved = core::mem::replace(&mut self.transport, fresh);
        core.asides = Aside::empty();
        core.part_memory();
        self.moving.hold = Hold::Away;
        self.standing.paced = false;
        let sends = cx.cqs.extract(core.init.send_cq, core.reported);
        let recvs = cx.cqs.extract(core.init.recv_cq, core.reported);
        Box::new(QpBody {
            state: core.state,
            attrs: core.attrs,
            sq: core::mem::replace(&mut core.sq, SendQueue::placeholder()),
            rq: core::mem::replace(&mut core.rq, RecvQueue::new(0, 0)),
            transport: moved,
            window: core.limits.window,
            controllers: core.limits.controllers.clone(),
            counters: core::mem::take(&mut core.counters),
            two_sided: core.two_sided,
            reported: core.reported,
            splits_writes: core.splits_writes,
            keepalive: self.keepalive.take(),
            completed: [sends, recvs],
            sealer: core.take_sealer(),
            opener: self.opener.take(),
            position,
            carry,
        })
    }

    /// Attaches a connection. It answers the peer; its own requests wait.
    pub(crate) fn attach(&mut self, cx: &mut Cx<'_>, body: QpBody) {
        let rq_psn = body.expected_psn();
        let core = &mut self.core;
        // The peer's address, as seen from here, is this QP's own.
        let (av, dest_qpn) = (core.attrs.av, core.attrs.dest_qpn);
        core.attrs = Attrs { av, dest_qpn, ..body.attrs };
        core.sq = body.sq;
        core.rq = body.rq;
        core.limits.window = body.window;
        core.limits.controllers = body.controllers;
        core.build_controller(cx.now);
        core.counters = body.counters;
        core.two_sided = body.two_sided;
        core.reported = body.reported;
        core.splits_writes = body.splits_writes;
        core.state = body.state;
        core.sq.withhold_from(0);
        self.moving.let_go();
        self.keepalive = body.keepalive.map(|watch| Box::new(watch.anew(cx.now)));
        self.admission = Admission::default();
        self.transport = body.transport;
        core.sealer = body.sealer;
        self.opener = body.opener;
        if let Some(av) = av {
            core.connect(av, cx.config, cx.paths);
        }
        if body.carry == Carry::Requests {
            core.attrs.rq_psn = rq_psn;
            self.transport = (core.descriptor.build)();
            core.state = QpState::Rtr;
            self.transport.entered(core, QpState::Init);
            core.state = body.state;
        }
        let [sends, recvs] = body.completed;
        let queues = [(core.init.send_cq, sends), (core.init.recv_cq, recvs)];
        for (cq, completions) in queues {
            for completion in completions {
                cx.cqs.push(cq, completion, cx.counters, cx.events);
            }
        }
        self.shims.start(cx.now, &core.shim_peer(rq_psn));
    }

    /// Starts a new requester for the queued requests, except those that the peer carried out on
    /// the previous connection: as many two-sided ones as it has counted, and everything before
    /// them except READs, whose data may have been lost.
    pub(crate) fn start_anew(&mut self, resume: &Resume) {
        let core = &mut self.core;
        let (head, tail) = (core.sq.head(), core.sq.tail());
        let mut two_sided = core.two_sided.sent;
        let mut executed = head;
        for number in head..tail {
            if core.sq.get(number).is_some_and(|wqe| wqe.is_two_sided()) {
                two_sided += 1;
                if two_sided > resume.received {
                    break;
                }
                executed = number + 1;
            }
        }
        for number in head..executed {
            if let Some(wqe) = core.sq.get_mut(number)
                && !wqe.wants_response()
            {
                wqe.executed = true;
            }
        }
        core.attrs.sq_psn = resume.psn;
        let state = core.state;
        if state != QpState::Rtr {
            core.state = QpState::Rts;
            self.transport.entered(core, QpState::Rtr);
            core.state = state;
        }
    }
}
