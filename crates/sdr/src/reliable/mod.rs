//! Reliable messages: a scheme for each, over an SDR QP.
//!
//! A message takes a fixed number of the SDR QP's messages, its *places*: for each group of chunks
//! one for data, and one for parity if the connection has any. So both ends know which place is
//! which without telling each other, the receiver can post all of them before it knows which scheme
//! the sender will choose, and no scheme costs a round trip more than another.

mod config;
mod context;
mod incoming;
mod outgoing;
mod scratch;
mod shape;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bowline_nic::{AddressVector, Nic, PdId, Time};

pub use config::{ReliableConfig, ReliableInfo};
pub use context::{MAX_TELL, RecvCx, SendCx};
pub use shape::Shape;

use crate::error::SdrError;
use crate::path::PathStats;
use crate::qp::SdrQp;
use crate::recv::RecvHandle;
use crate::scheme::Scheme;
use crate::send::Source;
use crate::table::LandingStats;
use incoming::Incoming;
use outgoing::Outgoing;
use scratch::ScratchPool;
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
    /// Index of the scheme among the connection's; the first unless said otherwise.
    pub scheme: usize,
    /// 32 bits for the receiver.
    pub imm: Option<u32>,
}

/// Why a message failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nothing was heard of it for longer than the connection's timeout.
    #[error("nothing was heard of the message within the timeout")]
    TimedOut,
    /// The other end gave up on it.
    #[error("the peer gave up on the message")]
    Aborted,
    /// It is longer than the buffer that was posted for it.
    #[error("the message is longer than the receive that was posted for it")]
    TooLong,
    /// This host's NIC failed, or the memory was deregistered.
    #[error("this host's NIC refused to send the message")]
    Local,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReliableEvent {
    /// A message is with the peer, all of it, or it failed; its buffer is the caller's again.
    Written {
        /// Which.
        id: WriteId,
        /// What became of it.
        result: Result<(), Failure>,
    },
    /// A message has arrived, all of it, or it failed; its buffer is the caller's again.
    Received {
        /// Which.
        id: RecvId,
        /// Its length.
        len: u64,
        /// The sender's 32 bits.
        imm: Option<u32>,
        /// What became of it.
        result: Result<(), Failure>,
    },
}

/// What a connection has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReliableStats {
    /// Chunks sent again.
    pub chunks_resent: u64,
    /// Chunks computed from parity.
    pub chunks_recovered: u64,
    /// What has landed here.
    pub landing: LandingStats,
}

/// Shortest time without a word from the receiver before it is asked.
const MIN_PROBE_NS: u64 = 30_000_000;
const MAX_PROBE_NS: u64 = 2_000_000_000;
/// How often the receiver is told that a message was given up, as long as it does not say that it
/// knows: with doubling waits, for some half a minute.
const MAX_ABORTS: u32 = 20;

/// A queue pair of reliable messages.
///
/// Messages match the peer's receives in the order in which both were posted. Driven like the
/// [`SdrQp`] under it: call [`drive`](ReliableQp::drive) after anything that may have changed the
/// NIC and when [`poll_timeout`](ReliableQp::poll_timeout) has come, then take
/// [`poll_event`](ReliableQp::poll_event) until there is none.
pub struct ReliableQp {
    config: ReliableConfig,
    sdr: SdrQp,
    pd: PdId,
    scratch: ScratchPool,
    /// Number of the first in the queue; those that are over are taken off its front.
    first_out: u64,
    outgoing: VecDeque<Option<Outgoing>>,
    /// Messages that are over, but of which the NIC still has packets to send.
    draining: Vec<(Outgoing, Result<(), Failure>)>,
    first_in: u64,
    incoming: VecDeque<Option<Incoming>>,
    /// Messages that failed here, until their sender is known to be done with them.
    refused: BTreeSet<u64>,
    /// Messages given up, until the receiver is known to know.
    aborting: BTreeMap<u64, Abort>,
    events: VecDeque<ReliableEvent>,
    stats: ReliableStats,
    /// Reused.
    dirty: Vec<u64>,
    bytes: Vec<u8>,
}

/// When to tell the receiver again that a message was given up.
struct Abort {
    at: Time,
    wait_ns: u64,
    left: u32,
}

