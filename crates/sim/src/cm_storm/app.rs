//! The applications: what they request, and how they react to events.

use bowline_cm::mad::{CommId, Rej, RejectReason, Rep, Req, Rtu, SidrRep, SidrReq, SidrStatus};
use bowline_cm::{CmError, CmManager, Event, PortSpace, ServiceId};
use bowline_wire::{Psn, Qpn};

use super::end::{Asked, Attempt, End, View, Why, stamp};
use super::scenario::Try;
use super::world::{Act, CmWorld, Step, addr};
use crate::trace::Record;

pub(super) const CONNECTIONS: ServiceId = ServiceId::of_port(PortSpace::TCP, 7174);
pub(super) const DATAGRAMS: ServiceId = ServiceId::of_port(PortSpace::UDP, 7174);
/// First queue pair number.
const FIRST_QPN: u64 = 0x10;
/// Attempts that must succeed use their own QP numbers, at both ends.
const STRICT_QPN: u32 = 0x8000;
const STRICT_PASSIVE_QPN: u32 = 0x1_0000;

impl CmWorld<'_> {
    pub(super) fn listen(&mut self, host: usize, life: u32) {
        let (now, backlog) = (self.now, self.scenario.backlog);
        let host = &mut self.hosts[host];
        if let Some(cm) = &mut host.cm
            && host.life == life
        {
            for service in [CONNECTIONS, DATAGRAMS] {
                cm.listen(service, backlog).expect("nobody else listens");
            }
            host.listens = Some(now);
        }
    }

    pub(super) fn kill(&mut self, host: usize, gone_ns: u64, deaf_ns: u64) {
        let Some(cm) = self.hosts[host].cm.take() else { return };
        self.count(&cm);
        self.coverage.kills += 1;
        self.note(1, || format!("host {host} dies"));
        for (_, end) in core::mem::take(&mut self.hosts[host].ids) {
            if !self.ends[end].is_over() {
                self.ends[end].view = View::Over(Why::Killed);
                self.peer_left(end);
            }
        }
        self.hosts[host].life += 1;
        self.hosts[host].listens = None;
        self.after(gone_ns, Step::Back { host, deaf_ns });
    }

    pub(super) fn count(&mut self, cm: &CmManager) {
        let counters = cm.counters();
        self.coverage.retransmitted += counters.retransmitted;
        self.coverage.duplicates += counters.duplicates;
        self.coverage.unknown += counters.drop_unknown;
        self.coverage.backlog += counters.drop_backlog;
    }

    /// A number that no live end of the host uses.
    fn free_qpn(&mut self, host: usize) -> Option<Qpn> {
        let first = self.rng.below(self.scenario.qpns);
        let all = (0..self.scenario.qpns).map(|n| (first + n) % self.scenario.qpns + FIRST_QPN);
        let mut numbers = all.map(|n| Qpn::new(n as u32));
        numbers.find(|qpn| {
            let mut ends = self.hosts[host].ids.values().map(|end| &self.ends[*end]);
            !ends.any(|end| end.qpn == *qpn && !end.is_over())
        })
    }

    pub(super) fn attempt(&mut self, what: &Try, strict: bool) {
        let number = self.attempts.len();
        let strict_qpn = Qpn::new(STRICT_QPN + number as u32);
        let qpn = if strict { Some(strict_qpn) } else { self.free_qpn(what.from) };
        let (Some(qpn), true) = (qpn, self.hosts[what.from].cm.is_some()) else { return };
        let salt = self.rng.bits();
        let asked = if what.sidr {
            let private_data = stamp(number, salt);
            let req = SidrReq { service_id: DATAGRAMS, private_data, ..SidrReq::default() };
            Asked::Service(Box::new(req))
        } else {
            Asked::Connection(Box::new(Req {
                service_id: CONNECTIONS,
                local_qpn: qpn,
                starting_psn: Psn::new(salt as u32),
                private_data: stamp(number, salt),
                ..Req::default()
            }))
        };
        let (now, to) = (self.now, addr(what.to));
        let Some(cm) = &mut self.hosts[what.from].cm else { return };
        let id = match &asked {
            Asked::Connection(req) => cm.connect(now, to, req),
            Asked::Service(req) => cm.resolve(now, to, req),
        };
        let id = id.expect("there is room");
        let reused = self.ends.iter().any(|end| end.host == what.from && end.qpn == qpn);
        let active = self.add_end(what.from, id, (true, what.sidr), Some(number), qpn);
        let (from, to, passives) = (what.from, what.to, Vec::new());
        self.attempts.push(Attempt { at: now, from, to, asked, reused, strict, active, passives });
        match what.sidr {
            true => self.coverage.resolutions += 1,
            false => self.coverage.connects += 1,
        }
        self.pump(what.from);
    }

    pub(super) fn add_end(
        &mut self,
        host: usize,
        id: CommId,
        (active, sidr): (bool, bool),
        attempt: Option<usize>,
        qpn: Qpn,
    ) -> usize {
        let number = self.ends.len();
        self.ends.push(End {
            host,
            life: self.hosts[host].life,
            id,
            active,
            sidr,
            attempt,
            qpn,
            peer: None,
            view: View::Asked,
            was_established: false,
            said_no: false,
            gave_up: false,
            rep: None,
            sidr_rep: None,
        });
        if self.hosts[host].ids.insert(id, number).is_some() {
            self.sink.report(self.now, "ids", format!("host {host} has {id:?} twice"));
        }
        number
    }

    pub(super) fn on_event(&mut self, host: usize, event: Event) {
        let (now, id) = (self.now, event.id());
        self.trace.record(now, Record::App, host as u64, u64::from(id.0), || {
            format!("host {host}: {event:?}").chars().take(160).collect()
        });
        match event {
            Event::Request { from, req, .. } => self.on_request(host, id, from, &req),
            Event::SidrRequest { from, req, .. } => self.on_sidr_request(host, id, from, &req),
            event => match self.hosts[host].ids.get(&id) {
                Some(&end) => self.on_progress(end, event),
                None => self.sink.report(now, "events", format!("{event:?} after its end")),
            },
        }
    }

    fn on_progress(&mut self, end: usize, event: Event) {
        match event {
            Event::Reply { rep, .. } => self.on_reply(end, &rep),
            Event::Established { .. } => self.on_established(end),
            Event::Rejected { reason, .. } => self.on_rejected(end, reason),
            Event::Unreachable { .. } => self.on_unreachable(end),
            Event::Disconnected { how, .. } => self.on_disconnected(end, how),
            Event::TimewaitExit { .. } => {
                if !self.ends[end].is_over() {
                    self.sink.report(self.now, "events", "an exit before the end");
                }
            }
            Event::SidrReply { rep, .. } => self.on_sidr_reply(end, &rep),
            Event::Request { .. } | Event::SidrRequest { .. } => {}
        }
    }

    /// Whether the attempt of an end must succeed.
    fn is_strict(&self, end: usize) -> bool {
        self.ends[end].attempt.is_some_and(|number| self.attempts[number].strict)
    }

    /// The application acts after a random delay.
    pub(super) fn think(&mut self, end: usize, act: Act) {
        let ns =
            if self.is_strict(end) { 0 } else { self.rng.below(self.scenario.manners.think_ns) };
        self.after(ns, Step::Act { end, act });
    }

    /// Decides what to do with a connection that is now established.
    pub(super) fn enjoy(&mut self, end: usize) {
        let manners = &self.scenario.manners;
        self.look_later(end);
        if self.is_strict(end) || self.rng.percent(manners.stay) {
            return;
        }
        let act = if self.rng.percent(manners.forget) { Act::Forget } else { Act::HangUp };
        let ns = self.rng.below(manners.hold_ns);
        self.after(ns, Step::Act { end, act });
    }

    /// An end that is over is released after a while.
    pub(super) fn over(&mut self, end: usize, why: Why) {
        self.ends[end].view = View::Over(why);
        self.peer_left(end);
        let ns = self.rng.pick(&[0, 1_000_000, 2_000_000_000]);
        self.after(ns, Step::Act { end, act: Act::Forget });
    }

    pub(super) fn act(&mut self, number: usize, act: Act) {
        let end = &self.ends[number];
        let host = end.host;
        // Its process died, or it is released already.
        if self.hosts[host].ids.get(&end.id) != Some(&number) {
            return;
        }
        let done = match (act, end.view) {
            (Act::Answer, View::Asked) => self.answer(number),
            (Act::Conclude, View::Replied) => self.conclude(number),
            (Act::HangUp, View::Established) => self.hang_up(number),
            (Act::Forget, _) => self.forget(number),
            _ => Ok(()),
        };
        if let Err(error) = done {
            self.sink.report(self.now, "calls", format!("{act:?}: {error}"));
        }
        self.pump(host);
    }

    fn cm(&mut self, host: usize) -> &mut CmManager {
        self.hosts[host].cm.as_mut().expect("its process lives")
    }

    fn answer(&mut self, number: usize) -> Result<(), CmError> {
        let (now, manners, strict) = (self.now, self.scenario.manners, self.is_strict(number));
        let (host, id) = (self.ends[number].host, self.ends[number].id);
        if !strict && self.rng.percent(manners.forget) {
            return self.forget(number);
        }
        if self.ends[number].sidr {
            return self.answer_resolution(number);
        }
        if !strict && self.rng.percent(manners.reject) {
            self.say_no(number, Why::Refused);
            let why = [0; Rej::PRIVATE_LEN];
            return self.cm(host).reject(now, id, RejectReason::CONSUMER, &why);
        }
        let strict_qpn = strict.then(|| Qpn::new(STRICT_PASSIVE_QPN + number as u32));
        let Some(qpn) = strict_qpn.or_else(|| self.free_qpn(host)) else {
            return self.forget(number);
        };
        let salt = self.rng.bits();
        let rep = Box::new(Rep {
            local_qpn: qpn,
            starting_psn: Psn::new(salt as u32),
            private_data: stamp(number, salt),
            ..Rep::default()
        });
        let end = &mut self.ends[number];
        (end.qpn, end.view) = (qpn, View::Accepted);
        end.rep = Some(rep.clone());
        self.cm(host).accept(now, id, &rep)
    }

    fn answer_resolution(&mut self, number: usize) -> Result<(), CmError> {
        let (now, host, id) = (self.now, self.ends[number].host, self.ends[number].id);
        let salt = self.rng.bits();
        let rep = Box::new(SidrRep {
            status: SidrStatus::VALID,
            qpn: Qpn::new(salt as u32),
            qkey: (salt >> 32) as u32,
            private_data: stamp(number, salt),
            ..SidrRep::default()
        });
        self.ends[number].sidr_rep = Some(rep.clone());
        self.over(number, Why::Resolved);
        self.cm(host).reply(now, id, &rep)
    }

    fn conclude(&mut self, number: usize) -> Result<(), CmError> {
        let (now, manners, strict) = (self.now, self.scenario.manners, self.is_strict(number));
        let (host, id) = (self.ends[number].host, self.ends[number].id);
        if !strict && self.rng.percent(manners.forget) {
            return self.forget(number);
        }
        if !strict && self.rng.percent(manners.reject / 2) {
            self.say_no(number, Why::Refused);
            let why = [0; Rej::PRIVATE_LEN];
            return self.cm(host).reject(now, id, RejectReason::CONSUMER, &why);
        }
        let end = &mut self.ends[number];
        end.view = View::Established;
        end.was_established = true;
        self.coverage.established += 1;
        self.enjoy(number);
        self.cm(host).establish(now, id, &[0; Rtu::PRIVATE_LEN])
    }

    fn hang_up(&mut self, number: usize) -> Result<(), CmError> {
        let (now, host, id) = (self.now, self.ends[number].host, self.ends[number].id);
        self.ends[number].view = View::Hanging;
        self.peer_left(number);
        self.cm(host).disconnect(now, id)
    }

    fn say_no(&mut self, number: usize, why: Why) {
        self.ends[number].said_no = true;
        self.over(number, why);
    }

    fn forget(&mut self, number: usize) -> Result<(), CmError> {
        let (now, host, id) = (self.now, self.ends[number].host, self.ends[number].id);
        if !self.ends[number].is_over() {
            self.coverage.forgotten += 1;
            self.ends[number].said_no = true;
            self.ends[number].view = View::Over(Why::Forgot);
            self.peer_left(number);
        }
        self.cm(host).forget(now, id);
        self.hosts[host].ids.remove(&id);
        Ok(())
    }
}
