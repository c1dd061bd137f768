//! The message that gives the key of a receive to the sender, or says that there will be none.

use bowline_nic::Remote;

/// Bytes of a message on the control channel.
pub const GRANT_LEN: usize = 28;

const VERSION: u16 = 1;
const OPEN: u16 = 1;
const OVER: u16 = 2;

/// What the sender of a message is told about its receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The message's number.
    pub(super) number: u64,
    /// Where it may go; `None` if its receive has already ended.
    pub(super) room: Option<Room>,
}

/// Memory that a message may be written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub(super) remote: Remote,
    pub(super) len: u32,
}

impl Grant {
    pub(super) fn emit(&self) -> [u8; GRANT_LEN] {
        let kind = if self.room.is_some() { OPEN } else { OVER };
        let none = Room { remote: Remote { addr: 0, rkey: 0 }, len: 0 };
        let Room { remote, len } = self.room.unwrap_or(none);
        let mut out = [0; GRANT_LEN];
        out[..2].copy_from_slice(&VERSION.to_be_bytes());
        out[2..4].copy_from_slice(&kind.to_be_bytes());
        out[4..12].copy_from_slice(&self.number.to_be_bytes());
        out[12..20].copy_from_slice(&remote.addr.to_be_bytes());
        out[20..24].copy_from_slice(&remote.rkey.to_be_bytes());
        out[24..].copy_from_slice(&len.to_be_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Grant> {
        let bytes: &[u8; GRANT_LEN] = bytes.try_into().ok()?;
        let half = |at: usize| bytes[at..].first_chunk().copied().map(u16::from_be_bytes);
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u32::from_be_bytes);
        let long = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_be_bytes);
        if half(0)? != VERSION {
            return None;
        }
        let remote = Remote { addr: long(12)?, rkey: word(20)? };
        let room = match half(2)? {
            OPEN => Some(Room { remote, len: word(24)? }),
            OVER => None,
            _ => return None,
        };
        Some(Grant { number: long(4)?, room })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_the_journey() {
        let remote = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314 };
        for room in [Some(Room { remote, len: 0x3132_3334 }), None] {
            let grant = Grant { number: 0x2122_2324_2526_2728, room };
            let bytes = grant.emit();
            assert_eq!(Grant::parse(&bytes), Some(grant));
            assert_eq!(Grant::parse(&bytes[1..]), None);
        }
        assert_eq!(Grant::parse(&[0; GRANT_LEN]), None);
        let mut other = Grant { number: 1, room: None }.emit();
        other[3] = 3;
        assert_eq!(Grant::parse(&other), None);
    }
}
