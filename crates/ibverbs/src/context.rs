//! Open verbs devices.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_io::EventChannel;
use bowline_nic::{Event, Mtu};
use bowline_verbs_types::{
    IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_PORT_ACTIVE, ibv_comp_channel, ibv_context, ibv_device_attr,
    ibv_port_attr,
};

use crate::library::Library;
use crate::list::{DeviceList, ListedPort, Opened, device_name};
use crate::watch::{Watched, Watcher};
use crate::{VerbsError, VerbsName, quirks};

/// `IBV_DEVICE_MEM_WINDOW_TYPE_2A` of the header, which Bowline's own library does not claim.
const MEM_WINDOW_TYPE_2A: u32 = 1 << 23;

/// What an open device is and can do.
#[derive(Clone, Debug)]
pub struct Caps {
    /// Its name, as the kernel gives it.
    pub name: String,
    /// Who made it, by IEEE's number; the kernel's rxe has [`Caps::RXE`].
    pub vendor_id: u32,
    /// Its address.
    pub addr: IpAddr,
    /// The largest path MTU that its port carries.
    pub mtu: Mtu,
    /// Queue pairs at once.
    pub max_qps: u32,
    /// Completion queues at once.
    pub max_cqs: u32,
    /// Shared receive queues at once.
    pub max_srqs: u32,
    /// Protection domains at once.
    pub max_pds: u32,
    /// Memory regions at once.
    pub max_mrs: u32,
    /// Work requests in a queue.
    pub max_wr: u32,
    /// Entries of a gather or scatter list.
    pub max_sge: u8,
    /// Completions in a completion queue.
    pub max_cqe: u32,
    /// READs and atomics outstanding, per queue pair and direction.
    pub max_rd_atomic: u8,
    /// Address handles at once: destinations of datagrams.
    pub max_destinations: u32,
    /// Whether it has memory windows of type 2.
    pub has_windows: bool,
    /// Whether it has atomics.
    pub has_atomics: bool,
}

impl Caps {
    /// The vendor of the Linux kernel's own RoCE, `RXE_VENDOR_ID` there.
    pub const RXE: u32 = 0xff_ffff;
}

/// An open verbs device.
pub struct Context {
    pub(crate) library: &'static Library,
    pub(crate) raw: *mut ibv_context,
    /// Where completion queues report that ask for events.
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) port: u8,
    pub(crate) sgid_index: u8,
    pub(crate) invalidation_flag: u32,
    pub(crate) watched: Arc<Watched>,
    caps: Caps,
    /// Ended before the context is closed.
    watcher: Option<Watcher>,
}

// SAFETY: libibverbs' contexts and what is made of them may be used from any thread, and from
// several at once: its documentation says so, and providers lock their queues.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Opens a device. Its asynchronous events go to `events`.
    pub fn open(
        name: &VerbsName,
        events: Arc<EventChannel<Event>>,
    ) -> Result<Arc<Context>, VerbsError> {
        let library = Library::get()?;
        let opened = find(library, &name.device)?;
        if !opened.is_infiniband_transport() {
            let why = "it is an iWARP device, whose connections only rdma_cm can make: use a RoCE \
                       device, or Bowline's soft NIC on the address of its interface"
                .to_owned();
            return Err(VerbsError::Unusable { name: name.device.clone(), why });
        }
        let attr = opened.attributes()?;
        let (port, sgid_index, addr) = choose(name, &opened.ports()?)?;
        let caps = caps(&name.device, addr, &port, &attr);
        // SAFETY: an open context.
        let channel = unsafe { (library.ibv_create_comp_channel)(opened.context) };
        if channel.is_null() {
            return Err(VerbsError::last("make a completion channel"));
        }
        let watched = Arc::new(Watched::new(events));
        let mut context = Context {
            library,
            raw: opened.into_context(),
            channel,
            port: port.number,
            sgid_index,
            invalidation_flag: quirks::invalidation_flag(attr.vendor_id),
            watched: Arc::clone(&watched),
            caps,
            watcher: None,
        };
        // From here on dropping `context` closes what was opened, also if this fails.
        context.watcher = Some(Watcher::start(library, context.raw, channel, watched)?);
        Ok(Arc::new(context))
    }

    /// What it is and can do.
    pub fn caps(&self) -> &Caps {
        &self.caps
    }

    /// The provider's own context, which lives as long as this.
    pub fn raw(&self) -> *mut ibv_context {
        self.raw
    }

    /// The port that is used, and the place of the address in its GID table.
    pub fn port(&self) -> (u8, u8) {
        (self.port, self.sgid_index)
    }

    /// Whether its port carries packets now.
    pub fn is_up(&self) -> bool {
        let mut attr = ibv_port_attr::default();
        // SAFETY: an open context, and attributes for it to fill in.
        let code = unsafe { (self.library.ibv_query_port)(self.raw, self.port, &raw mut attr) };
        code == 0 && attr.state == IBV_PORT_ACTIVE
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Its thread uses the channel and the context.
        drop(self.watcher.take());
        // SAFETY: everything made of the context holds it, so that nothing is left of it; each is
        // ended once.
        unsafe {
            let _ = (self.library.ibv_destroy_comp_channel)(self.channel);
            let _ = (self.library.ibv_close_device)(self.raw);
        }
    }
}

