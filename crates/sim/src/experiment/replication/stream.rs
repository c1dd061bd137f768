//! One stream: its queue pairs, and the handling of each message.

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_multicast::plan::{GroupSpec, IdPool, MemberSpec};
use bowline_multicast::{GroupKey, Origin, Place, Region as GroupRegion, RootConfig};
use bowline_nic::{
    Access, Buffer, Completion, Connect, ControllerFactory, CqId, MrKey, QpInit, QpType, RecvWr,
    Region, Remote, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus,
};
use bowline_wire::{Psn, Qpn, ROCE_UDP_PORT};

use super::{ReplicationConfig, StreamOutcome, StreamPlan, Way};
use crate::multicast_storm::Control;
use crate::world::{HostId, NicId, World};

/// A queue pair's role in its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It sends messages: the `n`-th leg's.
    Sender(usize),
    /// It gets the messages of the `n`-th leg.
    Receiver(usize),
}

/// A queue pair of a stream.
pub(super) struct End {
    pub(super) host: usize,
    pub(super) cq: CqId,
    role: Role,
    qpn: Qpn,
    key: MrKey,
}

pub(super) struct Stream {
    pub(super) plan: StreamPlan,
    pub(super) ends: Vec<End>,
    /// Where a leg writes to.
    remotes: Vec<Remote>,
    /// Messages that each leg has completed, if all legs start at the sender.
    completed: Vec<u64>,
    posted: u64,
    posted_at: VecDeque<u64>,
    pub(super) is_started: bool,
    pub(super) outcome: StreamOutcome,
}

impl Stream {
    pub(super) fn connect(
        world: &mut World,
        config: &ReplicationConfig,
        plan: StreamPlan,
        factory: Option<&Arc<dyn ControllerFactory>>,
        (control, ids): (&Control, &mut IdPool),
    ) -> Stream {
        let legs: Vec<(usize, Vec<usize>)> = match plan.way {
            Way::Group => vec![(plan.from, plan.to.clone())],
            Way::FanOut => plan.to.iter().map(|to| (plan.from, vec![*to])).collect(),
            Way::Chain => {
                let senders = [plan.from].into_iter().chain(plan.to.iter().copied());
                senders.zip(&plan.to).map(|(from, to)| (from, vec![*to])).collect()
            }
        };
        let completed = vec![0; legs.len()];
        let outcome = StreamOutcome { bytes: plan.bytes, ..StreamOutcome::default() };
        let mut stream = Stream {
            plan,
            ends: Vec::new(),
            remotes: Vec::new(),
            completed,
            posted: 0,
            posted_at: VecDeque::new(),
            is_started: false,
            outcome,
        };
        for (leg, (from, to)) in legs.into_iter().enumerate() {
            let sender = stream.make_end(world, from, Role::Sender(leg));
            let receivers: Vec<usize> =
                to.iter().map(|to| stream.make_end(world, *to, Role::Receiver(leg))).collect();
            match stream.plan.way {
                Way::Group => {
                    stream.connect_group(world, config, (sender, &receivers), (control, ids));
                }
                Way::FanOut | Way::Chain => {
                    stream.connect_pair(world, config, sender, receivers[0]);
                }
            }
            let (qpn, now) = (stream.ends[sender].qpn, world.now());
            let nic = world.nic_mut(NicId(from));
            nic.set_rate_controller(now, qpn, factory.cloned()).expect("the QP exists");
        }
        stream
    }

    /// Makes a queue pair with memory for one message, and receives for as many as can be in
    /// flight.
    fn make_end(&mut self, world: &mut World, host: usize, role: Role) -> usize {
        let nic = world.nic_mut(NicId(host));
        let pd = nic.alloc_pd().expect("room");
        let region = Region::owned(Buffer::new(self.plan.bytes as usize));
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = nic.register(pd, region, 0, access).expect("room");
        let cq = nic.create_cq(8 * self.plan.depth).expect("room");
        let init = QpInit {
            max_send_wr: 2 * self.plan.depth,
            max_recv_wr: 2 * self.plan.depth,
            ..QpInit::new(QpType::Rc, pd, cq)
        };
        let qpn = nic.create_qp(&init).expect("room");
        self.ends.push(End { host, cq, role, qpn, key });
        self.ends.len() - 1
    }

    fn connect_pair(
        &mut self,
        world: &mut World,
        config: &ReplicationConfig,
        sender: usize,
        receiver: usize,
    ) {
        let (now, path_mtu, timeout) = (world.now(), config.mtu, config.timeout);
        for (end, peer) in [(sender, receiver), (receiver, sender)] {
            let (end, peer) = (&self.ends[end], &self.ends[peer]);
            let dst = world.addr_of(HostId(peer.host));
            let connect = Connect { path_mtu, timeout, ..Connect::new(dst, peer.qpn) };
            world.nic_mut(NicId(end.host)).connect(now, end.qpn, &connect).expect("legal");
        }
        for end in [sender, receiver] {
            for _ in 0..2 * self.plan.depth {
                self.post_receive(world, end);
            }
        }
        self.remotes.push(Remote { addr: 0, rkey: self.ends[receiver].key.0 });
    }