impl ReliableQp {
    /// Makes a QP in a protection domain.
    pub fn new(nic: &mut Nic, pd: PdId, config: &ReliableConfig) -> Result<ReliableQp, SdrError> {
        config.check()?;
        let mut sdr = SdrQp::new(nic, pd, &config.sdr_config())?;
        sdr.track_injected();
        let parity =
            u64::from(config.groups()) * u64::from(config.m) * u64::from(config.sdr.chunk_bytes);
        Ok(ReliableQp {
            config: config.clone(),
            sdr,
            pd,
            scratch: ScratchPool::new(pd, parity.max(1)),
            first_out: 0,
            outgoing: VecDeque::new(),
            draining: Vec::new(),
            first_in: 0,
            incoming: VecDeque::new(),
            refused: BTreeSet::new(),
            aborting: BTreeMap::new(),
            events: VecDeque::new(),
            stats: ReliableStats::default(),
            dirty: Vec::new(),
            bytes: Vec::new(),
        })
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> ReliableInfo {
        ReliableInfo::new(&self.config, self.sdr.info())
    }

    /// Connects to a peer.
    pub fn connect(
        &mut self,
        nic: &mut Nic,
        now: Time,
        av: AddressVector,
        peer: &ReliableInfo,
    ) -> Result<(), SdrError> {
        peer.check_against(&self.config)?;
        self.sdr.connect(nic, now, av, peer.sdr())
    }

    /// The schemes of the connection, in the order of their indices.
    pub fn schemes(&self) -> &[Arc<dyn Scheme>] {
        &self.config.schemes
    }

    /// The parameters.
    pub fn config(&self) -> &ReliableConfig {
        &self.config
    }

    /// Writes `len` bytes into the peer's next receive.
    pub fn write(
        &mut self,
        nic: &mut Nic,
        now: Time,
        source: Source,
        len: u64,
        options: WriteOptions,
    ) -> Result<WriteId, SdrError> {
        if len > self.config.max_write {
            return Err(SdrError::TooLong { len, max: self.config.max_write });
        }
        let scheme = self.config.schemes.get(options.scheme).cloned();
        let scheme = scheme.ok_or_else(|| SdrError::NoSuchScheme(options.scheme.to_string()))?;
        // All of the message's places or none: with some, both ends would count differently.
        self.sdr.send_room_for(self.config.places())?;
        let shape = self.config.shape(len);
        let id = self.first_out + self.outgoing.len() as u64;
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
        let wire_ns = match self.config.sdr.rate_bps {
            Some(bps) => (bytes as f64 * 8e9 / bps as f64) as u64,
            None => 0,
        };
        let begin = Begin { id, len, scheme: options.scheme as u8, imm: options.imm, wire_ns };
        self.outgoing.push_back(Some(Outgoing {
            id,
            shape,
            source,
            begin,
            handles,
            has_parity_subs: self.config.m > 0,
            parity,
            machine: Some(scheme.sender(&shape)),
            started: false,
            timer: None,
            probe_at: None,
            probe_ns: MIN_PROBE_NS,
            heard: now,
            unsent: bytes,
            reminded: false,
            resent: 0,
            failed: false,
        }));
        self.start_cleared(nic, now);
        Ok(WriteId(id))
    }

    fn start_place(&mut self, used: bool, len: u64) -> Result<crate::SendHandle, SdrError> {
        let handle = self.sdr.send_start(if used { len } else { 0 }, None)?;
        if !used {
            self.sdr.send_end(handle)?;
        }
        Ok(handle)
    }

    /// Posts `capacity` bytes at `buffer` for the peer's next message, and lets the peer know.
    pub fn recv(
        &mut self,
        nic: &mut Nic,
        now: Time,
        buffer: Source,
        capacity: u64,
    ) -> Result<RecvId, SdrError> {
        if capacity > self.config.max_write {
            return Err(SdrError::TooLong { len: capacity, max: self.config.max_write });
        }
        // All of the message's places or none: with some, both ends would count differently.
        self.sdr.recv_room_for(now, self.config.places())?;
        nic.check_bindable(self.pd, buffer.key, buffer.addr, capacity as usize)?;
        let shape = self.config.shape(capacity);
        let id = self.first_in + self.incoming.len() as u64;
        let parity = if self.config.m > 0 { Some(self.scratch.take(nic)?) } else { None };
        let mut handles = Vec::with_capacity(self.config.places() as usize);
        for group in 0..self.config.groups() {
            let used = group < shape.groups();
            handles.push(if used {
                let bytes = shape.group_bytes(group);
                let at = Source { addr: buffer.addr + bytes.start, ..buffer };
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
            buffer,
            capacity,
            handles,
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

    /// What became of messages.
    pub fn poll_event(&mut self) -> Option<ReliableEvent> {
        self.events.pop_front()
    }

    /// What is known of the path to the peer.
    pub fn path(&self) -> PathStats {
        self.sdr.path()
    }

    /// What the connection has done.
    pub fn stats(&self) -> ReliableStats {
        ReliableStats { landing: self.sdr.landing_stats(), ..self.stats }
    }

    /// Takes what has happened on the NIC and does what is due.
    pub fn drive(&mut self, nic: &mut Nic, now: Time) {
        self.sdr.drive(nic, now);
        while let Some(bytes) = self.sdr.next_control() {
            if let Some(message) = Message::parse(&bytes) {
                self.on_message(nic, now, message);
            }
        }
        self.start_cleared(nic, now);
        self.on_injected(nic, now);
        self.on_progress(nic, now);
        self.on_retired(nic, now);
        self.on_time(nic, now);
        self.abort_again(nic, now);
        if self.sdr.has_failed() {
            self.fail_all(nic, now);
        }
        // What the schemes have queued meanwhile.
        self.sdr.drive(nic, now);
        self.release_drained();
    }

    /// When to call [`drive`](ReliableQp::drive) if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        let timeout = self.config.timeout_ns;
        let out = self
            .outgoing
            .iter()
            .flatten()
            .filter(|m| m.started)
            .flat_map(|m| [m.timer, m.probe_at, Some(m.heard.plus_nanos(timeout))]);
        let incoming = self.incoming.iter().flatten().flat_map(|m| {
            let idle = m.begun.is_some().then(|| m.heard.plus_nanos(timeout));
            [m.timer, idle]
        });
        let aborts = self.aborting.values().map(|abort| Some(abort.at));
        out.chain(incoming).chain(aborts).chain([self.sdr.poll_timeout()]).flatten().min()
    }

    /// Runs a message's sending end.
    fn with_sender(
        &mut self,
        nic: &mut Nic,
        now: Time,
        id: u64,
        f: impl FnOnce(&mut dyn crate::SchemeSender, &mut SendCx<'_>),
    ) {
        let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
        let Some(mut machine) = message.machine.take() else { return };
        let mut cx = SendCx { now, nic, sdr: &mut self.sdr, pd: self.pd, message };
        f(&mut *machine, &mut cx);
        message.machine = Some(machine);
        if message.failed {
            self.finish_out(nic, now, id, Err(Failure::Local));
        }
    }

    /// Runs a message's receiving end, and ends the message if that has seen all of it.
    fn with_receiver(
        &mut self,
        nic: &mut Nic,
        now: Time,
        id: u64,
        f: impl FnOnce(&mut dyn crate::SchemeReceiver, &mut RecvCx<'_>),
    ) {
        let Some(message) = slot(&mut self.incoming, self.first_in, id) else { return };
        let Some((begin, shape)) = message.begun else { return };
        let Some(mut machine) = message.machine.take() else { return };
        let (sdr, wire_ns) = (&mut self.sdr, begin.wire_ns);
        let mut cx = RecvCx { now, nic, sdr, pd: self.pd, message, shape: &shape, wire_ns };
        f(&mut *machine, &mut cx);
        message.machine = Some(machine);
        if message.complete {
            self.finish_in(nic, now, id, Ok(()));
        }
    }

    /// Starts messages whose receives the peer has posted.
    fn start_cleared(&mut self, nic: &mut Nic, now: Time) {
        for index in 0..self.outgoing.len() {
            let Some(message) = &mut self.outgoing[index] else { continue };
            if message.started {
                continue;
            }
            let last = message.handles.last().copied();
            if !last.is_some_and(|handle| self.sdr.is_cleared(handle)) {
                // They are cleared in order.
                return;
            }
            message.started = true;
            message.heard = now;
            let (id, begin) = (message.id, message.begin);
            self.tell(nic, now, Message::Begin(begin));
            self.with_sender(nic, now, id, |machine, cx| machine.start(cx));
        }
    }

    fn tell(&mut self, nic: &mut Nic, now: Time, message: Message<'_>) {
        message.emit(&mut self.bytes);
        self.sdr.send_control(nic, now, &self.bytes);
    }

    fn on_injected(&mut self, nic: &mut Nic, now: Time) {
        let places = u64::from(self.config.places());
        while let Some(injected) = self.sdr.next_injected() {
            let (id, sub) =
                (injected.handle.number() / places, (injected.handle.number() % places) as usize);
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            message.unsent = message.unsent.saturating_sub(injected.len.into());
            if !message.reminded {
                // Later on only a word from the receiver does: what is sent again, for want of one,
                // must not put the question off.
                message.probe_at = Some(now.plus_nanos(message.probe_ns));
            }
            for part in message.parts(sub, &injected) {
                self.with_sender(nic, now, id, |machine, cx| machine.injected(cx, part));
            }
            self.remind(nic, now, id);
        }
    }

    /// Tells the receiver once more of a message whose end has left: it may have missed the
    /// beginning, and then could not tell that it has all.
    fn remind(&mut self, nic: &mut Nic, now: Time, id: u64) {
        let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
        // While chunks are sent again for want of an answer, the message is never idle.
        let has_left =
            message.unsent == 0 || message.handles.iter().all(|h| self.sdr.send_is_idle(*h));
        if !message.reminded && has_left {
            message.reminded = true;
            let begin = message.begin;
            self.tell(nic, now, Message::Begin(begin));
        }
    }

    fn on_progress(&mut self, nic: &mut Nic, now: Time) {
        let places = u64::from(self.config.places());
        let mut dirty = std::mem::take(&mut self.dirty);
        self.sdr.take_progress(|handle: RecvHandle| dirty.push(handle.number() / places));
        dirty.sort_unstable();
        dirty.dedup();
        for id in dirty.drain(..) {
            if let Some(message) = slot(&mut self.incoming, self.first_in, id) {
                message.heard = now;
                self.with_receiver(nic, now, id, |machine, cx| machine.progress(cx));
            }
        }
        self.dirty = dirty;
    }

    /// What the sender is done with, and has not been told that it is complete, will not come: the
    /// sender has given it up, and what said so was lost.
    fn on_retired(&mut self, nic: &mut Nic, now: Time) {
        let below = self.sdr.peer_retired() / u64::from(self.config.places());
        let end = self.first_in + self.incoming.len() as u64;
        for id in self.first_in..below.min(end) {
            self.finish_in(nic, now, id, Err(Failure::Aborted));
        }
        self.refused = self.refused.split_off(&below);
    }

    fn abort_again(&mut self, nic: &mut Nic, now: Time) {
        let mut due = Vec::new();
        self.aborting.retain(|id, abort| {
            if abort.at <= now {
                due.push(*id);
                abort.left -= 1;
                abort.wait_ns = (abort.wait_ns * 2).min(MAX_PROBE_NS);
                abort.at = now.plus_nanos(abort.wait_ns);
            }
            abort.left > 0
        });
        due.into_iter().for_each(|id| self.tell(nic, now, Message::Aborted(id)));
    }

    fn on_time(&mut self, nic: &mut Nic, now: Time) {
        let timeout = self.config.timeout_ns;
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            if !message.started {
                break;
            }
            if now.nanos_since(message.heard) >= timeout {
                self.finish_out(nic, now, id, Err(Failure::TimedOut));
                continue;
            }
            if message.probe_at.is_some_and(|at| at <= now) {
                message.probe_ns = (message.probe_ns * 2).min(MAX_PROBE_NS);
                message.probe_at = Some(now.plus_nanos(message.probe_ns));
                let begin = message.begin;
                self.tell(nic, now, Message::Begin(begin));
            }
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            if message.timer.is_some_and(|at| at <= now) {
                message.timer = None;
                self.with_sender(nic, now, id, |machine, cx| machine.timeout(cx));
            }
        }
        for id in self.first_in..self.first_in + self.incoming.len() as u64 {
            let Some(message) = slot(&mut self.incoming, self.first_in, id) else { continue };
            if message.begun.is_some() && now.nanos_since(message.heard) >= timeout {
                self.finish_in(nic, now, id, Err(Failure::TimedOut));
                continue;
            }
            if message.timer.is_some_and(|at| at <= now) {
                message.timer = None;
                self.with_receiver(nic, now, id, |machine, cx| machine.timeout(cx));
            }
        }
    }

    fn on_message(&mut self, nic: &mut Nic, now: Time, message: Message<'_>) {
        match message {
            Message::Begin(begin) => self.on_begin(nic, now, begin),
            Message::ToReceiver(id, bytes) => {
                if id < self.first_in {
                    self.confirm(nic, now, id);
                } else if let Some(message) = slot(&mut self.incoming, self.first_in, id) {
                    message.heard = now;
                    self.with_receiver(nic, now, id, |machine, cx| machine.control(cx, bytes));
                }
            }
            Message::ToSender(id, bytes) => {
                let rtt = self.sdr.path().rtt_ns.unwrap_or(0);
                let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
                message.heard = now;
                message.probe_ns = (rtt * 3).clamp(MIN_PROBE_NS, MAX_PROBE_NS);
                message.probe_at = Some(now.plus_nanos(message.probe_ns));
                self.with_sender(nic, now, id, |machine, cx| machine.control(cx, bytes));
            }
            Message::Finished(id, below) => {
                // Nobody can have finished what has not begun.
                let end = self.first_out + self.outgoing.len() as u64;
                for id in self.first_out..below.min(end) {
                    self.finish_started(nic, now, id, Ok(()));
                }
                self.finish_started(nic, now, id, Ok(()));
                self.aborting.retain(|aborted, _| *aborted >= below && *aborted != id);
            }
            Message::Aborted(id) => {
                if slot(&mut self.incoming, self.first_in, id).is_some() {
                    self.finish_in(nic, now, id, Err(Failure::Aborted));
                } else if id < self.first_in + self.incoming.len() as u64 {
                    self.confirm(nic, now, id);
                }
            }
            Message::Refused(id) => {
                self.finish_started(nic, now, id, Err(Failure::Aborted));
                self.aborting.remove(&id);
            }
        }
    }

    fn finish_started(&mut self, nic: &mut Nic, now: Time, id: u64, result: Result<(), Failure>) {
        let message = slot(&mut self.outgoing, self.first_out, id);
        if message.is_some_and(|message| message.started) {
            self.finish_out(nic, now, id, result);
        }
    }

    fn on_begin(&mut self, nic: &mut Nic, now: Time, begin: Begin) {
        if begin.id < self.first_in {
            return self.confirm(nic, now, begin.id);
        }
        let Some(index) = begin.id.checked_sub(self.first_in) else { return };
        match self.incoming.get_mut(index as usize) {
            None => return,
            Some(None) => return self.confirm(nic, now, begin.id),
            Some(Some(message)) => {
                message.heard = now;
                if message.begun.is_some() {
                    return self.with_receiver(nic, now, begin.id, |m, cx| m.probe(cx));
                }
            }
        }
        self.begin(nic, now, begin);
    }

    /// A message is known to have begun: its scheme takes over.
    fn begin(&mut self, nic: &mut Nic, now: Time, begin: Begin) {
        let Some(scheme) = self.config.schemes.get(usize::from(begin.scheme)).cloned() else {
            return;
        };
        let Some(message) = slot(&mut self.incoming, self.first_in, begin.id) else { return };
        if begin.len > message.capacity {
            return self.finish_in(nic, now, begin.id, Err(Failure::TooLong));
        }
        let shape = self.config.shape(begin.len);
        // What a peer says of time must not keep a message alive for longer than anything else.
        let begin = Begin { wire_ns: begin.wire_ns.min(self.config.timeout_ns), ..begin };
        message.begun = Some((begin, shape));
        message.machine = Some(scheme.receiver(&shape));
        message.fill(&self.sdr, &shape);
        self.with_receiver(nic, now, begin.id, |machine, cx| machine.start(cx));
    }

    /// Says again what became of a message: the sender has not heard it.
    fn confirm(&mut self, nic: &mut Nic, now: Time, id: u64) {
        if self.refused.contains(&id) {
            return self.tell(nic, now, Message::Refused(id));
        }
        let below = self.refused.first().map_or(self.first_in, |id| self.first_in.min(*id));
        self.tell(nic, now, Message::Finished(id, below));
    }

    fn finish_out(&mut self, nic: &mut Nic, now: Time, id: u64, result: Result<(), Failure>) {
        let index = id.wrapping_sub(self.first_out) as usize;
        let Some(message) = self.outgoing.get_mut(index).and_then(Option::take) else { return };
        for handle in &message.handles {
            // Those that nothing was to be sent for have ended already.
            let _ = self.sdr.send_cancel(*handle);
        }
        if result.is_err() {
            self.tell(nic, now, Message::Aborted(id));
            let at = now.plus_nanos(MIN_PROBE_NS);
            self.aborting.insert(id, Abort { at, wait_ns: MIN_PROBE_NS, left: MAX_ABORTS });
        }
        self.stats.chunks_resent += message.resent;
        self.draining.push((message, result));
        while let Some(None) = self.outgoing.front() {
            self.outgoing.pop_front();
            self.first_out += 1;
        }
    }

    /// Gives back the memory of messages that the NIC is done with, and says that they are over.
    fn release_drained(&mut self) {
        let sdr = &self.sdr;
        let failed = sdr.has_failed();
        let is_drained = |(message, _): &mut (Outgoing, _)| {
            failed || message.handles.iter().all(|handle| sdr.send_is_idle(*handle))
        };
        for (message, result) in self.draining.extract_if(.., is_drained) {
            if let Some(parity) = message.parity {
                self.scratch.give_back(parity);
            }
            self.events.push_back(ReliableEvent::Written { id: WriteId(message.id), result });
        }
    }

    fn finish_in(&mut self, nic: &mut Nic, now: Time, id: u64, result: Result<(), Failure>) {
        let Some(index) = id.checked_sub(self.first_in) else { return };
        let Some(message) = self.incoming.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        for handle in message.handles.iter().flatten() {
            // They are all open: nobody else completes them.
            let _ = self.sdr.recv_complete(nic, *handle);
        }
        self.stats.chunks_recovered += message.recovered;
        if let Some(parity) = message.parity {
            self.scratch.give_back(parity);
        }
        let (len, imm) = message.begun.map_or((0, None), |(begin, _)| (begin.len, begin.imm));
        self.events.push_back(ReliableEvent::Received { id: RecvId(id), len, imm, result });
        while let Some(None) = self.incoming.front() {
            self.incoming.pop_front();
            self.first_in += 1;
        }
        if result.is_err() {
            self.refused.insert(id);
        }
        self.confirm(nic, now, id);
    }

    fn fail_all(&mut self, nic: &mut Nic, now: Time) {
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            self.finish_out(nic, now, id, Err(Failure::Local));
        }
    }

    /// Removes the QP's objects from the NIC.
    pub fn destroy(mut self, nic: &mut Nic) {
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

/// The message of that number, if it is not over.
fn slot<T>(queue: &mut VecDeque<Option<T>>, first: u64, id: u64) -> Option<&mut T> {
    queue.get_mut(id.checked_sub(first)? as usize)?.as_mut()
}

impl Incoming {
    /// Counts as there what a message that is shorter than its buffer leaves out of its last chunks.
    fn fill(&self, sdr: &SdrQp, shape: &Shape) {
        let chunk_bytes = u64::from(shape.chunk_bytes);
        let fill = |sub: usize, from: u64, to: u64| {
            if let Some(handle) = self.handles.get(sub).copied().flatten() {
                let from = from.next_multiple_of(shape.mtu.into());
                // It is open as long as the message is not complete.
                let _ = sdr.recv_fill(handle, from, to.saturating_sub(from));
            }
        };
        let last = shape.groups() - 1;
        let data = shape.group_bytes(last);
        let data = data.end - data.start;
        fill(self.data_sub(last), data.max(1), data.max(1).next_multiple_of(chunk_bytes));
        for index in 0..u64::from(shape.parity_chunks(last)) {
            let start = index * chunk_bytes;
            let used = u64::from(shape.parity_bytes(last)).max(shape.mtu.into());
            fill(self.parity_sub(last), start + used, start + chunk_bytes);
        }
    }
}

#[cfg(test)]
mod tests;
