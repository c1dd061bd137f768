//! Ports with shared memory. Both are in this process: a ring cannot tell them from two processes.

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use bowline_nic::{FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{FlowKey, Psn, icrc_of};

use super::greeting::{Greeting, name_of};
use super::ring::RingWriter;
use super::{RING_BYTES, ShmPort};
use crate::port::Port;
use crate::sys::{SeqPacket, effective_uid};
use crate::testing::{fresh_addr, header, push_packets};
use crate::udp::{Sharing, UdpConfig, UdpPort};

pub(super) const UDP_PORT: u16 = 14_793;
const PATIENCE: Duration = Duration::from_secs(5);

/// A separate registry, so that tests do not interfere.
pub(super) struct Dir(pub(super) PathBuf);

impl Dir {
    pub(super) fn new(name: &str) -> Dir {
        let dir = std::env::temp_dir().join(format!("bowline-shm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        Dir(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(super) fn udp(dir: &Path, addr: IpAddr) -> UdpPort {
    let mut config = UdpConfig::new(addr);
    config.udp_port = UDP_PORT;
    config.recv_slots = 2;
    config.sharing = Sharing::SameUser { registry_dir: Some(dir.into()) };
    UdpPort::open(&config).unwrap()
}

pub(super) fn open(dir: &Dir) -> ShmPort {
    ShmPort::new(udp(&dir.0, fresh_addr()), |_| {}).unwrap()
}

/// An end with a clock of its own.
pub(super) struct End {
    pub(super) port: ShmPort,
    start: Instant,
    frames: Vec<(FrameMeta, Vec<u8>)>,
}

impl End {
    pub(super) fn new(port: ShmPort) -> End {
        End { port, start: Instant::now(), frames: Vec::new() }
    }

    pub(super) fn now(&self) -> Time {
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }

    pub(super) fn engine(&self) -> (IpAddr, u16, u8) {
        (self.port.caps().addr, UDP_PORT, self.port.qpn_prefix())
    }

    pub(super) fn recv(&mut self) -> usize {
        let (now, frames) = (self.now(), &mut self.frames);
        let mut keep = |meta: &FrameMeta, frame: &[u8]| frames.push((*meta, frame.to_vec()));
        self.port.recv(now, &mut keep).unwrap()
    }

    fn key_to(&self, to: &End) -> FlowKey {
        let (src, dst) = (self.engine().0, to.engine().0);
        FlowKey { src, dst, src_port: UDP_PORT, dst_port: UDP_PORT }
    }

    /// Sends packets of these lengths, made by middleware: they have ICRCs.
    fn send_summed(&mut self, to: &End, lens: &[usize]) -> usize {
        let mut batch = TxBatch::new(self.port.caps().tx, lens.len());
        let qpn = u32::from(to.engine().2) << 16 | 5;
        push_packets(&mut batch, &self.key_to(to), qpn, 100, lens);
        self.port.send(self.now(), &batch, 0).unwrap()
    }

    /// Sends packets as an engine makes them.
    pub(super) fn send(&mut self, to: &End, lens: &[usize]) -> usize {
        self.send_at(self.now(), to, lens)
    }

    fn send_at(&mut self, now: Time, to: &End, lens: &[usize]) -> usize {
        let mut batch = TxBatch::new(self.port.caps().tx, lens.len());
        batch.set_clean_paths(self.port.clean_paths());
        let mut flow = bowline_nic::Flow::new(self.key_to(to), 0);
        for (psn, len) in lens.iter().enumerate() {
            let payload = vec![psn as u8; *len];
            let qpn = u32::from(to.engine().2) << 16 | 5;
            let header = header(qpn, psn as u32, *len);
            batch.push_copy(&mut flow, 0, &header, &payload);
        }
        self.port.send(now, &batch, 0).unwrap()
    }
}

pub(super) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// Two ends with rings both ways.
pub(super) fn connected(dir: &Dir) -> (End, End) {
    let (mut a, mut b) = (End::new(open(dir)), End::new(open(dir)));
    until("they have rings", || {
        if a.port.counters().shm_peers == 0 {
            a.send(&b, &[64]);
        }
        if b.port.counters().shm_peers == 0 {
            b.send(&a, &[64]);
        }
        a.recv();
        b.recv();
        a.port.counters().shm_peers == 1 && b.port.counters().shm_peers == 1
    });
    until("what went by UDP has come", || {
        a.recv();
        b.recv();
        let (at_a, at_b) = (a.port.counters(), b.port.counters());
        at_a.rx_frames == at_b.tx_packets && at_b.rx_frames == at_a.tx_packets
    });
    a.frames.clear();
    b.frames.clear();
    (a, b)
}

#[test]
fn packets_go_by_udp_first_and_then_through_memory() {
    let dir = Dir::new("first");
    let (mut a, mut b) = (End::new(open(&dir)), End::new(open(&dir)));
    assert_eq!(a.send(&b, &[64; 3]), 1);
    assert_eq!(a.port.counters().shm_tx_bursts, 0, "nobody has answered yet");
    until("b has answered", || {
        b.recv();
        a.recv();
        a.port.counters().shm_peers == 1
    });
    assert_eq!(a.send(&b, &[256, 256, 100]), 1);
    until("all came", || {
        b.recv();
        b.frames.len() == 6
    });
    let engine = a.engine();
    for (psn, (meta, frame)) in b.frames[3..].iter().enumerate() {
        assert_eq!((meta.src, meta.src_port, meta.dst), (engine.0, engine.1, b.engine().0));
        assert_eq!(meta.ip_id, IpId::Unsummed);
        assert_eq!(frame[frame.len() - 4..], [0; 4], "no ICRC was computed");
        assert_eq!(u32::from(frame[11]), Psn::new(psn as u32).get());
    }
    assert!(b.frames[..3].iter().all(|(meta, _)| meta.ip_id != IpId::Unsummed));
    let (sent, came) = (a.port.counters(), b.port.counters());
    assert_eq!((sent.shm_tx_bursts, sent.tx_packets), (1, 6));
    assert_eq!((came.shm_rx_frames, came.rx_frames), (3, 6));
    assert_eq!(sent.tx_bytes, came.rx_bytes);
}

#[test]
fn packets_that_have_an_icrc_keep_it() {
    let dir = Dir::new("summed");
    let (mut a, mut b) = connected(&dir);
    let bursts = a.send_summed(&b, &[1024; 40]);
    assert!(bursts > 0);
    until("all came", || {
        b.recv();
        b.frames.len() == 40
    });
    assert_eq!(b.port.counters().shm_rx_frames, 40);
    let key = a.key_to(&b);
    for (meta, frame) in &b.frames {
        let IpId::Guess(id) = meta.ip_id else { panic!("{meta:?}") };
        let (body, icrc) = frame.split_last_chunk().unwrap();
        assert_eq!(icrc_of(&key, id, body), u32::from_le_bytes(*icrc));
    }
}

static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn whoever_has_no_ring_is_reached_by_udp_and_that_is_said_once() {
    let dir = Dir::new("fallback");
    let mut plain = udp(&dir.0, fresh_addr());
    let tell = |text: &str| TOLD.lock().unwrap().push(text.to_owned());
    let mut a = End::new(ShmPort::new(udp(&dir.0, fresh_addr()), tell).unwrap());
    let caps = plain.caps();
    let key = FlowKey { src: a.engine().0, dst: caps.addr, src_port: UDP_PORT, dst_port: UDP_PORT };
    let qpn = u32::from(plain.qpn_prefix()) << 16 | 5;
    let mut came = 0;
    for _ in 0..3 {
        let mut batch = TxBatch::new(caps.tx, 8);
        push_packets(&mut batch, &key, qpn, 0, &[64; 8]);
        assert_eq!(a.port.send(a.now(), &batch, 0).unwrap(), 1);
        a.recv();
    }
    until("all came", || {
        plain.recv(Time::ZERO, &mut |_: &FrameMeta, _: &[u8]| came += 1).unwrap();
        came == 24
    });
    assert_eq!(a.port.counters().shm_fallbacks, 1);
    assert!(a.port.clean_paths().is_none());
    let told = TOLD.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains(&caps.addr.to_string()) && told[0].contains("UDP"), "{told:?}");
}

#[test]
fn an_address_of_its_own_has_no_rings() {
    let mut config = UdpConfig::new(fresh_addr());
    config.udp_port = UDP_PORT;
    config.sharing = Sharing::Exclusive;
    let error = ShmPort::new(UdpPort::open(&config).unwrap(), |_| {}).err().unwrap().to_string();
    assert!(error.contains("share"), "{error}");
}

#[test]
fn a_peer_that_closes_is_reached_by_udp_again_and_leaves_what_it_wrote() {
    let dir = Dir::new("closes");
    let (mut a, mut b) = connected(&dir);
    assert_eq!(b.send(&a, &[64; 5]), 1);
    let mut for_ring = TxBatch::new(a.port.caps().tx, 1);
    for_ring.set_clean_paths(a.port.clean_paths());
    let qpn = u32::from(b.engine().2) << 16 | 5;
    let mut flow = bowline_nic::Flow::new(a.key_to(&b), 0);
    for_ring.push_copy(&mut flow, 0, &header(qpn, 0, 4), &[0; 4]);
    let engine = b.engine();
    drop(b);
    until("the rest came, and the end was noticed", || {
        a.recv();
        a.frames.len() == 5 && a.port.clean_paths().is_none()
    });
    assert_eq!(a.port.send(a.now(), &for_ring, 0).unwrap(), 1);
    let counters = a.port.counters();
    assert_eq!(counters.shm_drop_gone, 1, "nobody takes a packet without an ICRC");
    // A new process at the same address gets a ring again.
    let mut c = End::new(ShmPort::new(udp(&dir.0, engine.0), |_| {}).unwrap());
    until("it has a ring", || {
        a.send(&c, &[64]);
        c.recv();
        a.recv();
        a.port.counters().shm_peers == 2
    });
}

#[test]
fn a_reader_that_stops_is_waited_for_and_then_not() {
    let dir = Dir::new("stops");
    let (mut a, b) = connected(&dir);
    let packets = vec![4096; 14];
    let now = a.now();
    let mut sent = 0;
    while a.send_at(now, &b, &packets) == 1 {
        sent += 1;
        assert!(sent < RING_BYTES / 4096, "the ring fills up");
    }
    assert!(sent > 10);
    assert!(a.port.poll_timeout().is_some_and(|at| at <= now.plus_nanos(20_000)));
    assert_eq!(a.port.fds().write, None, "room in a ring cannot be slept on");
    assert_eq!(a.send_at(now.plus_nanos(99_000_000), &b, &packets), 0);
    assert_eq!(a.send_at(now.plus_nanos(101_000_000), &b, &packets), 1, "it is dropped");
    assert_eq!(a.port.counters().shm_drop_stalled, 14);
    assert!(a.port.clean_paths().is_some());
    let late = now.plus_nanos(1_100_000_000);
    assert_eq!(a.send_at(late, &b, &packets), 1);
    assert!(a.port.clean_paths().is_none(), "its ring is given up");
    let before = a.port.counters().shm_tx_bursts;
    assert_eq!(a.send_at(late, &b, &[64]), 1);
    assert_eq!(a.port.counters().shm_tx_bursts, before, "packets go by UDP");
}

#[test]
fn a_sleeper_is_woken_and_nobody_else() {
    let dir = Dir::new("sleeps");
    let (mut a, mut b) = connected(&dir);
    let woken = |a: &End| a.port.counters().shm_wakes;
    let before = woken(&a);
    a.send(&b, &[8]);
    until("it came", || b.recv() == 1);
    assert_eq!(woken(&a), before);
    assert!(b.port.before_sleep());
    a.send(&b, &[8]);
    a.send(&b, &[8]);
    assert_eq!(woken(&a), before + 1);
    b.port.fds().wait_readable(PATIENCE).unwrap();
    assert_eq!(b.recv(), 2);
    // Another thread received what the sleeper was to be woken for. The sleeper still wakes up,
    // since nothing else would announce the next arrival.
    assert!(b.port.before_sleep());
    b.recv();
    let start = Instant::now();
    b.port.fds().wait_readable(PATIENCE).unwrap();
    assert!(start.elapsed() < PATIENCE / 2);
    // Something has come already.
    a.send(&b, &[8]);
    assert!(!b.port.before_sleep());
}

/// Sends bytes to a port's listener, and returns the connection.
fn say(to: (IpAddr, u16, u8), bytes: &[u8], ring: Option<&RingWriter>) -> SeqPacket {
    let socket = SeqPacket::connect(&name_of(effective_uid(), to)).unwrap();
    socket.send(bytes, ring.map(RingWriter::file)).unwrap();
    socket
}

#[test]
fn greetings_that_are_wrong_are_refused_and_cost_nothing() {
    let dir = Dir::new("greetings");
    let mut b = End::new(open(&dir));
    let to = b.engine();
    let ring = RingWriter::create(RING_BYTES).unwrap();
    let right =
        Greeting { from: (fresh_addr(), UDP_PORT, 9), to_prefix: to.2, capacity: RING_BYTES };
    let foreign = Greeting { from: (IpAddr::from([192, 0, 2, 1]), 4791, 9), ..right };
    let longer = Greeting { capacity: RING_BYTES * 2, ..right };
    let other = Greeting { to_prefix: to.2 ^ 1, ..right };
    let mut connections = vec![
        say(to, b"hello", Some(&ring)),
        say(to, &[0; 4096], Some(&ring)),
        say(to, &right.emit(), None),
        say(to, &foreign.emit(), Some(&ring)),
        say(to, &longer.emit(), Some(&ring)),
        say(to, &other.emit(), Some(&ring)),
    ];
    until("all are refused", || {
        b.recv();
        b.port.counters().shm_refused == 6
    });
    // A connection that sends nothing is closed in time; a valid one is accepted.
    connections.push(SeqPacket::connect(&name_of(effective_uid(), to)).unwrap());
    let taken = say(to, &right.emit(), Some(&ring));
    let mut said = [0; 64];
    until("it is taken", || {
        b.recv();
        matches!(taken.recv(&mut said), Ok((8, None)))
    });
    assert_eq!(b.port.counters().shm_refused, 6);
}

#[test]
fn a_writer_that_breaks_the_rules_loses_its_ring_and_nobody_else_does() {
    let dir = Dir::new("hostile");
    let (mut a, mut b) = connected(&dir);
    let ring = RingWriter::create(RING_BYTES).unwrap();
    let greeting = Greeting {
        from: (fresh_addr(), UDP_PORT, 9),
        to_prefix: b.engine().2,
        capacity: RING_BYTES,
    };
    let hostile = say(b.engine(), &greeting.emit(), Some(&ring));
    let mut said = [0; 64];
    until("it is taken", || {
        b.recv();
        hostile.recv(&mut said).is_ok()
    });
    let file = ring.file().as_fd().try_clone_to_owned().unwrap();
    let scribbler = super::ring::RingReader::open(file, RING_BYTES).unwrap();
    scribbler.scribble(0, &u64::MAX.to_le_bytes());
    until("it is found out", || {
        b.recv();
        b.port.counters().shm_refused == 1
    });
    until("its connection has ended", || matches!(hostile.recv(&mut said), Ok((0, _))));
    a.send(&b, &[512; 4]);
    until("others go on", || {
        b.recv();
        b.frames.len() == 4
    });
    assert!(b.port.before_sleep(), "nothing is left of it");
}
