//! Outgoing packets: built by transports, grouped into bursts, sent by a port.
//!
//! A [`TxBatch`] holds whole packets, contiguously. It groups consecutive packets that can share
//! one segmentation-offload call ([`Burst`]), and computes each packet's ICRC, which covers the
//! IPv4 identification and therefore the packet's place in its burst.
//!
//! Payload is copied out of registered memory in the same pass that computes its ICRC. A socket
//! could gather it from there, but a copy is cheaper than it looks and a gather list more
//! expensive: the ICRC has to read every byte anyway, which dominates for uncached memory, and the
//! kernel is slow with lists. Also, a packet in a batch keeps matching its ICRC, even if the
//! application changes or frees its memory.

mod burst;
mod clean;
mod flow;
mod header;
mod late;
mod protect;

use std::sync::Arc;

use bowline_wire::{Bth, FlowKey, HeaderDeltas, ICRC_LEN};

pub use self::burst::Burst;
pub use self::clean::{CleanPaths, PeerEngine};
pub use self::flow::Flow;
use self::header::{ACK_AT, PREFIX_AT};
pub use self::header::{HeaderBuf, MAX_HEADER};
pub(crate) use self::header::{PSN_AT, psn_of};
use self::late::Late;
pub use self::late::MAX_LATE;
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

/// A packet of a batch: BTH to ICRC.
#[derive(Clone, Copy, Debug)]
pub struct TxPacket {
    /// Offset of its first byte in the batch.
    start: u32,
    /// Length as in the UDP header.
    len: u32,
    /// BTH and extension headers.
    header_len: u8,
    /// Pad and ICRC.
    trailer_len: u8,
    /// It differs only in its PSN from the previous packet of its flow, which is in the same burst.
    /// If both belong to one QP, that is the previous packet in the batch.
    alike: bool,
}

