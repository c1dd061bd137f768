//! Multicast to all other ranks: a queue pair whose peer is a multicast group.
//!
//! Each rank has its own multicast group, whose members are all other ranks. This crate does not
//! copy messages: the caller that opens the casts connects them to whatever does.

use std::net::IpAddr;
use std::sync::Arc;

use bowline_nic::{
    Access, Buffer, Connect, MrKey, Mtu, QpInit, QpType, RecvWr, Region, Remote, Rnic, Time,
};
use bowline_wire::{Psn, Qpn};

use super::{Group, GroupError, drive, wr_depth};
use crate::{Rank, cast_of};

/// What a rank tells all others about its multicasts, and about where it receives theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CastOffer {
    /// The sending queue pair.
    pub qpn: Qpn,
    /// Its first PSN.
    pub psn: Psn,
    /// The largest packets that this rank accepts.
    pub mtu: Mtu,
    /// One for each rank, except this one.
    pub ends: Vec<Option<CastEnd>>,
}

/// Where a rank receives the multicasts of another rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CastEnd {
    /// The receiving queue pair.
    pub qpn: Qpn,
    /// The key of the ring that the sender writes to.
    pub rkey: u32,
    /// A QPN at the offering rank that is used for nothing else. The receiving queue pair of the
    /// other rank has it as its peer, so that answers of different members can be told apart.
    pub id: Qpn,
}

#[derive(Debug)]
pub(super) struct Casts {
    qpn: Qpn,
    psn: Psn,
    /// The rings of all others, under the name that the group uses for its members' rings. Set once
    /// connected.
    rings: Option<Remote>,
    ends: Vec<Option<CastLink>>,
}

#[derive(Debug)]
struct CastLink {
    qpn: Qpn,
    id: Qpn,
    key: MrKey,
}

impl Casts {
    /// All queue pairs that may be connected.
    pub(super) fn qpns(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.ends.iter().flatten().map(|end| end.qpn).chain([self.qpn])
    }
}

impl Group {
    /// Creates the queue pairs that multicast to all other ranks and receive their multicasts. The
    /// configuration must have room for them. `psn` is the first PSN sent.
    ///
    /// Then, on every rank: send the offer to all others, call
    /// [`accept_casts`](Group::accept_casts) for each of theirs, wait until all ranks have done so,
    /// and call [`connect_casts`](Group::connect_casts).
    ///
    /// # Errors
    /// If the NIC has no room for it.
    pub fn open_casts(&mut self, nic: &mut dyn Rnic, psn: Psn) -> Result<CastOffer, GroupError> {
        if !self.config.casts {
            return Err(GroupError::NoCasts);
        }
        let qpn = nic.create_qp(&self.cast_qp())?;
        self.casts = Some(Casts { qpn, psn, rings: None, ends: Vec::new() });
        let ends = (0..self.links.len()).map(|rank| -> Result<Option<CastEnd>, GroupError> {
            let is_other = self.links[rank].is_some();
            let made = if is_other { self.cast_link(nic).map(Some) } else { Ok(None) };
            let (link, end) = made?.unzip();
            if let Some(casts) = &mut self.casts {
                casts.ends.push(link);
            }
            Ok(end)
        });
        match ends.collect() {
            Ok(ends) => Ok(CastOffer { qpn, psn, mtu: self.mtu, ends }),
            Err(error) => {
                self.close_casts(nic);
                Err(error)
            }
        }
    }

    fn cast_qp(&self) -> QpInit {
        let depth = wr_depth(&self.config);
        QpInit {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            ..QpInit::new(QpType::Rc, self.pd, self.cq)
        }
    }

    fn cast_link(&self, nic: &mut dyn Rnic) -> Result<(CastLink, CastEnd), GroupError> {
        let ring = Buffer::new(usize::from(self.config.slots) * self.config.slot_bytes as usize);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let key = nic.register(self.pd, Region::owned(Arc::clone(&ring)), 0, access)?;
        let qpn = nic.create_qp(&self.cast_qp()).inspect_err(|_| {
            // Cannot fail: it was registered above.
            let _ = nic.deregister(key);
        })?;
        let id = nic.create_qp(&QpInit::new(QpType::Rc, self.pd, self.cq)).inspect_err(|_| {
            let _ = nic.destroy_qp(qpn);
            let _ = nic.deregister(key);
        })?;
        let end = CastEnd { qpn, rkey: nic.rkey(key).0, id };
        Ok((CastLink { qpn, id, key }, end))
    }

