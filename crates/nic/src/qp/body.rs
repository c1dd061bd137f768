//! What makes a connection go on: the queues of a QP and its transport, which can move from one NIC
//! to another, as long as both have the same memory registered under the same keys.

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

/// Two-sided messages (SENDs and WRITEs with immediate) done on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TwoSided {
    /// Sent and acknowledged.
    pub(crate) sent: u64,
    /// Received whole.
    pub(crate) received: u64,
}

/// What of a QP stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Hold {
    /// Nothing does.
    #[default]
    Nothing,
    /// It neither sends nor takes anything. What is posted queues up.
    All,
    /// Its queues and its transport are elsewhere.
    Away,
}

impl Hold {
    /// Whether packets for the QP are dropped.
    #[inline]
    pub(crate) fn is_deaf(self) -> bool {
        matches!(self, Hold::All | Hold::Away)
    }
}

/// What holds a QP while its connection moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moving {
    pub(crate) hold: Hold,
    /// The doorbell is withheld behind the next request that asks for a completion.
    pub(crate) fence_wanted: bool,
    /// The doorbell is withheld before a request whose key is not known here.
    pub(crate) starved: bool,
    /// A path that fails holds the QP instead of failing it.
    pub(crate) guarded: bool,
}

impl Moving {
    /// Nothing holds the QP any longer.
    pub(crate) fn let_go(&mut self) {
        self.hold = Hold::Nothing;
        self.fence_wanted = false;
        self.starved = false;
    }
}

/// How far PSNs of a connection that starts anew are ahead: a quarter of the circle, which is more
/// than can be in flight.
const RESTART_AHEAD: u32 = 1 << 22;

// An end that has started anew before its peer did may send greetings of a shim, which look like
// stale acknowledgements. To the peer, some restarts behind, they must be stale or ahead, never its
// own.
const _: () = assert!(RESTART_AHEAD.is_multiple_of(2 * bowline_wire::STALE_BY));

/// How much of a connection goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// All of it: the protocol goes on where it was.
    Transport,
    /// The requests that are not done. A new transport starts them from their beginning.
    Requests,
}

/// What the sender of a connection that starts anew must know of its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Two-sided messages that it has received whole ([`QpBody::received`]).
    pub received: u64,
    /// PSN that it expects ([`QpBody::expected_psn`]).
    pub psn: Psn,
}

/// A connection on its way between two NICs.
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
    /// Completions that nobody has polled yet, of sends and of receives: they go along, so that a
    /// connection's completions are in one place and in order.
    pub(crate) completed: [Vec<Completion>; 2],
    /// What seals and opens its packets: the very same, so that counters go on.
    pub(crate) sealer: Option<Box<dyn SealPackets>>,
    pub(crate) opener: Option<Box<Box<dyn OpenPackets>>>,
    /// How far the transport had come.
    pub(crate) position: Position,
    pub(crate) carry: Carry,
}

impl QpBody {
    /// Two-sided messages received whole since the connection began.
    pub fn received(&self) -> u64 {
        self.two_sided.received
    }

    /// Requests that are not done.
    pub fn outstanding(&self) -> u64 {
        self.sq.tail() - self.sq.head()
    }

    /// Requests done and messages received since the connection began: if this has not grown,
    /// nothing has come of it.
    pub fn progress(&self) -> u64 {
        self.sq.head() + self.two_sided.received
    }

    /// Whether an atomic has been sent whose answer is not here: nobody but the peer's NIC knows
    /// whether it was carried out.
    pub fn has_atomic_in_flight(&self) -> bool {
        (self.sq.head()..self.position.started).any(|number| {
            let op = self.sq.get(number).map(|wqe| wqe.op);
            matches!(op, Some(SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }))
        })
    }

    /// The PSN that the peer's next request must have. One that starts anew expects it far ahead of
    /// all that may still be under way to it, so that none of that can be taken for something new.
    pub fn expected_psn(&self) -> Psn {
        match self.carry {
            Carry::Transport => self.position.expected,
            Carry::Requests => self.position.expected.add(RESTART_AHEAD),
        }
    }
}

impl Qp {
    /// Takes the connection out. What is left has a number and attributes, and waits for it, or
    /// another, to be attached.
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

    /// Puts a connection in. It answers the peer; its own requests wait.
    pub(crate) fn attach(&mut self, cx: &mut Cx<'_>, body: QpBody) {
        let rq_psn = body.expected_psn();
        let core = &mut self.core;
        // Where the peer is, seen from here, is this QP's own.
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

    /// Starts a new requester for the requests that are here, except those that the peer has
    /// carried out on the connection before: as many two-sided ones as it has counted, and all
    /// before them but READs, whose data may have been lost on the way.
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
