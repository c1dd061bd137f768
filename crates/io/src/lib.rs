//! Everything of Bowline that touches the kernel: sockets, clocks, threads and files.
//!
//! * [`Port`] sends and receives batches of RoCEv2 packets. [`UdpPort`] uses a UDP socket with
//!   segmentation offload both ways, alone on an address or sharing it with other processes;
//!   [`ShmPort`] adds shared memory between processes of a host; [`XdpPort`] bypasses the kernel's
//!   network stack, for real NICs; [`Via`] chooses among them. [`MemoryPort`] works in memory.
//!   [`Impair`], [`PcapTap`] and [`FaultPort`] are middleware: each wraps any port and is itself a
//!   port.
//! * [`SharedMemory`] is memory that processes of a host map together.
//! * [`Lane`] is one port, one engine shard and the thread that keeps both going when the
//!   application does not.
//!
//! The crate knows no protocol beyond what steering and checksums need: which bytes of a packet are
//! the destination QPN, and which the ICRC. `unsafe` is limited to `sys` and the UDP port's message
//! rings.

#![deny(unsafe_code)]

pub mod control;
mod fault;
mod impair;
mod lane;
mod memory_port;
mod pcap;
mod port;
mod registry;
mod shared_memory;
mod shm;
mod sys;
#[cfg(test)]
mod testing;
mod udp;
mod via;
mod word;
mod xdp;

pub use bowline_link::{LinkProfile, Loss, ParseLinkError, Prob};
pub use fault::{
    Direction, FaultAction, FaultPort, FaultRequest, Faults, LinkState, ParseFaultError,
};
pub use impair::{Impair, SharedLink};
pub use lane::{
    ChannelClosed, CqNotify, EventChannel, EventSink, Gauges, Lane, LaneConfig, LaneError, Task,
    TaskId, Tasks,
};
pub use memory_port::{MemoryHub, MemoryPort};
pub use pcap::{PcapFile, PcapTap};
pub use port::{
    Forwarder, FrameSink, Onward, Port, PortCaps, PortCounters, PortError, PortFds, Round,
};
pub use registry::{RegistryError, Services, runtime_dir};
pub use shared_memory::{SharedMemory, Ticket};
pub use shm::ShmPort;
#[doc(hidden)]
pub use shm::play_hostile_ring;
pub use sys::{
    LinkNews, LocalAddress, local_address, local_addresses, run_promptly, spawn_background,
};
pub use udp::{GroupSocket, Multicasts, Sharing, Translator, UdpConfig, UdpPort};
pub use via::{ParseViaError, Via};
pub use xdp::{XdpConfig, XdpMode, XdpOptions, XdpPort};
