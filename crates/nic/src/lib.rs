//! A RoCEv2 RDMA NIC without IO.
//!
//! [`Nic`] holds protection domains, memory regions, queue pairs and completion queues. It takes
//! received frames and timeouts, and produces frames to send. It reads no clock, opens no socket,
//! starts no thread and allocates nothing per packet; time and randomness are arguments. The same
//! code runs over UDP sockets and on the simulator's virtual time.
//!
//! # Driving a NIC
//!
//! The owner of a NIC delivers frames, sends what it produces, and calls it when its timer is due.
//! Here two NICs are connected in memory, and one writes into the other's buffer:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use bowline_nic::{
//!     Access, Buffer, Completion, Connect, FrameMeta, IpId, Nic, NicConfig, QpInit, QpType,
//!     Region, Remote, SendOp, SendWr, Sge, Time, TxBatch, TxCaps, WcStatus,
//! };
//!
//! let addrs = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse::<IpAddr>().unwrap());
//! let mut now = Time::from_micros(1);
//!
//! // Two NICs, each with a queue pair and a registered page.
//! let mut nics = [0, 1].map(|i| Nic::new(NicConfig::new(addrs[i], [i as u8; 32])).unwrap());
//! let [(cq, qpn, buffer, key), (_, peer_qpn, peer_buffer, peer_key)] = nics.each_mut().map(|nic| {
//!     let pd = nic.alloc_pd().unwrap();
//!     let cq = nic.create_cq(16).unwrap();
//!     let qpn = nic.create_qp(&QpInit::new(QpType::Rc, pd, cq)).unwrap();
//!     let (buffer, access) = (Buffer::new(4096), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
//!     let key = nic.register(pd, Region::owned(buffer.clone()), 0, access).unwrap();
//!     (cq, qpn, buffer, key)
//! });
//! nics[0].connect(now, qpn, &Connect::new(addrs[1], peer_qpn)).unwrap();
//! nics[1].connect(now, peer_qpn, &Connect::new(addrs[0], qpn)).unwrap();
//!
//! // A verb.
//! buffer.write_at(0, b"hello");
//! let sges = [Sge::new(key, 0, 5)];
//! let target = Remote { addr: 0, rkey: peer_key.0 };
//! nics[0].post_send(now, qpn, &SendWr::new(7, SendOp::Write(target), &sges)).unwrap();
//!
//! // The loop: outputs of each become inputs of the other, until the completion is there.
//! let mut done = [Completion::default(); 16];
//! let mut batch = TxBatch::new(TxCaps::SINGLE, 64);
//! while nics[0].poll_cq(cq, &mut done).unwrap() == 0 {
//!     let mut moved = false;
//!     for from in [0, 1] {
//!         batch.clear();
//!         nics[from].poll_transmit(now, &mut batch);
//!         for burst in batch.bursts() {
//!             for (id, packet) in batch.packets(burst).iter().enumerate() {
//!                 let (src, dst, tos) = (addrs[from], burst.dst, burst.tos);
//!                 let ip_id = IpId::Known(id as u16);
//!                 let meta = FrameMeta { src, dst, src_port: 4791, tos, ttl: 64, ip_id };
//!                 nics[1 - from].handle_frame(now, &meta, batch.bytes(packet));
//!                 moved = true;
//!             }
//!         }
//!     }
//!     if !moved {
//!         // Nothing in flight: time passes until the next timer.
//!         now = nics.iter().filter_map(Nic::poll_timeout).min().expect("a request is pending");
//!         nics.iter_mut().for_each(|nic| nic.handle_timeout(now));
//!     }
//! }
//! assert_eq!((done[0].wr_id, done[0].status), (7, WcStatus::Success));
//! assert_eq!(peer_buffer.to_vec(0, 5), b"hello");
//! ```

mod admit;
mod config;
mod connect;
mod counters;
mod direct;
mod error;
mod events;
mod frame;
mod landing;
pub mod memory;
mod nic;
mod qp;
mod queue;
pub mod rate;
mod rnic;
mod sched;
mod seal;
mod shim;
mod time;
mod train;
mod transport;
mod tx;
mod types;

pub use config::NicConfig;
pub use connect::Connect;
pub use counters::{Counters, QpCounters};
pub use direct::{Door, PeerRegion, Reach};
pub use error::{ControlError, ModifyError, PostError};
pub use frame::{ECN_CE, ECN_ECT0, ECN_MASK, FrameMeta, IpId};
pub use landing::Landing;
pub use memory::{Buffer, Region, Segment, SharedKey, WindowBinding, WindowScope};
pub use nic::{Fence, Nic, QpInfo, ShimMaker};
pub use qp::body::{Carry, QpBody, Resume};
pub use queue::{CqLevel, SharedSrq};
pub use rate::{
    Acked, BbrParams, ControlledConnection, ControllerFactory, DcqcnParams, EqdsParams, Feedback,
    FixedRate, Lost, ParseRateControlError, RateControl, RateController, Sent, SwiftParams,
};
pub use rnic::{Compute, Rnic};
pub use seal::{OpenPackets, PacketSeal, SealPackets, Unopened};
pub use shim::{OutPacket, PassThrough, Run, Shim, ShimOut, ShimPeer};
pub use time::Time;
pub use tx::{
    Burst, CleanPaths, Flow, HeaderBuf, MAX_HEADER, MAX_LATE, PeerEngine, TxBatch, TxCaps,
    TxPacket, pad_of,
};
pub use types::*;
