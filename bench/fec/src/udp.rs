//! Over real sockets: two devices on loopback, and an impaired link of 1 Gbit/s and 40 ms between
//! them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bowline::{Access, ConnectOptions, Cq, Device, FecMode, Mr, Mtu, Qp, QpType};

use crate::Result;
use crate::bars::Bars;

const RATE_BPS: u64 = 1_000_000_000;
const RTT: Duration = Duration::from_millis(40);
const WINDOW: u32 = (RATE_BPS / 8 / 25) as u32 / 100 * 105;
const MESSAGE: usize = 1 << 20;
const IN_FLIGHT: usize = 12;
const RUN: Duration = Duration::from_secs(4);
/// The link is full by then.
const WARM_UP: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(30);

struct End {
    device: Device,
    qp: Qp,
    cq: Cq,
    mr: Mr,
}

impl End {
    fn new(addr: &str, loss: f64, seed: u64, fec: Option<FecMode>) -> Result<End> {
        let (percent, delay_us) = (loss * 100.0, RTT.as_micros() / 2);
        let queue = WINDOW * 2;
        let link = format!(
            "loss={percent}%,delay={delay_us}us,rate={RATE_BPS}bps,queue={queue}B,seed={seed}"
        );
        let mut builder =
            Device::builder(addr.parse()?).mtu(Mtu::B1024).window_bytes(WINDOW).link(link.parse()?);
        if let Some(mode) = fec {
            builder = builder.fec(mode);
        }
        let device = builder.open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(64)?);
        let mr = pd.register(MESSAGE, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let qp = pd.qp(QpType::Rc, &cq).max_send_wr(IN_FLIGHT as u32).build()?;
        Ok(End { device, qp, cq, mr })
    }
}

/// Goodput in Gbit/s, and what was restored.
fn run(loss: f64, seed: u64, fec: Option<FecMode>) -> Result<(f64, u64)> {
    // Acknowledgements travel unharmed, as in the simulator.
    let sender = End::new("127.0.78.1", loss, seed, fec)?;
    let receiver = End::new("127.0.78.2", 0.0, seed, fec)?;
    let options =
        ConnectOptions { timeout: 18, window_bytes: Some(WINDOW), ..ConnectOptions::default() };
    receiver.qp.connect_with(&sender.qp.endpoint(), &options)?;
    sender.qp.connect_with(&receiver.qp.endpoint(), &options)?;
    std::thread::sleep(5 * RTT);
    let start = Instant::now();
    let mut posted = VecDeque::new();
    let mut done = Vec::new();
    let mut next = 0;
    loop {
        while posted.len() < IN_FLIGHT && start.elapsed() < RUN {
            let target = receiver.mr.remote().slice(0..MESSAGE as u64)?;
            sender.qp.write(next, &sender.mr, 0..MESSAGE, target)?;
            posted.push_back(next);
            next += 1;
        }
        if posted.pop_front().is_none() {
            break;
        }
        sender.cq.next(PATIENCE)?;
        done.push(start.elapsed());
    }
    let warm: Vec<_> = done.iter().filter(|at| **at > WARM_UP && **at < RUN).collect();
    let span = match (warm.first(), warm.last()) {
        (Some(first), Some(last)) if last > first => **last - **first,
        _ => return Err("too few messages were complete within the run".into()),
    };
    let gbps = (warm.len() - 1) as f64 * MESSAGE as f64 * 8.0 / span.as_secs_f64() / 1e9;
    Ok((gbps, receiver.device.fec_counters().recovered))
}

pub(crate) fn goodput(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("\nreal sockets, 1 Gbit/s, 40 ms, MTU 1024, 0.1 % loss [Gbit/s]");
    let (lossless, _) = run(0.0, seed, None)?;
    let (gbn, _) = run(0.001, seed, None)?;
    let (fec, recovered) = run(0.001, seed, "32,1".parse().ok())?;
    println!(
        "lossless {lossless:.3}, go-back-N {gbn:.3}, FEC(32,1) {fec:.3} ({recovered} packets restored)"
    );
    bars.note("UDP, lossless [Gbit/s]", lossless);
    bars.at_least("UDP: FEC(32,1) over go-back-N", fec / gbn, 4.0);
    bars.at_least("UDP: FEC(32,1) of lossless x 32/33", fec / (lossless * 32.0 / 33.0), 0.85);
    Ok(())
}
