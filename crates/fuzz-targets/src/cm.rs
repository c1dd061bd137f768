//! Messages at a connection manager, from a peer that knows every number, and an application that
//! calls in any order.

use core::net::{IpAddr, Ipv4Addr};

use bowline_cm::mad::{
    CommId, MAD_LEN, Mad, Message, Rej, RejectReason, Rep, Req, Rtu, SidrRep, SidrReq,
};
use bowline_cm::{CmManager, CmTimeout, Config, IpAddressing, PortSpace, ServiceId};
use bowline_nic::Time;
use bowline_wire::Qpn;

use crate::host::{PEER, Script};

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 7174);
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 9, 9, 9));
const QPN: Qpn = Qpn::new(0x11);
const MAX_CONNECTIONS: usize = 64;

struct World {
    cm: CmManager,
    now: Time,
    /// What the application has.
    ids: Vec<CommId>,
    /// What the manager said last, which the peer has read.
    heard: Vec<Mad>,
}

/// Plays messages, calls and time against a manager, and ends everything.
pub(crate) fn run(input: &[u8]) {
    if let Ok(mad) = Mad::decode(input) {
        assert_eq!(Mad::decode(&mad.encode()), Ok(mad));
    }
    if let Some(ip) = IpAddressing::decode(input) {
        assert_eq!(IpAddressing::decode(&ip.encode()), Some(ip));
    }
    let config = Config {
        response_timeout: CmTimeout::new(14),
        max_retries: 3,
        max_connections: MAX_CONNECTIONS,
        ..Config::default()
    };
    let (cm, now) = (CmManager::new(config, [5; 32]), Time::from_millis(1));
    let mut world = World { cm, now, ids: Vec::new(), heard: Vec::new() };
    world.cm.listen(SERVICE, 8).expect("nobody else listens");
    let mut script = Script::new(input);
    while !script.is_over() {
        world.step(&mut script);
        world.drain();
    }
    world.end();
}

impl World {
    fn step(&mut self, script: &mut Script<'_>) {
        let op = script.byte();
        match op % 8 {
            0 => {
                let req = Req { service_id: SERVICE, local_qpn: QPN, ..Req::default() };
                self.ids.extend(self.cm.connect(self.now, PEER, &req));
            }
            1 => {
                let req = SidrReq { service_id: SERVICE, ..SidrReq::default() };
                self.ids.extend(self.cm.resolve(self.now, PEER, &req));
            }
            2 => {
                self.now = self.cm.poll_timeout().unwrap_or(self.now).max(self.now);
                self.cm.handle_timeout(self.now);
            }
            3 => {
                let from = if op & 0x80 == 0 { PEER } else { STRANGER };
                self.cm.handle_mad(self.now, from, script.piece(2 * MAD_LEN));
            }
            4..=5 => self.call(script),
            _ => {
                let mad = self.message(script);
                self.cm.handle_mad(self.now, PEER, &mad);
            }
        }
    }

    /// The application does something with something.
    fn call(&mut self, script: &mut Script<'_>) {
        let (call, at) = (script.byte(), usize::from(script.byte()));
        if self.ids.is_empty() {
            return;
        }
        let (now, at) = (self.now, at % self.ids.len());
        let id = self.ids[at];
        let cm = &mut self.cm;
        // What the state does not allow is refused, and that is all.
        let _ = match call % 8 {
            0 => cm.accept(now, id, &Rep { local_qpn: QPN, ..Rep::default() }),
            1 => cm.reject(now, id, RejectReason::CONSUMER, &[0; Rej::PRIVATE_LEN]),
            2 => cm.establish(now, id, &[0; Rtu::PRIVATE_LEN]),
            3 => cm.disconnect(now, id),
            4 => cm.reply(now, id, &SidrRep::default()),
            5 => cm.notify_established(now, id),
            _ => {
                self.ids.swap_remove(at);
                cm.forget(now, id);
                assert!(cm.disconnect(now, id).is_err(), "it was forgotten");
                Ok(())
            }
        };
    }

