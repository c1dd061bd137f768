//! Properties of each transport, stated once, so that no other code has to test a QP's type.

use bitflags::bitflags;
use bowline_wire::{OpcodeSet, Service};

use super::Transport;
use crate::types::SendOp;

bitflags! {
    /// Operations that a transport may have.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Operations: u16 {
        /// [`SendOp::Send`].
        const SEND = 1;
        /// [`SendOp::SendImm`].
        const SEND_IMM = 1 << 1;
        /// [`SendOp::SendInvalidate`].
        const SEND_INVALIDATE = 1 << 2;
        /// [`SendOp::Write`].
        const WRITE = 1 << 3;
        /// [`SendOp::WriteImm`].
        const WRITE_IMM = 1 << 4;
        /// [`SendOp::WritePackets`].
        const WRITE_PACKETS = 1 << 5;
        /// [`SendOp::Read`].
        const READ = 1 << 6;
        /// [`SendOp::CompareSwap`].
        const COMPARE_SWAP = 1 << 7;
        /// [`SendOp::FetchAdd`].
        const FETCH_ADD = 1 << 8;
        /// [`SendOp::BindWindow`] and [`SendOp::LocalInvalidate`].
        const WINDOWS = 1 << 9;
    }
}

impl SendOp {
    /// The flag of this operation.
    #[inline]
    pub fn operation(&self) -> Operations {
        match self {
            SendOp::Send => Operations::SEND,
            SendOp::SendImm(_) => Operations::SEND_IMM,
            SendOp::SendInvalidate(_) => Operations::SEND_INVALIDATE,
            SendOp::Write(_) => Operations::WRITE,
            SendOp::WriteImm(..) => Operations::WRITE_IMM,
            SendOp::WritePackets(..) => Operations::WRITE_PACKETS,
            SendOp::Read(_) => Operations::READ,
            SendOp::CompareSwap { .. } => Operations::COMPARE_SWAP,
            SendOp::FetchAdd { .. } => Operations::FETCH_ADD,
            SendOp::BindWindow(_) | SendOp::LocalInvalidate(_) => Operations::WINDOWS,
        }
    }
}

/// Properties of a transport: what it can do, what it needs, and what can be combined with it.
///
/// [`QpType::descriptor`](crate::QpType::descriptor) returns that of a QP type. Code outside the
/// transports uses this, never the type itself.
#[derive(Debug)]
pub struct TransportDescriptor {
    /// The standard's short name.
    pub name: &'static str,
    /// Service that its packets belong to.
    pub service: Service,
    /// Opcodes of the packets that it sends and takes.
    pub opcodes: OpcodeSet,
    /// Operations that may be posted.
    pub operations: Operations,
    /// Packets of the longest message.
    pub max_packets: u32,
    /// A QP has one peer, set on the transition to ready to receive. Without one every request
    /// names its destination, and a Q_Key takes the place of access rights.
    pub connected: bool,
    /// Requests are acknowledged and retransmitted: the attributes about timeouts, retries and
    /// outstanding READs apply, and a failed request fails the whole QP. Otherwise it stops only
    /// the send queue.
    pub reliable: bool,
    /// Shims may be added below it.
    pub shimmable: bool,
    /// Its connections can move to another NIC.
    pub movable: bool,
    /// Single-packet WRITEs with immediate may go to a [`Landing`](crate::Landing).
    pub landings: bool,
    /// Requests have deadlines and may complete in part ([`EndMark`](crate::EndMark)). Receives are
    /// numbered, so they cannot come from a shared queue.
    pub deadlines: bool,
    /// Messages name the shared receive queue that they are for, instead of using the QP's.
    pub addressed: bool,
    /// Requests carry additional fields: a deadline, or a shared receive queue.
    pub(crate) annotated: bool,
    /// Builds the transport of a new QP.
    pub(crate) build: fn() -> Box<dyn Transport>,
}

impl TransportDescriptor {
    /// Bytes of the longest message at a path MTU.
    #[inline]
    pub fn max_message(&self, mtu_bytes: u32) -> u64 {
        u64::from(self.max_packets) * u64::from(mtu_bytes)
    }
}

/// Most packets of a message, whose PSNs must not fill half of the PSN space: 2^31 bytes, except at
/// the smallest MTU.
pub(super) const MAX_PSNS: u32 = (1 << 23) - 1;

#[cfg(test)]
mod tests {
    use bowline_wire::Opcode;

    use crate::types::QpType;

    #[test]
    fn opcodes_belong_to_one_transport_and_to_its_service() {
        for code in 0..=255 {
            let opcode = Opcode(code);
            let takers = QpType::ALL.map(QpType::descriptor);
            let mut takers = takers.iter().filter(|t| t.opcodes.contains(opcode));
            if let Some(taker) = takers.next() {
                assert_eq!(opcode.service(), Some(taker.service), "{opcode}");
            }
            assert!(takers.next().is_none(), "{opcode} is taken twice");
        }
    }

    #[test]
    fn who_needs_more_of_a_request_says_so() {
        for transport in QpType::ALL.map(QpType::descriptor) {
            let more = transport.deadlines || transport.addressed;
            assert_eq!(transport.annotated, more, "{}", transport.name);
        }
    }

    #[test]
    fn set_up_codes_name_one_type_each() {
        for qp_type in QpType::ALL {
            assert_eq!(QpType::from_code(qp_type.code()), Some(qp_type));
        }
        assert_eq!(QpType::from_code(0), None);
    }
}
