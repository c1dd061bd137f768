//! A rank of a group on a NIC: an engine, queue pairs to each other rank, and staging rings.

mod casts;
mod drive;
mod express;
mod info;
mod memory;
mod nack;
mod sdr;

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

/// How a group behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Bytes of a message at most, a multiple of 64. The same on all ranks.
    pub slot_bytes: u32,
    /// Messages of one peer that wait here at most. The same on all ranks.
    pub slots: u16,
    /// The same for messages of operations with bounds, which need an XP queue pair to each peer:
    /// 16 at most, and 0 if there are none. The same on all ranks.
    pub express_slots: u16,
    /// There is room for a multicast group: see [`Group::open_casts`]. The same on all ranks.
    pub casts: bool,
    /// What carries messages instead of RC, on long links. Such a group has no slots for XP. The
    /// same on all ranks.
    pub scheme: Option<SdrScheme>,
    /// How long packets over XP may be overtaken by others before they count as lost.
    pub reorder_ns: u64,
    /// Up to this length a message is copied into its work request.
    pub inline_bytes: u32,
    /// How long to wait for a rank before it is asked for a sign of life, and again.
    pub heartbeat_ns: u64,
    /// Local ACK timeout of the queue pairs: 4.096 µs times 2 to this power. A rank that does not
    /// acknowledge for eight times as long has failed.
    pub ack_timeout: u8,
    /// How long an operation may take.
    pub limit_ns: u64,
}

impl Default for GroupConfig {
    /// A ring of 1 MiB for each peer; a dead rank is found within 2.7 s; 5 minutes for an
    /// operation.
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
    /// How long a rank that does not answer is waited for.
    fn silence_ns(&self) -> u64 {
        (4_096 << self.ack_timeout) * 8
    }
}

/// Why a group could not be made, connected or given an operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// An object of the NIC.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A state of a queue pair.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A connection over one of SDR's schemes.
    #[error(transparent)]
    Sdr(#[from] SdrError),
    /// The peer's messages travel otherwise.
    #[error("rank {0} has another scheme or none: all ranks of a group need the same")]
    OtherScheme(Rank),
    /// Not a rank of the group, or this one.
    #[error("rank {0} is not another rank of the group")]
    NoPeer(Rank),
    /// The peer's ring is not like ours.
    #[error(
        "rank {rank} has {slots} slots of {slot_bytes} bytes, and {express_slots} for XP: \
         all ranks of a group need the same configuration"
    )]
    Unlike {
        /// The rank.
        rank: Rank,
        /// Its slots.
        slots: u16,
        /// Its slots for operations with bounds.
        express_slots: u16,
        /// Their bytes.
        slot_bytes: u32,
    },
    /// A message to all without a multicast group.
    #[error(
        "algorithm `multicast` needs multicast groups, and the ranks have none: ask for them when \
         ranks meet (`bowline collective --multicast`), or take another algorithm"
    )]
    NoCasts,
    /// Bounds without the queue pairs for them.
    #[error("the group has no XP queue pairs: give it some to bound an operation")]
    NoExpress,
    /// A setting that cannot be.
    #[error("invalid {what} of a group: {value}")]
    Config {
        /// Which.
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
    /// The ring that it writes: slots, those for XP, and places for what it misses.
    ring: Arc<Buffer>,
    key: MrKey,
    /// What the peer calls it.
    rkey: MrKey,
    express: Option<ExpressLink>,
    /// What carries messages, if RC does not.
    sdr: Option<Box<SdrLink>>,
    /// Its own end.
    remote: Option<LinkInfo>,
}

/// A rank of a group on a NIC.
///
/// Make it, tell each other rank its [`offer`](Group::offer), [`connect`](Group::connect) each with
/// theirs, then [`submit`](Group::submit) operations. Call [`drive`](Group::drive) whenever the NIC
/// has done something, and at [`poll_timeout`](Group::poll_timeout).
#[derive(Debug)]
pub struct Group {
    engine: Engine,
    config: GroupConfig,
    pd: PdId,
    cq: CqId,
    mtu: Mtu,
    /// One for each rank but this.
    links: Vec<Option<Link>>,
    casts: Option<Casts>,
    /// Operations that are not over, oldest first.
    pending: VecDeque<Pending>,
    /// The last one is in use.
    scratch: Vec<Scratch>,
    /// There may be more to do than the last turn has done.
    busy: bool,
}

