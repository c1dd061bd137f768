//! Flow control between processes of one host, so that no receive buffer overflows.
//!
//! The kernel drops what does not fit a receiver's socket, without telling the sender. Between
//! hosts, networks do the same. Between processes of one host, where a sender easily outruns a
//! receiver that shares its cores, drops would cost reliable traffic retransmissions and unreliable
//! traffic its messages, where a lossless network would pause the sender. So every process
//! publishes how much was sent to it and how much it has consumed, in a file beside the registry; a
//! sender that would overfill a socket waits until there is space.
//!
//! Like a lossless network's pause, this delays everything that the sender has to send. Senders
//! therefore stop waiting for a receiver that consumes nothing for a while. Counts are advisory: a
//! receiver that finds its socket empty corrects them.

mod counts;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use bowline_nic::{Burst, Time};

use super::dir;
use crate::sys::SharedWords;
use crate::udp::{Listener, Multicasts};
use counts::Counts;

/// Words per process: two cache lines apart, since a sender writes one and the receiver another.
const SLOT_WORDS: usize = 32;
const SENT: usize = 0;
const TAKEN: usize = 16;
const LIMIT: usize = 17;
const WORDS: usize = 256 * SLOT_WORDS;

/// Buffer space that a datagram takes besides its bytes: the kernel's descriptor of it, and ...
const DESCRIPTOR: u64 = 256;
/// ... headers and what is kept about its fragments.
const OVERHEAD: u64 = 1280;
/// Longest datagram that the kernel keeps in one allocation, which is a power of two.
const MAX_LINEAR: u64 = 7 << 10;
/// How soon to check again when a receiver is full.
const RECHECK_NS: u64 = 20_000;
/// A receiver that has consumed nothing for this long is stopped, dead or starved: do not wait for
/// it.
const STALL_NS: u64 = 20_000_000;
/// How often to look for the file of an address that had none.
const LOOKUP_NS: u64 = 100_000_000;

/// The counts of this process and of those that it sends to.
pub(crate) struct Rooms {
    dir: PathBuf,
    udp_port: u16,
    own: SharedWords,
    prefix: u8,
    peers: HashMap<IpAddr, Peer>,
    /// When to check again, while a receiver is full.
    recheck: Option<Time>,
}

/// The processes at one address.
struct Peer {
    words: Option<SharedWords>,
    looked_up: Time,
    /// Full receivers: how much they had consumed then, and since when.
    full: HashMap<u8, (u64, Time)>,
}

fn path_of(dir: &Path, stem: &str) -> PathBuf {
    dir.join(format!("{stem}.room"))
}

/// The counters of the process with `prefix`.
#[inline]
fn counts_of(words: &SharedWords, prefix: u8) -> Counts<'_> {
    let slot = usize::from(prefix) * SLOT_WORDS;
    Counts {
        sent: words.word(slot + SENT),
        taken: words.word(slot + TAKEN),
        limit: words.word(slot + LIMIT),
    }
}

/// What a datagram takes of a socket's buffer.
fn cost(bytes: u64) -> u64 {
    let linear = bytes <= MAX_LINEAR;
    DESCRIPTOR + if linear { (bytes + 512).next_power_of_two() } else { bytes + OVERHEAD }
}

impl Rooms {
    /// Opens the counts of `prefix`, for a socket with a buffer of `buffer_bytes`. Call under the
    /// table's lock.
    pub(super) fn open(
        dir: &Path,
        (addr, udp_port): (IpAddr, u16),
        prefix: u8,
        buffer_bytes: u64,
    ) -> io::Result<Rooms> {
        let own = SharedWords::create(&path_of(dir, &dir::stem(addr, udp_port)), WORDS)?;
        let rooms = Rooms::new(dir, udp_port, prefix, own);
        // The kernel may keep a quarter of the buffer for what has been read already.
        rooms.counts().open(buffer_bytes / 8 * 5);
        Ok(rooms)
    }

    /// Only the counts of others: nobody waits for this process, as if it were on another host.
    pub(super) fn without_own(dir: &Path, udp_port: u16, prefix: u8) -> io::Result<Rooms> {
        Ok(Rooms::new(dir, udp_port, prefix, SharedWords::private(WORDS)?))
    }

    fn new(dir: &Path, udp_port: u16, prefix: u8, own: SharedWords) -> Rooms {
        let dir = dir.to_owned();
        Rooms { dir, udp_port, own, prefix, peers: HashMap::new(), recheck: None }
    }

