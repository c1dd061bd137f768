//! An end in the simulator: an engine on virtual time.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bowline_link::{Faults, LinkConfig};
use bowline_nic::{
    Access, AddressVector, Buffer, Completion, CqId, Event, MrKey, NicConfig, PdId, QpAttr, QpInit,
    QpState, QpType, RecvWr, Region as NicRegion, Remote, SendOp, SendWr, Sge, Time, TxCaps,
    UdDest, WindowBinding, WindowScope,
};
use bowline_sim::net::{Topology, pair};
use bowline_sim::{App, HostConfig, HostId, NicId, RxId, TxId, World};
use bowline_wire::Qpn;

use super::device::{inline_or_sges, path_attr, ready_attr};
use super::keys::Keys;
use crate::{
    Clock, Connection, End, Failure, Lab, Maker, MrId, Outcome, Piece, QpId, QpOptions, Region,
    Send,
};

/// Two engines and a cable of 10 Gbit/s and 5 µs, with these faults in both directions.
pub fn lab(seed: u64, ipv6: bool, faults: Faults) -> Lab {
    lab_with(seed, ipv6, faults, [None, None])
}

/// The same with sealed connections.
pub fn sealed_lab(seed: u64, ipv6: bool, faults: Faults) -> Lab {
    lab_with(seed, ipv6, faults, Keys::pair().map(Some))
}

