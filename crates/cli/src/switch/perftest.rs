//! The keys that perftest's programs exchange over TCP, in fixed-width hexadecimal fields:
//! `LID:out_reads:QPN:PSN:rkey:address:GID byte by byte:…`.

use std::net::{IpAddr, Ipv6Addr};

use bowline::{Endpoint, QpType, RemoteMr};
use bowline_nic::Mtu;
use bowline_wire::{Psn, Qpn, ROCE_UDP_PORT};

/// Positions of the fields before the GID.
const QPN: usize = 2;
const PSN: usize = 3;
const RKEY: usize = 4;
const VADDR: usize = 5;
const GID: usize = 6;
const GID_LEN: usize = 16;
/// The region that a key offers. perftest does not say how long its buffer is, but each member
/// checks its own bounds.
const OFFERED_BYTES: u64 = 1 << 32;

/// A key, as one side sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) qpn: Qpn,
    pub(super) psn: Psn,
    pub(super) rkey: u32,
    pub(super) vaddr: u64,
    pub(super) addr: IpAddr,
}

impl Key {
    /// Parses a message, if it is a key.
    pub(super) fn parse(message: &[u8]) -> Option<Key> {
        let text = message.split(|byte| *byte == 0).next()?;
        let text = std::str::from_utf8(text).ok()?;
        let fields: Vec<&str> = text.split(':').collect();
        if fields.len() < GID + GID_LEN || fields[QPN].len() != 6 {
            return None;
        }
        let number = |at: usize| u64::from_str_radix(fields[at], 16).ok();
        let mut gid = [0; GID_LEN];
        for (index, byte) in gid.iter_mut().enumerate() {
            *byte = u8::from_str_radix(fields[GID + index], 16).ok()?;
        }
        Some(Key {
            qpn: Qpn::new(number(QPN)? as u32),
            psn: Psn::new(number(PSN)? as u32),
            rkey: u32::try_from(number(RKEY)?).ok()?,
            vaddr: number(VADDR)?,
            addr: IpAddr::V6(Ipv6Addr::from(gid)).to_canonical(),
        })
    }

    /// Replaces the QPN and the address in a message that is a key, and leaves the rest unchanged.
    pub(super) fn redirect(message: &mut [u8], qpn: Qpn, addr: IpAddr) {
        let end = message.iter().position(|byte| *byte == 0).unwrap_or(message.len());
        let gid = match addr {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut start = 0;
        for field in 0..GID + GID_LEN {
            let Some(text) = message.get_mut(start..end) else { return };
            let len = text.iter().position(|byte| *byte == b':').unwrap_or(text.len());
            let new = match field {
                QPN => format!("{:06x}", qpn.get()),
                GID.. => format!("{:02x}", gid.octets()[field - GID]),
                _ => String::new(),
            };
            if new.len() == len {
                text[..len].copy_from_slice(new.as_bytes());
            }
            start += len + 1;
        }
    }

    /// The queue pair that the key describes.
    pub(super) fn endpoint(&self) -> Endpoint {
        Endpoint {
            qp_type: QpType::Rc,
            addr: self.addr,
            udp_port: ROCE_UDP_PORT,
            qpn: self.qpn,
            psn: self.psn,
            mtu: Mtu::B4096,
            rd_atomic: 0,
        }
    }

    /// The memory that the key offers.
    pub(super) fn region(&self) -> RemoteMr {
        let len = OFFERED_BYTES.min(u64::MAX - self.vaddr);
        RemoteMr { addr: self.vaddr, len, rkey: self.rkey }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = "0000:0010:00a003:5b8d80:0f00ba11:00007f12a4b06000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:7f:00:00:02:00000000:";

    #[test]
    fn a_key_is_read_and_redirected_in_place() {
        let mut message = MESSAGE.as_bytes().to_vec();
        message.extend([0; 4]);
        let key = Key::parse(&message).expect("it is a key");
        assert_eq!((key.qpn, key.psn), (Qpn::new(0xa003), Psn::new(0x5b_8d80)));
        assert_eq!((key.rkey, key.vaddr), (0x0f00_ba11, 0x7f12_a4b0_6000));
        assert_eq!(key.addr, IpAddr::from([127, 0, 0, 2]));
        let len = message.len();
        Key::redirect(&mut message, Qpn::new(0xfe_0001), [10, 1, 2, 3].into());
        assert_eq!(message.len(), len);
        let changed = Key::parse(&message).expect("it still is");
        let expected = Key { qpn: Qpn::new(0xfe_0001), addr: [10, 1, 2, 3].into(), ..key };
        assert_eq!(changed, expected);
    }

    #[test]
    fn other_messages_are_none() {
        for other in ["", "5.93", "00000005", "done\0", "0000:0010", &MESSAGE[5..]] {
            assert_eq!(Key::parse(other.as_bytes()), None, "{other}");
        }
        let mut other = b"5.93\0\0".to_vec();
        Key::redirect(&mut other, Qpn::new(1), [1, 2, 3, 4].into());
        assert_eq!(other, b"5.93\0\0");
    }
}