fn find(library: &'static Library, name: &str) -> Result<Opened, VerbsError> {
    let devices = DeviceList::new(library)?;
    if let Some(device) = devices.iter().find(|device| device_name(library, *device) == name) {
        return Opened::new(library, device);
    }
    let names: Vec<String> = devices.iter().map(|device| device_name(library, device)).collect();
    let there = match names.is_empty() {
        true => "the system has none".to_owned(),
        false => format!("the system has {}", names.join(", ")),
    };
    Err(VerbsError::NoDevice { name: name.to_owned(), there })
}

/// The port to use, and which of its addresses.
fn choose(name: &VerbsName, ports: &[ListedPort]) -> Result<(ListedPort, u8, IpAddr), VerbsError> {
    let unusable =
        |why: &str| VerbsError::Unusable { name: name.device.clone(), why: why.to_owned() };
    if !ports.iter().any(|port| port.is_ethernet) {
        return Err(unusable(
            "its ports are InfiniBand's, and Bowline finds peers by IP address: use a RoCE port",
        ));
    }
    let active: Vec<&ListedPort> =
        ports.iter().filter(|port| port.is_ethernet && port.is_active).collect();
    if active.is_empty() {
        return Err(unusable("none of its ports is active: bring its network interface up"));
    }
    let all = active
        .iter()
        .flat_map(|port| port.addresses.iter().map(move |(index, addr)| (*port, *index, *addr)));
    // GIDs beyond 255 cannot be named in an address handle.
    let mut all: Vec<_> =
        all.filter_map(|(p, index, addr)| Some((p, u8::try_from(index).ok()?, addr))).collect();
    // Stable: the first of the best kind.
    all.sort_by_key(|(_, _, addr)| rank(*addr));
    let found = match name.addr {
        None => all.first(),
        Some(wanted) => all.iter().find(|(_, _, addr)| *addr == wanted),
    };
    match (found, name.addr) {
        (Some((port, index, addr)), _) => Ok(((*port).clone(), *index, *addr)),
        (None, None) => {
            Err(unusable("it has no address for RoCE v2: give its network interface an IP address"))
        }
        (None, Some(addr)) => {
            let there: Vec<String> = all.iter().map(|(_, _, addr)| addr.to_string()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            Err(VerbsError::NoAddress { name: name.device.clone(), addr, there })
        }
    }
}

/// Which addresses to take first: IPv4, then those of IPv6 that routers forward.
fn rank(addr: IpAddr) -> u8 {
    match addr {
        IpAddr::V4(_) => 0,
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    }
}

fn caps(name: &str, addr: IpAddr, port: &ListedPort, attr: &ibv_device_attr) -> Caps {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    let byte = |value: i32| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
    let windows = MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    Caps {
        name: name.to_owned(),
        vendor_id: attr.vendor_id,
        addr,
        mtu: port.mtu.unwrap_or(Mtu::B1024),
        max_qps: count(attr.max_qp),
        max_cqs: count(attr.max_cq),
        max_srqs: count(attr.max_srq),
        max_pds: count(attr.max_pd),
        max_mrs: count(attr.max_mr),
        max_wr: count(attr.max_qp_wr),
        max_sge: byte(attr.max_sge),
        max_cqe: count(attr.max_cqe),
        max_rd_atomic: byte(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom)),
        max_destinations: count(attr.max_ah),
        has_windows: attr.device_cap_flags & windows != 0,
        has_atomics: attr.atomic_cap != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(number: u8, is_active: bool, addresses: &[&str]) -> ListedPort {
        let addresses = addresses.iter().enumerate();
        let addresses = addresses.map(|(i, a)| (i as u32, a.parse().unwrap())).collect();
        ListedPort { number, is_active, is_ethernet: true, mtu: Some(Mtu::B1024), addresses }
    }

    #[test]
    fn the_first_ipv4_address_of_an_active_port_is_taken_unless_one_is_named() {
        let ports = [port(1, false, &["192.0.2.1"]), port(2, true, &["fe80::2", "192.0.2.2"])];
        let (chosen, index, addr) = choose(&"verbs:a".parse().unwrap(), &ports).unwrap();
        assert_eq!((chosen.number, index, addr.to_string()), (2, 1, "192.0.2.2".to_owned()));
        let (_, index, addr) = choose(&"verbs:a@fe80::2".parse().unwrap(), &ports).unwrap();
        assert_eq!((index, addr.to_string()), (0, "fe80::2".to_owned()));
        let error = choose(&"verbs:a@192.0.2.1".parse().unwrap(), &ports).unwrap_err();
        assert!(error.to_string().contains("it has 192.0.2.2, fe80::2"), "{error}");
    }

    #[test]
    fn a_device_without_a_usable_port_says_what_to_do() {
        let name = "verbs:a".parse().unwrap();
        let error = choose(&name, &[port(1, false, &["192.0.2.1"])]).unwrap_err().to_string();
        assert!(error.contains("bring its network interface up"), "{error}");
        let error = choose(&name, &[port(1, true, &[])]).unwrap_err().to_string();
        assert!(error.contains("IP address"), "{error}");
        let infiniband = ListedPort { is_ethernet: false, ..port(1, true, &["192.0.2.1"]) };
        let error = choose(&name, &[infiniband]).unwrap_err().to_string();
        assert!(error.contains("use a RoCE port"), "{error}");
    }
}
