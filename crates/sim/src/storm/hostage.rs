//! Connections whose PSNs an attacker guesses, and what may happen to them.
//!
//! RC and UC accept packets from anyone with the right PSN, as hardware does. So a hostage's
//! requests may fail, or seem to succeed; its receives, the results of its pending READs and
//! atomics, and the targets of its own WRITEs may hold anything. Nothing else may change, and it
//! must finish.

use bowline_nic::{Mtu, QpType, WcStatus};

use super::app::Storm;
use super::draw::{draw_end, draw_two};
use super::draw_ops::{OpMix, draw_ops};
use super::fec;
use super::scenario::{ConnPlan, Role};
use crate::rng::SimRng;

const STREAM: u64 = 0xa79;
/// Payload bytes of an end's operations: little, so that others' timeouts stay long enough.
const BYTE_BUDGET: u64 = 12_000;

/// How a hostage's request may fail: by what a NAK says, or by silence after a forgery.
const SEND_STATUSES: [WcStatus; 7] = [
    WcStatus::WrFlushErr,
    WcStatus::RemInvReqErr,
    WcStatus::RemAccessErr,
    WcStatus::RemOpErr,
    WcStatus::RetryExcErr,
    WcStatus::RnrRetryExcErr,
    WcStatus::BadRespErr,
];

/// How its receives may fail: a rejected request takes down the receive that it was given.
const RECV_STATUSES: [WcStatus; 4] =
    [WcStatus::WrFlushErr, WcStatus::LocLenErr, WcStatus::RemInvReqErr, WcStatus::RemAccessErr];

/// Draws the hostages of a seed.
pub(super) fn draw(seed: u64, nic_count: usize, rtt_ns: u64, heal_ns: u64) -> Vec<ConnPlan> {
    let rng = &mut SimRng::new(seed, STREAM);
    (0..rng.range(1, 3))
        .map(|_| {
            let qp_type = rng.pick(&[QpType::Rc, QpType::Rc, QpType::Rc, QpType::Uc]);
            let mtu = rng.pick(&Mtu::ALL);
            let mut ends = draw_two(rng, nic_count).map(|nic| draw_end(rng, nic, rtt_ns));
            for end in &mut ends {
                // Forgeries may have consumed its receives.
                end.rnr_retry = rng.range(1, 6) as u8;
                let mix = OpMix { qp_type, mtu, peer_srq: false, budget: BYTE_BUDGET, heal_ns };
                end.ops = draw_ops(rng, &mix, end);
                end.fec = rng.percent(30).then(|| fec::draw_config(rng));
            }
            let (reconnects_ns, drains_ns) = (Vec::new(), Vec::new());
            ConnPlan { qp_type, role: Role::Hostage, mtu, ends, reconnects_ns, drains_ns }
        })
        .collect()
}

/// Whether a hostage's request may fail like this.
pub(super) fn send_may_fail(status: WcStatus) -> bool {
    SEND_STATUSES.contains(&status)
}

/// Whether a hostage's receive may fail like this.
pub(super) fn receive_may_fail(status: WcStatus) -> bool {
    RECV_STATUSES.contains(&status)
}

impl Storm<'_> {
    /// From now on nothing is guaranteed about what a hostage's own requests and receives may
    /// change.
    pub(super) fn surrender(&mut self, conn: usize) {
        for end in [conn * 2, conn * 2 + 1] {
            let plan = self.end_plan(end);
            let places = self.ends[end].memory.places.clone();
            let writes = plan.ops.iter().zip(&places).filter(|(op, _)| op.kind.is_write());
            let writes: Vec<_> = writes.map(|(op, at)| (at.remote, op.len as usize)).collect();
            self.ends[end ^ 1].memory.slots.loosen(&writes);
            let memory = &mut self.ends[end].memory;
            for zone in [&mut memory.recv, &mut memory.results] {
                zone.loosen(&[(0, zone.len)]);
            }
        }
    }
}
