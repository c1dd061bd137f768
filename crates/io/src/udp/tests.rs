//! The UDP port on loopback.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use bowline_nic::{FrameMeta, Time, TxBatch, TxCaps};
use bowline_wire::{Bth, FlowKey};

use super::{Translator, UdpConfig, UdpPort};
use crate::port::{Forwarder, FrameSink, Onward, Port, PortError, Round};
use crate::testing::{fresh_addr, icrc_is_right, push_packets};

fn open(addr: IpAddr, change: impl FnOnce(&mut UdpConfig)) -> UdpPort {
    let mut config = UdpConfig::new(addr);
    config.udp_port = 0;
    change(&mut config);
    UdpPort::open(&config).expect("loopback addresses can be bound")
}

fn flow(from: &UdpPort, to: &UdpPort) -> FlowKey {
    FlowKey {
        src: from.caps.addr,
        dst: to.caps.addr,
        src_port: from.caps.udp_port,
        dst_port: to.caps.udp_port,
    }
}

/// Receives until `count` frames came, or fails after a second.
fn recv_frames(port: &mut UdpPort, count: usize) -> Vec<(FrameMeta, Vec<u8>)> {
    let mut frames = Vec::new();
    let start = Instant::now();
    while frames.len() < count {
        assert!(start.elapsed() < Duration::from_secs(1), "{} of {count} came", frames.len());
        port.recv(Time::ZERO, &mut |meta: &FrameMeta, frame: &[u8]| {
            frames.push((*meta, frame.to_vec()))
        })
        .expect("the socket works");
    }
    frames
}

fn psn_of(frame: &[u8]) -> u32 {
    Bth::parse(frame.first_chunk().expect("a frame has a BTH")).psn.get()
}

/// Sends packets of these lengths and checks that they arrive whole, in order and with an ICRC for
/// the position they arrive in.
fn check_transfer(mut a: UdpPort, mut b: UdpPort, lens: &[usize]) {
    let mut batch = TxBatch::new(a.caps().tx, lens.len());
    push_packets(&mut batch, &flow(&a, &b), 0x01_0002, 100, lens);
    let bursts = batch.bursts().len();
    assert_eq!(a.send(Time::ZERO, &batch, 0).expect("the socket works"), bursts);
    let frames = recv_frames(&mut b, lens.len());
    for (i, (meta, frame)) in frames.iter().enumerate() {
        assert_eq!(psn_of(frame), 100 + i as u32);
        assert_eq!(frame.len(), 16 + lens[i]);
        assert!(icrc_is_right(meta, b.caps.udp_port, frame), "frame {i} of {meta:?}");
        assert_eq!(meta.src, a.caps.addr);
        assert!(meta.ttl > 0, "the kernel told the TTL");
    }
    assert_eq!(a.counters().tx_packets, lens.len() as u64);
    assert_eq!(b.counters().rx_frames, lens.len() as u64);
}

