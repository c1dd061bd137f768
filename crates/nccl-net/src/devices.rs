//! The NICs that NCCL may use.

use std::ffi::{CString, c_int};
use std::net::IpAddr;
use std::path::Path;
use std::ptr::null;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use bowline::Device;
use bowline_io::LocalAddress;

use crate::abi::{
    DEVICE_HOST, MAX_DEVS_PER_NIC, MAX_NET_SIZE, PTR_HOST, PropertiesV8, PropertiesV9,
    PropertiesV11, VDevice,
};
use crate::comm::MAX_GROUP;
use crate::config;
use crate::status::Trouble;

/// Speed in Mbit/s of interfaces that report none, such as virtual ones.
const USUAL_SPEED: c_int = 10_000;
/// Maximum number of connections of a device: each has one or two queue pairs.
const MAX_COMMS: c_int = 16_384;

/// A NIC. It is opened when a connection needs it, and closed with the last connection.
#[derive(Debug)]
pub(crate) struct Nic {
    name: CString,
    addr: IpAddr,
    pci_path: Option<CString>,
    speed: c_int,
    open: Mutex<Weak<OpenNic>>,
}

/// An open device.
#[derive(Debug)]
pub(crate) struct OpenNic {
    pub(crate) device: Device,
}

/// All NICs, listed once because NCCL keeps pointers to their names.
pub(crate) fn all() -> Result<&'static [Nic], Trouble> {
    static ALL: OnceLock<Result<Vec<Nic>, String>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let local = bowline_io::local_addresses()
            .map_err(|e| format!("cannot list the addresses of this machine: {e}"))?;
        list(&|name| std::env::var(name).ok().filter(|text| !text.is_empty()), &local)
    });
    all.as_deref().map_err(|why| Trouble::usage(why.clone()))
}

/// The NIC with this index.
pub(crate) fn get(index: c_int) -> Result<&'static Nic, Trouble> {
    let all = all()?;
    usize::try_from(index).ok().and_then(|index| all.get(index)).ok_or_else(|| {
        Trouble::argument(format!("there is no device {index}: there are {}", all.len()))
    })
}

/// The NICs that `BOWLINE_DEVICES` or `BOWLINE_DEVICE` names. By default, the first address of this
/// machine, which other hosts can reach if there is such an address. The addresses after it may
/// belong to container bridges, which other hosts cannot reach.
fn list(get: &dyn Fn(&str) -> Option<String>, local: &[LocalAddress]) -> Result<Vec<Nic>, String> {
    let nic = |name: &str, addr: IpAddr| Nic::new(name, addr, local);
    if let Some(list) = get("BOWLINE_DEVICES") {
        let items = list.split([',', ' ']).filter(|item| !item.is_empty());
        let parse = |item: &str| {
            let (name, addr) = item.split_once('=')?;
            nic(name, addr.parse().ok()?)
        };
        let wrong = |item| {
            format!(
                "BOWLINE_DEVICES: invalid entry {item:?}: use NAME=ADDRESS, e.g. bl0=192.168.1.7"
            )
        };
        return items.map(|item| parse(item).ok_or_else(|| wrong(item))).collect();
    }
    if let Some(addr) = get("BOWLINE_DEVICE") {
        let parsed = addr.parse().ok().and_then(|addr| nic("bl0", addr));
        let wrong = || format!("BOWLINE_DEVICE={addr}: invalid IP address: use e.g. 192.168.1.7");
        return parsed.map(|nic| vec![nic]).ok_or_else(wrong);
    }
    let mut addrs = local.iter().map(|local| local.addr);
    let first = addrs.clone().find(|addr| !addr.is_loopback()).or_else(|| addrs.next());
    Ok(first.and_then(|addr| nic("bl0", addr)).into_iter().collect())
}

impl Nic {
    fn new(name: &str, addr: IpAddr, local: &[LocalAddress]) -> Option<Nic> {
        let interface = local.iter().find(|local| local.addr == addr);
        let of = |file: &str| {
            let name = &interface?.interface;
            Some(Path::new("/sys/class/net").join(name).join(file))
        };
        let pci_path = of("device").and_then(|path| std::fs::canonicalize(path).ok());
        let speed = of("speed").and_then(|path| std::fs::read_to_string(path).ok());
        let speed = speed.and_then(|text| text.trim().parse::<c_int>().ok());
        Some(Nic {
            name: CString::new(name).ok().filter(|name| !name.is_empty())?,
            addr,
            pci_path: pci_path.and_then(|path| CString::new(path.to_str()?).ok()),
            // A link that is down reports -1.
            speed: speed.filter(|speed| *speed > 0).unwrap_or(USUAL_SPEED),
            open: Mutex::default(),
        })
    }

    /// Its address.
    pub(crate) fn addr(&self) -> IpAddr {
        self.addr
    }

