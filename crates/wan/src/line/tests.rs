//! Tests of one direction by its output.

use proptest::prelude::*;

use super::*;
use crate::vnet::{GSO_UDP_L4, NEEDS_CSUM};

const HEADERS: usize = 28;

fn line(text: &str) -> Line {
    Line::new(&text.parse().expect("a right profile"), Direction::ToRight)
}

/// A UDP superpacket whose payload numbers its segments, each `size` bytes, from `first` on.
fn superpacket(first: u32, segments: usize, size: usize) -> Vec<u8> {
    let vnet = VnetHeader {
        flags: NEEDS_CSUM,
        gso_type: if segments > 1 { GSO_UDP_L4 } else { 0 },
        hdr_len: HEADERS as u16,
        gso_size: if segments > 1 { size as u16 } else { 0 },
        csum_start: 20,
        csum_offset: 6,
    };
    let mut bytes = vnet.to_bytes().to_vec();
    let mut headers = [0; HEADERS];
    headers[0] = 0x45;
    headers[9] = 17;
    bytes.extend(headers);
    for number in first..first + segments as u32 {
        bytes.extend(number.to_be_bytes());
        bytes.extend(std::iter::repeat_n(number as u8, size - 4));
    }
    bytes
}

fn feed(line: &mut Line, now: Time, bytes: &[u8]) {
    let buffer = line.buffer().expect("room");
    buffer[..bytes.len()].copy_from_slice(bytes);
    line.admit(now, now, bytes.len());
}

/// Everything in transit: when it came out, and the numbers of its segments.
fn drain(line: &mut Line, size: usize) -> Vec<(Time, Vec<u32>)> {
    let mut out = Vec::new();
    while let Some(due) = line.next_due() {
        let release = line.release(due).expect("it is due");
        let bytes = [release.headers, release.payload].concat();
        let vnet = VnetHeader::parse(bytes.first_chunk().expect("a header"));
        let payload = &bytes[VNET_BYTES + HEADERS..];
        assert_eq!(vnet.gso_type == GSO_UDP_L4, payload.len() > size);
        let numbers = payload.chunks(size).map(|segment| {
            let number = u32::from_be_bytes(segment[..4].try_into().expect("four bytes"));
            assert!(segment[4..].iter().all(|b| *b == number as u8));
            number
        });
        out.push((due, numbers.collect()));
    }
    assert!(line.release(Time::from_nanos(u64::MAX)).is_none());
    assert_eq!(line.records.len(), 0);
    out
}

fn numbers(out: Vec<(Time, Vec<u32>)>) -> Vec<u32> {
    out.into_iter().flat_map(|(_, numbers)| numbers).collect()
}

#[test]
fn a_superpacket_stays_whole_on_a_perfect_link() {
    let mut line = line("delay=5ms");
    feed(&mut line, Time::from_millis(1), &superpacket(0, 40, 1000));
    assert_eq!(drain(&mut line, 1000), [(Time::from_millis(6), (0..40).collect())]);
}

#[test]
fn segments_take_their_time_each_with_its_headers() {
    // 1250 bytes at 1 Gbit/s are 10 µs.
    let mut line = line("rate=1Gbps,delay=1ms");
    feed(&mut line, Time::ZERO, &superpacket(0, 25, 1250 - HEADERS));
    let out = drain(&mut line, 1250 - HEADERS);
    // Those of 100 µs leave together, when the last of them has arrived.
    let times: Vec<u64> = out.iter().map(|(at, _)| at.as_nanos() / 1000).collect();
    assert_eq!(times, [1110, 1220, 1250]);
    assert_eq!(numbers(out), (0..25).collect::<Vec<u32>>());
    assert_eq!(line.counters().bytes, 25 * 1250);
}

#[test]
fn what_is_due_waits_for_company_if_any_comes_soon() {
    let mut line = line("delay=1ms");
    feed(&mut line, Time::ZERO, &superpacket(0, 1, 100));
    assert_eq!(line.next_wake(40_000), Some(Time::from_micros(1_000)));
    feed(&mut line, Time::from_micros(30), &superpacket(1, 1, 100));
    assert_eq!(line.next_wake(40_000), Some(Time::from_micros(1_040)));
    assert_eq!(line.next_wake(20_000), Some(Time::from_micros(1_000)));
}

