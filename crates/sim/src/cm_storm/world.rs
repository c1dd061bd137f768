//! Hosts, links and time.

use core::net::{IpAddr, Ipv4Addr};
use std::collections::BTreeMap;
use std::io::{self, Write};

use bowline_cm::mad::{MAD_LEN, Mad};
use bowline_cm::{CmManager, CmTimeout, CommId, Config};
use bowline_link::{Fate, Faults, Link};
use bowline_nic::Time;

use super::end::{Attempt, End};
use super::report::CmCoverage;
use super::scenario::{CmScenario, Try};
use crate::check::Sink;
use crate::rng::SimRng;
use crate::trace::{Record, Trace};

/// A seed that needs more steps than this never becomes quiescent.
const MAX_STEPS: u64 = 400_000;

/// A scheduled event.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Deliver {
        from: usize,
        to: usize,
        mad: Box<[u8; MAD_LEN]>,
    },
    Timeout {
        host: usize,
    },
    Try {
        what: Try,
        strict: bool,
    },
    Act {
        end: usize,
        act: Act,
    },
    Listen {
        host: usize,
        life: u32,
    },
    Kill {
        host: usize,
        gone_ns: u64,
        deaf_ns: u64,
    },
    Back {
        host: usize,
        deaf_ns: u64,
    },
    /// An established end checks its peer.
    Look {
        end: usize,
    },
    Forge,
    Heal,
}

/// What an application does with an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    /// Answers a request.
    Answer,
    /// Accepts a reply or not.
    Conclude,
    /// Disconnects.
    HangUp,
    /// Releases it.
    Forget,
}

/// A host with one process.
pub(super) struct Host {
    /// Nothing while the process is dead.
    pub(super) cm: Option<CmManager>,
    pub(super) life: u32,
    /// The ends that its application has.
    pub(super) ids: BTreeMap<CommId, usize>,
    /// Since when its process listens.
    pub(super) listens: Option<Time>,
    timer: Option<Time>,
}

/// The world of a seed.
pub(super) struct CmWorld<'a> {
    pub(super) scenario: &'a CmScenario,
    pub(super) now: Time,
    pub(super) hosts: Vec<Host>,
    pub(super) ends: Vec<End>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) rng: SimRng,
    pub(super) sink: Sink,
    pub(super) coverage: CmCoverage,
    pub(super) trace: Trace,
    pub(super) links: Vec<Link>,
    pub(super) packets: u64,
    queue: BTreeMap<(Time, u64), Step>,
    steps: u64,
}

