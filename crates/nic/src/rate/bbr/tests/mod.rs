//! The controller on a path, alone and beside others, on virtual time.

mod controlled;
mod path;
mod tcp;

use bowline_link::{Faults, Link, LinkConfig, Loss, Prob};

use self::controlled::Controlled;
use self::path::{Flow, Path};
use self::tcp::{Bbr1, Cubic};
use super::*;

const MBPS_200: u64 = 200_000_000;

/// 40 ms, and a queue of one bandwidth-delay product.
fn config(bps: u64) -> LinkConfig {
    let queue_bytes = bytes_in(bps, 40_000_000);
    LinkConfig { rate_bps: Some(bps), delay_ns: 20_000_000, queue_bytes, ecn: None }
}

fn link(bps: u64, loss: f64) -> Link {
    let mut link = Link::new(config(bps), 1, 0);
    link.set_faults(Faults { loss: Loss::Iid(Prob::new(loss)), ..Faults::default() });
    link
}

fn bbr(start: Time) -> Box<dyn Flow> {
    Box::new(Controlled::new(&BbrParams::default(), start))
}

fn secs(s: u64) -> Time {
    Time::from_millis(s * 1_000)
}

/// Share of the link that the first flow gets beside another, from second 25 to 65.
fn share_beside(other: impl Fn(Time) -> Box<dyn Flow>, starts: [u64; 2]) -> f64 {
    let [ours, theirs] = starts.map(secs);
    let mut path = Path::new(link(MBPS_200, 0.0));
    path.add(ours, bbr(ours));
    path.add(theirs, other(theirs));
    path.run_until(secs(25));
    path.begin();
    path.run_until(secs(65));
    let [ours, theirs] = [0, 1].map(|flow| path.bps(flow));
    assert!(ours + theirs > 0.9 * MBPS_200 as f64, "{ours} and {theirs}: the link is not full");
    ours / (ours + theirs)
}

fn alone(flow: Box<dyn Flow>, loss: f64) -> Path {
    let mut path = Path::new(link(MBPS_200, loss));
    path.add(Time::ZERO, flow);
    path.run_until(secs(1));
    path.begin();
    path.run_until(secs(31));
    path
}

#[test]
fn alone_it_fills_the_link_and_keeps_the_queue_short() {
    let ours = alone(bbr(Time::ZERO), 0.0);
    assert!(ours.bps(0) > 0.95 * MBPS_200 as f64, "{}", ours.bps(0));
    let cubic = alone(Box::new(Cubic::new()), 0.0);
    let (ours, cubic) = (ours.waited_ms(0), cubic.waited_ms(0));
    assert!(ours < 0.25 * cubic, "{ours} ms beside CUBIC's {cubic} ms");
}

#[test]
fn losses_by_chance_do_not_slow_it_down() {
    for (loss, share) in [(0.001, 0.95), (0.01, 0.93)] {
        let path = alone(bbr(Time::ZERO), loss);
        assert!(path.bps(0) > share * MBPS_200 as f64, "{loss}: {}", path.bps(0));
    }
}

#[test]
fn it_shares_with_cubic_whoever_was_first() {
    for starts in [[0, 3], [2, 0], [3, 0], [6, 0]] {
        let share = share_beside(|_| Box::new(Cubic::new()), starts);
        assert!((1.0 / 3.0..2.0 / 3.0).contains(&share), "{starts:?}: {share}");
    }
}

#[test]
fn it_shares_with_flows_that_do_not_yield() {
    for starts in [[0, 3], [3, 0]] {
        let share = share_beside(|at| Box::new(Bbr1::new(at)), starts);
        assert!((1.0 / 3.0..2.0 / 3.0).contains(&share), "{starts:?}: {share}");
    }
}

#[test]
fn it_shares_with_itself() {
    let share = share_beside(bbr, [0, 3]);
    assert!((0.4..0.6).contains(&share), "{share}");
}