impl TxPacket {
    /// Whether its only header is the BTH.
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

/// A batch of this many bytes is sent before more is added: it stays in a core's own cache,
/// together with its sources, until the port has read it. Two bursts at an MTU of 4096.
const MAX_BYTES: usize = 120 << 10;

/// A bounded batch of outgoing packets. It is reused: nothing is allocated once it is warm.
pub struct TxBatch {
    caps: TxCaps,
    /// Packets that fit, not counting late ones.
    capacity: usize,
    packets: Vec<TxPacket>,
    /// All packets, in order.
    bytes: Vec<u8>,
    bursts: Vec<Burst>,
    late: Late,
    /// Destinations whose packets get no ICRC.
    clean: Option<Arc<CleanPaths>>,
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
            clean: None,
        }
    }

    /// From now on packets for these peers get no ICRC. Open bursts stay as they are: the port
    /// drops those that it can no longer send without one.
    pub fn set_clean_paths(&mut self, paths: Option<&Arc<CleanPaths>>) {
        let same = match (&self.clean, paths) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (old, new) => old.is_none() && new.is_none(),
        };
        if !same {
            self.clean = paths.map(Arc::clone);
        }
    }

    /// Whether it must be sent before more is added.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many more packets may be added; 0 once there are enough bytes.
    #[inline]
    pub fn room(&self) -> usize {
        if self.bytes.len() < MAX_BYTES { self.capacity - self.packets.len() } else { 0 }
    }

    /// How many more packets of `len` bytes may be added in a row.
    #[inline]
    pub(crate) fn room_for(&self, len: u32) -> usize {
        self.room().min(MAX_BYTES.saturating_sub(self.bytes.len()).div_ceil(len as usize))
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len() + self.late.len()
    }

    /// Removes everything, keeping the memory.
    pub fn clear(&mut self) {
        self.append_late();
        self.packets.clear();
        self.bytes.clear();
        self.bursts.clear();
    }

    /// Removes the first `count` bursts, which were sent.
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

    /// The bytes of a burst of this batch: its packets, one after the other.
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

    /// A mark for the packets that are pushed from now on; see [`TxBatch::run_since`].
    #[inline]
    pub(crate) fn run_mark(&self) -> usize {
        self.packets.len()
    }

    /// The packets after such a mark; earlier late ones may be among them.
    #[inline]
    pub(crate) fn run_since(&self, mark: usize) -> &[TxPacket] {
        self.packets.get(mark..).unwrap_or_default()
    }

    /// How many of these packets, all of one QP, differ only in their PSNs, from the first on, and
    /// their bytes, one after the other.
    #[inline]
    pub(crate) fn alike<'a>(&'a self, packets: &[TxPacket]) -> (usize, &'a [u8]) {
        let Some((first, rest)) = packets.split_first() else { return (0, &[]) };
        let count = 1 + rest.iter().take_while(|packet| packet.alike).count();
        let bytes = &self.bytes[first.start as usize..][..count * first.len as usize];
        (count, bytes)
    }

    /// Redirects a burst to another engine, in place. Returns its packets, BTH to ICRC, one after
    /// the other: the caller sets destination QPNs with that engine's prefix, and updates ICRCs.
    pub fn redirect(&mut self, burst: usize, to: PeerEngine) -> &mut [u8] {
        let Some(burst) = self.bursts.get_mut(burst) else { return &mut [] };
        (burst.dst, burst.dst_port, burst.prefix) = to;
        let start = self.packets[burst.first as usize].start as usize;
        &mut self.bytes[start..start + burst.bytes as usize]
    }

    /// Appends a whole packet, BTH to ICRC, whose ICRC is for IP identification `summed_id`, for
    /// middleware that holds packets back; the ICRC is adjusted to the packet's new place.
    ///
    /// # Panics
    /// If the batch is full, or `frame` is shorter than a BTH and an ICRC.
    pub fn push_summed(&mut self, key: &FlowKey, tos: u8, summed_id: u16, frame: &[u8]) {
        self.push_rewritten(key, tos, summed_id, (frame, None), |_| {});
    }

    /// As [`TxBatch::push_summed`], and rewrites the packet in place. The rewrite keeps the ICRC
    /// right for `summed_id`. Afterwards the top byte of the destination QPN is `prefix`, or
    /// unchanged if that is `None`.
    ///
    /// # Panics
    /// If the batch is full, or `frame` is shorter than a BTH and an ICRC.
    pub fn push_rewritten(
        &mut self,
        key: &FlowKey,
        tos: u8,
        summed_id: u16,
        (frame, prefix): (&[u8], Option<u8>),
        rewrite: impl FnOnce(&mut [u8]),
    ) {
        let body = frame.len().checked_sub(ICRC_LEN).filter(|n| *n >= Bth::LEN);
        let body = body.expect("a whole packet");
        let prefix = prefix.unwrap_or(frame[PREFIX_AT]);
        let ip_id = self.join_whole(key, tos, (frame, prefix), true);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(frame);
        let packet = &mut self.bytes[start..];
        rewrite(packet);
        if key.dst.is_ipv4()
            && ip_id != summed_id
            && let Some(icrc) = packet.last_chunk_mut::<ICRC_LEN>()
        {
            let (old, new) = (summed_id.to_be_bytes(), ip_id.to_be_bytes());
            let behind_id = 14 + 8 + body;
            let sum = u32::from_le_bytes(*icrc);
            *icrc = bowline_wire::icrc_replace(sum, &old, &new, behind_id).to_le_bytes();
        }
    }

    /// Appends a whole packet of a burst without ICRCs, for middleware.
    ///
    /// # Panics
    /// If the batch is full, or `frame` is shorter than a BTH and an ICRC.
    pub fn push_unsummed(&mut self, key: &FlowKey, tos: u8, frame: &[u8]) {
        assert!(frame.len() >= Bth::LEN + ICRC_LEN, "a whole packet");
        self.join_whole(key, tos, (frame, frame[PREFIX_AT]), false);
        self.bytes.extend_from_slice(frame);
    }

    /// Finds a burst for a whole packet; returns its IP ID.
    fn join_whole(
        &mut self,
        key: &FlowKey,
        tos: u8,
        (frame, prefix): (&[u8], u8),
        summed: bool,
    ) -> u16 {
        assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
        let len = frame.len() as u32;
        let open = self.bursts.last_mut().filter(|burst| burst.summed == summed);
        let joined = open.and_then(|burst| burst.join(key, tos, prefix, len, &self.caps));
        let ip_id = joined.unwrap_or_else(|| {
            let limit = self.caps.max_segments.into();
            self.open_burst(Burst { summed, ..Burst::of_one(key, tos, prefix, len, limit) });
            0
        });
        self.packets.push(TxPacket {
            start: self.bytes.len() as u32,
            len,
            header_len: Bth::LEN as u8,
            trailer_len: ICRC_LEN as u8,
            alike: false,
        });
        ip_id
    }

    /// Appends a packet: picks its burst, pads it and adds its ICRC.
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
        if flow.protection.is_some() {
            return self.push_protected(flow, ecn, header, payload);
        }
        let (len, pad) = lengths(header, payload);
        let (ip_id, summed) = self.join_burst(&flow.key, flow.tos | ecn, header.bytes[5], len);
        let to = (&mut self.packets, &mut self.bytes);
        if summed {
            put_summed(flow, header, payload, (len, pad, ip_id), to);
        } else {
            put_unsummed(flow, header, payload, (len, pad, ip_id), to);
        }
        u64::from(len)
    }

    /// Appends WRITEs of one packet each that differ only in their PSNs and addresses, each of
    /// which continues where the one before it ends. Otherwise as [`push_run`](Self::push_run), but
    /// not for sealed queue pairs.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn push_writes(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        mut header: HeaderBuf,
        mut payload: Segment,
        payload_len: u32,
    ) -> (u32, u64) {
        let len = u32::from(header.len) + payload_len + ICRC_LEN as u32;
        let (bth, _) = header.as_slice().split_first_chunk().expect("a header starts with a BTH");
        let (seed, mut alike) = flow.seed(len, bth);
        let deltas = HeaderDeltas::behind(0).expect("a BTH alone makes runs");
        let mut psn = psn_of(bth);
        let ack_req = bth[ACK_AT] & 0x80 != 0;
        let (prefix, tos, is_v4) = (bth[PREFIX_AT], flow.tos | ecn, flow.key.dst.is_ipv4());
        let mut packets = 0;
        while let Some((piece, rest)) = payload.split_at(payload_len) {
            assert!(self.packets.len() < self.capacity, "the batch is full: ask `room` first");
            let (ip_id, summed) = self.join_burst(&flow.key, tos, prefix, len);
            self.packets.push(TxPacket {
                start: self.bytes.len() as u32,
                len,
                header_len: header.len,
                trailer_len: ICRC_LEN as u8,
                alike: alike && ip_id != 0,
            });
            alike = true;
            self.bytes.reserve(len as usize);
            self.bytes.extend_from_slice(header.as_slice());
            if summed {
                let icrc = seed.with_deltas(deltas, if is_v4 { ip_id } else { 0 }, psn);
                let icrc = icrc.update(&header.as_slice()[Bth::LEN..]);
                let icrc = piece.append_summed(icrc, &mut self.bytes);
                self.bytes.extend_from_slice(&icrc.finish().to_le_bytes());
            } else {
                append_unsummed(piece, &mut self.bytes);
            }
            psn = psn.next();
            header.renumber(psn, ack_req);
            header.advance_va(payload_len);
            packets += 1;
            payload = rest;
        }
        (packets, u64::from(packets) * u64::from(len))
    }

    /// Appends packets that differ only in their PSNs: `header` is that of the first, and `payload`
    /// is divided among them, `payload_len` bytes each, a multiple of four. Returns the number of
    /// packets and bytes.
    ///
    /// # Panics
    /// If they do not fit, or packets with such headers form no runs ([`HeaderDeltas::behind`]).
    pub(crate) fn push_run(
        &mut self,
        flow: &mut Flow,
        ecn: u8,
        header: &HeaderBuf,
        mut payload: Segment,
        payload_len: u32,
    ) -> (u32, u64) {
        if flow.protection.is_some() {
            return self.push_protected_run(flow, ecn, header, payload, payload_len);
        }
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
            let (ip_id, summed) = self.join_burst(&flow.key, tos, bth[5], len);
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
            if !ext.is_empty() {
                self.bytes.extend_from_slice(ext);
            }
            if summed {
                let icrc = seed.with_deltas(deltas, if is_v4 { ip_id } else { 0 }, psn);
                let icrc = piece.append_summed(icrc, &mut self.bytes);
                self.bytes.extend_from_slice(&icrc.finish().to_le_bytes());
            } else {
                append_unsummed(piece, &mut self.bytes);
            }
            psn = psn.next();
            packets += 1;
            payload = rest;
        }
        (packets, u64::from(packets) * u64::from(len))
    }

    /// Adds a packet of `len` bytes to the open burst, or opens another; returns its IP ID, and
    /// whether it gets an ICRC.
    #[inline(always)]
    fn join_burst(&mut self, key: &FlowKey, tos: u8, prefix: u8, len: u32) -> (u16, bool) {
        if let Some(open) = self.bursts.last_mut()
            && let Some(place) = open.join(key, tos, prefix, len, &self.caps)
        {
            return (place, open.summed);
        }
        (0, self.begin_burst(key, tos, prefix, len))
    }

    /// Opens a burst with a packet of `len` bytes; returns whether it gets an ICRC. Out of line,
    /// since most packets join a burst.
    #[inline(never)]
    fn begin_burst(&mut self, key: &FlowKey, tos: u8, prefix: u8, len: u32) -> bool {
        let burst = self.burst_of_one(key, tos, prefix, len);
        self.open_burst(burst);
        burst.summed
    }

    /// A burst that begins with a packet of `len` bytes, with an ICRC unless its path is clean.
    fn burst_of_one(&self, key: &FlowKey, tos: u8, prefix: u8, len: u32) -> Burst {
        let burst = Burst::of_one(key, tos, prefix, len, self.caps.max_segments.into());
        let is_clean = |paths: &Arc<CleanPaths>| paths.contains(burst.peer());
        Burst { summed: !self.clean.as_ref().is_some_and(is_clean), ..burst }
    }

    /// Starts another burst with the next packet.
    fn open_burst(&mut self, burst: Burst) {
        self.append_late();
        let first = self.packets.len() as u32;
        self.bursts.push(Burst { first, ..burst });
    }
}

