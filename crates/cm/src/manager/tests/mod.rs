//! Two managers, and a test that decides which messages arrive.

mod connecting;
mod disconnecting;
mod forging;
mod resolving;

use core::net::{IpAddr, Ipv4Addr};

use bowline_link::Time;
use bowline_wire::{Psn, Qpn};

use super::{CmManager, Config, Event, Outgoing};
use crate::mad::{CommId, Mad, Message, Rej, RejectReason, Rep, Req, Rtu};
use crate::{CmTimeout, PortSpace, ServiceId};

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 7174);
const NO_DATA: [u8; Rtu::PRIVATE_LEN] = [0; Rtu::PRIVATE_LEN];
const NO_REASON: [u8; Rej::PRIVATE_LEN] = [0; Rej::PRIVATE_LEN];
const ACTIVE: usize = 0;
const PASSIVE: usize = 1;

fn addr(end: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1 + end as u8))
}

fn config() -> Config {
    Config { response_timeout: CmTimeout::new(14), max_retries: 3, ..Config::default() }
}

/// Two managers and the messages between them.
struct Pair {
    now: Time,
    ends: [CmManager; 2],
}

impl Pair {
    fn new() -> Pair {
        Pair::with(config())
    }

    fn with(config: Config) -> Pair {
        let ends = [CmManager::new(config.clone(), [1; 32]), CmManager::new(config, [2; 32])];
        Pair { now: Time::from_millis(1), ends }
    }

    fn listening() -> Pair {
        let mut pair = Pair::new();
        pair.ends[PASSIVE].listen(SERVICE, 4).expect("nobody else listens");
        pair
    }

    /// All messages that an end has sent and that were not taken.
    fn sent(&mut self, end: usize) -> Vec<Outgoing> {
        core::iter::from_fn(|| self.ends[end].poll_transmit()).collect()
    }

    /// Names of those.
    fn names(&mut self, end: usize) -> Vec<&'static str> {
        let sent = self.sent(end);
        sent.iter().map(|out| decode(out).message.name()).collect()
    }

    fn deliver(&mut self, from: usize, out: &Outgoing) {
        assert_eq!(out.to, addr(1 - from), "there are two ends only");
        self.ends[1 - from].handle_mad(self.now, addr(from), &out.mad);
    }

    /// Delivers everything until both ends are silent.
    fn settle(&mut self) {
        loop {
            let mut quiet = true;
            for end in [ACTIVE, PASSIVE] {
                for out in self.sent(end) {
                    quiet = false;
                    self.deliver(end, &out);
                }
            }
            if quiet {
                return;
            }
        }
    }

    /// Takes what an end has sent, and loses it.
    fn lose(&mut self, end: usize) -> usize {
        self.sent(end).len()
    }

    fn event(&mut self, end: usize) -> Option<Event> {
        self.ends[end].poll_event()
    }

    fn connect(&mut self) -> CommId {
        let req = Req {
            service_id: SERVICE,
            local_qpn: Qpn::new(0x11),
            starting_psn: Psn::new(7),
            ..Req::default()
        };
        self.ends[ACTIVE].connect(self.now, addr(PASSIVE), &req).expect("there is room")
    }

    fn request(&mut self) -> CommId {
        match self.event(PASSIVE) {
            Some(Event::Request { id, .. }) => id,
            other => panic!("no request but {other:?}"),
        }
    }

    fn accept(&mut self, id: CommId) {
        let rep = Rep { local_qpn: Qpn::new(0x22), ..Rep::default() };
        self.ends[PASSIVE].accept(self.now, id, &rep).expect("it is pending");
    }

    fn establish(&mut self, id: CommId) {
        match self.event(ACTIVE) {
            Some(Event::Reply { id: of, .. }) if of == id => {}
            other => panic!("no reply but {other:?}"),
        }
        self.ends[ACTIVE].establish(self.now, id, &NO_DATA).expect("the reply is there");
    }

    /// A connection with nothing outstanding; returns its IDs at both ends.
    fn connected(&mut self) -> [CommId; 2] {
        let active = self.connect();
        self.settle();
        let passive = self.request();
        self.accept(passive);
        self.settle();
        self.establish(active);
        self.settle();
        assert!(
            matches!(self.event(PASSIVE), Some(Event::Established { id, .. }) if id == passive)
        );
        [active, passive]
    }

    /// Advances time to the next deadline of an end, and handles it.
    fn expire(&mut self, end: usize) {
        self.now = self.ends[end].poll_timeout().expect("a timer runs").max(self.now);
        self.ends[end].handle_timeout(self.now);
    }

    /// Lets all timers expire, with nothing delivered.
    fn expire_all(&mut self) {
        while let Some(end) =
            [ACTIVE, PASSIVE].into_iter().find(|end| self.ends[*end].poll_timeout().is_some())
        {
            self.expire(end);
            self.lose(end);
        }
    }

    /// Forgets everything and checks that nothing is left.
    fn check_nothing_left(&mut self, ids: &[(usize, CommId)]) {
        for (end, id) in ids {
            self.ends[*end].forget(self.now, *id);
        }
        self.settle();
        self.expire_all();
        for end in &self.ends {
            assert!(end.is_empty(), "{} connections left", end.len());
            assert!(end.origins.is_empty() && end.peer_qps.is_empty() && end.timers.is_empty());
            assert!(end.listeners.values().all(|listener| listener.pending == 0));
        }
    }
}

fn decode(out: &Outgoing) -> Mad {
    Mad::decode(&out.mad).expect("it was made here")
}

/// A message with other IDs or transactions: what a forger sends.
fn altered(out: &Outgoing, change: impl FnOnce(&mut Mad)) -> Outgoing {
    let mut mad = decode(out);
    change(&mut mad);
    Outgoing { to: out.to, mad: mad.encode() }
}

fn reason(event: Option<Event>) -> RejectReason {
    match event {
        Some(Event::Rejected { reason, .. }) => reason,
        other => panic!("no refusal but {other:?}"),
    }
}

fn rej(out: &Outgoing) -> Rej {
    match decode(out).message {
        Message::Rej(rej) => rej,
        other => panic!("no REJ but {other:?}"),
    }
}
