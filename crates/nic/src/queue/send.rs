//! The send queue of a QP: a ring of work requests with their gather lists and inline bytes.

use bowline_wire::Psn;

use crate::error::PostError;
use crate::sched::Timers;
use crate::time::Time;
use crate::types::{Payload, QpInit, Remote, SendFlags, SendOp, SendWr, Sge, UdDest};

/// A send work request on its queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    pub(crate) flags: SendFlags,
    pub(crate) inline: bool,
    pub(crate) sge_count: u8,
    /// Bytes of the message.
    pub(crate) len: u32,
    /// PSNs that it uses, once started.
    pub(crate) packets: u32,
    /// First PSN, once started.
    pub(crate) first_psn: Psn,
    /// The peer has carried it out on an earlier connection: it only has to complete in order. Or,
    /// where requests have deadlines: it completed at its deadline, and only uses up its numbers
    /// when its turn comes.
    pub(crate) executed: bool,
}

impl Wqe {
    /// The PSN after its last.
    #[inline]
    pub(crate) fn end_psn(&self) -> Psn {
        self.first_psn.add(self.packets)
    }

    /// Whether it consumes one of the peer's receives.
    #[inline]
    pub(crate) fn is_two_sided(&self) -> bool {
        matches!(
            self.op,
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInvalidate(_) | SendOp::WriteImm(..)
        )
    }

    /// Turns a copy of it into an empty WRITE, which only keeps its place in the sequence.
    pub(crate) fn become_empty(&mut self) {
        self.op = SendOp::Write(Remote { addr: 0, rkey: 0 });
        self.len = 0;
        self.inline = false;
    }

    /// Whether the peer answers it with data rather than an acknowledgement.
    #[inline]
    pub(crate) fn wants_response(&self) -> bool {
        matches!(self.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. })
    }
}

/// Additional fields of a request with a deadline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) deadline: Time,
    /// Blocks that share a packet, as a power of two.
    pub(crate) stride_log2: u8,
}

/// Additional state of a queue whose requests have deadlines, by place.
#[derive(Debug)]
struct Timed {
    timings: Box<[Timing]>,
    /// Requests that end by a deadline.
    timers: Timers,
}

/// A bounded ring of [`Wqe`]s, numbered from 0 without wrapping. Its memory is allocated once.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Vec<Wqe>,
    sges: Vec<Sge>,
    inline: Vec<u8>,
    /// Destinations, for a UD QP.
    dests: Vec<UdDest>,
    /// Present where requests have deadlines.
    timed: Option<Box<Timed>>,
    /// By place: the peer's shared receive queue that a request names, where requests name one.
    srqns: Box<[u32]>,
    /// A request that sends nothing has been posted: few queues ever have one.
    has_local: bool,
    max_sge: usize,
    max_inline: usize,
    head: u64,
    tail: u64,
    /// Requests from this number on are withheld.
    doorbell: u64,
}

const EMPTY: Wqe = Wqe {
    wr_id: 0,
    op: SendOp::Send,
    flags: SendFlags::empty(),
    inline: false,
    sge_count: 0,
    len: 0,
    packets: 0,
    first_psn: Psn::new(0),
    executed: false,
};

const UNTIMED: Timing = Timing { deadline: Time::NEVER, stride_log2: 0 };

/// Longest message: 2^31 bytes, as in the standard.
pub(crate) const MAX_MESSAGE: u64 = 1 << 31;

impl SendQueue {
    pub(crate) fn new(init: &QpInit) -> SendQueue {
        let n = init.max_send_wr as usize;
        SendQueue {
            ring: vec![EMPTY; n],
            sges: vec![Sge::default(); n * init.max_send_sge as usize],
            inline: vec![0; n * init.max_inline as usize],
            dests: Vec::with_capacity(if init.qp_type.descriptor().connected { 0 } else { n }),
            timed: init.qp_type.descriptor().deadlines.then(|| {
                let timings = vec![UNTIMED; n].into();
                Box::new(Timed { timings, timers: Timers::default() })
            }),
            srqns: vec![0; if init.qp_type.descriptor().addressed { n } else { 0 }].into(),
            has_local: false,
            max_sge: init.max_send_sge as usize,
            max_inline: init.max_inline as usize,
            head: 0,
            tail: 0,
            doorbell: u64::MAX,
        }
    }

    /// A queue that is never used: for a QP whose queues are on another NIC.
    pub(crate) fn placeholder() -> SendQueue {
        SendQueue {
            ring: Vec::new(),
            sges: Vec::new(),
            inline: Vec::new(),
            dests: Vec::new(),
            timed: None,
            srqns: Box::default(),
            has_local: false,
            max_sge: 0,
            max_inline: 0,
            head: 0,
            tail: 0,
            doorbell: u64::MAX,
        }
    }

    /// Withholds requests from this number on until [`SendQueue::release`].
    pub(crate) fn withhold_from(&mut self, number: u64) {
        self.doorbell = number;
    }

    /// Stops withholding requests.
    pub(crate) fn release(&mut self) {
        self.doorbell = u64::MAX;
    }

    /// The first number that is withheld.
    pub(crate) fn withheld_from(&self) -> Option<u64> {
        (self.doorbell != u64::MAX).then_some(self.doorbell)
    }

    /// One past the last request that may be sent.
    #[inline]
    pub(crate) fn sendable_end(&self) -> u64 {
        self.tail.min(self.doorbell)
    }