    /// A message whose numbers are those of something that the manager has said, unless the script
    /// says otherwise.
    fn message(&self, script: &mut Script<'_>) -> [u8; MAD_LEN] {
        let (kind, flags) = (script.byte(), script.byte());
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[17] = 0x10 + kind % 9;
        let (tid, local, remote) = self.numbers(usize::from(script.byte()));
        bytes[8..16].copy_from_slice(&(tid ^ u64::from(flags & 1)).to_be_bytes());
        // The peer's numbers come first, then ours.
        bytes[24..28].copy_from_slice(&(remote.0 ^ u32::from(flags >> 1 & 1)).to_be_bytes());
        bytes[28..32].copy_from_slice(&(local.0 ^ u32::from(flags >> 2 & 1)).to_be_bytes());
        if kind % 9 == 0 {
            bytes[32..40].copy_from_slice(&SERVICE.0.to_be_bytes());
        }
        if kind % 9 >= 7 {
            // A request ID, and in front of the service reserved bytes or a queue pair.
            bytes[24..28].copy_from_slice(&local.0.to_be_bytes());
            let at = if kind % 9 == 7 { 32 } else { 36 };
            bytes[at..at + 8].copy_from_slice(&SERVICE.0.to_be_bytes());
        }
        if kind % 9 == 5 {
            bytes[34] = QPN.get() as u8;
        }
        for _ in 0..flags >> 5 {
            let (at, byte) = (script.byte(), script.byte());
            bytes[usize::from(at)] = byte;
        }
        bytes
    }

    /// A transaction that the peer has seen, and both ends' numbers there.
    fn numbers(&self, which: usize) -> (u64, CommId, CommId) {
        let Some(mad) = self.heard.get(which % self.heard.len().max(1)) else {
            return (0, CommId(1), CommId(2));
        };
        let peers = CommId(mad.transaction_id as u32 | 1);
        let ids = match &mad.message {
            Message::Req(req) => (req.local_comm_id, peers),
            Message::Rep(rep) => (rep.local_comm_id, rep.remote_comm_id),
            Message::Rtu(rtu) => (rtu.local_comm_id, rtu.remote_comm_id),
            Message::Rej(rej) => (rej.local_comm_id, rej.remote_comm_id),
            Message::Mra(mra) => (mra.local_comm_id, mra.remote_comm_id),
            Message::Dreq(dreq) => (dreq.local_comm_id, dreq.remote_comm_id),
            Message::Drep(drep) => (drep.local_comm_id, drep.remote_comm_id),
            Message::SidrReq(req) => (req.request_id, peers),
            Message::SidrRep(rep) => (rep.request_id, peers),
        };
        (mad.transaction_id, ids.0, ids.1)
    }

    fn drain(&mut self) {
        while let Some(out) = self.cm.poll_transmit() {
            assert!(out.to == PEER || out.to == STRANGER, "a message to {}", out.to);
            self.heard.push(Mad::decode(&out.mad).expect("it was made here"));
        }
        let old = self.heard.len().saturating_sub(64);
        self.heard.drain(..old);
        while let Some(event) = self.cm.poll_event() {
            if !self.ids.contains(&event.id()) {
                self.ids.push(event.id());
            }
        }
        assert!(self.cm.len() <= MAX_CONNECTIONS, "{} connections", self.cm.len());
    }

    /// When the application forgets everything, nothing is left after some time.
    fn end(&mut self) {
        for id in core::mem::take(&mut self.ids) {
            self.cm.forget(self.now, id);
        }
        while let Some(due) = self.cm.poll_timeout() {
            self.now = due.max(self.now);
            self.cm.handle_timeout(self.now);
            while self.cm.poll_transmit().is_some() {}
            assert!(self.cm.poll_event().is_none(), "an event after its end");
        }
        assert!(self.cm.is_empty(), "{} connections left", self.cm.len());
    }
}
