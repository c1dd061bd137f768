//! Reliable queue pairs with a choice of scheme: selective repeat, erasure coding, your own.

mod group;
mod part;

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bowline_io::EventChannel;
use bowline_nic::{AddressVector, BbrParams, RateControl, Rnic, Time};
use bowline_sdr::{
    Decision, Failure, PathStats, RecvId, ReliableConfig, ReliableEvent, ReliableInfo,
    ReliableQp as Engine, ReliableStats, SdrError, Stripe, Transport, WriteId, WriteOptions,
};

use self::group::Group;
use self::part::{Outcomes, Part};
use crate::pd::PdInner;
use crate::setup::Sealing;
use crate::{Channel, Error, Mr, Pd};

/// Events kept for [`ReliableQp::poll`] and [`ReliableQp::wait`]: more than there can be
/// outstanding messages.
const MAX_EVENTS: usize = 1 << 16;

/// From this round trip on the rate is controlled by default. Shorter ones are local networks.
const SHORTEST_RTT_NS: u64 = 1_000_000;

/// Advice on what to call instead of connecting to one peer.
const IN_GROUP: &str = "use connect_group_over";

/// A queue pair of reliable messages over unreliable packets.
///
/// A message lands in the peer's receive of the same number, chunk by chunk, directly in its
/// memory; the scheme that the sender chose for the message repairs losses.
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
///
/// Its packets leave and arrive in one lane of the device. With [`spread`](ReliableQp::spread) each
/// message is carried by several lanes together, and so by several cores.
pub struct ReliableQp {
    pd: Arc<PdInner>,
    /// One for each lane that carries messages.
    parts: Vec<Part>,
    outcomes: Arc<Outcomes>,
    posting: Mutex<Posting>,
    group: Mutex<Group>,
}

/// State that changes when messages are posted, and when they are over.
#[derive(Default)]
struct Posting {
    /// Memory in use by unfinished messages.
    writes: HashMap<WriteId, Mr>,
    recvs: HashMap<RecvId, Mr>,
    /// Some parts have accepted a message and another has refused it: they no longer agree on the
    /// numbering.
    out_of_step: bool,
}

/// The rate control for an address: the device's if set, otherwise BBR between hosts.
pub(crate) fn path_control(device: &bowline_device::Device, addr: IpAddr) -> Option<RateControl> {
    // On one host there is no shared path, and the port waits for buffer space.
    let is_local = bowline_io::local_address(addr).is_ok_and(|local| local.is_some());
    let long_paths = BbrParams { shortest_rtt_ns: SHORTEST_RTT_NS, ..BbrParams::default() };
    let default = (!is_local).then_some(RateControl::Bbr(long_paths));
    let control = device.congestion().cloned().or(default);
    match &control {
        Some(control) => tracing::info!(target: "bowline::congestion", "{control} towards {addr}"),
        None => tracing::debug!(target: "bowline::congestion", "no control towards {addr}"),
    }
    control
}

impl ReliableQp {
    /// Creates a queue pair in a protection domain.
    pub fn new(pd: &Pd, config: &ReliableConfig) -> Result<ReliableQp, Error> {
        ReliableQp::start(pd, config, 1, 0, |_| None)
    }

    /// Creates a queue pair whose messages are carried by `lanes` lanes of the device together;
    /// both ends must use the same number. Messages are distributed in groups of `config.k` chunks:
    /// a message of one group is carried by one lane, and the next by another.
    ///
    /// Each lane has its share of the rate, and sends control messages for its share of every
    /// message. That makes short messages more expensive: this is for messages of many groups.
    pub fn spread(pd: &Pd, config: &ReliableConfig, lanes: usize) -> Result<ReliableQp, Error> {
        // A device without lanes refuses when the first is requested.
        let there_are = pd.inner.device().lanes().len().max(1);
        ReliableQp::start(pd, config, lanes, 0, |index| Some(index % there_are))
    }

