//! What a listening end tells the other end through NCCL.
//!
//! ```text
//! "BLNC", version (1), transport (1), flags (1: sealed), 0, port (2), 0 (2),
//! address (16), key (32)
//! ```
//! IPv4 addresses are mapped into IPv6. The key travels only over NCCL's own connections.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bowline::CommTransport;

use crate::abi::HANDLE_BYTES;
use crate::status::Trouble;

const MAGIC: &[u8; 4] = b"BLNC";
/// Version of everything that the ends send each other.
const VERSION: u8 = 1;
const SEALED: u8 = 1;
const ADDR_AT: usize = 12;
const KEY_AT: usize = 28;
const LEN: usize = KEY_AT + KEY_BYTES;
/// Length of the key in bytes.
pub(super) const KEY_BYTES: usize = 32;

/// Where an end listens, and the key that it requires.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Handle {
    pub(super) addr: SocketAddr,
    pub(super) transport: CommTransport,
    pub(super) seal: bool,
    pub(super) key: [u8; KEY_BYTES],
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({} by {}, sealed: {})", self.addr, self.transport.name(), self.seal)
    }
}

impl Handle {
    pub(super) fn to_bytes(&self) -> [u8; HANDLE_BYTES] {
        const { assert!(LEN <= HANDLE_BYTES) };
        let transport = CommTransport::ALL.iter().position(|known| *known == self.transport);
        let ip = match self.addr.ip() {
            IpAddr::V4(addr) => addr.to_ipv6_mapped(),
            IpAddr::V6(addr) => addr,
        };
        let mut out = [0; HANDLE_BYTES];
        out[..4].copy_from_slice(MAGIC);
        out[4] = VERSION;
        out[5] = transport.unwrap_or(0) as u8;
        out[6] = if self.seal { SEALED } else { 0 };
        out[8..10].copy_from_slice(&self.addr.port().to_be_bytes());
        out[ADDR_AT..KEY_AT].copy_from_slice(&ip.octets());
        out[KEY_AT..LEN].copy_from_slice(&self.key);
        out
    }

    pub(super) fn parse(bytes: &[u8; HANDLE_BYTES]) -> Result<Handle, Trouble> {
        let wrong = |what: &str| {
            let why =
                format!("the handle of the peer has {what}: run the same plug-in on all ranks");
            Err(Trouble::argument(why))
        };
        if &bytes[..4] != MAGIC {
            return wrong("another beginning than Bowline's");
        }
        if bytes[4] != VERSION {
            return wrong(&format!("version {} and not {VERSION}", bytes[4]));
        }
        let Some(transport) = CommTransport::ALL.get(usize::from(bytes[5])).copied() else {
            return wrong("a transport that this release does not know");
        };
        let (mut ip, mut key) = ([0; 16], [0; KEY_BYTES]);
        ip.copy_from_slice(&bytes[ADDR_AT..KEY_AT]);
        key.copy_from_slice(&bytes[KEY_AT..LEN]);
        let ip = Ipv6Addr::from(ip).to_canonical();
        let port = u16::from_be_bytes([bytes[8], bytes[9]]);
        let seal = match bytes[6] {
            0 => false,
            SEALED => true,
            _ => return wrong("flags that this release does not know"),
        };
        if ip.is_unspecified() || port == 0 {
            return wrong("no address");
        }
        Ok(Handle { addr: SocketAddr::new(ip, port), transport, seal, key })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_come_back_as_they_were() {
        for addr in ["10.0.0.7:4000", "[fd00::7]:1"] {
            for transport in CommTransport::ALL {
                let addr = addr.parse().unwrap();
                let handle = Handle { addr, transport, seal: true, key: [7; KEY_BYTES] };
                assert_eq!(Handle::parse(&handle.to_bytes()).unwrap(), handle);
                assert!(!format!("{handle:?}").contains("7, 7"), "the key is not for logs");
            }
        }
    }

    #[test]
    fn what_cannot_be_a_handle_is_refused() {
        let addr = "10.0.0.7:4000".parse().unwrap();
        let key = [7; KEY_BYTES];
        let good = Handle { addr, transport: CommTransport::Rc, seal: false, key }.to_bytes();
        assert!(Handle::parse(&[0; HANDLE_BYTES]).is_err());
        for (at, value) in [(0, b'X'), (4, 9), (5, 99), (6, 2)] {
            let mut bad = good;
            bad[at] = value;
            assert!(Handle::parse(&bad).is_err(), "byte {at}");
        }
        let mut nowhere = good;
        nowhere[8..10].fill(0);
        assert!(Handle::parse(&nowhere).is_err());
    }
}
