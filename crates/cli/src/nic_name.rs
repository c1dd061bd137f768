//! Names of NICs on the command line.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use bowline::{Device, DeviceBuilder, VerbsName, Via};

/// Bowline's NIC at an address, or a verbs device of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NicName {
    /// The soft NIC.
    Addr(IpAddr),
    /// `verbs:NAME`.
    Verbs(VerbsName),
}

impl NicName {
    /// What carries its packets unless told otherwise: memory to programs of this user on this
    /// host, and UDP to all others. A hardware NIC carries its own.
    pub(crate) fn usual_via(&self) -> Via {
        match self {
            NicName::Addr(_) => Via::Auto,
            NicName::Verbs(_) => Via::Udp,
        }
    }

    /// A builder that opens this NIC.
    pub(crate) fn builder(&self) -> DeviceBuilder {
        match self {
            NicName::Addr(addr) => Device::builder(*addr),
            NicName::Verbs(name) => Device::verbs(name.clone()),
        }
    }

    /// The NIC's address. A verbs device is asked for its own.
    pub(crate) fn addr(&self) -> Result<IpAddr, bowline::Error> {
        match self {
            NicName::Addr(addr) | NicName::Verbs(VerbsName { addr: Some(addr), .. }) => Ok(*addr),
            NicName::Verbs(_) => Ok(self.builder().open()?.addr()),
        }
    }
}

impl FromStr for NicName {
    type Err = String;

    fn from_str(text: &str) -> Result<NicName, String> {
        // Accept the `NAME=NIC` syntax of `bowline run`. The name is for programs that it starts,
        // so it is unused here.
        let nic = text.split_once('=').map_or(text, |(_, nic)| nic);
        if VerbsName::is_meant(nic) {
            return nic
                .parse()
                .map(NicName::Verbs)
                .map_err(|e: bowline::ParseVerbsNameError| e.to_string());
        }
        nic.parse().map(NicName::Addr).map_err(|_| {
            format!(
                "invalid device {text:?}: write an IP address, e.g. 10.0.0.7, or verbs:NAME, e.g. \
                 verbs:mlx5_0"
            )
        })
    }
}

impl fmt::Display for NicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicName::Addr(addr) => addr.fmt(f),
            NicName::Verbs(name) => name.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_verbs_devices_are_told_apart() {
        for text in ["10.0.0.7", "fd00::7", "verbs:mlx5_0", "verbs:rxe0@10.0.0.7"] {
            assert_eq!(text.parse::<NicName>().unwrap().to_string(), text);
        }
        assert_eq!("bl0=verbs:rxe0".parse(), Ok(NicName::Verbs("verbs:rxe0".parse().unwrap())));
        for bad in ["", "mlx5_0", "verbs:", "10.0.0"] {
            assert!(bad.parse::<NicName>().unwrap_err().contains("verbs:"), "{bad}");
        }
    }
}
