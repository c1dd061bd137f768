//! Devices with several lanes, over real sockets and over ports that fail.

mod support;

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bowline_device::{BackupSpec, Device, DeviceSpec, Mode, Opened, Pd, Rail};
use bowline_io::{LinkState, MemoryHub};
use bowline_nic::{Event, Remote, SendOp, WcStatus};
use support::*;

const LANES: usize = 8;

/// Two hosts with eight lanes each, and a connection on each lane.
fn crowd(mode: Mode, store: &TestStore) -> [(Host, Vec<Conn>); 2] {
    connected([0, 1].map(|_| Host::with_lanes(mode, store, LANES)), 9)
}

/// Connects the hosts on each lane. The timers are 4.096 µs * 2^`timeout`.
fn connected([a, b]: [Host; 2], timeout: u8) -> [(Host, Vec<Conn>); 2] {
    let mut ours: Vec<Conn> = (0..LANES).map(|_| a.qp(None)).collect();
    let mut theirs: Vec<Conn> = (0..LANES).map(|_| b.qp(None)).collect();
    for (ca, cb) in ours.iter_mut().zip(&mut theirs) {
        a.connect_within(ca, &b, cb.qpn, timeout);
        b.connect_within(cb, &a, ca.qpn, timeout);
    }
    a.ready(LANES);
    b.ready(LANES);
    [(a, ours), (b, theirs)]
}

fn all_succeed(host: &Host, count: usize) {
    let all = host.poll_for(count);
    assert!(all.iter().all(|c| c.status == WcStatus::Success), "{all:?}");
}

#[test]
fn queue_pairs_spread_over_lanes_and_share_everything_else() {
    let store = TestStore::new();
    let [(a, ours), (b, _theirs)] = crowd(Mode::Exact, &store);
    let lanes: HashSet<usize> = ours.iter().map(|conn| conn.qp.lane()).collect();
    assert_eq!(lanes.len(), LANES, "one on each");
    let prefixes: HashSet<u8> = ours.iter().map(|conn| conn.qpn.prefix()).collect();
    assert_eq!(prefixes.len(), LANES, "each lane has a prefix of its own");
    let numbers: HashSet<u16> = ours.iter().map(|conn| conn.qpn.low16()).collect();
    assert!(numbers.len() > 1, "where an engine's numbers begin is drawn: {numbers:?}");
    a.fill(|at| (at * 31 + at / 255) as u8);
    // One region with one key, whichever lane carries the request.
    let part = LEN / LANES;
    for (i, conn) in ours.iter().enumerate() {
        a.post(conn, i as u64, write(conn, i * part), i * part, part).unwrap();
    }
    all_succeed(&a, LANES);
    assert_eq!(a.memory.to_vec(0, LEN), b.memory.to_vec(0, LEN));
    // Atomics of all lanes to one word are atomic with respect to each other.
    b.memory.fill(0, 8, 0);
    for conn in &ours {
        let remote = Remote { addr: 0, rkey: conn.peer_key };
        for i in 0..100 {
            a.post(conn, i, SendOp::FetchAdd { remote, add: 1 }, 64, 8).unwrap();
        }
    }
    all_succeed(&a, 100 * LANES);
    assert_eq!(b.memory.load_u64(0), 100 * LANES as u64);
}

#[test]
fn a_shared_receive_queue_serves_all_lanes() {
    let store = TestStore::new();
    let [a, b] = [0, 1].map(|_| Host::with_lanes(Mode::Exact, &store, LANES));
    let srq = b.srq(256);
    let conns: Vec<(Conn, Conn)> = (0..LANES)
        .map(|_| {
            let (mut ca, mut cb) = (a.qp(None), b.qp(Some(&srq)));
            a.connect(&mut ca, &b, cb.qpn);
            b.connect(&mut cb, &a, ca.qpn);
            (ca, cb)
        })
        .collect();
    for i in 0..256 {
        b.post_srq(&srq, i, 0, 64);
    }
    srq.set_limit(57).unwrap();
    for i in 0..200_u32 {
        a.post(&conns[i as usize % LANES].0, i.into(), SendOp::SendImm(i), 0, 64).unwrap();
    }
    all_succeed(&a, 200);
    let got = b.poll_for(200);
    let imms: HashSet<u32> = got.iter().filter_map(|c| c.imm).collect();
    assert_eq!(imms.len(), 200, "each message once");
    let wr_ids: HashSet<u64> = got.iter().map(|c| c.wr_id).collect();
    assert_eq!(wr_ids.len(), 200, "each receive once");
    let event = b.device.events().wait(Some(PATIENCE)).unwrap();
    assert_eq!(event, Some(Event::SrqLimit(srq.id())), "under the name that the program knows");
    assert_eq!(b.device.events().wait(Some(Duration::from_millis(20))).unwrap(), None, "once");
}