    fn start(
        pd: &Pd,
        config: &ReliableConfig,
        lanes: usize,
        members: usize,
        hint: impl Fn(usize) -> Option<usize>,
    ) -> Result<ReliableQp, Error> {
        let pd = Arc::clone(&pd.inner);
        let events = EventChannel::new(MAX_EVENTS)
            .map_err(|e| Error::system("make a notification channel", e))?;
        let of = u32::try_from(lanes).unwrap_or(u32::MAX);
        let outcomes = Arc::new(Outcomes::new(of, events));
        let mut config = config.clone();
        let share = |bps: u64| (bps / u64::from(of.max(1))).max(1);
        config.sdr.rate_bps = config.sdr.rate_bps.map(share);
        config.sdr.max_rate_bps = config.sdr.max_rate_bps.map(share);
        // Also checked without any lanes.
        config.stripe = Stripe { index: 0, of };
        config.check()?;
        let part = |index| {
            config.stripe.index = index;
            Part::start(&pd, hint(index as usize), &config, members, &outcomes)
        };
        let parts = (0..of).map(part).collect::<Result<_, _>>()?;
        let group = Mutex::new(Group::of(members));
        Ok(ReliableQp { pd, parts, outcomes, posting: Mutex::default(), group })
    }

    /// The part that represents all where one is enough. There is at least one.
    fn first(&self) -> &Part {
        &self.parts[0]
    }

    /// How many lanes carry its messages.
    pub fn lanes(&self) -> usize {
        self.parts.len()
    }

    /// What the peer needs to know to connect.
    pub fn info(&self) -> Result<ReliableInfo, Error> {
        let parts = self.parts.iter().map(|part| part.with(|engine, _, _| Ok(engine.info())));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        ReliableInfo::join(parts).ok_or(Error::Sdr(SdrError::NotConnected))
    }

    /// Connects to a peer at an address. Unless a rate or a controller was chosen, the rate to
    /// another host is controlled by measuring the path, if its round trip is a millisecond or
    /// longer.
    pub fn connect(&self, addr: IpAddr, peer: &ReliableInfo) -> Result<(), Error> {
        self.connect_behind(addr, addr, peer)
    }

    /// Connects to a peer at an address whose packets, except control messages, come from `data`.
    fn connect_behind(&self, addr: IpAddr, data: IpAddr, peer: &ReliableInfo) -> Result<(), Error> {
        self.check_no_group(IN_GROUP)?;
        let (av, data) = (AddressVector::new(addr), AddressVector::new(data));
        let control = path_control(self.pd.device(), addr);
        self.parts.iter().try_for_each(|part| {
            part.with(|engine, nic, now| {
                if engine.config().sdr.congestion.is_none() {
                    engine.set_congestion(control.clone());
                }
                engine.connect_behind(nic, now, av, data, peer)
            })
        })
    }

    fn check_no_group(&self, instead: &str) -> Result<(), Error> {
        if lock(&self.group).size == 0 {
            return Ok(());
        }
        let why = format!("the queue pair writes to a group: {instead}");
        Err(Error::Invalid { what: "operation", why })
    }

    fn seal(&self, sealing: &Sealing) -> Result<(), Error> {
        self.parts.iter().try_for_each(|part| {
            part.with(|engine, nic, now| engine.seal(nic, || sealing.next(now)))
        })
    }

    /// Exchanges what both ends need over a setup connection, and connects. When it returns, both
    /// ends are ready. Packets are sealed if the channel [seals](Channel::seal). They are datagrams
    /// if one end is a verbs device. The other end may be the sender of a group
    /// ([`connect_group_over`](Self::connect_group_over)): then its messages go to other members
    /// too.
    pub fn connect_over(&self, channel: &mut Channel) -> Result<(), Error> {
        self.join_over(channel)?;
        channel.barrier()
    }

    /// Like [`connect_over`](Self::connect_over), but does not wait until the peer is ready, which
    /// takes a round trip. Before an end posts anything, it must have received something more from
    /// the other over the channel.
    pub fn join_over(&self, channel: &mut Channel) -> Result<(), Error> {
        self.check_no_group(IN_GROUP)?;
        let addr = self.pd.device().addr();
        channel.send(addr.to_string().as_bytes())?;
        let ours = self.info()?;
        channel.send(&ours.to_bytes())?;
        let (peer, data) = hear_addr(channel)?;
        let mut info = ReliableInfo::from_bytes(&channel.recv()?)?;
        match (ours.transport(), info.transport()) {
            // The peer has no choice: it is a verbs device.
            (Some(Transport::Uc), Some(Transport::Ud)) => {
                self.parts.iter().try_for_each(|part| part.change_transport(Transport::Ud))?;
                channel.send(&self.info()?.to_bytes())?;
            }
            // The peer learns now that this end has no choice.
            (Some(Transport::Ud), Some(Transport::Uc)) => {
                info = ReliableInfo::from_bytes(&channel.recv()?)?;
            }
            _ => {}
        }
        if let Some(sealing) = channel.sealing() {
            self.seal(sealing)?;
        }
        self.connect_behind(peer, data, &info)
    }

