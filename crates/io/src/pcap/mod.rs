//! Middleware that writes what a port sends and receives to a capture file.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bowline_nic::{CleanPaths, FrameMeta, IpId, Time, TxBatch};
use bowline_wire::{
    DatagramHeaders, FlowKey, IP_UDP_MAX_LEN, emit_ip_udp_headers, icrc_of, solve_ip_id, write_icrc,
};
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use pcap_file::{DataLink, TsResolution};

use crate::fault::Faults;
use crate::port::{FrameSink, Port, PortCaps, PortCounters, PortError, PortFds};
use crate::udp::Multicasts;

const BUFFER_BYTES: usize = 1 << 20;
const SNAP_LEN: u32 = 256 << 10;
const TTL: u8 = 64;

type Sink = BufWriter<Watched>;

/// The bytes of a capture. The first write failure is reported, since a truncated capture looks
/// like any other.
struct Watched {
    to: Box<dyn Write + Send>,
    on_failure: Option<Box<OnFailure>>,
}

type OnFailure = dyn FnOnce(&io::Error) + Send;

impl Watched {
    fn tell<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &done
            && error.kind() != io::ErrorKind::Interrupted
            && let Some(tell) = self.on_failure.take()
        {
            tell(error);
        }
        done
    }
}

impl Write for Watched {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.to.write(bytes);
        self.tell(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.to.flush();
        self.tell(done)
    }
}

/// Writes both directions of a port to a capture: Ethernet frames with nanosecond timestamps, one
/// per packet as on the wire, bursts split up.
///
/// A UDP socket shows no link, IP or UDP header, so these are reconstructed: the fields that matter
/// are right, the ICRC checks, and the Ethernet addresses are derived from the IP ones. Writing is
/// buffered; dropping the tap flushes.
pub struct PcapTap<P> {
    inner: P,
    capture: Capture,
}

/// A capture file, for the taps of one port or of several: the lanes of a device share one.
#[derive(Clone)]
pub struct PcapFile {
    writer: Arc<Mutex<PcapWriter<Sink>>>,
}

/// The state of one tap of a capture.
struct Capture {
    file: PcapFile,
    /// Wall-clock time of the first call, and the port's time then.
    start: Option<(Duration, Time)>,
    frame: Vec<u8>,
    packet: Vec<u8>,
    written: u64,
    lost: u64,
}

impl PcapFile {
    /// Creates a file at `path`, overwriting an existing one. `on_failure` is called once with the
    /// reason if the capture is incomplete.
    pub fn create(
        path: impl AsRef<Path>,
        on_failure: impl FnOnce(&io::Error) + Send + 'static,
    ) -> Result<PcapFile, PortError> {
        let file = File::create(path).map_err(PortError::os("making a capture file"))?;
        PcapFile::new(Box::new(file), on_failure)
    }

    /// A capture to any writer.
    pub fn new(
        to: Box<dyn Write + Send>,
        on_failure: impl FnOnce(&io::Error) + Send + 'static,
    ) -> Result<PcapFile, PortError> {
        let to = Watched { to, on_failure: Some(Box::new(on_failure)) };
        let header = PcapHeader {
            datalink: DataLink::ETHERNET,
            ts_resolution: TsResolution::NanoSecond,
            snaplen: SNAP_LEN,
            ..PcapHeader::default()
        };
        let writer = PcapWriter::with_header(BufWriter::with_capacity(BUFFER_BYTES, to), header)
            .map_err(|error| PortError::Os {
                what: "writing a capture file",
                source: std::io::Error::other(error),
            })?;
        Ok(PcapFile { writer: Arc::new(Mutex::new(writer)) })
    }

    fn lock(&self) -> MutexGuard<'_, PcapWriter<Sink>> {
        // A record cut short by a panic is acceptable: readers handle truncated captures.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<P: Port> PcapTap<P> {
    /// Captures what passes `inner`.
    pub fn new(inner: P, file: PcapFile) -> PcapTap<P> {
        let capture = Capture {
            file,
            start: None,
            frame: Vec::new(),
            packet: Vec::new(),
            written: 0,
            lost: 0,
        };
        PcapTap { inner, capture }
    }

    /// The port below.
    pub fn inner(&self) -> &P {
        &self.inner
    }
}

impl Capture {
    fn write(&mut self, now: Time, headers: &DatagramHeaders, udp_payload: &[u8]) {
        let mut ip_udp = [0; IP_UDP_MAX_LEN];
        let Ok(ip_udp) = emit_ip_udp_headers(headers, udp_payload, &mut ip_udp) else {
            self.lost += 1;
            return;
        };
        self.frame.clear();
        self.frame.extend_from_slice(&ethernet(&headers.flow));
        self.frame.extend_from_slice(ip_udp);
        self.frame.extend_from_slice(udp_payload);
        let at = self.wall_clock(now);
        let record = PcapPacket::new(at, self.frame.len() as u32, &self.frame);
        let wrote = self.file.lock().write_packet(&record).map(drop);
        match wrote {
            Ok(_) => self.written += 1,
            Err(_) => self.lost += 1,
        }
    }

