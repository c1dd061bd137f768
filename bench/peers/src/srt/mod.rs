//! SRT in file mode, as a stream: reliable, with its own congestion control, not encrypted.

mod library;

use std::ops::Range;

use library::{FILE, Library, Option, Socket};

use crate::Result;
use crate::control::Server;
use crate::memory::{Places, allocate};
use crate::peer::{self, ANSWER_BYTES, Cutter};
use crate::spec::{Mode, Spec};

/// Most that one read asks for.
const READ_BYTES: usize = 1 << 20;
/// A packet, headers and all: SRT has no larger ones.
const PACKET_BYTES: u64 = 1500;

/// A socket with windows and buffers that hold what is under way.
fn socket(spec: &Spec) -> Result<Socket> {
    let socket = Library::load()?.socket()?;
    let window = spec.window_bytes().max(64 << 20);
    socket.set(Option::TransmissionType, FILE)?;
    socket.set(Option::MessageApi, 0)?;
    socket.set(Option::FlightPackets, i32::try_from(2 * window / PACKET_BYTES)?)?;
    socket.set(Option::SendBuffer, i32::try_from(window)?)?;
    socket.set(Option::RecvBuffer, i32::try_from(window)?)?;
    socket.set(Option::UdpSendBuffer, 4 << 20)?;
    socket.set(Option::UdpRecvBuffer, 4 << 20)?;
    Ok(socket)
}

/// The end that sends.
pub(crate) struct Sender {
    socket: Socket,
    memory: Vec<u8>,
    unanswered: usize,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let socket = socket(spec)?;
        socket.connect(spec.data_at())?;
        Ok(Sender { socket, memory: allocate(&Places::new(spec)), unanswered: 0 })
    }
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        self.unanswered += 1;
        self.socket.send_all(&self.memory[place])
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        for _ in 0..std::mem::take(&mut self.unanswered) {
            let mut answer = [0; ANSWER_BYTES];
            let mut got = 0;
            while got < ANSWER_BYTES {
                got += self.socket.recv(&mut answer[got..])?;
            }
        }
        Ok(())
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    let mut places = Places::new(spec);
    let mut memory = allocate(&places);
    let listener = socket(spec)?;
    listener.listen(spec.data_at())?;
    control.listening()?;
    let stream = listener.accept()?;
    let mut cutter = Cutter::new(spec);
    loop {
        let place = places.peek(READ_BYTES.min(cutter.left()));
        let got = stream.recv(&mut memory[place])?;
        places.advance(got);
        control.add(got);
        if cutter.take(got) && spec.mode != Mode::Bulk {
            stream.send_all(&[1; ANSWER_BYTES])?;
        }
    }
}
