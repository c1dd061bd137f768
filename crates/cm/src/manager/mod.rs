//! The state machine of connections.

mod active;
mod connection;
mod disconnect;
mod event;
mod passive;
mod refuse;
mod sidr;
mod table;
mod timers;

#[cfg(test)]
mod tests;

use core::net::IpAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bowline_link::Time;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha12Rng;

use crate::mad::{CommId, MAD_LEN, Mad, Message};
use crate::{CmTimeout, ServiceId};
use connection::Connection;
pub use event::{CmError, Counters, Ended, Event};
use passive::Listener;
use table::{Origin, PeerQp};

/// The configuration of a manager.
#[derive(Clone, Debug)]
pub struct Config {
    /// The top byte of every communication ID, for processes that share an address. The rest is
    /// random.
    pub comm_id_prefix: Option<u8>,
    /// The adapter's GUID, as reported to peers.
    pub ca_guid: u64,
    /// How long to wait for a response before a message is retransmitted.
    pub response_timeout: CmTimeout,
    /// How often a message is retransmitted, up to 15.
    pub max_retries: u8,
    /// How long an MRA tells the peer to wait.
    pub service_timeout: CmTimeout,
    /// How long an ended connection is kept, to answer what is still in flight.
    pub timewait_ns: u64,
    /// Most connections and resolutions, including those that have ended but are kept.
    pub max_connections: usize,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            comm_id_prefix: None,
            ca_guid: 0,
            // 0.54 s, so that a silent peer is given up after 8.6 s.
            response_timeout: CmTimeout::new(17),
            max_retries: 15,
            // 69 s, as the kernel says.
            service_timeout: CmTimeout::new(24),
            timewait_ns: 1_000_000_000,
            max_connections: 1 << 17,
        }
    }
}

/// A MAD to send from queue pair 1 to the peer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The peer's address.
    pub to: IpAddr,
    /// The MAD.
    pub mad: [u8; MAD_LEN],
}

/// The connection manager of one address.
///
/// # Contract
/// The application's calls ([`connect`](CmManager::connect), [`listen`](CmManager::listen),
/// [`accept`](CmManager::accept), …) and the inputs ([`handle_mad`](CmManager::handle_mad),
/// [`handle_timeout`](CmManager::handle_timeout)) may come in any order. After each of them call
/// [`poll_transmit`](CmManager::poll_transmit) and [`poll_event`](CmManager::poll_event) until they
/// return nothing, and call [`handle_timeout`](CmManager::handle_timeout) when
/// [`poll_timeout`](CmManager::poll_timeout) says. Time must not go backwards.
///
/// The application owns a [`CommId`] that a call returned or an event carried until it calls
/// [`forget`](CmManager::forget), whatever happens to the connection. After that there are no
/// events for it.
pub struct CmManager {
    config: Config,
    rng: ChaCha12Rng,
    connections: BTreeMap<CommId, Connection>,
    /// Requests of peers, by the ID that the peer assigned.
    origins: BTreeMap<Origin, CommId>,
    /// Connections in use, by the peer's queue pair.
    peer_qps: BTreeMap<PeerQp, CommId>,
    listeners: BTreeMap<ServiceId, Listener>,
    listeners_made: u64,
    timers: BTreeSet<(Time, CommId)>,
    outbox: VecDeque<Outgoing>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl CmManager {
    /// A manager whose IDs come from `seed`, which must be secret.
    pub fn new(config: Config, seed: [u8; 32]) -> CmManager {
        CmManager {
            config,
            rng: ChaCha12Rng::from_seed(seed),
            connections: BTreeMap::new(),
            origins: BTreeMap::new(),
            peer_qps: BTreeMap::new(),
            listeners: BTreeMap::new(),
            listeners_made: 0,
            timers: BTreeSet::new(),
            outbox: VecDeque::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Handles a MAD that queue pair 1 received from `from`.
    pub fn handle_mad(&mut self, now: Time, from: IpAddr, bytes: &[u8]) {
        let Ok(mad) = Mad::decode(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.counters.received += 1;
        let tid = mad.transaction_id;
        match mad.message {
            Message::Req(req) => self.on_req(now, from, tid, &req),
            Message::Rep(rep) => self.on_rep(now, from, tid, &rep),
            Message::Rtu(rtu) => self.on_rtu(now, from, tid, &rtu),
            Message::Rej(rej) => self.on_rej(now, from, tid, &rej),
            Message::Mra(mra) => self.on_mra(now, from, tid, &mra),
            Message::Dreq(dreq) => self.on_dreq(now, from, tid, &dreq),
            Message::Drep(drep) => self.on_drep(now, from, tid, &drep),
            Message::SidrReq(req) => self.on_sidr_req(now, from, tid, &req),
            Message::SidrRep(rep) => self.on_sidr_rep(now, from, tid, &rep),
        }
    }

    /// The next MAD to send.
    pub fn poll_transmit(&mut self) -> Option<Outgoing> {
        self.outbox.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When to call [`handle_timeout`](CmManager::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Its counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Connections and resolutions, including those that have ended but are kept.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    fn send(&mut self, to: IpAddr, tid: u64, message: impl Into<Message>) {
        let mad = Mad { transaction_id: tid, message: message.into() };
        self.send_bytes(to, mad.encode());
    }

    fn send_bytes(&mut self, to: IpAddr, mad: [u8; MAD_LEN]) {
        self.counters.sent += 1;
        self.outbox.push_back(Outgoing { to, mad });
    }

    fn fresh_transaction(&mut self) -> u64 {
        self.rng.next_u64()
    }
}
