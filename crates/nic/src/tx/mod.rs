//! Packets on their way out: built by transports, grouped into bursts, sent by a port.
//!
//! A [`TxBatch`] holds whole packets, side by side. It groups consecutive packets that can share one
//! segmentation-offload call ([`Burst`]), and computes each packet's ICRC, which covers the IPv4
//! identification and therefore the packet's place in its burst.
//!
//! Payload is copied out of registered memory, in the pass that sums it up. A socket could gather it
//! from there, but a copy is cheaper than it looks and a gather list dearer: the sum has to read
//! every byte anyway, which from memory that is in no cache is all that takes time, and a kernel
//! takes long over lists. And a packet in a batch is what its ICRC says, whatever the application does
//! to its memory meanwhile, or whether that is still there.

mod late;

use core::net::IpAddr;

use bowline_wire::{Bth, FlowKey, HeaderDeltas, ICRC_LEN, Icrc, Opcode, Position, Psn};

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

/// A packet of a batch: BTH to ICRC.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket {
    /// Where it begins among the batch's bytes.
    start: u32,
    /// As the UDP header counts it.
    len: u32,
    /// BTH and extension headers.
    header_len: u8,
    /// Pad and ICRC.
    trailer_len: u8,
    /// It differs in its PSN only from the packet of its flow before it, which is in the same burst. If
    /// both are one QP's, that is the packet before it in the batch.
    alike: bool,
}

