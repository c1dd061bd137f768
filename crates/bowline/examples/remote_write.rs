//! One NIC writes another's memory, whose program only sleeps until it is notified.
//!
//! `cargo run --release --example remote_write -p bowline`

use std::error::Error;
use std::thread;
use std::time::Duration;

use bowline::{Access, Connector, Device, Error as BowlineError, Listener, QpType};

const PATIENCE: Duration = Duration::from_secs(5);
const MESSAGE: &[u8] = b"written from afar";

fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || offer_memory(&listener));

    let device = Device::open("127.0.0.2")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let mr = pd.register(MESSAGE.len(), Access::empty())?;
    mr.write_at(0, MESSAGE);

    let peer = Connector::new().connect(address)?.connect(&qp, &[])?;
    let target = peer.regions[0].slice(100..4096)?;
    // A plain WRITE leaves the other program asleep; one with immediate wakes it up.
    qp.write_imm(1, &mr, 0..MESSAGE.len(), target, MESSAGE.len() as u32)?;
    cq.next(PATIENCE)?;

    let text = server.join().expect("the server does not panic")?;
    println!("the server's memory now says {text:?}");
    Ok(())
}

/// Offers a page of memory; returns what the peer has written to it.
fn offer_memory(listener: &Listener) -> Result<String, BowlineError> {
    let device = Device::open("127.0.0.1")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let mr = pd.register(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    // The receive needs no memory: the data goes where the peer's WRITE says.
    qp.recv(0, &mr, 0..0)?;

    listener.accept_timeout(PATIENCE)?.connect(&qp, &[mr.remote()])?;
    let written = cq.next(PATIENCE)?;
    let len = written.imm.unwrap_or(0) as usize;
    Ok(String::from_utf8_lossy(&mr.to_vec(100, len)).into_owned())
}
