//! Trains: frames that arrived together and differ only in their PSNs.
//!
//! A bulk transfer arrives as datagrams of many frames, nearly all of which are from the middle of
//! one message. What holds for the first (QP, peer, rights) holds for all; only integrity and order
//! must be checked for each.
//!
//! WRITEs of one packet each form trains as well: short messages are divided into them. To a train
//! their RETHs are part of the payload, since each has another address. One that requests an
//! acknowledgement ends its train, because this bit is among what must be alike.

use bowline_wire::{
    Bth, HeaderDeltas, ICRC_LEN, Icrc, OpKind, Opcode, PacketView, Position, Psn, Reth, Service,
};

use crate::frame::{FrameMeta, IpId};
use crate::shim::Shim;
use crate::tx::{Flow, PSN_AT, psn_of};

/// By opcode: header bytes of a packet that can be part of a train and that are alike in all of it;
/// 0 for any other. READ responses are handled one by one where each may acknowledge something.
static ALIKE_HEADERS: [u8; 256] = {
    let mut headers = [0; 256];
    let mut opcode = 0;
    while opcode < headers.len() {
        if let Some(info) = Opcode(opcode as u8).info()
            && matches!(info.position, Position::Middle)
            && (matches!(info.kind, OpKind::Send | OpKind::Write) || is_xp(opcode as u8))
            && HeaderDeltas::behind(info.ext_len as usize).is_some()
        {
            headers[opcode] = Bth::LEN as u8 + info.ext_len;
        }
        opcode += 1;
    }
    headers[Opcode::RC_WRITE_ONLY.0 as usize] = Bth::LEN as u8;
    headers
};

const fn is_xp(opcode: u8) -> bool {
    matches!(Opcode(opcode).service(), Some(Service::Xp))
}

/// Consecutive frames of a datagram, examined one by one.
pub(crate) struct Train<'a> {
    bytes: &'a [u8],
    frame_len: usize,
    kind: OpKind,
    /// Extension headers, the same in all frames.
    ext: &'a [u8],
    /// The common beginning of all BTHs.
    alike: [u8; PSN_AT],
    /// PSN of the next frame.
    psn: Psn,
    ip_id: IpId,
    /// The ICRC register after all headers, for ID 0 and PSN 0.
    seed: Icrc,
    deltas: &'static HeaderDeltas,
    /// Sees the frames before the transport does.
    shim: Option<&'a mut (dyn Shim + 'static)>,
    /// How many of the next frames are intact and approved by the shim.
    seen: usize,
    /// Each frame is a WRITE, and its RETH precedes its payload.
    is_of_writes: bool,
}

/// Bytes of frames that a shim is shown at a time.
const SHOWN_BYTES: usize = 16 << 10;

impl<'a> Train<'a> {
    /// How many frames of a datagram, from its first on, may be a train; 0 if fewer than two.
    #[inline]
    pub(crate) fn len_of(bytes: &[u8], frame_len: usize) -> usize {
        // A shorter trailing frame is not examined.
        let whole = bytes.len() / frame_len;
        let starts = whole >= 2
            && frame_len > ALIKE_HEADERS[usize::from(bytes[0])] as usize + ICRC_LEN
            && ALIKE_HEADERS[usize::from(bytes[0])] > 0
            && bytes[..PSN_AT] == bytes[frame_len..][..PSN_AT];
        if starts { whole } else { 0 }
    }