#[test]
fn a_full_queue_drops_the_tail_of_a_superpacket() {
    let mut line = line("rate=1Gbps,queue=12500B");
    feed(&mut line, Time::ZERO, &superpacket(0, 40, 1250 - HEADERS));
    assert_eq!(line.counters().tail_drops, 30);
    assert_eq!(line.counters().peak_queue_bytes, 12_500);
    // And dropped segments take no space.
    assert_eq!(line.records[0].len, VNET_BYTES + HEADERS + 10 * (1250 - HEADERS));
    assert_eq!(numbers(drain(&mut line, 1250 - HEADERS)), (0..10).collect::<Vec<u32>>());
}

#[test]
fn lateness_is_logged_by_the_segment() {
    let mut line = line("delay=1ms");
    feed(&mut line, Time::ZERO, &superpacket(0, 99, 100));
    feed(&mut line, Time::ZERO, &superpacket(99, 1, 100));
    assert!(line.release(Time::from_micros(1_010)).is_some());
    assert!(line.release(Time::from_micros(3_000)).is_some());
    let late = |quantile| line.lateness().quantile_ns(quantile) / 1000;
    assert!((10..=11).contains(&late(0.99)), "{}", late(0.99));
    assert!((2000..=2020).contains(&late(1.0)), "{}", late(1.0));
}

#[test]
fn who_waits_for_a_busy_far_end_is_not_late() {
    let mut line = line("delay=1ms");
    for number in 0..3 {
        feed(&mut line, Time::from_micros(number), &superpacket(number as u32, 1, 100));
    }
    assert!(line.release(Time::from_micros(1_000)).is_some());
    line.write_took(2_000_000);
    assert!(line.release(Time::from_micros(3_010)).is_some());
    // The link makes up for short delays.
    line.write_took(CALL_NS);
    assert!(line.release(Time::from_micros(3_060)).is_some());
    let worst = line.lateness().quantile_ns(1.0) / 1000;
    assert!((64..=67).contains(&worst), "{worst}");
}

#[test]
fn who_has_to_queue_anyway_is_not_taken_late() {
    // 1250 bytes at 100 Mbit/s are 100 µs.
    let mut line = line("rate=100Mbps");
    let bytes = superpacket(0, 1, 1250 - HEADERS);
    for (since_us, now_us, late_us) in [(0, 30, 30), (30, 120, 30), (30, 290, 60)] {
        line.buffer().expect("room")[..bytes.len()].copy_from_slice(&bytes);
        line.admit(Time::from_micros(since_us), Time::from_micros(now_us), bytes.len());
        let worst = line.read_lateness().quantile_ns(1.0) / 1000;
        assert!((late_us..=late_us + 1).contains(&worst), "{worst}");
    }
}

#[test]
fn corrupt_segments_have_a_checksum_that_tells() {
    let mut line = line("corrupt=100%,seed=1");
    feed(&mut line, Time::ZERO, &superpacket(0, 3, 100));
    for _ in 0..3 {
        let release = line.release(Time::ZERO).expect("due");
        let vnet = VnetHeader::parse(release.headers.first_chunk().expect("a header"));
        assert_eq!(vnet, VnetHeader::default());
        assert_eq!(release.headers.len(), VNET_BYTES + HEADERS + 100);
    }
    assert_eq!(line.counters().corrupted, 3);
}

#[test]
fn a_congested_queue_marks_segments_that_can_be_marked() {
    // 1250 bytes at 1 Gbit/s are 10 µs: from the third on a segment finds more than 2 kB.
    let mut line = line("rate=1Gbps,ecn=red(2kB,2001B,100%)");
    for (first, segments, ecn) in [(0, 4, 0), (10, 1, 0b01), (20, 4, 0b10)] {
        let mut bytes = superpacket(first, segments, 1250 - HEADERS);
        bytes[VNET_BYTES + 1] = ecn;
        feed(&mut line, Time::ZERO, &bytes);
    }
    let mut tos = Vec::new();
    while let Some(release) = line.release(Time::from_millis(1)) {
        let bytes = [release.headers, release.payload].concat();
        let ip = &bytes[VNET_BYTES..VNET_BYTES + 20];
        tos.push((ip[1], (bytes.len() - VNET_BYTES - HEADERS).div_ceil(1250 - HEADERS)));
        let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        assert!(ip[1] == 0 || sum.is_multiple_of(0xffff), "the header's checksum is right");
    }
    assert_eq!(tos, [(0, 4), (0b11, 1), (0b11, 4)]);
    assert_eq!(line.counters().marked, 5);
}

