//! Collective operations over a group of programs.

mod casts;
mod hosts;
mod member;
mod ops;
pub mod rendezvous;
mod rings;
mod seal;
mod split;
mod tensor;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bowline_collective::{
    Algorithm, Bounds, GroupConfig, Hosts, InvalidRequest, Memory, Piece, Rank, Recovery, Request,
    Schedule, SdrScheme,
};

use crate::multicast::PortGroup;
use crate::pd::PdInner;
use crate::{Error, Pd};
use member::Member;
use rendezvous::{Meeting, Offers, PeerEnd};
use seal::GroupSeal;
pub use tensor::Tensor;
pub use work::Work;

/// Schedules cached for repeated operations.
const MAX_SCHEDULES: usize = 64;
/// Most messages of a peer that wait here over XP: its widest window.
const MAX_EXPRESS_SLOTS: u16 = 16;
/// Default bytes in flight to a peer over a long link.
const LONG_WINDOW_BYTES: u32 = 4 << 20;
/// Memory for the rings of all peers of a rank together; otherwise each has [`GroupConfig`]'s.
const RING_BYTES: u64 = 64 << 20;

/// The transport of collective operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CommTransport {
    /// RC: nothing is lost.
    #[default]
    Rc,
    /// XP, with bounds on time and loss. Operations that cannot have bounds use RC.
    Xp,
    /// One of SDR's schemes, for long links: nothing is lost.
    Sdr(SdrScheme),
}

/// The name of no transport.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no transport `{0}`: take rc, xp, sr-nack, ec-mds or auto")]
pub struct UnknownTransport(pub String);

impl std::str::FromStr for CommTransport {
    type Err = UnknownTransport;

    fn from_str(name: &str) -> Result<CommTransport, UnknownTransport> {
        let found = CommTransport::ALL.into_iter().find(|transport| transport.name() == name);
        found.ok_or_else(|| UnknownTransport(name.to_owned()))
    }
}

impl CommTransport {
    /// All of them.
    pub const ALL: [CommTransport; 5] = [
        CommTransport::Rc,
        CommTransport::Xp,
        CommTransport::Sdr(SdrScheme::SrNack),
        CommTransport::Sdr(SdrScheme::EcMds),
        CommTransport::Sdr(SdrScheme::Auto),
    ];

    /// Its name for users. `auto` lets SDR choose a scheme for each message.
    pub const fn name(self) -> &'static str {
        match self {
            CommTransport::Rc => "rc",
            CommTransport::Xp => "xp",
            CommTransport::Sdr(scheme) => scheme.name(),
        }
    }
}

/// Options of a communicator. All ranks need the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommOptions {
    /// How long an operation may take; 5 minutes by default.
    pub timeout: Duration,
    /// How long creating the communicator may take; 1 minute by default.
    pub setup_timeout: Duration,
    /// Most bytes of a message; 128 KiB by default. Longer messages cost less, shorter ones overlap
    /// more. XP has at most 16 messages in flight to a rank, so over XP a message may have a 16th
    /// of the window, if that is more.
    pub chunk_bytes: u32,
    /// Bytes on their way to a rank at most; unless set 1 MiB, and 4 MiB over SDR's schemes. Long
    /// links need bandwidth times round trip, and half of that again; over XP twice as much, if
    /// they lose packets and nothing may be missing.
    pub window_bytes: Option<u32>,
    /// The transport of operations; RC by default.
    pub transport: CommTransport,
    /// Broadcasts use multicast, where all ranks support it: the root's port replicates for all
    /// others what it has read once. Off by default, since it needs a second ring for each rank.
    /// With fewer than three ranks, over any transport but RC, and where packets are sealed,
    /// broadcasts stay unicast.
    pub multicast: bool,
    /// Bounds of operations over XP; everything arrives by default. [`Communicator::start_with`]
    /// takes others for one operation.
    pub bounds: Bounds,
}

impl Default for CommOptions {
    fn default() -> CommOptions {
        let config = GroupConfig::default();
        CommOptions {
            timeout: Duration::from_nanos(config.limit_ns),
            setup_timeout: Duration::from_secs(60),
            chunk_bytes: config.slot_bytes,
            window_bytes: None,
            transport: CommTransport::default(),
            multicast: false,
            bounds: Bounds::EXACT,
        }
    }
}

