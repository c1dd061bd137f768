//! The attacker in the storm over SDR: forged landings, forged control, and noise.

use bowline_sdr::{ImmLayout, SdrInfo};
use bowline_wire::{ExtHeaders, Psn, Qpn};

use super::app::SdrStorm;
use crate::attack::{Forgery, Target, control_message};
use crate::packet::Packet;
use crate::sealed_storm::tamper;
use crate::world::{HostId, NicId, World};

/// Sequence numbers of the first packets of a connection, and a few more: those of SDR are easy to
/// guess.
const EARLY_PSNS: u64 = 400;

/// The end of an SDR connection as an outsider knows it.
pub(super) struct Known {
    host: usize,
    mtu: u32,
    layout: ImmLayout,
    control: Qpn,
    data: Vec<Qpn>,
}

impl Known {
    pub(super) fn new(host: usize, mtu: u32, layout: ImmLayout, info: &SdrInfo) -> Known {
        Known { host, mtu, layout, control: info.control(), data: info.data().to_vec() }
    }
}

impl SdrStorm<'_> {
    /// Sends some forgeries.
    pub(super) fn attack(&mut self, world: &mut World, forgeries: u32) {
        for _ in 0..forgeries {
            let (kind, packets) = self.forge(world);
            for packet in packets {
                self.attacked.count(kind);
                let at = self.scenario.attack.as_ref().map_or(0, |attack| attack.host);
                world.inject(HostId(at), packet);
            }
        }
    }

    fn forge(&mut self, world: &World) -> (Forgery, Vec<Packet>) {
        let forger = &mut self.forger;
        let rng = &mut forger.rng;
        if self.seals.is_some() && rng.percent(60) {
            let ends: Vec<_> = self.known.iter().map(|end| [end.control, end.control]).collect();
            let made = tamper(rng, world, &ends);
            return made.map_or((Forgery::Noise, Vec::new()), |(kind, p)| (kind, vec![p]));
        }
        let victim = &self.known[rng.below(self.known.len() as u64) as usize];
        let addr = |host: usize| world.nic(NicId(host)).config().addr;
        let (src, dst) = (addr(1 - victim.host), addr(victim.host));
        let mtu = victim.mtu;
        let to = |qpn: Qpn| Target { src, dst, qpn, mtu, reliable: false };
        let psns = rng.pick(&[EARLY_PSNS, 1 << 24]);
        let psn = Psn::new(rng.below(psns) as u32);
        let data = to(rng.pick(&victim.data));
        match rng.below(8) {
            0..3 => {
                // A packet near the start of a message that is likely to be open.
                let [_, offset_bits, user_bits] = victim.layout.bits();
                let id = rng.below(victim.layout.ids().into()) as u32;
                let packet = rng.below(8.min(1 << offset_bits)) as u32;
                let user = rng.below(1 << user_bits) as u32;
                let imm = id << (offset_bits + user_bits) | packet << user_bits | user;
                (Forgery::Write, vec![forger.landing(&data, psn, imm)])
            }
            3..6 => {
                let bytes = control_message(rng);
                let to = to(victim.control);
                let ext = ExtHeaders::default();
                (Forgery::SdrControl, forger.send_bytes(&to, psn, &bytes, ext))
            }
            _ => {
                let kind = rng.pick(&Forgery::UC);
                let to = if rng.percent(50) { data } else { to(victim.control) };
                (kind, forger.forge(kind, &to, psn).0)
            }
        }
    }
}
