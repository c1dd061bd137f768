//! A reliable queue pair with messages beside the data: offers of memory, and XP's notes.

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

/// Receives that are posted: one for each message that may be under way, and some for messages
/// beside.
const RING: usize = MAX_OFFERS + 64;
/// Bytes of each.
const SLOT: usize = message::MAX_LEN;
/// Requests that the queue pair holds; more wait in the outbox.
const MAX_POSTED: usize = 512;
/// Completions taken at once.
const BATCH: usize = 32;

/// What the number of a work request stands for, in its upper byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A receive of the ring.
    Ring = 1,
    /// A message beside the data.
    Beside = 2,
    /// A message of data over RC.
    Data = 3,
    /// A message of data over XP.
    Express = 4,
    /// A receive for a message over XP.
    ExpressRecv = 5,
    /// The last piece of a repair.
    Repair = 6,
}

/// A number for a work request. Offers are told apart by their lower 56 bits: the others are gone.
pub(super) fn wr_id(kind: Kind, number: u64) -> u64 {
    (kind as u64) << 56 | (number & (u64::MAX >> 8))
}

/// What has happened.
#[derive(Clone, Debug)]
pub(super) enum Happened {
    /// The peer said something.
    Said(Message),
    /// The peer has written so many bytes with this number.
    Written { imm: u32, len: u32 },
    /// A work request of the transport's own has ended.
    Ended { kind: u8, number: u64, completion: Completion },
}

/// A work request that waits for room.
#[derive(Clone, Debug)]
pub(super) enum Post {
    /// A message beside the data.
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
    /// Makes a queue pair. `beside` are the completions that others add to its queue.
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

    /// Posts something, now or when there is room.
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

    /// Drives the device and hands on what has happened. `f` may post.
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
        // The slot is read, so that the next message may have it.
        self.post_slot(number as usize)?;
        f(self, happened)
    }
}

/// Whose fault a request is that has failed. Receives fail, and requests are flushed, because of
/// what the peer has sent: a request of this end's has a reason of its own.
fn failed(error: CompletionError) -> Trouble {
    let kind = (error.wr_id >> 56) as u8;
    let is_recv = kind == Kind::Ring as u8 || kind == Kind::ExpressRecv as u8;
    if is_recv || error.status == WcStatus::WrFlushErr {
        let why = format!("the connection failed by what the peer sent, or ended: {error}");
        return Trouble::remote(why);
    }
    bowline::Error::from(error).into()
}

/// An answer to something that does not belong to the transport, or to this end of it.
pub(super) fn unexpected(happened: &Happened) -> Trouble {
    Trouble::remote(format!("the peer broke the protocol: {happened:?} is not due"))
}
