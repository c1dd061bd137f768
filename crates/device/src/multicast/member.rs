//! The port of a member of a group that IP multicast carries: the last switch before the member.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bowline_io::{FrameSink, Lane, Multicasts, Translator};
use bowline_multicast::{
    Arrival, Branch, Edit, GroupKey, Leaf, Region, Switch, SwitchLimits, Table, Verdict,
};
use bowline_nic::{FrameMeta, Time};
use bowline_wire::{BthView, FlowKey, Opcode, Qpn};

use super::probe::{self, Nonce};
use crate::{DeviceError, Qp};

/// What a member must know to receive a group.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The multicast address.
    pub group: IpAddr,
    /// The sender's address and the group ID: everything else is dropped.
    pub key: GroupKey,
    /// The members' memory, as the sender addresses it.
    pub regions: Vec<Region>,
    /// The member's queue pair and memory.
    pub leaf: Leaf,
    /// The secret number of the sender's probes.
    pub nonce: Nonce,
}

/// The multicast addresses that a device's queue pairs receive, by queue pair.
#[derive(Default)]
pub(crate) struct Memberships {
    joined: Mutex<HashMap<Qpn, Joined>>,
}

/// One membership. Dropping it leaves the group.
struct Joined {
    multicasts: Arc<Multicasts>,
    number: u64,
    heard: Arc<AtomicBool>,
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.multicasts.leave(self.number);
    }
}

impl Memberships {
    fn joined(&self) -> MutexGuard<'_, HashMap<Qpn, Joined>> {
        // Nothing that can panic runs under this lock.
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join(&self, lane: &Lane, qpn: Qpn, membership: Membership) -> Result<(), DeviceError> {
        let Some(multicasts) = lane.multicasts().cloned() else {
            let why = "its port has no sockets: use --via udp".to_owned();
            return Err(DeviceError::Invalid { what: "multicast group", why });
        };
        let (heard, group) = (Arc::new(AtomicBool::new(false)), membership.group);
        let own = lane.port_caps();
        let last = LastSwitch::new(own.addr, own.udp_port, membership, Arc::clone(&heard))?;
        let number = multicasts.join(group, Box::new(last))?;
        self.joined().insert(qpn, Joined { multicasts, number, heard });
        lane.wake();
        Ok(())
    }

    /// Leaves the group of a queue pair, if it has one.
    pub(crate) fn forget(&self, qpn: Qpn) {
        self.joined().remove(&qpn);
    }

    /// Leaves all groups.
    pub(crate) fn clear(&self) {
        self.joined().clear();
    }
}

impl Qp {
    /// Receives what a sender sends to a multicast address, as if it were sent to this queue pair,
    /// until that is destroyed. A queue pair receives one group at a time.
    ///
    /// # Errors
    /// If the device has no UDP port or has a backup, or the kernel refuses.
    pub fn join_multicast(&self, membership: Membership) -> Result<(), DeviceError> {
        let device = self.device();
        device.needs_soft_nic("IP multicast")?;
        if device.failover().is_some() {
            let why = "the device moves connections to a backup".to_owned();
            return Err(DeviceError::Invalid { what: "multicast group", why });
        }
        device.memberships.join(device.lane(self.lane()), self.qpn(), membership)
    }

    /// Whether a probe of the group's sender has arrived.
    pub fn has_heard_multicast(&self) -> bool {
        let joined = self.device().memberships.joined();
        joined.get(&self.qpn()).is_some_and(|joined| joined.heard.load(Ordering::Acquire))
    }

    /// Stops receiving the multicast address.
    pub fn leave_multicast(&self) {
        self.device().memberships.forget(self.qpn());
    }
}

