//! Messages over an SDR scheme, for long links.
//!
//! One [`ReliableQp`] carries all messages of a link, including those without bytes. It may
//! complete them in any order, but the engine must hear of them in posting order. RC carries only
//! the news that the group has failed, which need not wait for messages in flight.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use bowline_nic::{AddressVector, MrKey, Mtu, PacketSeal, RateControl, Rnic, Time};
use bowline_sdr::{
    Auto, ErasureCoding, RecvId, ReliableConfig, ReliableEvent, ReliableInfo, ReliableQp, Scheme,
    SdrConfig, SelectiveRepeat, Source, WriteId, WriteOptions,
};

use super::{Group, GroupConfig, GroupError};
use crate::Rank;

/// Packets in a chunk, the unit of retransmission.
const PACKETS_A_CHUNK: u32 = 4;
/// Receives for messages without bytes, in addition to one for each slot.
const SPARE_RECEIVES: u16 = 4;
/// At first SDR queries a silent peer every 30 ms, and queries get lost too.
const MIN_SILENCE_NS: u64 = 1_000_000_000;
/// Number of data chunks in a group, and of parity chunks if the scheme uses parity.
const GROUP_CHUNKS: (u32, u32) = (32, 8);

/// How lost packets are recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SdrScheme {
    /// They are requested at once and retransmitted.
    SrNack,
    /// They are recovered from parity, and retransmitted if that is not enough.
    EcMds,
    /// Chooses one of the two for each message, by what the planner predicts for the path.
    Auto,
}

impl SdrScheme {
    /// All schemes.
    pub const ALL: [SdrScheme; 3] = [SdrScheme::SrNack, SdrScheme::EcMds, SdrScheme::Auto];

    /// The name, as in commands and errors.
    pub const fn name(self) -> &'static str {
        match self {
            SdrScheme::SrNack => "sr-nack",
            SdrScheme::EcMds => "ec-mds",
            SdrScheme::Auto => "auto",
        }
    }

    /// The schemes of a connection. Its messages ask for the first one.
    fn schemes(self) -> Vec<Arc<dyn Scheme>> {
        let sr_nack: Arc<dyn Scheme> = Arc::new(SelectiveRepeat::with_nack());
        let ec_mds: Arc<dyn Scheme> = Arc::new(ErasureCoding::mds());
        match self {
            SdrScheme::SrNack => vec![sr_nack],
            SdrScheme::EcMds => vec![ec_mds],
            SdrScheme::Auto => vec![Arc::new(Auto), sr_nack, ec_mds],
        }
    }

    fn config(self, config: &GroupConfig, mtu: Mtu) -> ReliableConfig {
        let (k, m) = GROUP_CHUNKS;
        ReliableConfig {
            sdr: SdrConfig {
                mtu,
                chunk_bytes: PACKETS_A_CHUNK * mtu.bytes(),
                ..SdrConfig::default()
            },
            max_write: config.slot_bytes.into(),
            k,
            m: if self == SdrScheme::SrNack { 0 } else { m },
            schemes: self.schemes(),
            timeout_ns: config.silence_ns().max(MIN_SILENCE_NS),
            ..ReliableConfig::default()
        }
    }
}

/// An unknown scheme name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheme `{0}`: use sr-nack, ec-mds or auto")]
pub struct UnknownScheme(pub String);

impl FromStr for SdrScheme {
    type Err = UnknownScheme;

    fn from_str(name: &str) -> Result<SdrScheme, UnknownScheme> {
        let found = SdrScheme::ALL.into_iter().find(|scheme| scheme.name() == name);
        found.ok_or_else(|| UnknownScheme(name.to_owned()))
    }
}

/// Number of buffers of a link: one for each slot until its message is folded, and one for each
/// message that may arrive.
pub(super) fn buffers(config: &GroupConfig) -> u16 {
    2 * config.slots + SPARE_RECEIVES
}

/// What the engine must be told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The oldest post has completed.
    Sent,
    /// A message is in a buffer.
    Message { imm: u32, len: usize, buffer: u16 },
    /// The peer does not answer, or this NIC does not send.
    Broken,
}

/// This rank's end of a connection.
pub(super) struct SdrLink {
    qp: ReliableQp,
    /// The key of the buffers.
    key: MrKey,
    buffer_bytes: u32,
    /// Posts that do not have room yet.
    waiting: VecDeque<(Source, u32, u32)>,
    /// Posts in flight, oldest first, and whether each has completed; then the number of the first.
    writes: VecDeque<bool>,
    first_write: u64,
    /// Messages that arrived before earlier ones, by number.
    early: BTreeMap<u64, (u32, usize)>,
    /// The buffer of each posted receive, oldest first; then the number of the first receive.
    posted: VecDeque<u16>,
    first_recv: u64,
    /// Buffers that can be posted.
    free: VecDeque<u16>,
    /// The buffer that backs each slot.
    slots: Vec<Option<u16>>,
    /// Number of messages with bytes so far.
    messages: u64,
    /// Nothing can be sent any more, and the engine has not been told; or it has.
    is_broken: bool,
    was_broken: bool,
}