impl CommOptions {
    /// Whether links between hosts are long: schemes are for these, and so are wide windows. There,
    /// one connection fills the link. Several would compete for it, and an operation is over when
    /// the slowest of them is.
    fn is_for_long_links(&self) -> bool {
        let config = GroupConfig::default();
        let usual = u32::from(config.slots) * config.slot_bytes;
        matches!(self.transport, CommTransport::Sdr(_))
            || self.window_bytes.is_some_and(|bytes| bytes > usual)
    }

    fn group(&self, ranks: u32) -> GroupConfig {
        let config = GroupConfig::default();
        let usual = match self.transport {
            CommTransport::Rc | CommTransport::Xp => u32::from(config.slots) * config.slot_bytes,
            CommTransport::Sdr(_) => LONG_WINDOW_BYTES,
        };
        let ring = u64::from(self.window_bytes.unwrap_or(usual));
        let fair = RING_BYTES / u64::from(ranks.max(1));
        // With many ranks rings are shorter, down to four chunks of 4 KiB.
        let ring = ring.min(fair.next_power_of_two()).max(16 << 10);
        // XP numbers few messages at a time, so a wide window needs long ones.
        let shortest = match self.transport {
            CommTransport::Xp => ring / u64::from(MAX_EXPRESS_SLOTS),
            CommTransport::Rc | CommTransport::Sdr(_) => 0,
        };
        let slot_bytes = u64::from(self.chunk_bytes).max(shortest).min(ring / 4) as u32 & !63;
        let slots = (ring / u64::from(slot_bytes.max(64))).clamp(4, 1024) as u16;
        let (express_slots, scheme) = match self.transport {
            CommTransport::Rc => (0, None),
            CommTransport::Xp => (slots.min(MAX_EXPRESS_SLOTS), None),
            CommTransport::Sdr(scheme) => (0, Some(scheme)),
        };
        GroupConfig {
            slot_bytes,
            slots,
            express_slots,
            casts: self.multicast && self.transport == CommTransport::Rc,
            scheme,
            limit_ns: u64::try_from(self.timeout.as_nanos()).unwrap_or(u64::MAX),
            ..config
        }
    }
}

/// A group of programs that run collective operations together: see `docs/collectives.md`.
///
/// All ranks must call the same operations in the same order, with the same counts and types. Each
/// returns a [`Work`], which progresses by itself; they run one after the other. When a rank dies,
/// leaves or gets out of step, all pending and later operations of all ranks fail with an error
/// that names it.
///
/// ```
/// use bowline::{Access, Communicator, DataType, Device, ReduceOp, Tensor};
///
/// # fn main() -> Result<(), bowline::Error> {
/// # let dir = std::env::temp_dir().join(format!("bowline-comm-doc-{}", std::process::id()));
/// let store = format!("file://{}", dir.display());
/// // Each rank is a program of its own, as a rule.
/// let rank = |rank: u32| -> Result<Vec<u8>, bowline::Error> {
///     let pd = Device::open(&format!("127.9.3.{}", rank + 1))?.alloc_pd()?;
///     let comm = Communicator::with_store(&pd, &store, "doc", rank, 2)?;
///     let mr = pd.register(8, Access::LOCAL_WRITE)?;
///     mr.write_at(0, &[1.5f32, rank as f32].map(f32::to_ne_bytes).concat());
///     comm.allreduce(&Tensor::new(&mr, 0..8, DataType::F32)?, ReduceOp::Sum)?.wait()?;
///     Ok(mr.to_vec(0, 8))
/// };
/// let sums = std::thread::scope(|scope| {
///     let other = scope.spawn(|| rank(1));
///     [rank(0), other.join().unwrap()]
/// });
/// for sum in sums {
///     assert_eq!(sum?, [3.0f32, 1.0].map(f32::to_ne_bytes).concat());
/// }
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok(())
/// # }
/// ```
pub struct Communicator {
    shared: Arc<Shared>,
}

struct Shared {
    pd: Arc<PdInner>,
    options: CommOptions,
    member: Member,
    /// Addresses of the other ranks.
    addrs: BTreeMap<Rank, IpAddr>,
    /// Which of all ranks share a host.
    hosts: Hosts,
    /// What copies this rank's broadcasts, if the ranks have multicast groups.
    casts: OnceLock<PortGroup>,
    /// Seals its packets, if its ranks have authenticated each other.
    seal: Option<GroupSeal>,
    schedules: Mutex<HashMap<Request, Arc<Schedule>>>,
    /// Memory of operations that nobody waits for, or that failed: it may still be accessed.
    held: Mutex<Vec<work::Held>>,
}

