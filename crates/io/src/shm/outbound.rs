//! Rings to other engines: which engines have one, are offered one, or are reached by UDP.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use bowline_nic::{CleanPaths, PeerEngine, Time};

use super::greeting::{ANSWER, GREETING_LEN, Greeting, WAKE, name_of};
use super::ring::{Record, RingWriter};
use super::{Counters, RING_BYTES, max_channels};
use crate::sys::{Epoll, SeqPacket, effective_uid, interface_of, peer_uid};

/// How soon to try again to reach an engine without a ring; the interval then grows.
const ABSENT_MIN_NS: u64 = 100_000_000;
const ABSENT_MAX_NS: u64 = 10_000_000_000;
/// How long an engine may take to reply to an offer.
const GREETING_NS: u64 = 2_000_000_000;
/// A reader that has read nothing for this long is stopped, not just without a core: do not wait
/// for it.
const STALL_NS: u64 = 100_000_000;
/// After this long its ring is given up: a child of a dead process may hold it, while another
/// process has taken over the address.
const GIVE_UP_NS: u64 = 1_000_000_000;
/// Most engines remembered as having no ring.
const MAX_PEERS: usize = 4096;

/// The outcome of writing a burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is in the ring.
    Taken,
    /// The ring is full now.
    Full,
    /// The ring has been full for too long.
    Stalled,
    /// The ring is gone.
    Gone,
}

/// The rings that a port writes to.
pub(super) struct Outbound {
    /// The writer's engine.
    from: PeerEngine,
    /// The network namespace that its addresses are of.
    network: Option<u64>,
    peers: Vec<Peer>,
    by_engine: HashMap<PeerEngine, usize>,
    /// Receiver of the last burst, and most likely of the next.
    last: usize,
    clean: Option<Arc<CleanPaths>>,
    /// Rings written to since readers were last woken.
    touched: Vec<usize>,
    detail: fn(&str),
}

struct Peer {
    engine: PeerEngine,
    state: State,
    absent_ns: u64,
    /// Its lack of a ring has been reported.
    told: bool,
}

enum State {
    /// Reached by UDP; try again at this time.
    Absent(Time),
    /// Offered a ring, with a deadline for the reply.
    Greeted(Channel, Time),
    Open(Channel),
}

struct Channel {
    id: u64,
    socket: SeqPacket,
    writer: RingWriter,
    /// The ring was full: how far the reader had read then, and since when.
    full: Option<(u64, Time)>,
    touched: bool,
}

impl Outbound {
    pub(super) fn new(from: PeerEngine, network: Option<u64>, detail: fn(&str)) -> Outbound {
        Outbound {
            from,
            network,
            peers: Vec::new(),
            by_engine: HashMap::new(),
            last: 0,
            clean: None,
            touched: Vec::new(),
            detail,
        }
    }

    /// Engines that need no ICRC on packets.
    pub(super) fn clean(&self) -> Option<&Arc<CleanPaths>> {
        self.clean.as_ref()
    }

    /// The index of the ring to an engine. If there is none, the engine may be offered one.
    #[inline]
    pub(super) fn route(
        &mut self,
        now: Time,
        to: PeerEngine,
        new_id: &mut u64,
        epoll: &Epoll,
    ) -> Option<usize> {
        let at = match self.peers.get(self.last) {
            Some(peer) if peer.engine == to => self.last,
            _ => self.find(to)?,
        };
        self.last = at;
        match &self.peers[at].state {
            State::Open(_) => Some(at),
            State::Absent(until) if now >= *until => {
                self.offer(now, at, new_id, epoll);
                None
            }
            _ => None,
        }
    }

    #[inline(never)]
    fn find(&mut self, engine: PeerEngine) -> Option<usize> {
        if let Some(at) = self.by_engine.get(&engine) {
            return Some(*at);
        }
        // Only engines in the registry have a prefix.
        if engine.2 == 0 || self.peers.len() >= MAX_PEERS {
            return None;
        }
        let (state, absent_ns) = (State::Absent(Time::ZERO), ABSENT_MIN_NS);
        self.peers.push(Peer { engine, state, absent_ns, told: false });
        let at = self.peers.len() - 1;
        self.by_engine.insert(engine, at);
        Some(at)
    }

    /// Offers an engine a ring.
    #[cold]
    fn offer(&mut self, now: Time, at: usize, new_id: &mut u64, epoll: &Epoll) {
        let channels = self.peers.iter().filter(|p| !matches!(p.state, State::Absent(_))).count();
        let to = self.peers[at].engine;
        let made = if channels < max_channels() {
            self.greet(to, *new_id, epoll)
        } else {
            Err(io::Error::other("this device has rings to as many engines as it may"))
        };
        match made {
            Ok(channel) => {
                *new_id += 1;
                let until = now.plus_nanos(GREETING_NS);
                self.peers[at].state = State::Greeted(channel, until);
            }
            Err(error) => self.absent(now, at, &error),
        }
    }

    /// Connects to an engine of this user on this host and offers it a ring.
    fn greet(&self, to: PeerEngine, id: u64, epoll: &Epoll) -> io::Result<Channel> {
        // A process may still listen under an address that has moved to another host.
        if interface_of(to.0)?.is_none() {
            return Err(io::Error::other("its address is not one of this host"));
        }
        let me = effective_uid();
        let socket = SeqPacket::connect(&name_of(me, to))?;
        // The same address is somebody else's in another namespace, where this thread may be.
        if socket.network() != self.network {
            return Err(io::Error::other("this thread is in another network namespace"));
        }
        let owner = peer_uid(&socket)?;
        if owner != me {
            return Err(io::Error::other(format!("its socket is user {owner}'s, not user {me}'s")));
        }
        let mut writer = RingWriter::create(RING_BYTES)?;
        let greeting = Greeting { from: self.from, to_prefix: to.2, capacity: RING_BYTES };
        let bytes: [u8; GREETING_LEN] = greeting.emit();
        socket.send(&bytes, Some(writer.file()))?;
        writer.close_file();
        epoll.add(socket.as_raw_fd(), id)?;
        Ok(Channel { id, socket, writer, full: None, touched: false })
    }

