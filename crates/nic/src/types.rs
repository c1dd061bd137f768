//! The data types of the verbs API: what applications pass to a NIC and get back.

use core::fmt;
use core::net::IpAddr;

use bitflags::bitflags;
use bowline_wire::{Psn, Qpn};

use crate::memory::WindowBinding;
use crate::time::Time;

pub use crate::transport::{LossRecord, Operations, QpType, TransportDescriptor, XpOptions};

/// A protection domain of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PdId(pub(crate) u32);

impl PdId {
    /// An identifier with this number, for devices without an engine to assign one.
    pub const fn from_raw(number: u32) -> PdId {
        PdId(number)
    }
}

/// A completion queue of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CqId(pub(crate) u32);

impl CqId {
    /// An identifier with this number, for devices without an engine to assign one.
    pub const fn from_raw(number: u32) -> CqId {
        CqId(number)
    }
}

/// A shared receive queue of one NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SrqId(pub(crate) u32);

impl SrqId {
    /// An identifier with this number, for devices without an engine to assign one.
    pub const fn from_raw(number: u32) -> SrqId {
        SrqId(number)
    }
}

/// A domain of extended reliable connections: a number that identifies it on its device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct XrcdId(pub u32);

/// Properties of a shared receive queue for extended reliable connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcSrq {
    /// Its domain: QPs of the same domain receive messages for it.
    pub domain: XrcdId,
    /// The number by which peers address it, 24 bits and not 0.
    pub number: u32,
    /// Where its receives complete, whichever QP received the message.
    pub cq: CqId,
}

/// The key of a memory region: the same value serves locally (lkey) and remotely (rkey).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MrKey(pub u32);

impl fmt::Display for MrKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

bitflags! {
    /// What may be done to a memory region, or through a QP by its peer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct Access: u32 {
        /// This host's receives, READ and atomic results may write it.
        const LOCAL_WRITE = 1;
        /// Peers may write it.
        const REMOTE_WRITE = 2;
        /// Peers may read it.
        const REMOTE_READ = 4;
        /// Peers may do atomics on it.
        const REMOTE_ATOMIC = 8;
        /// A peer's SEND with invalidate may revoke the region's key.
        const REMOTE_INVALIDATE = 16;
        /// Memory windows may be bound to it.
        const BIND_WINDOW = 32;
    }
}

/// State of a QP, as the standard names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QpState {
    /// Newly created, or reset: nothing may be posted.
    Reset,
    /// Receives may be posted; nothing is transferred.
    Init,
    /// Ready to receive.
    Rtr,
    /// Ready to send as well.
    Rts,
    /// Send queue drained: requests that were started finish, no others start.
    Sqd,
    /// Send queue error (UC and UD): receiving continues.
    Sqe,
    /// Everything outstanding is flushed with an error.
    Err,
}

/// Path MTU: the most payload a packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// All of them, smallest first.
    pub const ALL: [Mtu; 5] = [Mtu::B256, Mtu::B512, Mtu::B1024, Mtu::B2048, Mtu::B4096];

    /// In bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The MTU of exactly `bytes`.
    pub fn from_bytes(bytes: u32) -> Option<Mtu> {
        Mtu::ALL.into_iter().find(|m| m.bytes() == bytes)
    }

    /// The largest whose packets, headers included, fit an IP MTU.
    pub fn for_ip_mtu(ip_mtu: u32) -> Option<Mtu> {
        // IPv6 and UDP headers, BTH, the longest extension headers of a data packet (XPETH, RETH
        // and ImmDt) and the ICRC.
        const OVERHEAD: u32 = 40 + 8 + 12 + 36 + 4;
        Mtu::ALL.into_iter().rev().find(|m| m.bytes() + OVERHEAD <= ip_mtu)
    }
}

/// Where a peer is, for a connected QP or for one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressVector {
    /// Address of the peer's port (in verbs: the destination GID).
    pub dst: IpAddr,
    /// DSCP in the upper six bits; the ECN bits belong to the rate controller.
    pub traffic_class: u8,
}

impl AddressVector {
    /// An address with the default traffic class.
    pub fn new(dst: IpAddr) -> Self {
        AddressVector { dst, traffic_class: 0 }
    }
}

/// A piece of local memory in a gather or scatter list. Verbs lay it out the same way.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address within the region, counted from its iova.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// The region's key.
    pub lkey: u32,
}