#[test]
fn a_line_without_memory_says_so() {
    let mut line = line("rate=1kbps,queue=1GB");
    let mut fed = 0;
    while line.buffer().is_some() {
        feed(&mut line, Time::ZERO, &superpacket(60 * fed, 60, 1000));
        fed += 1;
    }
    assert!(fed > 200);
    assert_eq!(numbers(drain(&mut line, 1000)), (0..60 * fed).collect::<Vec<u32>>());
    assert!(line.buffer().is_some());
}

fn survivors(text: &str, direction: Direction, sizes: &[usize]) -> Vec<u32> {
    let mut line = Line::new(&text.parse().expect("a right profile"), direction);
    let mut first = 0;
    for (turn, segments) in sizes.iter().enumerate() {
        feed(&mut line, Time::from_micros(turn as u64), &superpacket(first, *segments, 100));
        first += *segments as u32;
    }
    numbers(drain(&mut line, 100))
}

proptest! {
    // Creating a line takes some milliseconds.
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The seed decides which packets are lost, however they are packed and whenever they arrive.
    #[test]
    fn losses_depend_on_the_number_of_a_packet_alone(
        seed in any::<u64>(),
        sizes in prop::collection::vec(1..40_usize, 1..20),
        bursts in any::<bool>(),
    ) {
        let loss = if bursts { "ge(0.05,0.3)" } else { "20%" };
        let text = format!("loss={loss},delay=1ms,seed={seed}");
        let one_by_one = vec![1; sizes.iter().sum()];
        let expected = survivors(&text, Direction::ToRight, &one_by_one);
        prop_assert_eq!(survivors(&text, Direction::ToRight, &sizes), expected);
    }

    /// Whatever the link does, it invents no packets, and the counts add up.
    #[test]
    fn counts_add_up(
        seed in any::<u64>(), sizes in prop::collection::vec(1..40_usize, 1..30),
        rate in prop::sample::select(vec!["", ",rate=1Gbps,queue=20kB", ",rate=100Mbps"]),
    ) {
        let text = format!("loss=10%,duplicate=5%,reorder=5%,delay=1ms,jitter=100us,seed={seed}{rate}");
        let mut line = line(&text);
        let mut first = 0;
        for (turn, segments) in sizes.iter().enumerate() {
            let now = Time::from_micros(10 * turn as u64);
            feed(&mut line, now, &superpacket(first, *segments, 100));
            first += *segments as u32;
        }
        let mut out = numbers(drain(&mut line, 100));
        let c = line.counters();
        prop_assert_eq!(c.segments, u64::from(first));
        prop_assert_eq!(out.len() as u64, c.segments - c.lost - c.tail_drops + c.duplicated);
        prop_assert_eq!(c.released, out.len() as u64);
        out.sort_unstable();
        out.dedup();
        prop_assert_eq!(out.len() as u64, c.segments - c.lost - c.tail_drops);
    }
}

#[test]
fn the_two_ways_lose_different_packets() {
    let sizes = [50; 20];
    let there = survivors("loss=20%,seed=4", Direction::ToRight, &sizes);
    let back = survivors("loss=20%,seed=4", Direction::ToLeft, &sizes);
    assert_ne!(there, back);
}

#[test]
fn a_line_that_becomes_slower_drops_what_its_queue_no_longer_takes() {
    let mut line = line("rate=1Gbps,queue=20kB");
    let slow: LinkProfile = "rate=1Mbps,queue=20kB".parse().unwrap();
    line.set_step(Time::from_millis(10), slow.config);
    for ms in 0..20 {
        feed(&mut line, Time::from_millis(ms), &superpacket(0, 4, 1000));
    }
    let counters = line.counters();
    assert!(counters.tail_drops > 0 && counters.mean_queue_bytes > 1_000, "{counters:?}");
    assert_eq!(counters.last_tail_drop_ms, Some(19));
}
