//! How messages end, and how both ends learn of it.

use bowline_nic::{Rnic, Time};

use super::event::{Failure, ReliableEvent};
use super::outgoing::Outgoing;
use super::wire::Message;
use super::{MAX_PROBE_NS, MIN_PROBE_NS, RecvId, ReliableQp, WriteId, slot};

/// How often the receiver is told that a message was given up, until it confirms: with doubling
/// intervals, for about half a minute.
const MAX_ABORTS: u32 = 20;

/// Schedule for telling the receiver again that a message was given up.
pub(super) struct Abort {
    pub(super) at: Time,
    wait_ns: u64,
    left: u32,
    /// Members that have not confirmed, as a bit set.
    unaware: u64,
}

impl ReliableQp {
    pub(super) fn finish_started(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        id: u64,
        result: Result<(), Failure>,
    ) {
        let message = slot(&mut self.outgoing, self.first_out, id);
        if message.is_some_and(|message| message.started) {
            self.finish_out(nic, now, id, result);
        }
    }

    /// A member has all of a message; when all members have, it is over.
    pub(super) fn finish_at(&mut self, nic: &mut dyn Rnic, now: Time, id: u64, member: usize) {
        let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
        message.lacking &= !(1 << member);
        message.unaware &= !(1 << member);
        if message.lacking == 0 {
            self.finish_started(nic, now, id, Ok(()));
        }
    }

    /// Repeats the outcome of a message, which the sender has not heard.
    pub(super) fn confirm(&mut self, nic: &mut dyn Rnic, now: Time, id: u64) {
        if self.refused.contains(&id) {
            return self.tell(nic, now, Message::Refused(id));
        }
        let below = self.refused.first().map_or(self.first_in, |id| self.first_in.min(*id));
        let recovered = self.stats.chunks_recovered;
        self.tell(nic, now, Message::Finished(id, below, recovered));
    }

    pub(super) fn finish_out(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        id: u64,
        result: Result<(), Failure>,
    ) {
        let index = id.wrapping_sub(self.first_out) as usize;
        let Some(message) = self.outgoing.get_mut(index).and_then(Option::take) else { return };
        for handle in &message.handles {
            // Places for which nothing was to be sent have ended already.
            let _ = self.sdr.send_cancel(*handle);
        }
        if result.is_err() {
            self.tell(nic, now, Message::Aborted(id));
            let at = now.plus_nanos(MIN_PROBE_NS);
            let unaware = self.sdr.live_members();
            self.aborting
                .insert(id, Abort { at, wait_ns: MIN_PROBE_NS, left: MAX_ABORTS, unaware });
        }
        self.stats.chunks_resent += message.resent;
        if result.is_ok() {
            self.repaired.add(u64::from(message.shape.chunks()), message.resent);
        }
        self.draining.push((message, result));
        while let Some(None) = self.outgoing.front() {
            self.outgoing.pop_front();
            self.first_out += 1;
        }
    }

    /// Releases the memory of messages that the NIC is done with, and reports them.
    pub(super) fn release_drained(&mut self) {
        let sdr = &self.sdr;
        let failed = sdr.has_failed();
        let is_drained = |(message, _): &mut (Outgoing, _)| {
            failed || message.handles.iter().all(|handle| sdr.send_is_idle(*handle))
        };
        for (message, result) in self.draining.extract_if(.., is_drained) {
            if let Some(parity) = message.parity {
                self.scratch.give_back(parity);
            }
            self.events.push_back(ReliableEvent::Written { id: WriteId(message.id), result });
        }
    }

    pub(super) fn finish_in(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        id: u64,
        result: Result<(), Failure>,
    ) {
        let Some(index) = id.checked_sub(self.first_in) else { return };
        let Some(message) = self.incoming.get_mut(index as usize).and_then(Option::take) else {
            return;
        };
        for handle in message.handles.iter().flatten() {
            // They are all open: nothing else completes them.
            let _ = self.sdr.recv_complete(nic, *handle);
        }
        self.stats.chunks_recovered += message.recovered;
        if let Some(parity) = message.parity {
            self.scratch.give_back(parity);
        }
        let (len, imm) = message.begun.map_or((0, None), |(begin, _)| (begin.len, begin.imm));
        self.events.push_back(ReliableEvent::Received { id: RecvId(id), len, imm, result });
        while let Some(None) = self.incoming.front() {
            self.incoming.pop_front();
            self.first_in += 1;
        }
        if result.is_err() {
            self.refused.insert(id);
        }
        self.confirm(nic, now, id);
    }

    pub(super) fn fail_all(&mut self, nic: &mut dyn Rnic, now: Time) {
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            self.finish_out(nic, now, id, Err(Failure::Local));
        }
    }

    /// A member knows the outcome of the abandoned messages for which `of` holds.
    pub(super) fn is_aware(&mut self, member: usize, of: impl Fn(u64) -> bool) {
        self.aborting.retain(|id, abort| {
            if of(*id) {
                abort.unaware &= !(1 << member);
            }
            abort.unaware != 0
        });
    }

    pub(super) fn abort_again(&mut self, nic: &mut dyn Rnic, now: Time) {
        let mut due = Vec::new();
        self.aborting.retain(|id, abort| {
            if abort.at <= now {
                due.push(*id);
                abort.left -= 1;
                abort.wait_ns = (abort.wait_ns * 2).min(MAX_PROBE_NS);
                abort.at = now.plus_nanos(abort.wait_ns);
            }
            abort.left > 0
        });
        due.into_iter().for_each(|id| self.tell(nic, now, Message::Aborted(id)));
    }
}