impl Sge {
    /// `len` bytes at `addr` of region `key`.
    pub fn new(key: MrKey, addr: u64, len: u32) -> Sge {
        Sge { addr, len, lkey: key.0 }
    }
}

/// The remote end of a one-sided operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address within the peer's region.
    pub addr: u64,
    /// Its key.
    pub rkey: u32,
}

/// The immediates of a sequence of packets: a fixed part, the packet's number, and a fragment of
/// a word that several packets carry between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmSeries {
    /// The bits common to all.
    pub base: u32,
    /// Number of the first packet.
    pub first: u32,
    /// The word of which each packet carries a fragment, in its lowest bits.
    pub word: u32,
    /// Bits of a fragment, which is also the shift of the number: a divisor of 32, or 0 for none.
    pub fragment_bits: u8,
}

impl ImmSeries {
    /// The immediate of the packet `k` after the first.
    #[inline]
    pub fn imm(&self, k: u32) -> u32 {
        let number = self.first.wrapping_add(k);
        self.base | number << self.fragment_bits | self.fragment(number)
    }

    #[inline]
    fn fragment(&self, number: u32) -> u32 {
        match u32::from(self.fragment_bits) {
            0 => 0,
            bits => self.word >> (number % (32 / bits) * bits) & ((1 << bits) - 1),
        }
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// A message into the peer's next receive.
    Send,
    /// A SEND with 32 bits of immediate data for the receiver's completion.
    SendImm(u32),
    /// A SEND that also revokes this key of the receiver.
    SendInvalidate(u32),
    /// Write the peer's memory.
    Write(Remote),
    /// Write, then consume a receive and complete it with 32 bits of immediate data.
    WriteImm(Remote, u32),
    /// Write, each packet as a message of its own with its own immediate, so that packets that
    /// arrive count even if others are lost. UC only.
    WritePackets(Remote, ImmSeries),
    /// Read the peer's memory.
    Read(Remote),
    /// If the peer's word equals `compare`, replace it by `swap`; returns what it was.
    CompareSwap {
        /// The word.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to the peer's word; returns what it was.
    FetchAdd {
        /// The word.
        remote: Remote,
        /// What to add, wrapping.
        add: u64,
    },
    /// Give the peer a key to a part of a region ([`Nic::alloc_window`](crate::Nic::alloc_window)).
    /// Sends nothing; takes no payload. RC, UC and XP.
    BindWindow(WindowBinding),
    /// Revoke a window's key: its use is refused from then on. Sends nothing; takes no payload.
    LocalInvalidate(u32),
}

impl SendOp {
    /// Whether it is carried out locally, and sends nothing.
    #[inline]
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, SendOp::BindWindow(_) | SendOp::LocalInvalidate(_))
    }
}

bitflags! {
    /// How a send work request behaves.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Raise a completion (failures always do).
        const SIGNALED = 1;
        /// Wait for all earlier READs and atomics first.
        const FENCE = 2;
        /// Raise the receiver's solicited-only notification.
        const SOLICITED = 4;
    }
}

/// Where the bytes of a send come from, and where those of a READ or an atomic go.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Copied into the work queue at post: needs no registration, reusable at once.
    Inline(&'a [u8]),
}

/// Destination of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDest {
    /// The peer's address.
    pub av: AddressVector,
    /// The peer's QP.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The data, or where to put it.
    pub payload: Payload<'a>,
    /// Flags.
    pub flags: SendFlags,
    /// The destination; UD only.
    pub ud: Option<UdDest>,
    /// When it ends, however much has been sent or read by then; XP only.
    pub deadline: Time,
    /// How many blocks of one MTU share a packet, a power of two; XP only. 0 and 1 turn this off.
    pub stride: u16,
    /// Number of the peer's shared receive queue that it addresses; XRC only.
    pub srqn: u32,
}

impl<'a> SendWr<'a> {
    /// A signaled request over registered memory.
    pub fn new(wr_id: u64, op: SendOp, sges: &'a [Sge]) -> Self {
        let payload = Payload::Sges(sges);
        let flags = SendFlags::SIGNALED;
        SendWr { wr_id, op, payload, flags, ud: None, deadline: Time::NEVER, stride: 0, srqn: 0 }
    }

