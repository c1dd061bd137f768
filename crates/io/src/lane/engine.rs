//! One engine and one port, and the order in which they are called. Starts no threads.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bowline_nic::{CqId, Event, FrameMeta, Nic, Time, TxBatch};

use super::patience::Patience;
use super::task::Tasks;
use super::{CqNotify, EventChannel, EventSink, nanos};
use crate::fault::Faults;
use crate::port::{ClosedPort, FrameSink, Port, PortError, PortFds, earlier};

/// Packets sent in one round, rounded up to whole batches: bounds how long a round keeps other
/// threads from the engine.
const MAX_PACKETS_PER_ROUND: usize = 1024;

/// How long posts are coalesced where packets leave through memory: less than a reply takes.
const MEMORY_COALESCE_NS: u64 = 500;

/// What a round did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) frames: usize,
    pub(super) packets: usize,
}

impl Progress {
    pub(super) fn is_idle(self) -> bool {
        self.frames == 0 && self.packets == 0
    }
}

/// Passes a port's frames to the engine.
struct Inlet<'a> {
    nic: &'a mut Nic,
    began: Time,
    epoch: Instant,
    /// The clock after the first frames were received.
    received: Option<Time>,
}

impl<'a> Inlet<'a> {
    fn new(nic: &'a mut Nic, began: Time, epoch: Instant) -> Inlet<'a> {
        Inlet { nic, began, epoch, received: None }
    }

    /// The time to handle frames at. If the thread lost its core after it had read the clock, they
    /// may have arrived since, and round trips measured with them would come out too short. So the
    /// clock is read again, once.
    #[inline]
    fn now(&mut self) -> Time {
        let (began, epoch) = (self.began, self.epoch);
        let clock = || began.max(Time::from_nanos(nanos(epoch.elapsed())));
        *self.received.get_or_insert_with(clock)
    }
}

impl FrameSink for Inlet<'_> {
    fn frame(&mut self, meta: &FrameMeta, bytes: &[u8]) {
        let now = self.now();
        self.nic.handle_frame(now, meta, bytes);
    }

    fn frames(&mut self, meta: &FrameMeta, bytes: &[u8], frame_len: usize) {
        let now = self.now();
        self.nic.handle_frames(now, meta, bytes, frame_len);
    }
}

pub(super) struct Engine {
    pub(super) nic: Nic,
    pub(super) port: Box<dyn Port>,
    /// Why the port broke, shared with all that query the link.
    broken: Arc<OnceLock<String>>,
    batch: TxBatch,
    /// The batch holds bursts that the port could not take yet.
    blocked: bool,
    /// The lane's thread waits for the port to become writable.
    write_awaited: bool,
    /// The last transmission stopped at its bound, not for lack of packets.
    more_to_send: bool,
    /// Something was posted and left for the next round to send.
    deferred: bool,
    last_transmit: Time,
    /// Decides when polling threads yield the core.
    pub(super) patience: Patience,
    now: Time,
    epoch: Instant,
    cq_notify: HashMap<CqId, CqNotify>,
    events: Arc<dyn EventSink>,
    /// The channel that is told of failed paths, and the tag for it.
    path_watcher: Option<(Arc<EventChannel<u64>>, u64)>,
    pub(super) tasks: Tasks,
}

impl Engine {
    pub(super) fn new(
        nic: Nic,
        port: Box<dyn Port>,
        broken: Arc<OnceLock<String>>,
        batch_packets: usize,
        events: Arc<dyn EventSink>,
        epoch: Instant,
    ) -> Engine {
        let batch = TxBatch::new(port.caps().tx, batch_packets.max(1));
        Engine {
            nic,
            port,
            broken,
            batch,
            blocked: false,
            write_awaited: false,
            more_to_send: false,
            deferred: false,
            last_transmit: Time::ZERO,
            patience: Patience::new(),
            now: Time::ZERO,
            epoch,
            cq_notify: HashMap::new(),
            events,
            path_watcher: None,
            tasks: Tasks::default(),
        }
    }

    /// Advances the engine's clock. If another thread has advanced it further meanwhile, the caller
    /// has read the clock before it got the lock, perhaps long ago: the clock is read again.
    #[inline]
    pub(super) fn advance(&mut self, now: Time) -> Time {
        let now = if now < self.now { self.clock() } else { now };
        self.now = self.now.max(now);
        self.now
    }

    /// The engine's time: that of the last turn, or of what arrived in it.
    #[inline]
    pub(super) fn time(&self) -> Time {
        self.now
    }

    #[cold]
    fn clock(&self) -> Time {
        Time::from_nanos(nanos(self.epoch.elapsed()))
    }

