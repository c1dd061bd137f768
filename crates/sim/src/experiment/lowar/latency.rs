//! Completion times, and the latency that FEC adds to them: figures 10 and 13.

use bowline_fec::FecMode;

use super::{Figure, FigureRow, GaveUp, RATE_BPS, bar, code, iid, row, run, wan};
use crate::experiment::GoodputConfig;

/// Messages of 1 MB, one at a time.
fn single(config: GoodputConfig, messages: u32) -> GoodputConfig {
    GoodputConfig { message_bytes: 1_000_000, messages, depth: 1, ..config }
}

/// Completion times, sorted, in ms.
fn times_ms(config: &GoodputConfig) -> Result<Vec<f64>, GaveUp> {
    let mut times = run(config)?.completion_ns;
    times.sort_unstable();
    Ok(times.into_iter().map(|ns| ns as f64 / 1e6).collect())
}

fn mean(times: &[f64]) -> f64 {
    times.iter().sum::<f64>() / times.len().max(1) as f64
}

fn p99(times: &[f64]) -> f64 {
    times[(times.len() * 99).div_ceil(100) - 1]
}

/// Figure 10: completion times of messages of 1 MB, one at a time, at 40 ms.
pub(super) fn completion(seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    let messages = if quick { 500 } else { 2_000 };
    let losses: &[f64] = if quick { &[0.000_1] } else { &[0.000_01, 0.000_1, 0.000_5, 0.001] };
    let measure =
        |loss, fec| times_ms(&single(wan(seed, RATE_BPS, 40_000, iid(loss), fec), messages));
    let lossless = measure(0.0, None)?;
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    rows.push(row(&[0.0, mean(&lossless), p99(&lossless), mean(&lossless), p99(&lossless)]));
    for loss in losses.iter().copied() {
        let (gbn, fec) = (measure(loss, None)?, measure(loss, code(32, 1))?);
        let paper = match loss {
            0.000_1 => "CX-5's mean 12 % above LoWAR's; LoWAR's p99 as lossless",
            0.000_5 => "CX-5's mean 97 % above LoWAR's; LoWAR's p99 as lossless",
            _ => "",
        };
        let values = vec![loss * 100.0, mean(&gbn), p99(&gbn), mean(&fec), p99(&fec)];
        rows.push(FigureRow { values, paper });
        if loss == 0.000_1 {
            let what = "lossless over FEC(32,1), mean completion at 0.01 %";
            bars.push(bar(what, mean(&lossless) / mean(&fec), 1.0 / 1.02));
            let what = "lossless over FEC(32,1), p99 of completion at 0.01 %";
            bars.push(bar(what, p99(&lossless) / p99(&fec), 0.95));
        }
    }
    Ok(Figure {
        title: "completion of messages of 1 MB, one at a time, 10 Gbit/s, 40 ms [ms]",
        columns: &["loss %", "GBN mean", "GBN p99", "FEC mean", "FEC p99"],
        rows,
        bars,
    })
}

/// A link within a building.
const LAN_RTT_US: u64 = 20;

/// Figure 13: what FEC adds to the completion of 1 MB on a LAN, without losses and with some.
/// Computation takes no time here: a loss costs a wait for the repair, and only if that is still
/// missing when all else has arrived.
pub(super) fn added(seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    const LOSS: f64 = 0.000_1;
    let messages = if quick { 60 } else { 2_000 };
    let mean_us = |loss, fec: Option<FecMode>| {
        let config = wan(seed, RATE_BPS, LAN_RTT_US, iid(loss), fec);
        Ok(mean(&times_ms(&single(config, messages))?) * 1e3)
    };
    let plain = mean_us(0.0, None)?;
    let gbn = mean_us(LOSS, None)? - plain;
    let codes: &[(u8, u8)] = match quick {
        true => &[(8, 1), (32, 1)],
        false => &[(8, 1), (16, 1), (32, 1), (64, 1), (64, 8), (128, 16)],
    };
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for (r, c) in codes.iter().copied() {
        let clean = mean_us(0.0, code(r, c))?;
        let lossy = mean_us(LOSS, code(r, c))?;
        // A repair of 1024 bytes with its headers, Ethernet's included.
        let packet_us = 1_120.0 * 8.0 / (RATE_BPS as f64 / 1e6);
        let repairs_us = 977.0 * f64::from(c) / f64::from(r) * packet_us;
        rows.push(FigureRow {
            values: vec![r.into(), c.into(), clean - plain, repairs_us, lossy - clean, gbn],
            paper: "lossless: the repairs' transmission; a loss: more with r",
        });
        let what =
            format!("the repairs' time on the wire over what FEC({r},{c}) adds without losses");
        bars.push(bar(what, repairs_us / (clean - plain), 0.8));
    }
    Ok(Figure {
        title: "mean latency that FEC adds to messages of 1 MB on a LAN of 10 Gbit/s [us]",
        columns: &["r", "c", "no loss", "repairs' time", "0.01 % more", "GBN, 0.01 %"],
        rows,
        bars,
    })
}
