//! Late packets, which would cut a burst short: they follow it, as a burst of their own.
//!
//! All packets of a burst except the last have one length, and a shim's packets may be longer than
//! the data that they follow. Sent in place they would split one call to the port into three, and a
//! call costs as much as many packets.

use super::{Burst, Flow, HeaderBuf, TxBatch, TxPacket, lengths, put_summed, put_unsummed};
use crate::memory::Segment;

/// Most packets that may overtake a late one: the receiver waits for it.
pub const MAX_LATE: u32 = 16;

/// The late packets of a batch.
#[derive(Default)]
pub(super) struct Late {
    pub(super) packets: Vec<TxPacket>,
    pub(super) bytes: Vec<u8>,
    burst: Option<Burst>,
}

impl Late {
    pub(super) fn len(&self) -> usize {
        self.packets.len()
    }
}

impl TxBatch {
    /// Appends a packet as [`TxBatch::push`] does, with a copy of its payload.
    ///
    /// # Panics
    /// If the batch is full.
    pub fn push_copy(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[u8],
    ) -> u64 {
        self.push(flow, ecn, header, &[Segment::of_slice(payload)])
    }

    /// Appends a packet with a copy of its payload. If it is longer than the packets before it, up
    /// to [`MAX_LATE`] later packets may overtake it.
    ///
    /// # Panics
    /// If the batch is full.
    pub fn push_late(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[u8],
    ) -> u64 {
        let segments = [Segment::of_slice(payload)];
        if flow.is_protected() {
            return self.push_protected_late(flow, ecn, header, &segments);
        }
        let (len, pad) = lengths(header, &segments);
        match self.join_late(flow, flow.tos | ecn, header, len) {
            Some((ip_id, summed)) => {
                assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
                let to = (&mut self.late.packets, &mut self.late.bytes);
                if summed {
                    put_summed(flow, header, &segments, (len, pad, ip_id), to);
                } else {
                    put_unsummed(flow, header, &segments, (len, pad, ip_id), to);
                }
                self.capacity -= 1;
                u64::from(len)
            }
            None => self.push(flow, ecn, header, &segments),
        }
    }

    /// A packet's place among the late ones, if it belongs there, and whether it gets an ICRC.
    pub(super) fn join_late(
        &mut self,
        flow: &Flow,
        tos: u8,
        header: &HeaderBuf,
        len: u32,
    ) -> Option<(u16, bool)> {
        let (key, prefix) = (&flow.key, header.bytes[5]);
        if let Some(burst) = &mut self.late.burst {
            let place = burst.join(key, tos, prefix, len, &self.caps)?;
            return Some((place, burst.summed));
        }
        let open = self.bursts.last_mut()?;
        let goes_on =
            open.count < open.limit && open.bytes + open.segment_len <= self.caps.max_burst_bytes;
        if !goes_on || len <= open.segment_len {
            return None;
        }
        open.limit = open.limit.min(open.count + MAX_LATE);
        let burst: Burst = self.burst_of_one(key, tos, prefix, len);
        self.late.burst = Some(burst);
        Some((0, burst.summed))
    }

    /// Moves late packets after all others. To be called before the batch is sent.
    #[inline]
    pub(crate) fn append_late(&mut self) {
        if self.late.burst.is_some() {
            self.move_late();
        }
    }

