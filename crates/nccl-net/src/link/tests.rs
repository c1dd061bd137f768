//! Ends over real queue pairs, and peers that have the key but break the protocol.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use bowline::{
    Access, Completion, Connector, Cq, Device, Listener, Mr, QpType, RemoteMr, WcStatus,
};

use super::control::{Control, Happened, Post};
use super::message::Message;
use super::*;
use crate::abi;
use crate::comm::{Peer, Receiver, Sender, Wish};

const PATIENCE: Duration = Duration::from_secs(20);
const WANTED: Wanted = Wanted { transport: CommTransport::Rc, traffic_class: 0 };
const ROOM: usize = 1000;
const UNTOUCHED: u8 = 0xa5;

fn nic(host: u8) -> OpenNic {
    OpenNic { device: Device::open(&format!("127.93.7.{host}")).unwrap() }
}

/// Both ends of a setup connection.
fn channels() -> (Channel, Channel) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let ours = Connector::new().connect(listener.local_addr().unwrap()).unwrap();
    (ours, listener.accept_timeout(PATIENCE).unwrap())
}

/// A peer that writes whatever it likes.
struct Liar {
    qp: Qp,
    cq: Cq,
    mr: Mr,
    _nic: OpenNic,
}

impl Liar {
    fn new(host: u8, mut channel: Channel) -> Liar {
        let nic = nic(host);
        let (pd, cq) = (nic.device.alloc_pd().unwrap(), nic.device.create_cq(64).unwrap());
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.register(8192, access).unwrap();
        let qp = pd.qp(QpType::Rc, &cq).max_inline(1024).build().unwrap();
        for slot in 0..8 {
            qp.recv(slot, &mr, slot as usize * 1024..(slot as usize + 1) * 1024).unwrap();
        }
        connect_qp(&qp, WANTED, &mut channel).unwrap();
        Liar { qp, cq, mr, _nic: nic }
    }

    /// The next completion, successful or not.
    fn next(&self) -> Completion {
        let mut out = [Completion::default()];
        assert_eq!(self.cq.wait(&mut out, PATIENCE).unwrap(), 1, "nothing happens");
        out[0]
    }

    /// The place that was offered first.
    fn offered(&self) -> RemoteMr {
        let completion = self.next();
        let bytes = self.mr.to_vec(completion.wr_id as usize * 1024, completion.byte_len as usize);
        let message::Message::Offers(offers) = message::parse(&bytes).unwrap() else {
            panic!("no offer")
        };
        RemoteMr { addr: offers[0].addr, len: u64::MAX >> 1, rkey: offers[0].rkey }
    }

    /// Writes bytes with an immediate, and returns the status.
    fn write(&self, to: RemoteMr, len: usize, imm: u32) -> WcStatus {
        self.qp.write_imm(99, &self.mr, 0..len, to, imm).unwrap();
        self.next().status
    }
}

/// A receiver with one receive in the middle of its memory, and its peer.
struct Stage {
    receiver: Receiver,
    request: usize,
    memory: Vec<u8>,
    liar: Liar,
}

fn stage(host: u8) -> Stage {
    let (ours, theirs) = channels();
    let liar = thread::spawn(move || Liar::new(host + 1, theirs));
    let (nic, mut channel) = (nic(host), ours);
    let (pd, link) = super::receiver(&nic, WANTED, &mut channel).unwrap();
    let liar = liar.join().unwrap();
    let mut receiver = Receiver::new(Arc::new(nic), pd, link, Peer::new(None));
    let mut memory = vec![UNTOUCHED; 3 * ROOM];
    let addr = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the vector outlives the receiver, which is closed or dropped first.
    let number = unsafe { receiver.register(addr, 3 * ROOM) }.unwrap();
    let wish = Wish { addr: addr + ROOM, len: ROOM, tag: 1, memory: number };
    let request = receiver.recv(&[wish]).unwrap().unwrap();
    Stage { receiver, request, memory, liar }
}

impl Stage {
    /// The final result of the request.
    fn outcome(&mut self) -> Result<usize, Trouble> {
        until(|| self.receiver.test(self.request)).map(|arrival| arrival.lens[0])
    }

    fn assert_refused(mut self) {
        assert_eq!(self.outcome().unwrap_err().status, abi::REMOTE_ERROR);
        self.receiver.close();
        assert!(self.memory.iter().all(|byte| *byte == UNTOUCHED), "memory was written");
    }
}