#[test]
fn a_burst_arrives_whole_and_sealed_for_its_place() {
    let (a, b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    assert!(a.caps().tx.max_segments >= 64, "the kernel has segmentation offload");
    check_transfer(a, b, &[4096; 40]);
}

#[test]
fn a_burst_may_end_with_a_shorter_packet() {
    let (a, b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    check_transfer(a, b, &[1024, 1024, 1024, 12, 1024, 0, 256, 256]);
}

#[test]
fn many_small_packets_share_a_burst() {
    let (a, b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    check_transfer(a, b, &[8; 300]);
}

#[test]
fn a_receiver_without_offload_gets_single_frames() {
    let (a, b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |c| c.gro = false));
    let mut batch = TxBatch::new(a.caps().tx, 8);
    push_packets(&mut batch, &flow(&a, &b), 0x01_0002, 0, &[512; 8]);
    let (mut a, mut b) = (a, b);
    a.send(Time::ZERO, &batch, 0).expect("the socket works");
    assert_eq!(recv_frames(&mut b, 8).len(), 8);
    assert_eq!(b.counters().rx_datagrams, 8);
}

#[test]
fn a_path_without_offload_gets_packets_resealed_one_by_one() {
    let (mut a, b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    a.gso_works = false;
    check_transfer(a, b, &[1024; 100]);
}

#[test]
fn without_offload_caps_promise_single_packets() {
    let (a, b) = (open(fresh_addr(), |c| c.gso = false), open(fresh_addr(), |_| {}));
    assert_eq!(a.caps().tx.max_segments, 1);
    check_transfer(a, b, &[1024; 100]);
}

#[test]
fn ipv6_frames_have_a_known_identification() {
    let mut config = UdpConfig::new("::1".parse().expect("an address"));
    config.udp_port = 0;
    let (Ok(a), Ok(b)) = (UdpPort::open(&config), UdpPort::open(&config)) else {
        println!("skipped: this host has no ::1");
        return;
    };
    check_transfer(a, b, &[4096; 20]);
}

#[test]
fn tos_and_ecn_marks_arrive() {
    let (mut a, mut b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    let key = flow(&a, &b);
    let mut batch = TxBatch::new(a.caps().tx, 2);
    let mut frame = crate::testing::header(0x01_0002, 7, 0).as_slice().to_vec();
    frame.extend_from_slice(&bowline_wire::icrc_of(&key, 0, &frame).to_le_bytes());
    batch.push_summed(&key, 0x6a, 0, &frame);
    a.send(Time::ZERO, &batch, 0).expect("the socket works");
    assert_eq!(recv_frames(&mut b, 1)[0].0.tos, 0x6a);
}

#[test]
fn a_full_receive_buffer_is_counted() {
    let mut a = open(fresh_addr(), |_| {});
    let mut b = open(fresh_addr(), |c| c.recv_buffer_bytes = 1);
    let key = flow(&a, &b);
    let mut batch = TxBatch::new(TxCaps { max_segments: 1, ..a.caps().tx }, 64);
    push_packets(&mut batch, &key, 0x01_0002, 0, &[4096; 64]);
    a.send(Time::ZERO, &batch, 0).expect("the socket works");
    // The count arrives with a datagram that was queued after the loss.
    while b.recv(Time::ZERO, &mut |_: &FrameMeta, _: &[u8]| {}).expect("the socket works") > 0 {}
    batch.clear();
    push_packets(&mut batch, &key, 0x01_0002, 0, &[8]);
    a.send(Time::ZERO, &batch, 0).expect("the socket works");
    recv_frames(&mut b, 1);
    assert!(b.counters().rx_overflow > 0, "{:?}", b.counters());
}

#[test]
fn what_cannot_be_sent_is_dropped_and_counted_by_cause() {
    let (mut a, mut b) = (open(fresh_addr(), |_| {}), open(fresh_addr(), |_| {}));
    let good = flow(&a, &b);
    // Of the reserved class E: no route leads there from loopback.
    let bad = FlowKey { dst: "255.255.255.255".parse().expect("an address"), ..good };
    let mut batch = TxBatch::new(a.caps().tx, 8);
    push_packets(&mut batch, &good, 0x01_0002, 0, &[64; 2]);
    push_packets(&mut batch, &bad, 0x01_0002, 2, &[64; 3]);
    push_packets(&mut batch, &good, 0x01_0002, 5, &[64; 2]);
    assert_eq!(a.send(Time::ZERO, &batch, 0).expect("not an error"), 3);
    assert_eq!(recv_frames(&mut b, 4).len(), 4);
    let c = a.counters();
    assert_eq!(c.tx_drop_denied + c.tx_drop_unreachable + c.tx_drop_other, 3, "{c:?}");
    assert_eq!(c.gso_fallbacks, 0);
}

#[test]
fn a_taken_port_is_named() {
    let a = open(fresh_addr(), |_| {});
    let mut config = UdpConfig::new(a.caps.addr);
    config.udp_port = a.caps.udp_port;
    assert!(matches!(UdpPort::open(&config), Err(PortError::InUse { .. })));
}

#[test]
fn an_address_of_nobody_is_named() {
    let not_here = UdpPort::open(&UdpConfig::new("192.0.2.1".parse().expect("an address")));
    assert!(matches!(not_here, Err(PortError::NotLocal(_))));
    let wildcard = UdpPort::open(&UdpConfig::new("0.0.0.0".parse().expect("an address")));
    assert!(matches!(wildcard, Err(PortError::Unspecified(_))));
}

#[test]
fn the_mtu_of_loopback_is_known() {
    assert!(open(fresh_addr(), |_| {}).caps().ip_mtu >= 16_384);
}

/// Sends every round on to two ports.
struct Onwards([(IpAddr, u16); 2]);

impl FrameSink for Onwards {
    fn frame(&mut self, _: &FrameMeta, _: &[u8]) {
        panic!("the port keeps its datagrams");
    }
}

impl Forwarder for Onwards {
    fn round(&mut self, round: &mut dyn Round) {
        for (nth, (dst, dst_port)) in self.0.into_iter().enumerate() {
            let onward = |datagram: usize| {
                let (meta, frame_len) = round.envelope(datagram)?;
                Some(Onward { datagram, dst, dst_port, tos: meta.tos, frame_len })
            };
            let to: Vec<Onward> = (0..round.count()).filter_map(onward).collect();
            for onward in &to {
                for frame in round.bytes(onward.datagram).chunks_mut(onward.frame_len) {
                    frame[16] = nth as u8;
                }
            }
            assert_eq!(round.send(&to), to.len());
        }
    }
}

#[test]
fn what_is_forwarded_keeps_its_segments() {
    let mut ports = [(); 4].map(|()| open(fresh_addr(), |_| {}));
    let [a, via, b, c] = &mut ports;
    let lens = [[1024; 20].as_slice(), &[12], &[2048; 3]].concat();
    let mut batch = TxBatch::new(a.caps().tx, lens.len());
    push_packets(&mut batch, &flow(a, via), 0x01_0002, 100, &lens);
    a.send(Time::ZERO, &batch, 0).expect("the socket works");
    let mut to = Onwards([&*b, &*c].map(|port| (port.caps.addr, port.caps.udp_port)));
    let (start, mut frames) = (Instant::now(), 0);
    while frames < lens.len() {
        assert!(start.elapsed() < Duration::from_secs(1), "{frames} of {} came", lens.len());
        frames += via.forward(Time::ZERO, &mut to).expect("the socket works");
    }
    for (nth, port) in [b, c].into_iter().enumerate() {
        for (i, (meta, frame)) in recv_frames(port, lens.len()).iter().enumerate() {
            assert_eq!((psn_of(frame), frame.len()), (100 + i as u32, 16 + lens[i]));
            assert_eq!((meta.src, frame[16]), (via.caps.addr, nth as u8));
        }
        let datagrams = port.counters().rx_datagrams;
        assert_eq!(datagrams, via.counters().rx_datagrams, "they come in the same pieces");
    }
    assert_eq!(via.counters().tx_packets, 2 * lens.len() as u64);
    assert_eq!(via.counters().tx_bursts, 2 * via.counters().rx_datagrams);
}

/// Passes frames on unchanged, except those with another length.
struct Only(usize);

impl Translator for Only {
    fn frames(
        &mut self,
        _: Time,
        meta: &FrameMeta,
        bytes: &mut [u8],
        frame_len: usize,
        sink: &mut dyn FrameSink,
    ) -> usize {
        if frame_len != self.0 {
            return 0;
        }
        sink.frames(meta, bytes, frame_len);
        bytes.len().div_ceil(frame_len)
    }
}

#[test]
fn ports_receive_the_groups_that_they_have_joined() {
    let mut sender = open(fresh_addr(), |_| {});
    let udp_port = sender.caps.udp_port;
    let mut members = [(); 2].map(|()| open(fresh_addr(), |config| config.udp_port = udp_port));
    let group: IpAddr = [239, 195, 17, 33].into();
    let numbers = members.each_ref().map(|member| {
        assert_eq!(member.fds().read[3], None);
        let multicasts = member.multicasts().expect("it has sockets");
        multicasts.join(group, Box::new(Only(16 + 1024))).expect("loopback has multicast")
    });
    let to = FlowKey { dst: group, ..flow(&sender, &members[0]) };
    let send = |sender: &mut UdpPort, lens: &[usize]| {
        let mut batch = TxBatch::new(sender.caps().tx, lens.len());
        push_packets(&mut batch, &to, 0xfe_0002, 100, lens);
        sender.send(Time::ZERO, &batch, 0).expect("the socket works");
    };
    send(&mut sender, &[1024; 20]);
    for member in &mut members {
        member.fds().wait_readable(Duration::from_secs(1)).expect("it can be polled");
        let frames = recv_frames(member, 20);
        for (i, (meta, frame)) in frames.iter().enumerate() {
            assert_eq!((meta.dst, psn_of(frame)), (group, 100 + i as u32));
            assert!(icrc_is_right(meta, udp_port, frame), "frame {i} of {meta:?}");
        }
    }
    assert_eq!(sender.counters().tx_packets, 20, "the kernel made the copies");
    members[0].multicasts().expect("it has sockets").leave(numbers[0]);
    assert_eq!(members[0].fds().read[3], None);
    send(&mut sender, &[512; 3]);
    send(&mut sender, &[1024; 2]);
    assert_eq!(recv_frames(&mut members[1], 2).len(), 2, "others are not for the engine");
    let none = members[0].recv(Time::ZERO, &mut |_: &FrameMeta, _: &[u8]| {});
    assert_eq!(none.expect("the socket works"), 0);
}
