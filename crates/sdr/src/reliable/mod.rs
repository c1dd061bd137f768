//! Reliable messages: a scheme for each, over an SDR QP.
//!
//! A message uses a fixed number of the SDR QP's messages, its *places*: for each group of chunks
//! one for data, and one for parity if the connection has any. So both ends agree on the places
//! without negotiating, the receiver can post all of them before it knows which scheme the sender
//! will choose, and no scheme needs an extra round trip.

mod choose;
mod config;
mod context;
mod drive;
mod event;
mod finish;
mod group;
mod incoming;
mod join;
mod loss;
mod outbox;
mod outgoing;
mod scratch;
mod shape;
mod stripe;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bowline_nic::{AddressVector, PacketSeal, PdId, RateControl, Rnic, Time};

pub use config::{ReliableConfig, ReliableInfo};
pub use context::{MAX_TELL, RecvCx, SendCx};
pub use event::{Failure, ReliableEvent, ReliableStats};
pub use join::Join;
pub use shape::Shape;
pub use stripe::Stripe;

use crate::error::SdrError;
use crate::path::PathStats;
use crate::qp::SdrQp;
use crate::scheme::{Chooser, Decision, DecisionLog, Scheme};
use crate::send::Source;
use choose::Repaired;
use finish::Abort;
use incoming::Incoming;
use loss::LossMeter;
use outbox::Outbox;
use outgoing::Outgoing;
use scratch::ScratchPool;
use stripe::Memory;
use wire::{Begin, Message};

/// A message being written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub u64);

/// A message being received: that of the same number from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecvId(pub u64);

/// How to write a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// Index of the scheme among the connection's; the first by default.
    pub scheme: usize,
    /// 32 bits for the receiver.
    pub imm: Option<u32>,
}

/// How long a receiver may say nothing about a message that it should have heard of, at least. A
/// receiver that does not know of a message acknowledges none of it, so this is shorter than the
/// timeouts of schemes.
const MIN_BEGIN_NS: u64 = 10_000_000;
/// Shortest silence of the receiver before it is probed.
const MIN_PROBE_NS: u64 = 30_000_000;
/// Longest interval between probes. Those for all messages share a packet.
const MAX_PROBE_NS: u64 = 500_000_000;

/// A queue pair of reliable messages.
///
/// Messages match the peer's receives in posting order. Driven like the [`SdrQp`] under it: call
/// [`drive`](ReliableQp::drive) after anything that may have changed the NIC and when
/// [`poll_timeout`](ReliableQp::poll_timeout) has come, then call
/// [`poll_event`](ReliableQp::poll_event) until it returns none.
pub struct ReliableQp {
    config: ReliableConfig,
    sdr: SdrQp,
    pd: PdId,
    scratch: ScratchPool,
    /// Number of the first in the queue; finished ones are removed from its front.
    first_out: u64,
    outgoing: VecDeque<Option<Outgoing>>,
    /// Number of the next to start.
    next_start: u64,
    /// No message has anything due before this: timers are set far more often than they fire.
    due: Time,
    /// Finished messages of which the NIC still has packets to send.
    draining: Vec<(Outgoing, Result<(), Failure>)>,
    first_in: u64,
    incoming: VecDeque<Option<Incoming>>,
    /// Messages that failed here, until their sender is known to be done with them.
    refused: BTreeSet<u64>,
    /// Messages given up, until the receiver has confirmed.
    aborting: BTreeMap<u64, Abort>,
    events: VecDeque<ReliableEvent>,
    stats: ReliableStats,
    losses: LossMeter,
    /// Repairs of finished messages that have not been counted yet.
    repaired: Repaired,
    /// One for each scheme that leaves the choice to the connection.
    choosers: Vec<Option<Box<dyn Chooser>>>,
    decisions: DecisionLog,
    /// Messages go to the members of a group: a failure names one.
    in_group: bool,
    /// The group member that sent the latest message; the only peer if there is no group.
    speaker: usize,
    /// Reused buffer.
    dirty: Vec<u64>,
    /// Messages to the peer.
    outbox: Outbox,
}