impl Communicator {
    /// Meets the other ranks as the environment says: torchrun's, Slurm's and MPI's variables give
    /// rank and size, `BOWLINE_STORE` or `MASTER_ADDR` the place. See [`rendezvous`].
    pub fn from_env(pd: &Pd) -> Result<Communicator, Error> {
        Communicator::meet(pd, rendezvous::from_env()?, CommOptions::default())
    }

    /// Meets the other ranks of a job in a store, by its URL.
    pub fn with_store(
        pd: &Pd,
        url: &str,
        job: &str,
        rank: Rank,
        ranks: u32,
    ) -> Result<Communicator, Error> {
        let meeting = rendezvous::in_store(url, job, rank, ranks)?;
        Communicator::meet(pd, meeting, CommOptions::default())
    }

    /// Meets the other ranks as told.
    pub fn meet(
        pd: &Pd,
        mut meeting: Meeting,
        options: CommOptions,
    ) -> Result<Communicator, Error> {
        let (rank, ranks) = (meeting.rank, meeting.ranks);
        let (place, timeout) = (&mut meeting.place, options.setup_timeout);
        let exchange = |offers: &Offers| {
            let peers = place.exchange(offers, timeout)?;
            Ok((peers, place.seal()))
        };
        let comm = Communicator::connect(&pd.inner, (rank, ranks), options, exchange)?;
        // A rank that continues sends at once, so the others must be ready.
        place.sync(timeout)?;
        comm.agree_on_memory()?;
        comm.open_casts()?;
        Ok(comm)
    }

    fn connect(
        pd: &Arc<PdInner>,
        (rank, ranks): (Rank, u32),
        options: CommOptions,
        exchange: impl FnOnce(&Offers) -> Result<(Vec<PeerEnd>, Option<GroupSeal>), Error>,
    ) -> Result<Communicator, Error> {
        let member = Member::start(pd, (rank, ranks), options.group(ranks))?;
        let (peers, seal) = exchange(&member.offers()?)?;
        member.connect(&peers, seal.as_ref())?;
        let addrs = peers.iter().map(|peer| (peer.rank, peer.addr)).collect();
        let hosts = hosts::by_address(&addrs, (rank, pd.device().config().addr));
        let hosts = if options.is_for_long_links() { hosts.with_speakers(1) } else { hosts };
        let shared = Shared {
            pd: Arc::clone(pd),
            options,
            member,
            addrs,
            hosts,
            casts: OnceLock::new(),
            seal,
            schedules: Mutex::default(),
            held: Mutex::default(),
        };
        Ok(Communicator { shared: Arc::new(shared) })
    }

    /// The number of this rank.
    pub fn rank(&self) -> Rank {
        self.shared.member.rank
    }

    /// Whether packets between its ranks are encrypted and authenticated.
    pub fn is_sealed(&self) -> bool {
        self.shared.seal.is_some()
    }

    /// Number of ranks.
    pub fn size(&self) -> u32 {
        self.shared.member.ranks
    }

    /// How many ranks this one reaches through memory instead of packets: those of its host, if its
    /// device shares memory (`docs/shm.md`).
    pub fn ranks_in_memory(&self) -> u32 {
        self.shared.member.ranks_in_memory()
    }

    /// Which ranks share a host, as far as their addresses tell: those with the same address, and
    /// those with any of loopback.
    pub fn hosts(&self) -> &Hosts {
        &self.shared.hosts
    }

    /// Starts any operation, with the bounds of the communicator if it has some and the operation
    /// can. In place there is no input, and the output holds it.
    pub fn start(
        &self,
        request: &Request,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
    ) -> Result<Work, Error> {
        self.start_bounded(request, input, output, self.shared.options.bounds)
    }

    /// As [`start`](Communicator::start), but nothing may be missing: for data such as lengths,
    /// indices and objects, where a loss is not averaged out.
    pub fn start_exact(
        &self,
        request: &Request,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
    ) -> Result<Work, Error> {
        let bounds =
            Bounds { max_loss_ppm: 0, recovery: Recovery::Never, ..self.shared.options.bounds };
        self.start_bounded(request, input, output, bounds)
    }

