//! Figures 9 to 12, in the simulator.

use bowline_fec::FecMode;
use bowline_nic::{Mtu, Time};
use bowline_sim::Prob;
use bowline_sim::experiment::{Goodput, GoodputConfig, goodput as run};
use bowline_sim::net::{Bursts, LinkConfig, Loss};

use crate::Result;
use crate::bars::Bars;

pub(crate) const RATE_BPS: u64 = 10_000_000_000;
const MTU: Mtu = Mtu::B1024;
const MESSAGE: u32 = 1 << 20;

/// WRITEs of 1 MiB over a link of 10 Gbit/s, a bandwidth-delay product and a little more in flight.
pub(crate) fn wan(
    seed: u64,
    rate_bps: u64,
    rtt_ms: u64,
    loss: Loss,
    fec: Option<FecMode>,
) -> GoodputConfig {
    let bdp = (rate_bps / 8 * rtt_ms / 1_000) as u32;
    let window_bytes = bdp / 100 * 102;
    GoodputConfig {
        seed,
        cable: LinkConfig {
            bandwidth_bps: rate_bps,
            delay_ns: rtt_ms * 500_000,
            // Holds what is in flight twice: the losses asked for are the only ones.
            queue_bytes: (bdp * 2).max(16 << 20),
            ecn: None,
        },
        loss,
        changes: &[],
        fec,
        mtu: MTU,
        message_bytes: MESSAGE,
        messages: 1_000,
        depth: window_bytes / MESSAGE + 8,
        window_bytes,
        timeout: 18,
    }
}

pub(crate) fn iid(loss: f64) -> Loss {
    if loss == 0.0 { Loss::None } else { Loss::Iid(Prob::new(loss)) }
}

pub(crate) fn code(text: &str) -> Option<FecMode> {
    text.parse().ok()
}

pub(crate) fn measure(config: &GoodputConfig) -> Result<Goodput> {
    run(config).ok_or_else(|| "a connection gave up".into())
}

/// Payload bits per second once the link is full: without the first round trip.
pub(crate) fn steady_bps(result: &Goodput, config: &GoodputConfig) -> f64 {
    let skip = result.progress.len() / 10;
    let (first, last) = (result.progress[skip].0, result.progress[result.progress.len() - 1].0);
    let messages = (result.progress.len() - 1 - skip) as f64;
    messages * f64::from(config.message_bytes) * 8.0 / (last.nanos_since(first) as f64 / 1e9)
}

/// What the paper's figure 9 shows or its text says, in Gbit/s: ConnectX-5, LoWAR(32, 1).
fn paper(rtt_ms: u64, loss: f64) -> &'static str {
    match (rtt_ms, loss) {
        (40, 0.0) => "9.2 / -",
        (40, 0.000_01) => "2.9 / x2.05..5.01",
        (40, 0.000_1) => "- / x2.05..5.01",
        (80, 0.000_01) => "- / x11.55..19.07",
        (80, 0.000_1) => "- / x11.55..19.07",
        _ => "-",
    }
}

/// Figure 9: goodput against loss.
pub(crate) fn goodput(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("goodput of one connection, 10 Gbit/s, MTU 1024, WRITEs of 1 MiB [Gbit/s]");
    println!(
        "{:>6} {:>9} {:>12} {:>12} {:>12} {:>12} {:>8}   paper: CX-5 / LoWAR(32,1) over it",
        "RTT", "loss", "GBN theory", "GBN", "FEC(32,1)", "FEC(8,1)", "x GBN"
    );
    for rtt_ms in [40, 80] {
        let gbps = |loss: f64, fec: Option<FecMode>, messages: u32| -> Result<f64> {
            let mut config = wan(seed, RATE_BPS, rtt_ms, iid(loss), fec);
            config.messages = messages;
            Ok(steady_bps(&measure(&config)?, &config) / 1e9)
        };
        let lossless = gbps(0.0, None, 300)?;
        let window = f64::from(wan(seed, RATE_BPS, rtt_ms, Loss::None, None).window_bytes / 1024);
        for loss in [0.0, 0.000_01, 0.000_1, 0.001] {
            let theory = lossless / (1.0 + loss * window);
            // As many messages as give some dozens of losses, where the time that takes allows it.
            let (few, many) = match loss {
                0.0 => (300, 300),
                0.001 => (80, 300),
                0.000_1 => (600, 1_000),
                _ => (1_200, 1_200),
            };
            let gbn = gbps(loss, None, few)?;
            let fec32 = gbps(loss, code("32,1"), many)?;
            let fec8 = gbps(loss, code("8,1"), many / 2)?;
            println!(
                "{rtt_ms:>4}ms {:>8.3}% {theory:>12.3} {gbn:>12.3} {fec32:>12.3} {fec8:>12.3} {:>8.2}   {}",
                loss * 100.0,
                fec32 / gbn,
                paper(rtt_ms, loss)
            );
            let what = format!("{rtt_ms} ms, {:.3} % loss", loss * 100.0);
            for (name, value) in [("GBN", gbn), ("FEC(32,1)", fec32), ("FEC(8,1)", fec8)] {
                bars.note(format!("{name}, {what} [Gbit/s]"), value);
            }
            if loss == 0.000_01 || loss == 0.000_1 {
                let kept = fec32 / (lossless * 32.0 / 33.0);
                let least = if rtt_ms == 40 { 0.93 } else { 0.9 };
                bars.at_least(format!("FEC(32,1) of lossless x 32/33, {what}"), kept, least);
            }
            if loss == 0.000_1 {
                let least = if rtt_ms == 40 { 4.5 } else { 8.5 };
                bars.at_least(format!("FEC(32,1) over go-back-N, {what}"), fec32 / gbn, least);
            }
        }
    }
    Ok(())
}

