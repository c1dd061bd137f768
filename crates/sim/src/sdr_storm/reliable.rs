//! One end of the reliable connection: writes and receives on schedule, and checks what arrives.

use bowline_nic::{Nic, PdId, Time};
use bowline_sdr::{Failure, ReliableEvent, ReliableQp, SdrError, WriteOptions};

use super::app::{RETRY_NS, Service};
use super::memory::Memory;
use super::scenario::{MessagePlan, SdrScenario};
use crate::check::pattern;
use crate::hash::mix;

/// One end of the reliable connection.
pub(super) struct ReliableEnd {
    pub(super) qp: ReliableQp,
    host: usize,
    sources: Memory,
    sinks: Memory,
    next_write: usize,
    next_recv: usize,
    /// Which of this end's writes and receives are over.
    written: Vec<bool>,
    received: Vec<bool>,
}

fn message_bytes(scenario: &SdrScenario, sender: usize, index: usize) -> Vec<u8> {
    let seed = mix(scenario.seed ^ (sender as u64) << 32 ^ index as u64);
    pattern::message(seed, scenario.messages[sender][index].len as usize)
}

impl ReliableEnd {
    pub(super) fn new(nic: &mut Nic, pd: PdId, scenario: &SdrScenario, host: usize) -> ReliableEnd {
        let qp = ReliableQp::new(nic, pd, &scenario.reliable).expect("drawn parameters are legal");
        let (out, inward) = (&scenario.messages[host], &scenario.messages[1 - host]);
        let lens: Vec<u64> = out.iter().map(|m| m.len).collect();
        let capacities: Vec<u64> = inward.iter().map(|m| m.capacity).collect();
        ReliableEnd {
            qp,
            host,
            sources: Memory::new(nic, pd, &lens, mix(scenario.seed ^ 1)),
            sinks: Memory::new(nic, pd, &capacities, mix(scenario.seed ^ 2)),
            next_write: 0,
            next_recv: 0,
            written: vec![false; out.len()],
            received: vec![false; inward.len()],
        }
    }

    /// Does what is due, drives the connection and handles its events. Returns when to call again.
    pub(super) fn service(&mut self, cx: &mut Service<'_>) -> Option<Time> {
        let retry = self.post_receives(cx);
        self.post_writes(cx);
        self.qp.drive(cx.nic, cx.now);
        while let Some(event) = self.qp.poll_event() {
            match event {
                ReliableEvent::Written { id, result } => self.on_written(cx, id.0, result),
                ReliableEvent::Received { id, len, imm, result } => {
                    self.on_received(cx, id.0, len, imm, result);
                }
            }
        }
        let scenario = cx.scenario;
        let write = scenario.messages[self.host].get(self.next_write).map(|m| m.write_ns);
        let recv = scenario.messages[1 - self.host].get(self.next_recv).map(|m| m.recv_ns);
        let plans = [write, recv.filter(|_| retry.is_none())].map(|at| at.map(Time::from_nanos));
        plans.into_iter().chain([retry, self.qp.poll_timeout()]).flatten().min()
    }

    fn post_writes(&mut self, cx: &mut Service<'_>) {
        let scenario = cx.scenario;
        while let Some(plan) = scenario.messages[self.host].get(self.next_write)
            && plan.write_ns <= cx.now.as_nanos()
        {
            let index = self.next_write;
            self.next_write += 1;
            self.sources.write(index, &message_bytes(scenario, self.host, index));
            let options = WriteOptions { scheme: plan.scheme, imm: plan.imm };
            let source = self.sources.at(index);
            match self.qp.write(cx.nic, cx.now, source, plan.len, options) {
                Ok(id) if id.0 == index as u64 => {}
                other => cx.report("events", format!("write {index} gave {other:?}")),
            }
        }
    }

    /// Returns when to try again, if there was no space.
    fn post_receives(&mut self, cx: &mut Service<'_>) -> Option<Time> {
        let scenario = cx.scenario;
        while let Some(plan) = scenario.messages[1 - self.host].get(self.next_recv)
            && plan.recv_ns <= cx.now.as_nanos()
        {
            let index = self.next_recv;
            let buffer = self.sinks.at(index);
            match self.qp.recv(cx.nic, cx.now, buffer, plan.capacity) {
                Ok(id) if id.0 == index as u64 => self.next_recv += 1,
                Err(SdrError::Full { .. } | SdrError::Quarantined) => {
                    cx.coverage.no_room += 1;
                    return Some(cx.now.plus_nanos(RETRY_NS));
                }
                other => {
                    cx.report("events", format!("receive {index} gave {other:?}"));
                    return None;
                }
            }
        }
        None
    }

