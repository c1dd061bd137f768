//! Opcodes and their properties.

mod set;
mod table;

use core::fmt;

pub use self::set::OpcodeSet;

use crate::{
    Aeth, AtomicAckEth, AtomicEth, Deth, Ieth, ImmDt, Rdeth, Reth, SealedCounter, XpCc, XpEth,
    XpTimeLeft, XrcEth,
};

/// The first byte of a packet. Any value is possible; [`Opcode::info`] tells known ones.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Opcode(pub u8);

impl Opcode {
    /// The meaning of the opcode, or `None` if it is undefined.
    #[inline]
    pub const fn info(self) -> Option<&'static OpcodeInfo> {
        table::TABLE[self.0 as usize].as_ref()
    }

    /// The name, such as `RC_WRITE_ONLY_IMM`, of a known opcode.
    #[inline]
    pub const fn name(self) -> Option<&'static str> {
        match self.info() {
            Some(info) => Some(info.name),
            None => None,
        }
    }

    /// The service that the top three bits select, even of an unknown opcode.
    #[inline]
    pub const fn service(self) -> Option<Service> {
        match self.0 >> 5 {
            0 => Some(Service::Rc),
            1 => Some(Service::Uc),
            2 => Some(Service::Rd),
            3 => Some(Service::Ud),
            4 => Some(Service::Cnp),
            5 => Some(Service::Xrc),
            6 => Some(Service::Xp),
            // Manufacturer-defined, of which one is Bowline's.
            _ if self.0 == Self::SEALED.0 => Some(Service::Sealed),
            _ => None,
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "{:#04x}", self.0),
        }
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Properties of an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpcodeInfo {
    /// Transport service.
    pub service: Service,
    /// Operation.
    pub kind: OpKind,
    /// Position of the packet in its message.
    pub position: Position,
    /// The packet carries immediate data.
    pub has_imm: bool,
    /// The packet carries a key to invalidate.
    pub has_invalidate: bool,
    /// Bytes of all extended headers between BTH and payload.
    pub ext_len: u8,
    /// Name, such as `RC_WRITE_ONLY_IMM`.
    pub name: &'static str,
    /// Where each extended header lies.
    pub ext: ExtLayout,
}

impl OpcodeInfo {
    const fn new(
        service: Service,
        kind: OpKind,
        position: Position,
        name: &'static str,
        ext: ExtLayout,
    ) -> Self {
        Self {
            service,
            kind,
            position,
            has_imm: ext.imm.is_some(),
            has_invalidate: ext.ieth.is_some(),
            ext_len: ext.len,
            name,
            ext,
        }
    }
}

/// Offsets of the extended headers of one opcode, from the end of the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtLayout {
    /// Offset of the [`Rdeth`].
    pub rdeth: Option<u8>,
    /// Offset of the [`Deth`].
    pub deth: Option<u8>,
    /// Offset of the [`XrcEth`].
    pub xrceth: Option<u8>,
    /// Offset of the [`Reth`].
    pub reth: Option<u8>,
    /// Offset of the [`AtomicEth`].
    pub atomic: Option<u8>,
    /// Offset of the [`Aeth`].
    pub aeth: Option<u8>,
    /// Offset of the [`AtomicAckEth`].
    pub atomic_ack: Option<u8>,
    /// Offset of the [`ImmDt`].
    pub imm: Option<u8>,
    /// Offset of the [`Ieth`].
    pub ieth: Option<u8>,
    /// Offset of the [`XpEth`].
    pub xpeth: Option<u8>,
    /// Offset of the [`XpTimeLeft`].
    pub xp_time_left: Option<u8>,
    /// Offset of the [`XpCc`].
    pub xpcc: Option<u8>,
    /// Offset of the [`SealedCounter`].
    pub sealed: Option<u8>,
    len: u8,
}

/// One builder step per header, each appending it to those before.
macro_rules! layout_steps {
    ($($field:ident: $header:ident;)*) => {
        $(const fn $field(mut self) -> Self {
            self.$field = Some(self.len);
            self.len += $header::LEN as u8;
            self
        })*
    };
}

impl ExtLayout {
    const EMPTY: Self = Self {
        rdeth: None,
        deth: None,
        xrceth: None,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        imm: None,
        ieth: None,
        xpeth: None,
        xp_time_left: None,
        xpcc: None,
        sealed: None,
        len: 0,
    };

    layout_steps! {
        rdeth: Rdeth;
        deth: Deth;
        xrceth: XrcEth;
        reth: Reth;
        atomic: AtomicEth;
        aeth: Aeth;
        atomic_ack: AtomicAckEth;
        imm: ImmDt;
        ieth: Ieth;
        xpeth: XpEth;
        xp_time_left: XpTimeLeft;
        xpcc: XpCc;
        sealed: SealedCounter;
    }
}

/// Transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Reliable connected.
    Rc,
    /// Unreliable connected.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification: it belongs to the port, not to a queue pair's service.
    Cnp,
    /// Extended reliable connected.
    Xrc,
    /// OptiNIC's express path: best effort with deadlines.
    Xp,
    /// A packet of any service, encrypted as a whole.
    Sealed,
}

impl Service {
    /// The prefix of opcode names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rc => "RC",
            Self::Uc => "UC",
            Self::Rd => "RD",
            Self::Ud => "UD",
            Self::Cnp => "CNP",
            Self::Xrc => "XRC",
            Self::Xp => "XP",
            Self::Sealed => "SEALED",
        }
    }
}

/// Operation a packet is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OpKind {
    /// SEND request.
    Send,
    /// RDMA WRITE request.
    Write,
    /// RDMA READ request.
    ReadRequest,
    /// RDMA READ response.
    ReadResponse,
    /// Acknowledgement or refusal.
    Ack,
    /// Response to an atomic operation.
    AtomicAck,
    /// Atomic compare-and-swap request.
    CompareSwap,
    /// Atomic fetch-and-add request.
    FetchAdd,
    /// Congestion notification.
    Cnp,
    /// LoWAR repair.
    Repair,
    /// Asks for [`OpKind::Feedback`].
    Probe,
    /// Feedback for a rate controller.
    Feedback,
    /// Another packet, encrypted.
    Sealed,
}

impl OpKind {
    /// Whether the packet travels from responder to requester.
    #[inline]
    pub const fn is_response(self) -> bool {
        matches!(self, Self::ReadResponse | Self::Ack | Self::AtomicAck)
    }
}

/// Position of a packet in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// More follow.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several packets.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// Whether it starts a message.
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether it ends a message.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}
