//! Figure 7 and Table 3 of the OptiNIC paper: the error after losses by layout, and the time of a
//! transform by the size of its blocks.

use std::f32::consts::TAU;

use bowline_bench_common::cpu_time_s;
use bowline_codes::hadamard::{Distortion, Hadamard, Layout, distortion};
use bowline_codes::reduce::DataType;
use serde::Serialize;

#[derive(clap::Args)]
pub(crate) struct Paper {
    /// Loss patterns of each row of `paper`
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    patterns: u32,
    /// Seed of the tensor and the losses of `paper`
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Mean length of a burst of losses of `paper`, in packets
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    burst: u32,
}

/// Elements of the tensor.
const N: usize = 1 << 20;
/// Elements of a packet.
const PACKET: usize = 1024;
const PACKET_BYTES: usize = 4 * PACKET;
/// Elements of a layer. Layers differ in scale.
const LAYER: usize = 4096;
/// Loss rates.
const RATES: [f32; 4] = [0.01, 0.02, 0.05, 0.1];
/// Elements of Table 3's message of 128 MB.
const MESSAGE: usize = 1 << 25;

#[derive(Serialize)]
struct Json {
    figure_7: Vec<Point>,
    table_3: Vec<Split>,
}

#[derive(Serialize)]
struct Point {
    scheme: &'static str,
    loss: f32,
    burst: u32,
    /// The error's energy over the tensor's: mean over patterns, and the worst of them.
    nmse_mean: f64,
    nmse_max: f64,
    /// The same of the layer that has lost most, mean over patterns.
    worst_layer: f64,
}

#[derive(Serialize)]
struct Split {
    blocks: usize,
    encode_ms: f64,
    paper_gpu_ms: f64,
}