    /// Receives, fires timers and transmits, once and within bounds.
    pub(super) fn round(&mut self, now: Time) -> Progress {
        let frames = self.receive(now);
        let packets = self.transmit(self.now);
        self.dispatch();
        Progress { frames, packets }
    }

    /// A round for a polling thread. Unlike [`Engine::round`], replies to what has just arrived
    /// wait until the application has seen it: it will post or poll again in a moment, and an
    /// acknowledgement then shares a system call with what it posts. If it does neither, the lane's
    /// thread sends them.
    pub(super) fn polled_round(&mut self, now: Time) -> Progress {
        let mut packets = 0;
        if self.deferred {
            packets += self.send_deferred(now);
        }
        let frames = self.receive(now);
        if frames > 0 && packets == 0 {
            self.deferred = true;
        } else {
            packets += self.transmit(self.now);
        }
        self.dispatch();
        Progress { frames, packets }
    }

    /// Whether a thread whose polls find nothing should yield now: the peer that it waits for may
    /// have no core, perhaps because of this thread.
    #[inline]
    pub(super) fn wants_yield(&mut self, progress: Progress, now: Time) -> bool {
        self.patience.polled(progress.is_idle(), now, self.last_transmit)
    }

    /// Receives frames and fires timers; returns the number of frames.
    fn receive(&mut self, began: Time) -> usize {
        let mut inlet = Inlet::new(&mut self.nic, began, self.epoch);
        let received = self.port.recv(began, &mut inlet);
        let now = inlet.received.unwrap_or(began);
        let now = self.advance(now);
        let frames = received.unwrap_or_else(|error| self.port_broke(&error));
        // What expired since then waits a round: the answer may be among frames not yet received.
        if self.nic.poll_timeout().is_some_and(|t| t <= began) {
            self.nic.handle_timeout(now);
        }
        self.tasks.run(&mut self.nic, now);
        frames
    }

    /// The port is broken for good: from now on the engine behaves like a NIC with its cable
    /// unplugged. Queries find the link down, so connections with a backup path move there; all
    /// others fail by their own timers, with error completions.
    #[cold]
    fn port_broke(&mut self, error: &PortError) -> usize {
        // Only the first reason is kept.
        let _ = self.broken.set(error.to_string());
        self.port = Box::new(ClosedPort::after(&*self.port));
        self.batch.clear();
        self.blocked = false;
        self.write_awaited = false;
        0
    }

    /// Puts middleware around the port.
    pub(super) fn wrap_port(&mut self, wrap: impl FnOnce(Box<dyn Port>) -> Box<dyn Port>) {
        let stand_in = Box::new(ClosedPort::after(&*self.port));
        let port = std::mem::replace(&mut self.port, stand_in);
        self.port = wrap(port);
    }

    /// What to sleep on, and whether to poll by the clock instead: a port without descriptors must
    /// be polled now and then, unless it is broken.
    pub(super) fn fds(&self) -> (PortFds, bool) {
        let fds = self.port.fds();
        let blind = fds.read.iter().all(Option::is_none) && self.broken.get().is_none();
        (fds, blind)
    }

    /// Runs the lane's tasks, after something was done to the engine.
    #[inline]
    pub(super) fn run_tasks(&mut self, now: Time) {
        self.tasks.run(&mut self.nic, now);
    }

    /// Sends what was deferred to be coalesced. Tasks see the posts only now: handling many at once
    /// lets them share packets.
    pub(super) fn send_deferred(&mut self, now: Time) -> usize {
        self.run_tasks(now);
        self.transmit(now)
    }

    /// Sends what is ready, up to a bound; returns how many packets left.
    pub(super) fn transmit(&mut self, now: Time) -> usize {
        self.try_transmit(now).unwrap_or_else(|error| self.port_broke(&error))
    }

    fn try_transmit(&mut self, now: Time) -> Result<usize, PortError> {
        self.deferred = false;
        self.more_to_send = false;
        self.heed_faults();
        let mut packets = 0;
        if self.blocked {
            packets += self.send_batch(now)?;
        }
        while self.nic.is_ready() && !self.blocked && packets < MAX_PACKETS_PER_ROUND {
            self.batch.set_clean_paths(self.port.clean_paths());
            self.nic.poll_transmit(now, &mut self.batch);
            if self.batch.is_empty() {
                break;
            }
            packets += self.send_batch(now)?;
            // Sent packets may have freed space for more.
            self.tasks.run(&mut self.nic, now);
        }
        self.more_to_send = self.nic.is_ready();
        self.port.flush(now)?;
        if packets > 0 {
            self.last_transmit = now;
        }
        Ok(packets)
    }

