//! Lets several processes of one user share an address and port, without privileges.
//!
//! Every process has its own socket in a group (`SO_REUSEPORT`) and owns one top byte of the 24-bit
//! QPN, its *prefix*. A kernel program steers each datagram by that byte to a socket's index in the
//! group. The kernel renumbers sockets when one closes, so the processes keep a registry, notice
//! frames that are not theirs, and then determine their indices again by [`probe`]s. Until the
//! program is right again, they forward frames to their owners ([`handover`]).
//!
//! Queue pair 1, for management datagrams, has no prefix. The process that receives one copies it
//! to all others, and [`Services`] tells them which of them is to act.

mod dir;
mod error;
mod handover;
mod join;
mod probe;
mod room;
mod services;
mod steering;
mod table;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use bowline_nic::Time;
use bowline_wire::Opcode;

use crate::port::{FrameSink, PortCounters};
use crate::sys::attach_group_program;
pub use dir::runtime_dir;
pub use error::RegistryError;
pub(crate) use handover::Run;
use handover::{Handed, Handover};
pub(crate) use join::{Place, join};
pub(crate) use room::Rooms;
pub use services::Services;
use table::{Member, Table, TableFile};

/// How often to look for dead processes when nothing has gone wrong.
const UPKEEP_NS: u64 = 1_000_000_000;
/// How soon to try again when another process holds the table's lock.
const RETRY_NS: u64 = 500_000;
/// Initial interval between rounds of probes; it grows while they do not help.
const ROUND_MIN_NS: u64 = 2_000_000;
const ROUND_MAX_NS: u64 = 500_000_000;
/// How often to check for forwarded frames.
const HANDOVER_NS: u64 = 100_000;
/// Maximum age of the list of live prefixes when a frame for an unknown prefix arrives.
const STALE_NS: u64 = 1_000_000;
/// How long leaving waits for the table's lock.
const LEAVE_PATIENCE: Duration = Duration::from_millis(200);

/// This process's place among those on its address.
pub(crate) struct Membership {
    file: TableFile,
    handover: Handover,
    /// Receive buffer space of this host's processes.
    pub(crate) rooms: Rooms,
    /// Where probes go: the group itself.
    group: SocketAddr,
    prefix: u8,
    index: u8,
    /// The round of probes last seen in the table.
    round: u64,
    /// The smallest index probed in it that reached this process.
    smallest: Option<u8>,
    /// The index has changed but the table does not show it yet.
    moved: bool,
    /// Frames were misrouted: determine all indices again.
    astray: bool,
    next_round: Time,
    round_interval_ns: u64,
    /// When the list of live prefixes was read; `None` if it is known to be outdated.
    listed: Option<Time>,
    live: [bool; 256],
    next_upkeep: Time,
    next_handover: Time,
    next_try: Time,
    /// Copies of management datagrams for processes whose sockets were full.
    waiting: VecDeque<Waiting>,
}

/// A copy of management datagrams for another process.
struct Waiting {
    prefix: u8,
    /// From then on its sender has retransmitted it.
    until: Time,
    run: Run,
    bytes: Box<[u8]>,
}

/// Copies that can wait for a process.
const MAX_WAITING: usize = 4096;
/// How long they wait: two retry intervals of the connection manager.
const WAITING_NS: u64 = 1_100_000_000;

/// Who a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This process.
    Us,
    /// Another process, with this prefix.
    Other(u8),
    /// The steering itself: a probe.
    Probe,
    /// This process and all others on the address: a management datagram.
    Everybody,
}

/// Bytes of a management datagram: BTH, DETH, MAD, ICRC.
const MANAGEMENT_LEN: usize = 12 + 8 + 256 + 4;
/// The Q_Key of queue pair 1.
const MANAGEMENT_QKEY: [u8; 4] = [0x80, 0x01, 0, 0];

