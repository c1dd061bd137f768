//! Frames that arrived together and differ in their PSNs only.
//!
//! A bulk transfer arrives as datagrams of many frames, nearly all of which are from the middle of
//! one message. What holds for the first of them (QP, peer, rights) holds for all; what has to be
//! looked at in each is whether it is intact and the next in order.

use bowline_wire::{
    Bth, HeaderDeltas, ICRC_LEN, Icrc, OpKind, Opcode, PacketView, Position, Psn, Service,
};

use crate::frame::{FrameMeta, IpId};
use crate::shim::Shim;
use crate::tx::{Flow, PSN_AT, psn_of};

/// By opcode: bytes of the headers of a packet from the middle of a message that can be part of a
/// train; 0 for any other. Answers to READs are taken one by one where each of them may acknowledge
/// something.
static MIDDLE_HEADERS: [u8; 256] = {
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
    headers
};

const fn is_xp(opcode: u8) -> bool {
    matches!(Opcode(opcode).service(), Some(Service::Xp))
}

/// Frames behind each other in a datagram, looked at one by one.
pub(crate) struct Train<'a> {
    bytes: &'a [u8],
    frame_len: usize,
    kind: OpKind,
    /// Extended headers, which all have.
    ext: &'a [u8],
    /// What all BTHs start with.
    alike: [u8; PSN_AT],
    /// Of the frame that is looked at next.
    psn: Psn,
    ip_id: IpId,
    /// The ICRC register behind all headers, for ID 0 and PSN 0.
    seed: Icrc,
    deltas: &'static HeaderDeltas,
    /// Looks at the frames before the transport does.
    shim: Option<&'a mut (dyn Shim + 'static)>,
    /// How many of the next frames are intact and the shim has passed.
    seen: usize,
}

/// Bytes of frames that a shim sees at a time.
const SHOWN_BYTES: usize = 16 << 10;

impl<'a> Train<'a> {
    /// How many frames of a datagram may be a train, from its first on; 0 unless two at least.
    #[inline]
    pub(crate) fn len_of(bytes: &[u8], frame_len: usize) -> usize {
        // Of a trailing frame that is shorter nothing is known.
        let whole = bytes.len() / frame_len;
        let starts = whole >= 2
            && frame_len > MIDDLE_HEADERS[usize::from(bytes[0])] as usize + ICRC_LEN
            && MIDDLE_HEADERS[usize::from(bytes[0])] > 0
            && bytes[..PSN_AT] == bytes[frame_len..][..PSN_AT];
        if starts { whole } else { 0 }
    }

    /// The train that begins with `first`, a packet without pad, which `bytes` begin with; nothing
    /// if there are no trains of such packets.
    pub(crate) fn new(
        first: &PacketView<'a>,
        bytes: &'a [u8],
        meta: &FrameMeta,
        flow: &mut Flow,
        shim: Option<&'a mut (dyn Shim + 'static)>,
    ) -> Option<Train<'a>> {
        let frame = first.as_bytes();
        let (bth, rest) = frame.split_first_chunk::<{ Bth::LEN }>()?;
        let ext = rest.get(..usize::from(first.info().ext_len))?;
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
        })
    }

    /// PSN of the next frame, as it should be.
    pub(crate) fn psn(&self) -> Psn {
        self.psn
    }

    /// Bytes of each frame.
    pub(crate) fn frame_len(&self) -> usize {
        self.frame_len
    }

    /// Bytes of payload of each frame.
    pub(crate) fn payload_len(&self) -> usize {
        self.frame_len - self.header_len() - ICRC_LEN
    }

    /// What is behind extended headers, if they are like those of the first frame. Apart, since
    /// frames of most transports have none.
    #[inline(never)]
    fn behind_ext<'b>(&self, rest: &'b [u8]) -> Option<&'b [u8]> {
        rest.strip_prefix(self.ext)
    }

    /// Extended headers of each frame.
    pub(crate) fn ext(&self) -> &'a [u8] {
        self.ext
    }

    #[inline]
    fn header_len(&self) -> usize {
        Bth::LEN + self.ext.len()
    }

    /// What the frames are of.
    pub(crate) fn kind(&self) -> OpKind {
        self.kind
    }

    /// Gives no more than so many frames.
    pub(crate) fn limit(&mut self, frames: u32) {
        let most = (frames as usize).saturating_mul(self.frame_len);
        self.bytes = self.bytes.get(..most).unwrap_or(self.bytes);
    }

    /// Payload of the next frame; nothing if there is none, or one that is anything but intact,
    /// like those before it, and as a shim would have it. The transport is to take what it is
    /// given: a shim has seen it, and perhaps some of those behind it.
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

    /// Shows the shim as many frames as stay in the first cache until the transport reads them.
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

    /// Payload of the frame that `bytes` begin with, so many behind the next one, if it is as it
    /// should be.
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
