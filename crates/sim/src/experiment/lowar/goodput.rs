//! Goodput against loss, bursts, and message size: figures 9, 11 and 12.

use bowline_fec::FecMode;
use bowline_link::{Bursts, Loss, Prob};

use super::{Figure, FigureRow, GaveUp, RATE_BPS, bar, code, gbps, iid, row, run, wan};

/// What the paper's figure 9 shows, or its text says: ConnectX-5 in Gbit/s, and the share of it
/// that LoWAR(32, 1) reaches.
fn paper(rtt_ms: u64, loss: f64) -> &'static str {
    match (rtt_ms, loss) {
        (40, 0.0) => "CX-5: 9.2",
        (40, 0.000_01) => "CX-5: 2.9; LoWAR x2.05 to x5.01 of CX-5 at 0.001 % to 0.01 %",
        (40, 0.000_1) => "LoWAR x2.05 to x5.01 of CX-5 at 0.001 % to 0.01 %",
        (80, 0.000_01 | 0.000_1) => "LoWAR x11.55 to x19.07 of CX-5 at 0.001 % to 0.01 %",
        _ => "",
    }
}

/// Figure 9: goodput against loss.
pub(super) fn against_loss(seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let losses: &[f64] = if quick { &[0.0, 0.000_1] } else { &[0.0, 0.000_01, 0.000_1, 0.001] };
    for rtt_ms in [40, 80] {
        let measure = |loss: f64, fec: Option<FecMode>, messages: u32| {
            let mut config = wan(seed, RATE_BPS, rtt_ms * 1_000, iid(loss), fec);
            config.messages = messages;
            gbps(&config)
        };
        let lossless = measure(0.0, None, 300)?;
        let config = wan(seed, RATE_BPS, rtt_ms * 1_000, Loss::None, None);
        let window = f64::from(config.window_bytes / config.mtu.bytes());
        for loss in losses.iter().copied() {
            // Enough messages for some dozens of losses, as far as the run time allows.
            let (few, many) = match loss {
                0.0 => (300, 300),
                0.001 => (80, 300),
                0.000_1 => (600, 1_000),
                _ => (1_200, 1_200),
            };
            let theory = lossless / (1.0 + loss * window);
            let gbn = measure(loss, None, few)?;
            let fec32 = measure(loss, code(32, 1), many)?;
            let fec8 = measure(loss, code(8, 1), many / 2)?;
            let percent = loss * 100.0;
            let values = vec![rtt_ms as f64, percent, theory, gbn, fec32, fec8, fec32 / gbn];
            rows.push(FigureRow { values, paper: paper(rtt_ms, loss) });
            let at = format!("{rtt_ms} ms, {percent:.3} % loss");
            if loss == 0.000_01 || loss == 0.000_1 {
                let least = if rtt_ms == 40 { 0.93 } else { 0.9 };
                let kept = fec32 / (lossless * 32.0 / 33.0);
                bars.push(bar(format!("FEC(32,1) of lossless x 32/33, {at}"), kept, least));
            }
            if loss == 0.000_1 {
                let least = if rtt_ms == 40 { 4.5 } else { 8.5 };
                bars.push(bar(format!("FEC(32,1) over go-back-N, {at}"), fec32 / gbn, least));
            }
        }
    }
    Ok(Figure {
        title: "goodput of one connection against loss, 10 Gbit/s, MTU 1024, WRITEs of 1 MiB [Gbit/s]",
        columns: &["RTT ms", "loss %", "GBN theory", "GBN", "FEC(32,1)", "FEC(8,1)", "x GBN"],
        rows,
        bars,
    })
}

/// Figure 11: the paper's two-state model, from the good state to the bad one with 0.01 % a packet,
/// in the bad one for `length` packets, with 0.3 or 0.7 lost in it.
pub(super) fn bursts(seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    const HIGH: [f64; 2] = [0.3, 0.7];
    let mut rows = Vec::new();
    let mut short = [Vec::new(), Vec::new()];
    let lengths: &[u32] = if quick { &[2, 8, 12] } else { &[2, 4, 6, 8, 10, 12] };
    for length in lengths.iter().copied() {
        let mut values = vec![f64::from(length)];
        for (high, short) in HIGH.into_iter().zip(&mut short) {
            let (begin, loss) = (Prob::new(0.000_1), Prob::new(high));
            let loss = Loss::Bursts(Bursts { begin, packets: length, loss });
            for fec in [None, code(64, 8)] {
                let mut config = wan(seed, RATE_BPS, 40_000, loss, fec);
                config.messages = if fec.is_some() { 500 } else { 100 };
                values.push(gbps(&config)?);
            }
            if length <= 8 {
                short.extend(values.last().copied());
            }
        }
        let paper = if length <= 8 { "LoWAR(64,8): about 8" } else { "falls" };
        rows.push(FigureRow { values, paper });
    }
    let flatness = |values: &[f64]| {
        let most = values.iter().copied().fold(0.0, f64::max);
        values.iter().copied().fold(f64::MAX, f64::min) / most
    };
    let bars = HIGH.iter().zip(&short).map(|(high, values)| {
        let what = format!("FEC(64,8), bursts of 2 to 8, loss {high}: least over most");
        bar(what, flatness(values), 0.9)
    });
    Ok(Figure {
        title: "bursts that begin with 0.01 % of packets, 10 Gbit/s, 40 ms, FEC(64,8) [Gbit/s]",
        columns: &["length", "GBN, 0.3", "FEC, 0.3", "GBN, 0.7", "FEC, 0.7"],
        bars: bars.collect(),
        rows,
    })
}

/// Figure 12: small messages at 40 ms and 0.1 %, 128 outstanding.
pub(super) fn small(seed: u64, quick: bool) -> Result<Figure, GaveUp> {
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    let sizes: &[u32] = if quick { &[64, 4_096] } else { &[64, 256, 1_024, 4_096, 16_384] };
    for bytes in sizes.iter().copied() {
        let mbps = |loss, fec| {
            let mut config = wan(seed, RATE_BPS, 40_000, iid(loss), fec);
            (config.message_bytes, config.messages, config.depth) = (bytes, 10_000, 128);
            Ok(run(&config)?.steady_bps(&config) / 1e6)
        };
        let (lossless, gbn, fec) =
            (mbps(0.0, None)?, mbps(0.001, None)?, mbps(0.001, code(32, 1))?);
        rows.push(FigureRow {
            paper: "LoWAR: nearly as without losses",
            ..row(&[f64::from(bytes), lossless, gbn, fec])
        });
        bars.push(bar(format!("FEC(32,1) of lossless, {bytes} bytes"), fec / lossless, 0.95));
    }
    Ok(Figure {
        title: "small messages, 128 outstanding, 10 Gbit/s, 40 ms, 0.1 % loss [Mbit/s]",
        columns: &["bytes", "lossless", "GBN", "FEC(32,1)"],
        rows,
        bars,
    })
}
