//! A custom reliability scheme: every chunk is sent twice.
//!
//! Two ends on loopback move a message over a link that loses one packet in a hundred, once with
//! the scheme of this file and once with selective repeat, and show what each had to do.
//!
//! ```text
//! cargo run --release -p bowline --example custom_scheme
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use bowline::scheme::{Part, RecvCx, Scheme, SchemeReceiver, SchemeSender, SendCx};
use bowline::{Access, Connector, Device, Error, Listener, Mr};
use bowline::{ReliableConfig, ReliableQp, Shape, WriteOptions};

/// Sends the message, and then all of it again. If both copies of a chunk are lost, the receiver
/// names it, and it is sent twice more.
#[derive(Debug)]
struct Twice;

impl Scheme for Twice {
    fn name(&self) -> String {
        "twice".to_owned()
    }

    fn sender(&self, _: &Shape) -> Box<dyn SchemeSender> {
        Box::new(TwiceSender)
    }

    fn receiver(&self, _: &Shape) -> Box<dyn SchemeReceiver> {
        Box::new(TwiceReceiver)
    }
}

struct TwiceSender;

impl SchemeSender for TwiceSender {
    fn start(&mut self, cx: &mut SendCx<'_>) {
        // The copies of a chunk are far apart, so that a burst of losses does not take both.
        for _ in 0..2 {
            for chunk in 0..cx.shape().chunks() {
                cx.send(Part::Data(chunk));
            }
        }
    }

    fn control(&mut self, cx: &mut SendCx<'_>, message: &[u8]) {
        for number in message.as_chunks::<4>().0 {
            let chunk = Part::Data(u32::from_be_bytes(*number));
            (0..2).for_each(|_| cx.send_again(chunk));
        }
    }

    fn timeout(&mut self, _: &mut SendCx<'_>) {}
}

struct TwiceReceiver;

impl TwiceReceiver {
    fn missing(cx: &RecvCx<'_>) -> impl Iterator<Item = u32> {
        (0..cx.shape().chunks()).filter(|chunk| !cx.has(Part::Data(*chunk)))
    }
}

impl SchemeReceiver for TwiceReceiver {
    fn progress(&mut self, cx: &mut RecvCx<'_>) {
        if Self::missing(cx).next().is_none() {
            cx.complete();
        } else {
            // As long as chunks keep coming, the second copies may be among them.
            cx.set_timer(Some(cx.now().plus_nanos(cx.rtt_ns() + 5_000_000)));
        }
    }

    /// The sender has heard nothing for long, and asks.
    fn probe(&mut self, cx: &mut RecvCx<'_>) {
        self.timeout(cx);
    }

    fn timeout(&mut self, cx: &mut RecvCx<'_>) {
        let missing: Vec<u8> = Self::missing(cx).take(128).flat_map(u32::to_be_bytes).collect();
        cx.tell(&missing);
        cx.set_timer(Some(cx.now().plus_nanos(cx.rtt_ns() + 10_000_000)));
    }
}

const BYTES: usize = 4 << 20;
const LINK: &str = "loss=1%,delay=2ms,rate=1Gbps,seed=1";

/// One end: its queue pair has the scheme in addition to the standard ones.
fn open(addr: &str) -> Result<(ReliableQp, Mr), Error> {
    let device = Device::builder(addr.parse().expect("an address"));
    let pd = device.link(LINK.parse().expect("a link")).open()?.alloc_pd()?;
    let mr = pd.register(BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let mut config = ReliableConfig::default();
    config.schemes.push(Arc::new(Twice));
    config.sdr.rate_bps = Some(950_000_000);
    Ok((ReliableQp::new(&pd, &config)?, mr))
}

/// Transfers a message with each of the schemes; returns the effort, and whether it arrived intact.
pub(crate) fn run(schemes: &[&str], [from, to]: [&str; 2]) -> Result<Vec<(String, bool)>, Error> {
    let pattern: Vec<u8> = (0..BYTES).map(|i| ((i * 7) >> 9) as u8).collect();
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let patience = Duration::from_secs(20);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| -> Result<Vec<String>, Error> {
            let (qp, mr) = open(from)?;
            mr.write_at(0, &pattern);
            let mut channel = Connector::new().connect(address)?;
            qp.connect_over(&mut channel)?;
            let mut lines = Vec::new();
            for name in schemes {
                let (start, before) = (Instant::now(), qp.stats()?.chunks_resent);
                qp.write(&mr, 0..BYTES, WriteOptions { scheme: qp.scheme(name)?, imm: None })?;
                qp.next(patience)?;
                let (took, again) = (start.elapsed(), qp.stats()?.chunks_resent - before);
                lines.push(format!("{name:8} {took:.1?}, {again} chunks asked for again"));
                channel.barrier()?;
            }
            Ok(lines)
        });
        let (qp, mr) = open(to)?;
        let mut channel = listener.accept_timeout(patience)?;
        qp.connect_over(&mut channel)?;
        let mut right = Vec::new();
        for _ in schemes {
            mr.fill(0, BYTES, 0);
            qp.recv(&mr, 0..BYTES)?;
            qp.next(patience)?;
            right.push(mr.to_vec(0, BYTES) == pattern);
            channel.barrier()?;
        }
        let lines = sender.join().expect("the sender does not panic")?;
        Ok(lines.into_iter().zip(right).collect())
    })
}

fn main() -> Result<(), Error> {
    println!("{} MiB over {LINK}", BYTES >> 20);
    for (line, right) in run(&["twice", "sr-nack"], ["127.0.79.1", "127.0.79.2"])? {
        println!("{line}; {}", if right { "every byte is right" } else { "DAMAGED" });
    }
    Ok(())
}
