//! Several ports on one address, within one process.

use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowline_nic::{FrameMeta, Time};
use bowline_wire::Bth;

use super::steering;
use super::table::{Member, Table};
use super::{RegistryError, Services, probe};
use crate::port::{Port, PortError};
use crate::testing::fresh_addr;
use crate::udp::{Sharing, UdpConfig, UdpPort};

const UDP_PORT: u16 = 14_791;

/// A registry directory, removed on drop.
struct TempDir(PathBuf);

impl TempDir {
    fn new() -> TempDir {
        let name = fresh_addr().to_string();
        let dir = std::env::temp_dir().join(format!("bowline-io-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("the temporary directory is writable");
        TempDir(dir)
    }

    fn files(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(self.0.join("bowline")) else {
            return Vec::new();
        };
        entries.map(|e| e.expect("readable").file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn config(addr: IpAddr, dir: &TempDir) -> UdpConfig {
    let mut config = UdpConfig::new(addr);
    config.udp_port = UDP_PORT;
    config.sharing = Sharing::SameUser { registry_dir: Some(dir.0.clone()) };
    config.recv_slots = 2;
    config
}

fn try_open(addr: IpAddr, dir: &TempDir) -> Result<UdpPort, PortError> {
    UdpPort::open(&config(addr, dir))
}

fn open(addr: IpAddr, dir: &TempDir) -> UdpPort {
    try_open(addr, dir).expect("the address can be shared")
}

/// A peer that sends plain frames to QPNs by prefix.
struct Peer {
    socket: UdpSocket,
    to: (IpAddr, u16),
}

impl Peer {
    fn new(to: IpAddr) -> Peer {
        let socket = UdpSocket::bind((fresh_addr(), 0)).expect("loopback can be bound");
        Peer { socket, to: (to, UDP_PORT) }
    }

    fn send(&self, prefix: u8) {
        let mut frame = [0; Bth::LEN + 4];
        frame[5] = prefix;
        self.socket.send_to(&frame, self.to).expect("loopback takes datagrams");
    }
}

/// Runs all ports for a while; returns for each how many frames of its own prefix it got. A frame
/// of another prefix fails the test.
fn run(ports: &mut [UdpPort], clock: Instant, for_: Duration) -> Vec<usize> {
    let mut got = vec![0; ports.len()];
    let start = Instant::now();
    // On a busy machine the time may be up before anything was done.
    let mut rounds = 0;
    while start.elapsed() < for_ || rounds < 100 {
        rounds += 1;
        for (port, got) in ports.iter_mut().zip(&mut got) {
            let prefix = port.qpn_prefix();
            let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
            port.recv(now, &mut |_: &FrameMeta, frame: &[u8]| {
                assert_eq!(frame[5], prefix, "a frame for another port");
                *got += 1;
            })
            .expect("the port works");
        }
    }
    got
}

#[test]
fn every_port_gets_its_prefix_and_nothing_else() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..8).map(|_| open(addr, &dir)).collect();
    let peer = Peer::new(addr);
    for port in &ports {
        (0..10).for_each(|_| peer.send(port.qpn_prefix()));
    }
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [10; 8]);
    assert!(ports.iter().all(|p| p.counters().misrouted == 0));
}

#[test]
fn a_clean_leave_moves_the_last_port_without_loss() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..5).map(|_| open(addr, &dir)).collect();
    ports.remove(1);
    ports.remove(0);
    let peer = Peer::new(addr);
    for port in &ports {
        (0..10).for_each(|_| peer.send(port.qpn_prefix()));
    }
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [10; 3]);
    assert!(ports.iter().all(|p| p.counters().misrouted == 0));
}

#[test]
fn one_that_was_moved_leaves_without_misleading_others() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..4).map(|_| open(addr, &dir)).collect();
    // The last port moves to the first one's index, and leaves before it has seen a probe there.
    ports.remove(0);
    ports.pop();
    // The kernel would choose by the sender's port if the index were past the end.
    for _ in 0..16 {
        let peer = Peer::new(addr);
        ports.iter().for_each(|port| peer.send(port.qpn_prefix()));
    }
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [16; 2]);
    assert!(ports.iter().all(|p| p.counters().misrouted == 0));
}

