//! Communicators from others.

use std::sync::Arc;

use bowline_collective::{DataType, Operation, Rank, Request};

use super::rendezvous::{Offers, PeerEnd, message};
use super::seal::GroupSeal;
use super::{Communicator, Tensor};
use crate::pd::PdInner;
use crate::{Access, Error, Pd};

/// Color, key, and whether there is one.
const TICKET_WORDS: usize = 3;

impl Communicator {
    /// A communicator of the same ranks, whose operations run concurrently with this one's. All
    /// ranks must call it.
    pub fn duplicate(&self) -> Result<Communicator, Error> {
        let same = self.split(Some(0), self.rank())?;
        same.ok_or_else(|| Error::Invalid {
            what: "communicator",
            why: "a rank is not in its own group".to_owned(),
        })
    }

    /// A communicator of the ranks that give the same color, ordered by key, then by rank here. All
    /// ranks must call it; a rank without a color gets none.
    pub fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Communicator>, Error> {
        let ticket = [u32::from(color.is_some()), color.unwrap_or(0), key];
        let ticket: Vec<u8> = ticket.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let tickets = self.gather_bytes(&ticket)?;
        let word = |rank: usize, at: usize| {
            let at = (rank * TICKET_WORDS + at) * 4;
            tickets[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
        };
        let mut members: Vec<Rank> = (0..self.size())
            .filter(|rank| {
                let rank = *rank as usize;
                (word(rank, 0), word(rank, 1)) == (1, color.unwrap_or(0))
            })
            .collect();
        members.sort_by_key(|rank| (word(*rank as usize, 2), *rank));
        let place =
            members.iter().position(|rank| *rank == self.rank()).filter(|_| color.is_some());
        let seal = self.new_seal(members.first())?;
        // Ranks without a color take part in what follows, with empty contributions.
        let blank = vec![0; Offers::len(self.size())];
        let Some(place) = place else {
            self.gather_bytes(&blank)?;
            self.barrier()?.wait()?;
            return Ok(None);
        };
        let size = members.len() as u32;
        let mut gathered = false;
        let exchange = |offers: &Offers| {
            gathered = true;
            Ok((self.exchange(offers, &members)?, seal))
        };
        let (pd, options) = (&self.shared.pd, self.shared.options);
        let made = Communicator::connect(pd, (place as Rank, size), options, exchange);
        if made.is_err() && !gathered {
            // The others must not wait for this rank, so it contributes an empty entry.
            self.gather_bytes(&blank)?;
        }
        self.barrier()?.wait()?;
        let made = made?;
        made.agree_on_memory()?;
        made.open_casts()?;
        Ok(Some(made))
    }

    /// Seals a group whose first rank is `first` here: with that rank's secret, which every rank
    /// sends to all. That exchange is itself sealed.
    fn new_seal(&self, first: Option<&Rank>) -> Result<Option<GroupSeal>, Error> {
        let Some(own) = &self.shared.seal else { return Ok(None) };
        let drawn = GroupSeal::new(own.cipher())?.to_bytes();
        let all = self.gather_bytes(&drawn)?;
        let Some(first) = first else { return Ok(None) };
        let of_first = all.chunks(GroupSeal::LEN).nth(*first as usize);
        let seal = of_first.and_then(GroupSeal::from_bytes);
        seal.map(Some).ok_or_else(|| Error::Invalid {
            what: "communicator",
            why: format!("rank {first} has told no secret"),
        })
    }

    /// Exchanges offers among all ranks of this communicator; returns those of the new one's.
    fn exchange(&self, offers: &Offers, members: &[Rank]) -> Result<Vec<PeerEnd>, Error> {
        let mut mine = offers.to_bytes();
        mine.resize(Offers::len(self.size()), 0);
        let all = self.gather_bytes(&mine)?;
        let size = members.len() as u32;
        let others = members.iter().enumerate().filter(|(_, rank)| **rank != self.rank());
        others
            .map(|(index, rank)| {
                let at = *rank as usize * Offers::len(self.size());
                let bytes = &all[at..at + Offers::len(size)];
                let end = message::end_for(bytes, offers.rank, size);
                end.map(|end| PeerEnd { rank: index as Rank, ..end }).map_err(|why| {
                    let why = format!("rank {rank} could not take part: {why}");
                    Error::Invalid { what: "communicator", why }
                })
            })
            .collect()
    }

    /// Gathers the bytes of all ranks, which have the same length.
    pub(super) fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let len = bytes.len() * self.size() as usize;
        let mr = pd(&self.shared.pd).register(len, Access::LOCAL_WRITE)?;
        mr.write_at(self.rank() as usize * bytes.len(), bytes);
        let operation = Operation::Allgather { count: bytes.len() };
        let request = Request { dtype: DataType::U8, in_place: true, ..Request::new(operation) };
        let tensor = Tensor::new(&mr, 0..len, DataType::U8)?;
        // Over RC, even if other operations may lose data.
        self.start_with(&request, None, Some(&tensor), None)?.wait()?;
        Ok(mr.to_vec(0, len))
    }
}

fn pd(inner: &Arc<PdInner>) -> Pd {
    Pd { inner: Arc::clone(inner) }
}
