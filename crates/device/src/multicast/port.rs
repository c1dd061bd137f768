//! The port of a sender: what leaves for a group leaves once for each member, and what they answer becomes one answer.

use bowline_io::{Faults, FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use bowline_multicast::{Arrival, GROUP_PREFIX, MAX_ANSWER_LEN, Switch};
use bowline_nic::{CleanPaths, FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{FlowKey, write_icrc};
use std::sync::Arc;

use super::Replicator;
use super::outgoing::{Copier, Outgoing, Train};

/// How soon to try again when the port below is full.
const RETRY_NS: u64 = 50_000;
/// Copies that are made before the first of them leaves.
const COPIED_BYTES: usize = 512 << 10;
/// TTL of answers that were never on a wire.
const TTL: u8 = 64;

/// Copies what is sent to groups, and merges answers.
pub(super) struct ReplicatingPort {
    inner: Box<dyn Port>,
    shared: Arc<Replicator>,
    copier: Copier,
    /// Copies, and what was to leave among them, until the port below has taken them.
    out: Outgoing,
    /// When the last call was.
    now: Time,
    /// When the engine wants to be called; at once if it has answers for the sender.
    wake_at: Option<Time>,
}

impl ReplicatingPort {
    pub(super) fn new(inner: Box<dyn Port>, shared: Arc<Replicator>) -> ReplicatingPort {
        let out = Outgoing::new(inner.caps().tx);
        let copier = Copier::of_port();
        ReplicatingPort { inner, shared, copier, out, now: Time::ZERO, wake_at: None }
    }

    /// Sends what waits; whether everything has left.
    fn drain(&mut self, now: Time) -> Result<bool, PortError> {
        if self.out.is_empty() { Ok(true) } else { self.out.send(now, &mut self.inner) }
    }
}

impl Port for ReplicatingPort {
    fn caps(&self) -> PortCaps {
        self.inner.caps()
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.now = now;
        if !self.drain(now)? {
            return Ok(0);
        }
        let bursts = batch.bursts().get(from..).unwrap_or_default();
        if self.shared.is_idle() || bursts.iter().all(|burst| burst.prefix() != GROUP_PREFIX) {
            return self.inner.send(now, batch, from);
        }
        let caps = self.inner.caps();
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        let mut taken = 0;
        for burst in bursts {
            let flow = FlowKey {
                src: caps.addr,
                dst: burst.dst,
                src_port: caps.udp_port,
                dst_port: burst.dst_port,
            };
            let train = Train {
                flow,
                tos: burst.tos,
                bytes: batch.burst_bytes(burst),
                frame_len: burst.segment_len as usize,
                ip_id: if burst.is_summed() { IpId::Guess(0) } else { IpId::Unsummed },
            };
            self.copier.copy(now, &mut engine, &train, &mut self.out);
            taken += 1;
            // Copies leave while they are in the cache.
            if self.out.bytes() >= COPIED_BYTES && !self.drain(now)? {
                break;
            }
        }
        self.drain(now)?;
        self.wake_at = if engine.has_answers() { Some(now) } else { engine.poll_timeout() };
        Ok(taken)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.now = now;
        if self.shared.is_idle() {
            return self.inner.recv(now, sink);
        }
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        let dst_port = self.inner.caps().udp_port;
        let mut answers = Answers { now, dst_port, engine: &mut engine, sink };
        let received = self.inner.recv(now, &mut answers)?;
        let mut merged = 0;
        while let Some(answer) = engine.poll_transmit() {
            let FlowKey { src, dst, src_port, .. } = answer.flow;
            let meta = FrameMeta { src, dst, src_port, tos: 0, ttl: TTL, ip_id: IpId::Known(0) };
            sink.frame(&meta, answer.bytes());
            merged += 1;
        }
        self.wake_at = engine.poll_timeout();
        Ok(received + merged)
    }

    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        self.now = now;
        self.drain(now)?;
        if self.wake_at.is_some_and(|at| at <= now) {
            let mut engine = self.shared.engine();
            engine.handle_timeout(now);
            self.wake_at = if engine.has_answers() { Some(now) } else { engine.poll_timeout() };
        }
        self.inner.flush(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        let retry = (!self.out.is_empty()).then(|| self.now.plus_nanos(RETRY_NS));
        [self.wake_at, retry, self.inner.poll_timeout()].into_iter().flatten().min()
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep()
    }

    fn fds(&self) -> PortFds {
        self.inner.fds()
    }

    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        self.inner.clean_paths()
    }

    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }

    fn faults(&self) -> Option<&Faults> {
        self.inner.faults()
    }
}

/// Takes members' answers out of what arrives.
struct Answers<'a> {
    now: Time,
    dst_port: u16,
    engine: &'a mut Switch,
    sink: &'a mut dyn FrameSink,
}

impl FrameSink for Answers<'_> {
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]) {
        let FrameMeta { src, dst, src_port, .. } = *meta;
        let flow = FlowKey { src, dst, src_port, dst_port: self.dst_port };
        let mut summed = [0; MAX_ANSWER_LEN];
        let (ip_id, answer) = match meta.ip_id {
            IpId::Known(id) => (Some(id), bytes),
            IpId::Guess(_) => (None, bytes),
            // A member on this host: its answers come through memory, and the engine wants an ICRC.
            IpId::Unsummed => (Some(0), with_icrc(&flow, bytes, &mut summed)),
        };
        let is_short = bytes.len() <= MAX_ANSWER_LEN;
        let arrival = Arrival { flow, ip_id, bytes: answer };
        if !is_short || !self.engine.handle_answer(self.now, &arrival) {
            self.sink.frame(meta, bytes);
        }
    }

    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        // Longer frames are data, and a train of them stays one.
        if frame_len > MAX_ANSWER_LEN {
            return self.sink.frames(meta, bytes, frame_len);
        }
        let mut meta = *meta;
        for frame in bytes.chunks(frame_len.max(1)) {
            self.frame(&meta, frame);
            meta.ip_id.skip(1);
        }
    }
}

/// A packet with the ICRC that it would have on a wire, as far as there is room for it.
fn with_icrc<'a>(flow: &FlowKey, packet: &[u8], room: &'a mut [u8; MAX_ANSWER_LEN]) -> &'a [u8] {
    let Some(room) = room.get_mut(..packet.len()) else { return &[] };
    room.copy_from_slice(packet);
    write_icrc(flow, 0, room);
    room
}
