//! Base transport header (IBA volume 1, section 9.2).

use crate::view::{be16, be24, put, put_be24, with_bits, with_flag};
use crate::{Opcode, Psn, Qpn};

const LEN: usize = 12;
const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

header_views! {
    "a base transport header", BthView, BthMut, LEN;
    /// The packet's opcode.
    opcode, set_opcode: Opcode {
        get |b| Opcode(b[0]);
        set |b, v| b[0] = v.0;
    }
    /// Solicited event: the receiver's completion should wake its consumer.
    solicited, set_solicited: bool {
        get |b| b[1] & SOLICITED != 0;
        set |b, v| b[1] = with_flag(b[1], SOLICITED, v);
    }
    /// Path migration state.
    mig_req, set_mig_req: bool {
        get |b| b[1] & MIG_REQ != 0;
        set |b, v| b[1] = with_flag(b[1], MIG_REQ, v);
    }
    /// Pad bytes after the payload, 0 to 3.
    pad, set_pad: u8 {
        get |b| (b[1] >> 4) & 3;
        set |b, v| b[1] = with_bits(b[1], 0x30, v << 4);
    }
    /// Transport header version, 4 bits; 0 is the only one defined.
    version, set_version: u8 {
        get |b| b[1] & 0xf;
        set |b, v| b[1] = with_bits(b[1], 0xf, v);
    }
    /// Partition key.
    pkey, set_pkey: u16 {
        get |b| be16(b, 2);
        set |b, v| put(b, 2, v.to_be_bytes());
    }
    /// Forward congestion notification.
    fecn, set_fecn: bool {
        get |b| b[4] & FECN != 0;
        set |b, v| b[4] = with_flag(b[4], FECN, v);
    }
    /// Backward congestion notification.
    becn, set_becn: bool {
        get |b| b[4] & BECN != 0;
        set |b, v| b[4] = with_flag(b[4], BECN, v);
    }
    /// The six reserved bits beside FECN and BECN; the ICRC does not cover them.
    reserved6, set_reserved6: u8 {
        get |b| b[4] & 0x3f;
        set |b, v| b[4] = with_bits(b[4], 0x3f, v);
    }
    /// Destination queue pair.
    dest_qpn, set_dest_qpn: Qpn {
        get |b| Qpn::new(be24(b, 5));
        set |b, v| put_be24(b, 5, v.get());
    }
    /// The responder is asked for an acknowledgement.
    ack_req, set_ack_req: bool {
        get |b| b[8] & ACK_REQ != 0;
        set |b, v| b[8] = with_flag(b[8], ACK_REQ, v);
    }
    /// The seven reserved bits beside the acknowledge request.
    reserved7, set_reserved7: u8 {
        get |b| b[8] & 0x7f;
        set |b, v| b[8] = with_bits(b[8], 0x7f, v);
    }
    /// Packet sequence number.
    psn, set_psn: Psn {
        // Read from the word that ends with it: one load.
        get |b| Psn::new(u32::from_be_bytes([b[8], b[9], b[10], b[11]]));
        set |b, v| put_be24(b, 9, v.get());
    }
}

/// Base transport header, the first of every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bth {
    /// The packet's opcode.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion should wake its consumer.
    pub solicited: bool,
    /// Path migration state.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Transport header version, 4 bits; 0 is the only one defined.
    pub version: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Reserved, 6 bits, not covered by the ICRC.
    pub reserved6: u8,
    /// Destination queue pair.
    pub dest_qpn: Qpn,
    /// The responder is asked for an acknowledgement.
    pub ack_req: bool,
    /// Reserved, 7 bits.
    pub reserved7: u8,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = LEN;

    /// The default partition key of every port.
    pub const DEFAULT_PKEY: u16 = 0xffff;

    /// A header for the default partition with everything else zero.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            version: 0,
            pkey: Self::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            reserved6: 0,
            dest_qpn,
            ack_req: false,
            reserved7: 0,
            psn,
        }
    }

    /// Reads a header.
    #[inline]
    pub const fn parse(bytes: &[u8; LEN]) -> Self {
        let v = BthView::of(bytes);
        Self {
            opcode: v.opcode(),
            solicited: v.solicited(),
            mig_req: v.mig_req(),
            pad: v.pad(),
            version: v.version(),
            pkey: v.pkey(),
            fecn: v.fecn(),
            becn: v.becn(),
            reserved6: v.reserved6(),
            dest_qpn: v.dest_qpn(),
            ack_req: v.ack_req(),
            reserved7: v.reserved7(),
            psn: v.psn(),
        }
    }

    /// Writes the header; fields are truncated to their widths.
    #[inline]
    pub const fn emit(&self, out: &mut [u8; LEN]) {
        let mut v = BthMut::of(out);
        v.set_opcode(self.opcode);
        v.set_solicited(self.solicited);
        v.set_mig_req(self.mig_req);
        v.set_pad(self.pad);
        v.set_version(self.version);
        v.set_pkey(self.pkey);
        v.set_fecn(self.fecn);
        v.set_becn(self.becn);
        v.set_reserved6(self.reserved6);
        v.set_dest_qpn(self.dest_qpn);
        v.set_ack_req(self.ack_req);
        v.set_reserved7(self.reserved7);
        v.set_psn(self.psn);
    }
}
