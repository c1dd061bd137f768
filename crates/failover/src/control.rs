//! An agent's own queue pair on a rail: datagrams to and from other agents.

use std::sync::Arc;

use core::net::IpAddr;

use bowline_nic::{
    Access, AddressVector, Buffer, Completion, ControlError, CqId, Nic, Payload, QpInit, QpType,
    RecvWr, Region, SendFlags, SendOp, SendWr, Sge, Time, UdDest, WcOpcode, WcStatus,
};
use bowline_nic::{MrKey, PdId};
use bowline_wire::{Grh, Qpn};

use crate::message::{self, Message};

/// Receives kept posted: as many connections may want to move at once. What finds none is lost, and
/// is said again.
const RECEIVES: u32 = 1024;
/// Sends that may wait.
const SENDS: u32 = 1024;
/// Bytes of a receive: the message comes behind a GRH.
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
}

impl Control {
    pub(crate) fn new(nic: &mut Nic, now: Time, qkey: u32) -> Result<Control, ControlError> {
        let buffer = Buffer::new(SLOT * RECEIVES as usize);
        let pd = nic.alloc_pd()?;
        let region = Region::owned(Arc::clone(&buffer));
        let key = nic.register(pd, region, 0, Access::LOCAL_WRITE)?;
        let cq = nic.create_cq(RECEIVES + SENDS)?;
        let init = QpInit {
            max_send_wr: SENDS,
            max_recv_wr: RECEIVES,
            max_inline: message::LEN as u32,
            ..QpInit::new(QpType::Ud, pd, cq)
        };
        let qpn = nic.create_qp(&init)?;
        let control = Control { addr: nic.config().addr, qpn, cq, pd, key, buffer };
        control.bring_up(nic, now, qkey)?;
        for slot in 0..RECEIVES {
            control.post_receive(nic, u64::from(slot));
        }
        nic.arm_cq(cq, false)?;
        Ok(control)
    }

    fn bring_up(&self, nic: &mut Nic, now: Time, qkey: u32) -> Result<(), ControlError> {
        let why = "a datagram QP cannot be brought up";
        nic.activate(now, self.qpn, qkey)
            .map_err(|_| ControlError::Invalid { what: "queue pair", why })
    }

    /// Removes everything from the NIC.
    pub(crate) fn close(&self, nic: &mut Nic) {
        // What the NIC does not know any more needs no removing.
        let _ = nic.destroy_qp(self.qpn);
        let _ = nic.destroy_cq(self.cq);
        let _ = nic.deregister(self.key);
        let _ = nic.dealloc_pd(self.pd);
    }

    fn post_receive(&self, nic: &mut Nic, slot: u64) {
        let sges = [Sge::new(self.key, slot * SLOT as u64, SLOT as u32)];
        // There is a place on the queue for each slot.
        let _ = nic.post_recv(self.qpn, &RecvWr::new(slot, &sges));
    }

    /// Sends a message. One that finds no room is as good as lost.
    pub(crate) fn send(
        &self,
        nic: &mut Nic,
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
        let _ = nic.post_send(now, self.qpn, &wr);
    }

    /// Takes what has arrived, at most a queue full of it, and asks to be told of more.
    pub(crate) fn receive(&self, nic: &mut Nic, out: &mut Vec<Message>) {
        let mut batch = [Completion::default(); 32];
        for _ in 0..RECEIVES as usize / batch.len() {
            let taken = nic.poll_cq(self.cq, &mut batch).unwrap_or(0);
            for completion in &batch[..taken] {
                if completion.opcode == WcOpcode::Recv {
                    out.extend(self.read(completion));
                    self.post_receive(nic, completion.wr_id);
                }
            }
            if taken < batch.len() {
                break;
            }
        }
        let _ = nic.arm_cq(self.cq, false);
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
