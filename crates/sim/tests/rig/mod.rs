//! Hosts that WRITE to each other, using only the public API.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_link::LinkConfig;
use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, MrKey, Mtu, NicConfig, PdId, QpInit, QpType, Region,
    Remote, SendOp, SendWr, Sge, Time, TxCaps, WcStatus,
};
use bowline_sim::net::Topology;
use bowline_sim::{App, HostConfig, NicId, RxId, TxId, World};
use bowline_wire::Qpn;

pub(crate) const CABLE: LinkConfig =
    LinkConfig { rate_bps: Some(100_000_000_000), delay_ns: 500, queue_bytes: 1 << 20, ecn: None };

/// A connection's end, and the memory beside it.
pub(crate) struct End {
    pub(crate) host: usize,
    pub(crate) qpn: Qpn,
    cq: CqId,
    pub(crate) key: MrKey,
    pub(crate) buffer: Arc<Buffer>,
    writes: Option<Writes>,
}

struct Writes {
    remote: Remote,
    bytes: u32,
    posted: u32,
    done: u32,
    count: u32,
}

/// A world in which some ends WRITE until they are done.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) addrs: Vec<IpAddr>,
    pds: Vec<PdId>,
    pub(crate) app: Writers,
}

#[derive(Default)]
pub(crate) struct Writers {
    pub(crate) ends: Vec<End>,
    pub(crate) failed: bool,
}

const DEPTH: u32 = 16;

impl Rig {
    /// Hosts at the first ports of a topology, which these addresses belong to.
    pub(crate) fn new(topology: Topology, addrs: &[IpAddr]) -> Rig {
        let configs = addrs.iter().enumerate().map(|(i, addr)| HostConfig {
            nics: vec![NicConfig::new(*addr, [i as u8 + 1; 32])],
            tx_caps: TxCaps::SINGLE,
            tx_batch: 64,
            tx_id: TxId::Burst,
            rx_id: RxId::Known,
            coalesce_ns: 0,
            ring_packets: 0,
        });
        let mut world = World::new(1, topology, configs.collect());
        let alloc = |host| world.nic_mut(NicId(host)).alloc_pd().expect("a new engine has room");
        let pds = (0..addrs.len()).map(alloc).collect();
        Rig { world, addrs: addrs.to_vec(), pds, app: Writers::default() }
    }

    /// An RC QP with `bytes` of memory; returns the index of its end.
    pub(crate) fn end(&mut self, host: usize, bytes: usize) -> usize {
        let (pd, engine) = (self.pds[host], self.world.nic_mut(NicId(host)));
        let cq = engine.create_cq(DEPTH).expect("room");
        let init = QpInit { max_send_wr: DEPTH, ..QpInit::new(QpType::Rc, pd, cq) };
        let qpn = engine.create_qp(&init).expect("room");
        let buffer = Buffer::new(bytes);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = Region::owned(Arc::clone(&buffer));
        let key = engine.register(pd, region, 0, access).expect("room");
        self.app.ends.push(End { host, qpn, cq, key, buffer, writes: None });
        self.app.ends.len() - 1
    }

    /// Makes an end talk to a QP, wherever that is.
    pub(crate) fn connect(&mut self, end: usize, addr: IpAddr, qpn: Qpn) {
        let (now, end) = (self.world.now(), &self.app.ends[end]);
        let connect = Connect { path_mtu: Mtu::B1024, timeout: 10, ..Connect::new(addr, qpn) };
        let engine = self.world.nic_mut(NicId(end.host));
        engine.connect(now, end.qpn, &connect).expect("legal transitions");
    }

    /// Connects two new ends, one at each host; the first is to write.
    pub(crate) fn pair(&mut self, from: usize, to: usize, bytes: u32, count: u32) -> [usize; 2] {
        let [a, b] = [from, to].map(|host| self.end(host, bytes as usize));
        let (addrs, qpns) = (self.addrs.clone(), [a, b].map(|end| self.app.ends[end].qpn));
        self.connect(a, addrs[to], qpns[1]);
        self.connect(b, addrs[from], qpns[0]);
        self.write(a, self.app.ends[b].key, bytes, count);
        [a, b]
    }

    /// Makes an end write its memory this many times, to the memory of that key.
    pub(crate) fn write(&mut self, end: usize, key: MrKey, bytes: u32, count: u32) {
        let remote = Remote { addr: 0, rkey: key.0 };
        self.app.ends[end].writes = Some(Writes { remote, bytes, posted: 0, done: 0, count });
    }

    /// Runs until all is written, for a second of virtual time at most.
    pub(crate) fn run(&mut self) {
        self.world.run_until(&mut self.app, Time::from_millis(1_000));
        assert!(self.world.violations().is_empty(), "{:?}", self.world.violations());
        assert!(!self.app.failed, "a WRITE failed");
        assert!(self.app.is_finished(&self.world), "not all WRITEs are done");
    }
}

impl App for Writers {
    fn on_timer(&mut self, _world: &mut World, _token: u64) {}

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let mut any = false;
        for end in self.ends.iter_mut().filter(|end| end.host == nic.0) {
            let Some(writes) = &mut end.writes else { continue };
            let mut polled = [Completion::default(); DEPTH as usize];
            let count = world.poll_nic(nic).poll_cq(end.cq, &mut polled).expect("it exists");
            self.failed |= polled[..count].iter().any(|c| c.status != WcStatus::Success);
            writes.done += count as u32;
            any |= count > 0;
            while writes.posted < writes.count && writes.posted - writes.done < DEPTH {
                let sges = [Sge::new(end.key, 0, writes.bytes)];
                let wr = SendWr::new(writes.posted.into(), SendOp::Write(writes.remote), &sges);
                let now = world.now();
                world.nic_mut(nic).post_send(now, end.qpn, &wr).expect("the queue has room");
                writes.posted += 1;
                any = true;
            }
        }
        any && !self.failed
    }

    fn is_finished(&self, _world: &World) -> bool {
        let is_done = |writes: &Writes| writes.done == writes.count;
        self.failed || self.ends.iter().filter_map(|end| end.writes.as_ref()).all(is_done)
    }
}
