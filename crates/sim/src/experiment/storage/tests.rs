use bowline_nic::DcqcnParams;

use super::*;

const LINE_BPS: u64 = 100_000_000_000;
const US: u64 = 1_000;

fn config(way: Way, load: f64, bytes: u64) -> StorageConfig {
    StorageConfig {
        seed: 1,
        k: 4,
        cable: LinkConfig { rate_bps: Some(LINE_BPS), delay_ns: 500, ..LinkConfig::default() },
        mtu: Mtu::B4096,
        control: RateControl::Dcqcn(DcqcnParams::new(LINE_BPS)),
        cnp_interval_ns: 50_000,
        window_bytes: 1 << 20,
        way,
        groups_per_node: 2,
        sizes: Sizes::Fixed(bytes),
        load,
        warm_up_ns: 0,
        arrivals_end_ns: 300 * US,
        end_ns: 100_000 * US,
    }
}

#[test]
fn every_request_comes_to_its_end_and_as_many_come_as_the_load_says() {
    for way in Way::ALL {
        let outcome = storage(&config(way, 0.5, 20_000));
        assert_eq!(outcome.unfinished, 0, "{way:?}");
        // 8 nodes of 100 Gbit/s, half of which is three copies of each write.
        let expected = 0.5 / 3.0 * 8.0 * LINE_BPS as f64 / 8.0 / 20_000.0 * 300e-6;
        for times in [&outcome.reads_ns, &outcome.writes_ns] {
            let ratio = times.len() as f64 / expected;
            assert!((0.75..1.25).contains(&ratio), "{way:?} {ratio}");
        }
    }
}

#[test]
fn an_idle_store_reads_in_one_round_trip_and_writes_in_more() {
    let [group, fan_out, chain] = Way::ALL.map(|way| storage(&config(way, 0.005, 4_000)));
    let read = fan_out.mean_read_ns();
    // Six cables each way, five switches, and 4 KB on each cable.
    assert!((9_000.0..13_000.0).contains(&read), "{read}");
    assert!((group.mean_read_ns() / read - 1.0).abs() < 0.02);
    // To the primary, to the others and back, and the answer.
    assert!(fan_out.mean_write_ns() > 1.5 * read, "{}", fan_out.mean_write_ns());
    assert!(group.mean_write_ns() <= 1.01 * fan_out.mean_write_ns());
    assert!(chain.mean_write_ns() > 1.3 * fan_out.mean_write_ns(), "{}", chain.mean_write_ns());
}

#[test]
fn reads_wait_behind_the_copies_that_fan_out_sends() {
    let [group, fan_out, chain] =
        Way::ALL.map(|way| storage(&config(way, 0.8, 64_000)).mean_read_ns());
    assert!(group < 0.9 * fan_out, "{group} {fan_out}");
    assert!(group < 0.9 * chain, "{group} {chain}");
}
