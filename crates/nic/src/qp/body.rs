//! What makes a connection go on: the queues of a QP and its transport, which can move from one NIC
//! to another, as long as both have the same memory registered under the same keys.

use bowline_wire::{Psn, Qpn};

use super::{Attrs, Cx, Hold, Qp};
use crate::counters::QpCounters;
use crate::queue::{RecvQueue, SendQueue};
use crate::shim::ShimPeer;
use crate::transport::{self, Transport};
use crate::types::{Completion, QpState, SendOp};

/// Two-sided messages (SENDs and WRITEs with immediate) done on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TwoSided {
    /// Sent and acknowledged.
    pub(crate) sent: u64,
    /// Received whole.
    pub(crate) received: u64,
}

/// How much of a connection goes along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// All of it: the protocol goes on where it was.
    Transport,
    /// The requests that are not done. A new transport starts them from their beginning.
    Requests,
}

/// A connection on its way between two NICs.
pub struct QpBody {
    pub(crate) state: QpState,
    pub(crate) attrs: Attrs,
    pub(crate) sq: SendQueue,
    pub(crate) rq: RecvQueue,
    pub(crate) transport: Box<dyn Transport>,
    pub(crate) window: Option<u32>,
    pub(crate) counters: QpCounters,
    pub(crate) two_sided: TwoSided,
    pub(crate) reported: Qpn,
    /// Completions that nobody has polled yet, of sends and of receives: they go along, so that a
    /// connection's completions are in one place and in order.
    pub(crate) completed: [Vec<Completion>; 2],
    /// Requests below this number had begun to be sent.
    pub(crate) started: u64,
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

    /// Whether an atomic has been sent whose answer is not here: nobody but the peer's NIC knows
    /// whether it was carried out.
    pub fn has_atomic_in_flight(&self) -> bool {
        (self.sq.head()..self.started).any(|number| {
            let op = self.sq.get(number).map(|wqe| wqe.op);
            matches!(op, Some(SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. }))
        })
    }

    /// PSNs of its next request and of the peer's next.
    pub fn psns(&self) -> (Psn, Psn) {
        (self.attrs.sq_psn, self.attrs.rq_psn)
    }
}

impl Qp {
    /// Takes the connection out. What is left has a number and attributes, and waits for it, or
    /// another, to be attached.
    pub(crate) fn detach(&mut self, cx: &mut Cx<'_>, carry: Carry) -> QpBody {
        if let Some(shim) = &mut self.shim {
            shim.stopped();
        }
        let (core, transport) = (&mut self.core, &mut self.transport);
        let started = transport.position().started;
        transport.suspend(core, cx);
        if carry == Carry::Requests
            && let Some(wqe) = transport.give_back()
        {
            match core.init.srq {
                Some(srq) => cx.srqs.give_back(srq, &wqe),
                None => core.rq.give_back(&wqe),
            }
        }
        if let Some(path) = core.path.take() {
            cx.paths.forget(path, core.index);
            cx.paths.release(path);
        }
        let fresh = transport::build(core.init.qp_type);
        let moved = core::mem::replace(&mut self.transport, fresh);
        core.hold = Hold::Away;
        core.cnp_pending = false;
        self.waiting = false;
        self.paced = false;
        let sends = cx.cqs.extract(core.init.send_cq, core.reported);
        let recvs = cx.cqs.extract(core.init.recv_cq, core.reported);
        QpBody {
            state: core.state,
            attrs: core.attrs,
            sq: core::mem::replace(&mut core.sq, SendQueue::placeholder()),
            rq: core::mem::replace(&mut core.rq, RecvQueue::new(0, 0)),
            transport: moved,
            window: core.window,
            counters: core::mem::take(&mut core.counters),
            two_sided: core.two_sided,
            reported: core.reported,
            completed: [sends, recvs],
            started,
            carry,
        }
    }

    /// Puts a connection in. `psns`, of the next request and of the peer's, are for one that starts
    /// anew.
    pub(crate) fn attach(&mut self, cx: &mut Cx<'_>, body: QpBody, psns: Option<(Psn, Psn)>) {
        let core = &mut self.core;
        // Where the peer is, seen from here, is this QP's own.
        let (av, dest_qpn) = (core.attrs.av, core.attrs.dest_qpn);
        core.attrs = Attrs { av, dest_qpn, ..body.attrs };
        core.sq = body.sq;
        core.rq = body.rq;
        core.window = body.window;
        core.counters = body.counters;
        core.two_sided = body.two_sided;
        core.reported = body.reported;
        core.state = body.state;
        core.hold = Hold::Nothing;
        core.doorbell = 0;
        core.fence_wanted = false;
        core.own_id_run = 0;
        self.transport = body.transport;
        if let Some(av) = av {
            core.connect(av, cx.config, cx.paths);
        }
        if let (Carry::Requests, Some((sq_psn, rq_psn))) = (body.carry, psns) {
            core.attrs.sq_psn = sq_psn;
            core.attrs.rq_psn = rq_psn;
            self.transport = transport::build(core.init.qp_type);
            core.state = QpState::Rtr;
            self.transport.entered(core, QpState::Init);
            if body.state != QpState::Rtr {
                core.state = QpState::Rts;
                self.transport.entered(core, QpState::Rtr);
                core.state = body.state;
            }
        }
        let [sends, recvs] = body.completed;
        let queues = [(core.init.send_cq, sends), (core.init.recv_cq, recvs)];
        for (cq, completions) in queues {
            for completion in completions {
                cx.cqs.push(cq, completion, cx.counters, cx.events);
            }
        }
        if let Some(shim) = &mut self.shim {
            let peer = ShimPeer {
                qp_type: core.init.qp_type,
                mtu: core.attrs.mtu,
                dest_qpn: core.attrs.dest_qpn,
                rq_psn: self.transport.position().expected,
            };
            shim.started(cx.now, &peer);
        }
    }

    /// Marks what the peer has carried out on the connection before this one, by the number of
    /// two-sided messages that it counted: these, and all before them but READs, whose data may have
    /// been lost on the way.
    pub(crate) fn mark_executed(&mut self, counted: u64) {
        let core = &mut self.core;
        let (head, tail) = (core.sq.head(), core.sq.tail());
        let mut two_sided = core.two_sided.sent;
        let mut executed = head;
        for number in head..tail {
            if core.sq.get(number).is_some_and(|wqe| wqe.is_two_sided()) {
                two_sided += 1;
                if two_sided > counted {
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
    }
}
