//! Flows that share a bottleneck, on virtual time: one direction is a link, the other a delay.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bowline_link::{Fate, Link, LinkConfig};

use crate::time::Time;

pub(super) const PACKET: usize = 1_500;

/// What a flow does next.
pub(super) enum Next {
    /// A packet of data.
    Data,
    /// A short packet that asks for a report.
    Stamp,
    /// Nothing before then.
    Wait(Time),
}

/// What a receiver tells a flow, when it arrives.
#[derive(Clone, Copy, Debug)]
pub(super) enum Told {
    /// A packet that was sent at this time has arrived; all missing ones before it are lost.
    Ack { number: u64, sent: Time },
    /// A stamp has arrived.
    Report { stamp: Time, landed: u64, clock: Time },
}

/// A sender.
pub(super) trait Flow {
    fn next(&mut self, now: Time) -> Next;
    fn told(&mut self, now: Time, told: Told);
    fn acks(&self) -> bool;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Turn { flow: usize },
    Arrive { flow: usize, number: u64, sent: Time, is_stamp: bool },
    Told { flow: usize, number: u64, sent: Time, landed: u64, clock: Time, is_stamp: bool },
    Step,
}

/// A flow's results.
#[derive(Clone, Debug, Default)]
pub(super) struct Had {
    pub(super) landed: u64,
    sent: u64,
    /// Sum of what its packets waited in the queue.
    waited_ns: u128,
    /// When its packets found the queue full.
    pub(super) drops: Vec<Time>,
    /// When its next turn is, to ignore others.
    turn_at: Time,
    base: (u64, u128),
}

pub(super) struct Path {
    link: Link,
    delay_ns: u64,
    pub(super) flows: Vec<Box<dyn Flow>>,
    pub(super) had: Vec<Had>,
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    number: u64,
    pub(super) now: Time,
    step: Option<LinkConfig>,
    measured_since: Time,
    /// How long the receiving host pauses, and how often: reports wait.
    pub(super) pauses_ns: (u64, u64),
}

impl Path {
    pub(super) fn new(link: Link) -> Path {
        Path {
            delay_ns: link.config().delay_ns,
            link,
            flows: Vec::new(),
            had: Vec::new(),
            events: BinaryHeap::new(),
            number: 0,
            now: Time::ZERO,
            step: None,
            measured_since: Time::ZERO,
            pauses_ns: (0, 1),
        }
    }

    fn push(&mut self, at: Time, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number, event)));
    }

    pub(super) fn add(&mut self, at: Time, flow: Box<dyn Flow>) {
        self.flows.push(flow);
        self.had.push(Had { turn_at: at, ..Had::default() });
        self.push(at, Event::Turn { flow: self.flows.len() - 1 });
    }

    /// Replaces the link.
    pub(super) fn step_at(&mut self, at: Time, config: LinkConfig) {
        self.step = Some(config);
        self.push(at, Event::Step);
    }

    /// Starts counting shares.
    pub(super) fn begin(&mut self) {
        self.measured_since = self.now;
        for had in &mut self.had {
            had.base = (had.landed, had.waited_ns);
        }
    }

    /// Bits per second that landed since the beginning.
    pub(super) fn bps(&self, flow: usize) -> f64 {
        let packets = self.had[flow].landed - self.had[flow].base.0;
        let secs = self.now.nanos_since(self.measured_since) as f64 / 1e9;
        (packets * PACKET as u64 * 8) as f64 / secs
    }

    /// Mean time in the queue since the beginning, in milliseconds.
    pub(super) fn waited_ms(&self, flow: usize) -> f64 {
        let had = &self.had[flow];
        let packets = (had.landed - had.base.0).max(1);
        (had.waited_ns - had.base.1) as f64 / packets as f64 / 1e6
    }

    pub(super) fn run_until(&mut self, end: Time) {
        while let Some(Reverse((at, _, event))) = self.events.peek().copied()
            && at <= end
        {
            self.events.pop();
            self.now = at;
            self.handle(event);
        }
        self.now = end;
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Turn { flow } => {
                if self.had[flow].turn_at == self.now {
                    self.turn(flow);
                }
            }
            Event::Arrive { flow, number, sent, is_stamp } => {
                let had = &mut self.had[flow];
                if !is_stamp {
                    had.landed += 1;
                    had.waited_ns += u128::from(self.now.nanos_since(sent) - self.delay_ns);
                }
                if is_stamp || self.flows[flow].acks() {
                    let landed = self.had[flow].landed;
                    let (pause, every) = self.pauses_ns;
                    let paused = pause.saturating_sub(self.now.as_nanos() % every);
                    let at = self.now.plus_nanos(self.delay_ns + paused);
                    let clock = self.now;
                    self.push(at, Event::Told { flow, number, sent, landed, clock, is_stamp });
                }
            }
            Event::Told { flow, number, sent, landed, clock, is_stamp } => {
                let told = match is_stamp {
                    true => Told::Report { stamp: sent, landed, clock },
                    false => Told::Ack { number, sent },
                };
                self.flows[flow].told(self.now, told);
                self.turn(flow);
            }
            Event::Step => {
                let config = self.step.take().expect("a step was planned");
                self.link.set_config(self.now, config);
            }
        }
    }

    fn turn(&mut self, flow: usize) {
        loop {
            let is_stamp = match self.flows[flow].next(self.now) {
                Next::Data => false,
                Next::Stamp => true,
                Next::Wait(at) => {
                    let at = at.max(self.now.plus_nanos(1));
                    if at < Time::NEVER && at != self.had[flow].turn_at {
                        self.had[flow].turn_at = at;
                        self.push(at, Event::Turn { flow });
                    }
                    return;
                }
            };
            let number = self.had[flow].sent;
            self.had[flow].sent += u64::from(!is_stamp);
            let len = if is_stamp { 150 } else { PACKET };
            match self.link.admit(self.now, len, false) {
                Fate::Arrives(arrival) => {
                    let sent = self.now;
                    self.push(arrival.at, Event::Arrive { flow, number, sent, is_stamp });
                }
                Fate::QueueFull => self.had[flow].drops.push(self.now),
                Fate::Lost => {}
            }
        }
    }
}
