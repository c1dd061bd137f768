//! State of the application: ends of connections, connections, and what each engine shares.

use std::collections::VecDeque;

use bowline_failover::mirror::{Cq, Pd, Qp, QpParts, Srq};
use bowline_nic::Time;

use super::arena::{Arena, Zone};
use super::memory::{EndMemory, Pieces};
use crate::check::atomics::{AddWord, Swap, SwapWord};
use crate::check::completions::{RecvOrder, SendOrder};
use crate::check::delivery::Delivery;
use crate::world::NicId;

/// One end of a connection.
pub(super) struct End {
    pub(super) nic: NicId,
    pub(super) qp: Qp,
    /// Where its requests complete: the index of one of its NIC's queues, unless it has its own.
    pub(super) cq: usize,
    pub(super) uses_srq: bool,
    pub(super) memory: EndMemory,
    /// Next operation to post, and its earliest time.
    pub(super) next_op: usize,
    pub(super) ready_at: Time,
    pub(super) sends: SendOrder,
    /// Messages that this end sends.
    pub(super) delivery: Delivery,
    /// Its compare-and-swap words at the peer: their values by results so far, and when everything
    /// posted has executed.
    pub(super) swap_words: Vec<SwapWord>,
    pub(super) swap_ahead: Vec<u64>,
    /// Compare-and-swaps as posted, by operation.
    pub(super) swaps: Vec<Option<Swap>>,
    pub(super) receives: RecvOrder,
    /// Times at which a receive may be posted.
    pub(super) recv_credits: VecDeque<Time>,
    /// Next receive buffer, and the one that the connection's first message goes into.
    pub(super) next_recv: usize,
    pub(super) first_recv: usize,
    /// The peer's operations before this one are known to be done, because later messages arrived.
    pub(super) announced: usize,
    /// A receive was flushed: one end must have failed.
    pub(super) was_flushed: bool,
    /// Current first PSN, and how many were used since.
    pub(super) psn: u32,
    pub(super) psns_used: u32,
    /// Its own queue, made to overflow.
    pub(super) tiny_cq: Option<Cq>,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnState {
    Up,
    /// Both ends are in error and drain; then they are reconnected.
    Draining,
    /// A sacrificial connection that has served its purpose.
    Dead,
}

/// A connection.
pub(super) struct Conn {
    pub(super) state: ConnState,
    /// How often it was reconnected.
    pub(super) epoch: u32,
    /// An end failed since it was last connected.
    pub(super) failed: bool,
    /// A gradual crime has taken effect.
    pub(super) crime_done: bool,
}

/// What the ends at one engine share.
pub(super) struct NicState {
    pub(super) pd: Pd,
    pub(super) cqs: Vec<Cq>,
    /// Queues with an unhandled notification; all of them if not event-driven.
    pub(super) ready: Vec<bool>,
    /// When a slow poller polls next, and whether it asked to be woken then.
    pub(super) next_poll: Time,
    pub(super) poll_asked: bool,
    pub(super) ends: Vec<usize>,
    pub(super) arena: Arena,
    pub(super) adds: Zone,
    pub(super) add_words: Vec<AddWord>,
    pub(super) srq: Option<SrqState>,
}

impl NicState {
    /// The components of an end's queue pair.
    pub(super) fn parts<'a>(
        &'a self,
        cq: usize,
        tiny_cq: Option<&'a Cq>,
        uses_srq: bool,
    ) -> QpParts<'a> {
        let cq = tiny_cq.unwrap_or_else(|| &self.cqs[cq]);
        let srq = self.srq.as_ref().filter(|_| uses_srq).map(|srq| &srq.queue);
        QpParts { pd: &self.pd, send_cq: cq, recv_cq: cq, srq }
    }
}

/// A shared receive queue.
pub(super) struct SrqState {
    pub(super) queue: Srq,
    pub(super) arena: Arena,
    pub(super) zone: Zone,
    pub(super) buffers: Vec<Pieces>,
    pub(super) receives: RecvOrder,
    /// Buffers to post, and when.
    pub(super) credits: VecDeque<(Time, usize)>,
}

/// Which request a work request ID names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrId {
    Send { end: usize, op: usize },
    Recv { end: usize, buffer: usize, epoch: u32 },
    Shared { nic: usize, buffer: usize },
}

const KIND_SHIFT: u32 = 60;
const OWNER_SHIFT: u32 = 40;
const EPOCH_SHIFT: u32 = 24;

impl WrId {
    pub(super) fn encode(self) -> u64 {
        let (kind, owner, epoch, index) = match self {
            WrId::Send { end, op } => (1, end, 0, op),
            WrId::Recv { end, buffer, epoch } => (2, end, epoch, buffer),
            WrId::Shared { nic, buffer } => (3, nic, 0, buffer),
        };
        kind << KIND_SHIFT
            | (owner as u64) << OWNER_SHIFT
            | u64::from(epoch) << EPOCH_SHIFT
            | index as u64
    }

    pub(super) fn decode(wr_id: u64) -> Option<WrId> {
        let owner = (wr_id >> OWNER_SHIFT & 0xf_ffff) as usize;
        let epoch = (wr_id >> EPOCH_SHIFT & 0xffff) as u32;
        let index = (wr_id & 0xff_ffff) as usize;
        match wr_id >> KIND_SHIFT {
            1 => Some(WrId::Send { end: owner, op: index }),
            2 => Some(WrId::Recv { end: owner, buffer: index, epoch }),
            3 => Some(WrId::Shared { nic: owner, buffer: index }),
            _ => None,
        }
    }
}
