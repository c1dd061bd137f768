//! The port of a sender: packets to a group are sent once for each member, and the members'
//! responses become one response.

use bowline_io::{Faults, FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use bowline_multicast::{Arrival, GROUP_PREFIX, MAX_ANSWER_LEN, Switch};
use bowline_nic::{CleanPaths, FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{FlowKey, write_icrc};
use std::sync::Arc;

use super::Replicator;
use super::outgoing::{Copier, Outgoing, Train, bits};

/// How soon to try again if the port below is full.
const RETRY_NS: u64 = 50_000;
/// TTL of responses that were never on a wire.
const TTL: u8 = 64;

/// Copies packets to groups, and merges responses.
pub(super) struct ReplicatingPort {
    inner: Box<dyn Port>,
    shared: Arc<Replicator>,
    copier: Copier,
    /// Copies, and the packets that were to leave with them, until the port below has taken them.
    out: Outgoing,
    /// The port below has not taken all of the last batch. Until it has, nothing may come before
    /// the rest.
    is_behind: bool,
    /// When the last call was made.
    now: Time,
    /// When to call the engine; at once if it has responses for the sender.
    wake_at: Option<Time>,
}

impl ReplicatingPort {
    pub(super) fn new(inner: Box<dyn Port>, shared: Arc<Replicator>) -> ReplicatingPort {
        let out = Outgoing::new(inner.caps().tx);
        let copier = Copier::of_port();
        ReplicatingPort {
            inner,
            shared,
            copier,
            out,
            is_behind: false,
            now: Time::ZERO,
            wake_at: None,
        }
    }

    /// Sends waiting packets. Returns whether everything has been sent.
    fn drain(&mut self, now: Time) -> Result<bool, PortError> {
        if self.out.is_empty() { Ok(true) } else { self.out.send(now, &mut self.inner) }
    }

    /// Whether a batch contains packets to copy.
    fn has_copies(&self, batch: &TxBatch, from: usize) -> bool {
        let mut bursts = batch.bursts().iter().skip(from);
        !self.shared.is_idle() && bursts.any(|burst| burst.prefix() == GROUP_PREFIX)
    }

    /// Passes all frames of a batch to the engine.
    fn judge(&mut self, now: Time, engine: &mut Switch, batch: &TxBatch, from: usize) {
        let caps = self.inner.caps();
        self.copier.clear();
        for number in from..batch.bursts().len() {
            let train = train_of(&caps, batch, number);
            self.copier.judge(now, engine, number, &train, &mut self.out);
        }
    }

    /// Copies the bursts of a batch, starting at `from`, to some of the branches.
    fn copy(&mut self, engine: &mut Switch, batch: &TxBatch, from: usize, among: u64) {
        let caps = self.inner.caps();
        for number in from..batch.bursts().len() {
            let train = train_of(&caps, batch, number);
            self.copier.copy_out(engine, number, &train, among, &mut self.out);
        }
    }

    /// Sends a batch to one branch after the other, and changes only its headers in between. This
    /// is all that a copy for a member costs. If the port below is full, the rest is copied.
    fn send_in_place(
        &mut self,
        now: Time,
        engine: &mut Switch,
        batch: &mut TxBatch,
        from: usize,
        branches: u64,
    ) -> Result<(), PortError> {
        let end = batch.bursts().len();
        for branch in bits(branches) {
            self.copier.rewrite(engine, branch, batch);
            let rest = from + self.inner.send(now, batch, from)?;
            if rest < end {
                self.copier.restore(batch);
                self.copy(engine, batch, rest, 1 << branch);
                self.copy(engine, batch, from, branches & (u64::MAX << branch) << 1);
                break;
            }
        }
        Ok(())
    }

    /// Sends the copies, and records when to call the engine again.
    fn finish(&mut self, now: Time, engine: &Switch) -> Result<(), PortError> {
        self.drain(now)?;
        self.wake_at = if engine.has_answers() { Some(now) } else { engine.poll_timeout() };
        Ok(())
    }
}

/// A burst of a batch, as a train.
fn train_of<'a>(caps: &PortCaps, batch: &'a TxBatch, number: usize) -> Train<'a> {
    let burst = &batch.bursts()[number];
    let flow = FlowKey {
        src: caps.addr,
        dst: burst.dst,
        src_port: caps.udp_port,
        dst_port: burst.dst_port,
    };
    Train {
        flow,
        tos: burst.tos,
        bytes: batch.burst_bytes(burst),
        frame_len: burst.segment_len as usize,
        ip_id: if burst.is_summed() { IpId::Guess(0) } else { IpId::Unsummed },
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
        if !self.has_copies(batch, from) {
            let taken = self.inner.send(now, batch, from)?;
            self.is_behind = from + taken < batch.bursts().len();
            return Ok(taken);
        }
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        self.judge(now, &mut engine, batch, from);
        self.copy(&mut engine, batch, from, u64::MAX);
        self.finish(now, &engine)?;
        Ok(batch.bursts().len() - from)
    }

    fn send_mut(
        &mut self,
        now: Time,
        batch: &mut TxBatch,
        from: usize,
    ) -> Result<usize, PortError> {
        self.now = now;
        if !self.drain(now)? {
            return Ok(0);
        }
        if !self.has_copies(batch, from) {
            let taken = self.inner.send_mut(now, batch, from)?;
            self.is_behind = from + taken < batch.bursts().len();
            return Ok(taken);
        }
        let shared = Arc::clone(&self.shared);
        let mut engine = shared.engine();
        self.judge(now, &mut engine, batch, from);
        match self.copier.shared_branches() {
            Some(branches) => self.send_in_place(now, &mut engine, batch, from, branches)?,
            None => self.copy(&mut engine, batch, from, u64::MAX),
        }
        self.finish(now, &engine)?;
        Ok(batch.bursts().len() - from)
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
        if !self.is_behind && self.out.is_empty() {
            for (flow, probe) in self.shared.take_probes() {
                self.out.push(&flow, 0, 0, &probe);
            }
        }
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

/// Filters members' responses out of received frames.
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
            // This member is on this host: its responses come through shared memory, but the engine
            // expects an ICRC.
            IpId::Unsummed => (Some(0), with_icrc(&flow, bytes, &mut summed)),
        };
        let is_short = bytes.len() <= MAX_ANSWER_LEN;
        let arrival = Arrival { flow, ip_id, bytes: answer };
        if !is_short || !self.engine.handle_answer(self.now, &arrival) {
            self.sink.frame(meta, bytes);
        }
    }

    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        // Longer frames are data, and must stay together in a train.
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

/// A packet with the ICRC that it would have on a wire; empty if there is no room for it.
fn with_icrc<'a>(flow: &FlowKey, packet: &[u8], room: &'a mut [u8; MAX_ANSWER_LEN]) -> &'a [u8] {
    let Some(room) = room.get_mut(..packet.len()) else { return &[] };
    room.copy_from_slice(packet);
    write_icrc(flow, 0, room);
    room
}
