use super::*;

const GBPS: u64 = 1_000_000_000;

fn build(params: DcqcnParams) -> Box<dyn RateController> {
    let connection = ControlledConnection::new(crate::QpType::Rc.descriptor(), Mtu::B1024);
    params.build(Time::ZERO, &connection)
}

#[test]
fn dcqcn_halves_on_the_first_cnp_and_recovers() {
    let line = 40 * GBPS;
    let mut rate = build(DcqcnParams::new(line));
    assert_eq!(rate.pacing_rate_bps(Time::ZERO), Some(line));
    rate.on_cnp(Time::from_micros(1));
    assert_eq!(rate.pacing_rate_bps(Time::from_micros(1)), Some(line / 2));
    // Five halvings of the distance in fast recovery.
    let recovered = rate.pacing_rate_bps(Time::from_micros(1 + 5 * 55)).unwrap();
    assert!(recovered > line * 96 / 100 && recovered < line, "{recovered}");
    assert_eq!(rate.pacing_rate_bps(Time::from_millis(1_000)), Some(line));
}

#[test]
fn dcqcn_cuts_less_when_congestion_is_rare() {
    let line = 40 * GBPS;
    let mut rate = build(DcqcnParams::new(line));
    rate.on_cnp(Time::ZERO);
    let late = Time::from_millis(20);
    let before = rate.pacing_rate_bps(late).unwrap();
    rate.on_cnp(late);
    let after = rate.pacing_rate_bps(late).unwrap();
    assert!(after > before * 3 / 4, "alpha has decayed: {before} -> {after}");
}

#[test]
fn dcqcn_stays_above_its_minimum_under_a_flood_of_cnps() {
    let params = DcqcnParams::new(10 * GBPS);
    let min = params.min_rate_bps;
    let mut rate = build(params);
    for i in 0..10_000 {
        rate.on_cnp(Time::from_nanos(i));
    }
    assert!(rate.pacing_rate_bps(Time::from_nanos(10_000)).unwrap() >= min);
}
