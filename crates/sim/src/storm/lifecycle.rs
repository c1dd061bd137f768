//! Reconnecting connections, and the effects of gradual crimes.

use bowline_failover::mirror::{self, Cq, Place};
use bowline_nic::{CqId, QpAttr, QpState};
use bowline_wire::Qpn;

use super::app::{Action, Storm};
use super::crime::Crime;
use super::end::{ConnState, End};
use super::scenario::Role;
use crate::engines::refusal;
use crate::hash::mix;
use crate::world::{NicId, World};

/// How often a draining connection is checked.
const DRAIN_POLL_NS: u64 = 50_000;
/// PSNs of a new connection are at least this far from the old ones, so that packets still in
/// flight cannot be mistaken for new ones.
const PSN_DISTANCE: u32 = 1 << 20;

impl Storm<'_> {
    /// Moves both ends to error, waits until they have flushed, resets and connects them again.
    pub(super) fn reconnect(&mut self, world: &mut World, conn: usize) {
        let ends = [conn * 2, conn * 2 + 1];
        let again = world.now().plus_nanos(DRAIN_POLL_NS);
        let paused = ends.iter().any(|end| world.is_paused(world.host_of(self.ends[*end].nic)));
        if self.conns[conn].state == ConnState::Dead {
            return;
        }
        if paused {
            self.at(world, again, Action::Reconnect { conn });
            return;
        }
        if self.conns[conn].state == ConnState::Up {
            // Two causes may ask for the same: a plan and a failure.
            if self.conns[conn].failed || self.is_planned(world, conn) {
                self.conns[conn].state = ConnState::Draining;
                for end in ends {
                    self.modify(world, end, QpState::Err);
                }
                self.at(world, again, Action::Reconnect { conn });
            }
            return;
        }
        for end in ends {
            self.poll_now(world, self.ends[end].nic);
        }
        let drained = |end: &End| end.sends.is_drained() && end.receives.is_empty();
        if !ends.iter().all(|end| drained(&self.ends[*end])) {
            self.at(world, again, Action::Reconnect { conn });
            return;
        }
        for end in ends {
            self.modify(world, end, QpState::Reset);
        }
        self.renew(world, conn);
        self.connect(world, conn);
    }

    /// Ends a failed hostage: what its other end still waits for may never come.
    pub(super) fn bury(&mut self, world: &mut World, conn: usize) {
        let ends = [conn * 2, conn * 2 + 1];
        if ends.iter().any(|end| world.is_paused(world.host_of(self.ends[*end].nic))) {
            let again = world.now().plus_nanos(DRAIN_POLL_NS);
            return self.at(world, again, Action::Bury { conn });
        }
        for end in ends {
            self.modify(world, end, QpState::Err);
        }
        self.conns[conn].state = ConnState::Dead;
    }

    fn is_planned(&self, world: &World, conn: usize) -> bool {
        let now = world.now().as_nanos();
        let planned = &self.scenario.conns[conn].reconnects_ns;
        (self.conns[conn].epoch as usize) < planned.len() && planned.iter().any(|at| *at <= now)
    }

    fn modify(&mut self, world: &mut World, end: usize, state: QpState) {
        // A QP that ends is on its default rail first.
        if matches!(state, QpState::Err | QpState::Reset) {
            self.release(world, end);
        }
        let ((nic, qpn), now) = (self.home(end), world.now());
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        if let Err(error) = world.nic_mut(nic).modify_qp(now, qpn, &attr) {
            self.sink.report(now, "lifecycle", format!("QP {qpn} to {state:?}: {error}"));
        }
    }

    /// Drains an end's send queue; posts wait meanwhile.
    pub(super) fn drain(&mut self, world: &mut World, end: usize) {
        let ((nic, qpn), now) = (self.home(end), world.now());
        if world.is_paused(world.host_of(nic)) {
            self.at(world, now.plus_nanos(DRAIN_POLL_NS), Action::Drain { end });
            return;
        }
        let ready = world.nic(nic).query_qp(qpn).is_some_and(|info| info.state == QpState::Rts);
        if !ready || self.conns[end / 2].state != ConnState::Up {
            return;
        }
        let attr =
            QpAttr { state: Some(QpState::Sqd), sqd_notify: Some(true), ..QpAttr::default() };
        world.note(6, || format!("end {end} drains its send queue"));
        if let Err(error) = world.nic_mut(nic).modify_qp(now, qpn, &attr) {
            self.sink.report(now, "lifecycle", format!("QP {qpn} to SQD: {error}"));
        }
    }

    /// A send queue has drained: restart it.
    pub(super) fn drained(&mut self, world: &mut World, nic: NicId, qpn: Qpn) {
        let here = &self.nics[nic.0].ends;
        let Some(end) = here.iter().copied().find(|end| self.ends[*end].qp.qpn() == qpn) else {
            self.sink.report(world.now(), "lifecycle", format!("an unknown QP {qpn} drained"));
            return;
        };
        self.coverage.drains += 1;
        world.note(7, || format!("end {end} has drained"));
        // It may have failed since.
        let (nic, qpn) = self.home(end);
        if world.nic(nic).query_qp(qpn).is_some_and(|info| info.state == QpState::Sqd) {
            self.modify(world, end, QpState::Rts);
        }
    }

    /// Resets the models of a connection.
    fn renew(&mut self, world: &mut World, conn: usize) {
        self.coverage.reconnects += 1;
        world.note(4, || format!("connection {conn} is reconnected"));
        self.conns[conn].epoch += 1;
        self.conns[conn].failed = false;
        for end in [conn * 2, conn * 2 + 1] {
            for wr_id in self.ends[end].sends.reset() {
                self.succeeded(world, end, wr_id);
            }
        }
        for end in [conn * 2, conn * 2 + 1] {
            let peer_next = self.ends[end ^ 1].next_op;
            let peer_ops = &self.end_plan(end ^ 1).ops;
            let consumed =
                peer_ops[..peer_next].iter().filter(|op| op.kind.consumes_receive()).count();
            let settled = self.settle_swaps(end);
            self.sink.check(world.now(), "atomics", settled);
            let state = &mut self.ends[end];
            state.delivery.reset();
            state.first_recv = consumed;
            state.next_recv = consumed;
            state.was_flushed = false;
            state.psns_used = 0;
            state.psn = renewed_psn(state.psn);
        }
    }

    /// Checks the outcome of compare-and-swaps whose fate is unknown.
    pub(super) fn settle_swaps(&mut self, end: usize) -> Result<(), String> {
        for word in 0..self.ends[end].swap_words.len() {
            let value = self.ends[end ^ 1].memory.swaps.word(word * 8);
            let in_order = !self.is_hostage(end);
            self.ends[end].swap_words[word].settle(value, in_order)?;
            self.ends[end].swap_ahead[word] = value;
        }
        Ok(())
    }

    /// A completion queue overflowed, as intended.
    pub(super) fn overflowed(&mut self, world: &mut World, nic: NicId, at: Place, cq: CqId) {
        let is_tiny = |tiny: &Cq| tiny.id(at) == cq;
        let here = |end: &End| end.nic == nic && end.tiny_cq.as_ref().is_some_and(is_tiny);
        let Some(end) = self.ends.iter().position(here) else {
            let what = "a queue of sufficient depth overflowed";
            self.sink.report(world.now(), "completions", what);
            return;
        };
        self.coverage.crimes_caught += 1;
        self.conns[end / 2].state = ConnState::Dead;
        // Their completions are lost, so their outcome is unknown.
        self.ends[end].sends.reset();
    }

    /// Applies the effect of a gradual crime.
    pub(super) fn commit(&mut self, world: &mut World, conn: usize, crime: Crime) {
        debug_assert_eq!(self.scenario.conns[conn].role, Role::Sacrificial(crime));
        self.conns[conn].crime_done = true;
        world.note(5, || format!("connection {conn}: {crime:?}"));
        let (criminal, victim) = (conn * 2, conn * 2 + 1);
        let done = match crime {
            Crime::PeerGone => {
                let end = &self.ends[victim];
                let state = &self.nics[end.nic.0];
                let parts = state.parts(end.cq, end.tiny_cq.as_ref(), end.uses_srq);
                end.qp.destroy(&self.engines(world, end.nic), &parts)
            }
            Crime::RemoteDereg => {
                let nic = self.ends[victim].nic;
                let slots = &mut self.ends[victim].memory.slots;
                slots.model.freeze(&slots.buffer);
                let key = slots.key;
                mirror::deregister(&self.engines(world, nic), &self.nics[nic.0].pd, key)
            }
            Crime::LocalDereg => {
                let nic = self.ends[criminal].nic;
                let key = self.ends[criminal].memory.src.key;
                mirror::deregister(&self.engines(world, nic), &self.nics[nic.0].pd, key)
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            let error = refusal(error);
            self.sink.report(world.now(), "lifecycle", format!("{crime:?}: {error}"));
        }
    }
}

/// The first PSN of a re-established connection.
pub(super) fn renewed_psn(psn: u32) -> u32 {
    let drawn = mix(u64::from(psn)) as u32 % PSN_DISTANCE;
    let distance = PSN_DISTANCE + drawn;
    // Packets of the old connection look early to one QP and late to another.
    let renewed = if drawn.is_multiple_of(2) {
        psn.wrapping_add(distance)
    } else {
        psn.wrapping_sub(distance)
    };
    renewed & 0xff_ffff
}
