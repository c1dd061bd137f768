//! The entry stored under a key: a line that identifies its owner, and the value.

use crate::Owner;

pub(crate) const MAGIC: &str = "bowline-store 1 ";
/// Longest first line.
const MAX_LINE: usize = 512;

/// Most bytes that an entry has besides its value.
pub(crate) const OVERHEAD_BYTES: usize = MAX_LINE + 1;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) owner: Owner,
    pub(crate) value: Vec<u8>,
}

/// Encodes an entry.
pub(crate) fn encode(owner: &Owner, value: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{MAGIC}{}\n", owner.to_line()).into_bytes();
    bytes.extend_from_slice(value);
    bytes
}

/// Decodes an entry; `None` if it is not one of ours.
pub(crate) fn decode(bytes: &[u8]) -> Option<Entry> {
    let end = bytes.iter().take(MAX_LINE).position(|b| *b == b'\n')?;
    let (line, value) = bytes.split_at_checked(end)?;
    let line = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?;
    Some(Entry { owner: Owner::from_line(line)?, value: value.get(1..)?.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_goes_through_its_bytes() {
        let owner = Owner::this_process();
        for value in [&b""[..], b"\n", b"bowline-store 1 x\n", &[0, 255, 10, 13]] {
            let entry = decode(&encode(&owner, value)).unwrap();
            assert_eq!(entry.value, value);
            assert!(entry.owner.is(&owner));
        }
    }

    #[test]
    fn what_is_no_entry_is_none() {
        let whole = encode(&Owner::this_process(), b"");
        for cut in 0..whole.len() {
            assert!(decode(&whole[..cut]).is_none());
        }
        assert!(decode(&[b'x'; 2000]).is_none());
        assert!(decode(b"bowline-store 2 a 1 2 h p\n").is_none());
    }
}