/// Whether a frame is a management datagram for queue pair 1. Nothing else is shared.
#[cold]
fn is_management(frame: &[u8]) -> bool {
    frame.len() == MANAGEMENT_LEN
        && frame[0] == Opcode::UD_SEND_ONLY.0
        && frame[5..8] == [0, 0, 1]
        && frame[12..16] == MANAGEMENT_QKEY
}

impl Membership {
    /// The top byte of this process's QPNs.
    pub(crate) fn prefix(&self) -> u8 {
        self.prefix
    }

    /// The owner of a frame. A frame whose prefix no process has goes to the process that receives
    /// it.
    #[inline]
    pub(crate) fn owner_of(&self, frame: &[u8]) -> Owner {
        match frame.get(5) {
            Some(&prefix) if prefix == self.prefix => Owner::Us,
            Some(&prefix) if table::PREFIXES.contains(&prefix) => Owner::Other(prefix),
            Some(&probe::PROBE_PREFIX) if frame[0] == probe::PROBE_OPCODE => Owner::Probe,
            Some(&0) if is_management(frame) => Owner::Everybody,
            _ => Owner::Us,
        }
    }

    /// Handles a probe. Only those of the current round count: anybody can send one.
    pub(crate) fn on_probe(&mut self, now: Time, frame: &[u8]) {
        let Some((index, nonce)) = probe::parse(frame) else {
            return;
        };
        let Ok(table) = self.file.load() else { return };
        self.see_round(table.nonce);
        if nonce != self.round {
            return;
        }
        let smallest = self.smallest.map_or(index, |s| s.min(index));
        self.smallest = Some(smallest);
        self.index = smallest;
        // Others write our entry too: a leaving process predicts the move that follows.
        if table.get(self.prefix).is_none_or(|us| us.index != smallest) {
            self.moved = true;
            self.next_try = now;
        }
    }

    /// Records the table's current round.
    fn see_round(&mut self, nonce: u64) {
        if nonce != self.round {
            self.round = nonce;
            self.smallest = None;
            // Somebody joined or died.
            self.listed = None;
        }
    }

    /// Forwards frames to the process that owns them.
    pub(crate) fn hand_on(
        &mut self,
        now: Time,
        prefix: u8,
        run: &Run,
        bytes: &[u8],
        counters: &mut PortCounters,
    ) {
        let frames = bytes.len().div_ceil(run.segment_len) as u64;
        counters.misrouted += frames;
        if !self.is_live(now, prefix) {
            // The process is gone. Its peers will notice; steering is not at fault.
            counters.drop_misrouted += frames;
            return;
        }
        self.astray = true;
        if self.handover.send(prefix, run, bytes) == Handed::On {
            counters.handed_on += frames;
        } else {
            counters.drop_misrouted += frames;
        }
    }

    /// Hands copies of management datagrams to all other processes on the address.
    pub(crate) fn share(
        &mut self,
        now: Time,
        run: &Run,
        bytes: &[u8],
        counters: &mut PortCounters,
    ) {
        if self.listed.is_none_or(|at| now.nanos_since(at) > STALE_NS) {
            self.listed = Some(now);
            if let Ok(table) = self.file.load() {
                self.list(&table);
            }
        }
        let frames = bytes.len().div_ceil(run.segment_len) as u64;
        for prefix in table::PREFIXES.filter(|prefix| *prefix != self.prefix) {
            if !self.live[usize::from(prefix)] {
                continue;
            }
            // Queue behind earlier copies for the same process, to keep their order.
            let waits = self.waiting.iter().filter(|copy| copy.prefix == prefix).count();
            let handed =
                if waits > 0 { Handed::NoRoom } else { self.handover.send(prefix, run, bytes) };
            match handed {
                Handed::On => counters.handed_on += frames,
                Handed::NoRoom if waits < MAX_WAITING => {
                    let (run, until) = (*run, now.plus_nanos(WAITING_NS));
                    self.waiting.push_back(Waiting { prefix, until, run, bytes: bytes.into() });
                }
                Handed::NoRoom | Handed::Nobody => counters.drop_misrouted += frames,
            }
        }
    }

