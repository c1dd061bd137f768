//! A rank of a group on a NIC: an engine, queue pairs to each other rank, and staging rings.

mod casts;
mod drive;
mod express;
mod info;
mod memory;
mod nack;
mod sdr;
mod shared;

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Connect, ControlError, CqId, ModifyError, MrKey, Mtu, PacketSeal, PdId,
    PostError, QpAttr, QpInit, QpState, QpType, RateControl, RecvWr, Region, Rnic, Time,
};
use bowline_sdr::SdrError;
use bowline_wire::{Psn, Qpn};

use crate::engine::{Engine, EngineConfig, Failure, MAX_EXPRESS_SLOTS, OpId};
use crate::{Bounds, Rank, Report, Schedule};
use casts::Casts;
pub use casts::{CastEnd, CastOffer};
use express::ExpressLink;
pub use info::{ExpressInfo, LinkInfo, SdrEnd};
pub use memory::{Memory, Piece};
use memory::{Pending, Scratch};
use nack::AREA_BYTES;
use sdr::SdrLink;
pub use sdr::{SdrScheme, UnknownScheme};

/// Configuration of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Maximum length of a message in bytes, a multiple of 64. Must be the same on all ranks.
    pub slot_bytes: u32,
    /// Maximum number of messages from one peer that wait here. Must be the same on all ranks.
    pub slots: u16,
    /// The same for messages of operations with bounds, which need an XP queue pair to each peer:
    /// at most 16, and 0 if there are none. Must be the same on all ranks.
    pub express_slots: u16,
    /// Reserves room for multicast: see [`Group::open_casts`]. Must be the same on all ranks.
    pub casts: bool,
    /// The SDR scheme that carries messages instead of RC, for long links. Such a group has no
    /// slots for XP. Must be the same on all ranks.
    pub scheme: Option<SdrScheme>,
    /// How late a packet over XP may arrive by reordering before it counts as lost.
    pub reorder_ns: u64,
    /// Messages up to this length are copied into their work request.
    pub inline_bytes: u32,
    /// How long to wait for a rank before sending it a heartbeat, and between heartbeats.
    pub heartbeat_ns: u64,
    /// Local ACK timeout of the queue pairs: 4.096 µs times 2 to this power. A rank that does not
    /// acknowledge for eight times as long has failed.
    pub ack_timeout: u8,
    /// How long an operation may take.
    pub limit_ns: u64,
}

impl Default for GroupConfig {
    /// A ring of 1 MiB for each peer, detection of a dead rank within 2.7 s, and at most 5 minutes
    /// for an operation.
    fn default() -> GroupConfig {
        GroupConfig {
            slot_bytes: 128 << 10,
            slots: 8,
            express_slots: 0,
            casts: false,
            scheme: None,
            reorder_ns: 50_000,
            inline_bytes: 512,
            heartbeat_ns: 500_000_000,
            ack_timeout: 16,
            limit_ns: 300_000_000_000,
        }
    }
}

impl GroupConfig {
    /// How long to wait for a rank that does not answer.
    fn silence_ns(&self) -> u64 {
        (4_096 << self.ack_timeout) * 8
    }
}

/// Why a group could not be created or connected, or could not start an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The NIC could not create an object.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The NIC could not change the state of a queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The NIC refused a work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// An SDR connection failed.
    #[error(transparent)]
    Sdr(#[from] SdrError),
    /// The peer uses another scheme, or none.
    #[error("rank {0} uses another scheme, or none: configure the same scheme on all ranks")]
    OtherScheme(Rank),
    /// Not a rank of the group, or this one.
    #[error("rank {0} is this rank, or not in the group")]
    NoPeer(Rank),
    /// The peer's ring has another shape than ours.
    #[error(
        "rank {rank} has {slots} slots of {slot_bytes} bytes, and {express_slots} for XP: \
         all ranks of a group need the same configuration"
    )]
    Unlike {
        /// The rank.
        rank: Rank,
        /// Its slots.
        slots: u16,
        /// The number of its slots for operations with bounds.
        express_slots: u16,
        /// The size of its slots in bytes.
        slot_bytes: u32,
    },
    /// A multicast in a group without multicast.
    #[error(
        "algorithm `multicast` needs multicast groups, which this group was created without: \
         create it with them (`bowline collective --multicast`), or use another algorithm"
    )]
    NoCasts,
    /// Bounds in a group without XP queue pairs.
    #[error("the group has no XP queue pairs: give it some to bound an operation")]
    NoExpress,
    /// An invalid setting.
    #[error("invalid {what} of a group: {value}")]
    Config {
        /// The name of the setting.
        what: &'static str,
        /// Its value.
        value: u64,
    },
}

