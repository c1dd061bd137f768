//! Data over SDR: each offer is an SDR receive, or several if it is long, and messages fill them in
//! order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use bowline::{
    Access, Channel, Error, Mr, Pd, RecvId, ReliableConfig, ReliableEvent, ReliableQp, SdrConfig,
    SdrError, SdrScheme, WriteId, WriteOptions, scheme,
};

use super::message::{self, Message};
use super::{Job, Offer, Place, RecvEvent, RecvLink, SendEvent, SendLink};
use crate::abi::MAX_REQUESTS;
use crate::memory::Part;
use crate::status::Trouble;

/// Maximum length of an SDR message in bytes; longer messages are split.
const SEGMENT: u64 = 4 << 20;
/// Packets in a chunk; data and parity chunks in a group.
const PACKETS_A_CHUNK: u32 = 4;
const GROUP: (u32, u32) = (32, 8);
/// A message fails if nothing is heard about it for this long.
const SILENCE_NS: u64 = 10_000_000_000;
/// Number of slots for messages with offers: as many as NCCL has requests.
const RING: usize = MAX_REQUESTS;
const SLOT: usize = message::MAX_LEN;

fn make(
    pd: &Pd,
    scheme: SdrScheme,
    access: Access,
    channel: &mut Channel,
) -> Result<(ReliableQp, Mr), Trouble> {
    let mtu = pd.device().mtu();
    let (k, parity) = GROUP;
    let name = scheme.name();
    let schemes = scheme::standard().into_iter();
    let config = ReliableConfig {
        sdr: SdrConfig { mtu, chunk_bytes: PACKETS_A_CHUNK * mtu.bytes(), ..SdrConfig::default() },
        max_write: SEGMENT,
        k,
        m: if scheme == SdrScheme::SrNack { 0 } else { parity },
        schemes: schemes.filter(|s| scheme == SdrScheme::Auto || s.name() == name).collect(),
        timeout_ns: SILENCE_NS,
        ..ReliableConfig::default()
    };
    let qp = ReliableQp::new(pd, &config)?;
    // One more slot than there are messages, for messages without bytes.
    let ring = pd.register((RING + 1) * SLOT, access)?;
    qp.connect_over(channel)?;
    Ok((qp, ring))
}

fn slot(index: usize) -> Range<usize> {
    index * SLOT..(index + 1) * SLOT
}

/// The part of `len` bytes that goes into each SDR message for an offer of `room` bytes.
fn segments(room: u64, len: u64) -> impl Iterator<Item = Range<u64>> {
    let count = room.div_ceil(SEGMENT).max(1);
    (0..count).map(move |i| (i * SEGMENT).min(len)..((i + 1) * SEGMENT).min(len))
}