impl fmt::Debug for SdrLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SdrLink").field("messages", &self.messages).finish_non_exhaustive()
    }
}

impl SdrLink {
    /// Seals its packets, before it is connected.
    pub(super) fn seal(
        &mut self,
        nic: &mut dyn Rnic,
        next: impl FnMut() -> PacketSeal,
    ) -> Result<(), GroupError> {
        Ok(self.qp.seal(nic, next)?)
    }

    pub(super) fn info(&self) -> ReliableInfo {
        self.qp.info()
    }

    /// Sets the rate controller, before it is connected.
    pub(super) fn set_congestion(&mut self, control: Option<RateControl>) {
        self.qp.set_congestion(control);
    }

    pub(super) fn connect(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        addr: IpAddr,
        far: &ReliableInfo,
    ) -> Result<(), GroupError> {
        self.qp.connect(nic, now, AddressVector::new(addr), far)?;
        self.post_receives(nic, now);
        Ok(())
    }

    /// Sends a message, with or without bytes.
    pub(super) fn write(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        source: Source,
        len: u32,
        imm: u32,
    ) {
        self.waiting.push_back((source, len, imm));
        self.post_writes(nic, now);
    }

    /// Sends a message without bytes.
    pub(super) fn note(&mut self, nic: &mut dyn Rnic, now: Time, imm: u32) {
        self.write(nic, now, Source { key: self.key, addr: 0 }, 0, imm);
    }

    fn post_writes(&mut self, nic: &mut dyn Rnic, now: Time) {
        while let Some((source, len, imm)) = self.waiting.front().copied() {
            if self.qp.write_room().is_err() {
                return;
            }
            let options = WriteOptions { scheme: 0, imm: Some(imm) };
            match self.qp.write(nic, now, source, len.into(), options) {
                Ok(WriteId(id)) => {
                    debug_assert_eq!(id, self.first_write + self.writes.len() as u64);
                    self.writes.push_back(false);
                    self.waiting.pop_front();
                }
                Err(_) => {
                    self.is_broken = true;
                    return;
                }
            }
        }
    }

    fn post_receives(&mut self, nic: &mut dyn Rnic, now: Time) {
        while let Some(buffer) = self.free.front().copied() {
            // There may be fewer receive numbers than buffers, and numbers rest before they are
            // reused. Try again later.
            if self.qp.recv_room(now).is_err() {
                return;
            }
            let addr = u64::from(buffer) * u64::from(self.buffer_bytes);
            let at = Source { key: self.key, addr };
            if self.qp.recv(nic, now, at, self.buffer_bytes.into()).is_err() {
                self.is_broken = true;
                return;
            }
            self.posted.push_back(buffer);
            self.free.pop_front();
        }
    }

    /// Takes completions from the NIC and does what is due.
    pub(super) fn drive(&mut self, nic: &mut dyn Rnic, now: Time) {
        if self.was_broken {
            // Otherwise it would be told about receives for as long as the group exists.
            return;
        }
        self.qp.drive(nic, now);
        while let Some(event) = self.qp.poll_event() {
            match event {
                ReliableEvent::Written { id: WriteId(id), result: Ok(()) } => {
                    let index = id.wrapping_sub(self.first_write) as usize;
                    if let Some(is_over) = self.writes.get_mut(index) {
                        *is_over = true;
                    }
                }
                ReliableEvent::Received { id: RecvId(id), len, imm: Some(imm), result: Ok(()) } => {
                    self.early.insert(id, (imm, len as usize));
                }
                // A member of a group sends nothing without an immediate.
                _ => self.is_broken = true,
            }
        }
        self.post_receives(nic, now);
        self.post_writes(nic, now);
        self.is_broken |= self.gives_up_at().is_some_and(|at| at <= now);
    }

    /// When to take the peer for dead. Messages that it has made room for time out by themselves.
    /// It always makes room, whatever its operations wait for.
    fn gives_up_at(&self) -> Option<Time> {
        Some(self.qp.unanswered_since()?.plus_nanos(self.qp.config().timeout_ns))
    }

