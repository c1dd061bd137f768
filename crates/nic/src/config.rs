//! Limits and identity of a NIC. Everything the engine may hold is bounded by a number in here.

use core::net::IpAddr;

use crate::types::Mtu;

/// What a [`crate::Nic`] is made with.
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
    /// Where the numbers of QPs begin, below the prefix; they go on from there, and around. What is
    /// not a number that a QP may have wraps too. A device draws it, so that strangers have to find
    /// its QPs.
    pub first_qpn: u16,
    /// Largest path MTU that the port carries.
    pub max_mtu: Mtu,
    /// Seed of keys. Whoever knows it can guess rkeys: outside of tests it comes from the system.
    pub key_seed: [u8; 32],
    /// QPs at once; at most 65,534.
    pub max_qps: u32,
    /// Completion queues at once.
    pub max_cqs: u32,
    /// Shared receive queues at once.
    pub max_srqs: u32,
    /// Protection domains at once.
    pub max_pds: u32,
    /// Memory regions at once.
    pub max_mrs: u32,
    /// Work requests in a queue.
    pub max_wr: u32,
    /// Entries of a gather or scatter list.
    pub max_sge: u8,
    /// Inline bytes of a send.
    pub max_inline: u32,
    /// Completions in a completion queue.
    pub max_cqe: u32,
    /// READs and atomics outstanding, per QP and direction.
    pub max_rd_atomic: u8,
    /// Multicast groups at once.
    pub max_groups: u32,
    /// QPs in a multicast group.
    pub max_group_members: u32,
    /// Bytes in flight towards one peer engine, shared by all QPs that talk to it, unless a QP's
    /// rate controller says otherwise. A peer's socket buffer holds a few MiB at best.
    pub window_bytes: u32,
    /// Rate of the link, in bits per second, if this NIC is to share it out as credit among peers
    /// that send by credit over XP (EQDS).
    pub grant_bps: Option<u64>,
    /// Events kept for [`crate::Nic::poll_event`]; further ones are counted and dropped.
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