/// Prints both, and gives them.
pub(crate) fn run(args: &Paper) -> serde_json::Value {
    let mut random = Random(args.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let tensor = layers(&mut random);
    println!("{N} f32 in packets of {PACKET}; layers of {LAYER} differ in scale; losses are zeros");
    println!(
        "{:<24} {:>6} {:>6} {:>10} {:>10} {:>12}",
        "scheme", "loss", "burst", "NMSE mean", "NMSE max", "worst layer"
    );
    let mut json = Json { figure_7: Vec::new(), table_3: Vec::new() };
    for loss in RATES {
        let patterns: Vec<Vec<bool>> =
            (0..args.patterns).map(|_| random.losses(loss, args.burst)).collect();
        for scheme in &schemes() {
            let point = scheme.measure(&tensor, &patterns, loss, args.burst);
            println!(
                "{:<24} {:>5.0}% {:>6} {:>10.4} {:>10.4} {:>12.4}",
                point.scheme,
                100.0 * loss,
                point.burst,
                point.nmse_mean,
                point.nmse_max,
                point.worst_layer
            );
            json.figure_7.push(point);
        }
    }
    println!("\n{:<24} {:>10} {:>18}", "128 MB in blocks", "ms here", "ms on their GPU");
    for (blocks, paper_gpu_ms) in [(1, 22.1), (4, 19.9), (16, 17.5), (64, 8.4)] {
        let encode_ms = encode_ms(blocks);
        println!("{blocks:<24} {encode_ms:>10.1} {paper_gpu_ms:>18.1}");
        json.table_3.push(Split { blocks, encode_ms, paper_gpu_ms });
    }
    serde_json::to_value(json).expect("numbers can be written as JSON")
}

/// A way to send the tensor.
struct Scheme {
    name: &'static str,
    /// None sends it as it is.
    plan: Option<Hadamard>,
    /// Packets are sent in the order of [`Hadamard::turns`].
    by_turns: bool,
}

fn schemes() -> Vec<Scheme> {
    let scheme = |name, layout, by_turns| Scheme {
        name,
        plan: Some(Hadamard::new(DataType::F32, N, layout, 42).expect("layouts are sound")),
        by_turns,
    };
    let blocks = |block, stride| Layout::Blocks { block, stride };
    let local = Layout::Local { packet_bytes: PACKET_BYTES };
    vec![
        Scheme { name: "Raw", plan: None, by_turns: false },
        scheme("HD:Msg", blocks(N, 1), false),
        scheme("HD:Blk", blocks(PACKET, 1), false),
        scheme("HD:Blk+Str S=4", blocks(PACKET, 4), false),
        scheme("HD:Blk+Str S=64", blocks(PACKET, 64), false),
        scheme("HD:Blk+Str S=1024", blocks(PACKET, PACKET), false),
        scheme("local", local, false),
        scheme("local, groups by turns", local, true),
    ]
}

impl Scheme {
    fn measure(&self, tensor: &[u8], patterns: &[Vec<bool>], loss: f32, burst: u32) -> Point {
        let mut encoded = tensor.to_vec();
        if let Some(plan) = &self.plan {
            plan.encode(tensor, &mut encoded);
        }
        // Which packet is sent at which time.
        let order: Vec<usize> = match &self.plan {
            Some(plan) if self.by_turns => plan.turns().collect(),
            _ => (0..N / PACKET).collect(),
        };
        let lost: Vec<Distortion> =
            patterns.iter().map(|pattern| self.lose(tensor, &encoded, pattern, &order)).collect();
        let mean =
            |of: fn(&Distortion) -> f64| lost.iter().map(of).sum::<f64>() / lost.len() as f64;
        Point {
            scheme: self.name,
            loss,
            burst,
            nmse_mean: mean(|lost| lost.nmse),
            nmse_max: lost.iter().map(|lost| lost.nmse).fold(0.0, f64::max),
            worst_layer: mean(|lost| lost.worst),
        }
    }

    fn lose(&self, tensor: &[u8], encoded: &[u8], lost: &[bool], order: &[usize]) -> Distortion {
        let mut arrived = encoded.to_vec();
        for (packet, _) in order.iter().zip(lost).filter(|(_, lost)| **lost) {
            arrived[packet * PACKET_BYTES..][..PACKET_BYTES].fill(0);
        }
        let mut restored = arrived.clone();
        if let Some(plan) = &self.plan {
            plan.decode(&arrived, &mut restored);
        }
        distortion(DataType::F32, tensor, &restored, LAYER).expect("f32 can be compared")
    }
}

/// The time of one encoding, on one core, without interleaving: the thread's own.
fn encode_ms(blocks: usize) -> f64 {
    let layout = Layout::Blocks { block: MESSAGE / blocks, stride: 1 };
    let plan = Hadamard::new(DataType::F32, MESSAGE, layout, 1).expect("layouts are sound");
    let tensor: Vec<u8> = (0..MESSAGE as u32)
        .flat_map(|i| ((i.wrapping_mul(0x9e37_79b9) >> 8) as f32).to_ne_bytes())
        .collect();
    let mut encoded = vec![1; plan.encoded_len()];
    let start_s = cpu_time_s();
    plan.encode(&tensor, &mut encoded);
    (cpu_time_s() - start_s) * 1e3
}

/// Heavy tails (Student's t with 3 degrees of freedom), and scales by layer that are lognormal.
fn layers(random: &mut Random) -> Vec<u8> {
    let mut tensor = Vec::with_capacity(4 * N);
    for _ in 0..N / LAYER {
        let scale = 1e-3 * (1.5 * random.normal()).exp();
        for _ in 0..LAYER {
            let chi = (0..3).map(|_| random.normal().powi(2)).sum::<f32>() / 3.0;
            tensor.extend((scale * random.normal() / chi.sqrt()).to_ne_bytes());
        }
    }
    tensor
}

/// A small generator, so that a seed says everything.
struct Random(u64);

impl Random {
    /// Uniform in (0, 1].
    fn uniform(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 40) + 1) as f32 / (1u64 << 24) as f32
    }

    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (TAU * self.uniform()).cos()
    }

    /// Which packets are lost, at this rate, in bursts of geometric length.
    fn losses(&mut self, rate: f32, burst: u32) -> Vec<bool> {
        let leave = 1.0 / burst as f32;
        let enter = rate * leave / (1.0 - rate);
        let mut bad = false;
        (0..N / PACKET)
            .map(|_| {
                bad = match bad {
                    _ if burst == 1 => self.uniform() <= rate,
                    true => self.uniform() > leave,
                    false => self.uniform() <= enter,
                };
                bad
            })
            .collect()
    }
}