    /// An engine has no ring, or has lost it.
    fn absent(&mut self, now: Time, at: usize, why: &io::Error) {
        let was_open = matches!(self.peers[at].state, State::Open(_));
        let peer = &mut self.peers[at];
        peer.state = State::Absent(now.plus_nanos(peer.absent_ns));
        peer.absent_ns = (peer.absent_ns * 2).min(ABSENT_MAX_NS);
        if was_open {
            self.list();
        }
        let (addr, _, prefix) = self.peers[at].engine;
        // Engines on other hosts never have a ring.
        let is_here = !self.peers[at].told && matches!(interface_of(addr), Ok(Some(_)));
        if is_here {
            self.peers[at].told = true;
            let why = match why.kind() {
                io::ErrorKind::ConnectionRefused => {
                    "it has none, or is another user's or namespace's".to_owned()
                }
                _ => why.to_string(),
            };
            (self.detail)(&format!(
                "no shared memory with {addr} (QPN prefix {prefix:#04x}): {why}; packets go by UDP"
            ));
        }
    }

    /// How many engines on this host are reached by UDP for lack of a ring.
    pub(super) fn fallbacks(&self) -> u64 {
        self.peers.iter().filter(|peer| peer.told).count() as u64
    }

    /// Writes a burst.
    #[inline]
    pub(super) fn write(&mut self, now: Time, at: usize, record: &Record, bytes: &[u8]) -> Sent {
        let State::Open(channel) = &mut self.peers[at].state else { return Sent::Gone };
        match channel.writer.write(record, bytes) {
            Ok(true) => {
                channel.full = None;
                if !channel.touched {
                    channel.touched = true;
                    self.touched.push(at);
                }
                Sent::Taken
            }
            Ok(false) => {
                let waited_ns = channel.wait(now);
                if waited_ns < STALL_NS {
                    return Sent::Full;
                }
                if waited_ns >= GIVE_UP_NS {
                    self.absent(now, at, &io::Error::other("it has stopped reading"));
                }
                Sent::Stalled
            }
            Err(breach) => {
                self.absent(now, at, &io::Error::other(breach));
                Sent::Gone
            }
        }
    }

    /// Wakes the sleeping readers of rings that were written to.
    #[inline]
    pub(super) fn wake_readers(&mut self, counters: &mut Counters) {
        while let Some(at) = self.touched.pop() {
            if let State::Open(channel) = &mut self.peers[at].state {
                channel.touched = false;
                if channel.writer.rings() {
                    counters.wakes += 1;
                    // A reader with a full socket is awake, and one that is gone will be noticed.
                    let _ = channel.socket.send(&WAKE, None);
                }
            }
        }
    }

    /// Reads from the connection `id`, if it is one of these.
    pub(super) fn hear(&mut self, now: Time, id: u64, counters: &mut Counters) {
        let Some(at) = self.peers.iter().position(|peer| peer.id() == Some(id)) else { return };
        let mut said = [0; ANSWER.len()];
        loop {
            let socket = match &self.peers[at].state {
                State::Greeted(channel, _) | State::Open(channel) => &channel.socket,
                State::Absent(_) => return,
            };
            match socket.recv(&mut said) {
                Ok((0, _)) => {
                    let gone = io::Error::other("its process has closed the connection");
                    return self.absent(now, at, &gone);
                }
                Ok((len, _)) if said[..len] == ANSWER => self.answered(now, at, counters),
                // Readers send nothing else.
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.absent(now, at, &error),
            }
        }
    }

    fn answered(&mut self, now: Time, at: usize, counters: &mut Counters) {
        let peer = &mut self.peers[at];
        peer.state = match std::mem::replace(&mut peer.state, State::Absent(now)) {
            State::Greeted(channel, _) => {
                counters.peers += 1;
                peer.absent_ns = ABSENT_MIN_NS;
                peer.told = false;
                State::Open(channel)
            }
            other => other,
        };
        self.list();
    }

    /// Gives up on engines that do not reply.
    pub(super) fn tire(&mut self, now: Time) {
        for at in 0..self.peers.len() {
            if let State::Greeted(_, until) = self.peers[at].state
                && now >= until
            {
                self.absent(now, at, &io::Error::other("it does not answer"));
            }
        }
    }

    /// Updates the list of clean paths.
    fn list(&mut self) {
        let open = self.peers.iter().filter(|peer| matches!(peer.state, State::Open(_)));
        let paths = CleanPaths::new(open.map(|peer| peer.engine));
        self.clean = (paths != CleanPaths::default()).then(|| Arc::new(paths));
    }
}

impl Peer {
    fn id(&self) -> Option<u64> {
        match &self.state {
            State::Greeted(channel, _) | State::Open(channel) => Some(channel.id),
            State::Absent(_) => None,
        }
    }
}

impl Channel {
    /// The ring is full: returns for how long the reader has read nothing.
    #[cold]
    fn wait(&mut self, now: Time) -> u64 {
        let head = self.writer.head();
        match self.full {
            Some((then, since)) if then == head => now.nanos_since(since),
            _ => {
                self.full = Some((head, now));
                0
            }
        }
    }
}
