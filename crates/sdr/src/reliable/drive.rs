//! The life of messages between their beginning and their end: events from the NIC, the peer and
//! the clock go to the schemes.

use bowline_nic::{Rnic, Time};

use super::context::{RecvCx, SendCx};
use super::event::Failure;
use super::wire::{Begin, Message};
use super::{MAX_PROBE_NS, MIN_PROBE_NS, ReliableQp, outbox, slot};
use crate::recv::RecvHandle;
use crate::scheme::{SchemeReceiver, SchemeSender};

impl ReliableQp {
    /// Processes what has happened on the NIC and does what is due.
    pub fn drive(&mut self, nic: &mut dyn Rnic, now: Time) {
        self.sdr.drive(nic, now);
        while let Some((member, bytes)) = self.sdr.next_control_from() {
            for message in outbox::messages(&bytes) {
                self.on_message(nic, now, member, message);
            }
        }
        self.start_cleared(nic, now);
        self.on_injected(nic, now);
        self.on_progress(nic, now);
        self.on_retired(nic, now);
        self.on_time(nic, now);
        self.on_silence(nic, now);
        self.abort_again(nic, now);
        if self.sdr.has_failed() {
            self.fail_all(nic, now);
        }
        // Ahead of the data that it refers to.
        self.outbox.flush(nic, now, &mut self.sdr);
        // Sends what the schemes have queued meanwhile.
        self.sdr.drive(nic, now);
        self.release_drained();
        self.rest();
    }

    /// Without messages nothing is due, so timers of the last ones are cleared.
    fn rest(&mut self) {
        let is_idle = self.outgoing.iter().flatten().next().is_none()
            && self.incoming.iter().flatten().next().is_none();
        if is_idle {
            self.due = Time::NEVER;
        }
    }

    /// When to call [`drive`](ReliableQp::drive) if nothing happens before.
    pub fn poll_timeout(&self) -> Option<Time> {
        // Messages queued since the last time have not been sent yet.
        if !self.outbox.is_empty() {
            return Some(Time::ZERO);
        }
        let messages = (self.due != Time::NEVER).then_some(self.due);
        let aborts = self.aborting.values().map(|abort| abort.at).min();
        [messages, aborts, self.sdr.poll_timeout()].into_iter().flatten().min()
    }

