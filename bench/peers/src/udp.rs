//! UDP datagrams with segmentation offload at both ends, and nothing on top: nobody acknowledges,
//! and what does not fit into the receiver's socket is lost and not counted. With hot buffers the
//! receiver leaves the data where the kernel put it; with cold ones it copies it to where it
//! belongs.
//!
//! Summed, it is a bound for Bowline: packets have a header and an ICRC, which Bowline's own code
//! computes and checks, and that is all.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::ops::Range;

use bowline_bench_common::copy;
use bowline_bench_common::udp::{self, Batch};
use bowline_wire::{Bth, ICRC_LEN, Icrc};

use crate::Result;
use crate::control::Server;
use crate::memory::{Places, allocate};
use crate::peer::{self, ANSWER_BYTES};
use crate::spec::{Buffers, Kind, Mode, Spec};

/// What one call with segmentation offload takes at most, in bytes and in datagrams.
const BURST_BYTES: usize = 65_507;
const BURST_SEGMENTS: usize = 64;
/// Bursts of one call: more changes nothing.
const BATCH: usize = 4;
/// Bursts of summed packets that stay in a core's cache until the kernel has read them.
const SUMMED_BATCH: usize = 2;
/// Payload of a datagram, unless told.
const SEGMENT_BYTES: u16 = 4096;

/// The end that sends.
pub(crate) struct Sender {
    socket: UdpSocket,
    batch: Batch,
    memory: Vec<u8>,
    cut: Cut,
    /// Where packets are put together, if they are more than payload.
    packets: Option<Vec<u8>>,
}

/// How data is cut.
struct Cut {
    /// Payload of a datagram, and all of it.
    payload: usize,
    datagram: usize,
    /// Datagrams of a burst, and bursts of a call.
    burst: usize,
    bursts: usize,
}

impl Cut {
    fn new(spec: &Spec) -> Cut {
        let payload = usize::from(spec.mtu.unwrap_or(SEGMENT_BYTES));
        let (datagram, bursts) = match spec.kind {
            Kind::UdpSummed => (Bth::LEN + payload + ICRC_LEN, SUMMED_BATCH),
            _ => (payload, BATCH),
        };
        Cut { payload, datagram, burst: (BURST_BYTES / datagram).min(BURST_SEGMENTS), bursts }
    }
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let socket = UdpSocket::bind((spec.from, 0))?;
        udp::set_large_buffers(&socket)?;
        socket.connect(spec.data_at())?;
        let cut = Cut::new(spec);
        if spec.mode == Mode::Ping {
            socket.set_nonblocking(true)?;
        } else {
            udp::set_segment_size(&socket, u16::try_from(cut.datagram)?)?;
        }
        Ok(Sender {
            socket,
            batch: Batch::new(BATCH, 1, None),
            memory: allocate(&Places::new(spec)),
            cut,
            packets: (spec.kind == Kind::UdpSummed).then(Vec::new),
        })
    }
}

/// Appends a packet: a header of zeroes, the payload, and a sum of it.
fn seal(payload: &[u8], packets: &mut Vec<u8>) {
    packets.reserve(Bth::LEN + payload.len() + ICRC_LEN);
    packets.extend_from_slice(&[0; Bth::LEN]);
    let icrc = Icrc::START.update_copying(payload.into(), packets.spare_capacity_mut());
    // SAFETY: there is room for them, and they have just been copied there.
    unsafe { packets.set_len(packets.len() + payload.len()) };
    packets.extend_from_slice(&icrc.finish().to_le_bytes());
}

/// The payload of a packet, if it is intact.
fn open(packet: &[u8]) -> Option<&[u8]> {
    let (packet, icrc) = packet.split_last_chunk::<ICRC_LEN>()?;
    let payload = packet.get(Bth::LEN..)?;
    (Icrc::START.update(payload).finish() == u32::from_le_bytes(*icrc)).then_some(payload)
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        let Cut { payload, datagram, burst, bursts } = self.cut;
        for call in self.memory[place].chunks(bursts * burst * payload) {
            let bytes = match &mut self.packets {
                None => call,
                Some(packets) => {
                    packets.clear();
                    call.chunks(payload).for_each(|payload| seal(payload, packets));
                    &packets[..]
                }
            };
            let mut pieces: [&[u8]; BATCH] = [&[]; BATCH];
            let whole = bytes.chunks(burst * datagram);
            let count = pieces.iter_mut().zip(whole).map(|(p, b)| *p = b).count();
            match self.batch.send_pieces(&self.socket, &pieces[..count]) {
                // What the kernel did not take is lost, as on the way.
                Ok(_) => {}
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        await_datagram(&self.socket)
    }
}

/// Spins until one is there.
fn await_datagram(socket: &UdpSocket) -> Result<()> {
    let mut answer = [0; ANSWER_BYTES];
    loop {
        match socket.recv(&mut answer) {
            Ok(_) => return Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    let socket = UdpSocket::bind(spec.data_at())?;
    udp::set_large_buffers(&socket)?;
    match spec.mode {
        Mode::Bulk => receive(spec, control, &socket),
        Mode::Ping => echo(control, &socket),
        Mode::Message | Mode::Idle => Err("bare UDP has no messages and no connections".into()),
    }
}

fn echo(control: &Server, socket: &UdpSocket) -> Result<()> {
    control.listening()?;
    let mut word = [0; ANSWER_BYTES];
    let (_, peer) = socket.recv_from(&mut word)?;
    socket.connect(peer)?;
    socket.set_nonblocking(true)?;
    loop {
        socket.send(&word)?;
        await_datagram(socket)?;
    }
}

fn receive(spec: &Spec, control: &Server, socket: &UdpSocket) -> Result<()> {
    let mut places = Places::new(spec);
    let mut memory = allocate(&places);
    udp::enable_gro(socket)?;
    let mut batch = Batch::new(BATCH, usize::from(u16::MAX), None);
    let cut = Cut::new(spec);
    control.listening()?;
    loop {
        let messages = batch.recv(socket, true)?;
        for data in (0..messages).map(|n| batch.received(n)) {
            if spec.kind == Kind::UdpSummed {
                let packets = data.chunks(cut.datagram);
                let headers = packets.len() * (cut.datagram - cut.payload);
                for packet in packets {
                    let payload = open(packet).ok_or("a packet's sum is wrong")?;
                    let to = &mut memory[places.take(payload.len())];
                    match spec.buffers {
                        Buffers::Cold => copy::stream(payload, to),
                        Buffers::Hot => to.copy_from_slice(payload),
                    }
                }
                // Not for each: it waits for what was streamed.
                control.add(data.len() - headers);
                continue;
            }
            if spec.buffers == Buffers::Cold {
                let to = &mut memory[places.take(data.len())];
                match spec.kind {
                    Kind::UdpStream => copy::streaming(data, to),
                    _ => to.copy_from_slice(data),
                }
            }
            control.add(data.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{open, seal};

    #[test]
    fn a_sealed_packet_opens_unless_a_bit_is_wrong() {
        let payload: Vec<u8> = (0..1024_u32).map(|i| (i * 7) as u8).collect();
        let mut packets = Vec::new();
        seal(&payload, &mut packets);
        assert_eq!(open(&packets), Some(&payload[..]));
        packets[500] ^= 1;
        assert_eq!(open(&packets), None);
        assert_eq!(open(&packets[..3]), None);
    }
}