/// Turns a lack of room into `None`.
fn if_room<T>(posted: Result<T, Error>) -> Result<Option<T>, Trouble> {
    match posted {
        Ok(id) => Ok(Some(id)),
        Err(Error::Sdr(SdrError::Full { .. } | SdrError::Quarantined)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The sending end.
pub(super) struct SdrSender {
    qp: ReliableQp,
    scheme: usize,
    ring: Mr,
    /// Slots that are posted for offers, and slots that wait to be posted.
    posted: BTreeMap<RecvId, usize>,
    free: VecDeque<usize>,
    /// Offers that arrived before earlier ones, and the number of the next offer.
    early: BTreeMap<u64, Vec<Offer>>,
    next_offer: u64,
    /// Messages that wait for earlier ones, or for room, by the number of their offer.
    waiting: BTreeMap<u64, Job>,
    /// The offer whose message is next, and how many of its segments are written.
    next_write: (u64, usize),
    /// The offer of each segment in flight, and how many of an offer's segments have not arrived.
    writes: BTreeMap<WriteId, u64>,
    left: BTreeMap<u64, usize>,
}

impl SdrSender {
    pub(super) fn connect(
        pd: &Pd,
        scheme: SdrScheme,
        channel: &mut Channel,
    ) -> Result<SdrSender, Trouble> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (qp, ring) = make(pd, scheme, access, channel)?;
        let scheme = qp.scheme(scheme.name())?;
        let mut sender = SdrSender {
            qp,
            scheme,
            ring,
            posted: BTreeMap::new(),
            free: (0..RING).collect(),
            early: BTreeMap::new(),
            next_offer: 0,
            waiting: BTreeMap::new(),
            next_write: (0, 0),
            writes: BTreeMap::new(),
            left: BTreeMap::new(),
        };
        sender.post_slots()?;
        Ok(sender)
    }

    fn post_slots(&mut self) -> Result<(), Trouble> {
        while let Some(index) = self.free.front().copied() {
            let Some(id) = if_room(self.qp.recv(&self.ring, slot(index)))? else { return Ok(()) };
            self.posted.insert(id, index);
            self.free.pop_front();
        }
        Ok(())
    }

    /// Writes as many messages as possible. Messages fill receives in the order of offers.
    fn write(&mut self) -> Result<(), Trouble> {
        while let Some(job) = self.waiting.get(&self.next_write.0) {
            let (number, done) = self.next_write;
            let segments: Vec<_> = segments(job.offer.len, job.len() as u64).collect();
            for segment in &segments[done..] {
                let (mr, range) = match &job.part {
                    Some(part) if !segment.is_empty() => {
                        let at = part.range.start;
                        (&part.mr, at + segment.start as usize..at + segment.end as usize)
                    }
                    _ => (&self.ring, RING * SLOT..RING * SLOT),
                };
                let options = WriteOptions { scheme: self.scheme, imm: None };
                let Some(id) = if_room(self.qp.write(mr, range, options))? else { return Ok(()) };
                self.writes.insert(id, number);
                self.next_write.1 += 1;
            }
            self.waiting.remove(&number);
            self.next_write = (number + 1, 0);
        }
        Ok(())
    }

    fn offered(&mut self, slot_index: usize, len: u64) -> Result<(), Trouble> {
        let bytes = self.ring.to_vec(slot_index * SLOT, (len as usize).min(SLOT));
        let Message::Offers(offers) = message::parse(&bytes)? else {
            return Err(Trouble::remote("the peer sent an XP control message over SDR"));
        };
        let first = offers.first().map_or(0, |offer| offer.number);
        // There are no more of these than slots, so memory is bounded.
        if first < self.next_offer || self.early.insert(first, offers).is_some() {
            return Err(Trouble::remote("the peer offers the same memory twice"));
        }
        if self.early.len() > RING {
            return Err(Trouble::remote("the peer skipped an offer"));
        }
        Ok(())
    }
}

impl SendLink for SdrSender {
    fn send(&mut self, job: Job) -> Result<(), Trouble> {
        let number = job.offer.number;
        let count = segments(job.offer.len, job.len() as u64).count();
        self.left.insert(number, count);
        self.waiting.insert(number, job);
        self.write()
    }

    fn poll(&mut self, events: &mut Vec<SendEvent>) -> Result<(), Trouble> {
        while let Some(event) = self.qp.poll()? {
            match event {
                ReliableEvent::Written { id, result } => {
                    result.map_err(Error::from)?;
                    let Some(number) = self.writes.remove(&id) else { continue };
                    let Some(left) = self.left.get_mut(&number) else { continue };
                    *left -= 1;
                    if *left == 0 {
                        self.left.remove(&number);
                        events.push(SendEvent::Done(number));
                    }
                }
                ReliableEvent::Received { id, len, result, .. } => {
                    result.map_err(Error::from)?;
                    let Some(index) = self.posted.remove(&id) else { continue };
                    self.offered(index, len)?;
                    self.free.push_back(index);
                }
            }
        }
        while let Some(offers) = self.early.remove(&self.next_offer) {
            self.next_offer += offers.len() as u64;
            events.extend(offers.into_iter().map(SendEvent::Offered));
        }
        self.post_slots()?;
        self.write()
    }
}

/// A segment of an offer: the number of the offer and the index of the segment.
type Piece = (u64, usize);

/// An offer whose message has not arrived: for each segment, the received length if any, and its
/// capacity.
struct Open {
    segments: Vec<(Option<u64>, u64)>,
}

/// The receiving end.
pub(super) struct SdrReceiver {
    qp: ReliableQp,
    scheme: usize,
    ring: Mr,
    /// Slots without a message.
    free: BTreeSet<usize>,
    /// Messages that wait for a slot or for room, and the slot of each message in flight.
    outbox: VecDeque<Vec<u8>>,
    told: BTreeMap<WriteId, usize>,
    /// Segments that wait to be posted, in order, with their memory; then those that are posted.
    waiting: VecDeque<(Piece, Option<Part>)>,
    posted: BTreeMap<RecvId, Piece>,
    open: BTreeMap<u64, Open>,
}

impl SdrReceiver {
    pub(super) fn connect(
        pd: &Pd,
        scheme: SdrScheme,
        channel: &mut Channel,
    ) -> Result<SdrReceiver, Trouble> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let (qp, ring) = make(pd, scheme, access, channel)?;
        let scheme = qp.scheme(scheme.name())?;
        Ok(SdrReceiver {
            qp,
            scheme,
            ring,
            free: (0..RING).collect(),
            outbox: VecDeque::new(),
            told: BTreeMap::new(),
            waiting: VecDeque::new(),
            posted: BTreeMap::new(),
            open: BTreeMap::new(),
        })
    }

    fn post(&mut self) -> Result<(), Trouble> {
        while let Some((piece, memory)) = self.waiting.front() {
            let posted = match memory {
                Some(part) => self.qp.recv(&part.mr, part.range.clone()),
                // A message without bytes lands in our own memory, and is refused if it has bytes.
                None => self.qp.recv(&self.ring, RING * SLOT..RING * SLOT + 1),
            };
            let Some(id) = if_room(posted)? else { break };
            self.posted.insert(id, *piece);
            self.waiting.pop_front();
        }
        while let (Some(index), Some(bytes)) = (self.free.first().copied(), self.outbox.front()) {
            self.ring.write_at(index * SLOT, bytes);
            let range = index * SLOT..index * SLOT + bytes.len();
            let options = WriteOptions { scheme: self.scheme, imm: None };
            let Some(id) = if_room(self.qp.write(&self.ring, range, options))? else { break };
            self.told.insert(id, index);
            self.free.remove(&index);
            self.outbox.pop_front();
        }
        Ok(())
    }

    fn landed(
        &mut self,
        (number, segment): Piece,
        len: u64,
        events: &mut Vec<RecvEvent>,
    ) -> Result<(), Trouble> {
        let Some(open) = self.open.get_mut(&number) else { return Ok(()) };
        if let Some((landed, _)) = open.segments.get_mut(segment) {
            *landed = Some(len);
        }
        let Some(lens) = open.segments.iter().map(|(len, _)| *len).collect::<Option<Vec<_>>>()
        else {
            return Ok(());
        };
        // No bytes may be missing in the middle, and none may have arrived where there is no room.
        let rooms = open.segments.iter().map(|(_, room)| *room);
        let shorter = lens.iter().zip(rooms.clone()).position(|(len, room)| *len < room);
        let tail = shorter.map_or(lens.len(), |at| at + 1);
        let is_whole = lens[tail..].iter().all(|len| *len == 0);
        if !is_whole || lens.iter().zip(rooms).any(|(len, room)| *len > room) {
            return Err(Trouble::remote(format!("the peer sent receive {number} with a gap")));
        }
        self.open.remove(&number);
        events.push(RecvEvent::Arrived { number, len: lens.iter().sum() });
        Ok(())
    }
}

impl RecvLink for SdrReceiver {
    fn offer(&mut self, first: u64, places: &[Place]) -> Result<(), Trouble> {
        for (number, place) in (first..).zip(places) {
            let mut open = Open { segments: Vec::new() };
            for (i, range) in segments(place.len, place.len).enumerate() {
                open.segments.push((None, range.end - range.start));
                let range = range.start as usize..range.end as usize;
                let memory = place.mr.clone().map(|mr| Part { mr, range });
                self.waiting.push_back(((number, i), memory));
            }
            self.open.insert(number, open);
        }
        self.outbox.push_back(message::offers(first, places, false));
        self.post()
    }

    fn poll(&mut self, events: &mut Vec<RecvEvent>) -> Result<(), Trouble> {
        while let Some(event) = self.qp.poll()? {
            match event {
                ReliableEvent::Written { id, result } => {
                    result.map_err(Error::from)?;
                    self.free.extend(self.told.remove(&id));
                }
                ReliableEvent::Received { id, len, result, .. } => {
                    result.map_err(Error::from)?;
                    if let Some(piece) = self.posted.remove(&id) {
                        self.landed(piece, len, events)?;
                    }
                }
            }
        }
        self.post()
    }

    fn is_quiet(&mut self) -> Result<bool, Trouble> {
        self.poll(&mut Vec::new())?;
        Ok(self.outbox.is_empty() && self.told.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_and_short_ones_leave_segments_empty() {
        let ends = |range: Range<u64>| (range.start, range.end);
        let cut = |room, len| segments(room, len).map(ends).collect::<Vec<_>>();
        assert_eq!(cut(0, 0), [(0, 0)]);
        assert_eq!(cut(10, 3), [(0, 3)]);
        assert_eq!(cut(SEGMENT, SEGMENT), [(0, SEGMENT)]);
        let (two, long) = (2 * SEGMENT, 2 * SEGMENT + 1);
        assert_eq!(cut(long, long), [(0, SEGMENT), (SEGMENT, two), (two, long)]);
        let short = SEGMENT + 5;
        assert_eq!(cut(long, short), [(0, SEGMENT), (SEGMENT, short), (short, short)]);
    }
}
