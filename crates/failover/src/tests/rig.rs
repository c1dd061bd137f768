//! The two hosts and the wires between them.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, Event, FrameMeta, IpId, MrKey, Nic, NicConfig, PdId,
    QpInit, QpState, QpType, RecvWr, Region, Remote, SendFlags, SendOp, SendWr, Sge, Time, TxBatch,
    TxCaps, WcStatus,
};
use bowline_wire::{Psn, Qpn};

use crate::agent::{Agent, ConnectionId};
use crate::config::{Config, Mode};
use crate::message::{Kind, Message};
use crate::nic::RailNic;
use crate::rail::{Rail, Rails};
use crate::report::Report;

pub(super) const SECOND: u64 = 1_000_000_000;
const BASE: u64 = 0x1_0000;
/// One-way delay.
pub(super) const DELAY_NS: u64 = 10_000;

pub(super) fn addr(host: usize, rail: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, rail as u8, 0, 1 + host as u8))
}

struct Nics<'a> {
    nics: &'a mut [Nic; 2],
    now: Time,
}

impl Rails for Nics<'_> {
    fn with(&mut self, rail: Rail, f: &mut dyn FnMut(&mut dyn RailNic, Time)) {
        f(&mut self.nics[rail.index()], self.now);
    }
}

struct Host {
    nics: [Nic; 2],
    cqs: [CqId; 2],
    qpns: [Qpn; 2],
    key: MrKey,
    pds: [PdId; 2],
    buffer: Arc<Buffer>,
    agent: Agent,
    connection: ConnectionId,
    completions: Vec<Completion>,
    reports: Vec<Report>,
}

struct Frame {
    host: usize,
    rail: usize,
    meta: FrameMeta,
    bytes: Vec<u8>,
}

/// Two hosts, two rails.
pub(super) struct Rig {
    hosts: [Host; 2],
    pub(super) now: Time,
    /// Frames in flight, by time of arrival.
    wire: BTreeMap<(Time, u64), Frame>,
    sent: u64,
    /// Whether the wire from each host, on each rail, is cut.
    cut: [[bool; 2]; 2],
    /// One frame in this many is lost, and one in this many is late; 0 for none.
    pub(super) loss: u64,
    pub(super) late: u64,
    random: u64,
}

impl Host {
    fn new(host: usize, mode: Mode, now: Time) -> Host {
        let mut nics: [Nic; 2] = core::array::from_fn(|rail| {
            Nic::new(NicConfig::new(addr(host, rail), [(host * 2 + rail) as u8; 32])).unwrap()
        });
        let pds: [PdId; 2] = core::array::from_fn(|rail| nics[rail].alloc_pd().unwrap());
        let cqs: [CqId; 2] = core::array::from_fn(|rail| nics[rail].create_cq(4096).unwrap());
        let buffer = Buffer::new(1 << 20);
        let region = || Region::owned(Arc::clone(&buffer));
        let key = nics[0].register(pds[0], region(), BASE, Access::all()).unwrap();
        let shared = nics[0].share_key(key).unwrap();
        nics[1].register_as(&shared, pds[1], region(), BASE, Access::all()).unwrap();
        let init = |rail: usize| QpInit {
            max_send_wr: 128,
            max_recv_wr: 128,
            ..QpInit::new(QpType::Rc, pds[rail], cqs[rail])
        };
        let qpns =
            [nics[0].create_qp(&init(0)).unwrap(), nics[1].create_spare_qp(&init(1)).unwrap()];
        let config = Config::new(mode, 0x1234);
        let mut agent = Agent::new(config, &mut Nics { nics: &mut nics, now }).unwrap();
        let connection = agent.add(qpns, 0xfeed_0000 + host as u128);
        let (completions, reports) = (Vec::new(), Vec::new());
        Host { nics, cqs, qpns, key, pds, buffer, agent, connection, completions, reports }
    }

    fn connect(&mut self, now: Time, host: usize, dest: Qpn) {
        let (rq, sq) = if host == 0 { (0xff_fff0, 0xff_fffd) } else { (0xff_fffd, 0xff_fff0) };
        let connect = Connect {
            rq_psn: Psn::new(rq),
            sq_psn: Psn::new(sq),
            max_dest_rd_atomic: 4,
            max_rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 8,
            retry_count: 3,
            ..Connect::new(addr(1 - host, 0), dest)
        };
        self.nics[0].connect(now, self.qpns[0], &connect).unwrap();
    }
}