#[test]
fn it_finds_the_rate_again_when_others_have_gone() {
    let mut path = Path::new(link(MBPS_200, 0.0));
    path.add(Time::ZERO, bbr(Time::ZERO));
    path.add(secs(2), Box::new(Cubic::new().until(secs(12))));
    path.run_until(secs(18));
    path.begin();
    path.run_until(secs(28));
    assert!(path.bps(0) > 0.9 * MBPS_200 as f64, "{}", path.bps(0));
    assert!(path.waited_ms(0) < 8.0, "{}", path.waited_ms(0));
}

#[test]
fn losses_end_soon_after_the_link_has_become_slower() {
    let mut path = Path::new(link(MBPS_200, 0.0));
    path.add(Time::ZERO, bbr(Time::ZERO));
    let slow = LinkConfig { rate_bps: Some(MBPS_200 * 3 / 10), ..config(MBPS_200) };
    path.step_at(secs(8), slow);
    path.run_until(secs(9));
    path.begin();
    path.run_until(secs(20));
    let last = path.had[0].drops.last().map_or(0, |at| at.nanos_since(secs(8)));
    assert!(last <= 5 * 40_000_000, "{last} ns after the step packets were still lost");
    assert!(path.bps(0) > 0.9 * 0.3 * MBPS_200 as f64, "{}", path.bps(0));
}

/// A host that lacks CPU time for a while is a path that delivers less.
#[test]
fn a_path_that_was_slow_for_a_moment_is_soon_filled_again() {
    for slow_ms in [30, 100, 150] {
        let mut path = Path::new(link(MBPS_200, 0.0));
        path.add(Time::ZERO, bbr(Time::ZERO));
        path.step_at(secs(8), LinkConfig { rate_bps: Some(MBPS_200 / 2), ..config(MBPS_200) });
        path.run_until(Time::from_millis(8_000 + slow_ms));
        path.step_at(Time::from_millis(8_000 + slow_ms), config(MBPS_200));
        path.run_until(Time::from_millis(8_050 + slow_ms));
        path.begin();
        path.run_until(Time::from_millis(8_550 + slow_ms));
        let share = path.bps(0) / MBPS_200 as f64;
        assert!(share > 0.75, "{slow_ms} ms: {share} of half a second");
    }
}

#[test]
fn nothing_that_it_is_told_makes_it_stop_or_panic() {
    let connection = ControlledConnection::new(crate::QpType::Uc.descriptor(), crate::Mtu::B1024);
    let mut controller = BbrParams::default().build(Time::ZERO, &connection);
    let mut draw = 1u64;
    let mut next = || {
        draw ^= draw << 13;
        draw ^= draw >> 7;
        draw ^= draw << 17;
        // Small numbers, and as large as they get.
        draw >> (draw % 64)
    };
    let mut now = Time::ZERO;
    for _ in 0..200_000 {
        now = now.plus_nanos(next() % 100_000_000);
        let (bytes, timeout) = (next() >> 8, next() % 2 == 0);
        let app_limited = next() % 2 == 0;
        match next() % 3 {
            0 => {
                let in_flight_bytes = Some(next());
                controller.on_sent(now, &Sent { bytes, in_flight_bytes, app_limited });
            }
            1 => controller.on_lost(now, &Lost { bytes, timeout }),
            _ => {
                let rtt_ns = (next() % 2 == 0).then(&mut next);
                let arrival_ns = (next() % 2 == 0).then(&mut next);
                let in_flight_bytes = next();
                let acked = Acked { bytes, rtt_ns, in_flight_bytes, app_limited, arrival_ns };
                controller.on_acked(now, &acked);
            }
        }
        assert!(controller.pacing_rate_bps(now).is_some_and(|bps| bps > 0));
        assert!(controller.window_bytes().is_some_and(|bytes| bytes > 1_000));
    }
}

#[test]
fn short_paths_are_filled_too() {
    for (bps, delay_ns) in
        [(10_000_000_000, 50_000), (1_000_000_000, 200_000), (1_000_000_000, 20_000)]
    {
        let queue_bytes = 1 << 20;
        let config = LinkConfig { rate_bps: Some(bps), delay_ns, queue_bytes, ecn: None };
        let mut path = Path::new(Link::new(config, 1, 0));
        path.add(Time::ZERO, bbr(Time::ZERO));
        path.run_until(Time::from_millis(300));
        path.begin();
        path.run_until(Time::from_millis(1_300));
        assert!(path.bps(0) > 0.85 * bps as f64, "{bps}, {delay_ns}: {}", path.bps(0));
    }
}

