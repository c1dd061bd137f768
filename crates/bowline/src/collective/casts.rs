//! Broadcasts by multicast: each rank has a group of all others, and its own port replicates.

use bowline_collective::{Algorithm, CastEnd, CastOffer, Operation, Request};
use bowline_device as device;
use bowline_nic::Mtu;
use bowline_wire::{Psn, Qpn};

use super::Communicator;
use crate::Error;

/// With fewer ranks there is nothing to replicate.
const MIN_RANKS: u32 = 3;
/// Words of an offer before those for each rank, and for each rank.
const HEAD_WORDS: usize = 3;
const END_WORDS: usize = 3;

impl Communicator {
    /// Sets up multicast groups if they are requested and all ranks support them. All ranks must
    /// call it.
    pub(super) fn open_casts(&self) -> Result<(), Error> {
        if !self.shared.options.multicast || self.size() < MIN_RANKS {
            return Ok(());
        }
        let offer = self.offer_casts();
        let told = self.gather_bytes(&encode(offer.as_ref(), self.size()))?;
        let group = decode_all(&told, self.size())
            .and_then(|offers| self.shared.member.accept_casts(&offers, &self.shared.addrs).ok());
        // All ranks or none: they must choose the same algorithms.
        let ready = self.gather_bytes(&[u8::from(group.is_some())])?;
        match group {
            Some(group) if ready.iter().all(|ready| *ready == 1) => {
                self.shared.member.connect_casts(&group)?;
                let is_first = self.shared.casts.set(group).is_ok();
                debug_assert!(is_first, "they are opened once");
                Ok(())
            }
            _ => self.shared.member.close_casts(),
        }
    }

    /// Whether broadcasts go by multicast.
    pub fn has_multicast(&self) -> bool {
        self.shared.casts.get().is_some()
    }

    /// This rank's offer, if it supports multicast.
    fn offer_casts(&self) -> Option<CastOffer> {
        if self.is_sealed() {
            // Each pair of ranks has keys of its own.
            return None;
        }
        let psn = device::random_bytes().ok().map(u32::from_ne_bytes)?;
        self.shared.member.open_casts(Psn::new(psn & 0xff_ffff)).ok()
    }

    /// The same request by multicast, if applicable.
    pub(super) fn by_multicast(&self, request: &Request) -> Option<Request> {
        let is_free = request.algorithm == Algorithm::Auto;
        let is_broadcast = matches!(request.operation, Operation::Broadcast { .. });
        (is_free && is_broadcast && self.has_multicast())
            .then(|| Request { algorithm: Algorithm::Multicast, ..request.clone() })
    }
}

/// Encodes an offer, in the same number of bytes at each rank; zeroes if there is none.
fn encode(offer: Option<&CastOffer>, ranks: u32) -> Vec<u8> {
    let mut words = vec![0; HEAD_WORDS + END_WORDS * ranks as usize];
    if let Some(offer) = offer {
        words[..HEAD_WORDS].copy_from_slice(&[offer.qpn.get(), offer.psn.get(), offer.mtu.bytes()]);
        for (words, end) in words[HEAD_WORDS..].chunks_mut(END_WORDS).zip(&offer.ends) {
            if let Some(end) = end {
                words.copy_from_slice(&[end.qpn.get(), end.rkey, end.id.get()]);
            }
        }
    }
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// The offers of all ranks; `None` if one has none, or its bytes are not valid.
fn decode_all(bytes: &[u8], ranks: u32) -> Option<Vec<CastOffer>> {
    let len = 4 * (HEAD_WORDS + END_WORDS * ranks as usize);
    let offers: Option<Vec<_>> = bytes.chunks(len).map(decode).collect();
    offers.filter(|offers| {
        let is_complete = |(rank, offer): (usize, &CastOffer)| {
            let ends = offer.ends.iter().enumerate();
            ends.clone().count() == ranks as usize
                && ends.into_iter().all(|(other, end)| end.is_some() == (other != rank))
        };
        offers.len() == ranks as usize && offers.iter().enumerate().all(is_complete)
    })
}

fn decode(bytes: &[u8]) -> Option<CastOffer> {
    let (words, []) = bytes.as_chunks::<4>() else { return None };
    let mut words = words.iter().map(|word| u32::from_be_bytes(*word));
    let number = |word: u32| (word < 1 << 24).then_some(word);
    let qpn = |word: u32| number(word).filter(|qpn| *qpn > 1).map(Qpn::new);
    let (first, psn, mtu) = (words.next()?, words.next()?, words.next()?);
    let mut ends = Vec::new();
    while let (Some(to), Some(rkey), Some(id)) = (words.next(), words.next(), words.next()) {
        ends.push(match to {
            0 => None,
            to => Some(CastEnd { qpn: qpn(to)?, rkey, id: qpn(id)? }),
        });
    }
    let (psn, mtu) = (Psn::new(number(psn)?), Mtu::from_bytes(mtu)?);
    Some(CastOffer { qpn: qpn(first)?, psn, mtu, ends })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(rank: usize, ranks: usize) -> CastOffer {
        let end = |other| CastEnd {
            qpn: Qpn::new(100 + other),
            rkey: 0xdead_0000 + other,
            id: Qpn::new(200 + other),
        };
        let ends = (0..ranks).map(|other| (other != rank).then(|| end(other as u32))).collect();
        CastOffer { qpn: Qpn::new(7), psn: Psn::new(0xff_ffff), mtu: Mtu::B4096, ends }
    }

    #[test]
    fn all_offers_come_back_or_none() {
        let offers: Vec<_> = (0..3).map(|rank| offer(rank, 3)).collect();
        let told: Vec<u8> = offers.iter().flat_map(|offer| encode(Some(offer), 3)).collect();
        assert_eq!(decode_all(&told, 3), Some(offers.clone()));
        let len = told.len() / 3;
        let mut lacking = told.clone();
        lacking[len..2 * len].copy_from_slice(&encode(None, 3));
        assert_eq!(decode_all(&lacking, 3), None, "one rank has none");
        for at in 0..told.len() {
            let mut wrong = told.clone();
            wrong[at] ^= 0xff;
            // Any result but a panic.
            let _ = decode_all(&wrong, 3);
            assert_eq!(decode_all(&told[..at], 3), None, "cut at {at}");
        }
    }
}