impl ReliableQp {
    /// Creates a QP in a protection domain.
    pub fn new(
        nic: &mut dyn Rnic,
        pd: PdId,
        config: &ReliableConfig,
    ) -> Result<ReliableQp, SdrError> {
        config.check()?;
        let sdr = SdrQp::new(nic, pd, &config.sdr_config())?;
        Ok(ReliableQp::over(sdr, pd, config))
    }

    fn over(mut sdr: SdrQp, pd: PdId, config: &ReliableConfig) -> ReliableQp {
        sdr.track_injected();
        let parity =
            u64::from(config.groups()) * u64::from(config.m) * u64::from(config.sdr.chunk_bytes);
        ReliableQp {
            config: config.clone(),
            sdr,
            pd,
            scratch: ScratchPool::new(pd, parity.max(1)),
            first_out: 0,
            outgoing: VecDeque::new(),
            next_start: 0,
            due: Time::NEVER,
            draining: Vec::new(),
            first_in: 0,
            incoming: VecDeque::new(),
            refused: BTreeSet::new(),
            aborting: BTreeMap::new(),
            events: VecDeque::new(),
            stats: ReliableStats::default(),
            losses: LossMeter::new(config.sdr.chunk_bytes / config.sdr.mtu.bytes()),
            repaired: Repaired::default(),
            choosers: config.schemes.iter().map(|scheme| scheme.chooser()).collect(),
            decisions: DecisionLog::default(),
            in_group: false,
            speaker: 0,
            dirty: Vec::new(),
            outbox: Outbox::default(),
        }
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> ReliableInfo {
        ReliableInfo::new(&self.config, self.sdr.info())
    }

    /// Seals its packets, before it is connected: see [`SdrQp::seal`].
    pub fn seal(
        &mut self,
        nic: &mut dyn Rnic,
        make: impl FnMut() -> PacketSeal,
    ) -> Result<(), SdrError> {
        self.sdr.seal(nic, make)
    }

    /// Connects to a peer.
    pub fn connect(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        av: AddressVector,
        peer: &ReliableInfo,
    ) -> Result<(), SdrError> {
        self.connect_behind(nic, now, av, av, peer)
    }

    /// Connects to a peer whose packets, except control messages, come from `data`: see
    /// [`SdrQp::connect_behind`].
    pub fn connect_behind(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        av: AddressVector,
        data: AddressVector,
        peer: &ReliableInfo,
    ) -> Result<(), SdrError> {
        let sdr = peer.check_against(&self.config)?;
        self.sdr.connect_behind(nic, now, av, data, sdr)
    }

    /// Places of receives posted so far, for [`hear_posted`](Self::hear_posted) at the peer.
    pub fn posted(&self) -> u64 {
        self.sdr.posted()
    }

    /// The peer has said over another channel that it has posted so many: see
    /// [`SdrQp::hear_posted`].
    pub fn hear_posted(&mut self, posted: u64) {
        self.sdr.hear_posted(posted);
    }

    /// The round trip to reckon with until one is timed.
    pub fn assume_rtt(&mut self, rtt_ns: u64) {
        self.sdr.assume_rtt(rtt_ns);
    }

    /// Chooses what finds the rate out, before the QP is connected: see [`SdrConfig::congestion`].
    ///
    /// [`SdrConfig::congestion`]: crate::SdrConfig::congestion
    pub fn set_congestion(&mut self, congestion: Option<RateControl>) {
        self.sdr.set_congestion(congestion);
    }

    /// The current sending rate, where it is known.
    pub fn rate_bps(&mut self, now: Time) -> Option<u64> {
        self.sdr.rate_bps(now)
    }

    /// The schemes of the connection, in the order of their indices.
    pub fn schemes(&self) -> &[Arc<dyn Scheme>] {
        &self.config.schemes
    }

    /// The parameters.
    pub fn config(&self) -> &ReliableConfig {
        &self.config
    }

    /// Since when a message has been waiting for a receive while the peer has said nothing; `None`
    /// if none waits. That is no failure: a peer without receives may be idle. But where peers
    /// always have some, it reveals one that has died before it could say so.
    pub fn unanswered_since(&self) -> Option<Time> {
        let index = self.next_start.checked_sub(self.first_out)? as usize;
        let mut waiting = self.outgoing.iter().skip(index).flatten();
        let posted = waiting.next()?.posted;
        Some(self.sdr.last_heard(0).map_or(posted, |heard| heard.max(posted)))
    }

    /// Whether the next message could be written now.
    pub fn write_room(&self) -> Result<(), SdrError> {
        self.sdr.send_room_for(self.config.places())
    }

    /// Writes `len` bytes into the peer's next receive; if several QPs carry the message, this QP's
    /// share of them.
    pub fn write(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        source: Source,
        len: u64,
        options: WriteOptions,
    ) -> Result<WriteId, SdrError> {
        if len > self.config.max_write {
            return Err(SdrError::TooLong { len, max: self.config.max_write });
        }
        if options.scheme >= self.config.schemes.len() {
            return Err(SdrError::NoSuchScheme(options.scheme.to_string()));
        }
        // All of the message's places or none: otherwise the ends' counts would diverge.
        self.write_room()?;
        let id = self.first_out + self.outgoing.len() as u64;
        let memory = self.memory(source, id);
        let len = memory.share.len(len);
        let shape = self.config.shape(len);
        let index = self.choose(now, WriteId(id), &shape, options.scheme);
        let scheme = Arc::clone(&self.config.schemes[index]);
        let parity = if scheme.uses_parity() && self.config.m > 0 {
            Some(self.scratch.take(nic)?)
        } else {
            None
        };
        let mut handles = Vec::with_capacity(self.config.places() as usize);
        for group in 0..self.config.groups() {
            let used = group < shape.groups();
            let data = if used { shape.group_bytes(group) } else { 0..0 };
            handles.push(self.start_place(used, data.end - data.start)?);
            if self.config.m > 0 {
                let chunks = if used { shape.parity_chunks(group) } else { 0 };
                let len = u64::from(chunks) * u64::from(shape.chunk_bytes);
                handles.push(self.start_place(used && parity.is_some(), len)?);
            }
        }
        let bytes = if parity.is_some() { shape.coded_bytes() } else { len };
        let wire_ns = match self.sdr.rate_bps(now) {
            Some(bps) => (bytes as f64 * 8e9 / bps as f64) as u64,
            None => 0,
        };
        let begin = Begin { id, len, scheme: index as u8, imm: options.imm, wire_ns };
        self.outgoing.push_back(Some(Outgoing {
            id,
            shape,
            memory,
            begin,
            handles,
            has_parity_subs: self.config.m > 0,
            parity,
            machine: Some(scheme.sender(&shape)),
            posted: now,
            started: false,
            timer: None,
            probe_at: None,
            probe_ns: MIN_PROBE_NS,
            heard: now,
            unsent: bytes,
            reminded: false,
            resent: 0,
            failed: false,
            lacking: self.sdr.live_members(),
            unaware: self.sdr.live_members(),
        }));
        self.start_cleared(nic, now);
        Ok(WriteId(id))
    }

    fn memory(&self, base: Source, id: u64) -> Memory {
        Memory { base, share: self.config.stripe.share(id, self.config.group_bytes()) }
    }

    fn start_place(&mut self, used: bool, len: u64) -> Result<crate::SendHandle, SdrError> {
        let handle = self.sdr.send_start(if used { len } else { 0 }, None)?;
        if !used {
            self.sdr.send_end(handle)?;
        }
        Ok(handle)
    }

    /// Posts `capacity` bytes at `buffer` for the peer's next message, and tells the peer.
    pub fn recv(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        buffer: Source,
        capacity: u64,
    ) -> Result<RecvId, SdrError> {
        if capacity > self.config.max_write {
            return Err(SdrError::TooLong { len: capacity, max: self.config.max_write });
        }
        // All of the message's places or none: otherwise the ends' counts would diverge.
        self.sdr.recv_room_for(now, self.config.places())?;
        nic.check_bindable(self.pd, buffer.key, buffer.addr, capacity as usize)?;
        let id = self.first_in + self.incoming.len() as u64;
        let memory = self.memory(buffer, id);
        let capacity = memory.share.len(capacity);
        let shape = self.config.shape(capacity);
        let parity = if self.config.m > 0 { Some(self.scratch.take(nic)?) } else { None };
        let mut handles = Vec::with_capacity(self.config.places() as usize);
        for group in 0..self.config.groups() {
            let used = group < shape.groups();
            handles.push(if used {
                let bytes = shape.group_bytes(group);
                let at = memory.at(bytes.start);
                Some(self.sdr.recv_post(nic, now, at, bytes.end - bytes.start)?)
            } else {
                self.sdr.recv_skip(now)?;
                None
            });
            if let Some(parity) = &parity {
                let span = u64::from(self.config.m) * u64::from(shape.chunk_bytes);
                handles.push(if used {
                    let at = Source { key: parity.key, addr: u64::from(group) * span };
                    Some(self.sdr.recv_post(nic, now, at, span)?)
                } else {
                    self.sdr.recv_skip(now)?;
                    None
                });
            }
        }
        self.incoming.push_back(Some(Incoming {
            id,
            memory,
            capacity,
            handles,
            top: 0,
            has_parity_subs: self.config.m > 0,
            parity,
            begun: None,
            machine: None,
            timer: None,
            heard: now,
            complete: false,
            recovered: 0,
        }));
        Ok(RecvId(id))
    }

    /// Whether the next receive could be posted now.
    pub fn recv_room(&self, now: Time) -> Result<(), SdrError> {
        self.sdr.recv_room_for(now, self.config.places())
    }

    /// The next outcome of a message.
    pub fn poll_event(&mut self) -> Option<ReliableEvent> {
        self.events.pop_front()
    }

    /// What is known about the path to the peer.
    pub fn path(&self) -> PathStats {
        self.sdr.path()
    }

    /// The schemes chosen for messages that left the choice to the connection, and why: the latest
    /// decisions, oldest first.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.decisions.entries()
    }

