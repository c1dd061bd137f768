//! Packets on their way out: built by transports, grouped into bursts, sent by a port.
//!
//! A [`TxBatch`] holds headers and trailers by value and payload by reference, so that a socket
//! gathers the payload straight from registered memory. It groups consecutive packets that can
//! share one segmentation-offload call ([`Burst`]), and computes each packet's ICRC, which covers
//! the IPv4 identification and therefore the packet's place in its burst.

mod late;

use core::net::IpAddr;

use bowline_wire::{Bth, FlowKey, Icrc, Opcode, Position, Psn};

use self::late::Late;
pub use self::late::MAX_LATE;
use crate::frame::FrameMeta;
use crate::memory::Segment;

/// What a port can send in one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxCaps {
    /// Most packets in one burst; 1 without segmentation offload.
    pub max_segments: u16,
    /// Most UDP payload bytes in one burst.
    pub max_burst_bytes: u32,
}

impl TxCaps {
    /// One packet at a time: no offload.
    pub const SINGLE: TxCaps = TxCaps { max_segments: 1, max_burst_bytes: 65_507 };
}

/// Longest headers: BTH and AtomicETH are 40 bytes; LoWAR's repair header fits as well.
pub const MAX_HEADER: usize = 48;
/// Up to 3 bytes of pad, then the ICRC.
const MAX_TRAILER: usize = 8;

/// A packet: headers, gathered payload, pad and ICRC.
#[derive(Clone, Copy)]
pub struct TxPacket {
    header: [u8; MAX_HEADER],
    trailer: [u8; MAX_TRAILER],
    header_len: u8,
    trailer_len: u8,
    segment_count: u16,
    first_segment: u32,
    /// From BTH to ICRC, as the UDP header counts it.
    len: u32,
}

impl TxPacket {
    /// The BTH, if there are no other headers.
    #[inline]
    pub fn only_bth(&self) -> Option<&[u8; Bth::LEN]> {
        if usize::from(self.header_len) == Bth::LEN { self.header.first_chunk() } else { None }
    }

    /// BTH and extension headers.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..self.header_len as usize]
    }

    /// Pad and ICRC.
    #[inline]
    pub fn trailer(&self) -> &[u8] {
        &self.trailer[..self.trailer_len as usize]
    }

    /// Pieces of its payload.
    #[inline]
    pub fn segment_count(&self) -> usize {
        self.segment_count as usize
    }

    /// Bytes from BTH to ICRC.
    #[inline]
    pub fn udp_payload_len(&self) -> usize {
        self.len as usize
    }
}

/// Packets that go out in one call: one destination, equal lengths, the last may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Burst {
    /// Where to.
    pub dst: IpAddr,
    /// The peer's UDP port.
    pub dst_port: u16,
    /// TOS or traffic class, ECN bits included.
    pub tos: u8,
    /// UDP payload of every packet but the last.
    pub segment_len: u32,
    /// UDP payload of all of them together.
    pub bytes: u32,
    /// Steering group of the receiver: the top byte of the destination QPN. A burst arrives as a
    /// whole, so it must be for one receiving process.
    prefix: u8,
    first: u32,
    count: u32,
    /// Packets that it may have; none more once it has a shorter one, which can only be its last.
    limit: u32,
}

impl Burst {
    /// A burst of one packet of `len` bytes, which may grow to `limit`.
    fn of_one(key: &FlowKey, tos: u8, prefix: u8, len: u32, limit: u32) -> Burst {
        Burst {
            dst: key.dst,
            dst_port: key.dst_port,
            tos,
            segment_len: len,
            bytes: len,
            prefix,
            first: 0,
            count: 1,
            limit,
        }
    }

    /// Takes a packet of `len` bytes in if it fits; returns its place.
    #[inline]
    fn join(&mut self, key: &FlowKey, tos: u8, prefix: u8, len: u32, caps: &TxCaps) -> Option<u16> {
        let fits = self.dst == key.dst
            && self.tos == tos
            && self.prefix == prefix
            && self.dst_port == key.dst_port
            && len <= self.segment_len
            && self.count < self.limit
            && self.bytes + len <= caps.max_burst_bytes;
        if !fits {
            return None;
        }
        if len < self.segment_len {
            self.limit = 0;
        }
        self.bytes += len;
        self.count += 1;
        Some((self.count - 1) as u16)
    }

