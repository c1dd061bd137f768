//! Whoever might be mistaken for a process of this user on this host, and is not.

use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use bowline_nic::TxBatch;
use bowline_wire::FlowKey;

use super::greeting::{Greeting, name_of};
use super::ring::RingWriter;
use super::tests::{Dir, End, UDP_PORT, connected, open, udp, until};
use super::{RING_BYTES, ShmPort, channels_within};
use crate::port::Port;
use crate::sys::namespace::{become_user, enter_own_network};
use crate::sys::{SeqPacket, effective_uid};
use crate::testing::{fresh_addr, push_packets};
use crate::udp::{Sharing, UdpConfig};
use crate::via::Via;

/// A user that is nobody else's, and known to every namespace that knows them all.
const STRANGER: u32 = 64_242;

/// Runs `body` on a thread of its own, which may change its user or namespace.
fn apart<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(body).join().expect("it has not panicked"))
}

fn shared(dir: &Dir, addr: IpAddr) -> UdpConfig {
    UdpConfig {
        udp_port: UDP_PORT,
        sharing: Sharing::SameUser { registry_dir: Some(dir.0.clone()) },
        ..UdpConfig::new(addr)
    }
}

static OF_STRANGERS: Mutex<Vec<String>> = Mutex::new(Vec::new());

#[test]
fn a_stranger_under_a_peers_name_is_offered_nothing() {
    let dir = Dir::new("squatter");
    let tell = |text: &str| OF_STRANGERS.lock().unwrap().push(text.to_owned());
    let mut a = End::new(ShmPort::new(udp(&dir.0, fresh_addr()), tell).unwrap());
    let (me, to) = (effective_uid(), (fresh_addr(), UDP_PORT, 7));
    let squatter =
        apart(|| become_user(STRANGER).then(|| SeqPacket::listen(&name_of(me, to)).unwrap()));
    let Some(squatter) = squatter else { return };
    send_to(&mut a, to);
    let said = squatter.accept().unwrap().recv(&mut [0; 64]);
    assert!(matches!(said, Ok((0, None))), "it was greeted");
    let told = OF_STRANGERS.lock().unwrap().clone();
    assert!(told.len() == 1 && told[0].contains("user 64242's"), "{told:?}");
}

/// Sends one packet to an engine.
fn send_to(from: &mut End, (addr, port, prefix): (IpAddr, u16, u8)) {
    let key =
        FlowKey { src: from.engine().0, dst: addr, src_port: from.engine().1, dst_port: port };
    let mut batch = TxBatch::new(from.port.caps().tx, 1);
    push_packets(&mut batch, &key, u32::from(prefix) << 16 | 5, 0, &[64]);
    from.port.send(from.now(), &batch, 0).unwrap();
}

#[test]
fn a_stranger_who_offers_a_ring_is_hung_up_on() {
    let dir = Dir::new("caller");
    let mut a = End::new(open(&dir));
    let (me, to) = (effective_uid(), a.engine());
    let greeting =
        Greeting { from: (fresh_addr(), UDP_PORT, 9), to_prefix: to.2, capacity: RING_BYTES };
    let caller = apart(|| {
        become_user(STRANGER).then(|| {
            let ring = RingWriter::create(RING_BYTES).unwrap();
            let caller = SeqPacket::connect(&name_of(me, to)).unwrap();
            caller.send(&greeting.emit(), Some(ring.file())).unwrap();
            caller
        })
    });
    let Some(caller) = caller else { return };
    until("it is hung up on", || {
        a.recv();
        match caller.recv(&mut [0; 64]) {
            Ok((len, _)) => {
                assert_eq!(len, 0, "it was answered");
                true
            }
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    });
    assert!(a.port.inbound.is_empty());
}

#[test]
fn an_address_that_has_moved_to_another_host_has_no_ring_here() {
    let dir = Dir::new("moved");
    let mut a = End::new(open(&dir));
    // TEST-NET-1: no interface has it, but a process may have listened before it went.
    let to = (IpAddr::from([192, 0, 2, 1]), UDP_PORT, 7);
    let stale = SeqPacket::listen(&name_of(effective_uid(), to)).unwrap();
    send_to(&mut a, to);
    assert!(stale.accept().is_err(), "it was called");
    assert_eq!(a.port.counters().shm_fallbacks, 0, "nor is it a peer of this host");
}

#[test]
fn the_same_address_in_another_network_namespace_is_somebody_elses() {
    let dir = Dir::new("namespace");
    let (mut a, mut b) = (End::new(open(&dir)), End::new(open(&dir)));
    let namesake = b.engine();
    apart(|| {
        if !enter_own_network() || !crate::sys::namespace::ip("link set lo up") {
            return;
        }
        let impostor = SeqPacket::listen(&name_of(effective_uid(), namesake)).unwrap();
        // A program may open its device in one namespace and use it from another.
        send_to(&mut a, namesake);
        if let Ok(socket) = impostor.accept() {
            let said = socket.recv(&mut [0; 64]);
            assert!(matches!(said, Ok((0, None))), "the namesake was greeted");
        }
        assert_eq!(a.port.counters().shm_tx_bursts, 0);
    });
    std::thread::sleep(Duration::from_millis(110));
    until("from its own namespace it reaches its peer", || {
        a.send(&b, &[64]);
        b.recv();
        a.recv();
        a.port.counters().shm_peers == 1
    });
}

#[test]
fn a_user_whose_number_is_everybodys_has_no_rings() {
    let dir = std::env::temp_dir().join(format!("bowline-shm-nobody-{}", std::process::id()));
    apart(|| {
        if !become_user(crate::sys::overflow_uid()) {
            return;
        }
        std::fs::create_dir_all(&dir).unwrap();
        let dir = Dir(dir);
        let config = shared(&dir, fresh_addr());
        let error = Via::Shm.open(&config).err().unwrap().to_string();
        assert!(error.contains("everybody's"), "{error}");
        let (port, prefix) = Via::Auto.open(&config).unwrap();
        assert_eq!(port.caps().via, "udp");
        assert_ne!(prefix, 0, "its address can be shared all the same");
    });
}

#[test]
fn names_that_are_taken_leave_a_port_without_rings() {
    let dir = Dir::new("taken");
    let addr = fresh_addr();
    let me = effective_uid();
    let _squatters: Vec<SeqPacket> = (1..=255)
        .map(|prefix| SeqPacket::listen(&name_of(me, (addr, UDP_PORT, prefix))).unwrap())
        .collect();
    let config = shared(&dir, addr);
    assert!(Via::Shm.open(&config).is_err());
    let (port, _) = Via::Auto.open(&config).unwrap();
    assert_eq!(port.caps().via, "udp");
    let (other, _) = Via::Auto.open(&shared(&dir, fresh_addr())).unwrap();
    assert_eq!(other.caps().via, "auto");
}

#[test]
fn rings_leave_a_program_its_descriptors() {
    assert_eq!(channels_within(16), 2);
    assert_eq!(channels_within(1024), 128);
    assert_eq!(channels_within(usize::MAX), 256);
    let dir = Dir::new("descriptors");
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let (a, b) = connected(&dir);
    let rings = open().filter(|entry| {
        let name = std::fs::read_link(entry.path()).unwrap_or_default();
        name.to_string_lossy().contains("bowline-ring")
    });
    // Other tests have rings in hand for as long as they pass them on.
    assert!(rings.count() < 4, "a ring needs its file no longer than until it is passed");
    drop((a, b));
}