    /// While faults are injected, everything goes through packets, so that it happens to them.
    #[inline]
    pub(super) fn heed_faults(&mut self) {
        self.nic.set_direct(!self.port.faults().is_some_and(Faults::is_active));
    }

    /// Offers the batch to the port, and keeps what it does not take.
    fn send_batch(&mut self, now: Time) -> Result<usize, PortError> {
        let before = self.batch.len();
        let taken = self.port.send_mut(now, &mut self.batch, 0)?;
        self.blocked = taken < self.batch.bursts().len();
        if self.blocked {
            self.batch.forget(taken);
        } else {
            self.write_awaited = false;
            self.batch.clear();
        }
        Ok(before - self.batch.len())
    }

    /// How long posts wait to be coalesced. Coalescing saves system calls, so the wait is short
    /// where some packets leave without one.
    #[inline]
    pub(super) fn coalesce_ns(&self, coalesce_ns: u64) -> u64 {
        if coalesce_ns > MEMORY_COALESCE_NS && self.port.clean_paths().is_some() {
            return MEMORY_COALESCE_NS;
        }
        coalesce_ns
    }

    /// Whether to leave what was just posted to the next round: a packet left less than
    /// `coalesce_ns` ago, and more may follow to share a burst.
    pub(super) fn defer(&mut self, now: Time, coalesce_ns: u64) -> bool {
        let defers = now.nanos_since(self.last_transmit) < coalesce_ns;
        self.deferred |= defers;
        defers
    }

    /// Records that a transmission ended at `now`: it may have taken longer than the coalescing
    /// time.
    pub(super) fn transmitted(&mut self, now: Time) {
        self.last_transmit = self.advance(now);
    }

    /// Dispatches the engine's events to their listeners.
    pub(super) fn dispatch(&mut self) {
        while let Some(event) = self.nic.poll_event() {
            match event {
                Event::CqNotify(cq) => {
                    if let Some(notify) = self.cq_notify.get(&cq) {
                        notify.raise();
                    }
                }
                Event::PathFailed(qpn) => match &self.path_watcher {
                    Some((watcher, tag)) => watcher.push(tag | u64::from(qpn.get())),
                    None => self.events.event(event),
                },
                other => self.events.event(other),
            }
        }
    }

    pub(super) fn set_cq_notify(&mut self, cq: CqId, to: Option<CqNotify>) {
        match to {
            Some(to) => self.cq_notify.insert(cq, to),
            None => self.cq_notify.remove(&cq),
        };
    }

    pub(super) fn watch_paths(&mut self, channel: Arc<EventChannel<u64>>, tag: u64) {
        self.path_watcher = Some((channel, tag));
    }

    /// When the next round is due even if nothing arrives: at once if something can be sent, or if
    /// nobody waits for the port to become writable.
    pub(super) fn deadline(&self) -> Option<Time> {
        let ready =
            if self.blocked { !self.write_awaited } else { self.more_to_send || self.deferred };
        if ready {
            return Some(self.now);
        }
        let engine = earlier(self.nic.poll_timeout(), self.tasks.deadline());
        earlier(engine, self.port.poll_timeout())
    }

    /// Whether something was left for the next round to send.
    pub(super) fn has_deferred(&self) -> bool {
        self.deferred
    }

    /// Whether nothing more can be sent until the port is writable; if so, the caller will wait for
    /// that.
    pub(super) fn await_write(&mut self) -> bool {
        self.write_awaited = self.blocked;
        self.blocked
    }

    /// Closes all channels and the port: its address is free again, and its neighbours are told.
    pub(super) fn close(&mut self) {
        self.close_channels();
        self.port = Box::new(ClosedPort::after(&*self.port));
    }

    fn close_channels(&self) {
        self.events.closed();
        for notify in self.cq_notify.values() {
            notify.channel.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bowline_nic::NicConfig;

    use super::*;

    #[test]
    fn frames_are_handled_after_they_arrived() {
        let addr = std::net::Ipv4Addr::LOCALHOST.into();
        let mut nic = Nic::new(NicConfig::new(addr, [7; 32])).expect("the defaults are right");
        let epoch = Instant::now();
        std::thread::sleep(Duration::from_millis(3));
        // The clock was read before the sleep.
        let began = Time::from_micros(1);
        let mut inlet = Inlet::new(&mut nic, began, epoch);
        assert_eq!(inlet.received, None, "nothing has arrived");
        let now = inlet.now();
        assert!(now >= Time::from_millis(3), "{now:?}");
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(inlet.now(), now, "the rest has arrived with it");
        let later = Time::from_millis(60_000);
        assert_eq!(Inlet::new(&mut nic, later, epoch).now(), later, "time does not go back");
    }
}
