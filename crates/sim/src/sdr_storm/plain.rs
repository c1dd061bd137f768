//! One end of the connection without a scheme: messages are completed on schedule, however much has
//! arrived.

use bowline_nic::{Nic, PdId, Time};
use bowline_sdr::{RecvHandle, SdrError, SdrQp, SendHandle, Source};

use super::app::{RETRY_NS, Service};
use super::memory::Memory;
use super::scenario::{PlainMessage, SdrScenario};
use crate::check::pattern;
use crate::hash::mix;

/// One end of the connection without a scheme.
pub(super) struct PlainEnd {
    pub(super) qp: SdrQp,
    host: usize,
    sources: Memory,
    sinks: Memory,
    sent: Vec<SendHandle>,
    posted: Vec<Open>,
}

/// A receive that was posted.
struct Open {
    handle: RecvHandle,
    complete_at: Time,
    over: bool,
}

fn message_bytes(scenario: &SdrScenario, sender: usize, index: usize) -> Vec<u8> {
    let seed = mix(scenario.seed ^ (sender as u64 + 2) << 32 ^ index as u64);
    pattern::message(seed, scenario.plain.messages[sender][index].len as usize)
}

impl PlainEnd {
    pub(super) fn new(nic: &mut Nic, pd: PdId, scenario: &SdrScenario, host: usize) -> PlainEnd {
        let qp = SdrQp::new(nic, pd, &scenario.plain.config).expect("drawn parameters are legal");
        let (out, inward) = (&scenario.plain.messages[host], &scenario.plain.messages[1 - host]);
        let lens: Vec<u64> = out.iter().map(|m| m.len).collect();
        let capacities: Vec<u64> = inward.iter().map(|m| m.capacity).collect();
        PlainEnd {
            qp,
            host,
            sources: Memory::new(nic, pd, &lens, mix(scenario.seed ^ 3)),
            sinks: Memory::new(nic, pd, &capacities, mix(scenario.seed ^ 4)),
            sent: Vec::new(),
            posted: Vec::new(),
        }
    }

    /// Does what is due and drives the connection. Returns when to call again.
    pub(super) fn service(&mut self, cx: &mut Service<'_>) -> Option<Time> {
        self.complete(cx);
        let retry = self.post_receives(cx);
        self.post_sends(cx);
        self.qp.drive(cx.nic, cx.now);
        // The connection's user sends no control messages of its own.
        while self.qp.next_control().is_some() {}
        let plain = &cx.scenario.plain;
        let send = plain.messages[self.host].get(self.sent.len()).map(|m| m.send_ns);
        let recv = plain.messages[1 - self.host].get(self.posted.len()).map(|m| m.recv_ns);
        let plans = [send, recv.filter(|_| retry.is_none())].map(|at| at.map(Time::from_nanos));
        let complete = self.posted.iter().filter(|o| !o.over).map(|o| o.complete_at).min();
        plans.into_iter().chain([retry, complete, self.qp.poll_timeout()]).flatten().min()
    }

    fn post_sends(&mut self, cx: &mut Service<'_>) {
        let scenario = cx.scenario;
        while let Some(plan) = scenario.plain.messages[self.host].get(self.sent.len())
            && plan.send_ns <= cx.now.as_nanos()
        {
            let index = self.sent.len();
            self.sources.write(index, &message_bytes(scenario, self.host, index));
            match self.send(scenario, index, plan) {
                Ok(handle) => self.sent.push(handle),
                Err(error) => return cx.report("events", format!("send {index} gave {error}")),
            }
        }
    }

    fn send(
        &mut self,
        scenario: &SdrScenario,
        index: usize,
        plan: &PlainMessage,
    ) -> Result<SendHandle, SdrError> {
        let source = self.sources.at(index);
        if plan.pieces.is_empty() {
            return self.qp.send_post(source, plan.len, plan.imm);
        }
        let handle = self.qp.send_start(plan.len, plan.imm)?;
        let mtu = u64::from(scenario.plain.config.mtu.bytes());
        for (i, (first, packets)) in plan.pieces.iter().enumerate() {
            let offset = first * mtu;
            let len = (packets * mtu).min(plan.len - offset);
            let source = Source { addr: source.addr + offset, ..source };
            self.qp.send_continue(handle, offset, len, source, i % 3 == 2)?;
        }
        self.qp.send_end(handle)?;
        Ok(handle)
    }