impl Rig {
    pub(super) fn unconnected(mode: Mode, seed: u64) -> Rig {
        let now = Time::from_micros(5);
        let mut hosts = [Host::new(0, mode, now), Host::new(1, mode, now)];
        let qpns = [hosts[0].qpns[0], hosts[1].qpns[0]];
        for (i, host) in hosts.iter_mut().enumerate() {
            host.connect(now, i, qpns[1 - i]);
        }
        let wire = BTreeMap::new();
        let cut = [[false; 2]; 2];
        Rig { hosts, now, wire, sent: 0, cut, loss: 0, late: 0, random: seed | 1 }
    }

    pub(super) fn new(mode: Mode, seed: u64) -> Rig {
        let mut rig = Rig::unconnected(mode, seed);
        rig.introduce();
        rig
    }

    /// Gives a host's memory another key on its second NIC, as on a verbs device, and returns it.
    /// There, the first NIC's key refers to other memory.
    pub(super) fn rekey(&mut self, host: usize) -> u32 {
        let host = &mut self.hosts[host];
        host.agent.config.keys_differ = true;
        let shared = host.nics[0].share_key(host.key).unwrap();
        host.nics[1].deregister(host.key).unwrap();
        let other = Region::owned(Buffer::new(1 << 20));
        host.nics[1].register_as(&shared, host.pds[1], other, BASE, Access::all()).unwrap();
        let region = Region::owned(Arc::clone(&host.buffer));
        host.nics[1].register(host.pds[1], region, BASE, Access::all()).unwrap().0
    }

    /// A host learns the key of its peer's memory on the second NIC.
    pub(super) fn learn_key(&mut self, host: usize, here: u32) {
        let named = self.hosts[1 - host].key.0;
        let host = &mut self.hosts[host];
        let spare = host.qpns[1];
        assert!(!host.nics[1].knows_peer_key(spare, named));
        host.nics[1].learn_peer_key(spare, named, here).unwrap();
    }

    pub(super) fn introduce(&mut self) {
        let rig = self;
        let entries: Vec<_> =
            rig.hosts.iter().map(|h| h.agent.entry(h.connection).unwrap()).collect();
        for (i, host) in rig.hosts.iter_mut().enumerate() {
            let mut rails = Nics { nics: &mut host.nics, now: rig.now };
            host.agent.connect(&mut rails, host.connection, &entries[1 - i]).unwrap();
        }
    }

