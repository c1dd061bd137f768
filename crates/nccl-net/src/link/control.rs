//! A reliable queue pair for control messages: offers of memory, and XP's control messages.

use std::collections::VecDeque;

use bowline::{
    Access, Channel, Completion, CompletionError, CompletionExt, Cq, Mr, Pd, Qp, QpType, Remote,
    SendOp, SendWr, Sge, WcOpcode, WcStatus,
};

use super::message::{self, Message};
use super::{Wanted, connect_qp};
use crate::comm::MAX_OFFERS;
use crate::devices::OpenNic;
use crate::status::Trouble;

/// Number of posted receives: one for each message that may be in progress, and some for control
/// messages.
const RING: usize = MAX_OFFERS + 64;
/// Size of each in bytes.
const SLOT: usize = message::MAX_LEN;
/// Maximum number of requests in the queue pair; more wait in the outbox.
const MAX_POSTED: usize = 512;
/// How many completions to take at once.
const BATCH: usize = 32;

/// What a work request is for: the upper byte of its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A receive of the ring.
    Ring = 1,
    /// A control message.
    Beside = 2,
    /// A data message over RC.
    Data = 3,
    /// A data message over XP.
    Express = 4,
    /// A receive for a message over XP.
    ExpressRecv = 5,
    /// The last piece of a repair.
    Repair = 6,
}

/// The number of a work request. The lower 56 bits identify an offer: offers that differ only above
/// them no longer exist.
pub(super) fn wr_id(kind: Kind, number: u64) -> u64 {
    (kind as u64) << 56 | (number & (u64::MAX >> 8))
}

/// An event.
#[derive(Clone, Debug)]
pub(super) enum Happened {
    /// The peer sent a control message.
    Said(Message),
    /// The peer has written this many bytes with this immediate.
    Written { imm: u32, len: u32 },
    /// A work request of the transport itself has completed.
    Ended { kind: u8, number: u64, completion: Completion },
}

/// A work request that waits for room.
#[derive(Clone, Debug)]
pub(super) enum Post {
    /// A control message.
    Message(Vec<u8>),
    /// Data.
    Write { id: u64, from: Option<Sge>, to: Remote, imm: Option<u32> },
}

/// The queue pair, its completion queue and its ring.
pub(super) struct Control {
    qp: Qp,
    pub(super) cq: Cq,
    ring: Mr,
    outbox: VecDeque<Post>,
    posted: usize,
}

impl Control {
    /// Creates a queue pair. `beside` is the number of completions that others may add to its
    /// completion queue.
    pub(super) fn new(nic: &OpenNic, pd: &Pd, beside: usize) -> Result<Control, Trouble> {
        let cq = nic.device.create_cq((RING + MAX_POSTED + beside) as u32)?;
        let qp = pd
            .qp(QpType::Rc, &cq)
            .max_send_wr(MAX_POSTED as u32)
            .max_recv_wr(RING as u32)
            .max_inline(SLOT as u32)
            .access(Access::REMOTE_WRITE)
            .build()?;
        let ring = pd.register(RING * SLOT, Access::LOCAL_WRITE)?;
        let control = Control { qp, cq, ring, outbox: VecDeque::new(), posted: 0 };
        (0..RING).try_for_each(|slot| control.post_slot(slot))?;
        Ok(control)
    }

    pub(super) fn connect(&self, wanted: Wanted, channel: &mut Channel) -> Result<(), Trouble> {
        Ok(connect_qp(&self.qp, wanted, channel)?)
    }

    fn post_slot(&self, slot: usize) -> Result<(), Trouble> {
        let range = slot * SLOT..(slot + 1) * SLOT;
        Ok(self.qp.recv(wr_id(Kind::Ring, slot as u64), &self.ring, range)?)
    }

    /// Posts a work request, now or when there is room.
    pub(super) fn post(&mut self, post: Post) -> Result<(), Trouble> {
        self.outbox.push_back(post);
        self.flush()
    }

    /// Whether nothing waits to be acknowledged.
    pub(super) fn is_quiet(&self) -> bool {
        self.outbox.is_empty() && self.posted == 0
    }

    fn flush(&mut self) -> Result<(), Trouble> {
        while self.posted < MAX_POSTED {
            let Some(post) = self.outbox.pop_front() else { break };
            match &post {
                Post::Message(bytes) => self.qp.send_inline(wr_id(Kind::Beside, 0), bytes)?,
                Post::Write { id, from, to, imm } => {
                    let op = match imm {
                        Some(imm) => SendOp::WriteImm(*to, *imm),
                        None => SendOp::Write(*to),
                    };
                    self.qp.post_send(&SendWr::new(*id, op, from.as_slice()))?;
                }
            }
            self.posted += 1;
        }
        Ok(())
    }

    /// Drives the device and passes events to `f`, which may post.
    pub(super) fn poll(
        &mut self,
        mut f: impl FnMut(&mut Control, Happened) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let mut completions = [Completion::default(); BATCH];
        loop {
            let count = self.cq.poll(&mut completions)?;
            for completion in &completions[..count] {
                self.take(completion.ok().map_err(failed)?, &mut f)?;
            }
            if count < BATCH {
                break;
            }
        }
        self.flush()
    }

    fn take(
        &mut self,
        completion: Completion,
        f: &mut impl FnMut(&mut Control, Happened) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        let (kind, number) = ((completion.wr_id >> 56) as u8, completion.wr_id & (u64::MAX >> 8));
        if kind != Kind::Ring as u8 {
            if kind != Kind::Express as u8 && kind != Kind::ExpressRecv as u8 {
                self.posted = self.posted.saturating_sub(1);
            }
            return f(self, Happened::Ended { kind, number, completion });
        }
        let happened = match (completion.opcode, completion.imm) {
            (WcOpcode::RecvWriteImm, Some(imm)) => {
                Happened::Written { imm, len: completion.byte_len }
            }
            _ => {
                let len = (completion.byte_len as usize).min(SLOT);
                Happened::Said(message::parse(&self.ring.to_vec(number as usize * SLOT, len))?)
            }
        };
        // The slot has been read, so the next message may use it.
        self.post_slot(number as usize)?;
        f(self, happened)
    }
}

/// Which end caused a request to fail. Receives fail, and requests are flushed, because of what the
/// peer has sent; a request of this end fails for its own reason.
fn failed(error: CompletionError) -> Trouble {
    let kind = (error.wr_id >> 56) as u8;
    let is_recv = kind == Kind::Ring as u8 || kind == Kind::ExpressRecv as u8;
    if is_recv || error.status == WcStatus::WrFlushErr {
        let why =
            format!("the connection failed because of what the peer sent, or it ended: {error}");
        return Trouble::remote(why);
    }
    bowline::Error::from(error).into()
}

/// The error for an event that does not belong to the transport, or to this end of it.
pub(super) fn unexpected(happened: &Happened) -> Trouble {
    Trouble::remote(format!("the peer broke the protocol: unexpected {happened:?}"))
}
