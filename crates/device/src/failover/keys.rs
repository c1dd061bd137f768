//! Keys of peers' memory on their second NICs: of verbs devices, which have others there. Soft NICs
//! have the same.

use std::collections::HashMap;
use std::net::IpAddr;

use bowline_failover::Life;
use bowline_store::Key;
use bowline_wire::Qpn;

use super::Directory;

/// What a look for a key is called, where queue pairs have a life.
const KEY_LIFE: u64 = 1 << 63;
/// Keys that are looked for.
const MAX_KEYS: usize = 1 << 16;

/// The key under which a region's key on the second NIC is found.
pub fn region_key(addr: IpAddr, rkey: u32) -> Option<Key> {
    Key::new(format!("mr/{addr}/{rkey:08x}")).ok()
}

/// Keys that were asked for, and answers.
#[derive(Default)]
pub(super) struct PeerKeys {
    asked: HashMap<(IpAddr, u32), u64>,
    known: HashMap<(IpAddr, u32), u32>,
}

impl PeerKeys {
    /// Whether an answer of the store is for this.
    pub(super) fn is_ours(who: Life) -> bool {
        who.life & KEY_LIFE != 0
    }

    /// The key on the second NIC. One that is not known is asked for.
    pub(super) fn look(&mut self, directory: &Directory, addr: IpAddr, rkey: u32) -> Option<u32> {
        let known = self.known.get(&(addr, rkey)).copied();
        if known.is_none() && self.asked.len() < MAX_KEYS {
            let called = KEY_LIFE | self.asked.len() as u64;
            self.asked.entry((addr, rkey)).or_insert_with(|| {
                if let Some(key) = region_key(addr, rkey) {
                    directory.want(Life { qpn: Qpn::new(0), life: called }, key);
                }
                called
            });
        }
        known
    }

    /// The store has an answer.
    pub(super) fn found(&mut self, who: Life, bytes: &[u8]) {
        let key = self.asked.iter().find(|(_, called)| **called == who.life).map(|(key, _)| *key);
        if let (Some(key), Ok(bytes)) = (key, <[u8; 4]>::try_from(bytes)) {
            self.known.insert(key, u32::from_be_bytes(bytes));
        }
    }
}