/// Assembles a packet of `len` bytes, padded and with the ICRC for its place in a burst.
#[inline(always)]
fn put_summed(
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

/// Appends a payload, and zeros in place of an ICRC.
#[inline(never)]
fn append_unsummed(payload: Segment, bytes: &mut Vec<u8>) {
    payload.append(bytes);
    bytes.extend_from_slice(&[0; ICRC_LEN]);
}

/// Assembles a packet as [`put_summed`] does, with zeros in place of an ICRC.
#[inline(never)]
fn put_unsummed(
    flow: &mut Flow,
    header: &HeaderBuf,
    payload: &[Segment],
    (len, pad, ip_id): (u32, u8, u16),
    (packets, bytes): (&mut Vec<TxPacket>, &mut Vec<u8>),
) {
    let (bth, _) = header.as_slice().split_first_chunk().expect("a header starts with a BTH");
    let (_, alike) = flow.seed(len, bth);
    packets.push(TxPacket {
        start: bytes.len() as u32,
        len,
        header_len: header.len,
        trailer_len: pad + ICRC_LEN as u8,
        alike: alike && ip_id != 0,
    });
    bytes.reserve(len as usize);
    header.append_to(bytes);
    for segment in payload {
        segment.append(bytes);
    }
    bytes.resize(bytes.len() + usize::from(pad) + ICRC_LEN, 0);
}

/// A packet's length, BTH to ICRC, and its padding.
#[inline]
fn lengths(header: &HeaderBuf, payload: &[Segment]) -> (u32, u8) {
    let payload_len = match payload {
        // By far the most common case.
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