    /// How many packets.
    pub fn packet_count(&self) -> usize {
        self.count as usize
    }

    /// Which process at the destination it is for: the top byte of the destination QPN.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

/// Where a packet goes, and all that its ICRC covers outside the packet itself.
#[derive(Clone, Debug)]
pub struct Flow {
    key: FlowKey,
    tos: u8,
    /// Of the packets sent last, what their ICRCs have in common.
    seeds: [Seed; 4],
    next_seed: u8,
    /// The seed used last, which most packets use again.
    last_seed: u8,
}

/// The ICRC register behind all headers but the extension headers, for ID 0 and PSN 0. The packets
/// of a message come in two or three kinds, which differ in those two only; this saves summing up
/// 48 bytes for each.
#[derive(Clone, Copy, Debug)]
struct Seed {
    len: u32,
    /// The BTH up to the PSN.
    bth: [u8; PSN_AT],
    behind_bth: Icrc,
}

impl Seed {
    #[inline]
    fn fits(&self, len: u32, bth: &[u8; Bth::LEN]) -> bool {
        self.len == len && self.bth == bth[..PSN_AT]
    }
}

/// Where the PSN is in a BTH.
const PSN_AT: usize = 9;
/// And the byte with the request for an acknowledgement.
const ACK_AT: usize = PSN_AT - 1;

impl Flow {
    /// A flow from one address and port to another.
    pub fn new(key: FlowKey, tos: u8) -> Flow {
        let seed = Seed { len: 0, bth: [0; PSN_AT], behind_bth: Icrc::START };
        Flow { key, tos, seeds: [seed; 4], next_seed: 0, last_seed: 0 }
    }

    /// Addresses and ports.
    pub fn key(&self) -> &FlowKey {
        &self.key
    }

    /// The flow of a received frame, for checking its ICRC.
    pub(crate) fn inbound(meta: &FrameMeta, port: u16) -> Flow {
        let (src, dst, src_port) = (meta.src, meta.dst, meta.src_port);
        Flow::new(FlowKey { src, dst, src_port, dst_port: port }, 0)
    }

    /// Whether a received frame belongs to this flow.
    #[inline]
    pub(crate) fn is_from(&self, meta: &FrameMeta) -> bool {
        let key = &self.key;
        (key.src, key.dst, key.src_port) == (meta.src, meta.dst, meta.src_port)
    }

    /// The ICRC register behind IP, UDP and BTH headers.
    #[inline]
    pub(crate) fn icrc_behind_bth(&mut self, len: u32, bth: &[u8; Bth::LEN], ip_id: u16) -> Icrc {
        let ip_id = if self.key.dst.is_ipv4() { ip_id } else { 0 };
        let psn = Psn::new(u32::from_be_bytes([0, bth[PSN_AT], bth[10], bth[11]]));
        let last = &self.seeds[usize::from(self.last_seed) % self.seeds.len()];
        let seed = if last.fits(len, bth) { last.behind_bth } else { self.find_seed(len, bth) };
        seed.with_deltas_behind_bth(ip_id, psn)
    }

    #[inline(never)]
    fn find_seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> Icrc {
        match self.seeds.iter().position(|seed| seed.fits(len, bth)) {
            Some(at) => {
                self.last_seed = at as u8;
                self.seeds[at].behind_bth
            }
            None => self.learn_seed(len, bth),
        }
    }

    #[cold]
    fn learn_seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> Icrc {
        let mut without_psn = *bth;
        without_psn[PSN_AT..].fill(0);
        let behind_bth = Icrc::of_headers(&self.key, len as usize, 0).bth(&without_psn);
        let mut seed = Seed { len, bth: [0; PSN_AT], behind_bth };
        seed.bth.copy_from_slice(&bth[..PSN_AT]);
        self.seeds[self.next_seed as usize] = seed;
        self.last_seed = self.next_seed;
        self.next_seed = (self.next_seed + 1) % self.seeds.len() as u8;
        behind_bth
    }
}

/// Headers of a packet under construction.
#[derive(Clone, Copy)]
pub struct HeaderBuf {
    bytes: [u8; MAX_HEADER],
    len: u8,
}

impl HeaderBuf {
    /// Starts with a BTH.
    #[inline]
    pub fn new(bth: &Bth) -> HeaderBuf {
        let mut h = HeaderBuf { bytes: [0; MAX_HEADER], len: Bth::LEN as u8 };
        let (first, _) = h.bytes.split_first_chunk_mut().expect("a header holds a BTH");
        bth.emit(first);
        h
    }

