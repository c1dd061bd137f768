//! The attacker in the storm over XP: it knows everything but the token.

use bowline_wire::Psn;

use super::app::XpStorm;
use crate::attack::{Forgery, Numbers, Target};
use crate::sealed_storm::tamper;
use crate::world::{HostId, NicId, World};

impl XpStorm<'_> {
    /// Sends some forgeries.
    pub(super) fn attack(&mut self, world: &mut World, forgeries: u32) {
        let scenario = self.scenario;
        let Some(plan) = &scenario.attack else { return };
        for _ in 0..forgeries {
            let victim = self.forger.rng.below(2) as usize;
            let addr = |host: usize| world.nic(NicId(host)).config().addr;
            let to = Target {
                src: addr(1 - victim),
                dst: addr(victim),
                qpn: self.ends[victim].qpn,
                mtu: scenario.mtu.bytes(),
                reliable: false,
            };
            let pair = [self.ends[0].qpn, self.ends[1].qpn];
            let (kind, packets) = if self.seals.is_some() && self.forger.rng.percent(60) {
                match tamper(&mut self.forger.rng, world, &[pair]) {
                    Some((kind, packet)) => (kind, vec![packet]),
                    None => continue,
                }
            } else if self.forger.rng.percent(90) {
                // What a host receives carries its peer's token.
                let token = scenario.tokens[1 - victim];
                let first = token << 8 | token & 0xff;
                let numbers = Numbers { token: Psn::new(token), first };
                let (kind, packet) = self.forger.xp(&to, numbers);
                (kind, vec![packet])
            } else {
                let kind = self.forger.rng.pick(&[Forgery::Cnp, Forgery::Noise, Forgery::Send]);
                (kind, self.forger.forge(kind, &to, Psn::new(0)).0)
            };
            for packet in packets {
                self.attacked.count(kind);
                world.inject(HostId(plan.host), packet);
            }
        }
    }
}