    /// Forwards copies that found a full socket. Sockets between processes hold ten datagrams on
    /// many hosts, and a lost management datagram costs its sender half a second.
    fn share_waiting(&mut self, now: Time, counters: &mut PortCounters) {
        // Copies for one process stay in order, and do not hold up another's: the first may have
        // stopped.
        let mut full = [false; 256];
        let handover = &mut self.handover;
        self.waiting.retain(|copy| {
            let full = &mut full[usize::from(copy.prefix)];
            let frames = copy.bytes.len().div_ceil(copy.run.segment_len) as u64;
            if copy.until <= now {
                counters.drop_misrouted += frames;
                return false;
            }
            if *full {
                return true;
            }
            match handover.send(copy.prefix, &copy.run, &copy.bytes) {
                Handed::On => counters.handed_on += frames,
                Handed::Nobody => counters.drop_misrouted += frames,
                Handed::NoRoom => *full = true,
            }
            *full
        });
    }

    /// When to retry the waiting copies.
    #[inline]
    pub(crate) fn next_share(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.next_handover)
    }

    fn is_live(&mut self, now: Time, prefix: u8) -> bool {
        let is_stale = self.listed.is_none_or(|at| now.nanos_since(at) > STALE_NS);
        if !self.live[usize::from(prefix)] && is_stale {
            self.listed = Some(now);
            if let Ok(table) = self.file.load() {
                self.list(&table);
            }
        }
        self.live[usize::from(prefix)]
    }

    fn list(&mut self, table: &Table) {
        self.live = [false; 256];
        for (prefix, _) in table.members() {
            self.live[usize::from(prefix)] = true;
        }
    }

    /// Delivers frames that others forwarded, if it is time to check. Returns how many.
    pub(crate) fn take_handed_in(
        &mut self,
        now: Time,
        counters: &mut PortCounters,
        sink: &mut dyn FrameSink,
    ) -> usize {
        if now < self.next_handover {
            return 0;
        }
        self.next_handover = now.plus_nanos(HANDOVER_NS);
        if !self.waiting.is_empty() {
            self.share_waiting(now, counters);
        }
        let (prefix, dst) = (self.prefix, self.group.ip());
        let mut frames = 0;
        self.handover.recv(dst, |run, bytes| {
            let mut meta = run.meta;
            for frame in bytes.chunks(run.segment_len) {
                if frame.get(5) == Some(&prefix) || is_management(frame) {
                    sink.frame(&meta, frame);
                    frames += 1;
                } else {
                    counters.drop_misrouted += 1;
                }
                meta.ip_id.skip(1);
            }
        });
        counters.handed_in += frames as u64;
        frames
    }

    /// When [`upkeep`](Membership::upkeep) has something to do.
    #[inline]
    pub(crate) fn next_due(&self) -> Time {
        let mut due = self.next_upkeep;
        if self.moved {
            due = due.min(self.next_try);
        }
        if self.astray {
            due = due.min(self.next_round);
        }
        due
    }

    /// Maintains the table and the steering. No failure here is fatal: it is tried again.
    pub(crate) fn upkeep(&mut self, now: Time, socket: &UdpSocket, counters: &mut PortCounters) {
        let round_due = self.astray && now >= self.next_round;
        let upkeep_due = now >= self.next_upkeep;
        if !matches!(self.file.try_lock(), Ok(true)) {
            let retry = now.plus_nanos(RETRY_NS);
            self.next_try = retry;
            self.next_round = self.next_round.max(retry);
            self.next_upkeep = self.next_upkeep.max(retry);
            return;
        }
        let result = self.update(now, socket, round_due, counters);
        self.file.unlock();
        if result.is_err() {
            self.next_try = now.plus_nanos(ROUND_MAX_NS);
        }
        if round_due {
            self.astray = false;
            self.round_interval_ns = (self.round_interval_ns * 2).min(ROUND_MAX_NS);
            self.next_round = now.plus_nanos(self.round_interval_ns);
        }
        if upkeep_due {
            self.next_upkeep = now.plus_nanos(UPKEEP_NS);
            if now.nanos_since(self.next_round) > UPKEEP_NS {
                // No frame was misrouted for a while.
                self.round_interval_ns = ROUND_MIN_NS;
            }
        }
    }

    /// Brings table and program up to date, under the table's lock.
    fn update(
        &mut self,
        now: Time,
        socket: &UdpSocket,
        new_round: bool,
        counters: &mut PortCounters,
    ) -> Result<(), RegistryError> {
        let mut table = self.file.load()?;
        let buried = self.bury_dead(&mut table);
        let us = Member { pid: std::process::id(), index: self.index };
        table.set(self.prefix, Some(us));
        // If another process has just begun a round, wait for its probes: rounds that overtake each
        // other would never end.
        let probing = buried || (new_round && table.nonce == self.round);
        if probing {
            table.nonce = fresh_nonce();
        }
        self.see_round(table.nonce);
        self.listed = Some(now);
        self.list(&table);
        if probing || self.moved {
            self.file.store(&table)?;
            attach(socket, &table)?;
            counters.steering_updates += 1;
        }
        self.moved = false;
        if probing {
            send_probes(socket, self.group, table.nonce, table.members().count());
        }
        Ok(())
    }

    fn bury_dead(&self, table: &mut Table) -> bool {
        let dead: Vec<u8> = table
            .members()
            .map(|(prefix, _)| prefix)
            .filter(|prefix| *prefix != self.prefix && !self.file.is_alive(*prefix))
            .collect();
        for prefix in &dead {
            table.set(*prefix, None);
            self.handover.remove_socket_of(*prefix);
            self.rooms.close_for(*prefix);
        }
        !dead.is_empty()
    }

    /// Prepares for closing the socket, which must follow while `self` still lives: the table stays
    /// locked until then. Datagrams for the group's last socket already arrive here meanwhile, and
    /// have to be forwarded first.
    pub(crate) fn leave(&mut self, socket: &UdpSocket) {
        self.rooms.close();
        if self.file.lock_within(LEAVE_PATIENCE).is_err() {
            // The others will notice: an entry without its lock is dead.
            return;
        }
        let Ok(mut table) = self.file.load() else {
            return;
        };
        // A process that left earlier may have moved us before any probe has said so.
        let index = table.get(self.prefix).map_or(self.index, |us| us.index);
        self.bury_dead(&mut table);
        table.set(self.prefix, None);
        // The kernel will move the last socket to our index.
        if let Some((prefix, mut last)) = table.members().max_by_key(|(_, m)| m.index)
            && last.index > index
        {
            last.index = index;
            table.set(prefix, Some(last));
        }
        if table.members().next().is_none() {
            self.rooms.remove(self.group.ip());
            self.file.remove();
        } else if self.file.store(&table).is_ok() {
            let _ = attach(socket, &table);
        }
        self.list(&table);
    }

    /// Readable when others have forwarded frames.
    pub(crate) fn handover_fd(&self) -> RawFd {
        self.handover.as_raw_fd()
    }
}

/// Makes the kernel steer by `table`.
fn attach(socket: &UdpSocket, table: &Table) -> Result<(), RegistryError> {
    let program = steering::program(table.members().map(|(prefix, m)| (prefix, m.index)));
    attach_group_program(socket.as_fd(), &program).map_err(RegistryError::Steering)
}

/// Sends a probe to each of the first `count` indices.
fn send_probes(socket: &UdpSocket, group: SocketAddr, nonce: u64, count: usize) {
    for index in 0..count.min(usize::from(u8::MAX)) {
        // A lost probe is harmless: another round follows.
        let _ = socket.send_to(&probe::emit(index as u8, nonce), group);
    }
}

/// A number known only to processes that can read the table.
fn fresh_nonce() -> u64 {
    RandomState::new().build_hasher().finish()
}
