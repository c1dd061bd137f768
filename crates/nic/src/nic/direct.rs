//! Memory that the ends of a connection share on one host: see [`crate::direct`].

use bowline_wire::Qpn;

use super::Nic;
use crate::direct::{Door, OpenDoor, Reach};
use crate::error::ControlError;
use crate::types::{Access, MrKey, QpState, QpType};

impl Nic {
    /// Opens the door for the peer of a connected QP, which may from now on write these regions
    /// where it has mapped them. The door closes for good when the QP fails, is reset, destroyed or
    /// moved, or loses the right of remote writes; when a region is deregistered or its rights
    /// change; and when another door takes its place.
    pub fn open_door(&mut self, qpn: Qpn, door: Door, keys: &[MrKey]) -> Result<(), ControlError> {
        let qp = self.directly_connected(qpn)?;
        if !qp.core.attrs.access.contains(Access::REMOTE_WRITE) {
            let why = "the QP does not allow remote writes";
            return Err(ControlError::Invalid { what: "access", why });
        }
        let pd = qp.core.init.pd;
        self.shared.memory.lead(pd, keys, &door)?;
        let memory = self.qp_mut(qpn)?.core.peer_memory.get_or_insert_default();
        memory.door = Some(OpenDoor::new(door));
        Ok(())
    }

    /// Lets a connected QP write memory of its peer directly. Only WRITEs that nothing before them
    /// waits for are carried out so, on a QP without rate control; packets carry the others.
    pub fn set_reach(&mut self, qpn: Qpn, reach: Reach) -> Result<(), ControlError> {
        let memory = &mut self.directly_connected(qpn)?.core.peer_memory;
        memory.get_or_insert_default().reach = Some(reach);
        Ok(())
    }

    /// Says whether memory may be written directly at present: not while something is to happen to
    /// packets, so that it happens to WRITEs as well. Doors that this closes stay closed.
    #[inline]
    pub fn set_direct(&mut self, is_direct: bool) {
        self.shared.memory.set_direct(is_direct);
    }

    /// A QP whose peer can be on the same host without anything in between.
    fn directly_connected(&mut self, qpn: Qpn) -> Result<&mut crate::qp::Qp, ControlError> {
        let qp = self.qp_mut(qpn)?;
        let is_plain = qp.core.init.qp_type == QpType::Rc
            && qp.opener.is_none()
            && qp.shims.is_empty()
            && qp.core.peer_keys().is_none();
        if !is_plain || !matches!(qp.core.state, QpState::Rtr | QpState::Rts) {
            let why = "only a connected RC QP that is neither sealed nor coded writes directly";
            return Err(ControlError::Invalid { what: "queue pair", why });
        }
        Ok(qp)
    }
}
