//! Extended reliable connections (IBA volume 1, annex A14): each request names a shared receive
//! queue of the responder, whose receives, completion queue and protection domain it uses.
//!
//! One connection therefore serves many queues, where RC needs one per queue. The QP itself has
//! none: while it handles a request it acts for the named queue, which is all that the responder
//! has to know.

use bowline_wire::{Opcode, OpcodeSet, PacketView, Service};

use super::super::descriptor::{MAX_PSNS, Operations, TransportDescriptor};
use super::super::outbound::XRC;
use super::Rc;
use super::responder::Responder;
use crate::qp::{Cx, QpCore};
use crate::queue::Addressee;
use crate::types::PdId;

/// Properties of XRC.
pub(in super::super) static EXTENDED: TransportDescriptor = TransportDescriptor {
    name: "XRC",
    service: Service::Xrc,
    opcodes: OpcodeSet::range(Opcode::XRC_SEND_FIRST, Opcode::XRC_SEND_ONLY_INV),
    operations: Operations::all().difference(Operations::WRITE_PACKETS),
    max_packets: MAX_PSNS,
    connected: true,
    reliable: true,
    shimmable: false,
    // The queues that its messages name do not move with it.
    movable: false,
    landings: false,
    deadlines: false,
    addressed: true,
    annotated: true,
    build: || Box::<Rc<XRC>>::default(),
};

/// The addressees of requests.
#[derive(Debug, Default)]
pub(super) struct Addressed {
    /// Number of the queue named by the latest request in sequence.
    srqn: u32,
    /// The protection domain of the memory that responses read.
    answers_in: Option<PdId>,
}

fn stand_in(core: &mut QpCore, addressee: &Addressee) {
    let Addressee { srq, pd, cq } = *addressee;
    (core.init.srq, core.init.pd, core.init.recv_cq) = (Some(srq), pd, cq);
}

impl<const SERVICE: u8> Rc<SERVICE> {
    /// Handles a peer's request, on behalf of the queue that it names.
    #[cold]
    pub(super) fn take_addressed(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        packet: &PacketView<'_>,
    ) -> bool {
        let Some(eth) = packet.xrceth() else {
            cx.counters.drop_malformed += 1;
            return false;
        };
        let own = core.init;
        let named = own.xrcd.and_then(|domain| cx.srqs.addressee(domain, eth.srqn));
        let expected = packet.psn() == self.responder.expected();
        let changes = expected && self.responder.in_message() && eth.srqn != self.addressed.srqn;
        let Some(named) = named.filter(|_| !changes) else {
            if expected {
                self.responder.refuse_addressee(core, cx);
                return true;
            }
            // A duplicate, or too early: the reply does not depend on a queue.
            return self.take_request(core, cx, packet);
        };
        // Responses read memory of one domain at a time. A request that needs another is treated as
        // lost, and will be retransmitted.
        if self.responder.owes_data() && self.addressed.answers_in != Some(named.pd) {
            cx.counters.drop_sequence += 1;
            return false;
        }
        if expected {
            self.addressed.srqn = eth.srqn;
        }
        self.addressed.answers_in = Some(named.pd);
        stand_in(core, &named);
        let follows = self.take_request(core, cx, packet);
        core.init = own;
        follows
    }

    /// Calls the responder on behalf of the queue that was named last. If that queue is gone, so is
    /// the receive that was taken from it.
    #[cold]
    pub(super) fn as_addressee<R>(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        call: impl FnOnce(&mut Responder<SERVICE>, &mut QpCore, &mut Cx<'_>) -> R,
    ) -> R {
        let own = core.init;
        let srqn = self.addressed.srqn;
        match own.xrcd.and_then(|domain| cx.srqs.addressee(domain, srqn)) {
            Some(named) => stand_in(core, &named),
            None => drop(self.responder.give_back()),
        }
        if let Some(pd) = self.addressed.answers_in {
            core.init.pd = pd;
        }
        let result = call(&mut self.responder, core, cx);
        core.init = own;
        result
    }
}
