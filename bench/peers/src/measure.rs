//! The loops that measure, the same for every transport.

use std::time::{Duration, Instant};
use std::{io, thread};

use serde_json::{Value, json};

use crate::Result;
use crate::control::{Driver, Mark, Server};
use crate::memory::Places;
use crate::peer::{self, Sender};
use crate::spec::{Mode, Spec};

/// Pings before the clock counts.
const WARM_PINGS: usize = 1000;
/// How long a turn runs before it counts: caches and windows have seen others meanwhile.
const LEAD_IN: Duration = Duration::from_millis(20);
/// Bulk looks at the clock at least once in so many bytes.
const GLANCE_BYTES: usize = 1 << 20;

/// Plays the end that receives.
pub(crate) fn serve(spec: &Spec) -> Result<()> {
    pin(spec)?;
    let control = Server::accept(spec.at)?;
    thread::scope(|scope| {
        // The transport may sit in a call that never returns: what ends is the process.
        scope.spawn(|| end(control.attend()));
        // And a driver that waits for one that has failed would do so for long. One that is done
        // has noticed first that the driver has gone.
        peer::serve(spec, &control).or_else(|e| end(Err(e)))
    })
}

fn end(outcome: Result<()>) -> ! {
    if let Err(e) = &outcome {
        eprintln!("peers: {e}");
    }
    std::process::exit(outcome.is_err().into())
}

/// Plays the end that sends; what it measured.
pub(crate) fn drive(spec: &Spec) -> Result<Value> {
    pin(spec)?;
    let mut control = Driver::connect(spec.at)?;
    let mut sender = peer::connect(spec)?;
    match spec.mode {
        Mode::Bulk => bulk(spec, &mut control, &mut *sender),
        Mode::Message => messages(spec, &mut control, &mut *sender),
        Mode::Ping => pings(spec, &mut *sender),
        Mode::Idle => idle(spec, &mut control),
    }
}

fn pin(spec: &Spec) -> Result<()> {
    Ok(spec.cpu.map_or(Ok(()), bowline_bench_common::pin)?)
}

fn bulk(spec: &Spec, control: &mut Driver, sender: &mut dyn Sender) -> Result<Value> {
    let mut places = Places::new(spec);
    send_for(Duration::from_secs_f64(spec.warm_up), spec, sender, &mut places)?;
    if !spec.turns {
        return flood(spec.duration(), spec, control, sender, &mut places);
    }
    println!("ready");
    for line in io::stdin().lines() {
        let seconds = line?.trim().parse().map_err(|_| "a turn is a number of seconds")?;
        let duration = Duration::try_from_secs_f64(seconds)?;
        send_for(LEAD_IN, spec, sender, &mut places)?;
        println!("{}", flood(duration, spec, control, sender, &mut places)?);
    }
    Ok(Value::Null)
}

/// Sends message after message.
fn send_for(
    time: Duration,
    spec: &Spec,
    sender: &mut dyn Sender,
    places: &mut Places,
) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < time {
        for _ in 0..(GLANCE_BYTES / spec.size).max(1) {
            sender.send(places.take(spec.size))?;
        }
    }
    Ok(())
}

/// The same, and what came of it.
fn flood(
    time: Duration,
    spec: &Spec,
    control: &mut Driver,
    sender: &mut dyn Sender,
    places: &mut Places,
) -> Result<Value> {
    control.begin()?;
    let arrived = sender.arrived();
    let before = sender.arrived_each().to_vec();
    let mark = Mark::new(arrived.unwrap_or(0));
    send_for(time, spec, sender, places)?;
    let ours = mark.until(sender.arrived().unwrap_or(0));
    let theirs = control.end()?;
    let counted = if arrived.is_some() { ours } else { theirs };
    if counted.bytes == 0 {
        return Err("nothing arrived".into());
    }
    let each: Vec<u64> = sender.arrived_each().iter().zip(&before).map(|(a, b)| a - b).collect();
    let gigabytes = counted.bytes as f64 / 1e9;
    Ok(json!({
        "gbps": 8.0 * gigabytes / counted.seconds,
        "bytes": counted.bytes,
        "seconds": counted.seconds,
        "sender_cpu_s_per_gb": ours.cpu_s / gigabytes,
        "receiver_cpu_s_per_gb": theirs.cpu_s / gigabytes,
        "cpu_s_per_gb": (ours.cpu_s + theirs.cpu_s) / gigabytes,
        "jain": (each.len() > 1).then(|| jain(&each)),
    }))
}

