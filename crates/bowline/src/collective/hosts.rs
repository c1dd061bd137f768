//! Which ranks share a host, by what they tell each other anyway.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use bowline_collective::{Hosts, Rank};

/// The hosts of a group, from the addresses of this rank and of all others. All ranks have the same
/// addresses, so that they find the same.
pub(super) fn by_address(others: &BTreeMap<Rank, IpAddr>, own: (Rank, IpAddr)) -> Hosts {
    let mut all = others.clone();
    all.insert(own.0, own.1);
    Hosts::new(all.into_values().map(host))
}

/// The same for ranks on one host. A host has many addresses of loopback; ranks that use other
/// addresses of one host each are taken to be apart.
fn host(addr: IpAddr) -> IpAddr {
    let addr = addr.to_canonical();
    if addr.is_loopback() { Ipv4Addr::LOCALHOST.into() } else { addr }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(addrs: &[&str], own: Rank) -> Hosts {
        let all = (0..).zip(addrs.iter().map(|addr| addr.parse().unwrap()));
        let mut all: BTreeMap<Rank, IpAddr> = all.collect();
        let addr = all.remove(&own).unwrap();
        by_address(&all, (own, addr))
    }

    #[test]
    fn all_ranks_find_the_same_hosts() {
        let addrs = ["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "10.0.0.1"];
        for rank in 0..4 {
            assert_eq!(hosts(&addrs, rank), Hosts::new([0, 1, 1, 0]));
        }
    }

    #[test]
    fn loopback_is_one_host() {
        let one = hosts(&["127.0.0.1", "127.0.0.2", "::1", "127.9.0.2"], 2);
        assert_eq!(one, Hosts::one(4));
    }
}
