//! Automatic FEC on a link whose losses change, against the best fixed code of each phase.

use bowline_fec::FecMode;
use bowline_link::{GilbertElliott, Loss, Prob};
use bowline_nic::Time;
use bowline_sim::experiment::{GaveUp, Goodput, goodput, wan};

use crate::Result;
use crate::bars::Bars;

const PHASE_MS: u64 = 4_000;
/// Phases: their names, and losses.
const PHASES: [&str; 4] = ["clean", "0.01 %", "0.5 % in bursts of 4", "clean again"];
/// A tenth of the other experiments': a phase of seconds has fewer packets then.
const RATE_BPS: u64 = 1_000_000_000;
const RTT_US: u64 = 40_000;

/// A time in virtual milliseconds.
const fn ms(ms: u64) -> Time {
    Time::from_millis(ms)
}

fn bursty() -> Loss {
    Loss::GilbertElliott(GilbertElliott::bursts(0.005, 4.0))
}

/// Goodput of one phase once it has lasted a second, in Gbit/s.
fn phase_gbps(result: &Goodput, phase: u64, message_bytes: u32) -> f64 {
    let (from, to) = (ms(phase * PHASE_MS + 1_000), ms((phase + 1) * PHASE_MS));
    let messages = result.progress.iter().filter(|(at, _)| *at > from && *at <= to).count();
    messages as f64 * f64::from(message_bytes) * 8.0 / (to.nanos_since(from) as f64)
}

/// Repairs sent in a phase once it has lasted two seconds.
fn late_repairs(result: &Goodput, phase: u64) -> u64 {
    let within =
        |at: &Time| *at > ms(phase * PHASE_MS + 2_000) && *at <= ms((phase + 1) * PHASE_MS);
    let mut counts = result.progress.iter().filter(|(at, _)| within(at)).map(|(_, n)| *n);
    let first = counts.next().unwrap_or(0);
    counts.next_back().unwrap_or(first) - first
}

pub(crate) fn phases(seed: u64, bars: &mut Bars) -> Result<()> {
    println!("\nautomatic FEC, 1 Gbit/s, 40 ms, phases of {} s [Gbit/s]", PHASE_MS / 1_000);
    let changes: &'static [(Time, Loss)] = Vec::leak(vec![
        (ms(PHASE_MS), Loss::Iid(Prob::new(0.000_1))),
        (ms(2 * PHASE_MS), bursty()),
        (ms(3 * PHASE_MS), Loss::None),
    ]);
    let run = |mode: Option<FecMode>| -> Result<(Goodput, u32)> {
        let mut config = wan(seed, RATE_BPS, RTT_US, Loss::None, mode);
        config.message_bytes = 128 << 10;
        config.depth = config.window_bytes / config.message_bytes + 8;
        config.changes = changes;
        // More than any can move in four phases.
        config.messages =
            (RATE_BPS / 8 / 1_000 * PHASE_MS * 4 / u64::from(config.message_bytes)) as u32;
        Ok((goodput(&config).ok_or(GaveUp)?, config.message_bytes))
    };
    let codes = ["off", "128,1", "64,1", "32,1", "16,1", "8,1", "64,8", "32,8", "128,16", "64,16"];
    let mut best = [("", 0.0_f64); 4];
    for text in codes {
        let (result, bytes) = run(text.parse().ok())?;
        for (phase, best) in best.iter_mut().enumerate() {
            let gbps = phase_gbps(&result, phase as u64, bytes);
            if gbps > best.1 {
                *best = (text, gbps);
            }
        }
    }
    let (auto, bytes) = run("auto".parse().ok())?;
    println!("{:>22} {:>8} {:>18} {:>14}", "phase", "auto", "best fixed", "late repairs");
    for (phase, name) in PHASES.into_iter().enumerate() {
        let gbps = phase_gbps(&auto, phase as u64, bytes);
        let (text, fixed) = best[phase];
        let repairs = late_repairs(&auto, phase as u64);
        println!("{name:>22} {gbps:>8.3} {fixed:>9.3} ({text:>6}) {repairs:>14}");
        bars.at_least(format!("auto over best fixed, {name}"), gbps / fixed, 0.9);
        if name.starts_with("clean") {
            bars.at_least(
                format!("no repairs after two seconds, {name}"),
                f64::from(u8::from(repairs == 0)),
                1.0,
            );
        }
    }
    bars.note("auto: changes of code", auto.fec.changes as f64);
    Ok(())
}