    fn start_bounded(
        &self,
        request: &Request,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
        bounds: Bounds,
    ) -> Result<Work, Error> {
        if self.shared.options.transport != CommTransport::Xp {
            return self.start_with(request, input, output, None);
        }
        match request.with_bounds(&bounds, self.hosts()) {
            Ok(_) => self.start_with(request, input, output, Some(bounds)),
            Err(InvalidRequest::Unbounded { .. }) if request.algorithm == Algorithm::Auto => {
                self.start_with(request, input, output, None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Starts any operation, with or without bounds: over XP with bounds, over RC without. All
    /// ranks must give the same.
    pub fn start_with(
        &self,
        request: &Request,
        input: Option<&Tensor>,
        output: Option<&Tensor>,
        bounds: Option<Bounds>,
    ) -> Result<Work, Error> {
        let bounded =
            bounds.map(|bounds| request.with_bounds(&bounds, self.hosts())).transpose()?;
        let cast = if bounds.is_none() { self.by_multicast(request) } else { None };
        let request = bounded.as_ref().or(cast.as_ref()).unwrap_or(request);
        let shared = &self.shared;
        let (input_bytes, output_bytes) = request.bytes(self.rank(), self.size())?;
        let memory = Memory {
            input: self.piece(request, "input", input, input_bytes)?,
            output: self.piece(request, "output", output, output_bytes)?,
        };
        let overlap =
            |a: Piece, b: Piece| a.addr < b.addr + b.len as u64 && b.addr < a.addr + a.len as u64;
        if overlap(memory.input, memory.output) {
            let why = "it overlaps the output: give one tensor for both, in place".to_owned();
            return Err(Error::Invalid { what: "input", why });
        }
        shared.sweep();
        let schedule = shared.schedule(request)?;
        let tensors = [input, output].map(Option::<&Tensor>::cloned);
        let id = shared.member.submit(schedule, memory, bounds)?;
        Ok(Work::new(shared, id, tensors))
    }

    /// The memory of a tensor, if it is the operation's.
    fn piece(
        &self,
        request: &Request,
        what: &'static str,
        tensor: Option<&Tensor>,
        bytes: usize,
    ) -> Result<Piece, Error> {
        let Some(tensor) = tensor else {
            if bytes == 0 {
                return Ok(Piece::EMPTY);
            }
            let why =
                format!("{} needs {bytes} bytes, and none are given", request.operation.name());
            return Err(Error::Invalid { what, why });
        };
        if !Arc::ptr_eq(tensor.mr().pd(), &self.shared.pd) {
            return Err(Error::Foreign { what: "the tensor", of: "protection domain" });
        }
        if tensor.data_type() != request.dtype || tensor.bytes() < bytes {
            let why = format!(
                "{} needs {bytes} bytes of {}; the tensor has {} of {}",
                request.operation.name(),
                request.dtype,
                tensor.bytes(),
                tensor.data_type()
            );
            return Err(Error::Invalid { what, why });
        }
        if what == "output" && bytes > 0 {
            tensor.check_writable()?;
        }
        Ok(Piece { len: bytes, ..tensor.piece() })
    }
}

impl Shared {
    /// The schedule of a request, compiled once.
    fn schedule(&self, request: &Request) -> Result<Arc<Schedule>, Error> {
        let mut schedules = lock(&self.schedules);
        if let Some(schedule) = schedules.get(request) {
            return Ok(Arc::clone(schedule));
        }
        let chunk = self.member.chunk_bytes as usize;
        let schedule = Arc::new(request.compile(self.member.rank, &self.hosts, chunk)?);
        if schedules.len() >= MAX_SCHEDULES {
            schedules.clear();
        }
        schedules.insert(request.clone(), Arc::clone(&schedule));
        Ok(schedule)
    }

    /// Releases the memory of finished operations that nobody waits for.
    fn sweep(&self) {
        let mut held = lock(&self.held);
        if held.is_empty() {
            return;
        }
        let (over, kept): (Vec<_>, Vec<_>) =
            held.drain(..).partition(|held| self.member.take_success(held.id));
        *held = kept;
        drop(held);
        // Deregistering locks the lane.
        drop(over);
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.size())
    }
}

/// No panic can leave these half-changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_as_wide_as_asked_for_over_every_transport() {
        for transport in CommTransport::ALL {
            for window_bytes in [1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20] {
                let options = CommOptions {
                    transport,
                    window_bytes: Some(window_bytes),
                    ..CommOptions::default()
                };
                let config = options.group(2);
                let slots = match transport {
                    CommTransport::Xp => config.express_slots,
                    CommTransport::Rc | CommTransport::Sdr(_) => config.slots,
                };
                assert_eq!(u32::from(slots) * config.slot_bytes, window_bytes, "{transport:?}");
                assert!(config.slot_bytes >= options.chunk_bytes);
            }
        }
    }
}