    /// The device, opened if necessary.
    pub(crate) fn open(&self) -> Result<Arc<OpenNic>, Trouble> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(nic) = open.upgrade() {
            return Ok(nic);
        }
        let device = config::device_builder(self.addr)?.open()?;
        let nic = Arc::new(OpenNic { device });
        *open = Arc::downgrade(&nic);
        Ok(nic)
    }

    /// An identifier that no other address has.
    fn guid(&self) -> u64 {
        let hash = match self.addr {
            IpAddr::V4(addr) => blake3::hash(&addr.octets()),
            IpAddr::V6(addr) => blake3::hash(&addr.octets()),
        };
        let (first, _) = hash.as_bytes().split_at(8);
        first.iter().fold(0, |guid, byte| guid << 8 | u64::from(*byte))
    }

    pub(crate) fn properties_v8(&self) -> PropertiesV8 {
        PropertiesV8 {
            name: self.name.as_ptr(),
            pci_path: self.pci_path.as_ref().map_or(null(), |path| path.as_ptr()),
            guid: self.guid(),
            ptr_support: PTR_HOST,
            reg_is_global: 0,
            speed: self.speed,
            port: 1,
            latency: 0.0,
            max_comms: MAX_COMMS,
            max_recvs: MAX_GROUP as c_int,
            net_device_type: DEVICE_HOST,
            net_device_version: 0,
        }
    }

    pub(crate) fn properties_v9(&self, index: c_int) -> PropertiesV9 {
        let v8 = self.properties_v8();
        let mut devs = [0; MAX_DEVS_PER_NIC];
        devs[0] = index;
        PropertiesV9 {
            name: v8.name,
            pci_path: v8.pci_path,
            guid: v8.guid,
            ptr_support: v8.ptr_support,
            reg_is_global: v8.reg_is_global,
            force_flush: 0,
            speed: v8.speed,
            port: v8.port,
            latency: v8.latency,
            max_comms: v8.max_comms,
            max_recvs: v8.max_recvs,
            net_device_type: v8.net_device_type,
            net_device_version: v8.net_device_version,
            v_props: VDevice { ndevs: 1, devs },
            max_p2p_bytes: MAX_NET_SIZE,
            max_coll_bytes: MAX_NET_SIZE,
        }
    }

    pub(crate) fn properties_v11(&self, index: c_int) -> PropertiesV11 {
        PropertiesV11 { v9: self.properties_v9(index), max_multi_request_size: 1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(addrs: &[&str]) -> Vec<LocalAddress> {
        let addr = |addr: &&str| LocalAddress {
            addr: addr.parse().unwrap(),
            interface: "none0".to_owned(),
            index: 1,
            mtu: 1500,
        };
        addrs.iter().map(addr).collect()
    }

    fn names(vars: &[(&str, &str)], addrs: &[&str]) -> Result<Vec<(String, String)>, String> {
        let get = |name: &str| {
            vars.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).to_owned())
        };
        let nics = list(&get, &local(addrs))?;
        let pair = |nic: &Nic| (nic.name.to_str().unwrap().to_owned(), nic.addr.to_string());
        Ok(nics.iter().map(pair).collect())
    }

    fn pair(name: &str, addr: &str) -> (String, String) {
        (name.to_owned(), addr.to_owned())
    }

    #[test]
    fn variables_name_devices_and_otherwise_addresses_do() {
        let here = ["127.0.0.1", "10.0.0.7", "fd00::7"];
        assert_eq!(names(&[], &here).unwrap(), [pair("bl0", "10.0.0.7")]);
        assert_eq!(names(&[], &here[..1]).unwrap(), [pair("bl0", "127.0.0.1")]);
        let one = names(&[("BOWLINE_DEVICE", "127.0.0.9")], &here).unwrap();
        assert_eq!(one, [pair("bl0", "127.0.0.9")]);
        let two = [("BOWLINE_DEVICES", "a=10.0.0.1,b=fd00::1"), ("BOWLINE_DEVICE", "127.0.0.1")];
        assert_eq!(names(&two, &here).unwrap(), [pair("a", "10.0.0.1"), pair("b", "fd00::1")]);
    }

    #[test]
    fn what_cannot_be_a_device_is_named() {
        for bad in ["bl0", "=127.0.0.1", "a=localhost"] {
            assert!(names(&[("BOWLINE_DEVICES", bad)], &[]).unwrap_err().contains(bad));
        }
        assert!(names(&[("BOWLINE_DEVICE", "eth0")], &[]).unwrap_err().contains("eth0"));
    }

    #[test]
    fn addresses_have_identifiers_of_their_own() {
        let get = |_: &str| Some("a=10.0.0.7,b=10.0.0.8".to_owned());
        let nics = list(&get, &[]).unwrap();
        assert_ne!(nics[0].guid(), nics[1].guid());
        let properties = nics[1].properties_v11(1);
        assert_eq!(properties.v9.v_props.devs[0], 1);
        assert_eq!(properties.v9.ptr_support, PTR_HOST);
    }
}