/// The connection to another rank.
#[derive(Debug)]
struct Link {
    qpn: Qpn,
    psn: Psn,
    /// The ring that the peer writes: slots, XP slots, and areas for the ranges that it is missing.
    ring: Arc<Buffer>,
    key: MrKey,
    /// The key under which the peer addresses the ring.
    rkey: MrKey,
    /// The peer may have mapped the ring.
    is_shared: bool,
    /// The peer's ring, if it is mapped here.
    far_ring: Option<Arc<Buffer>>,
    express: Option<ExpressLink>,
    /// The SDR connection that carries messages, if RC does not.
    sdr: Option<Box<SdrLink>>,
    /// The peer's end.
    remote: Option<LinkInfo>,
}

/// A rank of a group on a NIC.
///
/// Create it, [share](Group::place_ring) its rings with ranks of its host, send each other rank its
/// [`offer`](Group::offer), [`connect`](Group::connect) to each with theirs, then
/// [`submit`](Group::submit) operations. Call [`drive`](Group::drive) whenever the NIC has done
/// something, and at [`poll_timeout`](Group::poll_timeout).
#[derive(Debug)]
pub struct Group {
    engine: Engine,
    config: GroupConfig,
    pd: PdId,
    cq: CqId,
    mtu: Mtu,
    /// One for each rank, except this one.
    links: Vec<Option<Link>>,
    casts: Option<Casts>,
    /// Operations that have not ended, oldest first.
    pending: VecDeque<Pending>,
    /// Only the last one is used for new operations.
    scratch: Vec<Scratch>,
    /// The last turn may have left work to do.
    busy: bool,
}

impl Group {
    /// Creates the queue pairs and rings of a rank. `psn` returns a random number for each
    /// connection.
    pub fn new(
        nic: &mut dyn Rnic,
        pd: PdId,
        (rank, ranks): (Rank, u32),
        config: GroupConfig,
        mut psn: impl FnMut() -> u32,
    ) -> Result<Group, GroupError> {
        check(rank, ranks, &config)?;
        let engine = Engine::new(EngineConfig {
            rank,
            ranks,
            slots: config.slots,
            express_slots: config.express_slots,
            bulk_bytes: express::BULK_PACKETS * nic.config().max_mtu.bytes(),
            reorder_ns: config.reorder_ns,
            max_posted: max_posted(&config) as usize,
            // SDR sends directly from the caller's memory.
            inline_bytes: if config.scheme.is_some() { 0 } else { config.inline_bytes as usize },
            heartbeat_ns: config.heartbeat_ns,
            limit_ns: config.limit_ns,
        });
        // For each peer: messages from it, messages to it, and messages without payload in both
        // directions.
        let each = wr_depth(&config) + 1 + 2 * express::wr_depth(&config);
        let depth = (ranks.max(2) - 1).saturating_mul(2 * each);
        // The same for our multicasts and those of each other rank.
        let casts = if config.casts { ranks.saturating_mul(wr_depth(&config)) } else { 0 };
        let cq = nic.create_cq(depth.saturating_add(casts))?;
        let mut group = Group {
            engine,
            config,
            pd,
            cq,
            mtu: nic.config().max_mtu,
            links: Vec::new(),
            casts: None,
            pending: VecDeque::new(),
            scratch: Vec::new(),
            busy: false,
        };
        for peer in 0..ranks {
            let link = (peer != rank).then(|| group.link(nic, [psn(), psn(), psn()].map(Psn::new)));
            match link.transpose() {
                Ok(link) => group.links.push(link),
                Err(error) => {
                    group.destroy(nic);
                    return Err(error);
                }
            }
        }
        Ok(group)
    }

