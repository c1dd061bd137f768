//! The attacker in a storm: its targets, and its guesses.

use bowline_failover::Rail;
use bowline_nic::{QpType, WcOpcode};
use bowline_wire::{Psn, Qpn};

use super::app::Storm;
use super::lifecycle::renewed_psn;
use super::memory::GRH_LEN;
use super::setup::QKEY;
use crate::attack::{ForgedMessage, Forgery, Target, agent_message};
use crate::check::delivery::Message;
use crate::packet::Packet;
use crate::world::{HostId, NicId, World};

/// What a forged message has in place of a request's ID.
pub(super) const FORGED: u64 = u64::MAX;
/// A wrong guess is at least this far from the truth: beyond all that an end sends, and out of
/// reach of FEC.
const MARGIN: u32 = 1 << 14;
/// Connections that move continue at PSNs a multiple of this away, and FEC numbers its packets so.
const PSN_CYCLE: u32 = 1 << 21;
/// Total bytes that it sends. More would delay genuine packets beyond their timeouts, as any flood
/// does.
const MAX_BYTES: usize = 300_000;
/// How far off a right guess may be.
const LUCKY_DISTANCE: u64 = 3;

impl Storm<'_> {
    /// Sends some forgeries.
    pub(super) fn attack(&mut self, world: &mut World, forgeries: u32) {
        for _ in 0..forgeries {
            if self.forged_bytes < MAX_BYTES {
                self.attack_once(world);
            }
        }
        self.sink.check(world.now(), "bounds", self.fec.check_bounds());
    }

    fn attack_once(&mut self, world: &mut World) {
        let hostages: Vec<usize> =
            (0..self.ends.len()).filter(|end| self.is_hostage(*end)).collect();
        let rng = &mut self.forger.rng;
        let end = if !hostages.is_empty() && rng.percent(40) {
            rng.pick(&hostages)
        } else {
            rng.below(self.ends.len() as u64) as usize
        };
        if self.seals.is_some() && rng.percent(60) {
            return self.attack_on_path(world);
        }
        let rail = rng.pick(&Rail::ALL);
        if self.failover.is_some() && rng.percent(25) {
            return self.attack_agent(world, end, rail);
        }
        let target = self.target(world, end, rail);
        match self.conn_plan(end).qp_type {
            QpType::Ud => self.attack_datagrams(world, end, &target),
            QpType::Rc | QpType::Xrc => {
                let kind = self.forger.rng.pick(&Forgery::RC);
                self.attack_connection(world, end, kind, &target);
            }
            QpType::Uc | QpType::Xp => {
                let kind = self.forger.rng.pick(&Forgery::UC);
                self.attack_connection(world, end, kind, &target);
            }
        }
    }

    fn attack_connection(&mut self, world: &mut World, end: usize, kind: Forgery, to: &Target) {
        // An on-path attacker of sealed connections knows their PSNs anyway.
        let psn = if self.is_hostage(end) || self.seals.is_some() {
            self.lucky_psn(if kind.is_response() { end } else { end ^ 1 })
        } else {
            self.wrong_psn(end)
        };
        let (packets, message) = self.forger.forge(kind, to, psn);
        let may_arrive = !to.reliable && self.seals.is_none();
        if let Some(message) = message.filter(|_| may_arrive) {
            self.announce(end, message);
        }
        self.inject(world, kind, packets);
    }

    /// Datagrams need a Q_Key, and are then accepted from anybody.
    fn attack_datagrams(&mut self, world: &mut World, end: usize, to: &Target) {
        let buffers = &self.ends[end].memory.recv_pieces;
        let room: usize = buffers.iter().map(|b| b.iter().map(|p| p.1).sum()).min().unwrap_or(0);
        let knows = self.scenario.attack.as_ref().is_some_and(|attack| attack.knows_qkeys);
        let peer = &self.ends[end ^ 1];
        let from = peer.qp.qpn();
        let to = &Target { src: world.nic(peer.nic).config().addr, ..*to };
        let rng = &mut self.forger.rng;
        // Some are too long for the receive.
        let len = rng.below((room.saturating_sub(GRH_LEN) + 16).min(to.mtu as usize) as u64 + 1);
        let imm = rng.percent(50).then(|| rng.bits() as u32);
        let pattern = rng.bits();
        let qkey = if knows { QKEY } else { QKEY ^ rng.range(1, u64::from(u32::MAX)) as u32 };
        let bytes = crate::check::pattern::message(pattern, len as usize);
        let packet = self.forger.datagram(to, from, qkey, imm, &bytes);
        if knows && self.seals.is_none() {
            self.announce(end, ForgedMessage { len: len as u32, pattern, imm, is_write: false });
        }
        self.inject(world, Forgery::Datagram, vec![packet]);
    }

    /// Agents trust whoever knows a connection's token.
    fn attack_agent(&mut self, world: &mut World, end: usize, rail: Rail) {
        let knows = self.scenario.attack.as_ref().is_some_and(|attack| attack.knows_qkeys);
        let Some(failover) = &self.failover else { return };
        let (Some(entry), Some(peer)) = (failover.entry(end), failover.entry(end ^ 1)) else {
            return;
        };
        let rail = rail.index();
        let to = Target {
            src: peer.addrs[rail],
            dst: entry.addrs[rail],
            qpn: entry.agents[rail],
            ..self.target(world, end, Rail::Default)
        };
        let qkey = if knows { entry.qkey } else { !entry.qkey };
        let bytes = agent_message(&mut self.forger.rng, entry.qpns[0]);
        let packet = self.forger.datagram(&to, peer.agents[rail], qkey, None, &bytes);
        self.inject(world, Forgery::Agent, vec![packet]);
    }

    /// An end as an outsider knows it, on one of its rails.
    fn target(&mut self, world: &World, end: usize, rail: Rail) -> Target {
        let place = |end: usize| -> (NicId, Qpn) {
            let state = &self.ends[end];
            let (at, qpn) = state.qp.on(rail);
            (self.devices[state.nic.0].at(at), qpn)
        };
        let ((nic, qpn), (peer, _)) = (place(end), place(end ^ 1));
        let plan = self.conn_plan(end);
        let somebody = self.forger.rng.below(10 * world.nic_count() as u64) as usize;
        // Mostly in the peer's name; packets from others are ignored.
        let src = if somebody < world.nic_count() { NicId(somebody) } else { peer };
        Target {
            src: world.nic(src).config().addr,
            dst: world.nic(nic).config().addr,
            qpn,
            mtu: plan.mtu.bytes(),
            reliable: plan.qp_type == QpType::Rc,
        }
    }

    /// A PSN that neither end uses, nor will use after the next failure.
    fn wrong_psn(&mut self, end: usize) -> Psn {
        let used: Vec<(u32, u32)> = [end, end ^ 1]
            .iter()
            .flat_map(|end| {
                let (psn, used) = (self.ends[*end].psn, self.ends[*end].psns_used);
                [(psn, used), (renewed_psn(psn), 0)]
            })
            .collect();
        loop {
            let guess = self.forger.rng.below(1 << 24) as u32;
            let is_near = |(first, used): &(u32, u32)| {
                let from = first.wrapping_sub(MARGIN);
                guess.wrapping_sub(from) % PSN_CYCLE <= used + 2 * MARGIN
            };
            if !used.iter().any(is_near) {
                return Psn::new(guess);
            }
        }
    }

    /// A PSN that an end has used, or is about to.
    fn lucky_psn(&mut self, end: usize) -> Psn {
        let (first, used) = (self.ends[end].psn, u64::from(self.ends[end].psns_used));
        let rng = &mut self.forger.rng;
        let back = if rng.percent(50) { used } else { used.min(LUCKY_DISTANCE) };
        let at = used - rng.below(back + 1) + rng.below(LUCKY_DISTANCE);
        Psn::new(first).add(at as u32)
    }

    /// An end of an unreliable connection may receive what was forged.
    fn announce(&mut self, end: usize, message: ForgedMessage) {
        let opcode = if message.is_write { WcOpcode::RecvWriteImm } else { WcOpcode::Recv };
        self.ends[end ^ 1].delivery.forged(Message {
            wr_id: FORGED,
            opcode,
            len: message.len,
            pattern: message.pattern,
            imm: message.imm,
            invalidate: None,
            solicited: false,
        });
    }

    pub(super) fn inject(&mut self, world: &mut World, kind: Forgery, packets: Vec<Packet>) {
        let Some(attack) = &self.scenario.attack else { return };
        for packet in packets {
            self.coverage.attack.count(kind);
            self.forged_bytes += packet.bytes.len();
            world.inject(HostId(attack.host), packet);
        }
    }
}
