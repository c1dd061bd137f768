//! A fat tree in which every host WRITEs to one other over RC: builds it, runs it, and prints as
//! one line of JSON what that took.
//!
//! Usage: `permutation K MESSAGES MTU`. A tree of `K`-port switches has `K³/4` hosts; each sends
//! `MESSAGES` WRITEs of 64 KiB.

use std::fs;

use bowline_nic::{
    Access, Buffer, Completion, Connect, CqId, Mtu, NicConfig, QpInit, QpType, Region, Remote,
    SendOp, SendWr, Sge, Time, TxCaps, WcStatus,
};
use bowline_sim::net::{LinkConfig, Topology, fat_tree};
use bowline_sim::{App, HostConfig, NicId, RxId, TxId, World};
use bowline_wire::Qpn;

const MESSAGE_BYTES: u32 = 64 << 10;
/// WRITEs that a host has outstanding: what its cable carries in an idle round trip across the
/// core.
const DEPTH: u32 = 2;
/// More than that. The queues hold all that can meet in one of them, so that nothing is ever lost.
const WINDOW_BYTES: u32 = 256 << 10;
const CABLE: LinkConfig =
    LinkConfig { bandwidth_bps: 100_000_000_000, delay_ns: 500, queue_bytes: 32 << 20, ecn: None };

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let [k, messages, mtu] = args[..] else {
        eprintln!("usage: permutation K MESSAGES MTU");
        std::process::exit(2);
    };
    let mtu = Mtu::ALL.into_iter().find(|m| m.bytes() as usize == mtu).expect("an MTU of RoCE");
    let hosts = k * k * k / 4;
    let mut world = build(k, hosts);
    let mut app = Permutation::connect(&mut world, hosts, messages as u32, mtu);
    let start = cpu_seconds();
    world.run_until(&mut app, Time::from_millis(60_000));
    let seconds = cpu_seconds() - start;
    assert_eq!(app.done, hosts as u64 * messages as u64, "every WRITE completes");
    assert!(world.violations().is_empty(), "{:?}", world.violations());
    let (stats, network) = (world.stats(), world.network().stats());
    println!(
        "{{\"hosts\":{hosts},\"seconds\":{seconds:.4},\"events\":{},\"delivered\":{},\
         \"hops\":{},\"lost\":{},\"virtual_us\":{},\"rss_mib\":{}}}",
        stats.events,
        stats.delivered,
        network.carried,
        stats.sent - stats.delivered,
        world.now().as_nanos() / 1_000,
        peak_rss_mib(),
    );
}

fn build(k: usize, hosts: usize) -> World {
    let addrs = Topology::ipv4(hosts);
    let topology = fat_tree(1, k, &addrs, CABLE);
    let configs = addrs.iter().enumerate().map(|(i, addr)| HostConfig {
        nics: vec![NicConfig {
            window_bytes: WINDOW_BYTES,
            ..NicConfig::new(*addr, [i as u8; 32])
        }],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 0,
    });
    World::new(1, topology, configs.collect())
}

/// One host's WRITEs.
struct Sender {
    qpn: Qpn,
    cq: CqId,
    sge: Sge,
    remote: Remote,
    posted: u32,
    done: u32,
}

struct Permutation {
    senders: Vec<Sender>,
    messages: u32,
    done: u64,
}

impl Permutation {
    /// Joins every host to the one behind that half the list away. Neighbours in the list are in
    /// different pods, so that all packets cross the core.
    fn connect(world: &mut World, hosts: usize, messages: u32, mtu: Mtu) -> Permutation {
        let peer_of = |i: usize| (i + hosts / 2 + 1) % hosts;
        let ends: Vec<_> = (0..hosts)
            .map(|i| {
                let engine = world.nic_mut(NicId(i));
                let pd = engine.alloc_pd().expect("a new engine has room");
                let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
                let region = || Region::owned(Buffer::new(MESSAGE_BYTES as usize));
                let source = engine.register(pd, region(), 0, access).expect("room");
                let target = engine.register(pd, region(), 0, access).expect("room");
                // One QP sends, the other one receives.
                let [sends, receives] = [0, 1].map(|_| {
                    let cq = engine.create_cq(DEPTH).expect("room");
                    let init = QpInit { max_send_wr: DEPTH, ..QpInit::new(QpType::Rc, pd, cq) };
                    (engine.create_qp(&init).expect("room"), cq)
                });
                (source, target, sends, receives)
            })
            .collect();
        let mut senders = Vec::with_capacity(hosts);
        for i in 0..hosts {
            let peer = peer_of(i);
            let (source, _, (qpn, cq), _) = ends[i];
            let (_, target, _, (peer_qpn, _)) = ends[peer];
            for (from, to, qpn, remote) in [(i, peer, qpn, peer_qpn), (peer, i, peer_qpn, qpn)] {
                let dst = world.nic(NicId(to)).config().addr;
                let connect = Connect { path_mtu: mtu, timeout: 14, ..Connect::new(dst, remote) };
                let (now, engine) = (world.now(), world.nic_mut(NicId(from)));
                engine.connect(now, qpn, &connect).expect("legal transitions");
            }
            senders.push(Sender {
                qpn,
                cq,
                sge: Sge::new(source, 0, MESSAGE_BYTES),
                remote: Remote { addr: 0, rkey: target.0 },
                posted: 0,
                done: 0,
            });
        }
        Permutation { senders, messages, done: 0 }
    }
}

impl App for Permutation {
    fn on_timer(&mut self, _world: &mut World, _token: u64) {}

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let sender = &mut self.senders[nic.0];
        let mut polled = [Completion::default(); DEPTH as usize];
        let count = world.poll_nic(nic).poll_cq(sender.cq, &mut polled).expect("the queue exists");
        assert!(polled[..count].iter().all(|c| c.status == WcStatus::Success), "no WRITE fails");
        sender.done += count as u32;
        self.done += count as u64;
        let mut any = count > 0;
        while sender.posted < self.messages && sender.posted - sender.done < DEPTH {
            let now = world.now();
            let sges = [sender.sge];
            let wr = SendWr::new(sender.posted.into(), SendOp::Write(sender.remote), &sges);
            world.nic_mut(nic).post_send(now, sender.qpn, &wr).expect("the queue has room");
            sender.posted += 1;
            any = true;
        }
        any
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.done == self.senders.len() as u64 * u64::from(self.messages)
    }
}

/// CPU time of this process so far: other processes' share of a busy machine does not count.
fn cpu_seconds() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").expect("Linux says how long we ran");
    let nanos: u64 = text.split(' ').next().and_then(|n| n.parse().ok()).expect("a number");
    nanos as f64 / 1e9
}

/// The most memory that this process ever had.
fn peak_rss_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse().unwrap_or(0);
    kib / 1024
}