#[test]
fn an_honest_peer_fills_the_receive_and_then_has_no_access() {
    let mut stage = stage(1);
    let place = stage.liar.offered();
    stage.liar.mr.fill(0, 8192, 7);
    assert_eq!(stage.liar.write(place, 600, 0), WcStatus::Success);
    assert_eq!(stage.outcome().unwrap(), 600);
    stage.liar.mr.fill(0, 8192, 8);
    assert_eq!(stage.liar.write(place, 1, 1), WcStatus::RemAccessErr, "the key has ended");
    stage.receiver.close();
    let (before, rest) = stage.memory.split_at(ROOM);
    assert!(before.iter().chain(&rest[600..]).all(|byte| *byte == UNTOUCHED));
    assert!(rest[..600].iter().all(|byte| *byte == 7));
}

#[test]
fn writes_beside_the_receive_fail() {
    for (offset, len) in [(ROOM as u64 - 1, 2), (u64::MAX, 1), (0, ROOM + 1), (ROOM as u64, 1)] {
        let stage = stage(3);
        let place = stage.liar.offered();
        let place = RemoteMr { addr: place.addr.wrapping_add(offset), ..place };
        assert_eq!(stage.liar.write(place, len, 0), WcStatus::RemAccessErr, "{len} at {offset}");
        stage.assert_refused();
    }
}

#[test]
fn immediates_of_no_receive_fail() {
    let stage = stage(5);
    let place = stage.liar.offered();
    assert_eq!(stage.liar.write(place, 0, 1), WcStatus::Success);
    stage.assert_refused();
}

#[test]
fn messages_that_cannot_be_fail() {
    let long = vec![1; 1000];
    let of_xp = message::got(0);
    let offer = message::offers(0, &[Place { tag: 1, len: 8, mr: None }], true);
    for bytes in [&[][..], &[9; 12], &long, &of_xp, &offer] {
        let stage = stage(7);
        stage.liar.offered();
        stage.liar.qp.send_inline(99, bytes).unwrap();
        stage.liar.next();
        stage.assert_refused();
    }
}

/// A sender whose peer offers memory that it does not have.
#[test]
fn keys_that_open_nothing_fail_the_send() {
    let (ours, theirs) = channels();
    let liar = thread::spawn(move || Liar::new(10, theirs));
    let (nic, mut channel) = (nic(9), ours);
    let (pd, link) = super::sender(&nic, WANTED, &mut channel).unwrap();
    let liar = liar.join().unwrap();
    let mut sender = Sender::new(Arc::new(nic), pd, link, Peer::new(None));
    let memory = [1_u8; 64];
    let addr = memory.as_ptr().expose_provenance();
    // SAFETY: the vector outlives the sender.
    let number = unsafe { sender.register(addr, 64) }.unwrap();
    let offer = message::offers(0, &[Place { tag: 1, len: 64, mr: None }], true);
    liar.qp.send_inline(99, &offer).unwrap();
    assert_eq!(liar.next().status, WcStatus::Success);
    let request = until(|| sender.send(addr, 64, 1, number)).unwrap();
    let status = until(|| sender.test(request)).unwrap_err().status;
    assert_eq!(status, abi::REMOTE_ERROR);
    sender.close();
}

const XP: Wanted = Wanted { transport: CommTransport::Xp, traffic_class: 0 };

/// A peer's end of a connection over XP, which can send anything.
fn express_liar(host: u8, mut channel: Channel) -> (Control, Qp, OpenNic, Pd) {
    let nic = nic(host);
    let pd = nic.device.alloc_pd().unwrap();
    let (control, qp) = xp::connect(&nic, &pd, XP, &mut channel).unwrap();
    (control, qp, nic, pd)
}

fn say(liar: &mut Control, bytes: Vec<u8>) {
    liar.post(Post::Message(bytes)).unwrap();
}

#[test]
fn notes_of_xp_that_cannot_be_fail_the_sender() {
    let repair = |number, end| message::repair(number, std::slice::from_ref(&(0..end)));
    let notes: [Vec<Vec<u8>>; 5] = [
        vec![repair(0, 65)],
        vec![repair(7, 1)],
        vec![repair(0, 1), repair(0, 1)],
        vec![message::got(7)],
        vec![message::sent(0, 64)],
    ];
    for notes in notes {
        let (mut channel, theirs) = channels();
        let liar = thread::spawn(move || express_liar(12, theirs));
        let nic = nic(11);
        let (pd, link) = super::sender(&nic, XP, &mut channel).unwrap();
        let (mut liar, _qp, _nic, _pd) = liar.join().unwrap();
        let mut sender = Sender::new(Arc::new(nic), pd, link, Peer::new(None));
        let memory = [1_u8; 64];
        let addr = memory.as_ptr().expose_provenance();
        // SAFETY: the vector outlives the sender.
        let number = unsafe { sender.register(addr, 64) }.unwrap();
        say(&mut liar, message::offers(0, &[Place { tag: 1, len: 64, mr: None }], true));
        let request = until(|| sender.send(addr, 64, 1, number)).unwrap();
        notes.into_iter().for_each(|note| say(&mut liar, note));
        let status = until(|| sender.test(request)).unwrap_err().status;
        assert_eq!(status, abi::REMOTE_ERROR);
        sender.close();
    }
}