    /// Bytes of the message.
    pub(crate) fn len(&self) -> u64 {
        match self.payload {
            Payload::Sges(sges) => sges.iter().map(|s| u64::from(s.len)).sum(),
            Payload::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes.
    pub sges: &'a [Sge],
    /// When it ends, however much has arrived by then; XP only.
    pub deadline: Time,
}

impl<'a> RecvWr<'a> {
    /// A receive without a deadline.
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> Self {
        RecvWr { wr_id, sges, deadline: Time::NEVER }
    }
}

/// The outcome of a work request. The standard's list, with the numbers of the verbs API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// It succeeded.
    Success = 0,
    /// The message is longer than the receive, or than the port allows.
    LocLenErr = 1,
    /// A local inconsistency of the QP.
    LocQpOpErr = 2,
    /// A local key, range or right is not valid.
    LocProtErr = 4,
    /// Flushed: the QP went to the error state first.
    WrFlushErr = 5,
    /// A memory window failed to bind.
    MwBindErr = 6,
    /// The peer sent something unexpected.
    BadRespErr = 7,
    /// Local access error while receiving.
    LocAccessErr = 8,
    /// The peer found the request invalid.
    RemInvReqErr = 9,
    /// The peer rejected the key, range or right.
    RemAccessErr = 10,
    /// The peer failed to carry the request out.
    RemOpErr = 11,
    /// No response within timeout times retries.
    RetryExcErr = 12,
    /// The peer had no receive posted for too long.
    RnrRetryExcErr = 13,
    /// The peer aborted the operation.
    RemAbortErr = 16,
    /// A fatal error of the device.
    FatalErr = 19,
    /// A response came too late.
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
}

impl WcStatus {
    /// The status with this number in `enum ibv_wc_status`, if it is one that Bowline knows.
    pub fn from_verbs(number: u32) -> Option<WcStatus> {
        use WcStatus::*;
        let all = [
            Success,
            LocLenErr,
            LocQpOpErr,
            LocProtErr,
            WrFlushErr,
            MwBindErr,
            BadRespErr,
            LocAccessErr,
            RemInvReqErr,
            RemAccessErr,
            RemOpErr,
            RetryExcErr,
            RnrRetryExcErr,
            RemAbortErr,
            FatalErr,
            RespTimeoutErr,
            GeneralErr,
        ];
        all.into_iter().find(|status| *status as u32 == number)
    }
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "work request flushed",
            WcStatus::MwBindErr => "memory window bind error",
            WcStatus::BadRespErr => "bad response",
            WcStatus::LocAccessErr => "local access error",
            WcStatus::RemInvReqErr => "remote invalid request",
            WcStatus::RemAccessErr => "remote access error",
            WcStatus::RemOpErr => "remote operation error",
            WcStatus::RetryExcErr => "transport retry counter exceeded",
            WcStatus::RnrRetryExcErr => "RNR retry counter exceeded",
            WcStatus::RemAbortErr => "remote aborted",
            WcStatus::FatalErr => "fatal error",
            WcStatus::RespTimeoutErr => "response timeout",
            WcStatus::GeneralErr => "general error",
        })
    }
}

/// The kind of request that a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A send, with or without immediate or invalidate.
    Send,
    /// A write.
    Write,
    /// A READ.
    Read,
    /// A compare-and-swap.
    CompareSwap,
    /// A fetch-and-add.
    FetchAdd,
    /// A memory window that was bound.
    BindWindow,
    /// A key that was revoked.
    LocalInvalidate,
    /// A receive that a SEND consumed.
    Recv,
    /// A receive that a WRITE with immediate consumed.
    RecvWriteImm,
}

/// What ended a work request that succeeded at least in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum EndMark {
    /// Everything was sent, or has arrived.
    #[default]
    Whole,
    /// The last packet has arrived, and others are missing.
    Last,
    /// The deadline has passed.
    Deadline,
    /// Later messages have begun.
    Preempted,
}

/// A completed work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's `wr_id`.
    pub wr_id: u64,
    /// Its outcome. Only `wr_id`, `qpn` and this are meaningful after a failure.
    pub status: WcStatus,
    /// Kind of request.
    pub opcode: WcOpcode,
    /// Bytes received, read or written. If it ended other than by [`EndMark::Whole`]: those that
    /// arrived, or were sent.
    pub byte_len: u32,
    /// Immediate data, for a receive.
    pub imm: Option<u32>,
    /// The key that the peer's SEND revoked.
    pub invalidated: Option<u32>,
    /// Our QP.
    pub qpn: Qpn,
    /// The peer's QP, for a datagram.
    pub src_qpn: Qpn,
    /// The first 40 bytes of the receive buffer hold a GRH (UD).
    pub grh: bool,
    /// The sender asked to raise a solicited-only notification.
    pub solicited: bool,
    /// What ended it. Only XP has other values than [`EndMark::Whole`].
    pub end: EndMark,
}

