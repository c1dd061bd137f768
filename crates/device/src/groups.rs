//! Multicast groups of a device's queue pairs.
//!
//! Each group has a socket and a thread that reads it. Datagrams to groups are rare, and this way
//! they do not lengthen the lanes' own data path.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_io::{GroupSocket, Lane, UdpConfig, spawn_background};
use bowline_nic::FrameMeta;
use bowline_wire::Qpn;

use crate::DeviceError;

/// How long a thread sleeps before it checks whether it should stop.
const NAP: Duration = Duration::from_millis(200);

/// The groups of a device.
#[derive(Default)]
pub(crate) struct Groups {
    groups: Mutex<HashMap<IpAddr, Group>>,
}

/// The queue pairs of a group, each with its lane.
type Members = Mutex<Vec<(Arc<Lane>, Qpn)>>;

/// One group. Its thread ends with it.
struct Group {
    members: Arc<Members>,
    stops: Arc<AtomicBool>,
}

impl Drop for Group {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that can panic runs under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Groups {
    /// Adds a queue pair of a lane to a group.
    pub(crate) fn attach(
        &self,
        udp: &UdpConfig,
        lane: &Arc<Lane>,
        qpn: Qpn,
        group: IpAddr,
    ) -> Result<(), DeviceError> {
        let mut groups = locked(&self.groups);
        lane.with(|nic, _| nic.attach_group(qpn, group))??;
        let joined = match groups.entry(group) {
            Entry::Occupied(joined) => joined.into_mut(),
            Entry::Vacant(place) => {
                let joined = Group::join(udp, group);
                let undo = |_: &DeviceError| _ = lane.with(|nic, _| nic.detach_group(qpn, group));
                place.insert(joined.inspect_err(undo)?)
            }
        };
        let mut members = locked(&joined.members);
        if members.iter().all(|(_, member)| *member != qpn) {
            members.push((Arc::clone(lane), qpn));
        }
        Ok(())
    }

    /// Removes a queue pair from a group.
    pub(crate) fn detach(
        &self,
        lane: &Arc<Lane>,
        qpn: Qpn,
        group: IpAddr,
    ) -> Result<(), DeviceError> {
        let mut groups = locked(&self.groups);
        lane.with(|nic, _| nic.detach_group(qpn, group))??;
        self.remove(&mut groups, qpn, |other| other == group);
        Ok(())
    }

    /// Removes a destroyed queue pair from all groups.
    pub(crate) fn forget(&self, qpn: Qpn) {
        let mut groups = locked(&self.groups);
        if !groups.is_empty() {
            self.remove(&mut groups, qpn, |_| true);
        }
    }

    /// Leaves all groups.
    pub(crate) fn clear(&self) {
        locked(&self.groups).clear();
    }

    fn remove(&self, groups: &mut HashMap<IpAddr, Group>, qpn: Qpn, of: impl Fn(IpAddr) -> bool) {
        groups.retain(|group, joined| {
            let mut members = locked(&joined.members);
            if of(*group) {
                members.retain(|(_, member)| *member != qpn);
            }
            !members.is_empty()
        });
    }
}

impl Group {
    fn join(udp: &UdpConfig, group: IpAddr) -> Result<Group, DeviceError> {
        let socket = GroupSocket::join(udp.addr, udp.udp_port, group)?;
        let (members, stops) = (Arc::default(), Arc::new(AtomicBool::new(false)));
        let joined = Group { members: Arc::clone(&members), stops: Arc::clone(&stops) };
        let name = format!("bowline-group-{group}");
        spawn_background(name, move || read(socket, &members, &stops))
            .map_err(DeviceError::system("start a thread"))?;
        Ok(joined)
    }
}

fn read(mut socket: GroupSocket, members: &Members, stops: &AtomicBool) {
    while !stops.load(Ordering::Relaxed) {
        let got = socket.recv(&mut |meta: &FrameMeta, frame: &[u8]| {
            let mut given: Vec<Arc<Lane>> = Vec::new();
            for (lane, _) in &*locked(members) {
                if given.iter().all(|other| !Arc::ptr_eq(other, lane)) {
                    given.push(Arc::clone(lane));
                }
            }
            for lane in given {
                // A lane that has ended has no receiver for the frame.
                let _ = lane.with(|nic, now| nic.handle_frame(now, meta, frame));
            }
        });
        match got {
            Ok(0) => {
                if socket.fds().wait_readable(NAP).is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}