#[test]
fn one_event_is_raised_for_one_arming_whatever_the_lanes() {
    let store = TestStore::new();
    let [(a, ours), (b, theirs)] = crowd(Mode::Exact, &store);
    for conn in &theirs {
        b.post_recv(conn, 0, 0, 64);
    }
    b.cq.arm(false).unwrap();
    for conn in &ours {
        a.post(conn, 0, SendOp::Send, 0, 64).unwrap();
    }
    all_succeed(&a, LANES);
    assert_eq!(b.channel.wait(Some(PATIENCE)).unwrap(), Some(TOKEN));
    all_succeed(&b, LANES);
    assert_eq!(b.channel.wait(Some(Duration::from_millis(20))).unwrap(), None);
}

#[test]
fn all_lanes_of_a_rail_fail_over_and_come_back() {
    for mode in [Mode::Exact, Mode::Shift] {
        let store = TestStore::new();
        let [(a, ours), (b, _theirs)] = crowd(mode, &store);
        b.fault(Rail::Default, "down");
        for (i, conn) in ours.iter().enumerate() {
            a.post(conn, i as u64, write(conn, i * 4096), i * 4096, 4096).unwrap();
        }
        all_succeed(&a, LANES);
        assert!(a.account().away >= 1, "{:?}", a.account());
        b.fault(Rail::Default, "up");
        until("the way home", || !a.is_split() && !b.is_split());
        for (i, conn) in ours.iter().enumerate() {
            a.post(conn, i as u64, write(conn, i * 4096), i * 4096, 4096).unwrap();
        }
        all_succeed(&a, LANES);
    }
}

#[test]
fn objects_in_use_on_any_lane_cannot_be_destroyed() {
    let store = TestStore::new();
    let host = Host::with_lanes(Mode::Exact, &store, 3);
    let (srq, conns) = (host.srq(8), [0, 1, 2].map(|_| host.qp(None)));
    let on_srq = host.qp(Some(&srq));
    assert!(host.pd.destroy().is_err() && host.cq.destroy().is_err() && srq.destroy().is_err());
    for conn in conns.iter().chain([&on_srq]) {
        conn.qp.destroy().unwrap();
    }
    srq.destroy().unwrap();
    host.cq.destroy().unwrap();
    assert!(host.pd.destroy().is_err(), "the memory is still registered");
    let other = Arc::new(Pd::create(&host.device).unwrap());
    other.destroy().unwrap();
    assert!(other.destroy().is_err(), "it is gone");
}

/// A device on in-memory ports.
fn in_memory(hub: &MemoryHub, number: u8, store: &TestStore) -> Arc<Device> {
    let addrs = [[10, 9, 0, number], [10, 9, 1, number]].map(IpAddr::from);
    let mut spec = DeviceSpec::new("t", addrs[0]);
    spec.lanes = LANES.to_string().parse().unwrap();
    spec.backup = Some(BackupSpec {
        addr: addrs[1],
        mode: Mode::Exact,
        store_url: Some(store.url()),
        job: "test".into(),
    });
    let port = |addr, prefix| -> Opened {
        (Box::new(hub.port_for(addr, 4791, prefix, 4096).unwrap()), prefix)
    };
    let ports = addrs.map(|addr| (0..LANES as u8).map(move |prefix| port(addr, prefix)));
    spec.open_on(ports.into_iter().flatten().collect()).unwrap()
}

#[test]
fn a_socket_error_of_one_lane_moves_its_connections_and_no_others() {
    let store = TestStore::new();
    let hub = MemoryHub::new();
    // The socket's error moves a connection at once. The timers take seconds, so that a machine
    // that is busy elsewhere moves none.
    let [(a, ours), (_b, _theirs)] =
        connected([1, 2].map(|number| Host::on(in_memory(&hub, number, &store))), 18);
    let everywhere = || {
        for (i, conn) in ours.iter().enumerate() {
            a.post(conn, i as u64, write(conn, i * 4096), i * 4096, 4096).unwrap();
        }
        all_succeed(&a, LANES);
    };
    everywhere();
    hub.break_ports(a.addr, Some(3));
    everywhere();
    everywhere();
    assert_eq!(a.account().away, 1, "that of lane 3");
    assert_eq!(a.account().failed, 0);
    assert_eq!(a.device.lanes()[3].link(), LinkState::Down);
    assert_eq!(a.device.link(), LinkState::Up);
    let report = a.device.report().unwrap();
    assert!(report.contains("on purpose"), "{report}");
}
