//! Headers of packets under construction.

use bowline_wire::{Bth, Opcode, Position, Psn, Reth};

/// Longest headers: BTH and AtomicETH are 40 bytes; LoWAR's repair header fits as well.
pub const MAX_HEADER: usize = 48;

/// Offset of the PSN in a BTH.
pub(crate) const PSN_AT: usize = 9;
/// Offset of the top byte of the destination QPN.
pub(super) const PREFIX_AT: usize = 5;
/// Offset of the byte with the AckReq bit.
pub(super) const ACK_AT: usize = PSN_AT - 1;

/// The PSN in a BTH.
#[inline]
pub(crate) fn psn_of(bth: &[u8; Bth::LEN]) -> Psn {
    Psn::new(u32::from_be_bytes([0, bth[PSN_AT], bth[10], bth[11]]))
}

/// Headers of a packet under construction.
#[derive(Clone, Copy)]
pub struct HeaderBuf {
    pub(super) bytes: [u8; MAX_HEADER],
    pub(super) len: u8,
    /// More packets follow, although to the peer this one is a message of its own.
    goes_on: bool,
}

impl HeaderBuf {
    /// Starts with a BTH.
    #[inline]
    pub fn new(bth: &Bth) -> HeaderBuf {
        let mut h = HeaderBuf { bytes: [0; MAX_HEADER], len: Bth::LEN as u8, goes_on: false };
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

    /// Turns it into the header of another packet that differs only in these fields.
    #[inline]
    pub fn renumber(&mut self, psn: Psn, ack_req: bool) {
        let reserved = u32::from(self.bytes[ACK_AT] & 0x7f) << 24;
        let word = u32::from(ack_req) << 31 | reserved | psn.get();
        self.bytes[ACK_AT..Bth::LEN].copy_from_slice(&word.to_be_bytes());
    }

    /// Moves the address in its RETH, which is its last extension header.
    ///
    /// # Panics
    /// If it has none.
    #[inline]
    pub(crate) fn set_va(&mut self, va: u64) {
        let at = usize::from(self.len) - Reth::LEN;
        self.bytes[at..at + 8].copy_from_slice(&va.to_be_bytes());
    }

    /// The address in its RETH.
    #[inline]
    fn va(&self) -> u64 {
        let at = usize::from(self.len) - Reth::LEN;
        let va = self.bytes[at..].first_chunk().expect("a RETH starts with an address");
        u64::from_be_bytes(*va)
    }

    /// Moves the address on by so many bytes.
    #[inline]
    pub(super) fn advance_va(&mut self, bytes: u32) {
        self.set_va(self.va().wrapping_add(bytes.into()));
    }

    /// Turns it into the header of the next packet in a run.
    pub(super) fn next_psn(&mut self) {
        let ack_req = self.bytes[ACK_AT] & 0x80 != 0;
        let psn = self.bytes.first_chunk().map_or(Psn::new(0), psn_of);
        self.renumber(psn.next(), ack_req);
    }

    /// The headers that the opcode has, and what follows them, which a receiver takes for payload.
    pub(crate) fn split_payload(&self) -> (HeaderBuf, &[u8]) {
        let info = Opcode(self.bytes[0]).info();
        let ext = info.map_or(0, |info| usize::from(info.ext_len));
        let len = (Bth::LEN + ext).min(usize::from(self.len));
        (HeaderBuf { len: len as u8, ..*self }, &self.as_slice()[len..])
    }

    /// Whether more packets of the same message follow.
    #[inline]
    pub(crate) fn goes_on(&self) -> bool {
        self.goes_on || GOES_ON[usize::from(self.bytes[0])]
    }

    /// Turns it into the header of a packet of a request that is divided into several messages, and
    /// not of its last packet.
    #[inline]
    pub(crate) fn set_goes_on(&mut self) {
        self.goes_on = true;
    }

    /// Appends it. For a bare BTH it loads the word that [`HeaderBuf::renumber`] has just written
    /// separately: a load that spans it and its neighbours would stall until the store has reached
    /// the cache.
    #[inline]
    pub(super) fn append_to(&self, out: &mut Vec<u8>) {
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
