//! The final check: at quiescence, everything must be explained.

use bowline_nic::QpType;

use super::app::Storm;
use super::end::ConnState;
use super::scenario::Role;
use crate::check::bounds;
use crate::world::World;

impl Storm<'_> {
    /// What is still unfinished, when time is up.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let mut what = Vec::new();
        for (index, conn) in self.conns.iter().enumerate() {
            for end in [index * 2, index * 2 + 1] {
                let state = &self.ends[end];
                let idle = conn.state == ConnState::Dead && self.has_drained(end);
                if idle || (conn.state == ConnState::Up && self.end_is_done(end)) {
                    continue;
                }
                what.push(format!(
                    "end {end} ({:?}, {:?}, {:?}{}): posted {} of {} operations, \
                     {} outstanding{}, {} of {} messages delivered, {} receives posted",
                    self.conn_plan(end).qp_type,
                    self.conn_plan(end).role,
                    conn.state,
                    self.failover
                        .as_ref()
                        .map_or(String::new(), |f| format!(", {}", f.describe(end))),
                    state.next_op,
                    self.end_plan(end).ops.len(),
                    state.sends.len(),
                    state.sends.oldest().map_or(String::new(), |id| format!(" from {id:#x}")),
                    state.delivery.delivered(),
                    state.delivery.sent_count(),
                    state.receives.len(),
                ));
            }
        }
        what
    }

    /// An unreliable connection may have started to fill a receive that no message ever completed.
    fn excuse_partial_messages(&mut self, end: usize) {
        if self.conn_plan(end).qp_type == QpType::Uc {
            let memory = &mut self.ends[end].memory;
            for pieces in memory.recv_pieces.clone() {
                memory.recv.loosen(&pieces);
            }
        }
    }

    /// Checks the final state when all work is done.
    pub(super) fn judge(&mut self, world: &mut World) {
        self.judge_failover(world);
        let now = world.now();
        for end in (0..self.ends.len()).filter(|end| self.is_hostage(*end)).collect::<Vec<_>>() {
            for wr_id in self.ends[end].sends.reset() {
                self.doubt(end, wr_id);
            }
        }
        for end in 0..self.ends.len() {
            self.excuse_partial_messages(end);
            let bytes = self.ends[end].memory.check();
            self.sink.check(now, "bytes", bytes.map_err(|what| format!("end {end}: {what}")));
            let swaps = self.settle_swaps(end);
            self.sink.check(now, "atomics", swaps.map_err(|what| format!("end {end}: {what}")));
            let conn = &self.conns[end / 2];
            let normal = self.conn_plan(end).role == Role::Normal;
            if normal && self.ends[end].was_flushed && !conn.failed {
                self.sink.report(
                    now,
                    "completions",
                    format!("end {end}: a receive was flushed, but nothing failed"),
                );
            }
        }
        for (index, nic) in self.nics.iter().enumerate() {
            for (word, adds) in nic.add_words.iter().enumerate() {
                let judged = adds.check(nic.adds.word(word * 8));
                self.sink.check(
                    now,
                    "atomics",
                    judged.map_err(|what| format!("nic{index} word {word}: {what}")),
                );
            }
            self.sink.check(now, "guards", nic.arena.check());
            if let Some(srq) = &nic.srq {
                self.sink.check(now, "guards", srq.arena.check());
            }
        }
        for (index, conn) in self.conns.iter().enumerate() {
            let released = self.is_hostage(index * 2) && conn.state == ConnState::Up;
            self.coverage.attack.hostages_released += u64::from(released);
        }
        self.sink.check(now, "bounds", bounds::check(world));
        self.sink.check(now, "bounds", self.fec.check_bounds());
    }
}