impl Default for Completion {
    /// A placeholder to poll into.
    fn default() -> Self {
        Completion {
            wr_id: 0,
            status: WcStatus::GeneralErr,
            opcode: WcOpcode::Send,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn: Qpn::new(0),
            src_qpn: Qpn::new(0),
            grh: false,
            solicited: false,
            end: EndMark::Whole,
        }
    }
}

/// An asynchronous event: something other than a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// An armed completion queue got the completion it was armed for. It is disarmed now.
    CqNotify(CqId),
    /// A completion queue overflowed: completions were lost, and its QPs are in the error state.
    CqOverflow(CqId),
    /// The first packet reached a QP that is ready to receive but not yet to send.
    CommEstablished(Qpn),
    /// A QP's send queue has drained in SQD.
    SqDrained(Qpn),
    /// A QP failed for a local reason.
    QpFatal(Qpn),
    /// A peer's request was invalid.
    QpRequestError(Qpn),
    /// A peer's request broke the access rules.
    QpAccessError(Qpn),
    /// A QP on a shared receive queue is in error and will take no more from it.
    LastWqeReached(Qpn),
    /// A shared receive queue fell below its limit.
    SrqLimit(SrqId),
    /// A guarded QP has exhausted its retries without a response: it is suspended, with everything
    /// that it has outstanding.
    PathFailed(Qpn),
    /// The peer of a watched QP ([`crate::Nic::watch_peer`]) does not answer. The QP is in the
    /// error state.
    PeerLost(Qpn),
}

/// Attributes for [`crate::Nic::modify_qp`]: those that are `Some` are set, like a mask in C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// State to move to.
    pub state: Option<QpState>,
    /// State the caller believes the QP is in.
    pub current_state: Option<QpState>,
    /// Partition key index: 0 is the only one.
    pub pkey_index: Option<u16>,
    /// Physical port: 1 is the only one.
    pub port: Option<u8>,
    /// What the peer may do through this QP.
    pub access: Option<Access>,
    /// UD key.
    pub qkey: Option<u32>,
    /// Where the peer is.
    pub av: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Option<Mtu>,
    /// The peer's QP.
    pub dest_qpn: Option<Qpn>,
    /// First PSN expected.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: Option<u8>,
    /// READs and atomics that we may have outstanding there.
    pub max_rd_atomic: Option<u8>,
    /// RNR NAK timer code that we ask the peer to wait, 0..=31.
    pub min_rnr_timer: Option<u8>,
    /// Retransmission timeout: 4.096 µs times 2 to this power, 0..=31; 0 waits for ever.
    pub timeout: Option<u8>,
    /// Retries after timeouts and sequence errors, 0..=7.
    pub retry_count: Option<u8>,
    /// Retries after RNR NAKs, 0..=7; 7 means unlimited.
    pub rnr_retry: Option<u8>,
    /// Raise [`Event::SqDrained`] when SQD has drained.
    pub sqd_notify: Option<bool>,
}

/// Parameters of a new QP.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// Take receives from this queue instead of one of its own.
    pub srq: Option<SrqId>,
    /// Send work requests that can be outstanding.
    pub max_send_wr: u32,
    /// Receive work requests that can be outstanding.
    pub max_recv_wr: u32,
    /// Gather entries of a send.
    pub max_send_sge: u8,
    /// Scatter entries of a receive.
    pub max_recv_sge: u8,
    /// Most inline bytes of a send.
    pub max_inline: u32,
    /// Every send is signaled.
    pub signal_all: bool,
    /// Domain of the shared receive queues that the peer may address; XRC only. Without one it may
    /// address none.
    pub xrcd: Option<XrcdId>,
}

impl QpInit {
    /// A QP with modest queues.
    pub fn new(qp_type: QpType, pd: PdId, cq: CqId) -> QpInit {
        QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 64,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
            xrcd: None,
        }
    }
}
