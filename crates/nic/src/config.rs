//! Limits and identity of a NIC. Every table and queue in the engine is bounded by a number here.

use core::net::IpAddr;

use crate::types::Mtu;

/// Configuration of a [`crate::Nic`].
#[derive(Clone, Debug)]
pub struct NicConfig {
    /// The port's address.
    pub addr: IpAddr,
    /// UDP port that we send from and that peers send to.
    pub udp_port: u16,
    /// UDP port that peers listen on: 4791, unless a test needs another.
    pub peer_udp_port: u16,
    /// Top byte of every QPN of this engine, by which a kernel steers packets to its socket.
    pub qpn_prefix: u8,
    /// First QP number below the prefix; later QPs count up from it and wrap around, as does a
    /// start that is not a valid QP number. A device draws it at random, so that strangers have to
    /// guess its QPNs.
    pub first_qpn: u16,
    /// Largest path MTU that the port carries.
    pub max_mtu: Mtu,
    /// Seed of the keys. Whoever knows it can guess rkeys: outside of tests the system supplies it.
    pub key_seed: [u8; 32],
    /// Maximum number of QPs; at most 65,534.
    pub max_qps: u32,
    /// Maximum number of completion queues.
    pub max_cqs: u32,
    /// Maximum number of shared receive queues.
    pub max_srqs: u32,
    /// Maximum number of protection domains.
    pub max_pds: u32,
    /// Maximum number of memory regions.
    pub max_mrs: u32,
    /// Maximum number of work requests in a queue.
    pub max_wr: u32,
    /// Maximum number of entries in a gather or scatter list.
    pub max_sge: u8,
    /// Maximum inline bytes of a send.
    pub max_inline: u32,
    /// Maximum depth of a completion queue.
    pub max_cqe: u32,
    /// Maximum outstanding READs and atomics, per QP and direction.
    pub max_rd_atomic: u8,
    /// Maximum number of multicast groups.
    pub max_groups: u32,
    /// Maximum number of QPs in a multicast group.
    pub max_group_members: u32,
    /// Bytes in flight towards one peer engine, shared by all QPs that talk to it, unless a QP's
    /// rate controller says otherwise. A peer's socket buffer holds a few MiB at best.
    pub window_bytes: u32,
    /// Link rate in bits per second, if this NIC is to grant it as credit to peers that send by
    /// credit over XP (EQDS).
    pub grant_bps: Option<u64>,
    /// Event queue depth for [`crate::Nic::poll_event`]; further events are counted and dropped.
    pub max_events: u32,
}

impl NicConfig {
    /// Defaults for a NIC at `addr`, with keys drawn from `key_seed`.
    pub fn new(addr: IpAddr, key_seed: [u8; 32]) -> NicConfig {
        NicConfig {
            addr,
            udp_port: bowline_wire::ROCE_UDP_PORT,
            peer_udp_port: bowline_wire::ROCE_UDP_PORT,
            qpn_prefix: 0,
            first_qpn: 0,
            max_mtu: Mtu::B4096,
            key_seed,
            max_qps: 65_534,
            max_cqs: 65_536,
            max_srqs: 16_384,
            max_pds: 16_384,
            max_mrs: 1 << 20,
            max_wr: 16_384,
            max_sge: 32,
            max_inline: 1024,
            max_cqe: 1 << 20,
            max_rd_atomic: 128,
            max_groups: 1024,
            max_group_members: 1024,
            window_bytes: 2 << 20,
            grant_bps: None,
            max_events: 65_536,
        }
    }
}
