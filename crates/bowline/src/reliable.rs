//! Reliable queue pairs whose reliability is a choice: selective repeat, erasure coding, your own.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_io::{Channel as EventChannel, Lane, Task, TaskId};
use bowline_nic::{AddressVector, BbrParams, Nic, RateControl, Time};
use bowline_sdr::{
    Decision, PathStats, RecvId, ReliableConfig, ReliableEvent, ReliableInfo, ReliableQp as Engine,
    ReliableStats, Source, WriteId, WriteOptions,
};

use crate::pd::PdInner;
use crate::{Channel, Error, Mr, Pd};

/// Events kept for [`ReliableQp::poll`] and [`ReliableQp::wait`]: more than messages can be
/// outstanding.
const MAX_EVENTS: usize = 1 << 16;

/// A queue pair of reliable messages over unreliable packets.
///
/// A message lands in the peer's receive of the same number, chunk by chunk, straight in its memory;
/// what is lost on the way is made good by the scheme that the sender chose for the message.
///
/// ```
/// use bowline::{Access, Connector, Device, Listener, ReliableConfig, ReliableQp, WriteOptions};
/// use std::time::Duration;
///
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let address = listener.local_addr()?;
/// let client = std::thread::spawn(move || {
///     let pd = Device::open("127.9.2.1")?.alloc_pd()?;
///     let mr = pd.register(1 << 20, Access::LOCAL_WRITE)?;
///     mr.write_at(0, b"across the planet");
///     let qp = ReliableQp::new(&pd, &ReliableConfig::default())?;
///     qp.connect_over(&mut Connector::new().connect(address)?)?;
///     let scheme = qp.scheme("ec-mds")?;
///     qp.write(&mr, 0..1 << 20, WriteOptions { scheme, imm: Some(7) })?;
///     qp.next(Duration::from_secs(5))
/// });
/// let pd = Device::open("127.9.2.2")?.alloc_pd()?;
/// let mr = pd.register(1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// let qp = ReliableQp::new(&pd, &ReliableConfig::default())?;
/// qp.connect_over(&mut listener.accept_timeout(Duration::from_secs(5))?)?;
/// qp.recv(&mr, 0..1 << 20)?;
/// qp.next(Duration::from_secs(5))?;
/// assert_eq!(mr.to_vec(0, 17), b"across the planet");
/// client.join().unwrap()?;
/// # Ok::<(), bowline::Error>(())
/// ```
pub struct ReliableQp {
    pd: Arc<PdInner>,
    running: Arc<Mutex<Running>>,
    /// The lane that it runs in.
    lane: usize,
    task: TaskId,
    events: Arc<EventChannel<ReliableEvent>>,
    /// Memory in use by messages that are not over, sent and received.
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    writes: HashMap<WriteId, Mr>,
    recvs: HashMap<RecvId, Mr>,
}

/// What runs in the device's lane.
struct Running {
    /// Taken when the queue pair is dropped.
    engine: Option<Engine>,
    events: Arc<EventChannel<ReliableEvent>>,
}