fn lab_with(seed: u64, ipv6: bool, faults: Faults, keys: [Option<Keys>; 2]) -> Lab {
    let addrs = if ipv6 { Topology::ipv6(2) } else { Topology::ipv4(2) };
    let cable = LinkConfig {
        rate_bps: Some(10_000_000_000),
        delay_ns: 5_000,
        queue_bytes: 4 << 20,
        ecn: None,
    };
    let hosts = addrs.iter().enumerate().map(|(i, addr)| HostConfig {
        nics: vec![NicConfig::new(*addr, [i as u8 + 1; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 1024,
    });
    let topology = pair(seed, [addrs[0], addrs[1]], cable);
    let mut world = World::new(seed, topology, hosts.collect());
    for (from, to) in [(0, 1), (1, 0)] {
        let link = world.link_from(HostId(from), addrs[to]).expect("the two are connected");
        world.network_mut().link_mut(link).set_faults(faults);
    }
    let world = Rc::new(RefCell::new(world));
    let ends = [0, 1].map(|i| {
        let keys = keys[i].clone();
        let end: Box<dyn End> = Box::new(SimEnd::new(&world, NicId(i), addrs[i], keys));
        end
    });
    Lab::new(ends, Box::new(VirtualClock(world)))
}

struct SimEnd {
    world: Rc<RefCell<World>>,
    nic: NicId,
    addr: IpAddr,
    pd: PdId,
    regions: Vec<(MrKey, Arc<Buffer>)>,
    qps: Vec<SimQp>,
    events: Vec<Event>,
    /// Seals its connections.
    keys: Option<Keys>,
}

struct SimQp {
    qpn: Qpn,
    qp_type: QpType,
    send_cq: CqId,
    recv_cq: CqId,
}

impl SimEnd {
    fn new(world: &Rc<RefCell<World>>, nic: NicId, addr: IpAddr, keys: Option<Keys>) -> SimEnd {
        let pd = world.borrow_mut().nic_mut(nic).alloc_pd().expect("a new engine has room");
        let world = Rc::clone(world);
        let (regions, qps, events) = (Vec::new(), Vec::new(), Vec::new());
        SimEnd { world, nic, addr, pd, regions, qps, events, keys }
    }

    fn sge(&self, piece: Piece) -> Sge {
        let (key, buffer) = &self.regions[piece.region.0];
        Sge::new(*key, buffer.addr() + piece.offset as u64, piece.len as u32)
    }

    fn modify(&self, qp: QpId, attr: &QpAttr) -> Outcome {
        let mut world = self.world.borrow_mut();
        let now = world.now();
        world.nic_mut(self.nic).modify_qp(now, self.qps[qp.0].qpn, attr).map_err(failure)
    }

    fn take_events(&mut self) {
        let mut world = self.world.borrow_mut();
        while let Some(event) = world.poll_nic(self.nic).poll_event() {
            self.events.push(event);
        }
    }
}

impl End for SimEnd {
    fn addr(&self) -> IpAddr {
        self.addr
    }

    fn maker(&self) -> Maker {
        Maker::Bowline
    }

    fn register(&mut self, len: usize, access: Access) -> Outcome<Region> {
        let buffer = Buffer::new(len);
        let region = NicRegion::owned(Arc::clone(&buffer));
        let addr = region.addr();
        let mut world = self.world.borrow_mut();
        let nic = world.nic_mut(self.nic);
        let key = nic.register(self.pd, region, addr, access).map_err(failure)?;
        self.regions.push((key, buffer));
        Ok(Region { id: MrId(self.regions.len() - 1), addr, len, rkey: key.0 })
    }

    fn register_revocable(&mut self, _: QpId, len: usize) -> Outcome<Region> {
        self.register(len, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_INVALIDATE)
    }

    fn bind_window(&mut self, qp: QpId, wr_id: u64, piece: Piece) -> Outcome<Remote> {
        let (region, addr) = (self.regions[piece.region.0].0, self.sge(piece).addr);
        let mut world = self.world.borrow_mut();
        let now = world.now();
        let nic = world.nic_mut(self.nic);
        let key = nic.alloc_window(self.pd).map_err(failure)?.0 | 1;
        let (len, access) = (piece.len as u64, Access::REMOTE_WRITE);
        let scope = WindowScope::Qp;
        let bind = SendOp::BindWindow(WindowBinding { key, region, addr, len, access, scope });
        let wr = SendWr::new(wr_id, bind, &[]);
        nic.post_send(now, self.qps[qp.0].qpn, &wr).map_err(failure)?;
        Ok(Remote { addr, rkey: key })
    }

    fn free_window(&mut self, rkey: u32) -> Outcome {
        let mut world = self.world.borrow_mut();
        world.nic_mut(self.nic).dealloc_window(MrKey(rkey)).map_err(failure)
    }

    fn deregister(&mut self, region: MrId) -> Outcome {
        let key = self.regions[region.0].0;
        self.world.borrow_mut().nic_mut(self.nic).deregister(key).map_err(failure)
    }

    fn peek(&mut self, piece: Piece) -> Outcome<Vec<u8>> {
        Ok(self.regions[piece.region.0].1.to_vec(piece.offset, piece.len))
    }

    fn poke(&mut self, region: MrId, offset: usize, bytes: &[u8]) -> Outcome {
        self.regions[region.0].1.write_at(offset, bytes);
        Ok(())
    }

    fn create_qp(&mut self, options: &QpOptions) -> Outcome<(QpId, u32)> {
        let made = {
            let mut world = self.world.borrow_mut();
            let nic = world.nic_mut(self.nic);
            let send_cq = nic.create_cq(1024).map_err(failure)?;
            let recv_cq = nic.create_cq(1024).map_err(failure)?;
            let init = QpInit {
                recv_cq,
                max_send_wr: 128,
                max_recv_wr: 128,
                max_inline: 64,
                ..QpInit::new(options.qp_type, self.pd, send_cq)
            };
            let qpn = nic.create_qp(&init).map_err(failure)?;
            SimQp { qpn, qp_type: options.qp_type, send_cq, recv_cq }
        };
        let qpn = made.qpn;
        let id = QpId(self.qps.len());
        self.qps.push(made);
        let connected = options.qp_type.descriptor().connected;
        self.modify(
            id,
            &QpAttr {
                state: Some(QpState::Init),
                pkey_index: Some(0),
                port: Some(1),
                access: connected.then_some(options.access),
                qkey: (!connected).then_some(options.qkey),
                ..QpAttr::default()
            },
        )?;
        Ok((id, qpn.get()))
    }

    fn destroy_qp(&mut self, qp: QpId) -> Outcome {
        self.take_events();
        let qp = &self.qps[qp.0];
        let mut world = self.world.borrow_mut();
        let nic = world.nic_mut(self.nic);
        nic.destroy_qp(qp.qpn).map_err(failure)?;
        nic.destroy_cq(qp.send_cq).map_err(failure)?;
        nic.destroy_cq(qp.recv_cq).map_err(failure)
    }

    fn connect(&mut self, qp: QpId, connection: &Connection) -> Outcome {
        let SimQp { qp_type, qpn, .. } = self.qps[qp.0];
        if let Some(keys) = &self.keys
            && qp_type.descriptor().connected
        {
            let mut world = self.world.borrow_mut();
            let seal = keys.seal(qpn.get(), connection.qpn, world.now());
            world.nic_mut(self.nic).seal_qp(qpn, seal).map_err(failure)?;
        }
        self.modify(qp, &path_attr(qp_type, connection))?;
        self.modify(qp, &ready_attr(qp_type, connection))
    }

    fn fail(&mut self, qp: QpId) -> Outcome {
        self.modify(qp, &QpAttr { state: Some(QpState::Err), ..QpAttr::default() })
    }

    fn state(&mut self, qp: QpId) -> Outcome<QpState> {
        let world = self.world.borrow();
        let info = world.nic(self.nic).query_qp(self.qps[qp.0].qpn);
        info.map(|info| info.state).ok_or_else(|| Failure::new("no such queue pair"))
    }

    fn post_recv(&mut self, qp: QpId, wr_id: u64, into: Piece) -> Outcome {
        let sge = [self.sge(into)];
        let sges = if into.len == 0 { &[][..] } else { &sge };
        let mut world = self.world.borrow_mut();
        let nic = world.nic_mut(self.nic);
        nic.post_recv(self.qps[qp.0].qpn, &RecvWr::new(wr_id, sges)).map_err(failure)
    }

    fn post_send(&mut self, qp: QpId, send: &Send) -> Outcome {
        let bytes = if send.inline { self.peek(send.piece)? } else { Vec::new() };
        let sge = [self.sge(send.piece)];
        let wr = SendWr {
            payload: inline_or_sges(send, &bytes, &sge),
            flags: send.flags,
            ud: send.to.map(|to| UdDest {
                av: AddressVector::new(to.addr),
                qpn: Qpn::new(to.qpn),
                qkey: to.qkey,
            }),
            ..SendWr::new(send.wr_id, send.op, &[])
        };
        let mut world = self.world.borrow_mut();
        let now = world.now();
        world.nic_mut(self.nic).post_send(now, self.qps[qp.0].qpn, &wr).map_err(failure)
    }

    fn poll(&mut self, qp: QpId) -> Outcome<Vec<Completion>> {
        let mut found = Vec::new();
        let mut world = self.world.borrow_mut();
        let nic = world.poll_nic(self.nic);
        for cq in [self.qps[qp.0].send_cq, self.qps[qp.0].recv_cq] {
            let mut out = [Completion::default(); 64];
            let count = nic.poll_cq(cq, &mut out).map_err(failure)?;
            found.extend_from_slice(&out[..count]);
        }
        Ok(found)
    }

    fn arm_solicited(&mut self, qp: QpId) -> Outcome {
        let cq = self.qps[qp.0].recv_cq;
        self.world.borrow_mut().nic_mut(self.nic).arm_cq(cq, true).map_err(failure)
    }

    fn notified(&mut self, qp: QpId) -> Outcome<bool> {
        self.take_events();
        let notice = Event::CqNotify(self.qps[qp.0].recv_cq);
        let before = self.events.len();
        self.events.retain(|event| *event != notice);
        Ok(self.events.len() < before)
    }

    fn events(&mut self) -> Outcome<Vec<Event>> {
        self.take_events();
        Ok(std::mem::take(&mut self.events))
    }
}

struct VirtualClock(Rc<RefCell<World>>);

impl Clock for VirtualClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.borrow().now().as_nanos())
    }

    fn pass(&mut self, time: Duration) -> Outcome {
        let mut world = self.0.borrow_mut();
        let until: Time = world.now().plus_nanos(time.as_nanos() as u64);
        world.run_until(&mut Nobody, until);
        match world.violations().first() {
            Some(violation) => {
                Err(Failure::new(format!("the engine broke its contract: {}", violation.what)))
            }
            None => Ok(()),
        }
    }
}

/// An application that does nothing: the checks post and poll themselves, between advances of time.
struct Nobody;

impl App for Nobody {
    fn on_timer(&mut self, _: &mut World, _: u64) {}

    fn on_activity(&mut self, _: &mut World, _: NicId) -> bool {
        false
    }

    fn is_finished(&self, _: &World) -> bool {
        false
    }
}

fn failure(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}
