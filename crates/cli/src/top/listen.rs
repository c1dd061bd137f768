//! Where metrics are served.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// Where, unless told otherwise.
pub(super) const DEFAULT_LISTEN: &str = "127.0.0.1:18518";

/// An address and a port; a port alone is one of loopback's, since metrics name programs and peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Listen(pub(super) SocketAddr);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if let Ok(port) = text.parse::<u16>() {
            return Ok(Listen((Ipv4Addr::LOCALHOST, port).into()));
        }
        let default: SocketAddr = DEFAULT_LISTEN.parse().expect("it is a constant that parses");
        let addr = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, default.port()));
        addr.or_else(|_| text.parse()).map(Listen).map_err(|_| {
            format!("invalid address `{text}`: write a port or ADDRESS:PORT, e.g. {DEFAULT_LISTEN}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_loopbacks() {
        let at = |text: &str| text.parse::<Listen>().map(|listen| listen.0.to_string());
        assert_eq!(at("9400").unwrap(), "127.0.0.1:9400");
        assert_eq!(at("0.0.0.0").unwrap(), "0.0.0.0:18518");
        assert_eq!(at("[::1]:9400").unwrap(), "[::1]:9400");
        for wrong in ["", "here", "70000", "1.2.3:4"] {
            assert!(at(wrong).unwrap_err().contains("127.0.0.1:18518"), "{wrong}");
        }
    }
}
