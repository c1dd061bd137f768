//! A group: its sender, its members, and what they post.

use core::net::IpAddr;

use bowline_multicast::plan::{GroupSpec, MemberSpec};
use bowline_multicast::{GroupKey, Merge, Origin, Place, Region, RootConfig};
use bowline_nic::{
    Access, Connect, CqId, Nic, QpInit, QpType, RecvWr, Remote, SendFlags, SendOp, SendWr, Sge,
    WcStatus,
};
use bowline_wire::{Psn, Qpn, ROCE_UDP_PORT};

use super::scenario::{GroupPlan, Kind, MemberPlan, MessagePlan};
use crate::check::pattern;
use crate::sdr_storm::memory::Memory;
use crate::world::{HostId, NicId, World};

/// Where the memory of a group begins, as its sender names it.
const GROUP_VA: u64 = 0x7000_0000_0000;
/// The key that its sender names.
const GROUP_KEY: u32 = 0x00ab_cdef;
/// The sender's timeout: 4.096 µs times 2 to this power, about 4 ms.
const TIMEOUT: u8 = 10;
/// How long a sender tries: once, and seven times more.
pub(super) const RETRIES_NS: u64 = 8 * (4096 << TIMEOUT);
/// Members ask to wait 20 µs for a receive.
const RNR_TIMER: u8 = 2;

/// A member's state in its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Has not joined yet.
    Waiting,
    /// Completions cover it.
    Active,
    /// Has left, or was evicted.
    Gone,
}

pub(super) struct Member {
    pub(super) plan: MemberPlan,
    pub(super) nic: NicId,
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
    pub(super) id: Qpn,
    /// A pad, and a slot for each message.
    pub(super) memory: Memory,
    pub(super) state: State,
    /// Its QP is gone.
    pub(super) is_dead: bool,
    /// It refuses requests.
    pub(super) is_broken: bool,
    /// The first request that it gets.
    pub(super) joined: usize,
    /// Receives that it may have posted by now, and those that it has.
    pub(super) allowed: usize,
    pub(super) posted: usize,
    /// Receives that have completed.
    pub(super) received: usize,
}

pub(super) struct Group<'a> {
    pub(super) index: usize,
    pub(super) plan: &'a GroupPlan,
    pub(super) nic: NicId,
    pub(super) qpn: Qpn,
    pub(super) cq: CqId,
    pub(super) source: Memory,
    pub(super) key: GroupKey,
    pub(super) members: Vec<Member>,
    epoch: u64,
    /// Requests that are due, posted, and completed.
    pub(super) due: usize,
    pub(super) posted: usize,
    pub(super) completed: usize,
    /// How the first failed request failed.
    pub(super) failed: Option<WcStatus>,
    /// A switch said that the group has failed.
    pub(super) failed_by_policy: bool,
}

/// The place of a message in a member's memory.
pub(super) fn place_of(message: usize) -> usize {
    message + 1
}

impl<'a> Group<'a> {
    pub(super) fn new(
        world: &mut World,
        (index, plan): (usize, &'a GroupPlan),
        key: GroupKey,
        ids: &[Qpn],
        seed: u64,
    ) -> Group<'a> {
        let lens: Vec<u64> = plan.messages.iter().map(|message| message.len.into()).collect();
        let nic = world.first_nic(HostId(plan.sender));
        let (qpn, cq, source) = make_end(world.nic_mut(nic), &lens, seed ^ index as u64);
        let members = plan.members.iter().zip(ids).enumerate().map(|(number, (member, id))| {
            let nic = world.first_nic(HostId(member.host));
            let lens: Vec<u64> = std::iter::once(member.pad.into()).chain(lens.clone()).collect();
            let seed = seed ^ (index as u64 + 1) << 32 ^ (number as u64 + 1) << 16;
            let (qpn, cq, memory) = make_end(world.nic_mut(nic), &lens, seed);
            Member {
                plan: *member,
                nic,
                qpn,
                cq,
                id: *id,
                memory,
                state: State::Waiting,
                is_dead: false,
                is_broken: false,
                joined: 0,
                allowed: if member.is_slow { 0 } else { usize::MAX },
                posted: 0,
                received: 0,
            }
        });
        let members = members.collect();
        let group = Group {
            index,
            plan,
            nic,
            qpn,
            cq,
            source,
            key,
            members,
            epoch: 0,
            due: 0,
            posted: 0,
            completed: 0,
            failed: None,
            failed_by_policy: false,
        };
        for message in 0..plan.messages.len() {
            group.source.write(message, &group.bytes_of(message, seed));
        }
        group
    }