    /// Number of the oldest request.
    #[inline]
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// Number that the next request will get.
    #[inline]
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }

    pub(crate) fn is_full(&self) -> bool {
        self.tail - self.head >= self.ring.len() as u64
    }

    #[inline]
    fn slot(&self, number: u64) -> usize {
        (number % self.ring.len() as u64) as usize
    }

    /// The request of that number, if it is on the queue.
    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&Wqe> {
        (self.head <= number && number < self.tail).then(|| &self.ring[self.slot(number)])
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Wqe> {
        if number < self.head || self.tail <= number {
            return None;
        }
        let slot = self.slot(number);
        Some(&mut self.ring[slot])
    }

    /// The gather or scatter list of a request.
    #[inline]
    pub(crate) fn sges(&self, number: u64) -> &[Sge] {
        let slot = self.slot(number);
        &self.sges[slot * self.max_sge..][..self.ring[slot].sge_count as usize]
    }

    /// The inline bytes of a request.
    #[inline]
    pub(crate) fn inline(&self, number: u64) -> &[u8] {
        let slot = self.slot(number);
        &self.inline[slot * self.max_inline..][..self.ring[slot].len as usize]
    }

    /// The destination of a datagram.
    pub(crate) fn dest(&self, number: u64) -> Option<&UdDest> {
        self.dests.get(self.slot(number))
    }

    /// Whether a request is local and sends nothing.
    #[inline]
    pub(crate) fn is_local(&self, number: u64) -> bool {
        self.has_local && self.get(number).is_some_and(|wqe| wqe.op.is_local())
    }

    /// Deadline and layout of a request.
    #[inline]
    pub(crate) fn timing(&self, number: u64) -> Timing {
        let timed = self.timed.as_ref();
        timed.map_or(UNTIMED, |timed| timed.timings[self.slot(number)])
    }

    /// The peer's shared receive queue that a request names.
    pub(crate) fn srqn(&self, number: u64) -> u32 {
        self.srqns.get(self.slot(number)).copied().unwrap_or(0)
    }

    /// Records the additional fields of the request added last: deadline and layout, or a shared
    /// receive queue.
    pub(crate) fn annotate_last(&mut self, wr: &SendWr<'_>) {
        let slot = self.slot(self.tail.wrapping_sub(1));
        if let Some(srqn) = self.srqns.get_mut(slot) {
            *srqn = wr.srqn;
        }
        if let Some(timed) = &mut self.timed {
            let stride_log2 = wr.stride.checked_ilog2().unwrap_or(0) as u8;
            timed.timings[slot] = Timing { deadline: wr.deadline, stride_log2 };
            if wr.deadline != Time::NEVER {
                timed.timers.set(slot as u32, wr.deadline);
            }
        }
    }

    /// Makes a request end no later than this.
    pub(crate) fn hasten(&mut self, number: u64, deadline: Time) {
        let slot = self.slot(number);
        if let Some(timed) = &mut self.timed {
            let timing = &mut timed.timings[slot];
            timing.deadline = deadline.min(timing.deadline);
            timed.timers.set(slot as u32, timing.deadline);
        }
    }

    /// The earliest deadline of a request.
    pub(crate) fn next_deadline(&self) -> Time {
        self.timed.as_ref().and_then(|timed| timed.timers.next()).unwrap_or(Time::NEVER)
    }

    /// Number of a request whose deadline has passed. Each is returned once.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<u64> {
        let slot = u64::from(self.timed.as_mut()?.timers.pop_due(now)?);
        let len = self.ring.len() as u64;
        Some(self.head + (slot + len - self.head % len) % len)
    }

    /// Adds a request of this many bytes. The caller has checked that the QP's type and state allow
    /// it.
    #[inline]
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, len: u32) -> Result<(), PostError> {
        let (sge_count, inline) = self.measure(wr)?;
        if self.is_full() {
            return Err(PostError::Full);
        }
        let slot = self.slot(self.tail);
        match wr.payload {
            Payload::Sges(sges) => {
                self.sges[slot * self.max_sge..][..sges.len()].copy_from_slice(sges);
            }
            Payload::Inline(bytes) => {
                self.inline[slot * self.max_inline..][..bytes.len()].copy_from_slice(bytes);
            }
        }
        if let Some(dest) = wr.ud {
            match self.dests.get_mut(slot) {
                Some(d) => *d = dest,
                // Slots are first used in order, so this is the next one.
                None => self.dests.push(dest),
            }
        }
        self.has_local |= wr.op.is_local();
        self.ring[slot] =
            Wqe { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, inline, sge_count, len, ..EMPTY };
        self.tail += 1;
        Ok(())
    }

    /// How many entries a request's list has and whether it is inline, if it fits this queue.
    fn measure(&self, wr: &SendWr<'_>) -> Result<(u8, bool), PostError> {
        let wants_response =
            matches!(wr.op, SendOp::Read(_) | SendOp::CompareSwap { .. } | SendOp::FetchAdd { .. });
        match wr.payload {
            Payload::Inline(_) if wants_response => Err(PostError::InlineNotAllowed),
            Payload::Inline(bytes) if bytes.len() > self.max_inline => {
                Err(PostError::InlineTooLong { given: bytes.len(), max: self.max_inline })
            }
            Payload::Inline(_) => Ok((0, true)),
            Payload::Sges(sges) if sges.len() > self.max_sge => {
                Err(PostError::TooManySges { given: sges.len(), max: self.max_sge })
            }
            Payload::Sges(sges) => Ok((sges.len() as u8, false)),
        }
    }

    /// Takes the oldest request off.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Wqe> {
        let wqe = *self.get(self.head)?;
        if self.timed.is_some() {
            self.stop_timer(self.head);
        }
        self.head += 1;
        Some(wqe)
    }

    /// A request ends for another reason than its deadline.
    #[inline(never)]
    fn stop_timer(&mut self, number: u64) {
        let slot = self.slot(number);
        if let Some(timed) = &mut self.timed {
            timed.timers.remove(slot as u32);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.head = self.tail;
        if let Some(timed) = &mut self.timed {
            timed.timers = Timers::default();
        }
    }
}