impl Task for Running {
    fn run(&mut self, nic: &mut Nic, now: Time) {
        if let Some(engine) = &mut self.engine {
            engine.drive(nic, now);
            while let Some(event) = engine.poll_event() {
                self.events.push(event);
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.engine.as_ref()?.poll_timeout()
    }
}

impl ReliableQp {
    /// Makes a queue pair in a protection domain.
    pub fn new(pd: &Pd, config: &ReliableConfig) -> Result<ReliableQp, Error> {
        let pd = Arc::clone(&pd.inner);
        let events = EventChannel::new(MAX_EVENTS)
            .map_err(|e| Error::system("make a notification channel", e))?;
        let events = Arc::new(events);
        let lane = pd.device().take_lane(None);
        let started = ReliableQp::start(&pd, lane, config, &events);
        let (running, task) = started.inspect_err(|_| pd.device().release_lane(lane))?;
        Ok(ReliableQp { pd, running, lane, task, events, held: Mutex::default() })
    }

    fn start(
        pd: &PdInner,
        lane: usize,
        config: &ReliableConfig,
        events: &Arc<EventChannel<ReliableEvent>>,
    ) -> Result<(Arc<Mutex<Running>>, TaskId), Error> {
        let pd_id = pd.core.id_on(lane);
        let lane = pd.device().lane(lane);
        let engine = lane.with(|nic, _| Engine::new(nic, pd_id, config))??;
        let running = Running { engine: Some(engine), events: Arc::clone(events) };
        let running = Arc::new(Mutex::new(running));
        let task = lane.add_task(running.clone())?;
        Ok((running, task))
    }

    fn lane(&self) -> &Lane {
        self.pd.device().lane(self.lane)
    }

    /// Runs `f` on the engine, in the lane.
    fn with<R>(
        &self,
        f: impl FnOnce(&mut Engine, &mut Nic, Time) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.lane().with(|nic, now| {
            let mut running = lock(&self.running);
            match &mut running.engine {
                Some(engine) => f(engine, nic, now),
                None => Err(bowline_sdr::SdrError::NotConnected.into()),
            }
        })?
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> Result<ReliableInfo, Error> {
        self.with(|engine, _, _| Ok(engine.info()))
    }

    /// Connects to a peer at an address. Unless a rate or a controller was chosen, packets to another host
    /// leave at the rate that the path is found to have.
    pub fn connect(&self, addr: IpAddr, peer: &ReliableInfo) -> Result<(), Error> {
        let av = AddressVector::new(addr);
        let chosen = self.pd.device().congestion().cloned();
        // On one host there is no path to share, and the port waits for room.
        let is_local = bowline_io::local_address(addr).is_ok_and(|local| local.is_some());
        let default = (!is_local).then(|| RateControl::Bbr(BbrParams::default()));
        self.with(|engine, nic, now| {
            if engine.config().sdr.congestion.is_none() {
                engine.set_congestion(chosen.or(default));
            }
            Ok(engine.connect(nic, now, av, peer)?)
        })
    }

    /// Exchanges what both ends need over a setup connection, and connects.
    pub fn connect_over(&self, channel: &mut Channel) -> Result<(), Error> {
        let addr = self.pd.device().addr();
        channel.send(addr.to_string().as_bytes())?;
        channel.send(&self.info()?.to_bytes())?;
        let peer = String::from_utf8_lossy(&channel.recv()?).into_owned();
        let peer: IpAddr = peer.parse().map_err(|_| Error::Invalid {
            what: "peer",
            why: format!("{peer:?} is no IP address: run the same release on both ends"),
        })?;
        let info = ReliableInfo::from_bytes(&channel.recv()?)?;
        self.connect(peer, &info)?;
        channel.barrier()
    }

    /// Index of the scheme of that name, for [`WriteOptions`].
    pub fn scheme(&self, name: &str) -> Result<usize, Error> {
        self.with(|engine, _, _| Ok(engine.config().scheme(name)?))
    }

    /// Writes a part of a region into the peer's next receive. The region is held until the message
    /// is over.
    pub fn write(
        &self,
        mr: &Mr,
        range: Range<usize>,
        options: WriteOptions,
    ) -> Result<WriteId, Error> {
        let (source, len) = self.piece(mr, range)?;
        let mut held = lock(&self.held);
        let id = self.with(|engine, nic, now| Ok(engine.write(nic, now, source, len, options)?))?;
        held.writes.insert(id, mr.clone());
        Ok(id)
    }

    /// Posts a part of a region for the peer's next message. The region needs the right to be
    /// written by peers, and is held until the message is over.
    pub fn recv(&self, mr: &Mr, range: Range<usize>) -> Result<RecvId, Error> {
        let (buffer, len) = self.piece(mr, range)?;
        let mut held = lock(&self.held);
        let id = self.with(|engine, nic, now| Ok(engine.recv(nic, now, buffer, len)?))?;
        held.recvs.insert(id, mr.clone());
        Ok(id)
    }

    fn piece(&self, mr: &Mr, range: Range<usize>) -> Result<(Source, u64), Error> {
        if !Arc::ptr_eq(mr.pd(), &self.pd) {
            return Err(Error::Foreign { what: "the region", of: "protection domain" });
        }
        let (start, len) = (range.start, mr.buffer().len());
        if start > range.end || range.end > len {
            return Err(Error::OutOfRange { start, end: range.end, len });
        }
        let addr = mr.buffer().addr() + start as u64;
        Ok((Source { key: mr.key(), addr }, (range.end - start) as u64))
    }

    /// The next message that is over, if there is one now; drives the device meanwhile.
    pub fn poll(&self) -> Result<Option<ReliableEvent>, Error> {
        self.lane().poll(|_, _| ())?;
        let event = self.events.try_next()?;
        Ok(event.inspect(|event| self.release(event)))
    }

    /// The next message that is over, sleeping until there is one; `None` if there was none within
    /// `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<ReliableEvent>, Error> {
        let event = match self.events.try_next()? {
            Some(event) => Some(event),
            None => {
                self.lane().stop_polling();
                self.events.wait(Some(timeout))?
            }
        };
        Ok(event.inspect(|event| self.release(event)))
    }

    /// The next message that is over, sleeping until there is one. One that failed, and none within
    /// `timeout`, are errors.
    pub fn next(&self, timeout: Duration) -> Result<ReliableEvent, Error> {
        let start = Instant::now();
        match self.wait(timeout)? {
            None => Err(Error::Timeout(start.elapsed().max(timeout))),
            Some(event) => {
                let (ReliableEvent::Written { result, .. }
                | ReliableEvent::Received { result, .. }) = event;
                result?;
                Ok(event)
            }
        }
    }

    /// Lets go of the memory of a message that is over.
    fn release(&self, event: &ReliableEvent) {
        let mut held = lock(&self.held);
        let mr = match event {
            ReliableEvent::Written { id, .. } => held.writes.remove(id),
            ReliableEvent::Received { id, .. } => held.recvs.remove(id),
        };
        drop(held);
        // Deregistering takes the lane.
        drop(mr);
    }

    /// What is known of the path to the peer.
    pub fn path(&self) -> Result<PathStats, Error> {
        self.with(|engine, _, _| Ok(engine.path()))
    }

    /// Which schemes were taken for messages written with `auto`, and why: the latest, oldest first.
    pub fn decisions(&self) -> Result<Vec<Decision>, Error> {
        self.with(|engine, _, _| Ok(engine.decisions().cloned().collect()))
    }

    /// What the queue pair has done.
    pub fn stats(&self) -> Result<ReliableStats, Error> {
        self.with(|engine, _, _| Ok(engine.stats()))
    }
}

impl Drop for ReliableQp {
    fn drop(&mut self) {
        let lane = self.lane();
        // A device that has ended has nothing to remove.
        let _ = lane.remove_task(self.task);
        let _ = lane.with(|nic, _| {
            if let Some(engine) = lock(&self.running).engine.take() {
                engine.destroy(nic);
            }
        });
        self.pd.device().release_lane(self.lane);
    }
}

impl std::fmt::Debug for ReliableQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReliableQp(of {})", self.pd.device().addr())
    }
}

/// Nothing that can panic leaves these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