    /// The bytes of a message.
    pub(super) fn bytes_of(&self, message: usize, seed: u64) -> Vec<u8> {
        let seed = seed ^ (self.index as u64 + 1) << 40 ^ (message as u64 + 1) << 20;
        pattern::message(seed, self.plan.messages[message].len as usize)
    }

    /// Connects the sender, to the group.
    pub(super) fn connect_sender(&self, world: &mut World) {
        let (now, peer) = (world.now(), self.peer(world));
        let connect = Connect {
            path_mtu: self.plan.mtu,
            sq_psn: Psn::new(self.plan.first_psn),
            timeout: TIMEOUT,
            ..Connect::new(peer, self.key.id)
        };
        world.nic_mut(self.nic).connect(now, self.qpn, &connect).expect("legal transitions");
    }

    /// The address that the sender believes to be its peer: its first member's.
    fn peer(&self, world: &World) -> IpAddr {
        world.addr_of(HostId(self.members[0].plan.host))
    }

    /// The multicast address that reaches all members.
    pub(super) fn trunk(&self) -> Option<IpAddr> {
        let last = self.index as u8 + 1;
        let addr = match self.key.sender {
            IpAddr::V4(_) => IpAddr::from([239, 192, 0, last]),
            IpAddr::V6(_) => IpAddr::from([0xff15, 0, 0, 0, 0, 0, 0, last.into()]),
        };
        self.plan.has_trunk.then_some(addr)
    }

    /// Connects a member, which gets the requests that are posted from now on, and posts its
    /// receives.
    pub(super) fn connect_member(&mut self, world: &mut World, member: usize) {
        let psn = self.psn_of(self.posted);
        let (now, joined) = (world.now(), self.posted);
        let member = &mut self.members[member];
        let connect = Connect {
            path_mtu: self.plan.mtu,
            rq_psn: psn,
            min_rnr_timer: RNR_TIMER,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            ..Connect::new(self.key.sender, member.id)
        };
        world.nic_mut(member.nic).connect(now, member.qpn, &connect).expect("legal transitions");
        member.joined = joined;
        member.state = State::Active;
        member.post_receives(world.nic_mut(member.nic), &self.plan.messages);
    }

    /// The first PSN of a message.
    pub(super) fn psn_of(&self, message: usize) -> Psn {
        let mtu = self.plan.mtu.bytes();
        let packets = |message: &MessagePlan| message.len.div_ceil(mtu).max(1);
        let before: u32 = self.plan.messages[..message].iter().map(packets).sum();
        Psn::new(self.plan.first_psn).add(before)
    }

    /// The group's tables for the switches, in a new epoch. Only the first tables say where PSNs
    /// begin: a switch without tables later has lost its state.
    pub(super) fn spec(&mut self, world: &World, merge: Option<&'static dyn Merge>) -> GroupSpec {
        self.epoch += 1;
        let last = self.plan.messages.len() - 1;
        let end = self.source.at(last).addr + u64::from(self.plan.messages[last].len);
        let region = Region { va: GROUP_VA, len: end - self.source.at(0).addr, rkey: GROUP_KEY };
        let active = self.members.iter().filter(|member| member.state == State::Active);
        let members = active.map(|member| {
            let place = member.memory.at(place_of(0));
            MemberSpec {
                addr: world.addr_of(HostId(member.plan.host)),
                qpn: member.qpn,
                id: member.id,
                places: vec![Place { va: place.addr, rkey: place.key.0 }],
            }
        });
        let peer = Origin { addr: self.peer(world), port: ROCE_UDP_PORT };
        let first_psn = (self.epoch == 1).then_some(Psn::new(self.plan.first_psn));
        let root = RootConfig {
            mtu: self.plan.mtu.bytes(),
            policy: self.plan.policy,
            ..RootConfig::new(self.qpn, peer, self.key.sender, first_psn)
        };
        let root = if self.plan.as_in_the_paper { root.as_in_the_paper() } else { root };
        let root = RootConfig { merge: merge.unwrap_or(root.merge), ..root };
        let (key, epoch, members) = (self.key, self.epoch, members.collect());
        GroupSpec { key, epoch, regions: vec![region], members, root }
    }