    fn on_written(&mut self, cx: &mut Service<'_>, id: u64, result: Result<(), Failure>) {
        let index = id as usize;
        cx.note(0x100 + id * 2 + u64::from(result.is_ok()), || format!("written {id}: {result:?}"));
        match self.written.get_mut(index) {
            Some(over @ false) if index < self.next_write => *over = true,
            _ => return cx.report("events", format!("write {id} completed twice: {result:?}")),
        }
        let plan = cx.scenario.messages[self.host][index];
        cx.coverage.failed_writes += u64::from(result.is_err());
        if !may_be(cx, &plan, result, Failure::Aborted) {
            cx.report("results", format!("host{} wrote {id}: {result:?}, {plan:?}", self.host));
        }
        self.sources.restore(index, plan.len);
    }

    fn on_received(
        &mut self,
        cx: &mut Service<'_>,
        id: u64,
        len: u64,
        imm: Option<u32>,
        result: Result<(), Failure>,
    ) {
        let index = id as usize;
        cx.note(0x200 + id * 2 + u64::from(result.is_ok()), || {
            format!("received {id}: {result:?}")
        });
        match self.received.get_mut(index) {
            Some(over @ false) if index < self.next_recv => *over = true,
            _ => return cx.report("events", format!("receive {id} completed twice: {result:?}")),
        }
        let plan = cx.scenario.messages[1 - self.host][index];
        if !may_be(cx, &plan, result, Failure::TooLong) {
            cx.report("results", format!("host{} received {id}: {result:?}, {plan:?}", self.host));
        }
        if result.is_ok() {
            cx.coverage.received += 1;
            cx.coverage.received_bytes += len;
            if (len, imm) != (plan.len, plan.imm) {
                cx.report("results", format!("message {id} is {len} bytes, {imm:?}: {plan:?}"));
            }
            let mut expected = self.sinks.untouched(index, plan.capacity);
            let bytes = message_bytes(cx.scenario, 1 - self.host, index);
            if let Some(start) = expected.get_mut(..bytes.len()) {
                start.copy_from_slice(&bytes);
            }
            let actual = self.sinks.read(index, plan.capacity);
            if let Some(difference) = pattern::first_difference(&expected, &actual) {
                let scheme = &cx.scenario.reliable.schemes[plan.scheme].name();
                cx.report("bytes", format!("message {id}, {scheme}: {difference}"));
            }
        } else {
            cx.coverage.failed_receives += 1;
        }
        self.sinks.restore(index, plan.capacity);
    }

    /// What is not over yet.
    pub(super) fn unfinished(&self) -> Vec<String> {
        let open = |what: &str, over: &[bool], next: usize| -> Vec<String> {
            let open = over.iter().enumerate().filter(|(_, over)| !**over);
            open.map(|(i, _)| {
                let posted = if i < next { "" } else { ", not posted" };
                format!("host{} {what} {i}{posted}", self.host)
            })
            .collect()
        };
        let mut all = open("write", &self.written, self.next_write);
        all.extend(open("receive", &self.received, self.next_recv));
        all
    }

    pub(super) fn is_done(&self) -> bool {
        self.written.iter().chain(&self.received).all(|over| *over)
    }

    /// Checks the final state.
    pub(super) fn judge(&self) -> Result<(), String> {
        self.sources.check().map_err(|e| format!("host{} sources: {e}", self.host))?;
        self.sinks.check().map_err(|e| format!("host{} sinks: {e}", self.host))?;
        match self.qp.poll_timeout() {
            None => Ok(()),
            Some(at) => Err(format!("host{}: a timer at {at} with nothing to do", self.host)),
        }
    }
}

/// Whether a message may end like this.
fn may_be(
    cx: &Service<'_>,
    plan: &MessagePlan,
    result: Result<(), Failure>,
    if_too_long: Failure,
) -> bool {
    let too_long = plan.len > plan.capacity;
    match result {
        Ok(()) => !too_long,
        Err(failure) if too_long && failure == if_too_long => true,
        Err(Failure::TimedOut | Failure::Aborted) => cx.scenario.may_fail,
        Err(_) => false,
    }
}