/// Mean and 99th percentile of completion times, in milliseconds.
fn completion_ms(config: &GoodputConfig) -> Result<(f64, f64)> {
    let mut times = measure(config)?.completion_ns;
    times.sort_unstable();
    let mean = times.iter().sum::<u64>() as f64 / times.len() as f64;
    let p99 = times[(times.len() * 99).div_ceil(100) - 1];
    Ok((mean / 1e6, p99 as f64 / 1e6))
}

/// Figure 10: completion times of messages of 1 MB, one at a time.
pub(crate) fn completion(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("\ncompletion of messages of 1 MB, one at a time, 10 Gbit/s, 40 ms [ms]");
    println!(
        "{:>9} {:>10} {:>10} {:>12} {:>12}   paper: CX-5's mean is 12 % above LoWAR's at 0.01 %, 97 % at 0.05 %",
        "loss", "GBN mean", "GBN p99", "FEC mean", "FEC p99"
    );
    let config = |loss: f64, fec| {
        let mut config = wan(seed, RATE_BPS, 40, iid(loss), fec);
        (config.message_bytes, config.messages, config.depth) = (1_000_000, 2_000, 1);
        config
    };
    let (lossless_mean, lossless_p99) = completion_ms(&config(0.0, None))?;
    println!("{:>8.3}% {lossless_mean:>10.3} {lossless_p99:>10.3}", 0.0);
    for loss in [0.000_01, 0.000_1, 0.000_5, 0.001] {
        let (gbn_mean, gbn_p99) = completion_ms(&config(loss, None))?;
        let (mean, p99) = completion_ms(&config(loss, code("32,1")))?;
        let percent = loss * 100.0;
        println!("{percent:>8.3}% {gbn_mean:>10.3} {gbn_p99:>10.3} {mean:>12.3} {p99:>12.3}");
        bars.note(format!("FEC(32,1), {percent:.3} %, mean completion [ms]"), mean);
        bars.note(format!("GBN, {percent:.3} %, mean completion [ms]"), gbn_mean);
        if loss == 0.000_1 {
            bars.at_least(
                "lossless over FEC(32,1), mean completion at 0.01 %",
                lossless_mean / mean,
                1.0 / 1.02,
            );
            bars.at_least(
                "lossless over FEC(32,1), p99 of completion at 0.01 %",
                lossless_p99 / p99,
                0.95,
            );
        }
    }
    Ok(())
}

/// Figure 11: bursts. The two-state model of the paper: from the good state to the bad one with 0.01 % a
/// packet, in the bad one for `length` packets, with this loss in it.
pub(crate) fn bursts(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("\nbursts, 10 Gbit/s, 40 ms, FEC(64,8) [Gbit/s]   paper: about 8 up to bursts of 8");
    println!(
        "{:>7} {:>10} {:>10} {:>10} {:>10}",
        "length", "GBN, 0.3", "FEC, 0.3", "GBN, 0.7", "FEC, 0.7"
    );
    let mut fec = [Vec::new(), Vec::new()];
    for length in [2, 4, 6, 8, 10, 12] {
        let mut row = Vec::new();
        for (index, high) in [0.3, 0.7].into_iter().enumerate() {
            let begin = Prob::new(0.000_1);
            let loss = Loss::Bursts(Bursts { begin, packets: length, loss: Prob::new(high) });
            for mode in [None, code("64,8")] {
                let mut config = wan(seed, RATE_BPS, 40, loss, mode);
                config.messages = if mode.is_some() { 500 } else { 100 };
                let gbps = steady_bps(&measure(&config)?, &config) / 1e9;
                row.push(gbps);
                if mode.is_some() {
                    fec[index].push(gbps);
                }
            }
        }
        println!("{length:>7} {:>10.3} {:>10.3} {:>10.3} {:>10.3}", row[0], row[1], row[2], row[3]);
    }
    for (index, high) in [0.3, 0.7].into_iter().enumerate() {
        let upto8 = &fec[index][..4];
        let most = upto8.iter().copied().fold(0.0, f64::max);
        let least = upto8.iter().copied().fold(f64::MAX, f64::min);
        bars.at_least(
            format!("FEC(64,8), bursts of 2 to 8, loss {high}: least over most"),
            least / most,
            0.9,
        );
    }
    Ok(())
}

/// Figure 12: small messages at 40 ms and 0.1 %, 128 outstanding.
pub(crate) fn small(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("\nsmall messages, 128 outstanding, 10 Gbit/s, 40 ms, 0.1 % loss [Mbit/s]");
    println!(
        "{:>8} {:>10} {:>10} {:>10}   paper: LoWAR nearly as without losses",
        "bytes", "lossless", "GBN", "FEC(32,1)"
    );
    for bytes in [64, 256, 1_024, 4_096, 16_384] {
        let mbps = |loss, mode| -> Result<f64> {
            let mut config = wan(seed, RATE_BPS, 40, iid(loss), mode);
            (config.message_bytes, config.messages, config.depth) = (bytes, 10_000, 128);
            Ok(steady_bps(&measure(&config)?, &config) / 1e6)
        };
        let (lossless, gbn, fec) =
            (mbps(0.0, None)?, mbps(0.001, None)?, mbps(0.001, code("32,1"))?);
        println!("{bytes:>8} {lossless:>10.2} {gbn:>10.2} {fec:>10.2}");
        bars.note(format!("FEC(32,1), messages of {bytes} B, of lossless"), fec / lossless);
    }
    Ok(())
}

/// A time in virtual milliseconds.
pub(crate) const fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}