    /// A random number for tests (xorshift).
    fn draw(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn one_in(&mut self, n: u64) -> bool {
        n > 0 && self.draw().is_multiple_of(n)
    }

    pub(super) fn guard(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        host.nics[0].guard_qp(host.qpns[0], true).unwrap();
    }

    pub(super) fn cut(&mut self, rail: Rail, cut: bool) {
        self.cut[0][rail.index()] = cut;
        self.cut[1][rail.index()] = cut;
    }

    pub(super) fn is_cut(&self, rail: Rail) -> bool {
        self.cut[0][rail.index()]
    }

    /// Drops everything that a host sends on a rail.
    pub(super) fn mute(&mut self, host: usize, rail: Rail) {
        self.cut[host][rail.index()] = true;
    }

    pub(super) fn port(&mut self, host: usize, rail: Rail, up: bool) {
        let now = self.now;
        let host = &mut self.hosts[host];
        host.agent.port_changed(now, &mut Nics { nics: &mut host.nics, now }, rail, up);
    }

    /// Takes a host's first port down, and runs everything that follows immediately.
    pub(super) fn lose_port(&mut self, host: usize) {
        self.cut(Rail::Default, true);
        self.port(host, Rail::Default, false);
        self.run(SECOND / 100);
    }

    pub(super) fn mend_port(&mut self, host: usize) {
        self.cut(Rail::Default, false);
        self.port(host, Rail::Default, true);
    }

    pub(super) fn remove(&mut self, host: usize) {
        let now = self.now;
        let host = &mut self.hosts[host];
        host.agent.remove(&mut Nics { nics: &mut host.nics, now }, host.connection);
    }

    /// Tells an agent that a path failed, whether true or not.
    pub(super) fn claim_path_failed(&mut self, host: usize) {
        let now = self.now;
        let host = &mut self.hosts[host];
        let mut rails = Nics { nics: &mut host.nics, now };
        host.agent.path_failed(now, &mut rails, Rail::Default, host.qpns[0]);
    }

    pub(super) fn away(&self, host: usize) -> usize {
        self.hosts[host].agent.away()
    }

    pub(super) fn outstanding_at_default(&self, host: usize) -> u64 {
        let host = &self.hosts[host];
        host.nics[0].outstanding(host.qpns[0])
    }

    pub(super) fn homes(&self) -> [Rail; 2] {
        [0, 1].map(|i: usize| self.hosts[i].agent.home(self.hosts[i].connection).unwrap())
    }

    pub(super) fn state(&self, host: usize) -> QpState {
        let host = &self.hosts[host];
        let rail = host.agent.home(host.connection).unwrap().index();
        host.nics[rail].query_qp(host.qpns[rail]).unwrap().state
    }

    pub(super) fn post(&mut self, host: usize, wr_id: u64, op: SendOp, len: u32) {
        let now = self.now;
        let host = &mut self.hosts[host];
        let sges = [Sge::new(host.key, BASE, len)];
        let wr = SendWr::new(wr_id, op, &sges);
        let posted = host.nics[0].post_send(now, host.qpns[0], &wr);
        if posted.is_err() {
            host.nics[1].post_send(now, host.qpns[1], &wr).unwrap();
        }
    }

    pub(super) fn recv(&mut self, host: usize, wr_id: u64) {
        let host = &mut self.hosts[host];
        let sges = [Sge::new(host.key, BASE + 0x4_0000, 0x1_0000)];
        let wr = RecvWr::new(wr_id, &sges);
        if host.nics[0].post_recv(host.qpns[0], &wr).is_err() {
            host.nics[1].post_recv(host.qpns[1], &wr).unwrap();
        }
    }

    pub(super) fn remote(&self, host: usize, offset: u64) -> Remote {
        Remote { addr: BASE + offset, rkey: self.hosts[host].key.0 }
    }

    /// Posts a WRITE that asks for no completion.
    pub(super) fn write_silently(&mut self, host: usize, len: u32) {
        let (now, remote) = (self.now, self.remote(1 - host, 0x8_0000));
        let host = &mut self.hosts[host];
        let sges = [Sge::new(host.key, BASE, len)];
        let flags = SendFlags::empty();
        let wr = SendWr { flags, ..SendWr::new(0, SendOp::Write(remote), &sges) };
        let rail = host.agent.home(host.connection).unwrap().index();
        host.nics[rail].post_send(now, host.qpns[rail], &wr).unwrap();
    }

    pub(super) fn probe_every(&mut self, nanos: u64) {
        for host in &mut self.hosts {
            host.agent.config.probe_ns = nanos;
        }
    }

    /// Sets how long a host drains for its peer at first.
    pub(super) fn drain_for(&mut self, host: usize, nanos: u64) {
        self.hosts[host].agent.config.drain_ns = nanos;
    }

    pub(super) fn write(&mut self, host: usize, wr_id: u64, len: u32) {
        let remote = self.remote(1 - host, 0x8_0000);
        self.post(host, wr_id, SendOp::Write(remote), len);
    }

    pub(super) fn add_one(&mut self, host: usize, wr_id: u64) {
        let remote = self.remote(1 - host, 0xf_0000);
        self.post(host, wr_id, SendOp::FetchAdd { remote, add: 1 }, 8);
    }

    pub(super) fn counter(&self, host: usize) -> u64 {
        self.hosts[host].buffer.load_u64(0xf_0000)
    }

    /// Tells an end to move, as an attacker would who knows everything but the token.
    pub(super) fn forge_move(&mut self, host: usize) {
        let now = self.now;
        let entry = self.hosts[host].agent.entry(self.hosts[host].connection).unwrap();
        let message = Message {
            kind: Kind::Move,
            to: entry.qpns[0],
            token: entry.token ^ 1,
            epoch: 1,
            number: 0,
            rail: Rail::Backup,
            ports_down: [false; 2],
            resume: bowline_nic::Resume { received: 0, psn: Psn::new(0) },
        };
        let liar = &mut self.hosts[1 - host];
        let to = (entry.addrs[0], entry.agents[0]);
        liar.agent.controls[0].send(&mut liar.nics[0], now, to, entry.qkey, &message);
    }

    /// All completions since the last call.
    pub(super) fn completions(&mut self, host: usize) -> Vec<Completion> {
        core::mem::take(&mut self.hosts[host].completions)
    }

    pub(super) fn completed(&mut self, host: usize) -> Vec<(u64, WcStatus)> {
        self.completions(host).iter().map(|c| (c.wr_id, c.status)).collect()
    }

    pub(super) fn reports(&mut self, host: usize) -> Vec<Report> {
        core::mem::take(&mut self.hosts[host].reports)
    }

    /// Advances time.
    pub(super) fn run(&mut self, nanos: u64) {
        let end = self.now.plus_nanos(nanos);
        loop {
            self.turn();
            let timers = self.hosts.iter().flat_map(|host| {
                let nics = host.nics.iter().filter_map(Nic::poll_timeout);
                nics.chain(host.agent.deadline())
            });
            let next = timers.chain(self.wire.keys().next().map(|(at, _)| *at)).min();
            match next {
                Some(at) if at <= end => self.now = self.now.max(at),
                _ => break,
            }
        }
        self.now = end;
    }

    /// Does everything that is due now.
    fn turn(&mut self) {
        let now = self.now;
        while let Some(entry) = self.wire.first_entry().filter(|e| e.key().0 <= now) {
            let frame = entry.remove();
            let nic = &mut self.hosts[frame.host].nics[frame.rail];
            nic.handle_frame(now, &frame.meta, &frame.bytes);
        }
        for host in &mut self.hosts {
            host.nics.iter_mut().for_each(|nic| nic.handle_timeout(now));
            for rail in Rail::ALL {
                while let Some(event) = host.nics[rail.index()].poll_event() {
                    if let Event::PathFailed(qpn) = event {
                        let mut rails = Nics { nics: &mut host.nics, now };
                        host.agent.path_failed(now, &mut rails, rail, qpn);
                    }
                }
            }
            host.agent.handle(now, &mut Nics { nics: &mut host.nics, now });
            host.reports.extend(core::iter::from_fn(|| host.agent.poll_report()));
            for rail in 0..2 {
                let mut batch = [Completion::default(); 64];
                while let Ok(n @ 1..) = host.nics[rail].poll_cq(host.cqs[rail], &mut batch) {
                    host.completions.extend_from_slice(&batch[..n]);
                }
            }
        }
        for host in 0..2 {
            for rail in 0..2 {
                self.transmit(host, rail);
            }
        }
    }

    fn transmit(&mut self, host: usize, rail: usize) {
        let caps = TxCaps { max_segments: 16, max_burst_bytes: 65_507 };
        let mut batch = TxBatch::new(caps, 64);
        loop {
            batch.clear();
            self.hosts[host].nics[rail].poll_transmit(self.now, &mut batch);
            if batch.is_empty() {
                return;
            }
            for burst in batch.bursts() {
                for (id, packet) in batch.packets(burst).iter().enumerate() {
                    let mut bytes = Vec::new();
                    bytes.extend_from_slice(batch.bytes(packet));
                    let meta = FrameMeta {
                        src: addr(host, rail),
                        dst: burst.dst,
                        src_port: 4791,
                        tos: burst.tos,
                        ttl: 64,
                        ip_id: IpId::Known(id as u16),
                    };
                    let lost = self.cut[host][rail] || self.one_in(self.loss);
                    let delay =
                        if self.one_in(self.late) { self.draw() % (SECOND / 4) } else { DELAY_NS };
                    self.sent += 1;
                    if !lost {
                        let frame = Frame { host: 1 - host, rail, meta, bytes };
                        self.wire.insert((self.now.plus_nanos(delay), self.sent), frame);
                    }
                }
            }
        }
    }
}
