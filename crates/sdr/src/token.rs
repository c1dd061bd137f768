//! A secret of the connection, by which an end tells its peer's control messages from forgeries.
//!
//! A datagram's source address can be forged, and QP numbers and PSNs are easy to guess. Each end
//! draws a token when it is created and hands it to its peer at set-up; senders must know it.
//! Anyone who reads the packets in transit learns it: this is not encryption.

use std::hint::black_box;

use bowline_nic::Rnic;

/// Bytes of a token.
pub(crate) const LEN: usize = 16;
/// Bytes of either half.
pub(crate) const HALF: usize = LEN / 2;

/// The token that messages to one end must carry.
///
/// Half of it comes first and half of it last. A message may span several packets on the wire, and
/// with the token in one place an attacker could replace the packets without it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token([u8; LEN]);

impl Token {
    /// A new one.
    pub(crate) fn draw(nic: &mut dyn Rnic) -> Token {
        Token(nic.draw_secret())
    }

    pub(crate) fn from_bytes(bytes: [u8; LEN]) -> Token {
        Token(bytes)
    }

    pub(crate) fn to_bytes(self) -> [u8; LEN] {
        self.0
    }

    /// Its first and second half.
    pub(crate) fn halves(&self) -> (&[u8], &[u8]) {
        self.0.split_at(HALF)
    }

    /// Whether these are its halves. Runs in constant time, so that the response time does not tell
    /// how much of a guess is right.
    pub(crate) fn matches(&self, first: &[u8; HALF], last: &[u8; HALF]) -> bool {
        let given = first.iter().chain(last);
        let different = self.0.iter().zip(given).fold(0, |all, (a, b)| black_box(all | (a ^ b)));
        different == 0
    }
}

/// Keeps the secret out of logs.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_counts() {
        let token = Token::from_bytes(std::array::from_fn(|i| i as u8 * 17));
        let halves = |bytes: [u8; LEN]| {
            let (first, last) = (*bytes.first_chunk().unwrap(), *bytes.last_chunk().unwrap());
            token.matches(&first, &last)
        };
        assert!(halves(token.to_bytes()));
        for bit in 0..LEN * 8 {
            let mut bytes = token.to_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!halves(bytes), "bit {bit}");
        }
    }
}