    /// Calls a message's sending end.
    fn with_sender(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        id: u64,
        f: impl FnOnce(&mut dyn SchemeSender, &mut SendCx<'_>),
    ) {
        let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
        let Some(mut machine) = message.machine.take() else { return };
        let (sdr, outbox, pd, member) = (&mut self.sdr, &mut self.outbox, self.pd, self.speaker);
        let mut cx = SendCx { now, nic, sdr, outbox, pd, message, member };
        f(&mut *machine, &mut cx);
        message.machine = Some(machine);
        self.due = self.due.min(message.due(self.config.timeout_ns));
        if message.failed {
            self.finish_out(nic, now, id, Err(Failure::Local));
        }
    }

    /// Calls a message's receiving end, and completes the message if that has seen all of it.
    fn with_receiver(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        id: u64,
        f: impl FnOnce(&mut dyn SchemeReceiver, &mut RecvCx<'_>),
    ) {
        let Some(message) = slot(&mut self.incoming, self.first_in, id) else { return };
        let Some((begin, shape)) = message.begun else { return };
        let Some(mut machine) = message.machine.take() else { return };
        let (sdr, outbox, wire_ns) = (&mut self.sdr, &mut self.outbox, begin.wire_ns);
        let shape = &shape;
        let mut cx = RecvCx { now, nic, sdr, outbox, pd: self.pd, message, shape, wire_ns };
        f(&mut *machine, &mut cx);
        message.machine = Some(machine);
        self.due = self.due.min(message.due(self.config.timeout_ns));
        if message.complete {
            self.finish_in(nic, now, id, Ok(()));
        }
    }

    /// Starts messages whose receives the peer has posted.
    pub(super) fn start_cleared(&mut self, nic: &mut dyn Rnic, now: Time) {
        let end = self.first_out + self.outgoing.len() as u64;
        for number in self.next_start..end {
            let Some(message) = slot(&mut self.outgoing, self.first_out, number) else { continue };
            let last = message.handles.last().copied();
            if !last.is_some_and(|handle| self.sdr.is_cleared(handle)) {
                // They are cleared in order.
                return;
            }
            message.started = true;
            message.heard = now;
            self.next_start = number + 1;
            let (id, begin) = (message.id, message.begin);
            self.tell(nic, now, Message::Begin(begin));
            self.with_sender(nic, now, id, |machine, cx| machine.start(cx));
        }
    }

    fn on_injected(&mut self, nic: &mut dyn Rnic, now: Time) {
        let places = u64::from(self.config.places());
        let rtt_ns = self.sdr.path().smoothed_rtt_ns.unwrap_or(0);
        while let Some(injected) = self.sdr.next_injected() {
            let (id, sub) =
                (injected.handle.number() / places, (injected.handle.number() % places) as usize);
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            message.unsent = message.unsent.saturating_sub(injected.len.into());
            message.postpone_probe(now, rtt_ns);
            self.due = self.due.min(message.due(self.config.timeout_ns));
            for part in message.parts(sub, &injected) {
                self.with_sender(nic, now, id, |machine, cx| machine.injected(cx, part));
            }
            self.remind(nic, now, id);
        }
    }

    /// Reminds the receiver of a message whose end has left: it may have missed the beginning, and
    /// then could not tell that it has everything.
    fn remind(&mut self, nic: &mut dyn Rnic, now: Time, id: u64) {
        let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
        // While chunks are retransmitted for lack of an answer, the message is never idle.
        let has_left =
            message.unsent == 0 || message.handles.iter().all(|h| self.sdr.send_is_idle(*h));
        if !message.reminded && has_left {
            message.reminded = true;
            if message.unaware != 0 {
                message.probe_ns = MIN_PROBE_NS;
                message.probe_at = Some(now.plus_nanos(MIN_PROBE_NS));
            }
            let begin = message.begin;
            self.tell(nic, now, Message::Begin(begin));
        }
    }

    fn on_progress(&mut self, nic: &mut dyn Rnic, now: Time) {
        let places = u64::from(self.config.places());
        let mut dirty = std::mem::take(&mut self.dirty);
        self.sdr.take_progress(|handle: RecvHandle| dirty.push(handle.number()));
        dirty.sort_unstable();
        for of_one in dirty.chunk_by(|a, b| a / places == b / places) {
            let (id, last) = (of_one[0] / places, of_one[of_one.len() - 1] % places);
            if let Some(message) = slot(&mut self.incoming, self.first_in, id) {
                message.heard = now;
                message.top = message.top.max(last as usize);
                self.with_receiver(nic, now, id, |machine, cx| machine.progress(cx));
            }
        }
        dirty.clear();
        self.dirty = dirty;
    }

    /// If the sender has retired a message without having been told that it is complete, the rest
    /// will not come: the sender has given it up, and its notice was lost.
    fn on_retired(&mut self, nic: &mut dyn Rnic, now: Time) {
        let below = self.sdr.peer_retired() / u64::from(self.config.places());
        let end = self.first_in + self.incoming.len() as u64;
        for id in self.first_in..below.min(end) {
            self.finish_in(nic, now, id, Err(Failure::Aborted));
        }
        self.refused = self.refused.split_off(&below);
    }

    fn on_time(&mut self, nic: &mut dyn Rnic, now: Time) {
        if now < self.due {
            return;
        }
        self.out_on_time(nic, now);
        self.in_on_time(nic, now);
        let timeout = self.config.timeout_ns;
        let out = self.outgoing.iter().flatten().filter(|m| m.started).map(|m| m.due(timeout));
        let incoming = self.incoming.iter().flatten().map(|m| m.due(timeout));
        self.due = out.chain(incoming).min().unwrap_or(Time::NEVER);
    }

    fn out_on_time(&mut self, nic: &mut dyn Rnic, now: Time) {
        let timeout = self.config.timeout_ns;
        for id in self.first_out..self.first_out + self.outgoing.len() as u64 {
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            if !message.started {
                break;
            }
            if now.nanos_since(message.heard) >= timeout {
                let slowest = message.lacking.trailing_zeros() as usize;
                let failure = if self.in_group {
                    Failure::MemberTimedOut(slowest)
                } else {
                    Failure::TimedOut
                };
                self.finish_out(nic, now, id, Err(failure));
                continue;
            }
            if message.probe_at.is_some_and(|at| at <= now) {
                message.probe_ns = (message.probe_ns * 2).min(MAX_PROBE_NS);
                message.probe_at = Some(now.plus_nanos(message.probe_ns));
                let begin = message.begin;
                self.tell(nic, now, Message::Begin(begin));
            }
            let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { continue };
            if message.timer.is_some_and(|at| at <= now) {
                message.timer = None;
                self.with_sender(nic, now, id, |machine, cx| machine.timeout(cx));
            }
        }
    }

    fn in_on_time(&mut self, nic: &mut dyn Rnic, now: Time) {
        let timeout = self.config.timeout_ns;
        for id in self.first_in..self.first_in + self.incoming.len() as u64 {
            let Some(message) = slot(&mut self.incoming, self.first_in, id) else { continue };
            if message.begun.is_some() && now.nanos_since(message.heard) >= timeout {
                self.finish_in(nic, now, id, Err(Failure::TimedOut));
                continue;
            }
            if message.timer.is_some_and(|at| at <= now) {
                message.timer = None;
                self.with_receiver(nic, now, id, |machine, cx| machine.timeout(cx));
            }
        }
    }

    fn on_message(&mut self, nic: &mut dyn Rnic, now: Time, member: usize, message: Message<'_>) {
        self.speaker = member;
        match message {
            Message::Begin(begin) => self.on_begin(nic, now, begin),
            Message::ToReceiver(id, bytes) => {
                if id < self.first_in {
                    self.confirm(nic, now, id);
                } else if let Some(message) = slot(&mut self.incoming, self.first_in, id) {
                    message.heard = now;
                    self.with_receiver(nic, now, id, |machine, cx| machine.control(cx, bytes));
                }
            }
            Message::ToSender(id, bytes) => {
                let path = self.sdr.path();
                let Some(message) = slot(&mut self.outgoing, self.first_out, id) else { return };
                message.heard = now;
                message.unaware &= !(1 << member);
                // The others do not become aware by what one says.
                if message.unaware == 0 {
                    message.probe_ns = message.silence_ns(&path);
                    message.probe_at = Some(now.plus_nanos(message.probe_ns));
                }
                self.with_sender(nic, now, id, |machine, cx| machine.control(cx, bytes));
            }
            Message::Finished(id, below, recovered) => {
                // A message that has not begun cannot be finished.
                let end = self.first_out + self.outgoing.len() as u64;
                for id in self.first_out..below.min(end) {
                    self.finish_at(nic, now, id, member);
                }
                self.finish_at(nic, now, id, member);
                // For a group it is unknown how often a chunk was lost.
                if self.sdr.members() == 1 {
                    self.count_losses(recovered);
                }
                self.is_aware(member, |aborted| aborted < below || aborted == id);
            }
            Message::Aborted(id) => {
                if slot(&mut self.incoming, self.first_in, id).is_some() {
                    self.finish_in(nic, now, id, Err(Failure::Aborted));
                } else if id < self.first_in + self.incoming.len() as u64 {
                    self.confirm(nic, now, id);
                }
            }
            Message::Refused(id) => {
                let failure =
                    if self.in_group { Failure::MemberGaveUp(member) } else { Failure::Aborted };
                self.finish_started(nic, now, id, Err(failure));
                self.is_aware(member, |aborted| aborted == id);
            }
        }
    }

    fn on_begin(&mut self, nic: &mut dyn Rnic, now: Time, begin: Begin) {
        if begin.id < self.first_in {
            return self.confirm(nic, now, begin.id);
        }
        let Some(index) = begin.id.checked_sub(self.first_in) else { return };
        match self.incoming.get_mut(index as usize) {
            None => return,
            Some(None) => return self.confirm(nic, now, begin.id),
            Some(Some(message)) => {
                message.heard = now;
                if message.begun.is_some() {
                    return self.with_receiver(nic, now, begin.id, |m, cx| m.probe(cx));
                }
            }
        }
        self.begin(nic, now, begin);
    }

    /// A message is known to have begun: its scheme takes over.
    fn begin(&mut self, nic: &mut dyn Rnic, now: Time, begin: Begin) {
        let Some(scheme) = self.config.schemes.get(usize::from(begin.scheme)).cloned() else {
            return;
        };
        let Some(message) = slot(&mut self.incoming, self.first_in, begin.id) else { return };
        if begin.len > message.capacity {
            return self.finish_in(nic, now, begin.id, Err(Failure::TooLong));
        }
        let shape = self.config.shape(begin.len);
        // A peer's estimate must not keep a message alive beyond the timeout.
        let begin = Begin { wire_ns: begin.wire_ns.min(self.config.timeout_ns), ..begin };
        message.begun = Some((begin, shape));
        message.machine = Some(scheme.receiver(&shape));
        message.fill(&self.sdr, &shape);
        self.with_receiver(nic, now, begin.id, |machine, cx| machine.start(cx));
    }
}