#[test]
fn a_leaving_port_hands_on_what_it_has_for_others() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..3).map(|_| open(addr, &dir)).collect();
    // The state between a port's leaving and the closing of its socket: it receives datagrams meant
    // for the last port.
    let table = ports[0].membership_for_test().file.load().expect("the table is whole");
    let (first, last) = (ports[0].qpn_prefix(), ports[2].qpn_prefix());
    let index = table.get(first).expect("it is a member").index;
    let routes = table.members().map(|(p, m)| (p, if p == last { index } else { m.index }));
    ports[0].attach_for_test(&steering::program(routes));
    let peer = Peer::new(addr);
    (0..10).for_each(|_| peer.send(last));
    ports.remove(0);
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [0, 10]);
}

#[test]
fn wrong_steering_is_noticed_and_put_right() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..4).map(|_| open(addr, &dir)).collect();
    // The state after an unannounced move: every table entry is off by one.
    let file = &ports[0].membership_for_test().file;
    assert!(file.try_lock().expect("the table can be locked"));
    let mut table = file.load().expect("the table is whole");
    let members: Vec<(u8, Member)> = table.members().collect();
    for (prefix, member) in members {
        table.set(prefix, Some(Member { index: (member.index + 1) % 4, ..member }));
    }
    file.store(&table).expect("the table can be written");
    file.unlock();
    let program = steering::program(table.members().map(|(p, m)| (p, m.index)));
    ports[0].attach_for_test(&program);

    let peer = Peer::new(addr);
    ports.iter().for_each(|p| peer.send(p.qpn_prefix()));
    // All frames are forwarded to their owners.
    let got = run(&mut ports, clock, Duration::from_millis(60));
    assert_eq!(got, [1; 4]);
    let handed_on: u64 = ports.iter().map(|p| p.counters().handed_on).sum();
    assert_eq!(handed_on, 4);

    ports.iter().for_each(|p| peer.send(p.qpn_prefix()));
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [1; 4]);
    let handed_on_later: u64 = ports.iter().map(|p| p.counters().handed_on).sum();
    assert_eq!(handed_on_later, 4, "the kernel steers right again");
}

#[test]
fn frames_for_a_port_that_is_gone_are_dropped_and_counted() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..2).map(|_| open(addr, &dir)).collect();
    let gone = ports.pop().expect("two ports").qpn_prefix();
    let peer = Peer::new(addr);
    (0..5).for_each(|_| peer.send(gone));
    assert_eq!(run(&mut ports, clock, Duration::from_millis(30)), [0]);
    assert_eq!(ports[0].counters().drop_misrouted, 5);
}

#[test]
fn nothing_is_left_when_all_are_gone() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let ports: Vec<UdpPort> = (0..3).map(|_| open(addr, &dir)).collect();
    // One socket per port, the table, and the shared counts.
    assert_eq!(dir.files().len(), 5);
    drop(ports);
    assert_eq!(dir.files(), Vec::<String>::new());
}

#[test]
fn prefixes_are_not_handed_out_again_at_once() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let _stays = open(addr, &dir);
    let first = open(addr, &dir).qpn_prefix();
    assert_ne!(open(addr, &dir).qpn_prefix(), first);
}

#[test]
fn two_registries_on_one_address_are_refused() {
    let (addr, dir, other) = (fresh_addr(), TempDir::new(), TempDir::new());
    let _first = open(addr, &dir);
    let second = try_open(addr, &other);
    assert!(matches!(second, Err(PortError::Registry(RegistryError::Strangers { .. }))));
}

#[test]
fn a_socket_that_does_not_share_is_named() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let _foreign = UdpSocket::bind((addr, UDP_PORT)).expect("loopback can be bound");
    assert!(matches!(try_open(addr, &dir), Err(PortError::InUse { .. })));
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let inner = dir.0.join("bowline");
    std::fs::create_dir(&inner).expect("the directory is writable");
    std::fs::set_permissions(&inner, std::fs::Permissions::from_mode(0o777)).expect("our own");
    let refused = try_open(addr, &dir);
    assert!(matches!(refused, Err(PortError::Registry(RegistryError::NotPrivate { .. }))));
}

