//! The soft NIC as a carrier: a UC QP with a landing, indirect regions as keys, and an RC QP as
//! control channel.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use bowline_nic::{
    Access, AddressVector, Buffer, Completion, Connect, CqId, Landing, MrKey, Mtu, Nic, Payload,
    PdId, PostError, QpInit, QpType, RecvWr, Region, Remote, SendFlags, SendOp, SendWr, Sge, Time,
    WcOpcode, WcStatus,
};
use bowline_wire::{Psn, Qpn};

use super::carrier::{Carrier, CarrierEvent, Fragments};
use super::grant::GRANT_LEN;
use super::{MAX_IN_FLIGHT, MAX_OPEN};
use crate::error::SdrError;
use crate::send::Source;

/// Requests on the data QP: half of those in flight may be packets without payload.
const SENDS: u32 = 2 * MAX_IN_FLIGHT;
/// Receives of the control channel: the peer grants no more keys at a time.
const RECEIVES: u32 = 2 * MAX_OPEN;
/// Landed packets that have not been reported. Further ones are not reported at all: an honest peer
/// has far fewer in flight.
const MAX_LANDED: usize = 1 << 16;

/// What the peer must know about a connection's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicInfo {
    /// The QP that fragments go to.
    pub data: Qpn,
    /// The QP of the control channel.
    pub control: Qpn,
    /// First sequence number of the control channel.
    pub psn: Psn,
}

/// The objects of one connection on a soft NIC.
pub struct NicObjects {
    pd: PdId,
    send_cq: CqId,
    recv_cq: CqId,
    info: NicInfo,
    landed: Arc<Mutex<VecDeque<(u32, u32)>>>,
    /// Open keys, by the number of their receive.
    keys: BTreeMap<u64, MrKey>,
    events: VecDeque<CarrierEvent>,
    /// Control messages that wait for queue space.
    outbox: VecDeque<[u8; GRANT_LEN]>,
    buffer: Arc<Buffer>,
    buffer_key: MrKey,
    /// Packets of each request on the data QP, in order.
    posted: VecDeque<u32>,
    failed: bool,
}

/// Records what lands until the connection is driven.
struct Notes(Arc<Mutex<VecDeque<(u32, u32)>>>);

impl Landing for Notes {
    fn landed(&mut self, imm: u32, bytes: u32) {
        let mut landed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if landed.len() < MAX_LANDED {
            landed.push_back((imm, bytes));
        }
    }
}

impl NicObjects {
    /// Creates the objects in a protection domain.
    pub fn new(nic: &mut Nic, pd: PdId) -> Result<NicObjects, SdrError> {
        let send_cq = nic.create_cq(SENDS + 2 * MAX_OPEN)?;
        let recv_cq = nic.create_cq(RECEIVES)?;
        let init = |qp_type, max_send_wr, max_recv_wr| QpInit {
            recv_cq,
            max_send_wr,
            max_recv_wr,
            max_inline: GRANT_LEN as u32,
            ..QpInit::new(qp_type, pd, send_cq)
        };
        let data = nic.create_qp(&init(QpType::Uc, SENDS, 0))?;
        let control = nic.create_qp(&init(QpType::Rc, MAX_OPEN, RECEIVES))?;
        let landed = Arc::<Mutex<VecDeque<_>>>::default();
        nic.set_landing(data, Box::new(Notes(landed.clone())))?;
        let buffer = Buffer::new(RECEIVES as usize * GRANT_LEN);
        let region = Region::owned(buffer.clone());
        let buffer_key = nic.register(pd, region, 0, Access::LOCAL_WRITE)?;
        let [a, b, c] = nic.draw_secret::<3>();
        let psn = Psn::new(u32::from_be_bytes([0, a, b, c]));
        Ok(NicObjects {
            pd,
            send_cq,
            recv_cq,
            info: NicInfo { data, control, psn },
            landed,
            keys: BTreeMap::new(),
            events: VecDeque::new(),
            outbox: VecDeque::new(),
            buffer,
            buffer_key,
            posted: VecDeque::new(),
            failed: false,
        })
    }

    /// What the peer must know.
    pub fn info(&self) -> NicInfo {
        self.info
    }

    /// Open keys: one for each unfinished receive, as far ahead as keys are granted.
    pub fn keys_open(&self) -> usize {
        self.keys.len()
    }

    /// Connects both QPs to the peer's.
    pub fn connect(
        &mut self,
        nic: &mut Nic,
        now: Time,
        av: AddressVector,
        mtu: Mtu,
        peer: &NicInfo,
    ) -> Result<(), SdrError> {
        for (qpn, theirs, access) in [
            (self.info.data, peer.data, Access::LOCAL_WRITE | Access::REMOTE_WRITE),
            (self.info.control, peer.control, Access::LOCAL_WRITE),
        ] {
            let connect = Connect {
                access,
                av,
                path_mtu: mtu,
                sq_psn: self.info.psn,
                rq_psn: peer.psn,
                ..Connect::new(av.dst, theirs)
            };
            nic.connect(now, qpn, &connect)?;
        }
        (0..RECEIVES).try_for_each(|slot| self.post_control(nic, slot))?;
        Ok(())
    }

    fn post_control(&self, nic: &mut Nic, slot: u32) -> Result<(), PostError> {
        let addr = u64::from(slot) * GRANT_LEN as u64;
        let sge = Sge::new(self.buffer_key, addr, GRANT_LEN as u32);
        nic.post_recv(self.info.control, &RecvWr::new(slot.into(), &[sge]))
    }