    /// Statistics of the connection.
    pub fn stats(&self) -> ReliableStats {
        ReliableStats { landing: self.sdr.landing_stats(), ..self.stats }
    }

    /// Sends a message to the peer, at the end of this call or of the next
    /// [`drive`](ReliableQp::drive).
    fn tell(&mut self, nic: &mut dyn Rnic, now: Time, message: Message<'_>) {
        self.outbox.push(nic, now, &mut self.sdr, message);
    }

    /// Removes the QP's objects from the NIC.
    pub fn destroy(mut self, nic: &mut dyn Rnic) {
        let draining = self.draining.drain(..).map(|(message, _)| message);
        for message in self.outgoing.drain(..).flatten().chain(draining) {
            message.parity.into_iter().for_each(|scratch| self.scratch.give_back(scratch));
        }
        for message in self.incoming.drain(..).flatten() {
            message.parity.into_iter().for_each(|scratch| self.scratch.give_back(scratch));
        }
        self.sdr.destroy(nic);
        self.scratch.destroy(nic);
    }
}

/// The message with that number, if it is not over.
fn slot<T>(queue: &mut VecDeque<Option<T>>, first: u64, id: u64) -> Option<&mut T> {
    queue.get_mut(id.checked_sub(first)? as usize)?.as_mut()
}

#[cfg(test)]
mod tests;
