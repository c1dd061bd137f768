//! Control messages between the ends of a connection.
//!
//! ```text
//! offer   1, count, 0, 0, number (8), then for each place:
//!         tag (4), key (4), length (8), address (8)
//! sent    2, 0, 0, 0, number (8), length (8)
//! got     3, 0, 0, 0, number (8)
//! repair  4, count, 0, 0, number (8), then for each range: start (4), end (4)
//! ```
//! All numbers are big endian. Only XP uses `sent`, `got` and `repair`.

use std::ops::Range;

use super::{Offer, Place};
use crate::comm::{MAX_BYTES, MAX_GROUP};
use crate::status::Trouble;

/// Length of the longest message in bytes: an offer of a full group.
pub(super) const MAX_LEN: usize = HEAD + MAX_GROUP * PLACE;
/// Maximum number of ranges in a repair request.
pub(super) const MAX_RANGES: usize = (MAX_LEN - HEAD) / RANGE;

const HEAD: usize = 12;
const PLACE: usize = 24;
const RANGE: usize = 8;
const OFFER: u8 = 1;
const SENT: u8 = 2;
const GOT: u8 = 3;
const REPAIR: u8 = 4;

/// A checked message from the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// Memory for messages, with consecutive numbers.
    Offers(Vec<Offer>),
    /// All packets of a message have been sent.
    Sent { number: u64, len: u64 },
    /// All of a message has arrived.
    Got { number: u64 },
    /// These ranges of a message are missing.
    Repair { number: u64, ranges: Vec<Range<u32>> },
}

fn head(kind: u8, count: usize, number: u64) -> Vec<u8> {
    let mut out = vec![kind, count as u8, 0, 0];
    out.extend(number.to_be_bytes());
    out
}

/// Encodes an offer of memory. Transports that do not write it omit addresses and keys.
pub(super) fn offers(first: u64, places: &[Place], with_keys: bool) -> Vec<u8> {
    let mut out = head(OFFER, places.len(), first);
    for place in places {
        let remote = place.mr.as_ref().filter(|_| with_keys).map(|mr| mr.remote());
        out.extend(place.tag.to_be_bytes());
        out.extend(remote.map_or(0, |remote| remote.rkey).to_be_bytes());
        out.extend(place.len.to_be_bytes());
        out.extend(remote.map_or(0, |remote| remote.addr).to_be_bytes());
    }
    out
}

pub(super) fn sent(number: u64, len: u64) -> Vec<u8> {
    let mut out = head(SENT, 0, number);
    out.extend(len.to_be_bytes());
    out
}

pub(super) fn got(number: u64) -> Vec<u8> {
    head(GOT, 0, number)
}

pub(super) fn repair(number: u64, ranges: &[Range<u32>]) -> Vec<u8> {
    let mut out = head(REPAIR, ranges.len(), number);
    for range in ranges {
        out.extend(range.start.to_be_bytes());
        out.extend(range.end.to_be_bytes());
    }
    out
}

/// Parses a message from the peer.
pub(super) fn parse(bytes: &[u8]) -> Result<Message, Trouble> {
    read(bytes).ok_or_else(|| {
        let kind = bytes.first().copied().unwrap_or(0);
        Trouble::remote(format!(
            "the peer sent a message of kind {kind} and {} bytes that cannot be: run the same \
             release on both ends",
            bytes.len()
        ))
    })
}

