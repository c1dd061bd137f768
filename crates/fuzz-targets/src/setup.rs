//! What a peer says before queue pairs can talk.

use bowline::setup::parse_endpoint;
use bowline_sdr::{ReliableInfo, SdrInfo};

/// Reads a set-up frame, or the connection data of the layers above. What is taken is said again.
pub(crate) fn run(input: &[u8]) {
    let _ = parse_endpoint(input);
    if let Ok(info) = SdrInfo::from_bytes(input) {
        assert_eq!(info.to_bytes(), input);
    }
    if let Ok(info) = ReliableInfo::from_bytes(input) {
        assert_eq!(ReliableInfo::from_bytes(&info.to_bytes()).as_ref(), Ok(&info));
    }
}
