//! Reads the key for sealing packets from a file.

use std::path::Path;

/// Bytes of a key.
const KEY_LEN: usize = 32;

/// Reads a key: 64 hexadecimal digits, optionally surrounded by white space.
pub(crate) fn read_key(path: &Path) -> Result<[u8; KEY_LEN], String> {
    let name = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {name}: {e}"))?;
    parse_key(text.trim()).ok_or_else(|| {
        format!(
            "{name} is not a key file: it must contain 64 hexadecimal digits; create one with \
             `openssl rand -hex 32 > FILE`"
        )
    })
}

fn parse_key(text: &str) -> Option<[u8; KEY_LEN]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    let mut key = [0; KEY_LEN];
    for (byte, pair) in key.iter_mut().zip(digits.chunks(2)) {
        let digit = |at: usize| (pair[at] as char).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        let key = parse_key(&"0fA5".repeat(16)).unwrap();
        assert_eq!(key[..4], [0x0f, 0xa5, 0x0f, 0xa5]);
        for bad in ["", "0f", &"0g".repeat(32), &"0f".repeat(33), &"é".repeat(32)] {
            assert_eq!(parse_key(bad), None, "{bad}");
        }
    }
}