/// Opens a port on a 32 KiB file system of which `taken` bytes are used: returns whether it opened,
/// and the frames that it received.
fn open_beside(taken: usize) -> Option<Result<usize, PortError>> {
    let dir = TempDir::new();
    let opened = std::thread::spawn(move || {
        if !crate::sys::namespace::mount_small_memory(&dir.0, 32 << 10) {
            return None;
        }
        std::fs::write(dir.0.join("big"), vec![1; taken]).expect("there is room for that");
        let (addr, clock) = (fresh_addr(), Instant::now());
        Some(try_open(addr, &dir).map(|port| {
            Peer::new(addr).send(port.qpn_prefix());
            run(&mut [port], clock, Duration::from_millis(10))[0]
        }))
    });
    opened.join().expect("the thread has not panicked")
}

#[test]
fn a_file_system_without_room_for_counts_is_gone_without() {
    // The table takes a page, the counts sixteen.
    let Some(opened) = open_beside(0) else { return };
    assert_eq!(opened.expect("a port without counts"), 1);
}

#[test]
fn a_full_file_system_is_an_error_that_names_it() {
    let Some(opened) = open_beside(32 << 10) else { return };
    let refused = opened.expect_err("there is no room for the table");
    assert!(matches!(&refused, PortError::Registry(e) if e.lets_go_alone()), "{refused}");
}

#[test]
fn a_file_of_garbage_is_replaced_if_nobody_uses_it() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    drop(open(addr, &dir));
    std::fs::write(dir.0.join("bowline").join(format!("{addr}-{UDP_PORT}")), b"garbage")
        .expect("the directory is writable");
    open(addr, &dir);
}

#[test]
fn a_file_of_garbage_in_use_is_named() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let _user = open(addr, &dir);
    std::fs::write(dir.0.join("bowline").join(format!("{addr}-{UDP_PORT}")), b"garbage")
        .expect("the directory is writable");
    let refused = try_open(addr, &dir);
    assert!(matches!(refused, Err(PortError::Registry(RegistryError::Damaged { .. }))));
}

#[test]
fn a_full_table_has_no_free_prefix() {
    let mut table = Table::empty();
    for prefix in 1..=0xfd {
        assert!(table.free_prefix().is_some());
        table.set(prefix, Some(Member { pid: 1, index: prefix }));
    }
    assert_eq!(table.free_prefix(), None);
}

#[test]
fn probes_round_trip_and_nothing_else_is_one() {
    assert_eq!(probe::parse(&probe::emit(7, 0x1234)), Some((7, 0x1234)));
    assert_eq!(probe::parse(&[0; probe::PROBE_LEN]), None);
    assert_eq!(probe::parse(&[]), None);
}

/// A management datagram for queue pair 1, with this length and Q_Key.
fn management(len: usize, qkey: u32) -> Vec<u8> {
    let mut frame = vec![0; len];
    frame[0] = bowline_wire::Opcode::UD_SEND_ONLY.0;
    frame[7] = 1;
    frame[12..16].copy_from_slice(&qkey.to_be_bytes());
    frame
}

#[test]
fn every_port_gets_every_management_datagram() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..4).map(|_| open(addr, &dir)).collect();
    let peer = Peer::new(addr);
    let frames = [
        management(280, 0x8001_0000),
        management(280, 0x8001_0000),
        // Neither of these is shared.
        management(276, 0x8001_0000),
        management(280, 7),
    ];
    for frame in &frames {
        peer.socket.send_to(frame, peer.to).expect("loopback takes datagrams");
    }
    let mut got = [0; 4];
    let start = Instant::now();
    while got.iter().sum::<usize>() < 2 * 4 + 2 && start.elapsed() < Duration::from_secs(10) {
        for (port, got) in ports.iter_mut().zip(&mut got) {
            let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
            port.recv(now, &mut |_: &FrameMeta, frame: &[u8]| {
                assert_eq!(frame[5..8], [0, 0, 1]);
                *got += 1;
            })
            .expect("the port works");
        }
    }
    assert!(got.iter().all(|count| *count >= 2), "two are everybody's: {got:?}");
    assert_eq!(got.iter().sum::<usize>(), 2 * 4 + 2, "each of the others is for who gets it");
    assert!(ports.iter().all(|port| port.counters().misrouted == 0));
}