#[test]
fn notes_of_xp_that_cannot_be_fail_the_receiver() {
    for note in [message::sent(0, ROOM as u64 + 1), message::sent(1, 1), message::got(0)] {
        let (mut channel, theirs) = channels();
        let liar = thread::spawn(move || express_liar(14, theirs));
        let nic = nic(13);
        let (pd, link) = super::receiver(&nic, XP, &mut channel).unwrap();
        let (mut liar, _qp, _nic, _pd) = liar.join().unwrap();
        let mut receiver = Receiver::new(Arc::new(nic), pd, link, Peer::new(None));
        let mut memory = vec![UNTOUCHED; ROOM];
        let addr = memory.as_mut_ptr().expose_provenance();
        // SAFETY: the vector outlives the receiver.
        let number = unsafe { receiver.register(addr, ROOM) }.unwrap();
        let wish = Wish { addr, len: ROOM, tag: 1, memory: number };
        let request = receiver.recv(&[wish]).unwrap().unwrap();
        say(&mut liar, note);
        let status = until(|| receiver.test(request)).unwrap_err().status;
        assert_eq!(status, abi::REMOTE_ERROR);
        receiver.close();
    }
}

/// If no packet of a message arrives, the whole message is requested once its sender reports that
/// it was sent.
#[test]
fn a_message_that_is_lost_as_a_whole_is_repaired() {
    let (mut channel, theirs) = channels();
    let other = thread::spawn(move || express_liar(16, theirs));
    let nic = nic(15);
    let (pd, link) = super::receiver(&nic, XP, &mut channel).unwrap();
    let (mut other, _qp, _nic, far_pd) = other.join().unwrap();
    let mut receiver = Receiver::new(Arc::new(nic), pd, link, Peer::new(None));
    let mut memory = vec![UNTOUCHED; ROOM];
    let addr = memory.as_mut_ptr().expose_provenance();
    // SAFETY: the vector outlives the receiver.
    let number = unsafe { receiver.register(addr, ROOM) }.unwrap();
    let wish = Wish { addr, len: ROOM, tag: 1, memory: number };
    let request = receiver.recv(&[wish]).unwrap().unwrap();
    // The sender reports that all 600 bytes were sent, and nothing arrives.
    say(&mut other, message::sent(0, 600));
    let mut said = Vec::new();
    let asked = until(|| {
        assert_eq!(receiver.test(request)?, None);
        other.poll(|_, happened| {
            if let Happened::Said(message) = happened {
                said.push(message);
            }
            Ok(())
        })?;
        Ok((said.len() == 2).then(|| said.clone()))
    });
    let Message::Offers(offers) = &asked.as_ref().unwrap()[0] else { panic!("{asked:?}") };
    let whole = message::repair(0, std::slice::from_ref(&(0..600)));
    assert_eq!(asked.as_ref().unwrap()[1], message::parse(&whole).unwrap());
    let source = far_pd.register(600, Access::empty()).unwrap();
    source.fill(0, 600, 7);
    let from = source.sge(0..600).unwrap();
    let to = bowline::Remote { addr: offers[0].addr, rkey: offers[0].rkey };
    let id = control::wr_id(control::Kind::Repair, 0);
    other.post(Post::Write { id, from: Some(from), to, imm: Some(0) }).unwrap();
    let arrival = until(|| receiver.test(request)).unwrap();
    assert_eq!(arrival.lens[0], 600);
    receiver.close();
    assert!(memory[..600].iter().all(|byte| *byte == 7));
    assert!(memory[600..].iter().all(|byte| *byte == UNTOUCHED));
}

/// Calls until there is a result or an error.
fn until<T>(mut call: impl FnMut() -> Result<Option<T>, Trouble>) -> Result<T, Trouble> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE {
        if let Some(value) = call()? {
            return Ok(value);
        }
    }
    panic!("it hangs")
}