    #[inline]
    fn counts(&self) -> Counts<'_> {
        counts_of(&self.own, self.prefix)
    }

    /// Senders no longer wait for this process.
    pub(super) fn close(&self) {
        self.close_for(self.prefix);
    }

    /// Senders no longer wait for the process with `prefix` at the same address.
    pub(super) fn close_for(&self, prefix: u8) {
        counts_of(&self.own, prefix).close();
    }

    /// Removes the file of an address that its last process leaves.
    pub(super) fn remove(&self, addr: IpAddr) {
        let _ = std::fs::remove_file(path_of(&self.dir, &dir::stem(addr, self.udp_port)));
    }

    /// What others have sent to this process so far; read it before receiving.
    #[inline]
    pub(crate) fn sent(&self) -> u64 {
        self.counts().sent()
    }

    /// A datagram was taken from the socket.
    #[inline]
    pub(crate) fn took(&self, bytes: usize) {
        self.counts().took(cost(bytes as u64));
    }

    /// The socket was found empty after reading `sent`: all of that was consumed or lost.
    #[inline]
    pub(crate) fn drained(&self, sent: u64) {
        self.counts().drained(sent);
    }

    /// How many of the bursts fit; reserves their space.
    pub(crate) fn admit(&mut self, now: Time, bursts: &[Burst], groups: &Multicasts) -> usize {
        let admitted = bursts.iter().take_while(|burst| self.admits(now, burst, groups)).count();
        self.recheck = (admitted < bursts.len()).then(|| now.plus_nanos(RECHECK_NS));
        admitted
    }

    fn admits(&mut self, now: Time, burst: &Burst, groups: &Multicasts) -> bool {
        let cost = cost(burst.bytes.into());
        let admitted = burst.dst.is_multicast().then(|| {
            groups.with_audience(burst.dst, |listeners| self.all_admit(now, listeners, cost))
        });
        match admitted.flatten() {
            Some(admitted) => admitted,
            None => self.peer(now, burst.dst, burst.prefix()).admits(now, burst.prefix(), cost),
        }
    }

    /// Whether a burst to a group fits the sockets of all its listeners; reserves its space at all
    /// of them, or at none.
    fn all_admit(&mut self, now: Time, listeners: &[Listener], cost: u64) -> bool {
        let has_room = |rooms: &mut Rooms, &(addr, prefix): &Listener| {
            rooms.peer(now, addr, prefix).has_room(now, prefix, cost)
        };
        if !listeners.iter().all(|listener| has_room(self, listener)) {
            return false;
        }
        for (addr, prefix) in listeners {
            self.peer(now, *addr, *prefix).take(*prefix, cost);
        }
        true
    }

    /// The processes at an address, one of which has `prefix`.
    fn peer(&mut self, now: Time, addr: IpAddr, prefix: u8) -> &mut Peer {
        let (dir, udp_port) = (&self.dir, self.udp_port);
        let peer = self.peers.entry(addr).or_insert_with(|| Peer::new(dir, addr, udp_port, now));
        // Closed counts may belong to a file that has been replaced since.
        if !peer.is_open(prefix) && now.nanos_since(peer.looked_up) > LOOKUP_NS {
            *peer = Peer::new(dir, addr, udp_port, now);
        }
        peer
    }

    /// Returns the space of bursts that were not sent after all.
    pub(crate) fn give_back(&mut self, bursts: &[Burst], groups: &Multicasts) {
        let give = |peers: &HashMap<IpAddr, Peer>, (addr, prefix): Listener, bytes: u32| {
            if let Some(words) = peers.get(&addr).and_then(|peer| peer.words.as_ref()) {
                counts_of(words, prefix).give_back(cost(bytes.into()));
            }
        };
        for burst in bursts {
            let to_all = |listeners: &[Listener]| {
                listeners.iter().for_each(|one| give(&self.peers, *one, burst.bytes));
            };
            let is_group = burst.dst.is_multicast();
            if !is_group || groups.with_audience(burst.dst, to_all).is_none() {
                give(&self.peers, (burst.dst, burst.prefix()), burst.bytes);
            }
        }
    }

    /// When to check again, while a receiver is full.
    #[inline]
    pub(crate) fn recheck(&self) -> Option<Time> {
        self.recheck
    }
}

impl Peer {
    fn new(dir: &Path, addr: IpAddr, udp_port: u16, now: Time) -> Peer {
        let path = path_of(dir, &dir::stem(addr, udp_port));
        // Another host, another user's process, or one that shares no counts: never wait for it.
        let words = SharedWords::open(&path, WORDS).ok();
        Peer { words, looked_up: now, full: HashMap::new() }
    }

    /// Whether there is a receiver with `prefix` to wait for.
    #[inline]
    fn is_open(&self, prefix: u8) -> bool {
        self.words.as_ref().is_some_and(|words| counts_of(words, prefix).is_open())
    }

    /// Whether `cost` fits the socket of the process with `prefix`; if so, reserves it.
    fn admits(&mut self, now: Time, prefix: u8, cost: u64) -> bool {
        let has_room = self.has_room(now, prefix, cost);
        if has_room {
            self.take(prefix, cost);
        }
        has_room
    }

    /// Reserves space at the process with `prefix`.
    fn take(&self, prefix: u8, cost: u64) {
        if let Some(words) = &self.words {
            counts_of(words, prefix).take(cost);
        }
    }

    /// Whether `cost` fits the socket of the process with `prefix`, or need not.
    fn has_room(&mut self, now: Time, prefix: u8, cost: u64) -> bool {
        let Some(words) = &self.words else { return true };
        let counts = counts_of(words, prefix);
        let taken = counts.taken();
        if counts.has_room(taken, cost) {
            if !self.full.is_empty() {
                self.full.remove(&prefix);
            }
        } else {
            let (then, since) = *self.full.entry(prefix).or_insert((taken, now));
            if then != taken {
                self.full.insert(prefix, (taken, now));
                return false;
            }
            if now.nanos_since(since) < STALL_NS {
                return false;
            }
            // The file may have been replaced.
            if now.nanos_since(self.looked_up) > LOOKUP_NS {
                self.looked_up = now;
                self.words = None;
                return true;
            }
        }
        true
    }
}

#[cfg(test)]
mod models;
#[cfg(test)]
mod tests;
