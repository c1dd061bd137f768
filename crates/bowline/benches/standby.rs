//! What a backup costs a connection while nothing fails: latency and bandwidth of WRITEs on a
//! device with a backup, compared with one without.
//!
//! A machine's speed drifts by more than the effect sought, from process to process and from second
//! to second. So both connections are in one process, and blocks of some milliseconds alternate;
//! only the ratio of neighbours counts. Prints one JSON object. `bench/failover/run` runs it.

#[path = "../tests/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bowline::{Completion, CompletionExt, Device, Failover, QpType};
use common::{End, PATIENCE, random_addr};

/// Devices are recreated this many times: where their memory lies matters too.
const SETUPS: usize = 5;
const LATENCY_ROUNDS: usize = 150;
const BANDWIDTH_ROUNDS: usize = 40;
/// Round trips of a block, and warm-up ones that do not count.
const ROUND_TRIPS: usize = 300;
const WARM_UP: usize = 30;
/// Messages of a block, their size, and how many are outstanding.
const MESSAGES: usize = 800;
const BYTES: usize = 65_536;
const DEPTH: usize = 32;
/// Where messages are, and flags: what is sent, and what the peer writes.
const PAYLOAD: usize = 0x1_0000;
const OUT: usize = 0;
const IN: usize = 64;
/// Requests that carry a flag.
const FLAG: u64 = u64::MAX;
/// Tells the far ends' thread to end; other values tell it whom to serve.
const STOP: usize = usize::MAX;

fn main() {
    let mut latency = Figures::default();
    let mut bandwidth = Figures::default();
    let store = std::env::temp_dir().join(format!("bowline-standby-{}", std::process::id()));
    for _ in 0..SETUPS {
        let plain = common::pair(QpType::Rc);
        let backed = backed_pair(&format!("file://{}", store.display()));
        let (near, far) = ([&plain.0, &backed.0], [&plain.1, &backed.1]);
        let served = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| serve(far, near, &served));
            for round in 0..LATENCY_ROUNDS {
                latency.add(round, |which| {
                    served.store(which, Ordering::Release);
                    half_round_trip_us(near[which], far[which])
                });
            }
            for round in 0..BANDWIDTH_ROUNDS {
                bandwidth.add(round, |which| {
                    served.store(which, Ordering::Release);
                    gbps(near[which], far[which])
                });
            }
            served.store(STOP, Ordering::Release);
        });
        let account = backed.0.device.failover_account().expect("it has a backup");
        assert_eq!((account.ready, account.moves), (1, [0, 0]), "it stood by");
    }
    // What is left of it is in a place for such things.
    let _ = std::fs::remove_dir_all(&store);
    println!("{{\"latency_us\":{},\"bandwidth_gbps\":{}}}", latency.json(), bandwidth.json());
}

/// A figure of many blocks, without a backup and with one.
#[derive(Default)]
struct Figures {
    blocks: [Vec<f64>; 2],
    ratios: Vec<f64>,
}

impl Figures {
    /// Adds a block of each, in either order.
    fn add(&mut self, round: usize, block: impl Fn(usize) -> f64) {
        let mut found = [0.0; 2];
        for which in if round.is_multiple_of(2) { [0, 1] } else { [1, 0] } {
            found[which] = block(which);
            self.blocks[which].push(found[which]);
        }
        self.ratios.push(found[1] / found[0]);
    }

    fn json(mut self) -> String {
        let [without, with] = self.blocks.each_mut().map(|blocks| median(blocks));
        let ratio = median(&mut self.ratios);
        format!("{{\"without\":{without:.3},\"with\":{with:.3},\"ratio\":{ratio:.4}}}")
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Two connected ends on devices that have backups, and know each other's.
fn backed_pair(url: &str) -> (End, End) {
    let end = || {
        let failover = Failover::to(random_addr()).store(url);
        End::on(&Device::builder(random_addr()).failover(failover).open().unwrap(), QpType::Rc)
    };
    let (a, b) = (end(), end());
    a.connect(&b);
    let start = Instant::now();
    while [&a, &b].iter().any(|end| end.device.failover_account().unwrap().ready == 0) {
        assert!(start.elapsed() < PATIENCE, "a backup is not found");
        std::thread::sleep(Duration::from_millis(1));
    }
    (a, b)
}

/// The far ends' thread: polls one of them, and sends flags back.
fn serve(far: [&End; 2], near: [&End; 2], served: &AtomicUsize) {
    loop {
        let which = served.load(Ordering::Acquire);
        if which == STOP {
            return;
        }
        drain(far[which]);
        let flag = far[which].mr.load_u64(IN);
        if flag != far[which].mr.load_u64(OUT) {
            strike(far[which], near[which], flag);
        }
    }
}

/// Writes a flag to the other end.
fn strike(from: &End, to: &End, flag: u64) {
    from.mr.store_u64(OUT, flag);
    let place = to.remote().slice(IN as u64..IN as u64 + 8).unwrap();
    from.qp.write(FLAG, &from.mr, OUT..OUT + 8, place).unwrap();
}

/// Takes what has completed; says how many messages.
fn drain(end: &End) -> usize {
    let mut out = [Completion::default(); 32];
    let count = end.cq.poll(&mut out).unwrap();
    out[..count].iter().filter(|completion| completion.ok().unwrap().wr_id != FLAG).count()
}

/// The median over a block.
fn half_round_trip_us(near: &End, far: &End) -> f64 {
    let mut spans = Vec::with_capacity(ROUND_TRIPS);
    for i in 0..WARM_UP + ROUND_TRIPS {
        let flag = near.mr.load_u64(OUT) + 1;
        let start = Instant::now();
        strike(near, far, flag);
        while near.mr.load_u64(IN) != flag {
            drain(near);
        }
        if i >= WARM_UP {
            spans.push(start.elapsed().as_secs_f64() * 1e6 / 2.0);
        }
    }
    median(&mut spans)
}

/// Over a block.
fn gbps(near: &End, far: &End) -> f64 {
    let range = PAYLOAD..PAYLOAD + BYTES;
    let place = far.remote().slice(range.start as u64..range.end as u64).unwrap();
    let start = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < MESSAGES {
        while posted < MESSAGES.min(done + DEPTH) {
            near.qp.write(posted as u64, &near.mr, range.clone(), place).unwrap();
            posted += 1;
        }
        done += drain(near);
    }
    (MESSAGES * BYTES) as f64 * 8e-9 / start.elapsed().as_secs_f64()
}
