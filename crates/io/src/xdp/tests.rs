//! AF_XDP ports at both ends of a cable: a veth pair between two network namespaces.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bowline_nic::{FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{Bth, FlowKey, ROCE_UDP_PORT};

use super::frame::tests::frame_between;
use super::{XdpConfig, XdpMode, XdpOptions, XdpPort};
use crate::port::{Port, PortCounters, PortError};
use crate::sys::namespace::{enter_own_network, ip, thread_id};
use crate::testing::{icrc_is_right, push_packets};

const PATIENCE: Duration = Duration::from_secs(5);

fn config(addr: &str) -> XdpConfig {
    let addr = addr.parse().expect("an address");
    XdpConfig { addr, udp_port: ROCE_UDP_PORT, options: XdpOptions::default() }
}

fn bring_up(host: u8) {
    for what in [
        format!("addr add 10.79.0.{host}/24 dev bl"),
        format!("addr add fd79::{host}/64 dev bl nodad"),
        "link set bl up".to_owned(),
    ] {
        assert!(ip(&what), "ip {what}");
    }
}

/// Ports with these addresses, on hosts 1 and 2; prints why and returns `None` where that is
/// impossible.
fn cable(addrs: [&'static str; 2]) -> Option<[XdpPort; 2]> {
    let (tell, told) = mpsc::channel();
    let (go, gone) = mpsc::channel();
    let second = thread::spawn(move || {
        tell.send(enter_own_network().then(thread_id)).expect("the other end listens");
        gone.recv().ok()?;
        bring_up(2);
        open(addrs[1])
    });
    let peer = told.recv().expect("the other end says")?;
    let first = thread::spawn(move || {
        let made = enter_own_network()
            && ip("link add bl type veth peer name bl-peer")
            && ip(&format!("link set bl-peer netns {peer} name bl"));
        if !made {
            println!("skipped: no iproute2, or no veth pairs");
            return None;
        }
        bring_up(1);
        go.send(()).expect("the other end waits");
        open(addrs[0])
    });
    let first = first.join().expect("no panic");
    let second = second.join().expect("no panic");
    Some([first?, second?])
}

fn open(addr: &str) -> Option<XdpPort> {
    match XdpPort::open(&config(addr)) {
        Ok(port) => Some(port),
        Err(PortError::Xdp { source, .. })
            if matches!(source.raw_os_error(), Some(libc::EPERM | libc::EAFNOSUPPORT)) =>
        {
            println!("skipped: no AF_XDP here, or not for us: {source}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

struct Clock(Instant);

impl Clock {
    fn is_late(&self) -> bool {
        self.0.elapsed() > PATIENCE
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.0.elapsed().as_nanos() as u64)
    }
}

fn send_all(clock: &Clock, port: &mut XdpPort, batch: &TxBatch) {
    let mut from = 0;
    while from < batch.bursts().len() {
        assert!(!clock.is_late(), "{from} bursts left: {:?}", port.counters());
        let taken = port.send(clock.now(), batch, from).expect("the port works");
        from += taken;
        assert!(
            taken > 0 || port.poll_timeout().is_some(),
            "blocked, and nobody is told until when"
        );
    }
}

fn recv_frames(clock: &Clock, port: &mut XdpPort, count: usize) -> Vec<(FrameMeta, Vec<u8>)> {
    let mut frames = Vec::new();
    while frames.len() < count {
        let have = frames.len();
        assert!(!clock.is_late(), "{have} of {count} came: {:?}", port.counters());
        port.recv(clock.now(), &mut |meta: &FrameMeta, frame: &[u8]| {
            frames.push((*meta, frame.to_vec()))
        })
        .expect("the port works");
    }
    frames
}

fn flow(from: &XdpPort, to: &XdpPort) -> FlowKey {
    let (src, dst) = (from.caps.addr, to.caps.addr);
    FlowKey { src, dst, src_port: from.caps.udp_port, dst_port: to.caps.udp_port }
}

fn check_transfer(clock: &Clock, a: &mut XdpPort, b: &mut XdpPort, lens: &[usize]) {
    let mut batch = TxBatch::new(a.caps().tx, lens.len());
    push_packets(&mut batch, &flow(a, b), 0x01_0002, 100, lens);
    send_all(clock, a, &batch);
    let places = batch.bursts().iter().flat_map(|burst| 0..burst.packet_count() as u16);
    let frames = recv_frames(clock, b, lens.len());
    for (i, ((meta, frame), place)) in frames.iter().zip(places).enumerate() {
        assert_eq!(Bth::parse(frame.first_chunk().expect("a BTH")).psn.get(), 100 + i as u32);
        assert_eq!(frame.len(), 16 + lens[i]);
        assert!(icrc_is_right(meta, b.caps.udp_port, frame), "frame {i} of {meta:?}");
        let ip_id = if meta.src.is_ipv4() { place } else { 0 };
        assert_eq!((meta.src, meta.ip_id), (a.caps.addr, IpId::Known(ip_id)));
    }
}

/// Waits until the ends reach each other: IPv6 takes a moment after an interface comes up.
fn wait_for_each_other(clock: &Clock, ports: &mut [XdpPort; 2]) {
    for _ in 0..2 {
        let [a, b] = ports;
        let mut batch = TxBatch::new(a.caps().tx, 1);
        push_packets(&mut batch, &flow(a, b), 0x01_0002, 0, &[8]);
        while b.recv(clock.now(), &mut |_: &FrameMeta, _: &[u8]| ()).expect("the port works") == 0 {
            assert!(!clock.is_late(), "{:?} and {:?}", a.counters(), b.counters());
            send_all(clock, a, &batch);
            thread::sleep(Duration::from_millis(1));
        }
        ports.swap(0, 1);
    }
    // Discard surplus copies.
    thread::sleep(Duration::from_millis(20));
    for port in ports {
        while port.recv(clock.now(), &mut |_: &FrameMeta, _: &[u8]| ()).expect("the port works") > 0
        {
        }
        port.counters = PortCounters::default();
    }
}

#[test]
fn packets_cross_the_cable_both_ways_whole_and_sealed_for_their_place() {
    for addrs in [["10.79.0.1", "10.79.0.2"], ["fd79::1", "fd79::2"]] {
        let Some(mut ports) = cable(addrs) else { return };
        let clock = Clock(Instant::now());
        wait_for_each_other(&clock, &mut ports);
        let [mut a, mut b] = ports;
        assert_eq!((a.caps().via, a.caps().ip_mtu), ("xdp, copy", 1500));
        // More than the rings hold, in pieces of any length.
        for _ in 0..30 {
            check_transfer(&clock, &mut a, &mut b, &[1024; 200]);
            check_transfer(&clock, &mut b, &mut a, &[1024, 1024, 12, 0, 256, 256, 8]);
        }
        let (sent, got) = (a.counters(), b.counters());
        assert_eq!((sent.tx_packets, got.rx_frames), (6000, 6000));
        assert_eq!(
            (got.rx_malformed, got.rx_foreign, got.rx_overflow, got.rx_truncated),
            (0, 0, 0, 0)
        );
    }
}

#[test]
fn what_has_no_way_is_dropped_and_counted_by_cause() {
    let Some([mut a, b]) = cable(["10.79.0.1", "10.79.0.2"]) else { return };
    let clock = Clock(Instant::now());
    let good = flow(&a, &b);
    let send = |a: &mut XdpPort, dst: &str, len: usize| {
        let mut batch = TxBatch::new(a.caps().tx, 8);
        let key = FlowKey { dst: dst.parse().expect("an address"), ..good };
        push_packets(&mut batch, &key, 0x01_0002, 0, &[len; 3]);
        send_all(&clock, a, &batch);
    };
    send(&mut a, "10.79.0.77", 64);
    assert_eq!(a.counters().tx_drop_unresolved, 3, "nobody has the address");
    send(&mut a, "10.79.0.1", 64);
    assert_eq!(a.counters().tx_drop_unreachable, 3, "it is our own");
    send(&mut a, "fd79::2", 64);
    assert_eq!(a.counters().tx_drop_unreachable, 6, "it is of the other family");
    send(&mut a, "10.79.0.2", 2048);
    assert_eq!(a.counters().tx_drop_too_long, 3);
    assert_eq!(a.counters().tx_packets, 0);
}

#[test]
fn frames_that_are_not_as_they_should_be_are_dropped_and_counted() {
    let Some(mut ports) = cable(["10.79.0.1", "10.79.0.2"]) else { return };
    let clock = Clock(Instant::now());
    wait_for_each_other(&clock, &mut ports);
    let [mut a, mut b] = ports;
    let mut good = frame_between(a.caps.addr, b.caps.addr, ROCE_UDP_PORT, 64);
    good[..6].copy_from_slice(&b.own.mac);
    let mut wrong_sum = good.clone();
    wrong_sum[22] -= 1;
    let mut other_mac = good.clone();
    other_mac[0] = 0xff;
    let cut = good[..50].to_vec();
    let longer = [&good[..], &[0; 9]].concat();
    for frame in [&wrong_sum, &other_mac, &cut, &longer, &good] {
        assert!(a.socket.push(frame.len(), |bytes| bytes.copy_from_slice(frame)));
    }
    a.kick();
    let frames = recv_frames(&clock, &mut b, 2);
    assert!(frames.iter().all(|(meta, frame)| icrc_is_right(meta, ROCE_UDP_PORT, frame)));
    let counters = b.counters();
    assert_eq!((counters.rx_malformed, counters.rx_foreign), (2, 1), "{counters:?}");
}

#[test]
fn what_cannot_be_had_is_named() {
    let done = thread::spawn(|| {
        if !enter_own_network() || !ip("link add bl type veth peer name bl-peer") {
            return;
        }
        bring_up(1);
        assert!(ip("link set lo up"));
        let error = |config: &XdpConfig| XdpPort::open(config).err().expect("refused").to_string();
        let loopback = error(&config("127.0.0.1"));
        assert!(loopback.contains("no Ethernet interface"), "{loopback}");
        let nobody = error(&config("192.0.2.1"));
        assert!(nobody.contains("ip addr"), "{nobody}");
        let Some(port) = open("10.79.0.1") else { return };
        let second = error(&config("10.79.0.1"));
        assert!(second.contains("does not share"), "{second}");
        // Unused ports: a process forked by another test may hold one for a moment.
        let busy = error(&XdpConfig { udp_port: 4792, ..config("10.79.0.1") });
        assert!(busy.contains("another program has the queue"), "{busy}");
        let options = XdpOptions { mode: XdpMode::ZeroCopy, queue: Some(0) };
        let zero_copy = error(&XdpConfig { udp_port: 4793, options, ..config("10.79.0.1") });
        assert!(zero_copy.contains("mode=copy") || zero_copy.contains("queue"), "{zero_copy}");
        drop(port);
        for udp_port in 4794..4800 {
            let again = XdpPort::open(&XdpConfig { udp_port, ..config("10.79.0.1") });
            assert!(again.is_ok(), "what has just been closed can be had: {:?}", again.err());
        }
    });
    done.join().expect("no panic");
}
