//! Captures are read back with the parser that reads captures of other NICs.

use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use bowline_nic::{FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{FlowKey, IcrcVerdict, LinkType, RoceFrame};
use pcap_file::pcap::PcapReader;

use super::{PcapFile, PcapTap};
use crate::memory_port::MemoryHub;
use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::testing::push_packets;

#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A port that hides the identification, as a UDP socket does.
struct Blind<P>(P);

impl<P: Port> Port for Blind<P> {
    fn caps(&self) -> PortCaps {
        self.0.caps()
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        self.0.send(now, batch, from)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        self.0.recv(now, &mut |meta: &FrameMeta, frame: &[u8]| {
            sink.frame(&FrameMeta { ip_id: IpId::Guess(0), ..*meta }, frame)
        })
    }

    fn fds(&self) -> PortFds {
        self.0.fds()
    }

    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

/// Sends 20 packets from a tapped port to another; both captures.
fn capture(addrs: [IpAddr; 2]) -> [Vec<u8>; 2] {
    let hub = MemoryHub::new();
    let files = [Shared::default(), Shared::default()];
    let [mut a, mut b] = [0, 1].map(|i| {
        let port = Blind(hub.port(addrs[i], 4791, 100).expect("nobody is there"));
        let file = PcapFile::new(Box::new(files[i].clone()), |_| ()).expect("memory takes all");
        PcapTap::new(port, file)
    });
    let key = FlowKey { src: addrs[0], dst: addrs[1], src_port: 4791, dst_port: 4791 };
    let mut batch = TxBatch::new(a.caps().tx, 20);
    push_packets(&mut batch, &key, 0x01_0002, 0, &[1000; 20]);
    a.send(Time::from_micros(5), &batch, 0).expect("memory works");
    b.recv(Time::from_micros(9), &mut |_: &FrameMeta, _: &[u8]| {}).expect("memory works");
    assert_eq!((a.counters().pcap_frames, b.counters().pcap_frames), (20, 20));
    drop((a, b));
    files.map(|f| f.0.lock().expect("no panic").clone())
}

fn check(capture: &[u8]) {
    let mut reader = PcapReader::new(capture).expect("a capture");
    let mut count = 0;
    while let Some(packet) = reader.next_packet() {
        let packet = packet.expect("a whole record");
        let frame = RoceFrame::parse(LinkType::Ethernet, &packet.data).expect("a RoCE frame");
        assert_eq!(frame.icrc_verdict(), IcrcVerdict::Ok, "frame {count}");
        count += 1;
    }
    assert_eq!(count, 20);
}

#[test]
fn every_packet_of_a_burst_is_a_frame_with_a_right_icrc() {
    capture([[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]).iter().for_each(|c| check(c));
}

#[test]
fn ipv6_is_captured_too() {
    let addr = |text: &str| text.parse().expect("an address");
    capture([addr("fd00::1"), addr("fd00::2")]).iter().for_each(|c| check(c));
}

/// A disk with space for so many bytes.
struct Disk(usize);

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.len().min(self.0) {
            0 => Err(io::ErrorKind::StorageFull.into()),
            n => {
                self.0 -= n;
                Ok(n)
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_that_is_not_complete_is_told_of_once() {
    for room in [0, 100, 5_000] {
        let told = Arc::new(Mutex::new(Vec::new()));
        let by = Arc::clone(&told);
        let file = PcapFile::new(Box::new(Disk(room)), move |error| {
            by.lock().expect("no panic").push(error.kind());
        })
        .expect("the header is buffered");
        let addrs: [IpAddr; 2] = [[10, 0, 0, 3].into(), [10, 0, 0, 4].into()];
        let hub = MemoryHub::new();
        let port = hub.port(addrs[0], 4791, 100).expect("nobody is there");
        let mut tap = PcapTap::new(port, file);
        let key = FlowKey { src: addrs[0], dst: addrs[1], src_port: 4791, dst_port: 4791 };
        let mut batch = TxBatch::new(tap.caps().tx, 20);
        push_packets(&mut batch, &key, 0x01_0002, 0, &[1000; 20]);
        tap.send(Time::from_micros(5), &batch, 0).expect("memory works");
        drop(tap);
        assert_eq!(*told.lock().expect("no panic"), [io::ErrorKind::StorageFull], "{room}");
    }
}
