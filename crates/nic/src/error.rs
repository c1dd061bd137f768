//! Errors that say whose fault it is and what to do about it. One type per kind of call.

use bowline_wire::Qpn;

use crate::types::{QpState, QpType};

/// Why an object could not be created, changed or destroyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// A limit of [`crate::NicConfig`] is reached.
    #[error(
        "the device's limit of {limit} {what} is reached: destroy some, or raise it in the device's configuration"
    )]
    Exhausted {
        /// Which objects.
        what: &'static str,
        /// How many there may be.
        limit: u64,
    },
    /// A requested size exceeds the device's maximum.
    #[error("{what} of {asked} is above the device's maximum of {max}")]
    TooLarge {
        /// Which size.
        what: &'static str,
        /// What was asked for.
        asked: u64,
        /// What there may be.
        max: u64,
    },
    /// The handle does not name an object (any more).
    #[error("no such {what}: it was destroyed, or belongs to another device")]
    NotFound {
        /// Which kind of object.
        what: &'static str,
    },
    /// Something still uses the object.
    #[error("{what} is in use: destroy what refers to it first")]
    Busy {
        /// Which kind of object.
        what: &'static str,
    },
    /// An argument makes no sense.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The system refused: a verbs device's kernel or library.
    #[error("cannot {what}: {}", std::io::Error::from_raw_os_error(*errno))]
    Refused {
        /// What was attempted; completes the sentence "cannot …".
        what: &'static str,
        /// The error number.
        errno: i32,
    },
}

/// Why [`crate::Nic::modify_qp`] refused. The QP is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModifyError {
    /// The handle names no QP.
    #[error("no QP {0}")]
    NoSuchQp(Qpn),
    /// The standard has no such transition.
    #[error("a {qp_type:?} QP cannot go from {from:?} to {to:?}")]
    BadTransition {
        /// The QP's type.
        qp_type: QpType,
        /// Its state.
        from: QpState,
        /// What was asked for.
        to: QpState,
    },
    /// The transition needs this attribute.
    #[error("going from {from:?} to {to:?} needs attribute {attr}")]
    Missing {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// The attribute's name.
        attr: &'static str,
    },
    /// The transition does not allow this attribute.
    #[error("attribute {attr} cannot be set when going from {from:?} to {to:?}")]
    NotAllowed {
        /// State before.
        from: QpState,
        /// State asked for.
        to: QpState,
        /// The attribute's name.
        attr: &'static str,
    },
    /// The value is out of range.
    #[error("attribute {attr} is out of range: {why}")]
    OutOfRange {
        /// The attribute's name.
        attr: &'static str,
        /// What is allowed.
        why: &'static str,
    },
    /// The system refused: a verbs device's kernel or library.
    #[error("cannot change the queue pair: {}", std::io::Error::from_raw_os_error(*errno))]
    Refused {
        /// The error number.
        errno: i32,
    },
    /// `current_state` does not match.
    #[error("the QP is in {actual:?}, not in {claimed:?}")]
    StateMismatch {
        /// The true one.
        actual: QpState,
        /// The one given.
        claimed: QpState,
    },
}

/// Why a work request was rejected. A rejected request has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The handle names no QP or shared receive queue.
    #[error("no such queue: it was destroyed, or belongs to another device")]
    NotFound,
    /// The queue holds as many requests as it was made for.
    #[error("the queue is full: poll completions before posting more")]
    Full,
    /// The QP's state does not allow it.
    #[error("cannot post in state {0:?}: move the QP on with modify_qp first")]
    WrongState(QpState),
    /// The QP's queues are on another NIC for now.
    #[error("the QP's queues are on another NIC: post to the QP that has them now")]
    Away,
    /// The QP takes its receives from a shared receive queue.
    #[error("the QP uses a shared receive queue: post there")]
    UsesSrq,
    /// The QP's type has no such operation.
    #[error("a {0:?} QP does not support this operation")]
    UnsupportedOp(QpType),
    /// More gather or scatter entries than the queue was made for.
    #[error("{given} gather/scatter entries, but the queue was made for {max}")]
    TooManySges {
        /// How many were given.
        given: usize,
        /// How many fit.
        max: usize,
    },
    /// More inline bytes than the queue was made for, or inline where it cannot be.
    #[error("{given} inline bytes, but the queue was made for {max}")]
    InlineTooLong {
        /// How many were given.
        given: usize,
        /// How many fit.
        max: usize,
    },
    /// READ and atomics need memory to return to.
    #[error("READ and atomic requests cannot be inline")]
    InlineNotAllowed,
    /// Longer than a message may be: 2^31 bytes, or the path MTU for a datagram.
    #[error("a message of {given} bytes is longer than the {max} allowed")]
    TooLong {
        /// Length given.
        given: u64,
        /// Longest allowed.
        max: u64,
    },
    /// An atomic's buffer is not 8 bytes, or its remote address not aligned to 8.
    #[error("an atomic needs 8 bytes of local memory and a remote address aligned to 8")]
    BadAtomic,
    /// The QP was connected with `max_rd_atomic` 0.
    #[error("READ and atomics are off: connect the QP with max_rd_atomic of at least 1")]
    NoReads,
    /// A datagram without destination, or a destination on a connected QP.
    #[error("a UD request needs a destination, and only a UD request has one")]
    BadDestination,
    /// The device is not a Bowline engine, and its driver refused.
    #[error(
        "the NIC's driver refused the request with error number {errno}: check the QP's state and sizes"
    )]
    Refused {
        /// The system's error number.
        errno: i32,
    },
    /// A stride that is not a power of two, or leaves under four bytes of each block in a packet.
    #[error("stride {given}: it must be a power of two, at most {max} at this path MTU")]
    BadStride {
        /// What was given.
        given: u16,
        /// Largest allowed.
        max: u32,
    },
}