/// A host that gets no CPU time makes round trips longer now and then, and takes nothing from the
/// path.
#[test]
fn a_receiver_that_pauses_does_not_look_like_a_slower_path() {
    for (pause_ms, every_ms) in [(15, 110), (25, 230), (30, 97)] {
        let mut path = Path::new(link(MBPS_200, 0.0));
        path.pauses_ns = (pause_ms * 1_000_000, every_ms * 1_000_000);
        path.add(Time::ZERO, bbr(Time::ZERO));
        path.run_until(secs(1));
        path.begin();
        path.run_until(secs(21));
        let share = path.bps(0) / MBPS_200 as f64;
        assert!(share > 0.85, "{pause_ms} ms every {every_ms} ms: {share}");
    }
}

#[test]
fn paths_that_are_shorter_than_asked_for_are_left_alone() {
    let params = BbrParams { shortest_rtt_ns: 1_000_000, ..BbrParams::default() };
    for (rtt_ns, controls) in [(200_000, false), (5_000_000, true)] {
        let descriptor = crate::QpType::Uc.descriptor();
        let connection = ControlledConnection::new(descriptor, crate::Mtu::B4096);
        let mut bbr = Bbr::new(params.clone(), Time::ZERO, &connection);
        assert!(bbr.pacing_rate_bps(Time::ZERO).is_some(), "nothing is known yet");
        let now = Time::from_millis(10);
        let acked = Acked {
            bytes: 4096,
            rtt_ns: Some(rtt_ns),
            in_flight_bytes: 0,
            app_limited: false,
            arrival_ns: None,
        };
        bbr.on_acked(now, &acked);
        assert_eq!(bbr.pacing_rate_bps(now).is_some(), controls);
        assert_eq!(bbr.window_bytes().is_some(), controls);
    }
}

/// A path with a queue of one bandwidth-delay product, and a flow on it that begins at 1 ms.
fn long_path(bps: u64, rtt_ms: u64, loss: f64) -> Path {
    let (delay_ns, queue_bytes) = (rtt_ms * 500_000, bytes_in(bps, rtt_ms * 1_000_000));
    let config = LinkConfig { rate_bps: Some(bps), delay_ns, queue_bytes, ecn: None };
    let mut link = Link::new(config, 1, 0);
    link.set_faults(Faults { loss: Loss::Iid(Prob::new(loss)), ..Faults::default() });
    let (mut path, start) = (Path::new(link), Time::from_millis(1));
    path.add(start, bbr(start));
    path
}

/// Doubling from a guess wasted 280 ms more at 1 Gbit/s and 80 ms, and probing a percent.
#[test]
fn little_of_a_long_path_is_wasted_from_the_beginning_on() {
    for (bps, rtt_ms) in [(1_000_000_000, 80), (1_000_000_000, 200), (MBPS_200, 80), (MBPS_200, 10)]
    {
        let mut path = long_path(bps, rtt_ms, 0.001);
        path.run_until(secs(10));
        let whole = bps as f64 * (10.0 - rtt_ms as f64 / 2_000.0);
        let landed = (path.had[0].landed * path::PACKET as u64 * 8) as f64;
        let wasted_ms = (whole - landed) / bps as f64 * 1e3;
        // Losses by chance, half a percent for probing, and the start.
        let allowed_ms = 10.0 + 50.0 + 1.5 * rtt_ms as f64;
        assert!(wasted_ms < allowed_ms, "{bps}, {rtt_ms} ms: {wasted_ms} ms");
    }
}