    fn wall_clock(&mut self, now: Time) -> Duration {
        let (wall, then) = *self.start.get_or_insert_with(|| {
            (SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(), now)
        });
        wall + (now - then)
    }

    fn write_burst(&mut self, now: Time, caps: &PortCaps, batch: &TxBatch, at: usize) {
        let burst = &batch.bursts()[at];
        let flow = FlowKey {
            src: caps.addr,
            dst: burst.dst,
            src_port: caps.udp_port,
            dst_port: burst.dst_port,
        };
        let mut packet = std::mem::take(&mut self.packet);
        for (id, tx) in batch.packets(burst).iter().enumerate() {
            packet.clear();
            packet.extend_from_slice(batch.bytes(tx));
            if !burst.is_summed() {
                write_icrc(&flow, id as u16, &mut packet);
            }
            let headers = DatagramHeaders { flow, tos: burst.tos, ttl: TTL, ip_id: id as u16 };
            self.write(now, &headers, &packet);
        }
        self.packet = packet;
    }

    fn write_received(&mut self, now: Time, dst_port: u16, meta: &FrameMeta, frame: &[u8]) {
        let flow = FlowKey { src: meta.src, dst: meta.dst, src_port: meta.src_port, dst_port };
        let ip_id = match meta.ip_id {
            IpId::Known(id) => id,
            IpId::Guess(id) => refine_ip_id(&flow, id, frame),
            IpId::Unsummed => 0,
        };
        let headers = DatagramHeaders { flow, tos: meta.tos, ttl: meta.ttl, ip_id };
        if meta.ip_id == IpId::Unsummed {
            let mut packet = std::mem::take(&mut self.packet);
            packet.clear();
            packet.extend_from_slice(frame);
            write_icrc(&flow, ip_id, &mut packet);
            self.write(now, &headers, &packet);
            self.packet = packet;
        } else {
            self.write(now, &headers, frame);
        }
    }
}

/// The identification that makes the ICRC right, if there is one; otherwise the guess.
fn refine_ip_id(flow: &FlowKey, guess: u16, frame: &[u8]) -> u16 {
    let Some((body, trailer)) = frame.split_last_chunk() else {
        return guess;
    };
    let computed = icrc_of(flow, guess, body);
    let received = u32::from_le_bytes(*trailer);
    solve_ip_id(computed, received, guess, frame.len()).unwrap_or(guess)
}

/// An Ethernet header with addresses that identify the NICs.
fn ethernet(flow: &FlowKey) -> [u8; 14] {
    let mut out = [0; 14];
    out[..6].copy_from_slice(&mac_of(flow.dst));
    out[6..12].copy_from_slice(&mac_of(flow.src));
    let ethertype: u16 = if flow.dst.is_ipv4() { 0x0800 } else { 0x86dd };
    out[12..].copy_from_slice(&ethertype.to_be_bytes());
    out
}

/// A locally administered address with the low bytes of the IP address.
fn mac_of(addr: IpAddr) -> [u8; 6] {
    let last: [u8; 4] = match addr {
        IpAddr::V4(v4) => v4.octets(),
        IpAddr::V6(v6) => {
            let [.., a, b, c, d] = v6.octets();
            [a, b, c, d]
        }
    };
    [0x02, 0, last[0], last[1], last[2], last[3]]
}

impl<P: Port> Port for PcapTap<P> {
    fn caps(&self) -> PortCaps {
        PortCaps { shares_memory: false, ..self.inner.caps() }
    }

    fn send(&mut self, now: Time, batch: &TxBatch, from: usize) -> Result<usize, PortError> {
        let taken = self.inner.send(now, batch, from)?;
        let caps = self.inner.caps();
        for at in from..from + taken {
            self.capture.write_burst(now, &caps, batch, at);
        }
        Ok(taken)
    }

    fn recv(&mut self, now: Time, sink: &mut dyn FrameSink) -> Result<usize, PortError> {
        let udp_port = self.inner.caps().udp_port;
        let capture = &mut self.capture;
        self.inner.recv(now, &mut |meta: &FrameMeta, frame: &[u8]| {
            capture.write_received(now, udp_port, meta, frame);
            sink.frame(meta, frame);
        })
    }

    fn flush(&mut self, now: Time) -> Result<(), PortError> {
        self.inner.flush(now)
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.inner.poll_timeout()
    }

    fn before_sleep(&mut self) -> bool {
        self.inner.before_sleep()
    }

    fn fds(&self) -> PortFds {
        self.inner.fds()
    }

    fn clean_paths(&self) -> Option<&Arc<CleanPaths>> {
        self.inner.clean_paths()
    }

    fn counters(&self) -> PortCounters {
        let mut all = self.inner.counters();
        all.pcap_frames += self.capture.written;
        all.pcap_lost += self.capture.lost;
        all
    }

    fn faults(&self) -> Option<&Faults> {
        self.inner.faults()
    }

    fn multicasts(&self) -> Option<&Arc<Multicasts>> {
        self.inner.multicasts()
    }
}
