//! The kernel's TCP: one connection, read straight into the destination memory.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;

use bowline_bench_common::tcp::set_congestion_control;

use crate::Result;
use crate::control::Server;
use crate::memory::{Places, allocate};
use crate::peer::{self, ANSWER_BYTES, Cutter};
use crate::spec::{Kind, Mode, Spec};

/// Most that one read asks for.
const READ_BYTES: usize = 1 << 20;

fn prepare(stream: &TcpStream, spec: &Spec) -> Result<()> {
    let name = if spec.kind == Kind::TcpBbr { "bbr" } else { "cubic" };
    set_congestion_control(stream, name)
        .map_err(|e| format!("this kernel's TCP has no {name}: {e}"))?;
    stream.set_nodelay(true)?;
    Ok(stream.set_nonblocking(spec.mode == Mode::Ping)?)
}

/// The end that sends.
pub(crate) struct Sender {
    stream: TcpStream,
    memory: Vec<u8>,
    unanswered: usize,
}

impl Sender {
    pub(crate) fn connect(spec: &Spec) -> Result<Sender> {
        let stream = TcpStream::connect(spec.data_at())?;
        prepare(&stream, spec)?;
        Ok(Sender { stream, memory: allocate(&Places::new(spec)), unanswered: 0 })
    }
}

impl peer::Sender for Sender {
    fn send(&mut self, place: Range<usize>) -> Result<()> {
        self.unanswered += 1;
        Ok(self.stream.write_all(&self.memory[place])?)
    }

    fn confirm(&mut self, _spin: bool) -> Result<()> {
        for _ in 0..std::mem::take(&mut self.unanswered) {
            let mut answer = [0; ANSWER_BYTES];
            let mut got = 0;
            while got < ANSWER_BYTES {
                got += read(&mut self.stream, &mut answer[got..])?;
            }
        }
        Ok(())
    }
}

/// Reads something, spinning if the socket does not block.
fn read(stream: &mut TcpStream, to: &mut [u8]) -> Result<usize> {
    loop {
        match stream.read(to) {
            Ok(0) => return Err("the connection has closed".into()),
            Ok(n) => return Ok(n),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(e) => return Err(e.into()),
        }
    }
}

pub(crate) fn serve(spec: &Spec, control: &Server) -> Result<()> {
    let mut places = Places::new(spec);
    let mut memory = allocate(&places);
    let listener = TcpListener::bind(spec.data_at())?;
    control.listening()?;
    let (mut stream, _) = listener.accept()?;
    prepare(&stream, spec)?;
    let mut cutter = Cutter::new(spec);
    loop {
        let place = places.peek(READ_BYTES.min(cutter.left()));
        let got = read(&mut stream, &mut memory[place])?;
        places.advance(got);
        control.add(got);
        if cutter.take(got) && spec.mode != Mode::Bulk {
            stream.write_all(&[1; ANSWER_BYTES])?;
        }
    }
}