#[test]
fn the_first_flight_does_not_flood_a_slow_path() {
    for (bps, rtt_ms) in [(5_000_000, 80), (20_000_000, 80), (100_000_000, 20)] {
        let mut path = long_path(bps, rtt_ms, 0.0);
        path.run_until(secs(2));
        // The first flight has 131 packets. A startup that assumed more sent 860 too many into 5
        // Mbit/s, and 540 into 20 Mbit/s.
        let drops = path.had[0].drops.len();
        assert!(drops < 200, "{bps}: {drops} packets found the queue full");
        let share = path.had[0].landed as f64 * path::PACKET as f64 * 8.0 / (2.0 * bps as f64);
        assert!(share > 0.9, "{bps}: {share} of the link");
    }
}

#[test]
fn a_flow_that_begins_takes_nothing_from_others_by_force() {
    let bps = 1_000_000_000;
    let mut path = long_path(bps, 80, 0.0);
    path.add(secs(3), bbr(secs(3)));
    path.run_until(secs(3));
    path.begin();
    path.run_until(secs(4));
    let lost = path.had[0].drops.iter().filter(|at| **at > secs(3)).count();
    assert_eq!(lost, 0, "packets of the first flow");
    let newcomer = path.bps(1) / bps as f64;
    assert!((0.1..0.5).contains(&newcomer), "{newcomer} of the link in its first second");
}

/// Rounds of short messages used to end startup, with the rate of these messages for the path's.
#[test]
fn short_messages_do_not_make_a_path_look_slow() {
    let start = Time::from_millis(1);
    let connection = ControlledConnection::new(crate::QpType::Uc.descriptor(), crate::Mtu::B1024);
    for lossy in [false, true] {
        let mut bbr = BbrParams::default().build(start, &connection);
        let initial = bbr.pacing_rate_bps(start).unwrap();
        for n in 1..50 {
            let (sent, heard) = (Time::from_millis(20 * n), Time::from_millis(20 * n + 10));
            let in_flight_bytes = Some(1024);
            bbr.on_sent(sent, &Sent { bytes: 1024, in_flight_bytes, app_limited: true });
            if lossy && n % 8 == 0 {
                bbr.on_lost(heard, &Lost { bytes: 1024, timeout: false });
            }
            let acked = Acked {
                bytes: 1024,
                rtt_ns: Some(10_000_000),
                in_flight_bytes: 0,
                app_limited: true,
                arrival_ns: None,
            };
            bbr.on_acked(heard, &acked);
        }
        let now = Time::from_millis(1_010);
        let bps = bbr.pacing_rate_bps(now).unwrap();
        assert!(bps >= initial / 4, "lossy: {lossy}: {bps} of {initial}");
    }
}

/// The last losses of a message are found out when the next one begins: 15 packets were lost and 11
/// arrived, in a round that was all but idle.
#[test]
fn losses_found_out_late_count_among_the_packets_that_they_were_lost_of() {
    let connection = ControlledConnection::new(crate::QpType::Uc.descriptor(), crate::Mtu::B1024);
    let packets = |count: u64| count * (1024 + HEADER_BYTES as u64);
    for (early, app_limited, cuts) in [(0, true, false), (25, true, true), (0, false, true)] {
        let mut bbr = Bbr::new(BbrParams::default(), Time::ZERO, &connection);
        bbr.phase = Phase::Cruise { rounds: 6 };
        bbr.max_rate.update(1_000_000_000);
        let whole =
            Round { delivered: packets(985), lost: packets(early), ..Round::new(Time::ZERO) };
        let now = Time::from_millis(10);
        let short = Round { delivered: packets(11), lost: packets(15), app_limited, ..whole };
        bbr.round = whole;
        bbr.end_round(now);
        assert_eq!(bbr.rate_bound, u64::MAX, "{early}: chance, so far");
        bbr.round = short;
        bbr.end_round(now);
        assert_eq!(bbr.rate_bound < u64::MAX, cuts, "{early} lost before, limited: {app_limited}");
        bbr.rate_bound = u64::MAX;
        bbr.round = Round { delivered: packets(50), lost: 0, app_limited: true, ..whole };
        bbr.end_round(now);
        assert_eq!(bbr.rate_bound, u64::MAX, "the same losses do not count twice");
    }
}
