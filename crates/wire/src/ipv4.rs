//! IPv4 header (RFC 791).

use core::net::Ipv4Addr;

use crate::checksum::Sum;
use crate::view::{be16, be32, put, with_bits, with_flag};
use crate::{EmitError, ParseError};

const MIN_LEN: usize = 20;
const MAX_OPTIONS_LEN: usize = 40;
const RESERVED: u8 = 0x80;
const DONT_FRAGMENT: u8 = 0x40;
const MORE_FRAGMENTS: u8 = 0x20;

header_views! {
    "the fixed part of an IPv4 header", Ipv4View, Ipv4Mut, MIN_LEN;
    /// IP version, 4 bits: 4.
    version, set_version: u8 {
        get |b| b[0] >> 4;
        set |b, v| b[0] = with_bits(b[0], 0xf0, v << 4);
    }
    /// Bytes of the header with its options, in units of four; 4 bits.
    ihl, set_ihl: u8 {
        get |b| b[0] & 0xf;
        set |b, v| b[0] = with_bits(b[0], 0xf, v);
    }
    /// Type of service: DSCP and ECN.
    tos, set_tos: u8 {
        get |b| b[1];
        set |b, v| b[1] = v;
    }
    /// Bytes of header and payload.
    total_len, set_total_len: u16 {
        get |b| be16(b, 2);
        set |b, v| put(b, 2, v.to_be_bytes());
    }
    /// Identification, which the ICRC covers.
    id, set_id: u16 {
        get |b| be16(b, 4);
        set |b, v| put(b, 4, v.to_be_bytes());
    }
    /// The reserved flag.
    reserved_flag, set_reserved_flag: bool {
        get |b| b[6] & RESERVED != 0;
        set |b, v| b[6] = with_flag(b[6], RESERVED, v);
    }
    /// Routers are not to fragment the datagram.
    dont_fragment, set_dont_fragment: bool {
        get |b| b[6] & DONT_FRAGMENT != 0;
        set |b, v| b[6] = with_flag(b[6], DONT_FRAGMENT, v);
    }
    /// This is not the last fragment.
    more_fragments, set_more_fragments: bool {
        get |b| b[6] & MORE_FRAGMENTS != 0;
        set |b, v| b[6] = with_flag(b[6], MORE_FRAGMENTS, v);
    }
    /// Offset of the fragment in units of eight bytes, 13 bits.
    fragment_offset, set_fragment_offset: u16 {
        get |b| be16(b, 6) & 0x1fff;
        set |b, v| put(b, 6, ((be16(b, 6) & 0xe000) | (v & 0x1fff)).to_be_bytes());
    }
    /// Time to live.
    ttl, set_ttl: u8 {
        get |b| b[8];
        set |b, v| b[8] = v;
    }
    /// Protocol of the payload.
    protocol, set_protocol: u8 {
        get |b| b[9];
        set |b, v| b[9] = v;
    }
    /// Header checksum.
    checksum, set_checksum: u16 {
        get |b| be16(b, 10);
        set |b, v| put(b, 10, v.to_be_bytes());
    }
    /// Source address.
    src, set_src: Ipv4Addr {
        get |b| Ipv4Addr::from_bits(be32(b, 12));
        set |b, v| put(b, 12, v.octets());
    }
    /// Destination address.
    dst, set_dst: Ipv4Addr {
        get |b| Ipv4Addr::from_bits(be32(b, 16));
        set |b, v| put(b, 16, v.octets());
    }
}

/// IPv4 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Header {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// The reserved flag.
    pub reserved_flag: bool,
    /// Routers are not to fragment the datagram.
    pub dont_fragment: bool,
    /// This is not the last fragment.
    pub more_fragments: bool,
    /// Offset of the fragment in units of eight bytes, 13 bits.
    pub fragment_offset: u16,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Header checksum as it is on the wire, right or wrong; see [`Ipv4Header::with_checksum`].
    pub checksum: u16,
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Options, not interpreted.
    pub options: Ipv4Options,
}

impl Ipv4Header {
    /// Bytes on the wire without options.
    pub const MIN_LEN: usize = MIN_LEN;

    /// Reads the header at the beginning of `bytes`, options included.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        let v = Ipv4View::new(bytes)?;
        if v.version() != 4 {
            return Err(ParseError::BadIpVersion(v.version()));
        }
        let len = usize::from(v.ihl()) * 4;
        let options_len = len.checked_sub(MIN_LEN).ok_or(ParseError::BadHeaderLength(v.ihl()))?;
        let options = bytes
            .get(MIN_LEN..MIN_LEN + options_len)
            .ok_or(ParseError::Truncated { need: len, have: bytes.len() })?;
        Ok(Self {
            tos: v.tos(),
            total_len: v.total_len(),
            id: v.id(),
            reserved_flag: v.reserved_flag(),
            dont_fragment: v.dont_fragment(),
            more_fragments: v.more_fragments(),
            fragment_offset: v.fragment_offset(),
            ttl: v.ttl(),
            protocol: v.protocol(),
            checksum: v.checksum(),
            src: v.src(),
            dst: v.dst(),
            options: Ipv4Options::new(options).ok_or(ParseError::BadHeaderLength(v.ihl()))?,
        })
    }

    /// Bytes on the wire, options included.
    pub const fn header_len(&self) -> usize {
        MIN_LEN + self.options.len as usize
    }

    /// Writes the header to the beginning of `out`, with the checksum field as given.
    pub fn emit(&self, out: &mut [u8]) -> Result<(), EmitError> {
        let need = self.header_len();
        let too_small = EmitError::BufferTooSmall { need, have: out.len() };
        let (fixed, rest) = out.split_first_chunk_mut().ok_or(too_small)?;
        let options = rest.get_mut(..usize::from(self.options.len)).ok_or(too_small)?;
        self.emit_fixed(fixed);
        options.copy_from_slice(self.options.as_bytes());
        Ok(())
    }

    /// The same header with the correct checksum.
    pub fn with_checksum(mut self) -> Self {
        self.checksum = 0;
        let mut fixed = [0; MIN_LEN];
        self.emit_fixed(&mut fixed);
        self.checksum = Sum::default().bytes(&fixed).bytes(self.options.as_bytes()).finish();
        self
    }

    /// Writes the part before the options.
    pub(crate) const fn emit_fixed(&self, out: &mut [u8; MIN_LEN]) {
        let mut v = Ipv4Mut::of(out);
        v.set_version(4);
        v.set_ihl((self.header_len() / 4) as u8);
        v.set_tos(self.tos);
        v.set_total_len(self.total_len);
        v.set_id(self.id);
        v.set_reserved_flag(self.reserved_flag);
        v.set_dont_fragment(self.dont_fragment);
        v.set_more_fragments(self.more_fragments);
        v.set_fragment_offset(self.fragment_offset);
        v.set_ttl(self.ttl);
        v.set_protocol(self.protocol);
        v.set_checksum(self.checksum);
        v.set_src(self.src);
        v.set_dst(self.dst);
    }
}

/// IPv4 options as bytes: at most 40, in units of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Options {
    bytes: [u8; MAX_OPTIONS_LEN],
    len: u8,
}

impl Ipv4Options {
    /// No options.
    pub const EMPTY: Self = Self { bytes: [0; MAX_OPTIONS_LEN], len: 0 };

    /// Options whose length the header can express, else `None`.
    pub fn new(options: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_OPTIONS_LEN];
        bytes.get_mut(..options.len())?.copy_from_slice(options);
        options.len().is_multiple_of(4).then_some(Self { bytes, len: options.len() as u8 })
    }

    /// The options.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}
