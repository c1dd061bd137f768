//! The address of a rank's NIC.

use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs, UdpSocket};

use bowline_collective::Rank;

use crate::Error;

/// The address of rank 0 where all ranks are on one host.
const FIRST_LOCAL: Ipv4Addr = Ipv4Addr::new(127, 0, 78, 1);

/// The default address for the NIC of a rank: `BOWLINE_DEVICE`, or else the one from which this
/// host reaches `peer`, or else `MASTER_ADDR`. If that is this host, or nothing is set, all ranks
/// are on one host, and each has a loopback address of its own.
pub fn device_addr(peer: Option<&str>, rank: Rank) -> Result<IpAddr, Error> {
    if let Ok(text) = std::env::var("BOWLINE_DEVICE") {
        return text.parse().map_err(|_| Error::Invalid {
            what: "environment",
            why: format!("BOWLINE_DEVICE={text:?} is no IP address, e.g. 10.0.0.7"),
        });
    }
    match (peer, std::env::var("MASTER_ADDR")) {
        (Some(peer), _) => towards(peer, rank),
        (None, Ok(master)) => towards(&master, rank),
        (None, Err(_)) => Ok(local(rank)),
    }
}

fn local(rank: Rank) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(u32::from(FIRST_LOCAL) + (rank & 0xffff)))
}

/// The address from which this host reaches another.
fn towards(host: &str, rank: Rank) -> Result<IpAddr, Error> {
    let route = || {
        let found = (host, 9).to_socket_addrs()?.next();
        let Some(target) = found.filter(|target| !target.ip().is_loopback()) else {
            return Ok(local(rank));
        };
        // Connecting a datagram socket sends nothing, but shows which address would be used.
        let socket = UdpSocket::bind(if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
        socket.connect(target)?;
        Ok(socket.local_addr()?.ip())
    };
    route().map_err(|error| Error::system(format!("find the address that reaches {host}"), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_have_addresses_of_their_own() {
        let local = |rank| towards("127.0.0.1", rank).unwrap();
        assert_eq!(local(0), IpAddr::from([127, 0, 78, 1]));
        assert_eq!(local(255), IpAddr::from([127, 0, 79, 0]));
        assert!(local(65535).is_loopback());
        assert!(towards("no such host", 0).unwrap_err().to_string().contains("no such host"));
    }
}
