//! Keys of peers' memory on their second NICs. Verbs devices have different keys there, and soft
//! NICs have the same ones.

use std::collections::HashMap;
use std::net::IpAddr;

use bowline_failover::Life;
use bowline_store::Key;
use bowline_wire::Qpn;

use super::Directory;

/// Marks a lookup for a key, in the field where queue pairs have their life.
const KEY_LIFE: u64 = 1 << 63;
/// Maximum number of keys that are looked up.
const MAX_KEYS: usize = 1 << 16;

/// The store key of a region's key on the second NIC.
pub fn region_key(addr: IpAddr, rkey: u32) -> Option<Key> {
    Key::new(format!("mr/{addr}/{rkey:08x}")).ok()
}

/// Requested keys and their answers.
#[derive(Default)]
pub(super) struct PeerKeys {
    asked: HashMap<(IpAddr, u32), u64>,
    known: HashMap<(IpAddr, u32), u32>,
    /// How often a key became known or changed.
    changes: u64,
}

impl PeerKeys {
    /// Whether an answer of the store is for a key lookup.
    pub(super) fn is_ours(who: Life) -> bool {
        who.life & KEY_LIFE != 0
    }

    /// How often a key became known or changed.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// The key on the second NIC. An unknown key is requested, and watched from then on, because a
    /// peer may register other memory under it.
    pub(super) fn look(&mut self, directory: &Directory, addr: IpAddr, rkey: u32) -> Option<u32> {
        let known = self.known.get(&(addr, rkey)).copied();
        if known.is_none() && self.asked.len() < MAX_KEYS {
            let called = KEY_LIFE | self.asked.len() as u64;
            self.asked.entry((addr, rkey)).or_insert_with(|| {
                if let Some(key) = region_key(addr, rkey) {
                    directory.watch(Life { qpn: Qpn::new(0), life: called }, key);
                }
                called
            });
        }
        known
    }

    /// Handles an answer of the store.
    pub(super) fn found(&mut self, who: Life, bytes: &[u8]) {
        let key = self.asked.iter().find(|(_, called)| **called == who.life).map(|(key, _)| *key);
        if let (Some(key), Ok(bytes)) = (key, <[u8; 4]>::try_from(bytes)) {
            let here = u32::from_be_bytes(bytes);
            if self.known.insert(key, here) != Some(here) {
                self.changes += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_when_it_is_another() {
        let (addr, rkey) = (IpAddr::from([192, 0, 2, 1]), 7);
        let who = Life { qpn: Qpn::new(0), life: KEY_LIFE };
        let mut keys = PeerKeys::default();
        keys.asked.insert((addr, rkey), who.life);
        let mut counted = |answer: &[u8]| {
            keys.found(who, answer);
            (keys.changes(), keys.known.get(&(addr, rkey)).copied())
        };
        assert_eq!(counted(&[0, 0, 0]), (0, None), "no key");
        assert_eq!(counted(&[0, 0, 0, 9]), (1, Some(9)));
        assert_eq!(counted(&[0, 0, 0, 9]), (1, Some(9)));
        assert_eq!(counted(&[0, 0, 0, 10]), (2, Some(10)), "other memory has the key");
    }
}
