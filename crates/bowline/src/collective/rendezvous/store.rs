//! Meeting in a store.
//!
//! Entries of an earlier run may still be there, under the same names. So each rank adds a random
//! number, and ranks continue only when all have seen the same set, which contains this run's
//! number of each.

use std::time::{Duration, Instant};

use bowline_collective::Rank;
use bowline_device::{self as device, DeviceError};
use bowline_store::{Key, Store, StoreError};

use super::{Offers, PeerEnd, Place, message, missing};
use crate::Error;

/// Pauses between polls.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Entries expire after this.
const TTL: Duration = Duration::from_secs(600);
const NONCE_LEN: usize = 8;

pub(super) struct StorePlace {
    store: Box<dyn Store>,
    rank: Rank,
    ranks: u32,
    /// Digest of what all ranks have seen.
    agreed: u64,
    syncs: u32,
}

impl StorePlace {
    pub(super) fn open(
        url: &str,
        job: &str,
        (rank, ranks): (Rank, u32),
    ) -> Result<StorePlace, Error> {
        let store = bowline_store::open(url, job).map_err(DeviceError::Store)?;
        Ok(StorePlace { store, rank, ranks, agreed: 0, syncs: 0 })
    }

    fn put(&mut self, what: &str, value: &[u8]) -> Result<(), Error> {
        let key = key(what, self.rank)?;
        Ok(self.store.put(&key, value, TTL).map_err(DeviceError::Store)?)
    }

    fn get(&mut self, what: &str, rank: Rank) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.store.get(&key(what, rank)?).map_err(DeviceError::Store)?)
    }

    /// The entries of all ranks, if all are present; otherwise the missing ranks.
    fn all(&mut self, what: &str) -> Result<Result<Vec<Vec<u8>>, Vec<Rank>>, Error> {
        let (mut found, mut absent) = (Vec::new(), Vec::new());
        for rank in 0..self.ranks {
            match self.get(what, rank)? {
                Some(entry) => found.push(entry),
                None => absent.push(rank),
            }
        }
        Ok(if absent.is_empty() { Ok(found) } else { Err(absent) })
    }

    /// Publishes a number, and waits until `step` succeeds.
    fn until(
        &mut self,
        timeout: Duration,
        mut step: impl FnMut(&mut StorePlace) -> Result<Result<(), Vec<Rank>>, Error>,
    ) -> Result<(), Error> {
        let started = Instant::now();
        let mut pause = SHORTEST_PAUSE;
        loop {
            let absent = match step(self)? {
                Ok(()) => return Ok(()),
                Err(absent) => absent,
            };
            if started.elapsed() >= timeout {
                let hint = ": do all ranks have the same store and job name?";
                return Err(missing(absent.into_iter(), timeout, hint));
            }
            std::thread::sleep(pause);
            pause = (pause * 3 / 2).min(LONGEST_PAUSE);
        }
    }

    /// Waits until all ranks have put the number that they agreed on.
    fn agree(&mut self, what: &str) -> Result<Result<(), Vec<Rank>>, Error> {
        let expected = self.agreed.to_be_bytes();
        let mut others = Vec::new();
        for rank in 0..self.ranks {
            if self.get(what, rank)?.as_deref() != Some(&expected[..]) {
                others.push(rank);
            }
        }
        Ok(if others.is_empty() { Ok(()) } else { Err(others) })
    }
}

impl Place for StorePlace {
    fn exchange(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error> {
        let nonce: [u8; NONCE_LEN] =
            device::random_bytes().map_err(|e| Error::system("read randomness", e))?;
        let mut value = nonce.to_vec();
        value.extend_from_slice(&offers.to_bytes());
        self.put("offer", &value)?;
        let mut entries = Vec::new();
        self.until(timeout, |place| {
            let seen = match place.all("offer")? {
                Ok(seen) => seen,
                Err(absent) => return Ok(Err(absent)),
            };
            let digest = digest(&seen);
            if place.agreed != digest {
                place.agreed = digest;
                place.put("seen", &digest.to_be_bytes())?;
            }
            let agreed = place.agree("seen")?;
            entries = seen;
            Ok(agreed)
        })?;
        let (rank, ranks) = (self.rank, self.ranks);
        let others = entries.iter().enumerate().filter(|(index, _)| *index != rank as usize);
        others
            .map(|(index, entry)| {
                let end = message::end_for(entry.get(NONCE_LEN..).unwrap_or(&[]), rank, ranks);
                let end = end.and_then(|end| match end.rank as usize == index {
                    true => Ok(end),
                    false => Err("it is of another rank"),
                });
                end.map_err(|why| Error::Invalid {
                    what: "rendezvous",
                    why: format!("the entry of rank {index} cannot be used: {why}"),
                })
            })
            .collect()
    }

    fn sync(&mut self, timeout: Duration) -> Result<(), Error> {
        let what = format!("ready{}", self.syncs);
        self.syncs += 1;
        self.put(&what, &self.agreed.to_be_bytes())?;
        self.until(timeout, |place| place.agree(&what))
    }
}

fn key(what: &str, rank: Rank) -> Result<Key, Error> {
    let key: Result<Key, StoreError> = Key::new(format!("comm/{what}/{rank}"));
    Ok(key.map_err(DeviceError::Store)?)
}

/// FNV-1a: it distinguishes runs, it does not keep attackers out.
fn digest(entries: &[Vec<u8>]) -> u64 {
    let bytes = entries.iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