    /// Connects to a peer that has told its address and its [`info`](Self::info) over `channel`, in
    /// messages of the caller's own, and has been told this end's. Packets are sealed if the
    /// channel [seals](Channel::seal). Before an end posts anything, the other must have connected.
    pub fn join(&self, channel: &Channel, addr: IpAddr, peer: &ReliableInfo) -> Result<(), Error> {
        if let Some(sealing) = channel.sealing() {
            self.seal(sealing)?;
        }
        self.connect(addr, peer)
    }

    /// Receives posted so far, as each lane counts them: for [`hear_posted`](Self::hear_posted) at
    /// the peer.
    pub fn posted(&self) -> Result<Vec<u64>, Error> {
        self.parts.iter().map(|part| part.with(|engine, _, _| Ok(engine.posted()))).collect()
    }

    /// The peer has said, over another channel, which receives it has [posted](Self::posted).
    /// Control messages say so too: those that came before this end was connected are lost, and
    /// asking takes a round trip.
    pub fn hear_posted(&self, posted: &[u64]) -> Result<(), Error> {
        self.parts.iter().zip(posted).try_for_each(|(part, posted)| {
            part.with(|engine, _, _| {
                engine.hear_posted(*posted);
                Ok(())
            })
        })
    }

    /// The round trip to reckon with until one is timed. Without it, 50 ms.
    pub fn assume_rtt(&self, rtt: Duration) -> Result<(), Error> {
        let rtt_ns = u64::try_from(rtt.as_nanos()).unwrap_or(u64::MAX);
        self.parts.iter().try_for_each(|part| {
            part.with(|engine, _, _| {
                engine.assume_rtt(rtt_ns);
                Ok(())
            })
        })
    }

    /// Index of the scheme of that name, for [`WriteOptions`].
    pub fn scheme(&self, name: &str) -> Result<usize, Error> {
        self.first().with(|engine, _, _| engine.config().scheme(name))
    }

    /// Writes a part of a region into the peer's next receive. The region is held until the message
    /// is over.
    pub fn write(
        &self,
        mr: &Mr,
        range: Range<usize>,
        options: WriteOptions,
    ) -> Result<WriteId, Error> {
        let (source, len) = mr.source(&self.pd, range)?;
        let mut posting = lock(&self.posting);
        let id = self.post_all(
            &mut posting,
            |engine, _| engine.write_room(),
            |engine, nic, now| engine.write(nic, now, source, len, options),
        )?;
        posting.writes.insert(id, mr.clone());
        Ok(id)
    }

    /// Posts a part of a region for the peer's next message. The region needs remote write access,
    /// and is held until the message is over.
    pub fn recv(&self, mr: &Mr, range: Range<usize>) -> Result<RecvId, Error> {
        self.check_no_group("only members receive")?;
        let (buffer, len) = mr.source(&self.pd, range)?;
        let mut posting = lock(&self.posting);
        let id = self.post_all(
            &mut posting,
            |engine, now| engine.recv_room(now),
            |engine, nic, now| engine.recv(nic, now, buffer, len),
        )?;
        posting.recvs.insert(id, mr.clone());
        Ok(id)
    }

    /// Posts a message to all parts or to none, so that parts and peers keep the same numbering.
    fn post_all<I>(
        &self,
        posting: &mut Posting,
        room: impl Fn(&Engine, Time) -> Result<(), SdrError>,
        post: impl Fn(&mut Engine, &mut dyn Rnic, Time) -> Result<I, SdrError>,
    ) -> Result<I, Error> {
        if posting.out_of_step {
            return Err(Error::Sdr(SdrError::OutOfStep));
        }
        let (first, others) = (self.first(), &self.parts[1..]);
        for part in others {
            // Nothing else posts, so the space stays available.
            part.with(|engine, _, now| room(engine, now))?;
        }
        let id = first.post(&post)?;
        for part in others {
            if let Err(e) = part.post(&post) {
                posting.out_of_step = true;
                return Err(e);
            }
        }
        Ok(id)
    }

