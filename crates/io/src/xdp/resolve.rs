//! Ethernet addresses of the peers, cached from the kernel's neighbour tables.
//!
//! The kernel does not see packets that bypass it, so each query also tells it that the neighbour
//! is in use: otherwise it would drop neighbours that are in constant use.

use std::collections::HashMap;
use std::net::IpAddr;

use bowline_nic::Time;

use crate::sys::{Hop, Neighbours};

/// How long an answer stays valid.
const FRESH_NS: u64 = 1_000_000_000;
/// How soon to ask again while a neighbour has not answered.
const RETRY_NS: u64 = 100_000;
/// How long packets wait for a neighbour's answer before they are dropped. The wait blocks
/// everything else that is to be sent, so it is short; but it is long for a network without a
/// router in between.
const PATIENCE_NS: u64 = 20_000_000;
/// How soon to retry an address without a route, or a neighbour that did not answer.
const GIVEN_UP_NS: u64 = 100_000_000;
/// Most peers cached; beyond that the cache is cleared.
const MAX_PEERS: usize = 65_536;

/// The next hop towards an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// To this Ethernet address.
    To([u8; 6]),
    /// Not known yet: ask again at this time.
    Wait(Time),
    /// The neighbour on the route does not answer.
    Unresolved,
    /// There is no route.
    Unreachable,
}

/// The source of routes and neighbours.
pub(super) trait Tables: Send {
    /// The next hop of packets for an address.
    fn hop(&self, dst: IpAddr) -> Hop;
    /// A neighbour's Ethernet address, if it is known.
    fn ethernet_addr(&self, neighbour: IpAddr) -> Option<[u8; 6]>;
    /// Tells that a neighbour is in use.
    fn call(&self, neighbour: IpAddr);
}

impl Tables for Neighbours {
    fn hop(&self, dst: IpAddr) -> Hop {
        self.hop(dst)
    }

    fn ethernet_addr(&self, neighbour: IpAddr) -> Option<[u8; 6]> {
        self.ethernet_addr(neighbour)
    }

    fn call(&self, neighbour: IpAddr) {
        self.call(neighbour);
    }
}

/// The cached next hops.
pub(super) struct Ways<T> {
    tables: T,
    peers: HashMap<IpAddr, Peer>,
}

struct Peer {
    way: Way,
    /// When to ask again.
    ask_at: Time,
    /// Since when the neighbour has not answered.
    waiting_since: Time,
}

impl<T: Tables> Ways<T> {
    pub(super) fn new(tables: T) -> Ways<T> {
        Ways { tables, peers: HashMap::new() }
    }

    /// The next hop towards `dst`.
    #[inline]
    pub(super) fn to(&mut self, now: Time, dst: IpAddr) -> Way {
        match self.peers.get(&dst) {
            Some(peer) if now < peer.ask_at => peer.way,
            _ => self.ask(now, dst),
        }
    }

    #[cold]
    fn ask(&mut self, now: Time, dst: IpAddr) -> Way {
        let before = self.peers.get(&dst);
        let waiting_since = match before {
            Some(Peer { way: Way::Wait(_) | Way::Unresolved, waiting_since, .. }) => *waiting_since,
            _ => now,
        };
        let (way, ask_at) = match self.tables.hop(dst) {
            Hop::None => (Way::Unreachable, now.plus_nanos(GIVEN_UP_NS)),
            Hop::Via(neighbour) => {
                let known = self.tables.ethernet_addr(neighbour);
                self.tables.call(neighbour);
                match known {
                    Some(addr) => (Way::To(addr), now.plus_nanos(FRESH_NS)),
                    None if now.nanos_since(waiting_since) < PATIENCE_NS => {
                        let again = now.plus_nanos(RETRY_NS);
                        (Way::Wait(again), again)
                    }
                    None => (Way::Unresolved, now.plus_nanos(GIVEN_UP_NS)),
                }
            }
        };
        if self.peers.len() >= MAX_PEERS {
            self.peers.clear();
        }
        self.peers.insert(dst, Peer { way, ask_at, waiting_since });
        way
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];

    struct Script {
        hop: Cell<Hop>,
        mac: Cell<Option<[u8; 6]>>,
        calls: Cell<u32>,
    }

    impl Tables for Script {
        fn hop(&self, _: IpAddr) -> Hop {
            self.hop.get()
        }

        fn ethernet_addr(&self, _: IpAddr) -> Option<[u8; 6]> {
            self.mac.get()
        }

        fn call(&self, _: IpAddr) {
            self.calls.set(self.calls.get() + 1);
        }
    }

    fn ways() -> (Ways<Script>, IpAddr) {
        let peer = "10.0.0.2".parse().unwrap();
        let script =
            Script { hop: Cell::new(Hop::Via(peer)), mac: Cell::new(None), calls: Cell::new(0) };
        (Ways::new(script), peer)
    }

    fn ms(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_neighbour_is_waited_for_then_used_and_asked_for_again() {
        let (mut ways, peer) = ways();
        assert!(matches!(ways.to(ms(0), peer), Way::Wait(again) if again > ms(0)));
        assert_eq!(ways.tables.calls.get(), 1, "the kernel is to find out");
        ways.tables.mac.set(Some(MAC));
        assert_eq!(ways.to(ms(1), peer), Way::To(MAC));
        ways.tables.mac.set(Some([1; 6]));
        assert_eq!(ways.to(ms(2), peer), Way::To(MAC), "kept for a while");
        assert_eq!(ways.to(ms(1500), peer), Way::To([1; 6]), "but not for ever");
    }

    #[test]
    fn a_neighbour_that_does_not_answer_is_not_waited_for_long() {
        let (mut ways, peer) = ways();
        assert!(matches!(ways.to(ms(0), peer), Way::Wait(_)));
        assert!(matches!(ways.to(ms(10), peer), Way::Wait(_)));
        assert_eq!(ways.to(ms(21), peer), Way::Unresolved);
        assert_eq!(ways.to(ms(150), peer), Way::Unresolved, "nor again");
        ways.tables.mac.set(Some(MAC));
        assert_eq!(ways.to(ms(300), peer), Way::To(MAC));
        ways.tables.mac.set(None);
        assert!(matches!(ways.to(ms(1400), peer), Way::Wait(_)), "it was there a moment ago");
    }

    #[test]
    fn without_a_route_there_is_no_way() {
        let (mut ways, peer) = ways();
        ways.tables.hop.set(Hop::None);
        assert_eq!(ways.to(ms(0), peer), Way::Unreachable);
        ways.tables.hop.set(Hop::Via(peer));
        ways.tables.mac.set(Some(MAC));
        assert_eq!(ways.to(ms(50), peer), Way::Unreachable);
        assert_eq!(ways.to(ms(101), peer), Way::To(MAC));
    }
}
