//! Flows: the destination of packets, and the common part of their ICRCs.

use bowline_wire::{Bth, FlowKey, Icrc};

use super::header::{PSN_AT, psn_of};
use super::protect::Protection;
use crate::frame::FrameMeta;

/// A packet's destination, everything outside the packet that its ICRC covers, and its sealer.
#[derive(Debug)]
pub struct Flow {
    pub(super) key: FlowKey,
    pub(super) tos: u8,
    /// Seals its packets, which replaces the ICRC.
    pub(super) protection: Option<Protection>,
    /// The common part of the ICRCs of recent packets.
    seeds: [Seed; 4],
    next_seed: u8,
    /// The most recently used seed, which most packets use again.
    last_seed: u8,
}

/// The ICRC register after all headers except extension headers, for ID 0 and PSN 0. The packets of
/// a message come in two or three kinds, each of which differs only in those two; this saves
/// summing 48 bytes per packet.
#[derive(Clone, Copy, Debug)]
struct Seed {
    len: u32,
    /// The BTH up to the PSN.
    bth: [u8; PSN_AT],
    behind_bth: Icrc,
}

impl Seed {
    #[inline]
    fn fits(&self, len: u32, bth: &[u8; Bth::LEN]) -> bool {
        self.len == len && self.bth == bth[..PSN_AT]
    }
}

impl Flow {
    /// A flow from one address and port to another.
    pub fn new(key: FlowKey, tos: u8) -> Flow {
        let seed = Seed { len: 0, bth: [0; PSN_AT], behind_bth: Icrc::START };
        Flow { key, tos, protection: None, seeds: [seed; 4], next_seed: 0, last_seed: 0 }
    }

    /// Addresses and ports.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The flow of a received frame, for checking its ICRC.
    pub(crate) fn inbound(meta: &FrameMeta, port: u16) -> Flow {
        let (src, dst, src_port) = (meta.src, meta.dst, meta.src_port);
        Flow::new(FlowKey { src, dst, src_port, dst_port: port }, 0)
    }

    /// Whether a received frame belongs to this flow.
    #[inline]
    pub(crate) fn is_from(&self, meta: &FrameMeta) -> bool {
        let key = &self.key;
        (key.src, key.dst, key.src_port) == (meta.src, meta.dst, meta.src_port)
    }

    /// The ICRC register after IP, UDP and BTH headers, and whether the BTH differs only in its PSN
    /// from the previous one, which belongs to a packet of the same length.
    #[inline]
    pub(crate) fn icrc_behind_bth(
        &mut self,
        len: u32,
        bth: &[u8; Bth::LEN],
        ip_id: u16,
    ) -> (Icrc, bool) {
        let ip_id = if self.key.dst.is_ipv4() { ip_id } else { 0 };
        let (seed, alike) = self.seed(len, bth);
        (seed.with_deltas_behind_bth(ip_id, psn_of(bth)), alike)
    }

    /// The same register for ID 0 and PSN 0, and whether the previous packet had it too.
    #[inline]
    pub(crate) fn seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> (Icrc, bool) {
        let last = &self.seeds[usize::from(self.last_seed) % self.seeds.len()];
        let alike = last.fits(len, bth);
        let seed = if alike { last.behind_bth } else { self.find_seed(len, bth) };
        (seed, alike)
    }

    #[inline(never)]
    fn find_seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> Icrc {
        match self.seeds.iter().position(|seed| seed.fits(len, bth)) {
            Some(at) => {
                self.last_seed = at as u8;
                self.seeds[at].behind_bth
            }
            None => self.learn_seed(len, bth),
        }
    }

    #[cold]
    fn learn_seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> Icrc {
        let mut without_psn = *bth;
        without_psn[PSN_AT..].fill(0);
        let behind_bth = Icrc::of_headers(&self.key, len as usize, 0).bth(&without_psn);
        let mut seed = Seed { len, bth: [0; PSN_AT], behind_bth };
        seed.bth.copy_from_slice(&bth[..PSN_AT]);
        self.seeds[self.next_seed as usize] = seed;
        self.last_seed = self.next_seed;
        self.next_seed = (self.next_seed + 1) % self.seeds.len() as u8;
        behind_bth
    }
}
