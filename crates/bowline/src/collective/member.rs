//! A rank in a lane of its device.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bowline_collective::{
    Bounds, CastOffer, Failure, Group, GroupConfig, GroupError, Memory, OpId, Rank, Report,
    Schedule,
};
use bowline_device::{self as device, Host};
use bowline_io::{Task, TaskId};
use bowline_nic::{QpType, Remote, Rnic, Time};
use bowline_wire::Psn;

use super::lock;
use super::rendezvous::{Offers, PeerEnd};
use super::rings::Rings;
use super::seal::GroupSeal;
use crate::multicast::{Connected, GroupMember, PortGroup};
use crate::pd::PdInner;
use crate::{Endpoint, Error, RemoteMr, reliable};

/// How long a waiting thread drives an idle lane itself before it sleeps.
const SPIN: Duration = Duration::from_millis(1);
/// Idle polls before it yields the CPU.
const EAGER_POLLS: u32 = 2;
/// How long a rank that leaves waits for its last messages to arrive.
const FAREWELL: Duration = Duration::from_secs(3);
/// A sleeper wakes at least this often: a device that ends does not notify it.
const NAP: Duration = Duration::from_millis(100);

pub(super) struct Member {
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    pub(super) chunk_bytes: u32,
    ring_bytes: u64,
    pd: Arc<PdInner>,
    host: Host,
    task: TaskId,
    running: Arc<Mutex<Running>>,
    /// Signalled when an operation is over.
    over: Arc<Condvar>,
    /// The rings of its peers, if ranks of this host may map them.
    rings: Option<Rings>,
}

/// The lane's task.
struct Running {
    /// Taken when the communicator is dropped.
    group: Option<Group>,
    /// Results that have not been fetched yet.
    done: BTreeMap<OpId, Result<Report, Failure>>,
    /// How often there was something to do.
    turns: u64,
    over: Arc<Condvar>,
}

impl Running {
    fn collect(&mut self) {
        let Some(group) = &mut self.group else { return };
        let before = self.done.len();
        while let Some((id, result)) = group.poll_done() {
            self.done.insert(id, result);
        }
        if self.done.len() > before {
            self.over.notify_all();
        }
    }
}

impl Task for Running {
    fn run(&mut self, nic: &mut dyn Rnic, now: Time) {
        if let Some(group) = &mut self.group {
            self.turns += u64::from(group.drive(nic, now));
            self.collect();
        }
    }

    fn deadline(&self) -> Option<Time> {
        self.group.as_ref()?.poll_timeout()
    }
}