/// Rewrites the group's packets for the member, as a switch in front of it would.
pub(super) struct LastSwitch {
    engine: Switch,
    id: Qpn,
    /// The rewrite of the last packet from the middle of a message, by flow and length. Most
    /// packets of a long message need the same one.
    middle: Option<(FlowKey, usize, Edit)>,
    addr: IpAddr,
    udp_port: u16,
    sender: IpAddr,
    nonce: Nonce,
    heard: Arc<AtomicBool>,
}

impl LastSwitch {
    pub(super) fn new(
        addr: IpAddr,
        udp_port: u16,
        membership: Membership,
        heard: Arc<AtomicBool>,
    ) -> Result<LastSwitch, DeviceError> {
        let Membership { key, regions, leaf, nonce, .. } = membership;
        let branches = vec![Branch { dst: addr, src: None, leaf: Some(leaf) }];
        let mut engine = Switch::new(SwitchLimits { groups: 1 });
        let table = Table { key, epoch: 1, branches, regions, root: None };
        engine.install(Time::ZERO, table).map_err(|error| DeviceError::Invalid {
            what: "multicast group",
            why: error.to_string(),
        })?;
        let GroupKey { sender, id } = key;
        Ok(LastSwitch { engine, id, middle: None, addr, udp_port, sender, nonce, heard })
    }

    /// Rewrites a frame for the member. Returns whether it is one of the group's.
    fn rewrite(&mut self, now: Time, flow: &FlowKey, frame: &mut [u8]) -> bool {
        let is_middle = self.is_middle(frame);
        if is_middle
            && let Some((known, len, edit)) = &self.middle
            && (known, *len) == (flow, frame.len())
        {
            edit.apply(frame);
            return true;
        }
        let arrival = Arrival { flow: *flow, ip_id: None, bytes: frame };
        match self.engine.handle_data(now, &arrival) {
            Verdict::Replicate(replicas) => {
                let Some(edit) = self.engine.edit(&replicas, 0) else { return false };
                edit.apply(frame);
                if is_middle {
                    self.middle = Some((*flow, frame.len(), edit));
                }
                true
            }
            Verdict::Pass | Verdict::Taken => {
                if flow.src == self.sender && probe::is_probe(frame, &self.nonce) {
                    self.heard.store(true, Ordering::Release);
                }
                false
            }
        }
    }
}

impl LastSwitch {
    /// Whether a frame is one of the group's from the middle of a message: it names no memory, so
    /// its rewrite depends on its flow and length alone.
    fn is_middle(&self, frame: &[u8]) -> bool {
        let Ok(bth) = BthView::new(frame) else { return false };
        let is_of_middle =
            [Opcode::RC_WRITE_MIDDLE, Opcode::RC_SEND_MIDDLE].contains(&bth.opcode());
        is_of_middle && bth.dest_qpn() == self.id
    }
}

impl Translator for LastSwitch {
    fn frames(
        &mut self,
        now: Time,
        meta: &FrameMeta,
        bytes: &mut [u8],
        frame_len: usize,
        sink: &mut dyn FrameSink,
    ) -> usize {
        let FrameMeta { src, dst, src_port, .. } = *meta;
        let flow = FlowKey { src, dst, src_port, dst_port: self.udp_port };
        let (own, frame_len, end) = (self.addr, frame_len.max(1), bytes.len());
        let mut deliver = |bytes: &[u8], run: Range<usize>| {
            if run.is_empty() {
                return 0;
            }
            let mut meta = FrameMeta { dst: own, ..*meta };
            meta.ip_id.skip(run.start / frame_len);
            sink.frames(&meta, &bytes[run.clone()], frame_len);
            run.len().div_ceil(frame_len)
        };
        // The start of the frames that are the group's and have not been delivered.
        let (mut start, mut delivered) = (0, 0);
        for at in (0..end).step_by(frame_len) {
            let next = (at + frame_len).min(end);
            if !self.rewrite(now, &flow, &mut bytes[at..next]) {
                delivered += deliver(bytes, start..at);
                start = next;
            }
        }
        delivered + deliver(bytes, start..end)
    }
}
