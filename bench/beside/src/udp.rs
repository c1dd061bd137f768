//! UDP datagrams with segmentation offload at both ends, and nothing on top: nobody acknowledges, and
//! what does not fit into the receiver's socket is lost and not counted. With hot buffers the receiver
//! leaves the data where the kernel put it; with cold ones it copies it to where it belongs.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::ops::Range;

use bowline_bench_sys::copy;
use bowline_bench_sys::udp::{self, Batch};

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
/// Payload of a datagram, unless told.
const SEGMENT_BYTES: u16 = 4096;

/// The end that sends.
pub(crate) struct Sender {
    socket: UdpSocket,
    batch: Batch,
    memory: Vec<u8>,
    burst_bytes: usize,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let socket = UdpSocket::bind((spec.from, 0))?;
        udp::set_large_buffers(&socket)?;
        socket.connect(spec.data_at())?;
        let segment = spec.mtu.unwrap_or(SEGMENT_BYTES);
        if spec.mode == Mode::Ping {
            socket.set_nonblocking(true)?;
        } else {
            udp::set_segment_size(&socket, segment)?;
        }
        let segments = (BURST_BYTES / usize::from(segment)).min(BURST_SEGMENTS);
        Ok(Sender {
            socket,
            batch: Batch::new(BATCH, 1, None),
            memory: allocate(&Places::new(spec)),
            burst_bytes: segments * usize::from(segment),
        })
    }
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        let mut bursts = self.memory[place].chunks(self.burst_bytes).peekable();
        while bursts.peek().is_some() {
            let mut pieces: [&[u8]; BATCH] = [&[]; BATCH];
            let count = pieces.iter_mut().zip(&mut bursts).map(|(p, b)| *p = b).count();
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
    control.listening()?;
    loop {
        let messages = batch.recv(socket, true)?;
        for data in (0..messages).map(|n| batch.received(n)) {
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