impl Group {
    /// Makes the queue pairs and rings of a rank. `psn` gives a random number for each connection.
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
            reorder_ns: config.reorder_ns,
            max_posted: max_posted(&config) as usize,
            // SDR sends from where the bytes are.
            inline_bytes: if config.scheme.is_some() { 0 } else { config.inline_bytes as usize },
            heartbeat_ns: config.heartbeat_ns,
            limit_ns: config.limit_ns,
        });
        // For each peer: what it sends, what is sent to it, and what both send without payload.
        let each = wr_depth(&config) + 1 + express::wr_depth(&config);
        let depth = (ranks.max(2) - 1).saturating_mul(2 * each);
        // The same for messages to all, and those of each rank.
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
            let link = (peer != rank).then(|| group.link(nic, [psn(), psn()].map(Psn::new)));
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

    fn link(&self, nic: &mut dyn Rnic, [psn, token]: [Psn; 2]) -> Result<Link, GroupError> {
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
        // Peers count from its start: they need not know where it is.
        let key = nic.register(self.pd, Region::owned(Arc::clone(&ring)), 0, access)?;
        let qpn = nic.create_qp(&init).inspect_err(|_| {
            // It was registered above.
            let _ = nic.deregister(key);
        })?;
        let express = self.express_link(nic, token).inspect_err(|_| {
            let _ = nic.destroy_qp(qpn);
            let _ = nic.deregister(key);
        })?;
        let sdr = self.sdr_link(nic, key).inspect_err(|_| {
            let _ = nic.destroy_qp(qpn);
            let _ = nic.deregister(key);
        })?;
        let rkey = nic.rkey(key);
        Ok(Link { qpn, psn, ring, key, rkey, express, sdr, remote: None })
    }

    /// What a peer needs to know to connect to this rank.
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
                qpn: express.qpn,
                token: express.token,
                slots: self.config.express_slots,
            }),
            sdr: link.sdr.as_ref().map(|sdr| SdrEnd::new(&sdr.info())).transpose()?,
        })
    }

    /// Chooses what finds the rate to a peer out, before it is connected: for SDR's schemes, and
    /// for XP. RC keeps to its window.
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
            let controllers = control.and_then(|control| control.factory());
            nic.set_rate_controller(now, express.qpn, controllers)?;
        }
        Ok(())
    }

    /// Seals all packets to and from a peer, before it is connected. Each queue pair takes what
    /// `next` gives, in an order that is the same at both ends.
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
            nic.seal_qp(express.qpn, next())?;
        }
        if let Some(sdr) = &mut link.sdr {
            sdr.seal(nic, next)?;
        }
        Ok(())
    }

    /// Connects to a peer at an address. Nothing may be submitted before all peers have done so.
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
            // A receive is posted again as soon as its message is taken.
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

    /// Adds an operation behind all others. `memory` must not be touched before it is over.
    pub fn submit(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        schedule: Arc<Schedule>,
        memory: Memory,
    ) -> Result<OpId, GroupError> {
        self.submit_with(nic, now, schedule, memory, None)
    }

    /// As [`submit`](Group::submit), for an operation that may have bounds. Its request must have
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

    /// The next operation that is over.
    pub fn poll_done(&mut self) -> Option<(OpId, Result<Report, Failure>)> {
        let (id, result) = self.engine.poll_done()?;
        self.pending.retain(|pending| pending.id != id);
        Some((id, result))
    }

    /// Why the group has failed, if it has.
    pub fn failure(&self) -> Option<Failure> {
        self.engine.failure()
    }

    /// When to drive it if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.busy {
            return Some(Time::ZERO);
        }
        let sdr = self.links.iter().flatten().filter_map(|link| link.sdr.as_ref()?.poll_timeout());
        sdr.chain(self.engine.poll_timeout()).min()
    }

    /// Says good-bye to all other ranks.
    pub fn leave(&mut self, nic: &mut dyn Rnic, now: Time) {
        self.engine.leave(now);
        self.drive(nic, now);
    }

    /// Whether all that was sent has arrived, as far as it can: work requests use no memory any
    /// more.
    pub fn is_quiet(&self) -> bool {
        self.engine.is_quiet()
    }

    /// Ends all connections: nothing of this group reads or writes memory from here on.
    pub fn close(&mut self, nic: &mut dyn Rnic, now: Time) {
        let error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        for qpn in self.casts.iter().flat_map(Casts::qpns) {
            let _ = nic.modify_qp(now, qpn, &error);
        }
        for link in self.links.iter_mut().flatten() {
            // One that was never connected is in no state to fail, and sends nothing.
            let _ = nic.modify_qp(now, link.qpn, &error);
            if let Some(express) = link.express {
                let _ = nic.modify_qp(now, express.qpn, &error);
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
            // They are ours, and nobody else removes them.
            let _ = nic.destroy_qp(link.qpn);
            if let Some(express) = link.express {
                let _ = nic.destroy_qp(express.qpn);
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

/// Work requests to a peer that are not over: a message for each slot and a credit for each two,
/// and as many again whose acknowledgements come later than the credits.
fn max_posted(config: &GroupConfig) -> u32 {
    3 * u32::from(config.slots) + 2
}

/// Work requests of each kind that a queue pair has room for: besides those that wait for room,
/// credits of both kinds, and the last message of all with one before it.
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
