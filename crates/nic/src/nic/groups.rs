//! Multicast groups: one datagram delivered to several QPs.

use core::net::IpAddr;

use bowline_wire::{PacketView, Qpn};

use super::Nic;
use crate::error::ControlError;
use crate::frame::FrameMeta;
use crate::time::Time;

/// What a QP may be in.
const GROUP: &str = "multicast group";

impl Nic {
    /// Adds a QP to a group: datagrams to the group's address reach it. Repeating it has no effect.
    ///
    /// The owner must make the port receive the group's packets.
    pub fn attach_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        let (limit, max_members) = (self.config.max_groups, self.config.max_group_members);
        let qp = self.qp(qpn).ok_or(ControlError::NotFound { what: "queue pair" })?;
        if !group.is_multicast() || qp.core.descriptor.connected {
            let why = "a group has a multicast address and datagram QPs";
            return Err(ControlError::Invalid { what: GROUP, why });
        }
        let full = self.groups.len() >= limit as usize && !self.groups.contains_key(&group);
        if full {
            return Err(ControlError::Exhausted { what: "multicast groups", limit: limit.into() });
        }
        let members = self.groups.entry(group).or_default();
        if members.contains(&qpn) {
            return Ok(());
        }
        if members.len() >= max_members as usize {
            let what = "queue pairs of a multicast group";
            return Err(ControlError::Exhausted { what, limit: max_members.into() });
        }
        members.push(qpn);
        Ok(())
    }

    /// Removes a QP from a group.
    pub fn detach_group(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), ControlError> {
        let missing = ControlError::NotFound { what: GROUP };
        let members = self.groups.get_mut(&group).ok_or(missing)?;
        let at = members.iter().position(|member| *member == qpn).ok_or(missing)?;
        members.swap_remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    /// Removes a destroyed QP from all groups.
    pub(super) fn leave_groups(&mut self, qpn: Qpn) {
        self.groups.retain(|_, members| {
            members.retain(|member| *member != qpn);
            !members.is_empty()
        });
    }

    /// Delivers a datagram to every QP of its destination group except the sender.
    #[cold]
    pub(super) fn take_multicast(&mut self, now: Time, meta: &FrameMeta, packet: &PacketView<'_>) {
        let Some(members) = self.groups.get_mut(&meta.dst).map(core::mem::take) else {
            self.shared.counters.drop_no_qp += 1;
            return;
        };
        let sender = packet.deth().map(|deth| deth.src_qpn);
        let own = sender.filter(|_| meta.src == self.config.addr);
        for qpn in members.iter().filter(|qpn| Some(**qpn) != own) {
            if let Some(slot) = self.slot(*qpn) {
                self.deliver(now, meta, packet, slot);
            }
        }
        if let Some(place) = self.groups.get_mut(&meta.dst) {
            *place = members;
        }
    }
}
