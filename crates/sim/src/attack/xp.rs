//! Forging packets of XP, with a token that is wrong.

use bowline_wire::{Bth, ExtHeaders, ImmDt, OpKind, Opcode, Psn, Reth, XpCc, XpEth, XpTimeLeft};

use super::forge::{Forger, Target, key, noise};
use super::forgery::Forgery;
use crate::packet::Packet;

/// Fragments of the longest forged message.
const MAX_FRAGMENTS: u64 = 4;

/// What only the two ends of a connection know. An attacker's numbers are close to the right ones,
/// so that only the token protects the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbers {
    pub(crate) token: Psn,
    /// The first number of messages and receives.
    pub(crate) first: u32,
}

impl Forger {
    /// A packet of a message, a READ or its answer.
    pub(crate) fn xp(&mut self, to: &Target, numbers: Numbers) -> (Forgery, Packet) {
        let token = self.wrong_token(numbers);
        if self.rng.percent(20) {
            return (Forgery::XpControl, self.xp_control(to, token));
        }
        let rng = &mut self.rng;
        let codes = u64::from(Opcode::XP_READ_RESP_LAST.0 - Opcode::XP_SEND_MIDDLE.0) + 1;
        let opcode = Opcode(Opcode::XP_SEND_MIDDLE.0 + rng.below(codes) as u8);
        let info = opcode.info().expect("it is one of XP's");
        let mtu = u64::from(to.mtu);
        let fragments = rng.range(1, MAX_FRAGMENTS);
        let last = if fragments == 1 { rng.below(mtu) } else { rng.range(1, mtu) };
        let len = ((fragments - 1) * mtu + last) as u32;
        let k = if info.position.ends() { fragments - 1 } else { rng.below(fragments) };
        let ahead = rng.pick(&[4, 64, 1 << 30]);
        let eth = XpEth {
            wqe_seq: numbers.first.wrapping_add(rng.below(ahead) as u32),
            recv_seq: numbers.first.wrapping_add(rng.below(ahead) as u32),
            len,
            stride_log2: 0,
            token,
        };
        let reth = Reth { va: rng.below(1 << 20), rkey: key(rng), len };
        let has_reth = matches!(info.kind, OpKind::Write | OpKind::ReadRequest);
        let is_request = info.kind == OpKind::ReadRequest;
        let ext = ExtHeaders {
            xpeth: Some(eth),
            reth: has_reth.then_some(reth),
            imm: info.has_imm.then(|| ImmDt(rng.bits() as u32)),
            xp_time_left: is_request.then_some(XpTimeLeft(0)),
            ..ExtHeaders::default()
        };
        let payload_len = if k + 1 == fragments { last as u32 } else { to.mtu };
        let payload = noise(rng, if is_request { 0 } else { payload_len });
        let bth = Bth::new(opcode, to.qpn, Psn::new(k as u32));
        (Forgery::Xp, self.seal(to, bth, ext, &payload))
    }

    fn xp_control(&mut self, to: &Target, token: Psn) -> Packet {
        let rng = &mut self.rng;
        let opcode = rng.pick(&[Opcode::XP_PROBE, Opcode::XP_FEEDBACK]);
        let cc = XpCc {
            reserved: 0,
            token,
            stamp_ns: rng.bits() as u32,
            hold_ns: rng.bits() as u32,
            bytes: rng.pick(&[0, 1 << 20, u64::MAX]),
            marked_bytes: rng.pick(&[0, 1 << 20, u32::MAX]),
            credit_bytes: rng.pick(&[0, 1 << 20, u32::MAX]),
            arrival: rng.bits() as u32,
        };
        let ext = ExtHeaders { xpcc: Some(cc), ..ExtHeaders::default() };
        self.seal(to, Bth::new(opcode, to.qpn, Psn::new(0)), ext, &[])
    }

    /// Any token but the right one, now and then one that differs in a bit.
    fn wrong_token(&mut self, numbers: Numbers) -> Psn {
        let rng = &mut self.rng;
        let near = numbers.token.get() ^ 1 << rng.below(24);
        let any = Psn::new(rng.bits() as u32);
        if any == numbers.token || rng.percent(30) { Psn::new(near) } else { any }
    }
}