    fn link(&self, nic: &mut dyn Rnic, [psn, tokens @ ..]: [Psn; 3]) -> Result<Link, GroupError> {
        let depth = wr_depth(&self.config);
        let init = QpInit {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: self.config.inline_bytes.max(AREA_BYTES as u32),
            ..QpInit::new(QpType::Rc, self.pd, self.cq)
        };
        let ring = Buffer::new(match self.config.scheme {
            Some(_) => usize::from(sdr::buffers(&self.config)) * self.config.slot_bytes as usize,
            None => express::nack_offset(&self.config, self.config.express_slots),
        });
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // Peers count offsets from its start, so they need not know its address.
        let key = nic.register(self.pd, Region::owned(Arc::clone(&ring)), 0, access)?;
        let qpn = nic.create_qp(&init).inspect_err(|_| {
            // Cannot fail: it was registered above.
            let _ = nic.deregister(key);
        })?;
        let express = self.express_link(nic, tokens).inspect_err(|_| {
            let _ = nic.destroy_qp(qpn);
            let _ = nic.deregister(key);
        })?;
        let sdr = self.sdr_link(nic, key).inspect_err(|_| {
            let _ = nic.destroy_qp(qpn);
            let _ = nic.deregister(key);
        })?;
        let rkey = nic.rkey(key);
        Ok(Link {
            qpn,
            psn,
            ring,
            key,
            rkey,
            is_shared: false,
            far_ring: None,
            express,
            sdr,
            remote: None,
        })
    }

    /// What a peer needs in order to connect to this rank.
    pub fn offer(&self, peer: Rank) -> Result<LinkInfo, GroupError> {
        let link = self.links.get(peer as usize).and_then(Option::as_ref);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        Ok(LinkInfo {
            qpn: link.qpn,
            psn: link.psn,
            mtu: self.mtu,
            rkey: link.rkey.0,
            addr: 0,
            slots: self.config.slots,
            slot_bytes: self.config.slot_bytes,
            express: link.express.map(|express| ExpressInfo {
                qpn: express.messages.qpn,
                token: express.messages.token,
                repair_qpn: express.repairs.qpn,
                repair_token: express.repairs.token,
                slots: self.config.express_slots,
            }),
            sdr: link.sdr.as_ref().map(|sdr| SdrEnd::new(&sdr.info())).transpose()?,
        })
    }

    /// Sets the rate controller for a peer, before it is connected. It applies to SDR schemes and
    /// to XP; RC keeps its window.
    pub fn set_congestion(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        peer: Rank,
        control: Option<RateControl>,
    ) -> Result<(), GroupError> {
        if let Some(sdr) = self.sdr_mut(peer) {
            sdr.set_congestion(control);
            return Ok(());
        }
        let link = self.links.get(peer as usize).and_then(Option::as_ref);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        if let Some(express) = &link.express {
            for end in [express.messages, express.repairs] {
                let controllers = control.as_ref().and_then(RateControl::factory);
                nic.set_rate_controller(now, end.qpn, controllers)?;
            }
        }
        Ok(())
    }

    /// Seals all packets to and from a peer, before it is connected. Each queue pair takes one
    /// sealer from `next`, in the same order at both ends.
    pub fn seal(
        &mut self,
        nic: &mut dyn Rnic,
        peer: Rank,
        mut next: impl FnMut() -> PacketSeal,
    ) -> Result<(), GroupError> {
        let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        nic.seal_qp(link.qpn, next())?;
        if let Some(express) = &link.express {
            nic.seal_qp(express.messages.qpn, next())?;
            nic.seal_qp(express.repairs.qpn, next())?;
        }
        if let Some(sdr) = &mut link.sdr {
            sdr.seal(nic, next)?;
        }
        Ok(())
    }

