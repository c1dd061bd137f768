//! The thread of a switch: from the port into the engine, and out again in trains.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bowline_io::{FrameSink, Port, PortError};
use bowline_multicast::{Arrival, Replicas, Switch, Verdict};
use bowline_nic::{FrameMeta, IpId, Time, TxBatch, TxCaps};
use bowline_wire::FlowKey;

use super::Shared;

/// Packets of one batch.
const BATCH_PACKETS: usize = 1024;
/// Batches that one round of receiving fills at most, each of some hundred KiB. Copies beyond are dropped, and sent again by
/// the sender.
const MAX_BATCHES: usize = 256;
/// How long the thread sleeps without looking whether it is to end.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// How long it waits for room in the socket before it tries again.
const FULL_SLEEP: Duration = Duration::from_millis(1);

pub(super) struct Driver {
    port: Box<dyn Port>,
    shared: Arc<Shared>,
    out: Outgoing,
    work: Work,
}

/// What one round of receiving has made, in the order in which it leaves.
struct Outgoing {
    caps: TxCaps,
    batches: Vec<TxBatch>,
    /// The one that is being filled; those behind it are empty.
    current: usize,
}

impl Outgoing {
    fn new(caps: TxCaps) -> Outgoing {
        Outgoing { caps, batches: vec![TxBatch::new(caps, BATCH_PACKETS)], current: 0 }
    }

    fn push(&mut self, flow: &FlowKey, tos: u8, sealed_id: u16, frame: &[u8]) {
        if self.batches[self.current].is_full() {
            if self.current + 1 == MAX_BATCHES {
                return;
            }
            self.current += 1;
            if self.current == self.batches.len() {
                self.batches.push(TxBatch::new(self.caps, BATCH_PACKETS));
            }
        }
        self.batches[self.current].push_sealed(flow, tos, sealed_id, frame);
    }
}

/// Memory that rounds of receiving use again.
#[derive(Default)]
struct Work {
    /// The frames of a train that are to be copied: which, where in it, and the identification they were sealed for.
    train: Vec<(Replicas, usize, usize, u16)>,
    frame: Vec<u8>,
}

impl Driver {
    pub(super) fn new(port: Box<dyn Port>, shared: Arc<Shared>) -> Driver {
        let out = Outgoing::new(port.caps().tx);
        Driver { port, shared, out, work: Work::default() }
    }

    /// Forwards until the switch is dropped.
    pub(super) fn run(mut self) -> Result<(), PortError> {
        let dst_port = self.port.caps().udp_port;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let now = self.shared.now();
            let wake_at = {
                let shared = Arc::clone(&self.shared);
                let mut engine = shared.engine();
                let (engine, out, work) = (&mut *engine, &mut self.out, &mut self.work);
                let mut sink = Sink { now, dst_port, engine, out, work };
                let received = self.port.recv(now, &mut sink)?;
                engine.handle_timeout(now);
                while let Some(answer) = engine.poll_transmit() {
                    out.push(&answer.flow, 0, 0, answer.bytes());
                }
                if received > 0 { Some(now) } else { engine.poll_timeout() }
            };
            self.send(now)?;
            self.port.flush(now)?;
            *self.shared.port.lock().unwrap_or_else(PoisonError::into_inner) = self.port.counters();
            self.sleep_until(now, wake_at)?;
        }
        Ok(())
    }

    /// Sends everything, however long the socket takes for it: meanwhile, what arrives waits.
    fn send(&mut self, now: Time) -> Result<(), PortError> {
        for batch in &mut self.out.batches[..=self.out.current] {
            let (mut sent, count) = (0, batch.bursts().len());
            while sent < count && !self.shared.stop.load(Ordering::Relaxed) {
                sent += self.port.send(now, batch, sent)?;
                if sent < count {
                    self.port.fds().wait_writable(FULL_SLEEP)?;
                }
            }
            batch.clear();
        }
        self.out.current = 0;
        Ok(())
    }

    fn sleep_until(&self, now: Time, wake_at: Option<Time>) -> Result<(), PortError> {
        let wake_at = [wake_at, self.port.poll_timeout()].into_iter().flatten().min();
        let sleep = wake_at.map_or(MAX_SLEEP, |at| (at - now).min(MAX_SLEEP));
        if sleep.is_zero() {
            return Ok(());
        }
        self.port.fds().wait_readable(sleep)
    }
}

/// Takes received frames into the engine, and their copies into a batch.
struct Sink<'a> {
    now: Time,
    dst_port: u16,
    engine: &'a mut Switch,
    out: &'a mut Outgoing,
    work: &'a mut Work,
}

impl FrameSink for Sink<'_> {
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]) {
        self.frames(meta, bytes, bytes.len().max(1));
    }

    /// Copies branch by branch, so that a train stays one.
    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        let FrameMeta { src, dst, src_port, tos, mut ip_id, .. } = *meta;
        let flow = FlowKey { src, dst, src_port, dst_port: self.dst_port };
        self.work.train.clear();
        let mut branches = 0_u64;
        for (index, frame) in bytes.chunks(frame_len).enumerate() {
            let (known, sealed_id) = match ip_id {
                IpId::Known(id) => (Some(id), id),
                IpId::Guess(id) => (None, id),
            };
            let arrival = Arrival { flow, ip_id: known, bytes: frame };
            if let Verdict::Replicate(replicas) = self.engine.handle_frame(self.now, &arrival) {
                replicas.branches().for_each(|branch| branches |= 1 << branch);
                let start = index * frame_len;
                self.work.train.push((replicas, start, start + frame.len(), sealed_id));
            }
            ip_id.skip(1);
        }
        for branch in (0..64).filter(|branch| branches >> branch & 1 != 0) {
            for (replicas, start, end, sealed_id) in &self.work.train {
                if !replicas.branches().any(|other| other == branch) {
                    continue;
                }
                let Some(edit) = self.engine.edit(replicas, branch) else { continue };
                self.work.frame.clear();
                self.work.frame.extend_from_slice(&bytes[*start..*end]);
                edit.apply(&mut self.work.frame);
                self.out.push(&edit.flow, tos, *sealed_id, &self.work.frame);
            }
        }
    }
}