    /// Out of line, since most batches have none.
    #[inline(never)]
    fn move_late(&mut self) {
        if let Some(burst) = self.late.burst.take() {
            // Data would be its last, and the burst behind it one short.
            self.bursts.push(Burst { first: self.packets.len() as u32, limit: 0, ..burst });
            self.capacity += self.late.packets.len();
            let behind = self.bytes.len() as u32;
            let packets = self.late.packets.drain(..);
            self.packets.extend(packets.map(|p| TxPacket { start: p.start + behind, ..p }));
            self.bytes.append(&mut self.late.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::net::IpAddr;

    use bowline_wire::{Bth, FlowKey, Opcode, Psn, Qpn, ROCE_UDP_PORT, icrc_of};

    use super::*;
    use crate::tx::TxCaps;

    fn header(psn: u32) -> HeaderBuf {
        HeaderBuf::new(&Bth::new(Opcode::RC_WRITE_MIDDLE, Qpn::new(1), Psn::new(psn)))
    }

    fn flow_and_batch(max_segments: u16, capacity: usize) -> (Flow, TxBatch) {
        let [src, dst] = [1, 2].map(|i| IpAddr::from([10, 0, 0, i]));
        let port = ROCE_UDP_PORT;
        let flow = Flow::new(FlowKey { src, dst, src_port: port, dst_port: port }, 0);
        (flow, TxBatch::new(TxCaps { max_segments, max_burst_bytes: 65_000 }, capacity))
    }

    /// Lengths of the packets, burst by burst; each must have the ICRC of its place.
    fn lengths_of(batch: &TxBatch, flow: &Flow) -> Vec<Vec<usize>> {
        let packets = |burst| {
            let mut lengths = Vec::new();
            for (id, packet) in batch.packets(burst).iter().enumerate() {
                let (body, icrc) = batch.bytes(packet).split_last_chunk().unwrap();
                let wanted = icrc_of(flow.key(), id as u16, body);
                assert_eq!(u32::from_le_bytes(*icrc), wanted);
                lengths.push(body.len() - Bth::LEN);
            }
            lengths
        };
        batch.bursts().iter().map(packets).collect()
    }

    #[test]
    fn a_longer_packet_goes_behind_the_burst_that_it_would_cut() {
        let (mut flow, mut batch) = flow_and_batch(4, 8);
        let payload = [Segment::of_slice(&[0; 64])];
        for psn in 0..6 {
            batch.push(&mut flow, 0, &header(psn), &payload);
            if psn == 1 {
                batch.push_late(&mut flow, 0, &header(100), &[1; 80]);
                assert_eq!((batch.len(), batch.room()), (3, 5));
            }
        }
        // Nothing longer than those before it: it cuts nothing.
        batch.push_late(&mut flow, 0, &header(101), &[1; 40]);
        batch.append_late();
        assert!(batch.is_full());
        assert_eq!(lengths_of(&batch, &flow), [vec![64; 4], vec![80], vec![64, 64, 40]]);
        batch.clear();
        assert_eq!((batch.len(), batch.room()), (0, 8));
    }

    #[test]
    fn not_too_many_overtake_a_late_packet() {
        let (mut flow, mut batch) = flow_and_batch(64, 64);
        let payload = [Segment::of_slice(&[0; 64])];
        batch.push(&mut flow, 0, &header(0), &payload);
        batch.push_late(&mut flow, 0, &header(1), &[1; 80]);
        for psn in 0..40 {
            batch.push(&mut flow, 0, &header(psn), &payload);
        }
        batch.append_late();
        let counts: Vec<usize> = lengths_of(&batch, &flow).iter().map(Vec::len).collect();
        assert_eq!(counts, [1 + MAX_LATE as usize, 1, 40 - MAX_LATE as usize]);
    }

    #[test]
    fn packets_are_like_those_before_them_in_the_batch_not_in_the_flow() {
        let (mut flow, mut batch) = flow_and_batch(64, 64);
        let payload = [Segment::of_slice(&[0; 64])];
        for psn in 0..3 {
            batch.push(&mut flow, 0, &header(psn), &payload);
        }
        batch.push_late(&mut flow, 0, &header(100), &[1; 80]);
        batch.push_late(&mut flow, 0, &header(101), &[1; 80]);
        for psn in 3..5 {
            batch.push(&mut flow, 0, &header(psn), &payload);
        }
        batch.append_late();
        batch.push(&mut flow, 0, &header(5), &payload);
        // In the batch: 0 1 2 3 4 100 101 5.
        let packets = batch.run_since(0);
        let stretches = [0, 1, 3, 4, 5, 6, 7].map(|at| batch.alike(&packets[at..]).0);
        assert_eq!(stretches, [3, 2, 2, 1, 2, 1, 1]);
        let (count, bytes) = batch.alike(packets);
        assert_eq!(bytes.len(), count * packets[0].udp_payload_len());
        assert_eq!(batch.alike(&[]), (0, &[][..]));
    }
}
