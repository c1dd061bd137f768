//! The list of all opcodes. One row each: constant, code, service, kind, position and the extended
//! headers in wire order. The names also appear in dissections.

use super::{ExtLayout, OpKind, Opcode, OpcodeInfo, Position, Service};

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $service:ident, $kind:ident, $position:ident,
       [$($header:ident)*];)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($code);)*
        }

        /// By opcode, so that looking one up is one load.
        pub(super) static TABLE: [Option<OpcodeInfo>; 256] = {
            let mut table = [const { None }; 256];
            $(table[$code] = Some(OpcodeInfo::new(
                Service::$service,
                OpKind::$kind,
                Position::$position,
                stringify!($name),
                ExtLayout::EMPTY$(.$header())*,
            ));)*
            table
        };
    };
}

opcodes! {
    /// RC: First packet of a SEND.
    RC_SEND_FIRST = 0x00, Rc, Send, First, [];
    /// RC: Packet inside a SEND.
    RC_SEND_MIDDLE = 0x01, Rc, Send, Middle, [];
    /// RC: Last packet of a SEND.
    RC_SEND_LAST = 0x02, Rc, Send, Last, [];
    /// RC: Last packet of a SEND with immediate data.
    RC_SEND_LAST_IMM = 0x03, Rc, Send, Last, [imm];
    /// RC: SEND in one packet.
    RC_SEND_ONLY = 0x04, Rc, Send, Only, [];
    /// RC: SEND with immediate data in one packet.
    RC_SEND_ONLY_IMM = 0x05, Rc, Send, Only, [imm];
    /// RC: First packet of an RDMA WRITE.
    RC_WRITE_FIRST = 0x06, Rc, Write, First, [reth];
    /// RC: Packet inside an RDMA WRITE.
    RC_WRITE_MIDDLE = 0x07, Rc, Write, Middle, [];
    /// RC: Last packet of an RDMA WRITE.
    RC_WRITE_LAST = 0x08, Rc, Write, Last, [];
    /// RC: Last packet of an RDMA WRITE with immediate data.
    RC_WRITE_LAST_IMM = 0x09, Rc, Write, Last, [imm];
    /// RC: RDMA WRITE in one packet.
    RC_WRITE_ONLY = 0x0a, Rc, Write, Only, [reth];
    /// RC: RDMA WRITE with immediate data in one packet.
    RC_WRITE_ONLY_IMM = 0x0b, Rc, Write, Only, [reth imm];
    /// RC: RDMA READ request.
    RC_READ_REQ = 0x0c, Rc, ReadRequest, Only, [reth];
    /// RC: First packet of an RDMA READ response.
    RC_READ_RESP_FIRST = 0x0d, Rc, ReadResponse, First, [aeth];
    /// RC: Packet inside an RDMA READ response.
    RC_READ_RESP_MID = 0x0e, Rc, ReadResponse, Middle, [];
    /// RC: Last packet of an RDMA READ response.
    RC_READ_RESP_LAST = 0x0f, Rc, ReadResponse, Last, [aeth];
    /// RC: RDMA READ response in one packet.
    RC_READ_RESP_ONLY = 0x10, Rc, ReadResponse, Only, [aeth];
    /// RC: Acknowledgement or refusal.
    RC_ACK = 0x11, Rc, Ack, Only, [aeth];
    /// RC: Response to an atomic operation.
    RC_ATOMIC_ACK = 0x12, Rc, AtomicAck, Only, [aeth atomic_ack];
    /// RC: Atomic compare-and-swap request.
    RC_CMP_SWAP = 0x13, Rc, CompareSwap, Only, [atomic];
    /// RC: Atomic fetch-and-add request.
    RC_FETCH_ADD = 0x14, Rc, FetchAdd, Only, [atomic];
    /// RC: Last packet of a SEND that invalidates a key.
    RC_SEND_LAST_INV = 0x16, Rc, Send, Last, [ieth];
    /// RC: SEND in one packet that invalidates a key.
    RC_SEND_ONLY_INV = 0x17, Rc, Send, Only, [ieth];
    /// RC: LoWAR repair and negotiation, under an opcode that the specification leaves unused. Its
    /// header is part of the payload ([`ShimPacket`](crate::ShimPacket)).
    RC_REPAIR = 0x1f, Rc, Repair, Only, [];
    /// UC: First packet of a SEND.
    UC_SEND_FIRST = 0x20, Uc, Send, First, [];
    /// UC: Packet inside a SEND.
    UC_SEND_MIDDLE = 0x21, Uc, Send, Middle, [];
    /// UC: Last packet of a SEND.
    UC_SEND_LAST = 0x22, Uc, Send, Last, [];
    /// UC: Last packet of a SEND with immediate data.
    UC_SEND_LAST_IMM = 0x23, Uc, Send, Last, [imm];
    /// UC: SEND in one packet.
    UC_SEND_ONLY = 0x24, Uc, Send, Only, [];
    /// UC: SEND with immediate data in one packet.
    UC_SEND_ONLY_IMM = 0x25, Uc, Send, Only, [imm];
    /// UC: First packet of an RDMA WRITE.
    UC_WRITE_FIRST = 0x26, Uc, Write, First, [reth];
    /// UC: Packet inside an RDMA WRITE.
    UC_WRITE_MIDDLE = 0x27, Uc, Write, Middle, [];
    /// UC: Last packet of an RDMA WRITE.
    UC_WRITE_LAST = 0x28, Uc, Write, Last, [];
    /// UC: Last packet of an RDMA WRITE with immediate data.
    UC_WRITE_LAST_IMM = 0x29, Uc, Write, Last, [imm];
    /// UC: RDMA WRITE in one packet.
    UC_WRITE_ONLY = 0x2a, Uc, Write, Only, [reth];
    /// UC: RDMA WRITE with immediate data in one packet.
    UC_WRITE_ONLY_IMM = 0x2b, Uc, Write, Only, [reth imm];
    /// RD: First packet of a SEND.
    RD_SEND_FIRST = 0x40, Rd, Send, First, [rdeth deth];
    /// RD: Packet inside a SEND.
    RD_SEND_MIDDLE = 0x41, Rd, Send, Middle, [rdeth deth];
    /// RD: Last packet of a SEND.
    RD_SEND_LAST = 0x42, Rd, Send, Last, [rdeth deth];
    /// RD: Last packet of a SEND with immediate data.
    RD_SEND_LAST_IMM = 0x43, Rd, Send, Last, [rdeth deth imm];
    /// RD: SEND in one packet.
    RD_SEND_ONLY = 0x44, Rd, Send, Only, [rdeth deth];
    /// RD: SEND with immediate data in one packet.
    RD_SEND_ONLY_IMM = 0x45, Rd, Send, Only, [rdeth deth imm];
    /// RD: First packet of an RDMA WRITE.
    RD_WRITE_FIRST = 0x46, Rd, Write, First, [rdeth deth reth];
    /// RD: Packet inside an RDMA WRITE.
    RD_WRITE_MIDDLE = 0x47, Rd, Write, Middle, [rdeth deth];
    /// RD: Last packet of an RDMA WRITE.
    RD_WRITE_LAST = 0x48, Rd, Write, Last, [rdeth deth];
    /// RD: Last packet of an RDMA WRITE with immediate data.
    RD_WRITE_LAST_IMM = 0x49, Rd, Write, Last, [rdeth deth imm];
    /// RD: RDMA WRITE in one packet.
    RD_WRITE_ONLY = 0x4a, Rd, Write, Only, [rdeth deth reth];
    /// RD: RDMA WRITE with immediate data in one packet.
    RD_WRITE_ONLY_IMM = 0x4b, Rd, Write, Only, [rdeth deth reth imm];
    /// RD: RDMA READ request.
    RD_READ_REQ = 0x4c, Rd, ReadRequest, Only, [rdeth deth reth];
    /// RD: First packet of an RDMA READ response.
    RD_READ_RESP_FIRST = 0x4d, Rd, ReadResponse, First, [rdeth aeth];
    /// RD: Packet inside an RDMA READ response.
    RD_READ_RESP_MID = 0x4e, Rd, ReadResponse, Middle, [rdeth];
    /// RD: Last packet of an RDMA READ response.
    RD_READ_RESP_LAST = 0x4f, Rd, ReadResponse, Last, [rdeth aeth];
    /// RD: RDMA READ response in one packet.
    RD_READ_RESP_ONLY = 0x50, Rd, ReadResponse, Only, [rdeth aeth];
    /// RD: Acknowledgement or refusal.
    RD_ACK = 0x51, Rd, Ack, Only, [rdeth aeth];
    /// RD: Response to an atomic operation.
    RD_ATOMIC_ACK = 0x52, Rd, AtomicAck, Only, [rdeth aeth atomic_ack];
    /// RD: Atomic compare-and-swap request.
    RD_CMP_SWAP = 0x53, Rd, CompareSwap, Only, [rdeth deth atomic];
    /// RD: Atomic fetch-and-add request.
    RD_FETCH_ADD = 0x54, Rd, FetchAdd, Only, [rdeth deth atomic];
    /// UD: SEND in one packet.
    UD_SEND_ONLY = 0x64, Ud, Send, Only, [deth];
    /// UD: SEND with immediate data in one packet.
    UD_SEND_ONLY_IMM = 0x65, Ud, Send, Only, [deth imm];
    /// Congestion notification packet.
    CNP = 0x81, Cnp, Cnp, Only, [];
    /// XRC: First packet of a SEND.
    XRC_SEND_FIRST = 0xa0, Xrc, Send, First, [xrceth];
    /// XRC: Packet inside a SEND.
    XRC_SEND_MIDDLE = 0xa1, Xrc, Send, Middle, [xrceth];
    /// XRC: Last packet of a SEND.
    XRC_SEND_LAST = 0xa2, Xrc, Send, Last, [xrceth];
    /// XRC: Last packet of a SEND with immediate data.
    XRC_SEND_LAST_IMM = 0xa3, Xrc, Send, Last, [xrceth imm];
    /// XRC: SEND in one packet.
    XRC_SEND_ONLY = 0xa4, Xrc, Send, Only, [xrceth];
    /// XRC: SEND with immediate data in one packet.
    XRC_SEND_ONLY_IMM = 0xa5, Xrc, Send, Only, [xrceth imm];
    /// XRC: First packet of an RDMA WRITE.
    XRC_WRITE_FIRST = 0xa6, Xrc, Write, First, [xrceth reth];
    /// XRC: Packet inside an RDMA WRITE.
    XRC_WRITE_MIDDLE = 0xa7, Xrc, Write, Middle, [xrceth];
    /// XRC: Last packet of an RDMA WRITE.
    XRC_WRITE_LAST = 0xa8, Xrc, Write, Last, [xrceth];
    /// XRC: Last packet of an RDMA WRITE with immediate data.
    XRC_WRITE_LAST_IMM = 0xa9, Xrc, Write, Last, [xrceth imm];
    /// XRC: RDMA WRITE in one packet.
    XRC_WRITE_ONLY = 0xaa, Xrc, Write, Only, [xrceth reth];
    /// XRC: RDMA WRITE with immediate data in one packet.
    XRC_WRITE_ONLY_IMM = 0xab, Xrc, Write, Only, [xrceth reth imm];
    /// XRC: RDMA READ request.
    XRC_READ_REQ = 0xac, Xrc, ReadRequest, Only, [xrceth reth];
    /// XRC: First packet of an RDMA READ response.
    XRC_READ_RESP_FIRST = 0xad, Xrc, ReadResponse, First, [aeth];
    /// XRC: Packet inside an RDMA READ response.
    XRC_READ_RESP_MID = 0xae, Xrc, ReadResponse, Middle, [];
    /// XRC: Last packet of an RDMA READ response.
    XRC_READ_RESP_LAST = 0xaf, Xrc, ReadResponse, Last, [aeth];
    /// XRC: RDMA READ response in one packet.
    XRC_READ_RESP_ONLY = 0xb0, Xrc, ReadResponse, Only, [aeth];
    /// XRC: Acknowledgement or refusal.
    XRC_ACK = 0xb1, Xrc, Ack, Only, [aeth];
    /// XRC: Response to an atomic operation.
    XRC_ATOMIC_ACK = 0xb2, Xrc, AtomicAck, Only, [aeth atomic_ack];
    /// XRC: Atomic compare-and-swap request.
    XRC_CMP_SWAP = 0xb3, Xrc, CompareSwap, Only, [xrceth atomic];
    /// XRC: Atomic fetch-and-add request.
    XRC_FETCH_ADD = 0xb4, Xrc, FetchAdd, Only, [xrceth atomic];
    /// XRC: Last packet of a SEND that invalidates a key.
    XRC_SEND_LAST_INV = 0xb6, Xrc, Send, Last, [xrceth ieth];
    /// XRC: SEND in one packet that invalidates a key.
    XRC_SEND_ONLY_INV = 0xb7, Xrc, Send, Only, [xrceth ieth];
    /// XP: Packet of a SEND, not its last.
    XP_SEND_MIDDLE = 0xc0, Xp, Send, Middle, [xpeth];
    /// XP: Last packet of a SEND.
    XP_SEND_LAST = 0xc1, Xp, Send, Last, [xpeth];
    /// XP: Packet of a SEND with immediate data, not its last.
    XP_SEND_MIDDLE_IMM = 0xc2, Xp, Send, Middle, [xpeth imm];
    /// XP: Last packet of a SEND with immediate data.
    XP_SEND_LAST_IMM = 0xc3, Xp, Send, Last, [xpeth imm];
    /// XP: Packet of an RDMA WRITE, not its last.
    XP_WRITE_MIDDLE = 0xc4, Xp, Write, Middle, [xpeth reth];
    /// XP: Last packet of an RDMA WRITE.
    XP_WRITE_LAST = 0xc5, Xp, Write, Last, [xpeth reth];
    /// XP: Packet of an RDMA WRITE with immediate data, not its last.
    XP_WRITE_MIDDLE_IMM = 0xc6, Xp, Write, Middle, [xpeth reth imm];
    /// XP: Last packet of an RDMA WRITE with immediate data.
    XP_WRITE_LAST_IMM = 0xc7, Xp, Write, Last, [xpeth reth imm];
    /// XP: RDMA READ request, with its remaining time.
    XP_READ_REQ = 0xc8, Xp, ReadRequest, Only, [xpeth reth xp_time_left];
    /// XP: Packet of an RDMA READ response, not its last.
    XP_READ_RESP_MID = 0xc9, Xp, ReadResponse, Middle, [xpeth];
    /// XP: Last packet of an RDMA READ response.
    XP_READ_RESP_LAST = 0xca, Xp, ReadResponse, Last, [xpeth];
    /// XP: A rate controller's probe.
    XP_PROBE = 0xd0, Xp, Probe, Only, [xpcc];
    /// XP: The answer to a probe.
    XP_FEEDBACK = 0xd1, Xp, Feedback, Only, [xpcc];
    /// Another packet, encrypted and authenticated: see [`SealedHeader`](crate::SealedHeader).
    SEALED = 0xe0, Sealed, Sealed, Only, [sealed];
}
