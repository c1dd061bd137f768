use super::*;

const GBPS: u64 = 1_000_000_000;

#[test]
fn a_fixed_rate_is_kept_over_time() {
    let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 8 * GBPS }, Time::ZERO);
    let mut now = Time::from_millis(1);
    let start = now;
    for _ in 0..1_000 {
        now = now.max(pacer.next());
        pacer.on_sent(now, 1_000);
    }
    // 1000 packets of 1 µs each, less the last burst.
    let took = now.nanos_since(start);
    assert!((930_000..=1_000_000).contains(&took), "{took}");
}

#[test]
fn packets_go_in_bursts_with_pauses_between_them() {
    let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: GBPS }, Time::ZERO);
    let mut now = Time::from_millis(10);
    for _ in 0..10 {
        let mut packets = 0;
        while pacer.next() <= now {
            pacer.on_sent(now, 1_250);
            packets += 1;
        }
        // 10 µs each.
        assert_eq!(packets, 10);
        assert_eq!(pacer.next().nanos_since(now), BURST_NS);
        now = pacer.next();
    }
}

#[test]
fn a_slow_rate_has_no_bursts() {
    let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 10_000_000 }, Time::ZERO);
    let now = Time::from_millis(10);
    pacer.on_sent(now, 1_250);
    assert_eq!(pacer.next(), now.plus_nanos(1_000_000));
}

#[test]
fn lateness_is_made_up_for_and_rest_is_not() {
    for rested in [false, true] {
        let mut pacer = Pacer::new(&RateControl::Fixed { bits_per_sec: 8 * GBPS }, Time::ZERO);
        pacer.on_sent(Time::from_millis(10), 1_000);
        if rested {
            pacer.rest();
        }
        // A millisecond late: a thousand packets of 1 µs each.
        let now = Time::from_millis(11);
        let mut at_once = 0;
        while pacer.next() <= now {
            pacer.on_sent(now, 1_000);
            at_once += 1;
        }
        // And a burst of 61 more.
        let expected = if rested { 61..=63 } else { 1_060..=1_064 };
        assert!(expected.contains(&at_once), "{at_once}");
    }
}

#[test]
fn an_unlimited_pacer_never_waits() {
    let mut pacer = Pacer::new(&RateControl::Unlimited, Time::ZERO);
    pacer.on_sent(Time::from_nanos(5), u64::MAX);
    assert_eq!(pacer.next(), Time::ZERO);
}

#[test]
fn dcqcn_halves_on_the_first_cnp_and_recovers() {
    let line = 40 * GBPS;
    let mut rate = RateControl::Dcqcn(DcqcnParams::new(line)).build(Time::ZERO).unwrap();
    assert_eq!(rate.rate_bps(Time::ZERO), Some(line));
    rate.on_cnp(Time::from_micros(1));
    assert_eq!(rate.rate_bps(Time::from_micros(1)), Some(line / 2));
    // Five halvings of the distance in fast recovery.
    let recovered = rate.rate_bps(Time::from_micros(1 + 5 * 55)).unwrap();
    assert!(recovered > line * 96 / 100 && recovered < line, "{recovered}");
    assert_eq!(rate.rate_bps(Time::from_millis(1_000)), Some(line));
}

#[test]
fn dcqcn_cuts_less_when_congestion_is_rare() {
    let line = 40 * GBPS;
    let mut rate = RateControl::Dcqcn(DcqcnParams::new(line)).build(Time::ZERO).unwrap();
    rate.on_cnp(Time::ZERO);
    let late = Time::from_millis(20);
    let before = rate.rate_bps(late).unwrap();
    rate.on_cnp(late);
    let after = rate.rate_bps(late).unwrap();
    assert!(after > before * 3 / 4, "alpha has decayed: {before} -> {after}");
}

#[test]
fn dcqcn_stays_above_its_minimum_under_a_flood_of_cnps() {
    let params = DcqcnParams::new(10 * GBPS);
    let min = params.min_rate_bps;
    let mut rate = RateControl::Dcqcn(params).build(Time::ZERO).unwrap();
    for i in 0..10_000 {
        rate.on_cnp(Time::from_nanos(i));
    }
    assert!(rate.rate_bps(Time::from_nanos(10_000)).unwrap() >= min);
}