impl Member {
    pub(super) fn start(
        pd: &Arc<PdInner>,
        (rank, ranks): (Rank, u32),
        config: GroupConfig,
    ) -> Result<Member, Error> {
        if pd.device().failover_account().is_some() {
            let why = "a communicator cannot move to a backup NIC yet: open it without failover";
            return Err(Error::Invalid { what: "device", why: why.to_owned() });
        }
        let seed = device::random_bytes().map_err(|e| Error::system("read randomness", e))?;
        let host = pd.device().host(None)?;
        let pd_id = host.pd(&pd.core)?;
        let mut seed = u64::from_ne_bytes(seed);
        let psn = || {
            // SplitMix64: first PSNs that cannot be guessed from each other's without the seed.
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) as u32 & 0xff_ffff
        };
        let mut group =
            host.with(|nic, _| Group::new(nic, pd_id, (rank, ranks), config, psn))??;
        let rings = match pd.device().shares_memory() && config.scheme.is_none() {
            true => host.with(|nic, _| Rings::create(nic, &mut group, (rank, ranks)))?,
            false => None,
        };
        let over = Arc::new(Condvar::new());
        let running = Running {
            group: Some(group),
            done: BTreeMap::new(),
            turns: 0,
            over: Arc::clone(&over),
        };
        let running = Arc::new(Mutex::new(running));
        let task = host.add_task(running.clone())?;
        let (pd, chunk_bytes) = (Arc::clone(pd), config.slot_bytes);
        let ring_bytes = u64::from(config.slots) * u64::from(config.slot_bytes);
        Ok(Member { rank, ranks, chunk_bytes, ring_bytes, pd, host, task, running, over, rings })
    }

    /// Runs `f` on the group, in the lane.
    fn with<R>(
        &self,
        f: impl FnOnce(&mut Group, &mut dyn Rnic, Time) -> Result<R, GroupError>,
    ) -> Result<R, Error> {
        let done = self.host.post(|nic, now| {
            let mut running = lock(&self.running);
            // It is taken only on drop, when no handle is left.
            let Some(group) = &mut running.group else { return Ok(None) };
            let done = f(group, nic, now).map(Some);
            running.collect();
            done
        })?;
        done?.ok_or_else(|| Error::Invalid {
            what: "communicator",
            why: "it has been closed".to_owned(),
        })
    }

    /// What the other ranks need to know.
    pub(super) fn offers(&self) -> Result<Offers, Error> {
        let (rank, ranks) = (self.rank, self.ranks);
        let links = self.with(|group, _, _| {
            let offer = |peer| if peer == rank { Ok(None) } else { group.offer(peer).map(Some) };
            (0..ranks).map(offer).collect::<Result<Vec<_>, _>>()
        })?;
        let config = self.pd.device().config();
        let rings = self.rings.as_ref().map(Rings::ticket);
        Ok(Offers { rank, addr: config.addr, udp_port: config.udp_port, rings, links })
    }

    /// Connects to all others, given in rank order.
    pub(super) fn connect(&self, peers: &[PeerEnd], seal: Option<&GroupSeal>) -> Result<(), Error> {
        let port = self.pd.device().config().udp_port;
        if let Some(other) = peers.iter().find(|peer| peer.udp_port != port) {
            let why = format!(
                "rank {} is at UDP port {} and this rank at {port}: they must be alike",
                other.rank, other.udp_port
            );
            return Err(Error::Invalid { what: "device", why });
        }
        let device = self.pd.device();
        let controls: Vec<_> =
            peers.iter().map(|peer| reliable::path_control(device, peer.addr)).collect();
        self.with(|group, nic, now| {
            peers.iter().zip(controls).try_for_each(|(peer, control)| {
                group.set_congestion(nic, now, peer.rank, control)?;
                if let Some(seal) = seal {
                    group.seal(nic, peer.rank, seal.between(self.rank, peer.rank, now))?;
                }
                group.connect(nic, now, peer.rank, peer.addr, &peer.link)?;
                match self.rings.as_ref().and_then(|rings| rings.of_peer(peer)) {
                    Some(ring) => group.reach_ring(peer.rank, ring),
                    None => Ok(()),
                }
            })
        })
    }

    /// The ranks whose rings are mapped here.
    pub(super) fn reached(&self) -> Result<Vec<Rank>, Error> {
        let ranks = 0..self.ranks;
        self.with(|group, _, _| Ok(ranks.filter(|rank| group.reaches(*rank)).collect()))
    }

    /// Sends no messages over XP to and from ranks that have mapped this rank's ring, as it has
    /// mapped theirs.
    pub(super) fn bring_near(&self, ranks: &[Rank]) -> Result<(), Error> {
        self.with(|group, _, _| ranks.iter().try_for_each(|rank| group.bring_near(*rank)))
    }

    /// How many peers' rings are mapped here.
    pub(super) fn ranks_in_memory(&self) -> u32 {
        // A group that has been closed reaches nobody.
        self.with(|group, _, _| Ok(group.mapped_rings())).unwrap_or(0)
    }

    /// Creates queue pairs for messages to all, if this rank supports them; its own starts at
    /// `psn`.
    pub(super) fn open_casts(&self, psn: Psn) -> Result<CastOffer, Error> {
        // Useless without a port that replicates.
        self.host.replicator()?;
        self.with(|group, nic, _| group.open_casts(nic, psn))
    }

    /// Sets the port to replicate what this rank sends to all, and connects the receiving ends for
    /// the others. Offers are in rank order.
    pub(super) fn accept_casts(
        &self,
        offers: &[CastOffer],
        addrs: &BTreeMap<Rank, IpAddr>,
    ) -> Result<PortGroup, Error> {
        let device = self.pd.device();
        let mine = &offers[self.rank as usize];
        let mtu = offers.iter().map(|offer| offer.mtu).min().unwrap_or(mine.mtu);
        let sender = Endpoint {
            qp_type: QpType::Rc,
            addr: device.addr(),
            udp_port: device.config().udp_port,
            qpn: mine.qpn,
            psn: mine.psn,
            mtu,
            rd_atomic: 0,
        };
        let (mut members, mut ids, mut sources) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, addr) in addrs {
            let theirs = &offers[*rank as usize];
            let ends = theirs.ends[self.rank as usize].zip(mine.ends[*rank as usize]);
            let (end, own) = ends.ok_or(GroupError::NoPeer(*rank))?;
            let regions = vec![RemoteMr { addr: 0, len: self.ring_bytes, rkey: end.rkey }];
            let endpoint = Endpoint { addr: *addr, qpn: end.qpn, ..sender };
            members.push(GroupMember { endpoint, regions });
            ids.push(own.id);
            sources.push((*rank, (*addr, end.id), (theirs.psn, mtu)));
        }
        let replicator = self.host.replicator()?;
        let group = PortGroup::install(replicator, device.now(), &sender, &members, ids)?;
        self.with(|group, nic, now| {
            sources
                .into_iter()
                .try_for_each(|(rank, from, path)| group.accept_casts(nic, now, rank, from, path))
        })?;
        Ok(group)
    }

    /// Connects the sending end for messages to all. All ranks must be ready for that.
    pub(super) fn connect_casts(&self, group: &PortGroup) -> Result<(), Error> {
        let Connected { for_sender: to, regions, .. } = group.connected();
        let rings = regions.first().map_or(Remote { addr: 0, rkey: 0 }, RemoteMr::start);
        self.with(|group, nic, now| group.connect_casts(nic, now, (to.addr, to.qpn), rings, to.mtu))
    }

    /// Removes what was made for messages to all.
    pub(super) fn close_casts(&self) -> Result<(), Error> {
        self.with(|group, nic, _| {
            group.close_casts(nic);
            Ok(())
        })
    }

    pub(super) fn submit(
        &self,
        schedule: Arc<Schedule>,
        memory: Memory,
        bounds: Option<Bounds>,
    ) -> Result<OpId, Error> {
        self.with(|group, nic, now| group.submit_with(nic, now, schedule, memory, bounds))
    }

    /// Whether an operation has succeeded. If so, its result is dropped.
    pub(super) fn take_success(&self, id: OpId) -> bool {
        let mut running = lock(&self.running);
        let succeeded = running.done.get(&id).is_some_and(Result::is_ok);
        if succeeded {
            running.done.remove(&id);
        }
        succeeded
    }

    /// Whether an operation is over.
    pub(super) fn is_over(&self, id: OpId) -> bool {
        lock(&self.running).done.contains_key(&id)
    }

    /// Drives the lane.
    pub(super) fn poll(&self) -> Result<(), Error> {
        Ok(self.host.poll()?)
    }

    /// Waits for an operation, driving the lane meanwhile; `None` if it takes longer than
    /// `timeout`.
    pub(super) fn wait(
        &self,
        id: OpId,
        timeout: Duration,
    ) -> Result<Option<Result<Report, Failure>>, Error> {
        let started = Instant::now();
        let (mut idle_since, mut polls, mut seen) = (started, 0, 0);
        loop {
            let turns = match self.take_or_turns(id) {
                Ok(result) => return Ok(Some(result)),
                Err(turns) => turns,
            };
            // Reading the clock costs as much as a poll.
            let now = if polls < EAGER_POLLS { idle_since } else { Instant::now() };
            if turns != seen {
                (polls, seen) = (0, turns);
            } else if polls == EAGER_POLLS {
                idle_since = now;
            }
            let waited = now.saturating_duration_since(started);
            if waited >= timeout {
                return Ok(None);
            }
            if now.saturating_duration_since(idle_since) < SPIN {
                self.poll()?;
                polls += 1;
                if polls > EAGER_POLLS {
                    std::thread::yield_now();
                }
                continue;
            }
            self.sleep(id, timeout.saturating_sub(waited).min(NAP))?;
        }
    }

    /// The result of an operation, once; until then, how often there was something to do.
    fn take_or_turns(&self, id: OpId) -> Result<Result<Report, Failure>, u64> {
        let mut running = lock(&self.running);
        running.done.remove(&id).ok_or(running.turns)
    }

    /// Leaves the lane to its own thread until the operation is over.
    fn sleep(&self, id: OpId, limit: Duration) -> Result<(), Error> {
        // Reports a device that has ended.
        self.host.check()?;
        self.host.stop_polling();
        let running = lock(&self.running);
        if !running.done.contains_key(&id) {
            let slept = self.over.wait_timeout(running, limit);
            drop(slept.unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    /// Notifies the others, and waits for what was sent to arrive.
    fn leave(&self) -> Result<(), Error> {
        let started = Instant::now();
        self.with(|group, nic, now| {
            group.leave(nic, now);
            Ok(())
        })?;
        while started.elapsed() < FAREWELL {
            if self.with(|group, _, _| Ok(group.is_quiet()))? {
                break;
            }
            self.poll()?;
            if started.elapsed() > SPIN {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // A device that has ended has nobody to notify, and nothing to remove.
        let _ = self.leave();
        let _ = self.host.remove_task(self.task);
        let _ = self.host.with(|nic, now| {
            if let Some(mut group) = lock(&self.running).group.take() {
                group.close(nic, now);
                group.destroy(nic);
            }
        });
    }
}