    /// The next finished message, if there is one now. Drives the device only if there is none, so
    /// that what the caller posts in response to several finished messages leaves together.
    pub fn poll(&self) -> Result<Option<ReliableEvent>, Error> {
        let events = &self.outcomes.events;
        let mut event = events.try_next()?;
        if event.is_none() {
            // The other lanes drive themselves.
            self.first().host().poll()?;
            event = events.try_next()?;
        }
        Ok(event.inspect(|event| self.release(event)))
    }

    /// The next finished message, sleeping until there is one; `None` if there was none within
    /// `timeout`.
    pub fn wait(&self, timeout: Duration) -> Result<Option<ReliableEvent>, Error> {
        let events = &self.outcomes.events;
        let event = match events.try_next()? {
            Some(event) => Some(event),
            None => {
                self.first().host().stop_polling();
                events.wait(Some(timeout))?
            }
        };
        Ok(event.inspect(|event| self.release(event)))
    }

    /// The next finished message, sleeping until there is one. A failed message is an error, and so
    /// is none within `timeout`.
    pub fn next(&self, timeout: Duration) -> Result<ReliableEvent, Error> {
        let start = Instant::now();
        match self.wait(timeout)? {
            None => Err(Error::Timeout(start.elapsed().max(timeout))),
            Some(event) => {
                let (ReliableEvent::Written { result, .. }
                | ReliableEvent::Received { result, .. }) = event;
                result.map_err(|failure| self.explain(failure))?;
                Ok(event)
            }
        }
    }

    /// The failure of a message as an error: in a group it names the member's address.
    pub fn explain(&self, failure: Failure) -> Error {
        let addr = failure.member().and_then(|member| lock(&self.group).addr(member));
        match addr {
            Some(addr) => Error::Member { addr, failure },
            None => Error::Message(failure),
        }
    }

    /// Releases the memory of a finished message.
    fn release(&self, event: &ReliableEvent) {
        let mut posting = lock(&self.posting);
        let mr = match event {
            ReliableEvent::Written { id, .. } => posting.writes.remove(id),
            ReliableEvent::Received { id, .. } => posting.recvs.remove(id),
        };
        drop(posting);
        // Deregistering locks the lane.
        drop(mr);
    }

    /// What is known about the path to the peer: the round trip of the first lane, loss, rate and
    /// packets of all.
    pub fn path(&self) -> Result<PathStats, Error> {
        let mut whole = self.first().with(|engine, _, _| Ok(engine.path()))?;
        for part in &self.parts[1..] {
            whole.add(&part.with(|engine, _, _| Ok(engine.path()))?);
        }
        Ok(whole)
    }

    /// The schemes chosen for messages written with `auto`, and why: the latest decisions, oldest
    /// first. Each lane decides for its share; these are the first lane's decisions.
    pub fn decisions(&self) -> Result<Vec<Decision>, Error> {
        self.first().with(|engine, _, _| Ok(engine.decisions().cloned().collect()))
    }

    /// Statistics of the queue pair.
    pub fn stats(&self) -> Result<ReliableStats, Error> {
        let stats = self.parts.iter().map(|part| part.with(|engine, _, _| Ok(engine.stats())));
        stats.sum()
    }
}

impl std::fmt::Debug for ReliableQp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReliableQp(of {})", self.pd.device().addr())
    }
}

/// The address of a channel's other end, and where its packets come from: the same, unless a switch
/// copies them, whose address follows.
fn hear_addr(channel: &mut Channel) -> Result<(IpAddr, IpAddr), Error> {
    let heard = String::from_utf8_lossy(&channel.recv()?).into_owned();
    let parse = |text: &str| {
        text.parse::<IpAddr>().map_err(|_| Error::Invalid {
            what: "peer",
            why: format!("{heard:?} is no IP address: run the same release on both ends"),
        })
    };
    let (addr, data) = heard.split_once(' ').unwrap_or((&heard, &heard));
    Ok((parse(addr)?, parse(data)?))
}

/// No panic can leave these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
