//! The message that hands the key of a receive to the sender.

use bowline_nic::Remote;

/// Bytes of a message on the control channel.
pub const GRANT_LEN: usize = 28;

const VERSION: u32 = 1;

/// The peer may write this much memory for its message of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) number: u64,
    pub(super) remote: Remote,
    pub(super) len: u32,
}

impl Grant {
    pub(super) fn emit(&self) -> [u8; GRANT_LEN] {
        let mut out = [0; GRANT_LEN];
        out[..4].copy_from_slice(&VERSION.to_be_bytes());
        out[4..12].copy_from_slice(&self.number.to_be_bytes());
        out[12..20].copy_from_slice(&self.remote.addr.to_be_bytes());
        out[20..24].copy_from_slice(&self.remote.rkey.to_be_bytes());
        out[24..].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    pub(super) fn parse(bytes: &[u8]) -> Option<Grant> {
        let bytes: &[u8; GRANT_LEN] = bytes.try_into().ok()?;
        let word = |at: usize| bytes[at..].first_chunk().copied().map(u32::from_be_bytes);
        let long = |at: usize| bytes[at..].first_chunk().copied().map(u64::from_be_bytes);
        if word(0)? != VERSION {
            return None;
        }
        let remote = Remote { addr: long(12)?, rkey: word(20)? };
        Some(Grant { number: long(4)?, remote, len: word(24)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_survives_the_journey() {
        let remote = Remote { addr: 0x0102_0304_0506_0708, rkey: 0x1112_1314 };
        let grant = Grant { number: 0x2122_2324_2526_2728, remote, len: 0x3132_3334 };
        let bytes = grant.emit();
        assert_eq!(Grant::parse(&bytes), Some(grant));
        assert_eq!(Grant::parse(&bytes[1..]), None);
        assert_eq!(Grant::parse(&[0; GRANT_LEN]), None);
    }
}
