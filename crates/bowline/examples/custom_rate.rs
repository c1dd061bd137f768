//! A custom congestion controller, written outside of the engine: additive increase, multiplicative
//! decrease, driven by round trips.
//!
//! `cargo run --release --example custom_rate -p bowline`
//!
//! What one device on loopback sends to another passes a link of 200 Mbit/s with 2 ms of delay and
//! a deep queue. An uncontrolled sender would fill the queue; this one keeps it short. Exits with
//! an error if its controller heard nothing, or did nothing.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bowline::{
    Access, Acked, Connector, ControlledConnection, ControllerFactory, Device, LinkProfile,
    Listener, Lost, QpType, RateController, Sent, Time,
};

const LINK: &str = "rate=200Mbps,delay=2ms,queue=2MiB";
const MESSAGE: usize = 1 << 20;
const MESSAGES: u64 = 32;
const PATIENCE: Duration = Duration::from_secs(30);

/// Makes controllers, and shows what they have heard and done.
#[derive(Debug, Default)]
struct Aimd {
    seen: Arc<Seen>,
}

/// What the controller records for observers.
#[derive(Debug, Default)]
struct Seen {
    sent: AtomicU64,
    acked: AtomicU64,
    losses: AtomicU64,
    increases: AtomicU64,
    decreases: AtomicU64,
    /// When, window and round trip, at each decision.
    decisions: Mutex<Vec<(Time, u64, u64)>>,
}

impl ControllerFactory for Aimd {
    fn build(&self, _now: Time, connection: &ControlledConnection) -> Box<dyn RateController> {
        let mtu = u64::from(connection.mtu.bytes());
        Box::new(AimdController {
            mtu,
            window: 10 * mtu,
            min_rtt_ns: u64::MAX,
            rtt_ns: 0,
            seen: Arc::clone(&self.seen),
        })
    }
}

/// Grows the window by two packets with every round trip that is close to the shortest, and shrinks
/// it when a queue shows.
#[derive(Debug)]
struct AimdController {
    mtu: u64,
    window: u64,
    min_rtt_ns: u64,
    rtt_ns: u64,
    seen: Arc<Seen>,
}

impl AimdController {
    /// Target queue: software is late by this much anyway.
    const TARGET_QUEUE_NS: u64 = 2_000_000;

    fn shrink(&mut self, numerator: u64, denominator: u64) {
        self.window = (self.window * numerator / denominator).max(2 * self.mtu);
        self.seen.decreases.fetch_add(1, Ordering::Relaxed);
    }
}

impl RateController for AimdController {
    fn pacing_rate_bps(&mut self, _now: Time) -> Option<u64> {
        // A quarter more than a window per round trip, so that the window is the limit.
        (self.rtt_ns > 0).then(|| self.window * 8 * 1_250_000_000 / self.rtt_ns)
    }

    fn window_bytes(&self) -> Option<u64> {
        Some(self.window)
    }

    fn on_sent(&mut self, _now: Time, sent: &Sent) {
        self.seen.sent.fetch_add(sent.bytes, Ordering::Relaxed);
    }

    fn on_acked(&mut self, now: Time, acked: &Acked) {
        self.seen.acked.fetch_add(acked.bytes, Ordering::Relaxed);
        let Some(rtt_ns) = acked.rtt_ns else { return };
        (self.rtt_ns, self.min_rtt_ns) = (rtt_ns.max(1), self.min_rtt_ns.min(rtt_ns));
        if rtt_ns > self.min_rtt_ns + Self::TARGET_QUEUE_NS {
            self.shrink(4, 5);
        } else if !acked.app_limited {
            self.window += 2 * self.mtu;
            self.seen.increases.fetch_add(1, Ordering::Relaxed);
        }
        let mut decisions = self.seen.decisions.lock().expect("nobody panics with it");
        // Preallocated: a controller must not allocate.
        if decisions.len() < decisions.capacity() {
            decisions.push((now, self.window, rtt_ns));
        }
    }

    fn on_lost(&mut self, _now: Time, _lost: &Lost) {
        self.seen.losses.fetch_add(1, Ordering::Relaxed);
        self.shrink(1, 2);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let server = thread::spawn(move || serve(&listener, &wait).map_err(|error| error.to_string()));

    let link: LinkProfile = LINK.parse()?;
    let device = Device::builder("127.0.0.2".parse()?).link(link).open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
    let aimd = Arc::new(Aimd::default());
    aimd.seen.decisions.lock().expect("nobody panics with it").reserve(10_000);
    let qp = pd.qp(QpType::Rc, &cq).rate_controller(aimd.clone()).build()?;
    let mr = pd.register(MESSAGE, Access::empty())?;
    let peer = Connector::new().connect(address)?.connect(&qp, &[])?;
    let target = peer.regions[0].slice(0..MESSAGE as u64)?;

    let start = Instant::now();
    for id in 0..MESSAGES {
        qp.write(id, &mr, 0..MESSAGE, target)?;
    }
    for _ in 0..MESSAGES {
        cq.next(PATIENCE)?;
    }
    let took = start.elapsed();
    drop(done);
    server.join().expect("the server does not panic")?;
    report(&aimd.seen, took)
}

/// Prints what the controller did; an error if that was nothing.
fn report(seen: &Seen, took: Duration) -> Result<(), Box<dyn Error>> {
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let decisions = seen.decisions.lock().expect("nobody panics with it");
    println!("{:>8}  {:>10}  {:>9}", "time", "window", "rtt");
    let begin = decisions.first().map_or(Time::ZERO, |first| first.0);
    for (at, window, rtt) in decisions.iter().step_by((decisions.len() / 16).max(1)) {
        let (ms, rtt_ms) = (at.nanos_since(begin) / 1_000_000, *rtt as f64 / 1e6);
        println!("{ms:>5} ms  {:>6} KiB  {rtt_ms:>6.2} ms", window >> 10);
    }
    let bytes = MESSAGES * MESSAGE as u64;
    println!(
        "{} MiB over {LINK} in {:.2} s: {:.0} Mbit/s; the controller heard of {} bytes sent and {} \
         acknowledged, {} losses; {} increases, {} decreases",
        bytes >> 20,
        took.as_secs_f64(),
        bytes as f64 * 8e-6 / took.as_secs_f64(),
        count(&seen.sent),
        count(&seen.acked),
        count(&seen.losses),
        count(&seen.increases),
        count(&seen.decreases),
    );
    if count(&seen.acked) < bytes || count(&seen.sent) < bytes {
        return Err("the controller was not told of all that was sent and acknowledged".into());
    }
    if count(&seen.increases) == 0 {
        return Err("the controller never heard a round trip that was short enough".into());
    }
    Ok(())
}

/// Offers memory until the other end is done.
fn serve(listener: &Listener, wait: &std::sync::mpsc::Receiver<()>) -> Result<(), Box<dyn Error>> {
    let device = Device::open("127.0.0.1")?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let qp = pd.qp(QpType::Rc, &cq).build()?;
    let mr = pd.register(MESSAGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    listener.accept_timeout(PATIENCE)?.connect(&qp, &[mr.remote()])?;
    // It ends when the sender is gone, for whatever reason.
    let _ = wait.recv();
    Ok(())
}
