//! Posting work requests.

use bowline_wire::Qpn;

use super::Nic;
use crate::error::PostError;
use crate::qp::{Hold, Qp, QpCore};
use crate::queue::MAX_MESSAGE;
use crate::time::Time;
use crate::transport::max_stride;
use crate::types::{QpState, RecvWr, SendOp, SendWr, SrqId};

/// Longest request that is carried out within the call that posts it. Longer ones take turns with
/// those of other QPs, and a caller that posts many does not keep the engine from others.
const AT_ONCE: u32 = 4096;

impl Nic {
    /// Adds a send request to a QP's queue.
    pub fn post_send(&mut self, now: Time, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        let len = check_send(qp, wr)?;
        qp.core.sq.push(wr, len)?;
        qp.posted(wr.flags);
        if matches!(qp.core.state, QpState::Err | QpState::Sqe) {
            qp.core.flush_send_queue(&mut self.shared.cx(&self.config, now));
        } else if qp.core.descriptor.annotated {
            self.annotate(slot, now, wr);
        } else if qp.core.peer_memory.is_some() && len <= AT_ONCE {
            self.carry_out(slot, now);
        }
        self.after(slot);
        Ok(())
    }

    /// A short request was posted on a QP that may write memory of its peer. If nothing is before
    /// it, it is carried out within the call: it waits for no turn, and no port is asked for space.
    #[inline(never)]
    fn carry_out(&mut self, slot: u32, now: Time) {
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        if !qp.standing.is_idle() || qp.moving.hold.is_deaf() {
            return;
        }
        let Qp { core, transport, .. } = &mut **qp;
        transport.carry_out(core, &mut self.shared.cx(&self.config, now));
    }

    /// A request was posted with fields that most transports lack. Out of line, to keep the common
    /// path short.
    #[cold]
    #[inline(never)]
    fn annotate(&mut self, slot: u32, now: Time, wr: &SendWr<'_>) {
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        qp.core.sq.annotate_last(wr);
        if qp.core.descriptor.deadlines {
            self.posted_timed(slot, now, wr.deadline);
        }
    }

    /// A request or a receive with a deadline was posted. Out of line, to keep the common path
    /// short.
    #[cold]
    #[inline(never)]
    fn posted_timed(&mut self, slot: u32, now: Time, deadline: Time) {
        let Some(qp) = self.qps[slot as usize].as_mut() else { return };
        let Qp { core, transport, .. } = &mut **qp;
        transport.posted(core, &mut self.shared.cx(&self.config, now), deadline);
        self.shared.sched.arm(slot, qp);
    }

    /// Adds a receive to a QP's queue.
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        if qp.core.init.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        if qp.moving.hold == Hold::Away {
            return Err(PostError::Away);
        }
        if qp.core.state == QpState::Reset {
            return Err(PostError::WrongState(qp.core.state));
        }
        qp.core.rq.post(wr)?;
        if qp.core.state == QpState::Err {
            // Flushing does not read the time.
            qp.core.flush_recv_queue(&mut self.shared.cx(&self.config, Time::ZERO));
            self.after(slot);
        } else if qp.core.descriptor.deadlines {
            // Nor does a deadline in the future.
            self.posted_timed(slot, Time::ZERO, wr.deadline);
            self.after(slot);
        }
        Ok(())
    }

    /// Makes the oldest receive with this `wr_id` end no later than `deadline`, whatever it was
    /// posted with; XP only. `false` if there is none, because it has ended.
    pub fn hasten_recv(
        &mut self,
        now: Time,
        qpn: Qpn,
        wr_id: u64,
        deadline: Time,
    ) -> Result<bool, PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        if !qp.core.descriptor.deadlines {
            return Err(PostError::UnsupportedOp(qp.core.init.qp_type));
        }
        let Some(at) = qp.core.rq.find_id(wr_id) else { return Ok(false) };
        qp.core.rq.hasten(at, deadline);
        self.posted_timed(slot, now, deadline);
        self.after(slot);
        Ok(true)
    }

    /// Retransmits what the peer of a reliable QP has not acknowledged, without waiting for the
    /// timer. For users who know better than the timeout when a response is overdue; it changes
    /// neither the timer nor the retry count.
    pub fn resend(&mut self, now: Time, qpn: Qpn) -> Result<(), PostError> {
        let slot = self.slot(qpn).ok_or(PostError::NotFound)?;
        let Some(qp) = self.qps[slot as usize].as_mut() else {
            return Err(PostError::NotFound);
        };
        if qp.core.state != QpState::Rts {
            return Err(PostError::WrongState(qp.core.state));
        }
        let Qp { core, transport, .. } = &mut **qp;
        transport.resend(core, &mut self.shared.cx(&self.config, now));
        self.after(slot);
        Ok(())
    }

    /// Adds a receive to a shared receive queue.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.srqs.post(srq, wr)
    }
}

/// Checks what does not depend on the queue itself. Returns the message length in bytes.
fn check_send(qp: &Qp, wr: &SendWr<'_>) -> Result<u32, PostError> {
    let core = &qp.core;
    if qp.moving.hold == Hold::Away {
        return Err(PostError::Away);
    }
    if matches!(core.state, QpState::Reset | QpState::Init | QpState::Rtr) {
        return Err(PostError::WrongState(core.state));
    }
    if !core.descriptor.operations.contains(wr.op.operation()) {
        return Err(PostError::UnsupportedOp(core.init.qp_type));
    }
    if core.descriptor.connected == wr.ud.is_some() {
        return Err(PostError::BadDestination);
    }
    let len = wr.len();
    match wr.op {
        SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) if len > 0 => {
            return Err(PostError::TooLong { given: len, max: 0 });
        }
        SendOp::CompareSwap { remote, .. } | SendOp::FetchAdd { remote, .. }
            if len != 8 || !remote.addr.is_multiple_of(8) =>
        {
            return Err(PostError::BadAtomic);
        }
        SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. } | SendOp::Read(_)
            if core.attrs.max_rd_atomic == 0 =>
        {
            return Err(PostError::NoReads);
        }
        _ => {}
    }
    if wr.stride > 1 && core.descriptor.deadlines {
        check_stride(core, wr.stride)?;
    }
    let max = core.descriptor.max_message(core.mtu()).min(MAX_MESSAGE);
    if len > max {
        return Err(PostError::TooLong { given: len, max });
    }
    Ok(len as u32)
}

#[cold]
fn check_stride(core: &QpCore, given: u16) -> Result<(), PostError> {
    let max = max_stride(core.mtu());
    let fits = given.is_power_of_two() && u32::from(given) <= max;
    if fits { Ok(()) } else { Err(PostError::BadStride { given, max }) }
}