    fn connect_group(
        &mut self,
        world: &mut World,
        config: &ReplicationConfig,
        (sender, receivers): (usize, &[usize]),
        (control, ids): (&Control, &mut IdPool),
    ) {
        let now = world.now();
        let addr_of = |world: &World, end: &End| world.addr_of(HostId(end.host));
        let from = addr_of(world, &self.ends[sender]);
        let first = addr_of(world, &self.ends[receivers[0]]);
        let key = GroupKey { sender: from, id: ids.take().expect("few groups") };
        let mut members = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            let (end, id) = (&self.ends[*receiver], ids.take().expect("few members"));
            let connect = Connect { path_mtu: config.mtu, ..Connect::new(from, id) };
            world.nic_mut(NicId(end.host)).connect(now, end.qpn, &connect).expect("legal");
            let places = vec![Place { va: 0, rkey: end.key.0 }];
            members.push(MemberSpec { addr: addr_of(world, end), qpn: end.qpn, id, places });
        }
        let (qpn, rkey) = (self.ends[sender].qpn, self.ends[receivers[0]].key.0);
        let (path_mtu, timeout) = (config.mtu, config.timeout);
        let connect = Connect { path_mtu, timeout, ..Connect::new(first, key.id) };
        world.nic_mut(NicId(self.plan.from)).connect(now, qpn, &connect).expect("legal");
        let peer = Origin { addr: first, port: ROCE_UDP_PORT };
        let root = RootConfig {
            mtu: config.mtu.bytes(),
            cnp_interval_ns: config.cnp_interval_ns,
            ..RootConfig::new(qpn, peer, from, Some(Psn::new(0)))
        };
        let regions = vec![GroupRegion { va: 0, len: self.plan.bytes.into(), rkey }];
        let spec = GroupSpec { key, epoch: 1, regions, members, root };
        let node = world.node_of(HostId(self.plan.from));
        control.install(world, node, &spec, None).expect("a right table");
        self.remotes.push(Remote { addr: 0, rkey });
    }

    pub(super) fn start(&mut self, world: &mut World) {
        self.is_started = true;
        self.outcome.started_ns = world.now().as_nanos();
        self.post_more(world);
    }

    /// Keeps as many messages in flight as the plan says.
    fn post_more(&mut self, world: &mut World) {
        let limit = self.plan.messages.unwrap_or(u64::MAX);
        while self.posted < limit && self.posted_at.len() < self.plan.depth as usize {
            self.posted += 1;
            self.posted_at.push_back(world.now().as_nanos());
            match self.plan.way {
                Way::Group | Way::FanOut => {
                    (0..self.remotes.len()).for_each(|leg| self.write(world, leg))
                }
                Way::Chain => self.write(world, 0),
            }
        }
    }

    fn end_of(&self, role: Role) -> usize {
        self.ends.iter().position(|end| end.role == role).expect("every leg has both ends")
    }

    /// Sends a message over a leg.
    fn write(&self, world: &mut World, leg: usize) {
        let end = &self.ends[self.end_of(Role::Sender(leg))];
        let sges = [Sge::new(end.key, 0, self.plan.bytes)];
        let op = match self.plan.way {
            // A host that forwards a message must be notified of it.
            Way::Chain => SendOp::WriteImm(self.remotes[leg], 0),
            Way::Group | Way::FanOut => SendOp::Write(self.remotes[leg]),
        };
        self.post(world, end, op, &sges);
    }

    /// Tells the sender of a leg that everybody from there on has the next message.
    fn acknowledge(&self, world: &mut World, leg: usize) {
        let end = &self.ends[self.end_of(Role::Receiver(leg))];
        self.post(world, end, SendOp::SendImm(0), &[]);
    }

    fn post(&self, world: &mut World, end: &End, op: SendOp, sges: &[Sge]) {
        let now = world.now();
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, op, sges) };
        let posted = world.nic_mut(NicId(end.host)).post_send(now, end.qpn, &wr);
        posted.expect("the queue has room");
    }

    fn post_receive(&self, world: &mut World, end: usize) {
        let end = &self.ends[end];
        let posted = world.nic_mut(NicId(end.host)).post_recv(end.qpn, &RecvWr::new(0, &[]));
        posted.expect("the queue has room");
    }

    pub(super) fn on_completion(&mut self, world: &mut World, part: usize, done: &Completion) {
        assert_eq!(done.status, WcStatus::Success, "no request fails");
        let is_receive = matches!(done.opcode, WcOpcode::Recv | WcOpcode::RecvWriteImm);
        if is_receive {
            self.post_receive(world, part);
        }
        let last = self.remotes.len() - 1;
        match (self.ends[part].role, is_receive, self.plan.way) {
            // A message has arrived: forward it, or acknowledge it back along the chain.
            (Role::Receiver(leg), true, Way::Chain) if leg == last => self.acknowledge(world, leg),
            (Role::Receiver(leg), true, Way::Chain) => self.write(world, leg + 1),
            (Role::Sender(0), true, Way::Chain) => self.done(world),
            (Role::Sender(leg), true, Way::Chain) => self.acknowledge(world, leg - 1),
            (Role::Sender(leg), false, Way::Group | Way::FanOut) => {
                let before = self.completed.iter().min().copied();
                self.completed[leg] += 1;
                if self.completed.iter().min().copied() > before {
                    self.done(world);
                }
            }
            _ => {}
        }
    }

    /// All receivers have the oldest message.
    fn done(&mut self, world: &mut World) {
        let now = world.now().as_nanos();
        let posted = self.posted_at.pop_front().expect("a message is under way");
        self.outcome.messages.push((now, posted));
        if self.plan.messages == Some(self.outcome.messages.len() as u64) {
            self.outcome.ended_ns = Some(now);
        }
        self.post_more(world);
    }
}
