//! What carries a NIC's packets, as the user chooses.

use std::fmt;
use std::str::FromStr;

use crate::fault::FaultPort;
use crate::port::{Port, PortError};
use crate::shm::{Meeting, ShmPort};
use crate::udp::{UdpConfig, UdpPort};
use crate::xdp::{XdpConfig, XdpOptions, XdpPort};

/// What carries a NIC's packets; written as `udp`, `shm`, `auto` or `xdp`, the last optionally
/// followed by a colon and [`XdpOptions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Via {
    /// A UDP socket: anywhere, without privileges.
    #[default]
    Udp,
    /// Shared memory to processes of the same user on this host that use it too, UDP to all others.
    /// An error if shared memory is unavailable.
    Shm,
    /// As [`Via::Shm`] if possible, else as [`Via::Udp`].
    Auto,
    /// An AF_XDP socket: bypasses the kernel's network stack, on a NIC of this host, as root.
    Xdp(XdpOptions),
}

/// Text that is not a valid [`Via`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} does not say what carries packets: write udp, shm, auto, xdp, or xdp:mode=copy,queue=0 (modes: auto, copy, zerocopy)"
)]
pub struct ParseViaError(pub(crate) String);

impl Via {
    /// Opens the port of a NIC, controlled by [`Faults`](crate::Faults); also returns the prefix
    /// that every QPN of its engine must have. Settings that apply to sockets only are ignored
    /// without one: an AF_XDP port is alone on its address.
    pub fn open(&self, udp: &UdpConfig) -> Result<(Box<dyn Port>, u8), PortError> {
        match self {
            Via::Udp => {
                let port = UdpPort::open(udp)?;
                let prefix = port.qpn_prefix();
                Ok((Box::new(FaultPort::new(port)), prefix))
            }
            Via::Shm => {
                let port = ShmPort::new(UdpPort::open(udp)?, udp.detail)?;
                let prefix = port.qpn_prefix();
                Ok((Box::new(FaultPort::new(port)), prefix))
            }
            Via::Auto => open_auto(udp),
            Via::Xdp(options) => {
                let (addr, udp_port) = (udp.addr, udp.udp_port);
                let port = XdpPort::open(&XdpConfig { addr, udp_port, options: *options })?;
                Ok((Box::new(FaultPort::new(port)), 0))
            }
        }
    }
}

/// A port with rings, or without where there can be none.
fn open_auto(udp: &UdpConfig) -> Result<(Box<dyn Port>, u8), PortError> {
    let port = UdpPort::open(udp)?;
    let prefix = port.qpn_prefix();
    let port: Box<dyn Port> = match Meeting::open(&port) {
        Ok(meeting) => {
            let port = ShmPort::with(port, meeting, "auto", udp.detail);
            Box::new(FaultPort::new(port))
        }
        Err(error) => {
            (udp.detail)(&format!("{}: {error}; all packets go by UDP", udp.addr));
            Box::new(FaultPort::new(port))
        }
    };
    Ok((port, prefix))
}

impl FromStr for Via {
    type Err = ParseViaError;

    fn from_str(text: &str) -> Result<Via, ParseViaError> {
        match text.split_once(':') {
            None if text == "udp" => Ok(Via::Udp),
            None if text == "shm" => Ok(Via::Shm),
            None if text == "auto" => Ok(Via::Auto),
            None if text == "xdp" => Ok(Via::Xdp(XdpOptions::default())),
            Some(("xdp", options)) => options.parse().map(Via::Xdp),
            _ => Err(ParseViaError(text.to_owned())),
        }
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Via::Udp => f.write_str("udp"),
            Via::Shm => f.write_str("shm"),
            Via::Auto => f.write_str("auto"),
            Via::Xdp(options) => write!(f, "xdp:{options}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "udp",
            "shm",
            "auto",
            "xdp:mode=auto",
            "xdp:mode=copy,queue=0",
            "xdp:mode=zerocopy,queue=12",
        ] {
            assert_eq!(text.parse::<Via>().unwrap().to_string(), text);
        }
        assert_eq!("xdp".parse(), Ok(Via::Xdp(XdpOptions::default())));
    }

    #[test]
    fn what_means_nothing_says_what_would() {
        for text in
            ["", "tcp", "shm:", "xdp:", "xdp:copy", "xdp:mode=fast", "xdp:queue=-1", "udp:queue=1"]
        {
            let error = text.parse::<Via>().unwrap_err().to_string();
            assert!(error.contains("xdp:mode=copy,queue=0"), "{error}");
        }
    }
}
