//! Hosts: an address, its engines, and a ring that fills while the host is paused or its port
//! coalesces.

use std::collections::VecDeque;

use bowline_nic::{IpId, Nic, NicConfig, Time, TxBatch, TxCaps};

use super::World;
use crate::net::NodeId;
use crate::packet::{Packet, PacketId};

/// A host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// An engine, counted over all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NicId(pub usize);

/// What a host's port tells its engines about the IPv4 identification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RxId {
    /// It sees the IP header.
    Known,
    /// It sees UDP payload only and guesses from the packet's position in its batch, which is right
    /// as long as no packet was lost or overtaken.
    Guess,
    /// Packets come through memory, where they need no ICRC: it is stripped from all intact
    /// packets.
    Memory,
}

/// How a host numbers its IPv4 packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxId {
    /// 0, 1, 2, … within a burst, as Bowline's ports do.
    Burst,
    /// One counter for everything, as other implementations may do.
    Counter,
}

/// What a host is made with.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// Its engines. All have the host's address; packets go to the one whose QPN prefix matches.
    pub nics: Vec<NicConfig>,
    /// What its port can send in one call.
    pub tx_caps: TxCaps,
    /// Packets it asks an engine for at a time.
    pub tx_batch: usize,
    /// How it numbers its packets.
    pub tx_id: TxId,
    /// What its port knows about received packets.
    pub rx_id: RxId,
    /// How long its port waits for more of the same flow before it delivers packets as one
    /// datagram; 0 delivers them one by one.
    pub coalesce_ns: u64,
    /// Packets that wait while it is paused; the rest are dropped.
    pub ring_packets: usize,
}

pub(super) struct Host {
    pub(super) node: NodeId,
    pub(super) nics: Vec<NicId>,
    pub(super) config: HostConfig,
    /// Paused until this time, if it is in the future.
    pub(super) paused_until: Time,
    pub(super) ring: VecDeque<PacketId>,
    /// Which of the world's batches its engines fill.
    pub(super) batch: usize,
    /// Next identification of a host with a counter.
    pub(super) ip_id: u16,
    /// Identification of the next packet, if it belongs to the same batch as the previous one.
    next_guess: u16,
}

/// A batch shared by all hosts with equal ports.
pub(super) struct SharedBatch {
    caps: TxCaps,
    packets: usize,
    /// Taken out while it is filled and sent.
    pub(super) batch: Option<TxBatch>,
}

pub(super) struct Engine {
    pub(super) nic: Nic,
    pub(super) host: HostId,
    /// Called since it was last polled.
    pub(super) touched: bool,
    /// Earliest queued wake-up; waking too early is harmless, so later ones stay queued.
    pub(super) armed: Time,
    pub(super) last_timeout: Time,
    /// Timeouts handled at `last_timeout`.
    pub(super) timeouts_now: u32,
}

/// The counter starts close to the end, so that it wraps.
const FIRST_COUNTED_ID: u16 = 0xff00;

impl World {
    pub(super) fn add_host(&mut self, node: NodeId, config: HostConfig) {
        let host = HostId(self.hosts.len());
        let mut nics = Vec::with_capacity(config.nics.len());
        for nic_config in &config.nics {
            nics.push(self.add_engine(host, nic_config.clone()));
        }
        let nodes = node.0 as usize + 1;
        if self.host_of_node.len() < nodes {
            self.host_of_node.resize(nodes, None);
        }
        self.host_of_node[node.0 as usize] = Some(host);
        let batch = self.batch_for(config.tx_caps, config.tx_batch);
        self.hosts.push(Host {
            node,
            nics,
            config,
            paused_until: Time::ZERO,
            batch,
            ring: VecDeque::new(),
            ip_id: FIRST_COUNTED_ID,
            next_guess: 0,
        });
    }

    fn add_engine(&mut self, host: HostId, config: NicConfig) -> NicId {
        let id = NicId(self.engines.len());
        self.engines.push(Engine {
            nic: Nic::new(config).expect("the scenario's limits are legal"),
            host,
            touched: false,
            armed: Time::NEVER,
            last_timeout: Time::ZERO,
            timeouts_now: 0,
        });
        self.touch(id);
        id
    }

    /// Gives a host one more engine, with a QPN prefix of its own.
    pub fn add_nic(&mut self, host: HostId, mut config: NicConfig) -> NicId {
        config.qpn_prefix = self.hosts[host.0].nics.len() as u8;
        let id = self.add_engine(host, config);
        self.hosts[host.0].nics.push(id);
        id
    }

    /// The batch of hosts with such ports. Only one host sends at a time, and one batch for all of
    /// them stays in a core's cache.
    fn batch_for(&mut self, caps: TxCaps, packets: usize) -> usize {
        let known = self.batches.iter().position(|b| (b.caps, b.packets) == (caps, packets));
        known.unwrap_or_else(|| {
            let batch = Some(TxBatch::new(caps, packets));
            self.batches.push(SharedBatch { caps, packets, batch });
            self.batches.len() - 1
        })
    }

    /// Whether a host handles nothing now.
    pub fn is_paused(&self, host: HostId) -> bool {
        self.hosts[host.0].paused_until > self.fabric.now
    }
}

impl Host {
    /// What the port says about a packet's identification.
    pub(super) fn ip_id_of(&mut self, packet: &mut Packet) -> IpId {
        if self.config.rx_id == RxId::Memory && packet.unseal() {
            return IpId::Unsummed;
        }
        if packet.dst.is_ipv6() {
            return IpId::Known(0);
        }
        match self.config.rx_id {
            RxId::Known | RxId::Memory => IpId::Known(packet.ip_id),
            RxId::Guess => {
                // A socket counts packets of a coalesced batch; it cannot see gaps in it.
                let guess = if packet.ip_id == 0 { 0 } else { self.next_guess };
                self.next_guess = guess.wrapping_add(1);
                IpId::Guess(guess)
            }
        }
    }
}
