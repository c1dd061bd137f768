//! Packets to a multicast group.
//!
//! A port's own socket is bound to its address, and receives nothing that is sent to another. A
//! group therefore has its own socket, bound to the group's address. Every process that has joined
//! receives every packet.

use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

use super::rx_ring::RxRing;
use super::{UdpConfig, drops, meta_of, options};
use crate::port::{FrameSink, PortError, PortFds};
use crate::sys::interface_of;
use drops::Verdict;

/// Datagrams received at a time.
const SLOTS: usize = 8;

/// Receives the packets of a group on one interface.
pub struct GroupSocket {
    socket: UdpSocket,
    group: IpAddr,
    rx: RxRing,
}

impl GroupSocket {
    /// Joins a group on the interface that has `addr`.
    pub fn join(addr: IpAddr, udp_port: u16, group: IpAddr) -> Result<GroupSocket, PortError> {
        let interface = interface_of(addr)
            .map_err(PortError::os("listing network interfaces"))?
            .ok_or(PortError::NotLocal(addr))?;
        let config = UdpConfig { udp_port, gro: false, ..UdpConfig::new(addr) };
        let socket = options::bind_group(&config, group, interface.index)
            .map_err(PortError::os("joining a multicast group"))?;
        Ok(GroupSocket { socket, group, rx: RxRing::new(SLOTS) })
    }

    /// Passes received frames to `sink`, a bounded number of them; returns how many.
    pub fn recv(&mut self, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let received = match self.rx.recv(self.socket.as_raw_fd()) {
            Ok(received) => received,
            Err(error) => match drops::verdict(&error) {
                Verdict::Broken => {
                    return Err(PortError::Os { what: "receiving from a group", source: error });
                }
                _ => 0,
            },
        };
        for slot in 0..received {
            let message = self.rx.message(slot);
            if let Some(meta) = meta_of(&message, self.group) {
                sink.frames(&meta, message.data, message.segment_len);
            }
        }
        Ok(received)
    }

    /// The descriptors to sleep on.
    pub fn fds(&self) -> PortFds {
        PortFds { read: [Some(self.socket.as_raw_fd()), None, None, None], write: None }
    }
}
