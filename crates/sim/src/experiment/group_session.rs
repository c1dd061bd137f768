//! Reliable messages over SDR to all members of a group, behind a switch that replicates, on
//! virtual time.

use bowline_link::{Faults, LinkConfig, Loss, Prob};
use bowline_multicast::plan::{GroupSpec, IdPool, MemberSpec};
use bowline_multicast::{GroupKey, Origin, Place, Region as GroupRegion, RootConfig};
use bowline_nic::{Access, AddressVector, Buffer, NicConfig, Region, Time, TxCaps};
use bowline_sdr::{
    GroupPath, ReliableConfig, ReliableEvent, ReliableQp, ReliableStats, SdrInfo, Source,
    WriteOptions,
};
use bowline_wire::{Qpn, ROCE_UDP_PORT};

use crate::multicast_storm::Control;
use crate::net::{Topology, star};
use crate::world::{App, HostConfig, HostId, NicId, RxId, TxId, World};

const SENDER: NicId = NicId(0);

/// What is measured.
#[derive(Clone, Debug)]
pub struct GroupConfig {
    /// Seed of the losses.
    pub seed: u64,
    /// How many receive.
    pub members: usize,
    /// Each host's cable; its delay is a fourth of the round trip.
    pub cable: LinkConfig,
    /// Probability that a packet is lost on the last cable to a member, independently for each
    /// member.
    pub packet_loss: f64,
    /// Bytes of the message.
    pub bytes: u64,
    /// The connection.
    pub reliable: ReliableConfig,
    /// Index of the message's scheme.
    pub scheme: usize,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupTime {
    /// From the write until the sender knew that all members had all of it.
    pub time_ns: u64,
    /// What the sender has done.
    pub sender: ReliableStats,
}

/// Writes one message, whose receives are posted already, to all members; `None` if the write
/// failed, or a member's memory differs from what was sent.
///
/// # Panics
/// If the parameters are refused.
pub fn group_completion(config: &GroupConfig) -> Option<GroupTime> {
    let mut world = build(config);
    let mut ends = Ends::connect(&mut world, config);
    // Round trips have been measured, and the sender knows of all receives.
    let rest = Time::from_nanos(4 * 4 * config.cable.delay_ns + 1_000_000);
    world.run_until(&mut ends, rest);
    set_losses(&mut world, config);
    let start = world.now();
    ends.write(&mut world, config);
    world.run_until(&mut ends, Time::from_nanos(u64::MAX / 2));
    let time_ns = ends.written?.nanos_since(start);
    let is_whole = |end: &End| end.buffer.to_vec(0, config.bytes as usize) == content(config.bytes);
    let sender = ends.all[0].qp.stats();
    ends.all[1..].iter().all(is_whole).then_some(GroupTime { time_ns, sender })
}

fn content(bytes: u64) -> Vec<u8> {
    (0..bytes).map(|i| (i ^ (i >> 8) ^ (i >> 16)) as u8).collect()
}

fn build(config: &GroupConfig) -> World {
    let addrs = Topology::ipv4(1 + config.members);
    let topology = star(config.seed, &addrs, config.cable);
    let hosts = addrs.iter().enumerate().map(|(index, addr)| HostConfig {
        nics: vec![NicConfig::new(*addr, [index as u8 + 1; 32])],
        tx_caps: TxCaps::SINGLE,
        tx_batch: 64,
        tx_id: TxId::Burst,
        rx_id: RxId::Known,
        coalesce_ns: 0,
        ring_packets: 0,
    });
    World::new(config.seed, topology, hosts.collect())
}

fn set_losses(world: &mut World, config: &GroupConfig) {
    let faults = Faults { loss: Loss::Iid(Prob::new(config.packet_loss)), ..Faults::default() };
    for member in 1..=config.members {
        let node = world.node_of(HostId(member));
        let network = world.network_mut();
        let to_member: Vec<_> =
            network.cables().into_iter().filter(|link| network.end_of(*link) == node).collect();
        to_member.into_iter().for_each(|link| network.link_mut(link).set_faults(faults));
    }
}

struct End {
    qp: ReliableQp,
    buffer: std::sync::Arc<Buffer>,
    source: Source,
    /// The state when the end was last driven: it is driven again only if that changes.
    seen: (u64, u64, u64, u64),
    wakes: u64,
    armed: Time,
}

/// The sender, then the members.
struct Ends {
    all: Vec<End>,
    written: Option<Time>,
    failed: bool,
}

impl Ends {
    fn connect(world: &mut World, config: &GroupConfig) -> Ends {
        let control = Control::new(world, false);
        let mut all: Vec<End> =
            (0..=config.members).map(|host| make_end(world, config, host)).collect();
        let members: Vec<_> = (1..=config.members)
            .map(|member| {
                let av = AddressVector::new(world.addr_of(HostId(member)));
                (av, all[member].qp.info())
            })
            .collect();
        let infos: Vec<SdrInfo> = members.iter().map(|(_, info)| info.parts()[0].clone()).collect();
        let path = install(world, &control, &infos);
        let (now, sender) = (world.now(), AddressVector::new(world.addr_of(HostId(0))));
        let connected = all[0].qp.connect_group(world.nic_mut(SENDER), now, &path, &members);
        connected.expect("all ends are alike");
        for member in 1..=config.members {
            let info = all[0].qp.info_for(member - 1);
            let nic = world.nic_mut(NicId(member));
            let end = &mut all[member];
            end.qp.connect(nic, now, sender, &info).expect("all ends are alike");
            end.qp.recv(nic, now, end.source, config.bytes).expect("there is room");
        }
        Ends { all, written: None, failed: false }
    }