/// How equal shares are: 1 if they are all alike, 1/n if one has everything.
fn jain(shares: &[u64]) -> f64 {
    let sum: f64 = shares.iter().map(|s| *s as f64).sum();
    let squares: f64 = shares.iter().map(|s| (*s as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (shares.len() as f64 * squares) }
}

fn messages(spec: &Spec, control: &mut Driver, sender: &mut dyn Sender) -> Result<Value> {
    let mut places = Places::new(spec);
    let began = Instant::now();
    // Where a message takes long, one must do to warm up.
    for n in 0..spec.warm_count {
        if n > 0 && began.elapsed() > spec.duration() / 2 {
            break;
        }
        time_ms(spec, sender, &mut places)?;
    }
    control.begin()?;
    let mark = Mark::new(0);
    let mut times_ms = vec![time_ms(spec, sender, &mut places)?];
    while times_ms.len() < spec.count && began.elapsed() < spec.duration() {
        times_ms.push(time_ms(spec, sender, &mut places)?);
    }
    let ours = mark.until((times_ms.len() * spec.size) as u64);
    let theirs = control.end()?;
    let cpu_s_per_gb = (ours.cpu_s + theirs.cpu_s) / (ours.bytes as f64 / 1e9);
    Ok(json!({ "times_ms": times_ms, "cpu_s_per_gb": cpu_s_per_gb }))
}

/// How long one message takes.
fn time_ms(spec: &Spec, sender: &mut dyn Sender, places: &mut Places) -> Result<f64> {
    let start = Instant::now();
    sender.send(places.take(spec.size))?;
    sender.confirm(false)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn pings(spec: &Spec, sender: &mut dyn Sender) -> Result<Value> {
    let mut times = Vec::with_capacity(1 << 20);
    for _ in 0..WARM_PINGS {
        sender.send(0..spec.size)?;
        sender.confirm(true)?;
    }
    let start = Instant::now();
    let mut before = start;
    while before - start < spec.duration() {
        sender.send(0..spec.size)?;
        sender.confirm(true)?;
        let after = Instant::now();
        times.push((after - before).as_secs_f64() / 2.0);
        before = after;
    }
    times.sort_by(f64::total_cmp);
    let us = |q| quantile(&times, q) * 1e6;
    Ok(json!({ "count": times.len(), "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999) }))
}

fn idle(spec: &Spec, control: &mut Driver) -> Result<Value> {
    // What setting up has left to do is done by then.
    thread::sleep(Duration::from_millis(500));
    control.begin()?;
    let mark = Mark::new(0);
    thread::sleep(spec.duration());
    let (ours, theirs) = (mark.until(0), control.end()?);
    let percent = |w: crate::control::Window| 100.0 * w.cpu_s / w.seconds;
    Ok(json!({ "sender_percent": percent(ours), "receiver_percent": percent(theirs) }))
}

/// A quantile of sorted samples: the smallest that at least so many of them do not exceed.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::{jain, quantile};

    #[test]
    fn quantiles_are_samples() {
        let samples: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&samples, 0.5), quantile(&samples, 0.99)), (50.0, 99.0));
        assert_eq!(quantile(&[7.0], 0.999), 7.0);
    }

    #[test]
    fn fairness_is_one_for_equals() {
        assert_eq!(jain(&[3, 3, 3]), 1.0);
        assert!((jain(&[5, 0]) - 0.5).abs() < 1e-12);
    }
}
