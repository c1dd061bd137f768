//! An attacker on the path of sealed connections.

use bowline_wire::Qpn;

use super::app::Storm;
use crate::sealed_storm::tamper;
use crate::world::World;

impl Storm<'_> {
    /// Sends something made of a sealed packet.
    pub(super) fn attack_on_path(&mut self, world: &mut World) {
        let qpn = |end: usize| self.ends[end].qp.qpn();
        let pairs: Vec<[Qpn; 2]> =
            (0..self.ends.len()).step_by(2).map(|end| [qpn(end), qpn(end + 1)]).collect();
        if let Some((kind, packet)) = tamper(&mut self.forger.rng, world, &pairs) {
            self.inject(world, kind, vec![packet]);
        }
    }
}