    /// Appends an extension header of `N` bytes.
    ///
    /// # Panics
    /// If the headers outgrow [`MAX_HEADER`], which no opcode's do.
    #[inline]
    pub fn push<const N: usize>(&mut self, emit: impl FnOnce(&mut [u8; N])) {
        let at = self.len as usize;
        let room = self.bytes[at..].first_chunk_mut::<N>().expect("headers fit MAX_HEADER");
        emit(room);
        self.len += N as u8;
    }

    /// Makes it the header of another packet that differs in these only.
    #[inline]
    pub fn renumber(&mut self, psn: Psn, ack_req: bool) {
        let reserved = u32::from(self.bytes[ACK_AT] & 0x7f) << 24;
        let word = u32::from(ack_req) << 31 | reserved | psn.get();
        self.bytes[ACK_AT..Bth::LEN].copy_from_slice(&word.to_be_bytes());
    }

    /// Whether more packets of the same message follow.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        GOES_ON[usize::from(self.bytes[0])]
    }

    /// A copy that reads the word which [`HeaderBuf::renumber`] has just written by itself: a load
    /// that spans it and its neighbours would wait until it has reached the cache.
    #[inline]
    fn copy_bytes(&self) -> [u8; MAX_HEADER] {
        let mut copy = [0; MAX_HEADER];
        copy[..ACK_AT].copy_from_slice(&self.bytes[..ACK_AT]);
        copy[ACK_AT..Bth::LEN].copy_from_slice(&self.bytes[ACK_AT..Bth::LEN]);
        copy[Bth::LEN..].copy_from_slice(&self.bytes[Bth::LEN..]);
        copy
    }

    /// The bytes so far.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }
}

/// By opcode: whether more packets of the same message follow.
static GOES_ON: [bool; 256] = {
    let mut goes_on = [false; 256];
    let mut opcode = 0;
    while opcode < goes_on.len() {
        if let Some(info) = Opcode(opcode as u8).info() {
            goes_on[opcode] = matches!(info.position, Position::First | Position::Middle);
        }
        opcode += 1;
    }
    goes_on
};

/// A bounded batch of outgoing packets. Reused for ever: nothing is allocated once it is warm.
///
/// Payload is borrowed from registered memory. A batch that an engine has filled must be sent,
/// [`detach`](TxBatch::detach)ed or [`clear`](TxBatch::clear)ed before that engine is called again.
pub struct TxBatch {
    caps: TxCaps,
    /// Packets that fit, less those that are late.
    capacity: usize,
    packets: Vec<TxPacket>,
    segments: Vec<Segment>,
    bursts: Vec<Burst>,
    late: Late,
    /// Copies that the batch itself keeps: a vector's bytes stay in place when the vector moves.
    owned: Vec<Vec<u8>>,
    /// Buffers of copies that were sent, for the next ones.
    spare: Vec<Vec<u8>>,
}

/// Buffers kept for copies: as many as a batch may hold of a shim's own packets without allocating.
const MAX_SPARE: usize = 64;

