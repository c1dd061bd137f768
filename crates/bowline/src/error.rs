//! One error type for everything an application does, which tells whose fault each error is.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use bowline_collective::{Cause, Failure as CollectiveFailure, GroupError, InvalidRequest};
use bowline_device::DeviceError;
use bowline_io::{ChannelClosed, LaneError, PortError};
use bowline_nic::{Completion, ControlError, ModifyError, PostError, WcStatus};
use bowline_sdr::{Failure, SdrError};

use crate::BatchError;
use crate::multicast::{ConnectGroupError, RemoteError};
use crate::setup::SetupError;

/// Who has to change something before the operation can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Fault {
    /// The program: an invalid argument or order of calls.
    Caller,
    /// The other end: it refused, broke the protocol, or is gone.
    Peer,
    /// This machine: a limit, a permission, an address in use.
    Resource,
    /// The network between the two: no response within the time allowed.
    Path,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object could not be created, changed or destroyed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A queue pair refused a change of state or attributes.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request was rejected.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A work request was accepted and then failed.
    #[error(transparent)]
    Completion(#[from] CompletionError),
    /// A reliable queue pair refused something.
    #[error(transparent)]
    Sdr(#[from] SdrError),
    /// A reliable message failed.
    #[error(transparent)]
    Message(#[from] Failure),
    /// A reliable message to a group failed because of one member.
    #[error("{addr}: {failure}")]
    Member {
        /// The member's address.
        addr: IpAddr,
        /// Why the message failed, with the member's number.
        failure: Failure,
    },
    /// A rank of a communicator has failed: the error names it.
    #[error(transparent)]
    Collective(#[from] CollectiveFailure),
    /// A communicator could not be created, or rejected an operation.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// An invalid collective operation.
    #[error(transparent)]
    Request(#[from] InvalidRequest),
    /// A multicast group could not be created.
    #[error(transparent)]
    Multicast(#[from] ConnectGroupError),
    /// A controller and a managed switch do not agree.
    #[error(transparent)]
    Switch(#[from] RemoteError),
    /// Setting up a connection failed.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The device's address or socket cannot be used.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The device could not start, or has ended.
    #[error(transparent)]
    Lane(#[from] LaneError),
    /// Only some work requests of a batch were accepted.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The system refused something.
    #[error("cannot {what}: {source}{}", hint(source))]
    System {
        /// What was attempted; completes the sentence "cannot …".
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A range that is not inside its memory region.
    #[error("bytes {start}..{end} are outside a region of {len} bytes")]
    OutOfRange {
        /// First byte asked for.
        start: usize,
        /// One past the last byte asked for.
        end: usize,
        /// Length of the region.
        len: usize,
    },
    /// Objects of two devices, or of two protection domains, were mixed.
    #[error("{what} belongs to another {of}: make both from the same one")]
    Foreign {
        /// The object.
        what: &'static str,
        /// What it should have in common.
        of: &'static str,
    },
    /// A device could not be opened as requested, or not be given its backup.
    #[error(transparent)]
    Device(DeviceError),
    /// An invalid argument.
    #[error("invalid {what}: {why}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// Why, or what would be valid.
        why: String,
    },
    /// Nothing happened in time.
    #[error("no completion within {0:?}: is the peer running, and is something posted?")]
    Timeout(Duration),
}

impl Error {
    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Error {
        Error::System { what: what.into(), source }
    }

    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self {
            Error::Control(ControlError::Exhausted { .. }) => Fault::Resource,
            Error::Control(_) | Error::Modify(_) => Fault::Caller,
            Error::Post(e) | Error::Batch(BatchError { source: e, .. }) => fault_of_post(e),
            Error::Port(PortError::Unspecified(_)) => Fault::Caller,
            Error::Port(_) | Error::Lane(_) => Fault::Resource,
            Error::Completion(e) => e.fault(),
            Error::Collective(CollectiveFailure { cause, .. }) => match cause {
                Cause::Unreachable => Fault::Path,
                Cause::Mismatch => Fault::Caller,
                _ => Fault::Peer,
            },
            Error::Group(GroupError::Unlike { .. }) => Fault::Peer,
            Error::Group(GroupError::Control(ControlError::Exhausted { .. })) => Fault::Resource,
            Error::Group(_) | Error::Request(_) => Fault::Caller,
            Error::Multicast(ConnectGroupError::NoIds) => Fault::Resource,
            Error::Switch(RemoteError::Version { .. } | RemoteError::Malformed(_)) => Fault::Peer,
            Error::Switch(_) => Fault::Caller,
            Error::Multicast(_) => Fault::Caller,
            Error::Setup(e) => e.fault(),
            Error::Sdr(SdrError::Full { .. } | SdrError::Quarantined) => Fault::Resource,
            Error::Sdr(
                SdrError::Mismatch { .. } | SdrError::Info(_) | SdrError::Version { .. },
            ) => Fault::Peer,
            Error::Sdr(_) => Fault::Caller,
            Error::Message(Failure::TimedOut | Failure::MemberTimedOut(_))
            | Error::Member { failure: Failure::MemberTimedOut(_), .. } => Fault::Path,
            Error::Message(Failure::Local) => Fault::Caller,
            Error::Message(_) | Error::Member { .. } => Fault::Peer,
            Error::System { .. } => Fault::Resource,
            Error::Device(DeviceError::Store(_) | DeviceError::NeedsSoftNic { .. }) => {
                Fault::Caller
            }
            Error::Device(_) => Fault::Resource,
            Error::OutOfRange { .. } | Error::Foreign { .. } | Error::Invalid { .. } => {
                Fault::Caller
            }
            Error::Timeout(_) => Fault::Path,
        }
    }
}

fn fault_of_post(e: &PostError) -> Fault {
    match e {
        PostError::Full => Fault::Resource,
        _ => Fault::Caller,
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        match error {
            DeviceError::Control(error) => error.into(),
            DeviceError::Port(error) => error.into(),
            DeviceError::Lane(error) => error.into(),
            DeviceError::Invalid { what, why } => Error::Invalid { what, why },
            DeviceError::Foreign { what } => Error::Foreign { what, of: "device" },
            DeviceError::System { what, source } => Error::system(what, source),
            error => Error::Device(error),
        }
    }
}

impl From<ChannelClosed> for Error {
    fn from(closed: ChannelClosed) -> Error {
        Error::Lane(LaneError::Dead { reason: closed.to_string() })
    }
}

/// Advice for common system errors.
fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AddrNotAvailable => {
            " (use an address of this machine: `ip addr` lists them, and all of 127.0.0.0/8 works)"
        }
        io::ErrorKind::AddrInUse => {
            " (another program has this address and port: choose another address, or end it)"
        }
        io::ErrorKind::PermissionDenied => {
            " (the port or address needs a privilege: choose a port above 1023)"
        }
        io::ErrorKind::ConnectionRefused => " (nothing listens there: start the server first)",
        _ => "",
    }
}

/// A work request that completed with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("work request {wr_id} on QP {qpn} failed: {status}{}", advice(*.status))]
pub struct CompletionError {
    /// The request's identifier.
    pub wr_id: u64,
    /// The QP it was posted to.
    pub qpn: bowline_wire::Qpn,
    /// Its outcome.
    pub status: WcStatus,
}

impl CompletionError {
    /// Who has to change something.
    pub fn fault(&self) -> Fault {
        match self.status {
            WcStatus::RetryExcErr | WcStatus::RespTimeoutErr => Fault::Path,
            WcStatus::RemInvReqErr
            | WcStatus::RemAccessErr
            | WcStatus::RemOpErr
            | WcStatus::RemAbortErr
            | WcStatus::RnrRetryExcErr
            | WcStatus::BadRespErr => Fault::Peer,
            WcStatus::FatalErr | WcStatus::GeneralErr => Fault::Resource,
            _ => Fault::Caller,
        }
    }
}

fn advice(status: WcStatus) -> &'static str {
    match status {
        WcStatus::LocLenErr => ": the message is longer than the receive posted for it",
        WcStatus::LocProtErr => ": is the memory region alive, long enough, and of the QP's Pd?",
        WcStatus::LocAccessErr => ": register the memory with Access::LOCAL_WRITE",
        WcStatus::WrFlushErr => ": an earlier request failed, and its completion says why",
        WcStatus::RemAccessErr => ": check the rkey, the range, and the peer's access rights",
        WcStatus::RemInvReqErr => ": the peer's QP does not take this operation",
        WcStatus::RetryExcErr => ": the peer did not answer; is it running and reachable?",
        WcStatus::RnrRetryExcErr => ": the peer posts receives too late or too few",
        _ => "",
    }
}

/// Turns a completion into a `Result`.
pub trait CompletionExt {
    /// The completion if it succeeded, otherwise the reason.
    fn ok(self) -> Result<Completion, CompletionError>;
}

impl CompletionExt for Completion {
    fn ok(self) -> Result<Completion, CompletionError> {
        if self.status == WcStatus::Success {
            return Ok(self);
        }
        Err(CompletionError { wr_id: self.wr_id, qpn: self.qpn, status: self.status })
    }
}
