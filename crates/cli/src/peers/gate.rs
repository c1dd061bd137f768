//! Limits the number of unauthenticated connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of unauthenticated connections.
const MAX_STRANGERS: usize = 64;
/// Maximum number from one address, or one IPv6 network, so that one host cannot keep the others
/// out.
const MAX_FROM_ONE: usize = 8;

/// Counts unauthenticated connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    inside: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A slot for one connection. It is released on drop.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Gate,
    origin: IpAddr,
}

impl Gate {
    /// Admits a connection if there is room.
    pub(crate) fn enter(&self, from: IpAddr) -> Option<Pass> {
        let origin = origin(from);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = inside.values().sum();
        if total >= MAX_STRANGERS || inside.get(&origin).copied().unwrap_or(0) >= MAX_FROM_ONE {
            return None;
        }
        *inside.entry(origin).or_default() += 1;
        Some(Pass { gate: self.clone(), origin })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut inside = self.gate.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = inside.get_mut(&self.origin) {
            *count -= 1;
            if *count == 0 {
                inside.remove(&self.origin);
            }
        }
    }
}

/// A host with one IPv6 address usually has 2⁶⁴ of them, so count by network.
fn origin(from: IpAddr) -> IpAddr {
    match from.to_canonical() {
        IpAddr::V6(v6) => IpAddr::V6((u128::from(v6) >> 64 << 64).into()),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_cannot_keep_the_others_out() {
        let gate = Gate::default();
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let mut passes: Vec<_> = (0..MAX_FROM_ONE).map(|_| gate.enter(one).unwrap()).collect();
        assert!(gate.enter(one).is_none());
        assert!(gate.enter("::ffff:192.0.2.1".parse().unwrap()).is_none(), "the same host");
        assert!(gate.enter("192.0.2.2".parse().unwrap()).is_some());
        passes.pop();
        assert!(gate.enter(one).is_some());
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        let gate = Gate::default();
        let at = |n: usize| format!("2001:db8::{n:x}").parse::<IpAddr>().unwrap();
        let passes: Vec<_> = (0..2 * MAX_FROM_ONE).filter_map(|n| gate.enter(at(n))).collect();
        assert_eq!(passes.len(), MAX_FROM_ONE);
    }

    #[test]
    fn there_is_an_end_to_strangers() {
        let gate = Gate::default();
        let at = |n: usize| IpAddr::from([10, 0, (n >> 8) as u8, n as u8]);
        let passes: Vec<_> = (0..1000).filter_map(|n| gate.enter(at(n))).collect();
        assert_eq!(passes.len(), MAX_STRANGERS);
        drop(passes);
        assert!(gate.inside.lock().unwrap().is_empty());
    }
}
