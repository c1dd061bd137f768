//! The path from a transport into a batch.

use super::{Cx, QpCore};
use crate::shim::{Chain, OutPacket, ShimOut};
use crate::tx::{Flow, HeaderBuf, TxBatch};

/// Where a transport's packets go: through the QP's shims, if it has any, into the batch.
pub(crate) struct Sink<'a> {
    batch: &'a mut TxBatch,
    shims: &'a mut Chain,
    has_shims: bool,
    per_packet: usize,
    /// Packets that may pass before the only shim looks at them; 0 if each packet goes through the
    /// shims.
    run_left: u32,
    /// Start of the packets that it has not seen.
    run_from: usize,
}

impl<'a> Sink<'a> {
    #[inline]
    pub(super) fn new(batch: &'a mut TxBatch, shims: &'a mut Chain, is_sealed: bool) -> Sink<'a> {
        let run_from = batch.run_mark();
        let has_shims = !shims.is_empty();
        // Without a shim nothing is ever looked at.
        let (mut per_packet, mut run_left) = (1, u32::MAX);
        if has_shims {
            per_packet = shims.max_out();
            // A sealed QP's batch holds ciphertext: its shims must see packets before that.
            let alone = shims.alone().filter(|_| !is_sealed);
            run_left = alone.map_or(0, |shim| shim.run_len());
        }
        Sink { batch, shims, has_shims, per_packet, run_left, run_from }
    }

    /// Whether another packet, with what shims make of it, fits.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.batch.room() >= self.per_packet
    }

    /// Sends a packet, with the gather list in `cx.segments`, to the QP's peer.
    #[inline]
    pub(crate) fn send(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, header: &HeaderBuf, ecn: u8) {
        if self.run_left == 0 {
            return self.send_through_shims(core, cx, header, ecn);
        }
        let Some(flow) = core.flow.as_mut() else {
            return;
        };
        let bytes = self.batch.push(flow, ecn, header, cx.segments);
        count_sent(core, cx, 1, bytes);
        if self.has_shims {
            self.run_left -= 1;
            // What a shim adds to a message follows the end of the message.
            if self.run_left == 0 || !header.goes_on() {
                self.look(core, cx);
            }
        }
    }

    /// Sends a packet of the connection's own control, which is not data: it uses neither rate nor
    /// credit.
    #[cold]
    pub(crate) fn send_control(&mut self, core: &mut QpCore, cx: &mut Cx<'_>, header: &HeaderBuf) {
        let Some(flow) = core.flow.as_mut() else { return };
        let bytes = self.batch.push_copy(flow, 0, header, &[]);
        count_packets(core, cx, 1, bytes);
    }

    /// How many packets of `len` bytes, from the middle of a message, [`Sink::send_run`] can take.
    #[inline]
    pub(crate) fn run_room(&self, len: u32) -> u32 {
        let room = self.batch.room_for(len).saturating_sub(self.per_packet - 1);
        self.run_left.min(room as u32)
    }

    /// Sends packets from the middle of a message, which differ only in their PSNs: `header` is the
    /// first one's; the segment in `cx.segments` has the payloads, of `payload_len` bytes each.
    #[inline]
    pub(crate) fn send_run(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        header: &HeaderBuf,
        ecn: u8,
        payload_len: u32,
    ) {
        let ([payload], Some(flow)) = (&cx.segments[..], core.flow.as_mut()) else {
            return;
        };
        let (packets, bytes) = self.batch.push_run(flow, ecn, header, *payload, payload_len);
        count_sent(core, cx, packets, bytes);
        if self.has_shims {
            self.run_left -= packets;
            if self.run_left == 0 {
                self.look(core, cx);
            }
        }
    }

    /// Whether [`Sink::send_writes`] can be used.
    #[inline]
    pub(crate) fn takes_writes(&self, core: &QpCore) -> bool {
        !self.has_shims && core.flow.as_ref().is_some_and(|flow| !flow.is_protected())
    }

    /// Sends WRITEs of one packet each, which continue each other: `header` is the first one's; the
    /// segment in `cx.segments` has the payloads, of `payload_len` bytes each.
    #[inline]
    pub(crate) fn send_writes(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        header: &HeaderBuf,
        ecn: u8,
        payload_len: u32,
    ) {
        let ([payload], Some(flow)) = (&cx.segments[..], core.flow.as_mut()) else {
            return;
        };
        let (packets, bytes) = self.batch.push_writes(flow, ecn, *header, *payload, payload_len);
        count_sent(core, cx, packets, bytes);
    }

    #[inline(never)]
    fn send_through_shims(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        header: &HeaderBuf,
        ecn: u8,
    ) {
        let data_ecn = core.data_ecn();
        let Some(flow) = core.flow.as_mut() else {
            return;
        };
        let packet = OutPacket { header, payload: cx.segments, ecn };
        let mut out = ShimOut::new(cx.now, self.batch, flow, self.shims.shims(), data_ecn);
        out.send(packet);
        let (packets, bytes) = out.sent();
        count_sent(core, cx, packets, bytes);
    }

    /// Shows the shim the packets that have passed since the last time.
    fn look(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let data_ecn = core.data_ecn();
        let (Some(shim), Some(flow)) = (self.shims.alone(), core.flow.as_mut()) else {
            return;
        };
        let mut out =
            ShimOut::new(cx.now, self.batch, flow, &mut [], data_ecn).behind(self.run_from);
        self.run_left = shim.passed(cx.now, &mut out).max(1);
        let (packets, bytes) = out.sent();
        self.run_from = self.batch.run_mark();
        if packets > 0 {
            count_sent(core, cx, packets, bytes);
        }
    }

    /// The turn is over: the shim sees every packet before it goes out.
    pub(super) fn finish(mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        if self.has_shims && self.batch.run_mark() > self.run_from && self.run_left > 0 {
            self.look(core, cx);
        }
    }

    /// Sends a datagram. Shims belong to connections, so none sees it.
    pub(crate) fn send_datagram(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        flow: &mut Flow,
        header: &HeaderBuf,
    ) {
        // A datagram QP has no flow of its own to keep the sealer in.
        if let Some(sealer) = core.sealer.take() {
            flow.protect(Some(sealer));
        }
        let bytes = self.batch.push(flow, core.data_ecn(), header, cx.segments);
        core.sealer = flow.take_sealer();
        count_sent(core, cx, 1, bytes);
    }
}

/// Accounts for packets that have gone out.
#[inline]
pub(super) fn count_sent(core: &mut QpCore, cx: &mut Cx<'_>, packets: u32, bytes: u64) {
    count_packets(core, cx, packets, bytes);
    core.limits.pacer.on_sent(cx.now, bytes);
}

#[inline]
fn count_packets(core: &mut QpCore, cx: &mut Cx<'_>, packets: u32, bytes: u64) {
    cx.counters.tx_packets += u64::from(packets);
    cx.counters.tx_bytes += bytes;
    core.counters.tx_packets += u64::from(packets);
    core.counters.tx_bytes += bytes;
}
