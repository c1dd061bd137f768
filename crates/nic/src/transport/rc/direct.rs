//! The requester's WRITEs into memory that it shares with the peer: see [`crate::direct`].

use super::super::outbound;
use super::requester::{Requester, Step};
use crate::qp::{Cx, Progress, QpCore};
use crate::types::{SendOp, WcStatus};

/// Bytes of a direct WRITE that are copied before others get their turn.
const DIRECT_PIECE: u32 = 256 << 10;
/// How long after a peer was last heard from its memory is still written directly: so late at most
/// does a program notice that the peer has died.
const HEARD_FOR_NS: u64 = 20_000_000;
/// After how long it is asked for a sign of life.
const PROBE_AFTER_NS: u64 = 5_000_000;
/// A WRITE of so many bytes waits until it can be direct, if packets are still under way: a copy
/// less saves more than a round trip costs.
const WORTH_WAITING: u32 = 64 << 10;

impl<const SERVICE: u8> Requester<SERVICE> {
    /// Carries out a request that was just posted, if it is the only one and can be copied into the
    /// peer's memory.
    pub(super) fn carry_out(&mut self, core: &mut QpCore, cx: &mut Cx<'_>) {
        let number = self.cursor;
        let is_only = core.sq.head() == number && core.sq.tail() == number + 1;
        let is_new = number >= self.started && self.has_work(core) && !core.sq.is_local(number);
        if is_only && is_new && cx.memory.is_direct {
            // If it is not possible, nothing has changed, and the request waits for its turn.
            let _ = self.write_directly(core, cx, number);
        }
    }

    /// Copies a WRITE, or the next part of one, into the peer's memory, if the peer allows it and
    /// everything before is done. Otherwise it returns `None`: packets carry the request, all of
    /// it, and show whether the peer still exists.
    #[inline(never)]
    pub(super) fn write_directly(
        &mut self,
        core: &mut QpCore,
        cx: &mut Cx<'_>,
        number: u64,
    ) -> Option<Step> {
        let reach = core.reach()?;
        let done = reach.copied.take();
        let wqe = *core.sq.get(number)?;
        let SendOp::Write(remote) = wqe.op else { return None };
        let silent_ns = cx.now.nanos_since(self.progress_at);
        let is_heard = done > 0 || silent_ns < HEARD_FOR_NS;
        let is_plain = !wqe.executed && wqe.len > 0 && !core.limits.pacer.is_controlled();
        if !is_heard || !is_plain || !reach.covers(remote, wqe.len) {
            return None;
        }
        if core.sq.head() != number {
            return (wqe.len >= WORTH_WAITING).then_some(Step::Stop(Progress::Idle));
        }
        let len = (wqe.len - done).min(DIRECT_PIECE);
        outbound::payload(core, cx, number, &wqe, done, len).ok()?;
        if !reach.write((remote, wqe.len), done, cx.segments) {
            return None;
        }
        let is_over = done + len == wqe.len;
        if !is_over {
            reach.copied.set(done + len);
        }
        if silent_ns > PROBE_AFTER_NS && !self.probing {
            core.ask_for_sign();
        }
        if is_over {
            core.sq.pop();
            (self.cursor, self.started) = (number + 1, number + 1);
            cx.counters.direct_writes += 1;
            core.complete_send(cx, &wqe, WcStatus::Success);
        }
        Some(Step::Copied(outbound::packets_of(len, core.mtu())))
    }
}