    /// The train that begins with `first`, a packet without padding at the start of `bytes`; `None`
    /// if such packets do not form trains.
    pub(crate) fn new(
        first: &PacketView<'a>,
        bytes: &'a [u8],
        meta: &FrameMeta,
        flow: &mut Flow,
        shim: Option<&'a mut (dyn Shim + 'static)>,
    ) -> Option<Train<'a>> {
        let frame = first.as_bytes();
        let (bth, rest) = frame.split_first_chunk::<{ Bth::LEN }>()?;
        let is_of_writes = first.opcode() == Opcode::RC_WRITE_ONLY;
        if is_of_writes && shim.is_some() {
            // It would see frames before the transport can refuse them.
            return None;
        }
        let ext_len = if is_of_writes { 0 } else { usize::from(first.info().ext_len) };
        let ext = rest.get(..ext_len)?;
        Some(Train {
            bytes,
            frame_len: frame.len(),
            kind: first.info().kind,
            ext,
            alike: core::array::from_fn(|at| bth[at]),
            psn: first.psn(),
            ip_id: meta.ip_id,
            seed: flow.seed(frame.len() as u32, bth).0.update(ext),
            deltas: HeaderDeltas::behind(ext.len())?,
            shim,
            seen: 0,
            is_of_writes,
        })
    }

    /// Expected PSN of the next frame.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// Bytes of each frame.
    pub(crate) fn frame_len(&self) -> usize {
        self.frame_len
    }

    /// Bytes of payload of each frame, without a RETH.
    pub(crate) fn payload_len(&self) -> usize {
        let reth = if self.is_of_writes { Reth::LEN } else { 0 };
        self.frame_len - self.header_len() - reth - ICRC_LEN
    }

    /// Whether each frame is a WRITE of its own.
    pub(crate) fn is_of_writes(&self) -> bool {
        self.is_of_writes
    }

    /// What follows the extension headers, if they equal those of the first frame. Out of line,
    /// since most transports' frames have none.
    #[inline(never)]
    fn behind_ext<'b>(&self, rest: &'b [u8]) -> Option<&'b [u8]> {
        rest.strip_prefix(self.ext)
    }

    /// Extension headers of each frame.
    pub(crate) fn ext(&self) -> &'a [u8] {
        self.ext
    }

    #[inline]
    fn header_len(&self) -> usize {
        Bth::LEN + self.ext.len()
    }

    /// The operation that the frames belong to.
    pub(crate) fn kind(&self) -> OpKind {
        self.kind
    }

    /// Limits the train to this many frames.
    pub(crate) fn limit(&mut self, frames: u32) {
        let most = (frames as usize).saturating_mul(self.frame_len);
        self.bytes = self.bytes.get(..most).unwrap_or(self.bytes);
    }

    /// Payload of the next frame; `None` if there is none, or if it is damaged, differs from those
    /// before it, or a shim does not approve it. The transport must take what it is given: a shim
    /// has seen it, and perhaps some that follow.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<&'a [u8]> {
        if self.shim.is_some() && self.seen == 0 {
            self.show();
        }
        let payload = match self.seen.checked_sub(1) {
            Some(left) => {
                self.seen = left;
                self.bytes.get(self.header_len()..self.frame_len - ICRC_LEN)?
            }
            None if self.shim.is_some() => return None,
            None => self.intact(self.bytes, 0)?,
        };
        self.bytes = &self.bytes[self.frame_len..];
        self.psn = self.psn.next();
        self.ip_id.skip(1);
        Some(payload)
    }

    /// Passes the next WRITE to `take`, if there is one and it is as expected. If it is not taken,
    /// it stays the next frame.
    #[inline]
    pub(crate) fn next_write(&mut self, take: impl FnOnce(&Reth, &'a [u8]) -> bool) -> bool {
        let body = self.intact(self.bytes, 0).and_then(<[u8]>::split_first_chunk);
        let taken = body.is_some_and(|(reth, payload)| take(&Reth::parse(reth), payload));
        if taken {
            self.bytes = &self.bytes[self.frame_len..];
            self.psn = self.psn.next();
            self.ip_id.skip(1);
        }
        taken
    }

    /// Shows the shim as many frames as stay in the L1 cache until the transport reads them.
    fn show(&mut self) {
        let most = (SHOWN_BYTES / self.frame_len).max(1);
        let frames = self.bytes.chunks(self.frame_len).enumerate().take(most);
        let intact = frames.take_while(|(i, frame)| self.intact(frame, *i).is_some()).count();
        let run = &self.bytes[..intact * self.frame_len];
        if let Some(shim) = self.shim.as_deref_mut()
            && intact > 0
        {
            self.seen = shim.follows_run(run, self.frame_len).min(intact);
        }
    }

    /// Payload of the frame at the start of `bytes`, at this distance from the next one, if it is
    /// as expected.
    #[inline]
    fn intact<'b>(&self, bytes: &'b [u8], ahead: usize) -> Option<&'b [u8]> {
        let frame = bytes.get(..self.frame_len)?;
        let (body, icrc) = frame.split_last_chunk::<ICRC_LEN>()?;
        let (bth, rest) = body.split_first_chunk::<{ Bth::LEN }>()?;
        let psn = psn_of(bth);
        if bth.first_chunk() != Some(&self.alike) || psn != self.psn.add(ahead as u32) {
            return None;
        }
        let payload = if self.ext.is_empty() { rest } else { self.behind_ext(rest)? };
        let mut ip_id = self.ip_id;
        ip_id.skip(ahead);
        let (IpId::Known(ip_id) | IpId::Guess(ip_id)) = ip_id else { return Some(payload) };
        let sum = self.seed.with_deltas(self.deltas, ip_id, psn).update(payload).finish();
        (sum == u32::from_le_bytes(*icrc)).then_some(payload)
    }
}
