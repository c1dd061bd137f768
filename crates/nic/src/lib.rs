//! A RoCEv2 RDMA NIC without IO.
//!
//! [`Nic`] holds protection domains, memory regions, queue pairs and completion queues, takes
//! received frames and timeouts, and gives frames to send. It reads no clock, opens no socket,
//! starts no thread and allocates nothing per packet; time and randomness are arguments. The same
//! code runs over UDP sockets and on the simulator's virtual time.

mod admit;
mod config;
mod connect;
mod counters;
mod error;
mod events;
mod frame;
mod landing;
pub mod memory;
mod nic;
mod qp;
mod queue;
pub mod rate;
mod sched;
mod shim;
mod time;
mod train;
mod transport;
mod tx;
mod types;

pub use config::NicConfig;
pub use connect::Connect;
pub use counters::{Counters, QpCounters};
pub use error::{ControlError, ModifyError, PostError};
pub use frame::{ECN_CE, ECN_ECT0, ECN_MASK, FrameMeta, IpId};
pub use landing::Landing;
pub use memory::{Buffer, Region, Segment, SharedKey, WindowBinding};
pub use nic::{Fence, Nic, QpInfo, ShimMaker};
pub use qp::body::{Carry, QpBody, Resume};
pub use queue::{CqLevel, SharedSrq};
pub use rate::{
    Acked, BbrParams, ControlledConnection, ControllerFactory, DcqcnParams, EqdsParams, Feedback,
    FixedRate, Lost, ParseRateControlError, RateControl, RateController, Sent, SwiftParams,
};
pub use shim::{OutPacket, PassThrough, Run, Shim, ShimOut, ShimPeer};
pub use time::Time;
pub use tx::{Burst, Flow, HeaderBuf, MAX_HEADER, MAX_LATE, TxBatch, TxCaps, TxPacket, pad_of};
pub use types::*;