impl TxPacket {
    /// Whether it has no header but the BTH.
    #[inline]
    pub fn has_only_bth(&self) -> bool {
        usize::from(self.header_len) == Bth::LEN
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
pub(crate) const PSN_AT: usize = 9;
/// And the byte with the request for an acknowledgement.
const ACK_AT: usize = PSN_AT - 1;

/// The PSN in a BTH.
#[inline]
pub(crate) fn psn_of(bth: &[u8; Bth::LEN]) -> Psn {
    Psn::new(u32::from_be_bytes([0, bth[PSN_AT], bth[10], bth[11]]))
}

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

    /// The ICRC register behind IP, UDP and BTH headers, and whether the BTH differs in its PSN only from
    /// the one before, of a packet of the same length.
    #[inline]
    pub(crate) fn icrc_behind_bth(
        &mut self,
        len: u32,
        bth: &[u8; Bth::LEN],
        ip_id: u16,
    ) -> (Icrc, bool) {
        let ip_id = if self.key.dst.is_ipv4() { ip_id } else { 0 };
        let (seed, alike) = self.seed(len, bth);
        (seed.with_deltas_behind_bth(ip_id, psn_of(bth)), alike)
    }

    /// The same register for ID 0 and PSN 0, and whether the packet before had it as well.
    #[inline]
    pub(crate) fn seed(&mut self, len: u32, bth: &[u8; Bth::LEN]) -> (Icrc, bool) {
        let last = &self.seeds[usize::from(self.last_seed) % self.seeds.len()];
        let alike = last.fits(len, bth);
        let seed = if alike { last.behind_bth } else { self.find_seed(len, bth) };
        (seed, alike)
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

    /// The headers that the opcode has, and what is behind them, which a receiver takes for payload.
    pub(crate) fn split_payload(&self) -> (HeaderBuf, &[u8]) {
        let info = Opcode(self.bytes[0]).info();
        let ext = info.map_or(0, |info| usize::from(info.ext_len));
        let len = (Bth::LEN + ext).min(usize::from(self.len));
        (HeaderBuf { len: len as u8, ..*self }, &self.as_slice()[len..])
    }

    /// Whether more packets of the same message follow.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        GOES_ON[usize::from(self.bytes[0])]
    }

    /// Appends it. Of a BTH alone it reads the word that [`HeaderBuf::renumber`] has just written by
    /// itself: a load that spans it and its neighbours would wait until it has reached the cache.
    #[inline]
    fn append_to(&self, out: &mut Vec<u8>) {
        if usize::from(self.len) == Bth::LEN {
            let mut bth = [0; Bth::LEN];
            bth[..ACK_AT].copy_from_slice(&self.bytes[..ACK_AT]);
            bth[ACK_AT..].copy_from_slice(&self.bytes[ACK_AT..Bth::LEN]);
            out.extend_from_slice(&bth);
        } else {
            out.extend_from_slice(self.as_slice());
        }
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

/// A batch of so many bytes is sent before more is added: what stays in a core's own cache, beside
/// what it was made of, until the port has read it. Two bursts at an MTU of 4096.
const MAX_BYTES: usize = 120 << 10;

/// A bounded batch of outgoing packets. Reused for ever: nothing is allocated once it is warm.
pub struct TxBatch {
    caps: TxCaps,
    /// Packets that fit, less those that are late.
    capacity: usize,
    packets: Vec<TxPacket>,
    /// Of all packets, in their order.
    bytes: Vec<u8>,
    bursts: Vec<Burst>,
    late: Late,
}

impl TxBatch {
    /// A batch of at most `capacity` packets for a port with these capabilities.
    pub fn new(caps: TxCaps, capacity: usize) -> TxBatch {
        TxBatch {
            caps,
            capacity,
            packets: Vec::with_capacity(capacity),
            bytes: Vec::new(),
            bursts: Vec::with_capacity(capacity),
            late: Late::default(),
        }
    }

    /// Whether it is to be sent before more is added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many more packets may be added; none if there are enough bytes.
    #[inline]
    pub fn room(&self) -> usize {
        if self.bytes.len() < MAX_BYTES { self.capacity - self.packets.len() } else { 0 }
    }

    /// How many more packets of `len` bytes may be added one after the other.
    #[inline]
    pub(crate) fn room_for(&self, len: u32) -> usize {
        self.room().min(MAX_BYTES.saturating_sub(self.bytes.len()).div_ceil(len as usize))
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
        self.append_late();
        self.packets.clear();
        self.bytes.clear();
        self.bursts.clear();
    }

    /// Forgets the first `count` bursts: they were sent.
    pub fn forget(&mut self, count: usize) {
        let gone = self.bursts.get(count).map_or(self.packets.len(), |b| b.first as usize);
        self.bursts.drain(..count.min(self.bursts.len()));
        self.packets.drain(..gone);
        for burst in &mut self.bursts {
            burst.first -= gone as u32;
        }
    }

    /// The bursts, in order.
    pub fn bursts(&self) -> &[Burst] {
        &self.bursts
    }

    /// The packets of a burst of this batch.
    pub fn packets(&self, burst: &Burst) -> &[TxPacket] {
        &self.packets[burst.first as usize..][..burst.count as usize]
    }

    /// The bytes of a burst of this batch: its packets, one behind the other.
    #[inline]
    pub fn burst_bytes(&self, burst: &Burst) -> &[u8] {
        let start = self.packets[burst.first as usize].start as usize;
        &self.bytes[start..start + burst.bytes as usize]
    }

    /// The bytes of a packet of this batch, BTH to ICRC.
    #[inline]
    pub fn bytes(&self, packet: &TxPacket) -> &[u8] {
        &self.bytes[packet.start as usize..][..packet.len as usize]
    }

    /// The headers of a packet of this batch: BTH and extension headers.
    #[inline]
    pub fn header(&self, packet: &TxPacket) -> &[u8] {
        &self.bytes[packet.start as usize..][..usize::from(packet.header_len)]
    }

    /// The payload of a packet of this batch.
    #[inline]
    pub fn payload(&self, packet: &TxPacket) -> &[u8] {
        let bytes = self.bytes(packet);
        &bytes[usize::from(packet.header_len)..bytes.len() - usize::from(packet.trailer_len)]
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

    /// How many of some packets of this batch, all of one QP, differ in their PSNs only, from the first
    /// on, and the bytes of these, one behind the other.
    #[inline]
    pub(crate) fn alike<'a>(&'a self, packets: &[TxPacket]) -> (usize, &'a [u8]) {
        let Some((first, rest)) = packets.split_first() else { return (0, &[]) };
        let count = 1 + rest.iter().take_while(|packet| packet.alike).count();
        let bytes = &self.bytes[first.start as usize..][..count * first.len as usize];
        (count, bytes)
    }

    /// Appends a whole packet that was sealed for IP identification `sealed_id`, BTH to ICRC, as
    /// middleware that holds packets back does; the ICRC is adjusted to the packet's new place.
    ///
    /// # Panics
    /// If the batch is full, or `frame` is shorter than a BTH and an ICRC.
    pub fn push_sealed(&mut self, key: &FlowKey, tos: u8, sealed_id: u16, frame: &[u8]) {
        assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
        let body = frame.len().checked_sub(ICRC_LEN).filter(|n| *n >= Bth::LEN);
        let (body, icrc) = frame.split_at(body.expect("a whole packet"));
        let ip_id = self.join_burst(key, tos, frame[5], frame.len() as u32);
        let mut icrc = u32::from_le_bytes([icrc[0], icrc[1], icrc[2], icrc[3]]);
        if key.dst.is_ipv4() && ip_id != sealed_id {
            let behind_id = 14 + 8 + body.len();
            icrc = bowline_wire::icrc_replace(
                icrc,
                &sealed_id.to_be_bytes(),
                &ip_id.to_be_bytes(),
                behind_id,
            );
        }
        self.packets.push(TxPacket {
            start: self.bytes.len() as u32,
            len: frame.len() as u32,
            header_len: Bth::LEN as u8,
            trailer_len: ICRC_LEN as u8,
            alike: false,
        });
        self.bytes.extend_from_slice(body);
        self.bytes.extend_from_slice(&icrc.to_le_bytes());
    }

    /// Appends a packet: picks its burst, pads it and seals it with its ICRC.
    ///
    /// The caller has set the BTH's pad count to match `payload` ([`pad_of`]). Returns the packet's
    /// length, BTH to ICRC.
    ///
    /// # Panics
    /// If the batch is full.
    #[inline(always)]
    pub fn push(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        payload: &[Segment],
    ) -> u64 {
        assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
        let (len, pad) = lengths(header, payload);
        let ip_id = self.join_burst(&flow.key, flow.tos | ecn, header.bytes[5], len);
        let to = (&mut self.packets, &mut self.bytes);
        seal(flow, header, payload, (len, pad, ip_id), to);
        u64::from(len)
    }

    /// Appends packets that differ in their PSNs only: `header` is the first one's, and `payload` is cut into
    /// theirs, of `payload_len` bytes each, a multiple of four. Returns how many packets and bytes they are.
    ///
    /// # Panics
    /// If they do not fit, or packets with such headers make no runs ([`HeaderDeltas::behind`]).
    pub(crate) fn push_run(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        mut payload: Segment,
        payload_len: u32,
    ) -> (u32, u64) {
        let len = u32::from(header.len) + payload_len + ICRC_LEN as u32;
        let (bth, ext) = header.as_slice().split_first_chunk().expect("a header starts with a BTH");
        let (seed, mut alike) = flow.seed(len, bth);
        let seed = seed.update(ext);
        let deltas = HeaderDeltas::behind(ext.len()).expect("packets of a kind that makes runs");
        let (alike_bytes, mut psn) = (&bth[..ACK_AT], psn_of(bth));
        let (tos, is_v4) = (flow.tos | ecn, flow.key.dst.is_ipv4());
        let mut packets = 0;
        while let Some((piece, rest)) = payload.split_at(payload_len) {
            assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
            let ip_id = self.join_burst(&flow.key, tos, bth[5], len);
            self.packets.push(TxPacket {
                start: self.bytes.len() as u32,
                len,
                header_len: header.len,
                trailer_len: ICRC_LEN as u8,
                alike: alike && ip_id != 0,
            });
            alike = true;
            let last_word = u32::from(bth[ACK_AT]) << 24 | psn.get();
            self.bytes.reserve(len as usize);
            self.bytes.extend_from_slice(alike_bytes);
            self.bytes.extend_from_slice(&last_word.to_be_bytes());
            let icrc = seed.with_deltas(deltas, if is_v4 { ip_id } else { 0 }, psn);
            if !ext.is_empty() {
                self.bytes.extend_from_slice(ext);
            }
            let icrc = piece.append_summed(icrc, &mut self.bytes);
            self.bytes.extend_from_slice(&icrc.finish().to_le_bytes());
            psn = psn.next();
            packets += 1;
            payload = rest;
        }
        (packets, u64::from(packets) * u64::from(len))
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
        self.append_late();
        let first = self.packets.len() as u32;
        self.bursts.push(Burst { first, ..burst });
    }
}

/// Puts a packet of `len` bytes together, padded and sealed for its place in a burst.
#[inline(always)]
fn seal(
    flow: &mut Flow,
    header: &HeaderBuf,
    payload: &[Segment],
    (len, pad, ip_id): (u32, u8, u16),
    (packets, bytes): (&mut Vec<TxPacket>, &mut Vec<u8>),
) {
    let (bth, ext) = header.as_slice().split_first_chunk().expect("a header starts with a BTH");
    let (mut icrc, alike) = flow.icrc_behind_bth(len, bth, ip_id);
    packets.push(TxPacket {
        start: bytes.len() as u32,
        len,
        header_len: header.len,
        trailer_len: pad + ICRC_LEN as u8,
        alike: alike && ip_id != 0,
    });
    bytes.reserve(len as usize);
    if !ext.is_empty() {
        icrc = icrc.update(ext);
    }
    header.append_to(bytes);
    for segment in payload {
        icrc = segment.append_summed(icrc, bytes);
    }
    let pad = usize::from(pad);
    if pad != 0 {
        icrc = icrc.update(&[0; 3][..pad]);
        bytes.extend_from_slice(&[0; 3][..pad]);
    }
    bytes.extend_from_slice(&icrc.finish().to_le_bytes());
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
    ((usize::from(header.len) + payload_len + usize::from(pad) + ICRC_LEN) as u32, pad)
}

/// Pad bytes that bring a payload to a multiple of four.
#[inline]
pub const fn pad_of(payload_len: usize) -> u8 {
    (payload_len.wrapping_neg() & 3) as u8
}
