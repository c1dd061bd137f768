//! Names of verbs devices, and addresses as GIDs.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use bowline_nic::AddressVector;
use bowline_verbs_types::{ibv_ah_attr, ibv_gid};

/// What a name begins with where addresses and names may stand.
const PREFIX: &str = "verbs:";

/// A verbs device by name, as in `verbs:mlx5_0`, and perhaps which of its addresses, as in
/// `verbs:rxe0@fe80::2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerbsName {
    /// The device, as the kernel names it.
    pub device: String,
    /// Its address to use; the first IPv4 address of its RoCE v2 GIDs, or else the first at all, if
    /// `None`.
    pub addr: Option<IpAddr>,
}

impl VerbsName {
    /// Whether text is meant to be one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }
}

/// Text that is no [`VerbsName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid verbs device {0:?}: write verbs:NAME or verbs:NAME@ADDRESS, e.g. verbs:mlx5_0 or \
     verbs:rxe0@192.0.2.7"
)]
pub struct ParseNameError(String);

impl FromStr for VerbsName {
    type Err = ParseNameError;

    fn from_str(text: &str) -> Result<VerbsName, ParseNameError> {
        let wrong = || ParseNameError(text.to_owned());
        let rest = text.strip_prefix(PREFIX).ok_or_else(wrong)?;
        let (device, addr) = match rest.split_once('@') {
            Some((device, addr)) => (device, Some(addr.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let valid = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if device.is_empty() || !device.chars().all(valid) {
            return Err(wrong());
        }
        Ok(VerbsName { device: device.to_owned(), addr })
    }
}

impl fmt::Display for VerbsName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.device)?;
        self.addr.map_or(Ok(()), |addr| write!(f, "@{addr}"))
    }
}

/// The GID of an address: IPv4 addresses are mapped.
pub fn gid(addr: IpAddr) -> ibv_gid {
    let v6 = match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    ibv_gid { raw: v6.octets() }
}

/// The address of a GID.
pub fn address(gid: &ibv_gid) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from(gid.raw)).to_canonical()
}

/// The attributes of an address handle to `av`, from one of our GIDs.
pub(crate) fn ah_attr(av: &AddressVector, port: u8, sgid_index: u8) -> ibv_ah_attr {
    let mut attr = ibv_ah_attr { is_global: 1, port_num: port, ..ibv_ah_attr::default() };
    attr.grh.dgid = gid(av.dst);
    attr.grh.sgid_index = sgid_index;
    attr.grh.hop_limit = 64;
    attr.grh.traffic_class = av.traffic_class;
    attr
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in ["verbs:mlx5_0", "verbs:rxe0@192.0.2.7", "verbs:rxe-1.2@fe80::2"] {
            assert_eq!(text.parse::<VerbsName>().unwrap().to_string(), text);
        }
        for bad in ["", "verbs:", "mlx5_0", "verbs:a b", "verbs:rxe0@", "verbs:@127.0.0.1"] {
            let error = bad.parse::<VerbsName>().unwrap_err().to_string();
            assert!(error.contains("verbs:NAME"), "{error}");
        }
    }

    #[test]
    fn addresses_and_gids_are_each_other_s() {
        for text in ["192.0.2.7", "fe80::2", "2001:db8::1"] {
            let addr: IpAddr = text.parse().unwrap();
            assert_eq!(address(&gid(addr)), addr);
        }
    }
}