impl<'a> CmWorld<'a> {
    pub(super) fn new(scenario: &'a CmScenario, log: Option<Box<dyn Write>>) -> CmWorld<'a> {
        let mut trace = Trace::new(scenario.seed);
        if let Some(log) = log {
            trace.keep_log(log);
        }
        let pairs = (scenario.hosts * scenario.hosts) as u64;
        let link = |stream| {
            let mut link = Link::new(scenario.link, scenario.seed, stream);
            link.set_faults(scenario.faults);
            link
        };
        let mut world = CmWorld {
            scenario,
            now: Time::ZERO,
            hosts: Vec::new(),
            ends: Vec::new(),
            attempts: Vec::new(),
            rng: SimRng::new(scenario.seed, 0xc4),
            sink: Sink::new(scenario.seed),
            coverage: CmCoverage::default(),
            trace,
            links: (0..pairs).map(link).collect(),
            packets: 0,
            queue: BTreeMap::new(),
            steps: 0,
        };
        for host in 0..scenario.hosts {
            let (cm, ids) = (Some(world.manager()), BTreeMap::new());
            world.hosts.push(Host { cm, life: 0, ids, listens: None, timer: None });
            world.at(Time::ZERO, Step::Listen { host, life: 0 });
        }
        world.schedule();
        world
    }

    fn schedule(&mut self) {
        let scenario = self.scenario;
        for &what in &scenario.tries {
            self.at(Time::from_nanos(what.at_ns), Step::Try { what, strict: false });
        }
        for kill in &scenario.kills {
            let (host, gone_ns, deaf_ns) = (kill.host, kill.gone_ns, kill.deaf_ns);
            self.at(Time::from_nanos(kill.at_ns), Step::Kill { host, gone_ns, deaf_ns });
        }
        for &at_ns in &scenario.forgeries_ns {
            self.at(Time::from_nanos(at_ns), Step::Forge);
        }
        self.at(Time::from_nanos(scenario.heal_ns), Step::Heal);
    }

    fn manager(&mut self) -> CmManager {
        let config = Config {
            response_timeout: CmTimeout::new(self.scenario.response_timeout),
            max_retries: self.scenario.max_retries,
            service_timeout: CmTimeout::new(self.scenario.response_timeout + 4),
            ..Config::default()
        };
        let mut seed = [0; 32];
        for word in seed.chunks_mut(8) {
            word.copy_from_slice(&self.rng.bits().to_le_bytes());
        }
        CmManager::new(config, seed)
    }

    pub(super) fn at(&mut self, time: Time, step: Step) {
        self.steps += 1;
        self.queue.insert((time.max(self.now), self.steps), step);
    }

    pub(super) fn after(&mut self, nanos: u64, step: Step) {
        self.at(self.now.plus_nanos(nanos), step);
    }

    /// Runs until nothing is left to happen.
    pub(super) fn run(&mut self) {
        while let Some(((time, _), step)) = self.queue.pop_first() {
            self.now = time;
            if self.steps > MAX_STEPS {
                self.sink.report(time, "quiesce", format!("{MAX_STEPS} steps and no end"));
                return;
            }
            if !self.sink.is_empty() {
                return;
            }
            self.step(step);
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Deliver { from, to, mad } => self.deliver(from, to, &mad),
            Step::Timeout { host } => self.timeout(host),
            Step::Try { what, strict } => self.attempt(&what, strict),
            Step::Act { end, act } => self.act(end, act),
            Step::Listen { host, life } => self.listen(host, life),
            Step::Kill { host, gone_ns, deaf_ns } => self.kill(host, gone_ns, deaf_ns),
            Step::Back { host, deaf_ns } => {
                self.hosts[host].cm = Some(self.manager());
                let life = self.hosts[host].life;
                self.after(deaf_ns, Step::Listen { host, life });
            }
            Step::Look { end } => self.look(end),
            Step::Forge => self.forge(),
            Step::Heal => {
                self.note(0, || "healed".into());
                self.links.iter_mut().for_each(|link| link.set_faults(Faults::default()));
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, mad: &[u8; MAD_LEN]) {
        let words = mad_words(mad);
        self.trace.record(self.now, Record::Deliver, (from * 8 + to) as u64, words, || {
            format!("{from} → {to}: {}", describe(mad))
        });
        let now = self.now;
        if let Some(cm) = &mut self.hosts[to].cm {
            cm.handle_mad(now, addr(from), mad);
            self.pump(to);
        }
    }

    fn timeout(&mut self, host: usize) {
        let now = self.now;
        self.hosts[host].timer = None;
        if let Some(cm) = &mut self.hosts[host].cm {
            cm.handle_timeout(now);
            self.trace.record(now, Record::Timeout, host as u64, 0, || format!("host {host}"));
            self.pump(host);
        }
    }

    /// Handles a manager's output, and sets its timer.
    pub(super) fn pump(&mut self, host: usize) {
        while let Some(out) = self.hosts[host].cm.as_mut().and_then(CmManager::poll_transmit) {
            match host_at(out.to).filter(|to| *to < self.hosts.len()) {
                Some(to) => self.transmit(host, to, out.mad),
                None => self.sink.report(self.now, "wire", format!("a message to {}", out.to)),
            }
        }
        while let Some(event) = self.hosts[host].cm.as_mut().and_then(CmManager::poll_event) {
            self.on_event(host, event);
        }
        let Host { cm, timer, .. } = &mut self.hosts[host];
        let due = cm.as_ref().and_then(CmManager::poll_timeout);
        if let Some(due) = due
            && timer.is_none_or(|set| due < set)
        {
            *timer = Some(due);
            self.at(due, Step::Timeout { host });
        }
    }

    /// Puts a message on the link between two hosts.
    pub(super) fn transmit(&mut self, from: usize, to: usize, mad: [u8; MAD_LEN]) {
        self.packets += 1;
        let link = &mut self.links[from * self.scenario.hosts + to];
        let fate = link.admit(self.now, MAD_LEN, false);
        let words = mad_words(&mad);
        self.trace.record(self.now, Record::Send, (from * 8 + to) as u64, words, || {
            format!("{from} → {to}: {}, {fate:?}", describe(&mad))
        });
        let Fate::Arrives(arrival) = fate else { return };
        for at in core::iter::once(arrival.at).chain(arrival.copy_at) {
            self.at(at, Step::Deliver { from, to, mad: Box::new(mad) });
        }
    }

    pub(super) fn note(&mut self, number: u64, text: impl FnOnce() -> String) {
        self.trace.record(self.now, Record::App, number, 0, text);
    }

    pub(super) fn end_log(&mut self) -> io::Result<()> {
        self.trace.end_log()
    }
}

/// The address of a host.
pub(super) fn addr(host: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + host as u8))
}

fn host_at(addr: IpAddr) -> Option<usize> {
    match addr {
        IpAddr::V4(v4) => usize::from(v4.octets()[3]).checked_sub(1),
        IpAddr::V6(_) => None,
    }
}

/// What identifies a message, for the hash: transaction and IDs.
fn mad_words(mad: &[u8; MAD_LEN]) -> u64 {
    mad.chunks(8).take(5).fold(0, |sum: u64, word| {
        let word = word.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
        sum.rotate_left(7) ^ word
    })
}

fn describe(mad: &[u8; MAD_LEN]) -> String {
    match Mad::decode(mad) {
        Ok(mad) => {
            let body = mad.encode();
            let id =
                |at: usize| body[at..].first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
            format!("{} {:08x} {:08x}", mad.message.name(), id(24), id(28))
        }
        Err(error) => error.to_string(),
    }
}
