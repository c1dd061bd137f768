//! What a connection knows of its peer's memory beyond what requests say: keys, if the peer has
//! others on each of its NICs (a soft NIC has not, a verbs device has), and memory that both share.

use std::collections::BTreeMap;

use super::{Qp, QpCore};
use crate::direct::{OpenDoor, Reach};
use crate::types::SendOp;

/// Keys on the NIC where a spare is, by those that requests name.
pub(crate) type PeerKeys = BTreeMap<u32, u32>;

/// What sets the peer's memory, or the peer's access to memory here, apart.
#[derive(Debug, Default)]
pub(crate) struct PeerMemory {
    /// Its keys, where they differ from those that requests name.
    pub(crate) keys: Option<PeerKeys>,
    /// What may be written directly.
    pub(crate) reach: Option<Reach>,
    /// Lets the peer write memory here directly.
    pub(crate) door: Option<OpenDoor>,
}

/// The key that a request names, if it goes to the peer's memory.
fn named(op: &SendOp) -> Option<u32> {
    match op {
        SendOp::Write(remote)
        | SendOp::WriteImm(remote, _)
        | SendOp::WritePackets(remote, _)
        | SendOp::Read(remote)
        | SendOp::CompareSwap { remote, .. }
        | SendOp::FetchAdd { remote, .. } => Some(remote.rkey),
        _ => None,
    }
}

impl QpCore {
    /// The key of the peer's memory that stands for what a request names. One that is not known is
    /// nobody's: requests with it are withheld.
    #[inline]
    pub(crate) fn remote_key(&self, named: u32) -> u32 {
        match self.peer_keys() {
            None => named,
            Some(keys) => keys.get(&named).copied().unwrap_or(0),
        }
    }

    /// The keys of the peer's memory, where they differ from those that requests name.
    #[inline]
    pub(crate) fn peer_keys(&self) -> Option<&PeerKeys> {
        self.peer_memory.as_ref()?.keys.as_ref()
    }
}

impl Qp {
    /// Keys that its requests name, of those that are not done from `from` on, and the number of
    /// the next request.
    pub(crate) fn named_keys(&self, from: u64) -> (Vec<u32>, u64) {
        let sq = &self.core.sq;
        let named = (sq.head().max(from)..sq.tail()).filter_map(|number| self.key_of(number));
        let mut keys: Vec<u32> = named.collect();
        keys.sort_unstable();
        keys.dedup();
        (keys, sq.tail())
    }

    /// The key that a request needs. One without bytes needs none.
    fn key_of(&self, number: u64) -> Option<u32> {
        self.core.sq.get(number).filter(|wqe| wqe.len > 0).and_then(|wqe| named(&wqe.op))
    }

    /// Withholds requests behind the first whose key is not known here.
    pub(crate) fn starve(&mut self, from: u64) {
        let Some(keys) = self.core.peer_keys() else { return };
        let sq = &self.core.sq;
        let end = sq.withheld_from().map_or(sq.tail(), |withheld| withheld.min(sq.tail()));
        let starved = (from.max(sq.head())..end)
            .find(|number| self.key_of(*number).is_some_and(|key| !keys.contains_key(&key)));
        if let Some(number) = starved {
            // Behind a fence that stands, requests wait for more than a key: it moves here.
            self.moving.starved = sq.withheld_from().is_none();
            self.core.sq.withhold_from(number);
        }
    }

    /// A key has become known. What waited for one goes, unless something else holds it.
    pub(crate) fn learn_key(&mut self, named: u32, here: u32) {
        let memory = self.core.peer_memory.as_mut();
        let Some(keys) = memory.and_then(|memory| memory.keys.as_mut()) else { return };
        keys.insert(named, here);
        if core::mem::take(&mut self.moving.starved) {
            self.core.sq.release();
            self.starve(0);
        }
    }
}