    fn write(&mut self, world: &mut World, config: &GroupConfig) {
        let (now, sender) = (world.now(), &mut self.all[0]);
        let options = WriteOptions { scheme: config.scheme, imm: None };
        let nic = world.nic_mut(SENDER);
        let written = sender.qp.write(nic, now, sender.source, config.bytes, options);
        self.failed |= written.is_err();
        sender.wakes += 1;
    }
}

fn make_end(world: &mut World, config: &GroupConfig, host: usize) -> End {
    let nic = world.nic_mut(NicId(host));
    let pd = nic.alloc_pd().expect("within the limits");
    let buffer = Buffer::new(config.bytes as usize);
    if host == 0 {
        buffer.write_at(0, &content(config.bytes));
    }
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = nic.register(pd, Region::owned(buffer.clone()), 0, access).expect("room");
    let qp = match host {
        0 => ReliableQp::for_group(nic, pd, &config.reliable, config.members),
        _ => ReliableQp::new(nic, pd, &config.reliable),
    };
    let (qp, source) = (qp.expect("legal parameters"), Source { key, addr: 0 });
    End { qp, buffer, source, seen: (u64::MAX, 0, 0, 0), wakes: 0, armed: Time::NEVER }
}

/// Installs a table in the switches for each sending QP; returns where its packets go.
fn install(world: &World, control: &Control, members: &[SdrInfo]) -> GroupPath {
    let mut ids = IdPool::default();
    let addrs: Vec<_> = (0..=members.len()).map(|host| world.addr_of(HostId(host))).collect();
    let (first, peer) = (&members[0], Origin { addr: addrs[1], port: ROCE_UDP_PORT });
    let mut qpns: Vec<Qpn> = Vec::new();
    for (index, _) in first.data().iter().enumerate() {
        let generation = index / first.channels();
        let key = GroupKey { sender: addrs[0], id: ids.take().expect("few groups") };
        let member = |(number, info): (usize, &SdrInfo)| MemberSpec {
            addr: addrs[1 + number],
            qpn: info.data()[index],
            id: ids.take().expect("few members"),
            places: vec![Place { va: 0, rkey: info.roots()[generation] }],
        };
        let members = members.iter().enumerate().map(member).collect();
        let (len, rkey) = (first.root_len(), first.roots()[generation]);
        let regions = vec![GroupRegion { va: 0, len, rkey }];
        let root = RootConfig::new(Qpn::new(0), peer, addrs[0], None);
        let spec = GroupSpec { key, epoch: 1, regions, members, root };
        control.install_unreliable(world, world.node_of(HostId(0)), &spec);
        qpns.push(key.id);
    }
    GroupPath { av: AddressVector::new(addrs[1]), qpns }
}

impl App for Ends {
    fn on_timer(&mut self, _world: &mut World, token: u64) {
        let end = &mut self.all[token as usize];
        end.wakes += 1;
        end.armed = Time::NEVER;
    }

    fn on_activity(&mut self, world: &mut World, nic: NicId) -> bool {
        let end = &mut self.all[nic.0];
        let stats = world.stats();
        let seen = (stats.delivered, stats.timeouts, stats.sent, end.wakes);
        if std::mem::replace(&mut end.seen, seen) == seen {
            return false;
        }
        let now = world.now();
        end.qp.drive(world.nic_mut(nic), now);
        while let Some(event) = end.qp.poll_event() {
            match event {
                ReliableEvent::Written { result: Ok(()), .. } => self.written = Some(now),
                ReliableEvent::Received { result: Ok(()), .. } => {}
                _ => self.failed = true,
            }
        }
        if let Some(at) = end.qp.poll_timeout()
            && at < end.armed
        {
            end.armed = at;
            world.wake_at(at, nic.0 as u64);
        }
        true
    }

    fn is_finished(&self, _world: &World) -> bool {
        self.failed || self.written.is_some()
    }
}

#[cfg(test)]
mod tests {
    use bowline_sdr::SdrConfig;

    use super::*;

    fn config(scheme: &str, packet_loss: f64) -> GroupConfig {
        let rate_bps = 10_000_000_000;
        let sdr = SdrConfig { rate_bps: Some(rate_bps), ..SdrConfig::default() };
        let reliable = ReliableConfig { sdr, max_write: 4 << 20, ..ReliableConfig::default() };
        let scheme = reliable.scheme(scheme).expect("a standard one");
        let cable =
            LinkConfig { rate_bps: Some(rate_bps), delay_ns: 2_500_000, ..LinkConfig::default() };
        GroupConfig { seed: 3, members: 4, cable, packet_loss, bytes: 4 << 20, reliable, scheme }
    }

    #[test]
    fn every_member_gets_the_message_whatever_each_loses() {
        for scheme in ["ec-mds", "sr-nack", "sr-rto"] {
            let clean = group_completion(&config(scheme, 0.0)).expect("it arrives");
            assert_eq!(clean.sender.chunks_resent, 0, "{scheme}");
            let lossy = group_completion(&config(scheme, 0.01)).expect("it arrives");
            assert!(lossy.time_ns >= clean.time_ns, "{scheme}: {} ns", lossy.time_ns);
            if scheme != "ec-mds" {
                assert!(lossy.sender.chunks_resent > 0, "{scheme}");
            }
        }
    }

    #[test]
    fn parity_repairs_what_members_lose_without_a_round_trip() {
        let [clean, lossy] = [0.0, 0.001].map(|loss| {
            let time = group_completion(&config("ec-mds", loss)).expect("it arrives");
            time.time_ns as f64
        });
        assert!(lossy < 1.1 * clean, "{lossy} ns instead of {clean}");
    }
}
