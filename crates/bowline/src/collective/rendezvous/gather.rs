//! Meeting by an all-gather that the caller provides.

use std::time::Duration;

use bowline_collective::Rank;

use super::{Offers, PeerEnd, Place, message};
use crate::Error;

/// Maps the bytes of this rank to those of all ranks.
type Gather = dyn FnMut(&[u8], Duration) -> Result<Vec<u8>, Error> + Send;

pub(super) struct GatherPlace {
    pub(super) rank: Rank,
    pub(super) ranks: u32,
    pub(super) gather: Box<Gather>,
}

impl GatherPlace {
    fn all(&mut self, bytes: &[u8], timeout: Duration) -> Result<Vec<u8>, Error> {
        let all = (self.gather)(bytes, timeout)?;
        let expected = bytes.len() * self.ranks as usize;
        if all.len() == expected {
            return Ok(all);
        }
        let why = format!("{} bytes were gathered, and {expected} expected", all.len());
        Err(Error::Invalid { what: "rendezvous", why })
    }
}

impl Place for GatherPlace {
    fn exchange(&mut self, offers: &Offers, timeout: Duration) -> Result<Vec<PeerEnd>, Error> {
        let all = self.all(&offers.to_bytes(), timeout)?;
        let blocks = all.chunks(Offers::len(self.ranks)).enumerate();
        blocks
            .filter(|(rank, _)| *rank != self.rank as usize)
            .map(|(rank, bytes)| {
                let invalid = |why: String| Error::Invalid { what: "rendezvous", why };
                let end = message::end_for(bytes, self.rank, self.ranks);
                let end = end.map_err(|why| {
                    invalid(format!("the offer of rank {rank} cannot be used: {why}"))
                })?;
                if end.rank as usize == rank {
                    return Ok(end);
                }
                Err(invalid(format!("rank {}'s offer is at the place of rank {rank}", end.rank)))
            })
            .collect()
    }

    fn sync(&mut self, timeout: Duration) -> Result<(), Error> {
        self.all(&[1], timeout).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_gathered_is_refused() {
        let place = |all: &'static [u8]| GatherPlace {
            rank: 0,
            ranks: 2,
            gather: Box::new(|_, _| Ok(all.to_vec())),
        };
        assert!(place(&[1, 1]).sync(Duration::ZERO).is_ok());
        let error = place(&[1]).sync(Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("1 bytes were gathered, and 2"));
    }
}