    /// Removes the objects from the NIC.
    pub fn destroy(self, nic: &mut Nic) {
        // Any of them may be gone already, with the device.
        let _ = nic.destroy_qp(self.info.data);
        let _ = nic.destroy_qp(self.info.control);
        for key in self.keys.values().chain([&self.buffer_key]) {
            let _ = nic.deregister(*key);
        }
        let _ = nic.destroy_cq(self.send_cq);
        let _ = nic.destroy_cq(self.recv_cq);
    }
}

/// A connection's objects, with the NIC that they are on, for one call.
pub struct OnNic<'a> {
    /// The NIC.
    pub nic: &'a mut Nic,
    /// Its objects.
    pub objects: &'a mut NicObjects,
    /// The time.
    pub now: Time,
}

impl OnNic<'_> {
    fn try_open(&mut self, place: Source, len: u32) -> Result<(MrKey, Remote), SdrError> {
        let shift = u64::from(len).next_power_of_two().trailing_zeros();
        let key = self.nic.register_indirect(self.objects.pd, 1, shift)?;
        if len > 0 {
            let bound = self.nic.bind_slot(key, 0, Some((place.key, place.addr, len as usize)));
            if let Err(error) = bound {
                self.nic.deregister(key)?;
                return Err(error.into());
            }
        }
        Ok((key, Remote { addr: 0, rkey: key.0 }))
    }

    fn fail(&mut self) {
        if !std::mem::replace(&mut self.objects.failed, true) {
            self.objects.events.push_back(CarrierEvent::Failed);
        }
    }

    /// Processes completions and landed packets, and sends what had no space.
    fn look(&mut self) {
        let mut polled = [Completion::default(); 32];
        while let Ok(count @ 1..) = self.nic.poll_cq(self.objects.send_cq, &mut polled) {
            for completion in &polled[..count] {
                self.sent(completion);
            }
        }
        while let Ok(count @ 1..) = self.nic.poll_cq(self.objects.recv_cq, &mut polled) {
            for completion in &polled[..count] {
                self.received(completion);
            }
        }
        let landed = self.objects.landed.clone();
        let mut landed = landed.lock().unwrap_or_else(PoisonError::into_inner);
        let packets = landed.drain(..);
        self.objects.events.extend(packets.map(|(imm, bytes)| CarrierEvent::Landed { imm, bytes }));
        drop(landed);
        while let Some(message) = self.objects.outbox.front() {
            let payload = Payload::Inline(message);
            let wr = SendWr { payload, ..SendWr::new(0, SendOp::Send, &[]) };
            match self.nic.post_send(self.now, self.objects.info.control, &wr) {
                Ok(()) => drop(self.objects.outbox.pop_front()),
                Err(PostError::Full) => return,
                Err(_) => return self.fail(),
            }
        }
    }

    fn sent(&mut self, completion: &Completion) {
        if completion.status != WcStatus::Success {
            self.fail();
        } else if completion.opcode == WcOpcode::Write
            && let Some(fragments) = self.objects.posted.pop_front()
        {
            self.objects.events.push_back(CarrierEvent::Sent { fragments });
        }
    }

    fn received(&mut self, completion: &Completion) {
        if completion.status != WcStatus::Success {
            return self.fail();
        }
        let slot = completion.wr_id as u32;
        let len = GRANT_LEN.min(completion.byte_len as usize);
        let message = self.objects.buffer.to_vec(slot as usize * GRANT_LEN, len);
        self.objects.events.push_back(CarrierEvent::Control(message));
        if self.objects.post_control(self.nic, slot).is_err() {
            self.fail();
        }
    }
}

impl Carrier for OnNic<'_> {
    type Place = Source;

    fn open(&mut self, number: u64, place: Source, len: u32) {
        match self.try_open(place, len) {
            Ok((key, remote)) => {
                self.objects.keys.insert(number, key);
                self.objects.events.push_back(CarrierEvent::Opened { number, remote });
            }
            Err(_) => self.fail(),
        }
    }

    fn revoke(&mut self, number: u64) {
        if let Some(key) = self.objects.keys.remove(&number) {
            // It cannot be missing: nobody else knows it.
            let _ = self.nic.deregister(key);
        }
        // What landed earlier comes first.
        self.look();
        self.objects.events.push_back(CarrierEvent::Revoked { number });
    }

    fn write(&mut self, fragments: &Fragments<Source>) -> u32 {
        let Fragments { place, offset, len, count, remote, imms } = *fragments;
        let sge = Sge::new(place.key, place.addr.wrapping_add(offset.into()), len);
        let sges = if len == 0 { &[][..] } else { &[sge] };
        let op = SendOp::WritePackets(remote, imms);
        let wr = SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(0, op, sges) };
        match self.nic.post_send(self.now, self.objects.info.data, &wr) {
            Ok(()) => {
                self.objects.posted.push_back(count);
                count
            }
            Err(PostError::Full) => 0,
            Err(_) => {
                self.fail();
                0
            }
        }
    }

    fn tell(&mut self, message: &[u8; GRANT_LEN]) {
        self.objects.outbox.push_back(*message);
        self.look();
    }

    fn next_event(&mut self) -> Option<CarrierEvent> {
        if self.objects.events.is_empty() {
            self.look();
        }
        self.objects.events.pop_front()
    }
}
