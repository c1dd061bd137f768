//! Four clients count on one word of a server's memory, which no server code touches.
//!
//! `cargo run --release --example atomic_counter -p bowline`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bowline::{Access, Connector, Device, Error as BowlineError, Listener, QpType};

const PATIENCE: Duration = Duration::from_secs(5);
const CLIENTS: u64 = 4;
const ADDITIONS: u64 = 250;

fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;

    // All clients share one device, as threads of one program would.
    let client_device = Device::open("127.0.0.2")?;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| client_device.clone())
        .map(|device| thread::spawn(move || count(&device, address)))
        .collect();

    let device = Device::open("127.0.0.1")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let counter = pd.register(8, Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)?;
    let mut connections = Vec::new();
    for _ in 0..CLIENTS {
        let qp = pd.qp(QpType::Rc, &cq).build()?;
        let mut channel = listener.accept_timeout(PATIENCE)?;
        channel.connect(&qp, &[counter.remote()])?;
        connections.push((channel, qp));
    }
    for client in clients {
        client.join().expect("a client does not panic")?;
    }
    println!("{CLIENTS} clients counted to {}", counter.load_u64(0));
    assert_eq!(counter.load_u64(0), CLIENTS * ADDITIONS);
    Ok(())
}

/// Adds one to the server's word, again and again.
fn count(device: &Device, address: SocketAddr) -> Result<(), BowlineError> {
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let old = pd.register(8, Access::LOCAL_WRITE)?;
    let peer = Connector::new().connect(address)?.connect(&qp, &[])?;
    for n in 0..ADDITIONS {
        qp.fetch_add(n, &old, 0, peer.regions[0], 1)?;
        cq.next(PATIENCE)?;
    }
    Ok(())
}
