//! RDMA in user space: RoCEv2 queue pairs without RDMA hardware, kernel modules or root.
//!
//! A [`Device`] is a NIC in this process, on one address of this machine. From it come the objects
//! of the verbs API: a [`Pd`] with memory regions ([`Mr`]) and queue pairs ([`Qp`]), which report
//! to completion queues ([`Cq`]). Two programs connect their queue pairs over a [`Channel`].
//! Handles can be cloned, sent to other threads and dropped in any order.
//!
//! ```
//! use bowline::{Access, Connector, Device, Listener, QpType};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), bowline::Error> {
//! let listener = Listener::bind("127.0.0.1:0")?;
//! let server_address = listener.local_addr()?;
//!
//! // One program offers 64 bytes …
//! let server = std::thread::spawn(move || -> Result<Vec<u8>, bowline::Error> {
//!     let device = Device::open("127.9.0.1")?;
//!     let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//!     let mr = pd.register(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//!     let qp = pd.qp(QpType::Rc, &cq).build()?;
//!     let mut channel = listener.accept()?;
//!     channel.connect(&qp, &[mr.remote()])?;
//!     channel.barrier()?; // until the client has written
//!     Ok(mr.to_vec(0, 5))
//! });
//!
//! // … and another writes them, without the first one's help.
//! let device = Device::open("127.9.0.2")?;
//! let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
//! let mr = pd.register(64, Access::LOCAL_WRITE)?;
//! let qp = pd.qp(QpType::Rc, &cq).build()?;
//! let mut channel = Connector::new().connect(server_address)?;
//! let peer = channel.connect(&qp, &[])?;
//! mr.write_at(0, b"hello");
//! qp.write(1, &mr, 0..5, peer.regions[0])?;
//! cq.next(Duration::from_secs(5))?;
//! channel.barrier()?;
//! assert_eq!(server.join().unwrap()?, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! [`Error::fault`] tells whose fault an error is: the program's, the peer's, this machine's or the
//! network's. A work request that was accepted and failed later has a completion with the reason.
//!
//! # What this crate may not do
//!
//! It contains no protocol and no socket of the data path: those are in the crates `bowline-nic`
//! and `bowline-io`. It forbids `unsafe`, so memory is registered as [`Buffer`]s, which own it or
//! hold its owner.

#![forbid(unsafe_code)]

#[cfg(feature = "tokio")]
mod async_cq;
mod builder;
mod collective;
mod cq;
mod device;
mod direct;
mod endpoint;
mod error;
mod failover;
mod mr;
pub mod multicast;
mod mw;
mod pd;
mod qp;
mod reliable;
mod sdr_qp;
pub mod setup;
mod srq;

#[cfg(feature = "tokio")]
pub use async_cq::AsyncCq;
pub use bowline_collective::timeout::Rule as TimeoutRule;
pub use bowline_collective::{
    Algorithm, Bounds, Cause, DataType, Deadline, Failure as CollectiveFailure, Hosts,
    InvalidRequest, Missing, Operation, Rank, Recovery, ReduceOp, Report, Request, SdrScheme,
    UnknownAlgorithm, replay_allreduce,
};
pub use bowline_device::{
    Account as FailoverAccount, LaneCount, Mode as FailoverMode, ParseLaneCountError,
    ParseNameError as ParseVerbsNameError, Rail, VerbsCaps, VerbsError, VerbsName,
};
pub use bowline_fec::{FecMode, FecSnapshot, Params as FecParams, ParamsError as FecParamsError};
pub use bowline_io::{
    FaultAction, FaultRequest, LinkProfile, Loss, ParseFaultError, ParseLinkError, ParseViaError,
    PortCounters, Prob, Via, XdpMode, XdpOptions,
};
pub use bowline_nic::{
    Access, Acked, AddressVector, BbrParams, Buffer, Completion, ControlError,
    ControlledConnection, ControllerFactory, Counters, CqId, DcqcnParams, EndMark, EqdsParams,
    Event, FixedRate, LossRecord, Lost, ModifyError, MrKey, Mtu, ParseRateControlError, Payload,
    PostError, QpAttr, QpCounters, QpState, QpType, RateControl, RateController, RecvWr, Remote,
    SendFlags, SendOp, SendWr, Sent, Sge, SrqId, SwiftParams, Time, UdDest, WcOpcode, WcStatus,
    WindowBinding, WindowScope, XpOptions,
};
pub use bowline_peers as peers;
pub use bowline_sdr::{
    Decision, ErasureCoding, Failure, ImmLayout, PathStats, RecvHandle, RecvId, ReliableConfig,
    ReliableEvent, ReliableInfo, ReliableStats, SdrConfig, SdrError, SdrInfo, SelectiveRepeat,
    SendHandle, Shape, WriteId, WriteOptions, scheme,
};
pub use bowline_seal::{Role as SealRole, SealConfig, SessionSecret, Suite as SealSuite};
pub use bowline_wire::{Psn, Qpn};
pub use builder::DeviceBuilder;
pub use collective::{
    CommOptions, CommTransport, Communicator, Tensor, UnknownTransport, Work, rendezvous,
};
pub use cq::Cq;
pub use device::Device;
pub use endpoint::{Endpoint, RemoteMr};
pub use error::{CompletionError, CompletionExt, Error, Fault};
pub use failover::Failover;
pub use mr::Mr;
pub use mw::Mw;
pub use pd::Pd;
pub use qp::{BatchError, ConnectOptions, DEFAULT_QKEY, Qp, QpBuilder};
pub use reliable::ReliableQp;
pub use sdr_qp::SdrQp;
pub use setup::{Channel, Connector, Listener, Peer, SetupError};
pub use srq::Srq;
