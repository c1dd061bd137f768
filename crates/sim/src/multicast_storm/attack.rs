//! An attacker who knows addresses and QPNs, but no PSN.

use bowline_wire::{
    Aeth, Bth, ExtHeaders, FlowKey, NakCode, Opcode, Psn, Qpn, ROCE_UDP_PORT, Reth, Syndrome,
};

use super::app::MulticastStorm;
use crate::packet::Packet;
use crate::world::{HostId, World};

/// Guessed PSNs are at least this far from the truth, and less than half the circle: a better guess
/// can do whatever the member itself could.
const FAR: u64 = 1 << 18;

impl MulticastStorm<'_> {
    /// Sends forgeries with correct ICRCs, in a sender's or a member's name.
    pub(super) fn attack(&mut self, world: &mut World, forgeries: u32) {
        let Some(plan) = &self.scenario.attack else { return };
        for _ in 0..forgeries {
            let packet = self.forge(world);
            self.coverage.forged += 1;
            world.inject(HostId(plan.host), packet);
        }
    }

    fn forge(&mut self, world: &World) -> Packet {
        let rng = &mut self.guesses;
        let group = &self.groups[rng.below(self.groups.len() as u64) as usize];
        let member = &group.members[rng.below(group.members.len() as u64) as usize];
        let away = rng.range(FAR, (1 << 23) - FAR) as u32;
        let truth = group.psn_of(group.posted);
        let psn = if rng.percent(50) { truth.add(away) } else { truth.sub(away) };
        let member_addr = world.addr_of(HostId(member.plan.host));
        let to_sender = (member_addr, group.key.sender, member.id);
        let to_group = (group.key.sender, member_addr, group.key.id);
        let nak = |code| Some(Syndrome::Nak(code));
        let (opcode, (src, dst, qpn), syndrome) = match rng.below(9) {
            0 => (Opcode::CNP, to_sender, None),
            1 => (Opcode::RC_ACK, to_sender, nak(NakCode::PsnSequence)),
            2 => (Opcode::RC_ACK, to_sender, nak(NakCode::RemoteAccess)),
            3 => (Opcode::RC_ACK, to_sender, Some(Syndrome::Rnr { timer: 31 })),
            4 => (Opcode::RC_WRITE_ONLY, to_group, None),
            5 => (Opcode::RC_SEND_ONLY, to_group, None),
            6 => (Opcode::RC_READ_REQ, to_group, None),
            _ => (Opcode::RC_ACK, to_sender, Some(Syndrome::Ack { credits: 31 })),
        };
        let aeth = syndrome.map(|syndrome| Aeth { syndrome, msn: 0 });
        let reth = Reth { va: rng.bits(), rkey: rng.bits() as u32, len: 16 };
        let flow = FlowKey { src, dst, src_port: ROCE_UDP_PORT, dst_port: ROCE_UDP_PORT };
        build(&flow, opcode, (qpn, psn), aeth, reth)
    }
}

fn build(
    flow: &FlowKey,
    opcode: Opcode,
    (qpn, psn): (Qpn, Psn),
    aeth: Option<Aeth>,
    reth: Reth,
) -> Packet {
    let payload: &[u8] = if opcode == Opcode::RC_ACK { &[] } else { &[0x66; 16] };
    let ext = ExtHeaders { aeth, reth: Some(reth), ..ExtHeaders::default() };
    let bth = Bth::new(opcode, qpn, psn);
    let packet = bowline_wire::Packet { bth, ext, payload, pad_bytes: [0; 3], icrc: 0 };
    let mut bytes = vec![0; packet.wire_len().expect("a known opcode")];
    packet.emit(&mut bytes).expect("all headers are given");
    let mut packet = Packet::new(flow, bytes);
    packet.set_icrc();
    packet
}