    /// Connects to a peer at an address. Submit nothing until all peers have connected.
    pub fn connect(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        peer: Rank,
        addr: IpAddr,
        offer: &LinkInfo,
    ) -> Result<(), GroupError> {
        let (slots, slot_bytes) = (offer.slots, offer.slot_bytes);
        let express_slots = offer.express.map_or(0, |express| express.slots);
        let GroupConfig { slots: own, slot_bytes: own_bytes, express_slots: own_express, .. } =
            self.config;
        if (slots, slot_bytes, express_slots) != (own, own_bytes, own_express) {
            return Err(GroupError::Unlike { rank: peer, slots, express_slots, slot_bytes });
        }
        let (mtu, depth, ack_timeout) = (self.mtu, wr_depth(&self.config), self.config.ack_timeout);
        let link = self.links.get_mut(peer as usize).and_then(Option::as_mut);
        let link = link.ok_or(GroupError::NoPeer(peer))?;
        let connect = Connect {
            access: Access::REMOTE_WRITE,
            path_mtu: mtu.min(offer.mtu),
            rq_psn: offer.psn,
            sq_psn: link.psn,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            // A receive is reposted as soon as its message has been taken.
            min_rnr_timer: 1,
            timeout: ack_timeout,
            ..Connect::new(addr, offer.qpn)
        };
        let [init, rtr, rts] = connect.steps(QpType::Rc);
        nic.modify_qp(now, link.qpn, &init)?;
        for _ in 0..depth {
            let id = drive::wr_id(drive::WrKind::Recv, peer, 0);
            nic.post_recv(link.qpn, &RecvWr::new(id, &[]))?;
        }
        nic.modify_qp(now, link.qpn, &rtr)?;
        nic.modify_qp(now, link.qpn, &rts)?;
        match (&mut link.sdr, offer.sdr) {
            (Some(sdr), Some(far)) => sdr.connect(nic, now, addr, &far.info()?)?,
            (None, None) => {}
            _ => return Err(GroupError::OtherScheme(peer)),
        }
        if let (Some(express), Some(far)) = (link.express, offer.express) {
            express.connect(nic, now, &self.config, (peer, connect), &far)?;
        }
        link.remote = Some(*offer);
        Ok(())
    }

    /// Adds an operation after all others. `memory` must not be touched until it has ended.
    pub fn submit(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        schedule: Arc<Schedule>,
        memory: Memory,
    ) -> Result<OpId, GroupError> {
        self.submit_with(nic, now, schedule, memory, None)
    }

    /// Like [`submit`](Group::submit), for an operation that may have bounds. Its request must have
    /// been made [for them](crate::Request::with_bounds).
    pub fn submit_with(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        schedule: Arc<Schedule>,
        memory: Memory,
        bounds: Option<Bounds>,
    ) -> Result<OpId, GroupError> {
        if bounds.is_some() && (self.config.express_slots == 0 || schedule.is_pairwise()) {
            return Err(GroupError::NoExpress);
        }
        if schedule.has_casts() && !self.has_casts() {
            return Err(GroupError::NoCasts);
        }
        let scratch = self.reserve(nic, schedule.scratch_bytes())?;
        let id = self.engine.submit(now, schedule, bounds);
        self.pending.push_back(Pending { id, memory, scratch });
        self.drive(nic, now);
        Ok(id)
    }

    /// The next operation that has ended.
    pub fn poll_done(&mut self) -> Option<(OpId, Result<Report, Failure>)> {
        let (id, result) = self.engine.poll_done()?;
        self.pending.retain(|pending| pending.id != id);
        Some((id, result))
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.engine.failure()
    }

