//! A queue pair, and what verbs leave to who uses it.

use std::collections::VecDeque;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Feedback, MrKey, Payload, PostError, QpCounters, QpInit, QpType, SendFlags,
    SendWr, Sge, Time,
};

use super::pace::{Held, Pace};
use crate::{Mr, Pd, Qp, VerbsError};

/// BTH, DETH, immediate and ICRC: what a datagram has besides its payload.
const HEADERS: u64 = 28;

/// A queue pair.
pub(super) struct Queue {
    qp: Qp,
    qp_type: QpType,
    max_send_wr: u32,
    signal_all: bool,
    /// Where inline bytes go, in a slot for each request of the queue.
    inline: Option<Inline>,
    /// Requests that the provider has had, and those of them that are known to be over.
    posted: u64,
    retired: u64,
    /// Those that will have a completion, oldest first.
    signaled: VecDeque<Signaled>,
    /// Requests since the last of them.
    unsignaled: u32,
    pace: Option<Pace>,
    counters: QpCounters,
}

/// A request that will have a completion.
struct Signaled {
    /// How many had been posted before it.
    number: u64,
    /// The protocol did not ask for it.
    is_ours: bool,
}

/// Memory for inline bytes.
struct Inline {
    mr: Mr,
    buffer: Arc<Buffer>,
    max: usize,
}

impl Queue {
    pub(super) fn new(qp: Qp, pd: &Arc<Pd>, init: &QpInit) -> Result<Queue, VerbsError> {
        let inline = match init.max_inline as usize {
            0 => None,
            max => {
                let buffer = Buffer::new(max * init.max_send_wr as usize);
                Some(Inline { mr: Mr::register(pd, &buffer, Access::empty())?, buffer, max })
            }
        };
        Ok(Queue {
            qp,
            qp_type: init.qp_type,
            max_send_wr: init.max_send_wr,
            signal_all: init.signal_all,
            inline,
            posted: 0,
            retired: 0,
            signaled: VecDeque::new(),
            unsignaled: 0,
            pace: None,
            counters: QpCounters::default(),
        })
    }

    pub(super) fn qp(&self) -> &Qp {
        &self.qp
    }

    pub(super) fn qp_type(&self) -> QpType {
        self.qp_type
    }

    pub(super) fn counters(&self) -> &QpCounters {
        &self.counters
    }

    /// Puts a rate controller in charge, or none: then all that was held back leaves.
    pub(super) fn set_pace(&mut self, now: Time, pace: Option<Pace>) {
        let held = self.pace.take().map(Pace::into_held).unwrap_or_default();
        for held in held {
            // One that the provider does not take now fails by its queue pair.
            let _ = self.send(now, &held.request());
        }
        self.pace = pace;
    }

    pub(super) fn hear(&mut self, now: Time, feedback: &Feedback) {
        if let Some(pace) = &mut self.pace {
            pace.hear(now, feedback);
        }
    }

    /// The queue pair was reset: nothing is outstanding.
    pub(super) fn forget(&mut self) {
        (self.posted, self.retired, self.unsignaled) = (0, 0, 0);
        self.signaled.clear();
    }

    /// Posts a request, or holds it back until its time has come.
    pub(super) fn post(&mut self, now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        let held = self.pace.as_ref().map_or(0, Pace::len);
        let number = self.posted + held as u64;
        if number - self.retired >= u64::from(self.max_send_wr) {
            return Err(PostError::Full);
        }
        let copied;
        let sges = match wr.payload {
            Payload::Sges(sges) => sges,
            Payload::Inline(bytes) => {
                copied = [self.copy(number, bytes)?];
                &copied[..usize::from(!bytes.is_empty())]
            }
        };
        let wr = SendWr { payload: Payload::Sges(sges), ..*wr };
        if let Some(pace) = &mut self.pace
            && (held > 0 || !pace.allows(now))
        {
            pace.hold(Held::new(&wr, sges));
            return Ok(());
        }
        self.send(now, &wr)
    }

    /// Puts inline bytes where the NIC finds them. The slot is free: as many requests as there are
    /// slots are outstanding at most.
    fn copy(&self, number: u64, bytes: &[u8]) -> Result<Sge, PostError> {
        let (given, max) = (bytes.len(), self.inline.as_ref().map_or(0, |inline| inline.max));
        let inline = self.inline.as_ref().filter(|_| given <= max);
        let inline = inline.ok_or(PostError::InlineTooLong { given, max })?;
        let at = (number % u64::from(self.max_send_wr)) as usize * max;
        inline.buffer.write_at(at, bytes);
        let addr = inline.buffer.addr() + at as u64;
        Ok(Sge::new(MrKey(inline.mr.lkey()), addr, given as u32))
    }

    /// Hands a request to the provider.
    fn send(&mut self, now: Time, wr: &SendWr<'_>) -> Result<(), PostError> {
        let is_asked = self.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        // A provider takes no more once the queue is full of requests without completions.
        let is_ours = !is_asked && self.unsignaled + 1 >= (self.max_send_wr / 4).max(1);
        let mut wr = *wr;
        if is_ours {
            wr.flags |= SendFlags::SIGNALED;
        }
        self.qp.post_send(&[wr]).map_err(|(_, error)| error)?;
        if is_asked || is_ours {
            self.signaled.push_back(Signaled { number: self.posted, is_ours });
            self.unsignaled = 0;
        } else {
            self.unsignaled += 1;
        }
        self.posted += 1;
        let payload = match wr.payload {
            Payload::Sges(sges) => sges.iter().map(|sge| u64::from(sge.len)).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        };
        let bytes = payload + HEADERS;
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += bytes;
        if let Some(pace) = &mut self.pace {
            pace.sent(now, bytes);
        }
        Ok(())
    }

    /// A send has completed, and all before it with it; whether the protocol is to hear of it.
    pub(super) fn completed(&mut self) -> bool {
        let Some(Signaled { number, is_ours }) = self.signaled.pop_front() else { return true };
        self.retired = number + 1;
        !is_ours
    }

    /// Hands what was held back and is due to the provider; how many requests that was.
    pub(super) fn pump(&mut self, now: Time) -> u64 {
        let mut posted = 0;
        while let Some(held) = self.pace.as_mut().and_then(|pace| pace.take_due(now)) {
            match self.send(now, &held.request()) {
                Ok(()) => posted += 1,
                Err(PostError::Full) => {
                    if let Some(pace) = &mut self.pace {
                        pace.put_back(held);
                    }
                    break;
                }
                // A queue pair that takes nothing any more has had a completion that says so.
                Err(_) => {}
            }
        }
        posted
    }

    /// When something that is held back is due.
    pub(super) fn due(&mut self, now: Time) -> Option<Time> {
        self.pace.as_mut()?.due(now)
    }
}