    /// The next thing to tell the engine.
    pub(super) fn next_told(&mut self) -> Option<Told> {
        if self.writes.front() == Some(&true) {
            self.writes.pop_front();
            self.first_write += 1;
            return Some(Told::Sent);
        }
        if let Some((imm, len)) = self.early.remove(&self.first_recv) {
            let buffer = self.posted.pop_front()?;
            self.first_recv += 1;
            return Some(Told::Message { imm, len, buffer });
        }
        self.was_broken |= self.is_broken;
        std::mem::take(&mut self.is_broken).then_some(Told::Broken)
    }

    /// Assigns a buffer to the engine's next slot. The previous message in that slot has been
    /// folded, or the sender would have had no credit for this one.
    pub(super) fn hold(&mut self, buffer: u16) {
        let slot = (self.messages % self.slots.len() as u64) as usize;
        self.messages += 1;
        self.free.extend(self.slots[slot].replace(buffer));
    }

    /// Frees a buffer that holds nothing the engine needs.
    pub(super) fn release(&mut self, buffer: u16) {
        self.free.push_back(buffer);
    }

    /// The address of the message in a slot.
    pub(super) fn slot_addr(&self, slot: u16) -> Option<u64> {
        let buffer = self.slots.get(usize::from(slot)).copied().flatten()?;
        Some(u64::from(buffer) * u64::from(self.buffer_bytes))
    }

    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let times = [self.qp.poll_timeout(), self.gives_up_at()];
        times.into_iter().flatten().min().filter(|_| !self.was_broken)
    }

    pub(super) fn destroy(self, nic: &mut dyn Rnic) {
        self.qp.destroy(nic);
    }
}

impl Group {
    /// Creates this rank's end of an SDR connection, if the group uses a scheme.
    pub(super) fn sdr_link(
        &self,
        nic: &mut dyn Rnic,
        key: MrKey,
    ) -> Result<Option<Box<SdrLink>>, GroupError> {
        let Some(scheme) = self.config.scheme else { return Ok(None) };
        let mut config = scheme.config(&self.config, self.mtu);
        config.sdr = config.sdr.on(nic);
        let qp = ReliableQp::new(nic, self.pd, &config)?;
        Ok(Some(Box::new(SdrLink {
            qp,
            key,
            buffer_bytes: self.config.slot_bytes,
            waiting: VecDeque::new(),
            writes: VecDeque::new(),
            first_write: 0,
            early: BTreeMap::new(),
            posted: VecDeque::new(),
            first_recv: 0,
            free: (0..buffers(&self.config)).collect(),
            slots: vec![None; self.config.slots.into()],
            messages: 0,
            is_broken: false,
            was_broken: false,
        })))
    }

    /// Takes events of SDR connections. Returns whether the engine was told anything.
    pub(super) fn drive_sdr(&mut self, nic: &mut dyn Rnic, now: Time) -> bool {
        let mut did = false;
        for peer in 0..self.links.len() as Rank {
            let Some(sdr) = self.sdr_mut(peer) else { continue };
            sdr.drive(nic, now);
            while let Some(told) = self.sdr_mut(peer).and_then(SdrLink::next_told) {
                did = true;
                match told {
                    Told::Sent => self.engine.sent(now, peer),
                    Told::Broken => self.engine.broken(now, peer),
                    Told::Message { imm, len, buffer } => {
                        self.take_from_sdr(now, peer, (imm, len), buffer);
                    }
                }
            }
        }
        did
    }

    fn take_from_sdr(&mut self, now: Time, peer: Rank, (imm, len): (u32, usize), buffer: u16) {
        let is_data = self.engine.is_data(imm);
        if let Some(sdr) = self.sdr_mut(peer) {
            match is_data {
                true => sdr.hold(buffer),
                false => sdr.release(buffer),
            }
        }
        self.engine.message(now, peer, imm, if is_data { len } else { 0 });
    }

    pub(super) fn sdr_mut(&mut self, peer: Rank) -> Option<&mut SdrLink> {
        self.links.get_mut(peer as usize)?.as_mut()?.sdr.as_deref_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_have_names() {
        for scheme in SdrScheme::ALL {
            assert_eq!(scheme.name().parse(), Ok(scheme));
            assert_eq!(scheme.schemes()[0].name(), scheme.name());
            let config = GroupConfig { scheme: Some(scheme), ..GroupConfig::default() };
            for mtu in [Mtu::B256, Mtu::B1024, Mtu::B4096] {
                let reliable = scheme.config(&config, mtu);
                reliable.check().unwrap();
                assert!(reliable.max_outstanding() >= buffers(&config).into(), "{mtu:?}");
            }
        }
        assert!("rc".parse::<SdrScheme>().unwrap_err().to_string().contains("sr-nack"));
    }
}
