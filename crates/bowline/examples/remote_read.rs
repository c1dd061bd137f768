//! One NIC reads 16 MiB of another's memory in pieces, and checks every byte.
//!
//! `cargo run --release --example remote_read -p bowline`

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Access, Connector, Device, Error as BowlineError, Listener, QpType};

const PATIENCE: Duration = Duration::from_secs(10);
const LEN: usize = 16 << 20;
const PIECE: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || offer_memory(&listener));

    let device = Device::open("127.0.0.2")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let mr = pd.register(LEN, Access::LOCAL_WRITE)?;
    let mut channel = Connector::new().connect(address)?;
    let peer = channel.connect(&qp, &[])?;

    let start = Instant::now();
    for at in (0..LEN).step_by(PIECE) {
        let piece = peer.regions[0].slice(at as u64..(at + PIECE) as u64)?;
        qp.read(at as u64, &mr, at..at + PIECE, piece)?;
    }
    for _ in 0..LEN / PIECE {
        cq.next(PATIENCE)?;
    }
    let elapsed = start.elapsed();
    channel.barrier()?;
    server.join().expect("the server does not panic")?;

    let wrong = (0..LEN / 8).filter(|i| mr.load_u64(i * 8) != *i as u64).count();
    println!("read {} MiB in {elapsed:?}, {wrong} words wrong", LEN >> 20);
    if wrong == 0 { Ok(()) } else { Err("the data did not arrive as it was".into()) }
}

/// Offers memory filled with numbers, until the peer is done.
fn offer_memory(listener: &Listener) -> Result<(), BowlineError> {
    let device = Device::open("127.0.0.1")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let mr = pd.register(LEN, Access::REMOTE_READ)?;
    for i in 0..LEN / 8 {
        mr.store_u64(i * 8, i as u64);
    }
    let mut channel = listener.accept_timeout(PATIENCE)?;
    channel.connect(&qp, &[mr.remote()])?;
    channel.barrier()
}
