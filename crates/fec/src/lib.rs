//! LoWAR: forward error correction below a connection, transparent to its transport.
//!
//! A [`FecShim`] sits between a QP's transport and its port (see [`bowline_nic::Shim`]). On the way
//! out it adds repair packets after each block of a message. On the way in it restores lost packets
//! before the transport sees a gap. What it cannot restore it passes on as a gap, and go-back-N
//! takes over. Data packets are not changed, so a peer without the shim works as before.
//!
//! [`Fec::install`] adds a shim below every QP that a NIC creates. Here two NICs are connected in
//! memory, by a wire that loses one packet; the transport never notices:
//!
//! ```
//! use std::net::IpAddr;
//!
//! use bowline_fec::{Fec, FecConfig};
//! use bowline_nic::{
//!     Access, Buffer, Connect, FrameMeta, IpId, Nic, NicConfig, QpInit, QpType, Region, Remote,
//!     SendOp, SendWr, Sge, Time, TxBatch, TxCaps,
//! };
//!
//! /// Moves what both NICs want to send, until that is nothing; loses packet `lost` of the first.
//! fn exchange(nics: &mut [Nic; 2], addrs: [IpAddr; 2], now: Time, lost: Option<usize>) {
//!     let (mut batch, mut sent, mut moved) = (TxBatch::new(TxCaps::SINGLE, 64), 0, true);
//!     while moved {
//!         moved = false;
//!         for from in [0, 1] {
//!             batch.clear();
//!             nics[from].poll_transmit(now, &mut batch);
//!             for burst in batch.bursts() {
//!                 for packet in batch.packets(burst) {
//!                     moved = true;
//!                     sent += usize::from(from == 0);
//!                     if from == 0 && lost == Some(sent) {
//!                         continue;
//!                     }
//!                     let (src, dst, tos) = (addrs[from], burst.dst, burst.tos);
//!                     let ip_id = IpId::Known(0);
//!                     let meta = FrameMeta { src, dst, src_port: 4791, tos, ttl: 64, ip_id };
//!                     nics[1 - from].handle_frame(now, &meta, batch.bytes(packet));
//!                 }
//!             }
//!         }
//!     }
//! }
//!
//! let fec = Fec::new(FecConfig::new("32,1".parse().unwrap()));
//! let addrs = ["10.0.0.1", "10.0.0.2"].map(|addr| addr.parse::<IpAddr>().unwrap());
//! let mut nics = [0, 1].map(|i| Nic::new(NicConfig::new(addrs[i], [i as u8; 32])).unwrap());
//! let [(qpn, buffer, key), (peer_qpn, peer_buffer, peer_key)] = nics.each_mut().map(|nic| {
//!     fec.install(nic);
//!     let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(16).unwrap());
//!     let qpn = nic.create_qp(&QpInit::new(QpType::Rc, pd, cq)).unwrap();
//!     let (buffer, access) = (Buffer::new(1 << 16), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
//!     let key = nic.register(pd, Region::owned(buffer.clone()), 0, access).unwrap();
//!     (qpn, buffer, key)
//! });
//! let mut now = Time::from_micros(1);
//! nics[0].connect(now, qpn, &Connect::new(addrs[1], peer_qpn)).unwrap();
//! nics[1].connect(now, peer_qpn, &Connect::new(addrs[0], qpn)).unwrap();
//! // The shims greet each other, at their timers.
//! while fec.counters().peers_found < 2 {
//!     now = nics.iter().filter_map(Nic::poll_timeout).min().expect("a greeting is due");
//!     nics.iter_mut().for_each(|nic| nic.handle_timeout(now));
//!     exchange(&mut nics, addrs, now, None);
//! }
//!
//! buffer.fill(0, 1 << 16, 7);
//! let (sges, target) = ([Sge::new(key, 0, 1 << 16)], Remote { addr: 0, rkey: peer_key.0 });
//! nics[0].post_send(now, qpn, &SendWr::new(1, SendOp::Write(target), &sges)).unwrap();
//! exchange(&mut nics, addrs, now, Some(20));
//!
//! assert_eq!(peer_buffer.to_vec(0, 1 << 16), vec![7; 1 << 16]);
//! assert_eq!(fec.counters().recovered, 1);
//! assert_eq!(nics[0].counters().retransmitted_packets, 0);
//! ```
//!
//! `docs/fec.md` has the wire format, the block model and how two ends find each other. The crate
//! does no IO: time is an argument, memory comes from one bounded [`Pool`] per device, nothing is
//! allocated per packet once that is filled, and no bytes from the network make it panic.

#![forbid(unsafe_code)]

mod control;
mod counters;
mod decode;
mod device;
mod encode;
mod negotiate;
mod params;
mod pool;
mod reorder;
mod shim;
mod symbol;

pub use control::{AutoConfig, Controller, Decision};
pub use counters::{FecCounters, FecSnapshot};
pub use device::Fec;
pub use params::{FecConfig, FecMode, MAX_BLOCK, MAX_LANES, Params, ParamsError};
pub use pool::Pool;
pub use shim::FecShim;

#[cfg(test)]
mod tests;