impl TxBatch {
    /// A batch of at most `capacity` packets for a port with these capabilities.
    pub fn new(caps: TxCaps, capacity: usize) -> TxBatch {
        TxBatch {
            caps,
            capacity,
            packets: Vec::with_capacity(capacity),
            segments: Vec::with_capacity(capacity * 2),
            bursts: Vec::with_capacity(capacity),
            late: Late::default(),
            owned: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// Whether no more packets fit.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.packets.len() >= self.capacity
    }

    /// How many more packets fit.
    #[inline]
    pub fn room(&self) -> usize {
        self.capacity - self.packets.len()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many packets it holds.
    pub fn len(&self) -> usize {
        self.packets.len() + self.late.len()
    }

    /// Forgets everything, keeping the memory.
    pub fn clear(&mut self) {
        self.settle();
        self.packets.clear();
        self.segments.clear();
        self.bursts.clear();
        self.keep_spares();
    }

    fn keep_spares(&mut self) {
        let room = MAX_SPARE.saturating_sub(self.spare.len()).min(self.owned.len());
        self.spare.extend(self.owned.drain(..room));
        self.owned.clear();
    }

    /// The bursts, in order.
    pub fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// The packets of a burst of this batch.
    pub fn packets(&self, burst: &Burst) -> &[TxPacket] {
        &self.packets[burst.first as usize..][..burst.count as usize]
    }

    /// The payload of a packet of this batch.
    #[inline]
    pub fn payload(&self, packet: &TxPacket) -> &[Segment] {
        &self.segments[packet.first_segment as usize..][..packet.segment_count as usize]
    }

    /// The payloads of packets that were pushed one after the other, if each has one piece.
    #[inline]
    pub(crate) fn payloads(&self, packets: &[TxPacket]) -> Option<&[Segment]> {
        let first = packets.first()?.first_segment as usize;
        let last = packets.last()?.first_segment as usize;
        let pieces = self.segments.get(first..=last)?;
        (pieces.len() == packets.len()).then_some(pieces)
    }

    /// Where packets that are pushed from now on will be; see [`TxBatch::run_since`].
    #[inline]
    pub(crate) fn run_mark(&self) -> usize {
        self.packets.len()
    }

    /// The packets behind such a mark; late ones of before may be among them.
    #[inline]
    pub(crate) fn run_since(&self, mark: usize) -> &[TxPacket] {
        self.packets.get(mark..).unwrap_or_default()
    }

    /// Appends a packet's bytes, BTH to ICRC, to `out`.
    pub fn append_packet_to(&self, packet: &TxPacket, out: &mut Vec<u8>) {
        out.extend_from_slice(packet.header());
        for segment in self.payload(packet) {
            segment.append_to(out);
        }
        out.extend_from_slice(packet.trailer());
    }

    /// Copies all payload from burst `from` on into the batch, and forgets the bursts before it.
    ///
    /// For a port that cannot send now: afterwards the batch borrows nothing, so the engine may be
    /// called, memory deregistered and buffers reused, while the batch waits.
    pub fn detach(&mut self, from: usize) {
        let gone = self.bursts.get(from).map_or(self.packets.len(), |b| b.first as usize);
        self.bursts.drain(..from.min(self.bursts.len()));
        self.packets.drain(..gone);
        let mut staged = Vec::with_capacity(self.packets.iter().map(|p| p.len as usize).sum());
        let mut ends = Vec::with_capacity(self.packets.len());
        for packet in &self.packets {
            for segment in self.payload(packet) {
                segment.append_to(&mut staged);
            }
            ends.push(staged.len());
        }
        self.segments.clear();
        let mut start = 0;
        for (packet, end) in self.packets.iter_mut().zip(ends) {
            packet.first_segment = self.segments.len() as u32;
            packet.segment_count = u16::from(end > start);
            if end > start {
                self.segments.push(Segment::of_slice(&staged[start..end]));
            }
            start = end;
        }
        for burst in &mut self.bursts {
            burst.first -= gone as u32;
        }
        self.keep_spares();
        self.owned.push(staged);
    }

    /// Appends a whole packet that was sealed for IP identification `sealed_id`, BTH to ICRC, as
    /// middleware that holds packets back does; the ICRC is adjusted to the packet's new place.
    ///
    /// # Panics
    /// If the batch is full, or `frame` is shorter than a BTH and an ICRC.
    pub fn push_owned(&mut self, key: &FlowKey, tos: u8, sealed_id: u16, frame: Vec<u8>) {
        assert!(!self.is_full(), "the batch is full: ask `room` first");
        const BTH: usize = Bth::LEN;
        let body = frame.len().checked_sub(4).filter(|n| *n >= BTH).expect("a whole packet");
        let ip_id = self.join_burst(key, tos, frame[5], frame.len() as u32);
        let mut icrc =
            u32::from_le_bytes([frame[body], frame[body + 1], frame[body + 2], frame[body + 3]]);
        if key.dst.is_ipv4() && ip_id != sealed_id {
            let behind_id = 14 + 8 + body;
            icrc = bowline_wire::icrc_replace(
                icrc,
                &sealed_id.to_be_bytes(),
                &ip_id.to_be_bytes(),
                behind_id,
            );
        }
        let mut packet = TxPacket {
            header: [0; MAX_HEADER],
            trailer: [0; MAX_TRAILER],
            header_len: BTH as u8,
            trailer_len: 4,
            segment_count: 1,
            first_segment: self.segments.len() as u32,
            len: frame.len() as u32,
        };
        packet.header[..BTH].copy_from_slice(&frame[..BTH]);
        packet.trailer[..4].copy_from_slice(&icrc.to_le_bytes());
        self.segments.push(Segment::of_slice(&frame[BTH..body]));
        self.packets.push(packet);
        self.owned.push(frame);
    }

    /// Appends a packet: picks its burst, pads it and seals it with its ICRC.
    ///
    /// The caller has set the BTH's pad count to match `payload` ([`pad_of`]). Returns the packet's
    /// length, BTH to ICRC.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline]
    pub fn push(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[Segment],
    ) -> u64 {
        assert!(!self.is_full(), "the batch is full: ask `room` first");
        let (len, pad) = lengths(header, payload);
        let ip_id = self.join_burst(&flow.key, flow.tos | ecn, header.bytes[5], len);
        let to = (&mut self.packets, &mut self.segments);
        seal(flow, header, payload, (len, pad, ip_id), to);
        u64::from(len)
    }

    /// Puts a packet of `len` bytes into the open burst, or opens another; returns its IP ID.
    #[inline]
    fn join_burst(&mut self, key: &FlowKey, tos: u8, prefix: u8, len: u32) -> u16 {
        let open = self.bursts.last_mut();
        match open.and_then(|burst| burst.join(key, tos, prefix, len, &self.caps)) {
            Some(place) => place,
            None => {
                self.open_burst(Burst::of_one(
                    key,
                    tos,
                    prefix,
                    len,
                    self.caps.max_segments.into(),
                ));
                0
            }
        }
    }

    /// Begins another burst with the next packet.
    fn open_burst(&mut self, burst: Burst) {
        self.settle();
        let first = self.packets.len() as u32;
        self.bursts.push(Burst { first, ..burst });
    }
}

/// Pads a packet of `len` bytes, seals it for its place in a burst, and stores it.
#[inline(always)]
fn seal(
    flow: &mut Flow,
    header: &HeaderBuf,
    payload: &[Segment],
    (len, pad, ip_id): (u32, u8, u16),
    (packets, segments): (&mut Vec<TxPacket>, &mut Vec<Segment>),
) {
    let pad = usize::from(pad);
    let (bth, ext) = header.as_slice().split_first_chunk().expect("a header starts with a BTH");
    let mut icrc = flow.icrc_behind_bth(len, bth, ip_id);
    if !ext.is_empty() {
        icrc = icrc.update(ext);
    }
    for segment in payload {
        icrc = segment.with_bytes(|bytes| icrc.update(bytes));
    }
    if pad != 0 {
        icrc = icrc.update(&[0; 3][..pad]);
    }
    // One store, since the packet is copied at once and a load that spans stores has to wait.
    let trailer = (u64::from(icrc.finish()) << (8 * pad)).to_le_bytes();

    let first_segment = segments.len() as u32;
    match payload {
        // By far the most common; a copy of unknown length is a call.
        [one] => segments.push(*one),
        many => segments.extend_from_slice(many),
    }
    packets.push(TxPacket {
        header: header.copy_bytes(),
        trailer,
        header_len: header.len,
        trailer_len: (pad + 4) as u8,
        segment_count: payload.len() as u16,
        first_segment,
        len,
    });
}

/// A packet's length, BTH to ICRC, and the pad in it.
#[inline]
fn lengths(header: &HeaderBuf, payload: &[Segment]) -> (u32, u8) {
    let payload_len = match payload {
        // By far the most common.
        [one] => one.len(),
        many => many.iter().map(Segment::len).sum(),
    };
    let pad = pad_of(payload_len);
    ((usize::from(header.len) + payload_len + usize::from(pad) + 4) as u32, pad)
}

/// Pad bytes that bring a payload to a multiple of four.
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}