#[test]
fn services_have_one_owner_and_nobody_has_one_speaker() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let ports = [open(addr, &dir), open(addr, &dir)];
    let [first, second] = [0, 1].map(|n: usize| {
        let joined = Services::join(&config(addr, &dir), ports[n].qpn_prefix());
        joined.expect("it works").expect("the address is shared")
    });
    assert!(first.claim(7).expect("it works"));
    assert!(!second.claim(7).expect("it works"));
    assert!(second.is_of_another(7) && !first.is_of_another(7) && !second.is_of_another(8));
    assert!(first.speaks() && !second.speaks() && first.speaks());
    assert!(second.is_present(ports[0].qpn_prefix()));
    first.release(7);
    assert!(second.claim(7).expect("it works"));
    drop(first);
    assert!(second.speaks() && !second.is_present(ports[0].qpn_prefix()));
}

#[test]
fn others_do_not_answer_for_a_service_that_is_reserved() {
    let (addr, dir) = (fresh_addr(), TempDir::new());
    let ports = [open(addr, &dir), open(addr, &dir)];
    let join = |n: usize| {
        let joined = Services::join(&config(addr, &dir), ports[n].qpn_prefix());
        joined.expect("it works").expect("the address is shared")
    };
    let (first, second) = (join(0), join(1));
    assert!(first.claim(7).expect("it works"));
    first.reserve(7, Duration::from_millis(300));
    drop(first);
    assert!(second.is_of_another(7));
    assert!(!second.is_of_another(7 + 64), "the same slot, and another service");
    assert!(second.claim(7).expect("it works"), "whoever comes first");
    second.reserve(8, Duration::from_millis(1));
    std::thread::sleep(Duration::from_millis(5));
    assert!(!second.is_of_another(8), "its moment is over");
    let until = Duration::from_secs(4_000_000_000).as_nanos() as u64;
    second.write_reserved(9, until);
    assert!(!second.is_of_another(9), "nobody reserves for a century");
}

#[test]
fn a_burst_of_management_datagrams_waits_for_a_slow_process() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    let mut ports: Vec<UdpPort> = (0..2).map(|_| open(addr, &dir)).collect();
    let peer = Peer::new(addr);
    const COUNT: usize = 300;
    for _ in 0..COUNT {
        let frame = management(280, 0x8001_0000);
        peer.socket.send_to(&frame, peer.to).expect("loopback takes datagrams");
    }
    let mut got = [0; 2];
    let mut take = |i: usize| {
        let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
        let mut count = 0;
        let taken = ports[i].recv(now, &mut |_: &FrameMeta, _: &[u8]| count += 1);
        taken.expect("the port works");
        got[i] += count;
        got
    };
    // One port receives its copies while the other sleeps: more wait than a socket holds.
    let start = Instant::now();
    let mut rounds = 0;
    while (take(0)[0] < COUNT / 4 || rounds < 1000) && start.elapsed() < Duration::from_secs(10) {
        rounds += 1;
    }
    let mut all = [0; 2];
    while all != [COUNT; 2] && start.elapsed() < Duration::from_secs(10) {
        for i in [1, 0] {
            all = take(i);
        }
    }
    assert_eq!(all, [COUNT; 2], "none is lost");
}

#[test]
fn a_process_that_has_stopped_does_not_keep_management_datagrams_from_others() {
    let (addr, dir, clock) = (fresh_addr(), TempDir::new(), Instant::now());
    // The kernel numbers them in this order, and the first one never reads anything.
    let _stopped = open(addr, &dir);
    let mut ports = [open(addr, &dir), open(addr, &dir)];
    let peer = Peer::new(addr);
    let frame = management(280, 0x8001_0000);
    let (mut got, mut sent) = ([0; 2], 0);
    // Far more than fit, in sockets and in memory, for the stopped port.
    while sent < 20_000 && clock.elapsed() < Duration::from_secs(20) {
        peer.socket.send_to(&frame, peer.to).expect("loopback takes datagrams");
        sent += 1;
        for (port, got) in ports.iter_mut().zip(&mut got) {
            let now = Time::from_nanos(clock.elapsed().as_nanos() as u64);
            port.recv(now, &mut |_: &FrameMeta, _: &[u8]| *got += 1).expect("the port works");
        }
    }
    let least = sent / 2;
    assert!(got.iter().all(|count| *count > least), "{got:?} of {sent}");
}
