//! Two NICs send a message back and forth, and each sleeps until the other's arrives.
//!
//! `cargo run --release --example pingpong -p bowline`

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use bowline::{Access, Channel, Connector, Device, Error as BowlineError, Listener, QpType};

const ROUNDS: u32 = 1_000;
const PATIENCE: Duration = Duration::from_secs(5);

fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve(&listener));
    let half_round_trip = play(address)?;
    server.join().expect("the server does not panic")?;
    println!("{ROUNDS} rounds, {half_round_trip:?} one way on average");
    Ok(())
}

/// Answers every message.
fn serve(listener: &Listener) -> Result<(), BowlineError> {
    let player = Player::new("127.0.0.1", listener.accept_timeout(PATIENCE)?)?;
    for _ in 0..ROUNDS {
        player.receive()?;
        player.send()?;
    }
    Ok(())
}

/// Sends and waits for the answer; returns half of the average round trip.
fn play(address: SocketAddr) -> Result<Duration, BowlineError> {
    let player = Player::new("127.0.0.2", Connector::new().connect(address)?)?;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        player.send()?;
        player.receive()?;
    }
    Ok(start.elapsed() / ROUNDS / 2)
}

/// One end: sends and receives complete on separate queues, so they cannot be confused.
struct Player {
    sends: bowline::Cq,
    receives: bowline::Cq,
    qp: bowline::Qp,
    mr: bowline::Mr,
}

impl Player {
    fn new(device_address: &str, mut channel: Channel) -> Result<Player, BowlineError> {
        let device = Device::open(device_address)?;
        let pd = device.alloc_pd()?;
        let (sends, receives) = (device.create_cq(16)?, device.create_cq(16)?);
        let qp = pd.qp(QpType::Rc, &sends).recv_cq(&receives).build()?;
        let mr = pd.register(64, Access::LOCAL_WRITE)?;
        mr.write_at(0, b"ping");
        // Before connecting, so that the peer never sends without a receive posted.
        qp.recv(0, &mr, 32..64)?;
        channel.connect(&qp, &[])?;
        Ok(Player { sends, receives, qp, mr })
    }

    fn send(&self) -> Result<(), BowlineError> {
        self.qp.send(1, &self.mr, 0..4)?;
        self.sends.next(PATIENCE).map(|_| ())
    }

    fn receive(&self) -> Result<(), BowlineError> {
        self.receives.next(PATIENCE)?;
        assert_eq!(self.mr.to_vec(32, 4), b"ping");
        self.qp.recv(0, &self.mr, 32..64)
    }
}
