//! How many strangers may talk at a time.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// Connections that have not said who they are, at a time.
const MAX_STRANGERS: usize = 64;
/// Of these from one address, or one IPv6 network: whoever has one cannot keep the others out.
const MAX_FROM_ONE: usize = 8;

/// Counts connections that have not said who they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    inside: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A place that is given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Pass {
    gate: Gate,
    origin: IpAddr,
}

impl Gate {
    /// Lets a connection in, if there is room.
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

/// Whoever has one IPv6 address has 2⁶⁴.
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