    /// Connects the queue pair that receives a rank's multicasts to a QPN at an address. Packets
    /// from there have at most `mtu` bytes and start with `psn`.
    ///
    /// # Errors
    /// If there is none for this rank, or the NIC refuses.
    pub fn accept_casts(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        rank: Rank,
        (addr, id): (IpAddr, Qpn),
        (psn, mtu): (Psn, Mtu),
    ) -> Result<(), GroupError> {
        let link = self.cast_end(rank).ok_or(GroupError::NoPeer(rank))?;
        let connect = Connect {
            access: Access::REMOTE_WRITE,
            path_mtu: mtu,
            rq_psn: psn,
            // A receive is reposted as soon as its message has been taken.
            min_rnr_timer: 1,
            ..self.cast_path(addr, id)
        };
        let peer = cast_of(rank, self.links.len() as u32);
        let [init, rtr, rts] = connect.steps(QpType::Rc);
        let qpn = link.qpn;
        nic.modify_qp(now, qpn, &init)?;
        for _ in 0..wr_depth(&self.config) {
            let id = drive::wr_id(drive::WrKind::Recv, peer, 0);
            nic.post_recv(qpn, &RecvWr::new(id, &[]))?;
        }
        nic.modify_qp(now, qpn, &rtr)?;
        nic.modify_qp(now, qpn, &rts)?;
        Ok(())
    }

    /// Connects the queue pair that sends multicasts to the QPN of a multicast group at an address,
    /// with the key under which the group addresses the rings of its members. From here on
    /// multicasts can be sent.
    ///
    /// # Errors
    /// If casts have not been opened, or the NIC refuses.
    pub fn connect_casts(
        &mut self,
        nic: &mut dyn Rnic,
        now: Time,
        (addr, group): (IpAddr, Qpn),
        rings: Remote,
        mtu: Mtu,
    ) -> Result<(), GroupError> {
        let casts = self.casts.as_ref().ok_or(GroupError::NoCasts)?;
        let (qpn, psn) = (casts.qpn, casts.psn);
        let connect = Connect { path_mtu: mtu, sq_psn: psn, ..self.cast_path(addr, group) };
        for step in connect.steps(QpType::Rc) {
            nic.modify_qp(now, qpn, &step)?;
        }
        if let Some(casts) = &mut self.casts {
            casts.rings = Some(rings);
        }
        Ok(())
    }

    fn cast_path(&self, addr: IpAddr, qpn: Qpn) -> Connect {
        Connect {
            access: Access::LOCAL_WRITE,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            // A group does not show which rank fails to answer, so let the connections to single
            // ranks time out first.
            timeout: (self.config.ack_timeout + 1).min(31),
            ..Connect::new(addr, qpn)
        }
    }

    /// Whether multicasts can be sent.
    pub fn has_casts(&self) -> bool {
        self.casts.as_ref().is_some_and(|casts| casts.rings.is_some())
    }

    /// Removes the queue pairs for multicast. None of their messages may be in flight.
    pub fn close_casts(&mut self, nic: &mut dyn Rnic) {
        let Some(casts) = self.casts.take() else { return };
        // Cannot fail: they are ours, and nothing else removes them.
        let _ = nic.destroy_qp(casts.qpn);
        for end in casts.ends.into_iter().flatten() {
            let _ = nic.destroy_qp(end.qpn);
            let _ = nic.destroy_qp(end.id);
            let _ = nic.deregister(end.key);
        }
    }

    fn cast_end(&self, rank: Rank) -> Option<&CastLink> {
        self.casts.as_ref()?.ends.get(rank as usize)?.as_ref()
    }

    /// The rank whose multicasts a peer stands for, if it is such a peer.
    fn caster(&self, peer: Rank) -> Option<Rank> {
        peer.checked_sub(self.links.len() as u32)
    }

    /// The queue pair and the slot for a message to a peer.
    pub(super) fn target(&self, to: Rank, slot: u16) -> Option<(Qpn, Remote)> {
        if self.caster(to).is_none() {
            let (link, remote) = self.remote(to)?;
            return Some((link.qpn, remote.slot(slot)));
        }
        let casts = self.casts.as_ref()?;
        let rings = casts.rings?;
        let at = u64::from(slot) * u64::from(self.config.slot_bytes);
        Some((casts.qpn, Remote { addr: rings.addr + at, ..rings }))
    }

    /// The queue pair on which a peer's messages arrive, and the ring that they are written to.
    pub(super) fn source(&self, from: Rank) -> Option<(Qpn, MrKey)> {
        match self.caster(from) {
            None => {
                let link = self.links.get(from as usize)?.as_ref()?;
                Some((link.qpn, link.key))
            }
            Some(caster) => {
                let link = self.cast_end(caster)?;
                Some((link.qpn, link.key))
            }
        }
    }
}
