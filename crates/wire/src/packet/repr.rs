//! A packet as plain values, to be written.

use super::PacketView;
use crate::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, EmitError, ExtLayout, ICRC_LEN, Ieth, ImmDt, Rdeth,
    Reth, SealedCounter, XpCc, XpEth, XpTimeLeft, XrcEth,
};

/// A packet from BTH to ICRC as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Packet<'a> {
    /// Base transport header. Its `pad` says how many of `pad_bytes` are sent.
    pub bth: Bth,
    /// Extended headers; only those that the opcode requires are written.
    pub ext: ExtHeaders,
    /// Payload without pad.
    pub payload: &'a [u8],
    /// Pad bytes; conforming senders use zeros.
    pub pad_bytes: [u8; 3],
    /// Trailer. Its correct value depends on the IP and UDP headers (see [`Icrc`](crate::Icrc)).
    pub icrc: u32,
}

/// Values of all extended headers a packet may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExtHeaders {
    /// Reliable datagram extended transport header.
    pub rdeth: Option<Rdeth>,
    /// Datagram extended transport header.
    pub deth: Option<Deth>,
    /// Extended reliable connected extended transport header.
    pub xrceth: Option<XrcEth>,
    /// RDMA extended transport header.
    pub reth: Option<Reth>,
    /// Atomic extended transport header.
    pub atomic: Option<AtomicEth>,
    /// Acknowledge extended transport header.
    pub aeth: Option<Aeth>,
    /// Atomic acknowledge extended transport header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Invalidate extended transport header.
    pub ieth: Option<Ieth>,
    /// XP extended transport header.
    pub xpeth: Option<XpEth>,
    /// Remaining time of an XP READ.
    pub xp_time_left: Option<XpTimeLeft>,
    /// XP congestion control header.
    pub xpcc: Option<XpCc>,
    /// Low bits of a sealed packet's counter.
    pub sealed: Option<SealedCounter>,
}

impl<'a> From<PacketView<'a>> for Packet<'a> {
    fn from(view: PacketView<'a>) -> Self {
        let mut pad_bytes = [0; 3];
        pad_bytes.iter_mut().zip(view.pad()).for_each(|(to, &from)| *to = from);
        Self {
            bth: view.bth(),
            ext: ExtHeaders {
                rdeth: view.rdeth(),
                deth: view.deth(),
                xrceth: view.xrceth(),
                reth: view.reth(),
                atomic: view.atomic_eth(),
                aeth: view.aeth(),
                atomic_ack: view.atomic_ack(),
                imm: view.imm().map(ImmDt),
                ieth: view.ieth(),
                xpeth: view.xpeth(),
                xp_time_left: view.xp_time_left(),
                xpcc: view.xpcc(),
                sealed: view.sealed_counter(),
            },
            payload: view.payload(),
            pad_bytes,
            icrc: view.icrc(),
        }
    }
}

impl Packet<'_> {
    /// Bytes from BTH to ICRC.
    pub fn wire_len(&self) -> Result<usize, EmitError> {
        let info = self.bth.opcode.info().ok_or(EmitError::UnknownOpcode(self.bth.opcode))?;
        Ok(Bth::LEN + usize::from(info.ext_len) + self.payload.len() + self.pad().len() + ICRC_LEN)
    }

    /// Writes the packet to the beginning of `out` and returns its length.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, EmitError> {
        let need = self.wire_len()?;
        let info = self.bth.opcode.info().ok_or(EmitError::UnknownOpcode(self.bth.opcode))?;
        let too_small = EmitError::BufferTooSmall { need, have: out.len() };
        let out = out.get_mut(..need).ok_or(too_small)?;
        let (bth, rest) = out.split_first_chunk_mut().ok_or(too_small)?;
        let (ext, rest) = rest.split_at_mut_checked(info.ext_len.into()).ok_or(too_small)?;
        let (payload, rest) = rest.split_at_mut_checked(self.payload.len()).ok_or(too_small)?;
        let (pad, trailer) = rest.split_at_mut_checked(self.pad().len()).ok_or(too_small)?;

        self.bth.emit(bth);
        self.ext.emit(&info.ext, ext)?;
        payload.copy_from_slice(self.payload);
        pad.copy_from_slice(self.pad());
        trailer.copy_from_slice(&self.icrc.to_le_bytes());
        Ok(need)
    }

    fn pad(&self) -> &[u8] {
        self.pad_bytes.get(..usize::from(self.bth.pad & 3)).unwrap_or_default()
    }
}

/// Writes each header of the layout to its place.
macro_rules! emit_headers {
    ($self:ident, $layout:ident, $out:ident; $($field:ident)*) => {
        $(if let Some(at) = $layout.$field {
            let header = $self.$field.ok_or(EmitError::MissingHeader(stringify!($field)))?;
            if let Some(place) = $out.get_mut(usize::from(at)..).and_then(|o| o.first_chunk_mut()) {
                header.emit(place);
            }
        })*
    };
}

impl ExtHeaders {
    fn emit(&self, layout: &ExtLayout, out: &mut [u8]) -> Result<(), EmitError> {
        emit_headers!(self, layout, out;
            rdeth deth xrceth reth atomic aeth atomic_ack imm ieth xpeth xp_time_left xpcc
            sealed);
        Ok(())
    }
}