fn read(bytes: &[u8]) -> Option<Message> {
    let (head, body) = bytes.split_at_checked(HEAD)?;
    let (kind, count) = (head[0], usize::from(head[1]));
    let number = u64::from_be_bytes(head[4..].try_into().ok()?);
    match kind {
        OFFER if (1..=MAX_GROUP).contains(&count) && body.len() == count * PLACE => {
            let offer =
                |(i, place): (usize, &[u8])| read_offer(number.checked_add(i as u64)?, place);
            let offers = body.chunks_exact(PLACE).enumerate().map(offer);
            offers.collect::<Option<_>>().map(Message::Offers)
        }
        SENT if count == 0 => {
            let len = u64::from_be_bytes(body.try_into().ok()?);
            (len <= MAX_BYTES as u64).then_some(Message::Sent { number, len })
        }
        GOT if count == 0 && body.is_empty() => Some(Message::Got { number }),
        REPAIR if count <= MAX_RANGES && body.len() == count * RANGE => {
            let ranges: Vec<Range<u32>> = body.chunks_exact(RANGE).map(read_range).collect();
            let ordered = ranges.windows(2).all(|pair| pair[0].end <= pair[1].start);
            let filled = ranges.iter().all(|range| range.start < range.end);
            (ordered && filled).then_some(Message::Repair { number, ranges })
        }
        _ => None,
    }
}

fn read_offer(number: u64, place: &[u8]) -> Option<Offer> {
    let (tag, rest) = place.split_first_chunk()?;
    let (rkey, rest) = rest.split_first_chunk()?;
    let (len, rest) = rest.split_first_chunk()?;
    let (addr, _) = rest.split_first_chunk()?;
    let offer = Offer {
        number,
        tag: i32::from_be_bytes(*tag),
        len: u64::from_be_bytes(*len),
        addr: u64::from_be_bytes(*addr),
        rkey: u32::from_be_bytes(*rkey),
    };
    (offer.len <= MAX_BYTES as u64).then_some(offer)
}

fn read_range(bytes: &[u8]) -> Range<u32> {
    let (start, end) = bytes.split_at(4);
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    number(start)..number(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tag: i32, len: u64) -> Place {
        Place { tag, len, mr: None }
    }

    #[test]
    fn messages_come_back_as_they_were() {
        let bytes = offers(7, &[place(-3, 64), place(9, 0)], true);
        let offer = |number, tag, len| Offer { number, tag, len, addr: 0, rkey: 0 };
        assert_eq!(parse(&bytes).unwrap(), Message::Offers(vec![offer(7, -3, 64), offer(8, 9, 0)]));
        assert_eq!(parse(&sent(1, 2)).unwrap(), Message::Sent { number: 1, len: 2 });
        assert_eq!(parse(&got(3)).unwrap(), Message::Got { number: 3 });
        let ranges = vec![0..1, 4..9];
        assert_eq!(parse(&repair(4, &ranges)).unwrap(), Message::Repair { number: 4, ranges });
        let full: Vec<Place> = (0..MAX_GROUP as i32).map(|tag| place(tag, 1)).collect();
        assert_eq!(offers(0, &full, true).len(), MAX_LEN);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut cut = offers(7, &[place(1, 64)], true);
        cut.pop();
        let mut crowd = offers(7, &[place(1, 64)], true);
        crowd[1] = MAX_GROUP as u8 + 1;
        let mut none = offers(7, &[place(1, 64)], true);
        none[1] = 0;
        let long = offers(7, &[place(1, MAX_BYTES as u64 + 1)], true);
        let wraps = offers(u64::MAX, &[place(1, 1), place(2, 1)], true);
        let disordered = repair(4, &[4..9, 0..1]);
        let empty = repair(4, std::slice::from_ref(&(4..4)));
        let overlong = sent(1, MAX_BYTES as u64 + 1);
        for bad in [cut, crowd, none, long, wraps, disordered, empty, overlong, vec![], vec![9; 12]]
        {
            assert!(parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_bytes_panic() {
        // Try every kind and count, at every length.
        for kind in 0..6 {
            for count in [0, 1, 2, 8, 9, 24, 25, 255] {
                for len in 0..MAX_LEN + 2 {
                    let mut bytes = vec![0xff; len];
                    if let [first, second, ..] = &mut bytes[..] {
                        (*first, *second) = (kind, count);
                    }
                    let _ = parse(&bytes);
                }
            }
        }
    }
}
