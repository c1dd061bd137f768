//! An agent's own queue pair on a rail, for datagrams to and from other agents.

use core::cell::Cell;
use core::net::IpAddr;
use std::sync::Arc;

use bowline_nic::{
    Access, AddressVector, Buffer, Completion, ControlError, CqId, Payload, QpAttr, QpInit,
    QpState, QpType, RecvWr, Region, SendFlags, SendOp, SendWr, Sge, Time, UdDest, WcOpcode,
    WcStatus,
};
use bowline_nic::{MrKey, PdId};
use bowline_wire::{Grh, Qpn};

use crate::message::{self, Message};
use crate::nic::RailNic;

/// Number of posted receives: this many connections may want to move at once. A datagram that finds
/// no receive is lost, and is repeated.
const RECEIVES: u32 = 1024;
/// Maximum number of queued sends.
const SENDS: u32 = 1024;
/// Size of a receive buffer: a GRH precedes the message.
const SLOT: usize = 128;
const _: () = assert!(Grh::LEN + message::LEN <= SLOT);

/// A UD queue pair with its memory.
pub(crate) struct Control {
    pub(crate) addr: IpAddr,
    pub(crate) qpn: Qpn,
    pub(crate) cq: CqId,
    pd: PdId,
    key: MrKey,
    buffer: Arc<Buffer>,
    qkey: u32,
    /// A datagram has failed, and the QP with it. Providers do that when their port is down.
    is_broken: Cell<bool>,
}

impl Control {
    pub(crate) fn new(
        nic: &mut dyn RailNic,
        now: Time,
        qkey: u32,
    ) -> Result<Control, ControlError> {
        let buffer = Buffer::new(SLOT * RECEIVES as usize);
        let pd = nic.alloc_pd()?;
        let rnic = nic.rnic();
        let region = Region::owned(Arc::clone(&buffer));
        let key = rnic.register(pd, region, 0, Access::LOCAL_WRITE)?;
        let cq = rnic.create_cq(RECEIVES + SENDS)?;
        let init = QpInit {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: message::LEN as u32,
            ..QpInit::new(QpType::Ud, pd, cq)
        };
        let qpn = rnic.create_qp(&init)?;
        let control = Control {
            addr: rnic.config().addr,
            qpn,
            cq,
            pd,
            key,
            buffer,
            qkey,
            is_broken: Cell::new(false),
        };
        control.bring_up(nic, now)?;
        nic.arm_cq(cq)?;
        Ok(control)
    }

    fn bring_up(&self, nic: &mut dyn RailNic, now: Time) -> Result<(), ControlError> {
        let why = "a datagram QP cannot be brought up";
        nic.rnic()
            .activate(now, self.qpn, self.qkey)
            .map_err(|_| ControlError::Invalid { what: "queue pair", why })?;
        for slot in 0..RECEIVES {
            self.post_receive(nic, u64::from(slot));
        }
        Ok(())
    }

    /// Brings the QP up again after a failure, once its port can carry datagrams.
    fn revive(&self, nic: &mut dyn RailNic, now: Time) {
        let reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        let is_reset = nic.rnic().modify_qp(now, self.qpn, &reset).is_ok();
        self.is_broken.set(!(is_reset && self.bring_up(nic, now).is_ok()));
    }

    /// Removes everything from the NIC.
    pub(crate) fn close(&self, nic: &mut dyn RailNic) {
        // Objects that the NIC no longer knows need not be removed.
        let _ = nic.rnic().destroy_qp(self.qpn);
        let _ = nic.rnic().destroy_cq(self.cq);
        let _ = nic.rnic().deregister(self.key);
        let _ = nic.dealloc_pd(self.pd);
    }

    fn post_receive(&self, nic: &mut dyn RailNic, slot: u64) {
        let sges = [Sge::new(self.key, slot * SLOT as u64, SLOT as u32)];
        // The queue has room for each slot.
        let _ = nic.rnic().post_recv(self.qpn, &RecvWr::new(slot, &sges));
    }

    /// Sends a message. If the queue is full, the message counts as lost.
    pub(crate) fn send(
        &self,
        nic: &mut dyn RailNic,
        now: Time,
        to: (IpAddr, Qpn),
        qkey: u32,
        message: &Message,
    ) {
        let wr = SendWr {
            payload: Payload::Inline(&message.encode()),
            flags: SendFlags::empty(),
            ud: Some(UdDest { av: AddressVector::new(to.0), qpn: to.1, qkey }),
            ..SendWr::new(0, SendOp::Send, &[])
        };
        if nic.is_up() {
            let _ = nic.rnic().post_send(now, self.qpn, &wr);
        }
    }

    /// Takes what has arrived, at most one queue's worth, and arms the queue again.
    pub(crate) fn receive(&self, nic: &mut dyn RailNic, now: Time, out: &mut Vec<Message>) {
        let mut batch = [Completion::default(); 32];
        for _ in 0..RECEIVES as usize / batch.len() {
            let taken = nic.rnic().poll_cq(self.cq, &mut batch).unwrap_or(0);
            for completion in &batch[..taken] {
                if completion.opcode == WcOpcode::Recv {
                    out.extend(self.read(completion));
                    self.post_receive(nic, completion.wr_id);
                } else if completion.status != WcStatus::Success {
                    // Verbs report nothing else about a failed work request.
                    self.is_broken.set(true);
                }
            }
            if taken < batch.len() {
                if self.is_broken.get() && nic.is_up() {
                    self.revive(nic, now);
                }
                break;
            }
        }
        let _ = nic.arm_cq(self.cq);
    }

    fn read(&self, completion: &Completion) -> Option<Message> {
        let whole = completion.byte_len as usize == Grh::LEN + message::LEN;
        if completion.status != WcStatus::Success || !whole {
            return None;
        }
        let mut bytes = [0; message::LEN];
        let slot = usize::try_from(completion.wr_id).ok()?;
        self.buffer.read_at(slot * SLOT + Grh::LEN, &mut bytes);
        Message::decode(&bytes)
    }
}