    /// Posts the next request.
    pub(super) fn post(&mut self, world: &mut World) -> Result<(), String> {
        let (now, message) = (world.now(), self.posted);
        let plan = self.plan.messages[message];
        let source = self.source.at(message);
        let addr = GROUP_VA + (source.addr - self.source.at(0).addr);
        let remote = Remote { addr, rkey: GROUP_KEY };
        let end = self.source.at(self.plan.messages.len() - 1).addr - self.source.at(0).addr;
        let op = match plan.kind {
            Kind::Send(None) => SendOp::Send,
            Kind::Send(Some(imm)) => SendOp::SendImm(imm),
            Kind::Write(None) => SendOp::Write(remote),
            Kind::Write(Some(imm)) => SendOp::WriteImm(remote, imm),
            Kind::Read => SendOp::Read(remote),
            Kind::FetchAdd => {
                SendOp::FetchAdd { remote: Remote { addr: GROUP_VA, ..remote }, add: 1 }
            }
            // Its last bytes are out of bounds.
            Kind::WriteBeyond => SendOp::Write(Remote { addr: GROUP_VA + end + 4, ..remote }),
        };
        let sges = [Sge::new(source.key, source.addr, plan.len)];
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(message as u64, op, &sges) };
        self.posted += 1;
        let posted = world.nic_mut(self.nic).post_send(now, self.qpn, &wr);
        posted.map_err(|error| format!("group {} request {message}: {error}", self.index))
    }

    /// Whether it has nothing more to do.
    pub(super) fn is_finished(&self) -> bool {
        self.failed.is_some() || self.completed == self.plan.messages.len()
    }
}

impl Member {
    /// The messages that take its receives, from the first that it gets.
    pub(super) fn receivable<'m>(
        &self,
        messages: &'m [MessagePlan],
    ) -> impl Iterator<Item = (usize, &'m MessagePlan)> + use<'m> {
        let taking = messages.iter().enumerate().skip(self.joined);
        taking.filter(|(_, message)| message.kind.takes_receive())
    }

    /// Posts the receives that it may have posted by now.
    pub(super) fn post_receives(&mut self, nic: &mut Nic, messages: &[MessagePlan]) {
        if self.is_dead || self.state != State::Active {
            return;
        }
        let due = self.receivable(messages).take(self.allowed).skip(self.posted);
        for (index, message) in due {
            let place = self.memory.at(place_of(index));
            let sges = [Sge::new(place.key, place.addr, message.len)];
            // A WRITE has its own slot, and needs a receive only for its immediate.
            let used = if let Kind::Write(_) = message.kind { 0 } else { 1 };
            let wr = RecvWr::new(index as u64, &sges[..used]);
            let posted = nic.post_recv(self.qpn, &wr);
            assert!(posted.is_ok() || self.is_broken, "the queue has room");
            self.posted += 1;
        }
    }
}

fn make_end(nic: &mut Nic, lens: &[u64], seed: u64) -> (Qpn, CqId, Memory) {
    let pd = nic.alloc_pd().expect("within the limits");
    let cq = nic.create_cq(128).expect("within the limits");
    let qpn = nic.create_qp(&QpInit::new(QpType::Rc, pd, cq)).expect("within the limits");
    (qpn, cq, Memory::new(nic, pd, lens, seed))
}