    /// Returns when to try again, if there was no space.
    fn post_receives(&mut self, cx: &mut Service<'_>) -> Option<Time> {
        let scenario = cx.scenario;
        while let Some(plan) = scenario.plain.messages[1 - self.host].get(self.posted.len())
            && plan.recv_ns <= cx.now.as_nanos()
        {
            let buffer = self.sinks.at(self.posted.len());
            match self.qp.recv_post(cx.nic, cx.now, buffer, plan.capacity) {
                Ok(handle) => {
                    let complete_at = cx.now.plus_nanos(plan.complete_ns);
                    self.posted.push(Open { handle, complete_at, over: false });
                }
                Err(SdrError::Full { .. } | SdrError::Quarantined) => {
                    cx.coverage.no_room += 1;
                    return Some(cx.now.plus_nanos(RETRY_NS));
                }
                Err(error) => {
                    cx.report("events", format!("receive gave {error}"));
                    return None;
                }
            }
        }
        None
    }

    /// Completes messages that have arrived, or whose time is up.
    fn complete(&mut self, cx: &mut Service<'_>) {
        for index in 0..self.posted.len() {
            let Open { handle, complete_at, over } = self.posted[index];
            if over {
                continue;
            }
            match self.qp.recv_bitmap(handle) {
                Ok(bitmap) if !bitmap.is_complete() && cx.now < complete_at => continue,
                Ok(_) => {}
                Err(error) => return cx.report("events", format!("message {index}: {error}")),
            }
            self.judge_message(cx, index, handle);
            if let Err(error) = self.qp.recv_complete(cx.nic, handle) {
                return cx.report("events", format!("message {index}: {error}"));
            }
            self.posted[index].over = true;
            let capacity = cx.scenario.plain.messages[1 - self.host][index].capacity;
            self.sinks.restore(index, capacity);
        }
    }

    /// A chunk that the bitmap shows has its bytes; any other packet has them, or has not arrived.
    fn judge_message(&self, cx: &mut Service<'_>, index: usize, handle: RecvHandle) {
        let scenario = cx.scenario;
        let plan = &scenario.plain.messages[1 - self.host][index];
        let Ok(bitmap) = self.qp.recv_bitmap(handle) else { return };
        cx.coverage.plain += 1;
        cx.coverage.plain_early += u64::from(!bitmap.is_complete());
        cx.note(0x300 + index as u64, || format!("message {index}: {} chunks", bitmap.count()));
        let sent = message_bytes(scenario, 1 - self.host, index);
        let untouched = self.sinks.untouched(index, plan.capacity);
        let actual = self.sinks.read(index, plan.capacity);
        let config = &scenario.plain.config;
        let mtu = config.mtu.bytes() as usize;
        for (packet, got) in actual.chunks(mtu).enumerate() {
            let range = packet * mtu..packet * mtu + got.len();
            let chunk = (range.start / config.chunk_bytes as usize) as u32;
            let came = sent.get(range.clone()).is_some_and(|bytes| bytes == got)
                // The last packet of a message that is shorter than its receive.
                || sent.get(range.start..).is_some_and(|bytes| {
                    got.starts_with(bytes)
                        && got[bytes.len()..] == untouched[range.start + bytes.len()..range.end]
                });
            let absent = untouched[range.clone()] == *got;
            if !came && (bitmap.get(chunk) || !absent) {
                let shown = if bitmap.get(chunk) { "shown as there" } else { "not shown" };
                let len = plan.len;
                cx.report("bytes", format!("message {index} of {len}: packet {packet}, {shown}"));
            }
        }
        match self.qp.recv_imm(handle) {
            Ok(Some(imm)) if imm != plan.imm.unwrap_or(0) => {
                cx.report("results", format!("message {index}: immediate {imm:#x}, {plan:?}"));
            }
            Ok(_) => {}
            Err(error) => cx.report("results", format!("message {index}: {error}")),
        }
    }

    pub(super) fn is_done(&self, scenario: &SdrScenario) -> bool {
        let plain = &scenario.plain;
        self.posted.len() == plain.messages[1 - self.host].len()
            && self.posted.iter().all(|open| open.over)
            && self.sent.len() == plain.messages[self.host].len()
            && self.sent.iter().all(|handle| self.qp.send_poll(*handle))
    }

    /// What is not over yet.
    pub(super) fn unfinished(&self, scenario: &SdrScenario) -> Vec<String> {
        let (host, mut all) = (self.host, Vec::new());
        if !self.is_done(scenario) {
            let over = self.posted.iter().filter(|open| open.over).count();
            let left = self.sent.iter().filter(|handle| self.qp.send_poll(**handle)).count();
            all.push(format!(
                "host{host} without scheme: {over} of {} receives, {left} of {} sends",
                scenario.plain.messages[1 - host].len(),
                scenario.plain.messages[host].len(),
            ));
        }
        all
    }

    /// Checks the final state.
    pub(super) fn judge(&self) -> Result<(), String> {
        self.sinks.check().map_err(|e| format!("host{} sinks without scheme: {e}", self.host))?;
        match self.qp.poll_timeout() {
            None => Ok(()),
            Some(at) => Err(format!("host{}: a timer at {at} with nothing to do", self.host)),
        }
    }
}
