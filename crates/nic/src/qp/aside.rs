//! Packets that a QP sends in addition to its transport's own.

use bitflags::bitflags;
use bowline_wire::{CNP_RESERVED_LEN, Opcode, Psn};

use super::sink::count_sent;
use super::{Cx, Qp, QpCore, Sink};
use crate::tx::{HeaderBuf, TxBatch};

bitflags! {
    /// Packets that are sent in addition to the transport's own.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Aside: u8 {
        /// A congestion notification packet.
        const CNP = 1;
        /// A keepalive probe.
        const PROBE = 2;
    }
}

impl Qp {
    /// Sends what is not part of the transport's turn: a CNP, a probe.
    #[cold]
    pub(super) fn send_asides(&mut self, cx: &mut Cx<'_>, batch: &mut TxBatch, is_sealed: bool) {
        if self.core.asides.contains(Aside::CNP) {
            send_cnp(&mut self.core, cx, batch);
        }
        let mut sink = Sink::new(batch, &mut self.shims, is_sealed);
        if self.core.asides.contains(Aside::PROBE) && sink.has_room() {
            self.core.asides.remove(Aside::PROBE);
            cx.counters.keepalive_probes += 1;
            self.transport.probe(&mut self.core, cx, &mut sink);
        }
        sink.finish(&mut self.core, cx);
    }
}

/// Congestion notification: a BTH with BECN set and reserved bytes (RoCEv2 annex, A17.9.3). It
/// bypasses transport and shims.
fn send_cnp(core: &mut QpCore, cx: &mut Cx<'_>, batch: &mut TxBatch) {
    core.asides.remove(Aside::CNP);
    let mut bth = core.bth(Opcode::CNP, Psn::new(0));
    bth.becn = true;
    let mut header = HeaderBuf::new(&bth);
    header.push::<CNP_RESERVED_LEN>(|_| {});
    let Some(flow) = core.flow.as_mut() else { return };
    let bytes = batch.push(flow, 0, &header, &[]);
    cx.counters.tx_cnps += 1;
    count_sent(core, cx, 1, bytes);
}
