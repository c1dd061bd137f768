//! How long a connection stalls when its NIC has failed, over loopback. The time runs from the
//! moment when its retries are exhausted, which would have caused its first failed completion, to
//! the first good completion on the backup. Also measures a thousand connections of one process.
//!
//! Prints one JSON object. `bench/failover/run` runs it.

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use bowline_device::{Mode, Rail};
use bowline_failover::Outcome;
use bowline_nic::WcStatus;
use support::*;

const RUNS: usize = 100;
const CROWD: usize = 1000;

fn main() {
    for mode in [Mode::Exact, Mode::Shift] {
        let mut gaps: Vec<f64> = (0..RUNS).map(|_| one(mode)).collect();
        gaps.sort_by(f64::total_cmp);
        let (first_to_last, all) = crowd(mode);
        println!(
            "{{\"mode\":\"{mode}\",\"runs\":{RUNS},\"median_ms\":{:.3},\"p99_ms\":{:.3},\"max_ms\":{:.3},\
             \"crowd\":{CROWD},\"crowd_ms\":{:.1},\"crowd_with_detection_ms\":{:.1}}}",
            gaps[RUNS / 2],
            gaps[RUNS * 99 / 100],
            gaps[RUNS - 1],
            first_to_last,
            all,
        );
    }
}

/// When a failure was first noticed, by the device's clock.
fn noticed_ms(host: &Host) -> f64 {
    let noticed = host.account().timeline.into_iter().filter_map(|report| match report.outcome {
        Outcome::Moved { handover_ns, .. } => {
            Some(report.at.as_nanos().saturating_sub(handover_ns))
        }
        _ => None,
    });
    noticed.min().unwrap_or(0) as f64 / 1e6
}

/// A stream of WRITEs whose path fails: how long it stalled, in milliseconds.
fn one(mode: Mode) -> f64 {
    let store = TestStore::new();
    let [(a, ca), (b, _cb)] = pair(mode, &store);
    let (mut posted, mut done) = (0_u64, 0_u64);
    let start = Instant::now();
    let mut broken = false;
    loop {
        assert!(start.elapsed() < PATIENCE, "{done} of {posted} done");
        if posted - done < 16 {
            a.post(&ca, posted, write(&ca, 0), 0, 4096).unwrap();
            posted += 1;
        }
        if !broken && done > 200 {
            b.fault(Rail::Default, "blackhole=in");
            broken = true;
        }
        let away = a.is_split();
        let completions = a.poll();
        done += completions.len() as u64;
        assert!(completions.iter().all(|c| c.status == WcStatus::Success), "{completions:?}");
        if away && !completions.is_empty() {
            let now = a.device.now().as_nanos() as f64 / 1e6;
            // The report is written when the peer has answered, which is before any data.
            until("the report", || !a.account().timeline.is_empty());
            return now - noticed_ms(&a);
        }
    }
}

/// A thousand connections of one process, each with a WRITE outstanding. Returns the time from the
/// first noticed failure to the last completion, and the time from the fault to the last
/// completion, in milliseconds.
fn crowd(mode: Mode) -> (f64, f64) {
    let store = TestStore::new();
    let [a, b] = [0, 1].map(|_| Host::new(mode, &store));
    let mut ours: Vec<Conn> = (0..CROWD).map(|_| a.qp(None)).collect();
    let mut theirs: Vec<Conn> = (0..CROWD).map(|_| b.qp(None)).collect();
    for (ca, cb) in ours.iter_mut().zip(&mut theirs) {
        a.connect(ca, &b, cb.qpn);
        b.connect(cb, &a, ca.qpn);
    }
    a.ready(CROWD);
    b.ready(CROWD);
    std::thread::sleep(Duration::from_millis(50));
    b.fault(Rail::Default, "blackhole=in");
    let fault = a.device.now().as_nanos() as f64 / 1e6;
    for (i, conn) in ours.iter().enumerate() {
        a.post(conn, i as u64, write(conn, 0), 0, 4096).unwrap();
    }
    let all = a.poll_for(CROWD);
    let end = a.device.now().as_nanos() as f64 / 1e6;
    assert!(all.iter().all(|c| c.status == WcStatus::Success));
    (end - noticed_ms(&a), end - fault)
}
