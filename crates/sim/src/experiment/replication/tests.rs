use super::*;

const LINE_BPS: u64 = 100_000_000_000;

fn config(way: Way, bytes: u32, messages: u64) -> ReplicationConfig {
    let stream = StreamPlan {
        from: 0,
        to: vec![2, 1],
        way,
        bytes,
        messages: Some(messages),
        depth: 8,
        start_ns: 0,
        after: Vec::new(),
    };
    ReplicationConfig {
        seed: 1,
        fabric: Fabric::TwoRacks(3),
        cable: LinkConfig { rate_bps: Some(LINE_BPS), delay_ns: 500, ..LinkConfig::default() },
        mtu: Mtu::B1024,
        losses: Vec::new(),
        window_bytes: 1 << 20,
        timeout: 10,
        control: RateControl::Unlimited,
        cnp_interval_ns: 50_000,
        streams: vec![stream],
        end_ns: 1_000_000_000,
    }
}

fn run(config: &ReplicationConfig) -> StreamOutcome {
    let outcome = replication(config).remove(0);
    assert!(outcome.ended_ns.is_some(), "it has come to its end");
    outcome
}

#[test]
fn a_group_sends_once_where_fan_out_sends_twice() {
    // Too long to be divided, which chains are not: headers would count.
    let [group, fan_out, chain] = Way::ALL.map(|way| run(&config(way, 256 << 10, 100)));
    assert_eq!(group.messages.len(), 100);
    assert!(group.gbps() > 90.0, "{}", group.gbps());
    let ratio = group.gbps() / fan_out.gbps();
    assert!((1.95..2.05).contains(&ratio), "{ratio}");
    assert!(chain.gbps() > 85.0, "{}", chain.gbps());
    assert!(group.median_ns() * 100 <= chain.median_ns().min(fan_out.median_ns()) * 101);
}

#[test]
fn every_way_repairs_losses() {
    for way in Way::ALL {
        let lossy = ReplicationConfig { losses: vec![(1, 0.01)], ..config(way, 16 << 10, 100) };
        let (lossy, clean) = (run(&lossy), run(&config(way, 16 << 10, 100)));
        assert!(lossy.gbps() < 0.95 * clean.gbps(), "{way:?} {}", lossy.gbps());
    }
}

#[test]
fn a_chain_is_one_message_after_another() {
    // One message at a time takes the time of both cables, one after the other.
    let mut config = config(Way::Chain, 1 << 20, 4);
    config.streams[0].depth = 1;
    let chain = run(&config);
    config.streams[0].way = Way::Group;
    let ratio = chain.median_ns() as f64 / run(&config).median_ns() as f64;
    assert!((1.9..2.1).contains(&ratio), "{ratio}");
}

#[test]
fn a_stream_waits_for_those_before_it() {
    let mut config = config(Way::FanOut, 64 << 10, 10);
    let second = StreamPlan { from: 1, to: vec![0], after: vec![0], ..config.streams[0].clone() };
    config.streams.push(second);
    let [first, second] = &replication(&config)[..] else { panic!("there are two streams") };
    assert_eq!(first.ended_ns, Some(second.started_ns));
    assert!(second.ended_ns.is_some());
}
