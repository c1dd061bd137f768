//! The verbs devices that the system has.

use core::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::ptr::null_mut;

use bowline_nic::Mtu;
use bowline_verbs_types::{
    IBV_GID_TYPE_ROCE_V2, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_TRANSPORT_IB, ibv_context,
    ibv_device, ibv_device_attr, ibv_gid_entry, ibv_port_attr,
};

use crate::VerbsError;
use crate::address::address;
use crate::library::Library;

/// A verbs device of the system.
#[derive(Clone, Debug)]
pub struct ListedDevice {
    /// Its name, as the kernel gives it.
    pub name: String,
    /// Its ports, or why they cannot be asked.
    pub ports: Result<Vec<ListedPort>, String>,
}

/// A port of a verbs device.
#[derive(Clone, Debug)]
pub struct ListedPort {
    /// Its number, from 1 on.
    pub number: u8,
    /// Whether it carries packets.
    pub is_active: bool,
    /// Whether it is an Ethernet port; Bowline uses no other.
    pub is_ethernet: bool,
    /// The largest path MTU that it carries now.
    pub mtu: Option<Mtu>,
    /// Its addresses for RoCE v2, with their places in its GID table.
    pub addresses: Vec<(u32, IpAddr)>,
}

/// The verbs devices of the system.
pub fn list() -> Result<Vec<ListedDevice>, VerbsError> {
    let library = Library::get()?;
    let devices = DeviceList::new(library)?;
    let listed = devices.iter().map(|device| ListedDevice {
        name: device_name(library, device),
        ports: Opened::new(library, device)
            .and_then(|opened| opened.ports())
            .map_err(|error| error.to_string()),
    });
    Ok(listed.collect())
}

/// The library's list of devices.
pub(crate) struct DeviceList {
    library: &'static Library,
    list: *mut *mut ibv_device,
    len: usize,
}

impl DeviceList {
    pub(crate) fn new(library: &'static Library) -> Result<DeviceList, VerbsError> {
        let mut len: c_int = 0;
        // SAFETY: fills in the number.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut len) };
        if list.is_null() {
            return Err(VerbsError::last("list the verbs devices"));
        }
        Ok(DeviceList { library, list, len: usize::try_from(len).unwrap_or(0) })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = *mut ibv_device> {
        // SAFETY: the list has `len` devices and lives as long as `self`.
        (0..self.len).map(|index| unsafe { *self.list.add(index) })
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from the library, and is freed once.
        unsafe { (self.library.ibv_free_device_list)(self.list) };
    }
}

pub(crate) fn device_name(library: &Library, device: *mut ibv_device) -> String {
    // SAFETY: a device of a list that lives; its name is a string that lives as long.
    let name = unsafe { CStr::from_ptr((library.ibv_get_device_name)(device)) };
    name.to_string_lossy().into_owned()
}

/// A device that is open, and closed when this is dropped.
pub(crate) struct Opened {
    pub(crate) library: &'static Library,
    pub(crate) context: *mut ibv_context,
}

impl Opened {
    /// Opens a device of a list that lives.
    pub(crate) fn new(
        library: &'static Library,
        device: *mut ibv_device,
    ) -> Result<Opened, VerbsError> {
        // SAFETY: a device of a list that lives.
        let context = unsafe { (library.ibv_open_device)(device) };
        if context.is_null() {
            return Err(VerbsError::last("open the verbs device"));
        }
        Ok(Opened { library, context })
    }

    /// Whether its transport is InfiniBand's, which RoCE's is, and not iWARP's.
    pub(crate) fn is_infiniband_transport(&self) -> bool {
        // SAFETY: an open context has its device, whose fields are plain numbers.
        unsafe { (*(*self.context).device).transport_type == IBV_TRANSPORT_IB }
    }

    pub(crate) fn attributes(&self) -> Result<ibv_device_attr, VerbsError> {
        let mut attr = MaybeUninit::<ibv_device_attr>::zeroed();
        // SAFETY: an open context, and attributes for it to fill in.
        let code = unsafe { (self.library.ibv_query_device)(self.context, attr.as_mut_ptr()) };
        VerbsError::check("query the verbs device", code)?;
        // SAFETY: plain numbers, all of which have been zero or filled in.
        Ok(unsafe { attr.assume_init() })
    }

    /// Its ports.
    pub(crate) fn ports(&self) -> Result<Vec<ListedPort>, VerbsError> {
        let count = self.attributes()?.phys_port_cnt;
        (1..=count).map(|number| self.port(number)).collect()
    }

    fn port(&self, number: u8) -> Result<ListedPort, VerbsError> {
        let mut attr = ibv_port_attr::default();
        // The function of this name fills in the beginning of the structure, which is all we look
        // at.
        // SAFETY: an open context, and attributes for it to fill in.
        let code = unsafe { (self.library.ibv_query_port)(self.context, number, &raw mut attr) };
        VerbsError::check("query the port", code)?;
        let active_mtu = usize::try_from(attr.active_mtu).unwrap_or(0);
        Ok(ListedPort {
            number,
            is_active: attr.state == IBV_PORT_ACTIVE,
            is_ethernet: attr.link_layer == IBV_LINK_LAYER_ETHERNET,
            mtu: active_mtu.checked_sub(1).and_then(|index| Mtu::ALL.get(index).copied()),
            addresses: self.addresses(number, u32::try_from(attr.gid_tbl_len).unwrap_or(0)),
        })
    }

    /// Addresses of RoCE v2 among the GIDs of a port. The table has holes.
    fn addresses(&self, port: u8, gids: u32) -> Vec<(u32, IpAddr)> {
        let entry = |index| {
            let mut entry = ibv_gid_entry::default();
            let size = size_of::<ibv_gid_entry>();
            // SAFETY: an open context, and an entry of that size for it to fill in.
            let code = unsafe {
                let query = self.library._ibv_query_gid_ex;
                query(self.context, u32::from(port), index, &raw mut entry, 0, size)
            };
            let is_ours = code == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2;
            is_ours.then(|| (index, address(&entry.gid)))
        };
        (0..gids).filter_map(entry).filter(|(_, addr)| !addr.is_unspecified()).collect()
    }

    /// Gives the context up to somebody who closes it.
    pub(crate) fn into_context(mut self) -> *mut ibv_context {
        std::mem::replace(&mut self.context, null_mut())
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if !self.context.is_null() {
            // SAFETY: opened by us, nothing was made on it, and closed once.
            let _ = unsafe { (self.library.ibv_close_device)(self.context) };
        }
    }
}