    /// When to call `drive`, unless something else happens earlier.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.busy {
            return Some(Time::ZERO);
        }
        let sdr = self.links.iter().flatten().filter_map(|link| link.sdr.as_ref()?.poll_timeout());
        sdr.chain(self.engine.poll_timeout()).min()
    }

    /// Tells all other ranks that this rank leaves.
    pub fn leave(&mut self, nic: &mut dyn Rnic, now: Time) {
        self.engine.leave(now);
        self.drive(nic, now);
    }

    /// Whether everything sent has arrived, as far as it can. Work requests then use no memory any
    /// more.
    pub fn is_quiet(&self) -> bool {
        self.engine.is_quiet()
    }

    /// Ends all connections: this group reads and writes no memory from here on.
    pub fn close(&mut self, nic: &mut dyn Rnic, now: Time) {
        let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        for qpn in self.casts.iter().flat_map(Casts::qpns) {
            let _ = nic.modify_qp(now, qpn, &error);
        }
        for link in self.links.iter_mut().flatten() {
            // A queue pair that was never connected cannot enter the error state, and sends
            // nothing.
            let _ = nic.modify_qp(now, link.qpn, &error);
            if let Some(express) = link.express {
                let _ = nic.modify_qp(now, express.messages.qpn, &error);
                let _ = nic.modify_qp(now, express.repairs.qpn, &error);
            }
            if let Some(sdr) = link.sdr.take() {
                sdr.destroy(nic);
            }
        }
    }

    /// Removes everything from the NIC.
    pub fn destroy(mut self, nic: &mut dyn Rnic) {
        self.close_casts(nic);
        for link in self.links.into_iter().flatten() {
            // Cannot fail: they are ours, and nothing else removes them.
            let _ = nic.destroy_qp(link.qpn);
            if let Some(express) = link.express {
                let _ = nic.destroy_qp(express.messages.qpn);
                let _ = nic.destroy_qp(express.repairs.qpn);
            }
            if let Some(sdr) = link.sdr {
                sdr.destroy(nic);
            }
            let _ = nic.deregister(link.key);
        }
        for scratch in self.scratch {
            let _ = nic.deregister(scratch.key);
        }
        let _ = nic.destroy_cq(self.cq);
    }
}

/// Maximum number of outstanding work requests to a peer: a message for each slot, a credit for
/// every two, and as many again because acknowledgements may arrive after the credits. A message
/// over XP may need several repairs at once, a request and reports of its progress.
fn max_posted(config: &GroupConfig) -> u32 {
    3 * u32::from(config.slots) + 2 + 8 * u32::from(config.express_slots)
}

/// How many work requests of each kind a queue pair has room for: those above, plus credits of both
/// kinds, and the final message with one before it.
fn wr_depth(config: &GroupConfig) -> u32 {
    max_posted(config) + 4
}

fn check(rank: Rank, ranks: u32, config: &GroupConfig) -> Result<(), GroupError> {
    let invalid = |what, value| Err(GroupError::Config { what, value });
    if !(1..=crate::MAX_RANKS).contains(&ranks) {
        return invalid("number of ranks", ranks.into());
    }
    if rank >= ranks {
        return invalid("rank", rank.into());
    }
    if !(64..=1 << 24).contains(&config.slot_bytes) || !config.slot_bytes.is_multiple_of(64) {
        return invalid("slot size", config.slot_bytes.into());
    }
    if !(1..=2048).contains(&config.slots) {
        return invalid("number of slots", config.slots.into());
    }
    if config.express_slots > MAX_EXPRESS_SLOTS {
        return invalid("number of slots for XP", config.express_slots.into());
    }
    if config.scheme.is_some() && config.casts {
        return invalid("multicast beside a scheme", 1);
    }
    if config.scheme.is_some() && config.express_slots > 0 {
        return invalid("number of slots for XP beside a scheme", config.express_slots.into());
    }
    if !(1..=31).contains(&config.ack_timeout) {
        return invalid("ACK timeout", config.ack_timeout.into());
    }
    Ok(())
}
