use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::testing::{Frame, SdrPair, small};
use crate::{ImmLayout, SdrConfig, SdrError, Transport};

/// Runs tests over every transport.
macro_rules! over_each_transport {
    ($($name:ident),* $(,)?) => {
        mod uc {
            $(#[test] fn $name() { super::$name(super::small(super::Transport::Uc)); })*
        }
        mod ud {
            $(#[test] fn $name() { super::$name(super::small(super::Transport::Ud)); })*
        }
    };
}

over_each_transport!(
    a_message_waits_for_its_receive_and_completes_chunk_by_chunk,
    streams_send_any_piece_in_any_order_and_again,
    a_lost_clear_to_send_is_asked_for,
    the_round_trip_is_known_from_the_start,
    a_short_message_still_carries_its_immediate,
    fragments_beyond_the_end_are_no_data,
    a_message_is_over_when_its_immediate_has_left_too,
    ids_are_not_reused_before_the_lateness_has_passed,
    only_so_many_messages_at_a_time,
    late_packets_touch_nothing_newer,
);

fn fill(pair: &SdrPair, end: usize, at: usize, len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    ChaCha8Rng::seed_from_u64(seed).fill_bytes(&mut bytes);
    pair.ends[end].buffer.write_at(at, &bytes);
    bytes
}

fn a_message_waits_for_its_receive_and_completes_chunk_by_chunk(config: SdrConfig) {
    let mut pair = SdrPair::new(&config);
    let bytes = fill(&pair, 0, 0, 2_100, 1);
    let source = pair.ends[0].at(0);
    let sent = pair.qps[0].send_post(source, 2_100, Some(0x1234_5678)).unwrap();
    pair.settle();
    assert!(!pair.qps[0].send_poll(sent), "no receive, nothing leaves");

    let now = pair.now;
    let buffer = pair.ends[1].at(5_000);
    let [_, end] = &mut pair.ends;
    let handle = pair.qps[1].recv_post(&mut end.nic, now, buffer, 2_100).unwrap();
    // The clear-to-send arrives; data comes back, with a packet lost.
    for frame in pair.take(1) {
        pair.deliver(&frame);
    }
    let data: Vec<Frame> = pair.take(0).into_iter().filter(Frame::is_data).collect();
    assert_eq!(data.len(), 9);
    assert!(pair.qps[0].send_poll(sent));
    for frame in data.iter().enumerate().filter(|(i, _)| *i != 3).map(|(_, f)| f) {
        pair.deliver(frame);
    }
    let bitmap = pair.qps[1].recv_bitmap(handle).unwrap();
    assert_eq!((bitmap.len(), bitmap.word(0)), (5, 0b11101));
    assert_eq!(pair.qps[1].recv_imm(handle).unwrap(), None, "a fragment is missing");
    pair.deliver(&data[3]);
    assert!(pair.qps[1].recv_bitmap(handle).unwrap().is_complete());
    assert_eq!(pair.qps[1].recv_imm(handle).unwrap(), Some(0x1234_5678));
    assert_eq!(pair.ends[1].buffer.to_vec(5_000, 2_100), bytes);
}

fn streams_send_any_piece_in_any_order_and_again(config: SdrConfig) {
    let mut pair = SdrPair::new(&config);
    let bytes = fill(&pair, 0, 0, 4_000, 2);
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 4_000).unwrap();
    let stream = pair.qps[0].send_start(4_000, None).unwrap();
    for (offset, len) in [(3_072, 928), (512, 2_560), (512, 512), (0, 512)] {
        let source = pair.ends[0].at(offset);
        pair.qps[0].send_continue(stream, offset, len, source, offset == 0).unwrap();
        pair.settle();
    }
    assert!(pair.qps[1].recv_bitmap(handle).unwrap().is_complete());
    assert_eq!(pair.ends[1].buffer.to_vec(0, 4_000), bytes);
    assert_eq!(pair.qps[1].landing_stats().duplicates, 2);
    assert!(!pair.qps[0].send_poll(stream), "it may go on");
    pair.qps[0].send_end(stream).unwrap();
    assert!(pair.qps[0].send_poll(stream));
    let source = pair.ends[0].at(0);
    let over = pair.qps[0].send_continue(stream, 0, 512, source, false);
    assert_eq!(over, Err(SdrError::Complete));
    let next = pair.qps[0].send_start(1_000, None).unwrap();
    for (offset, len) in [(100, 256), (0, 100), (768, 256), (0, 0), (u64::MAX - 255, 256)] {
        let wrong = pair.qps[0].send_continue(next, offset, len, source, false);
        assert!(matches!(wrong, Err(SdrError::Piece { .. })), "{offset} {len}");
    }
}

fn a_lost_clear_to_send_is_asked_for(config: SdrConfig) {
    let mut pair = SdrPair::new(&config);
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 100).unwrap();
    drop(pair.take(1));
    let source = pair.ends[0].at(0);
    let sent = pair.qps[0].send_post(source, 100, None).unwrap();
    pair.settle();
    assert!(!pair.qps[0].send_poll(sent));
    pair.now = pair.qps[0].poll_timeout().expect("it is going to ask");
    pair.settle();
    assert!(pair.qps[0].send_poll(sent));
    assert_eq!(pair.qps[0].poll_timeout(), None);
}

fn the_round_trip_is_known_from_the_start(config: SdrConfig) {
    let pair = SdrPair::new(&config);
    for qp in &pair.qps {
        assert!(qp.path().rtt_ns.is_some_and(|ns| ns <= 3_000), "{:?}", qp.path());
    }
}

fn a_short_message_still_carries_its_immediate(config: SdrConfig) {
    let mut pair = SdrPair::new(&config);
    for len in [0, 1, 256, 600] {
        let (now, buffer) = (pair.now, pair.ends[1].at(0));
        let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, len).unwrap();
        let source = pair.ends[0].at(0);
        pair.qps[0].send_post(source, len, Some(0xfeed_0000 + len as u32)).unwrap();
        pair.settle();
        assert!(pair.qps[1].recv_bitmap(handle).unwrap().is_complete(), "{len}");
        let imm = pair.qps[1].recv_imm(handle).unwrap();
        assert_eq!(imm, Some(0xfeed_0000 + len as u32), "{len}");
    }
}

fn fragments_beyond_the_end_are_no_data(config: SdrConfig) {
    let mut pair = SdrPair::new(&config);
    let bytes = fill(&pair, 0, 0, 100, 4);
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    // Longer than the message, so that packets beyond the message's end are within the receive.
    let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 4_000).unwrap();
    let source = pair.ends[0].at(0);
    pair.qps[0].send_post(source, 100, Some(7)).unwrap();
    pair.settle();
    assert_eq!(pair.qps[1].recv_imm(handle).unwrap(), Some(7));
    let bitmap = pair.qps[1].recv_bitmap(handle).unwrap();
    assert_eq!(bitmap.count(), 0, "the first chunk misses its second packet");
    assert_eq!(pair.ends[1].buffer.to_vec(0, 100), bytes);
}

/// Otherwise its place could go to a newer message, which would get its immediate.
fn a_message_is_over_when_its_immediate_has_left_too(config: SdrConfig) {
    let mut pair = SdrPair::new(&SdrConfig { rate_bps: Some(1_000_000), ..config });
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, 1).unwrap();
    pair.take(1).iter().for_each(|frame| pair.deliver(frame));
    let source = pair.ends[0].at(0);
    let sent = pair.qps[0].send_post(source, 1, Some(1)).unwrap();
    let mut left = 0;
    while !pair.qps[0].send_poll(sent) {
        let now = pair.now;
        pair.ends[0].nic.handle_timeout(now);
        left += pair.take(0).iter().filter(|frame| frame.is_data()).count();
        pair.now = now.plus_nanos(100_000);
    }
    assert_eq!(left, 8);
}

fn ids_are_not_reused_before_the_lateness_has_passed(config: SdrConfig) {
    let layout = ImmLayout::new(1, 27, 4).unwrap();
    let config = SdrConfig { layout, generations: 2, lateness_ns: Some(1_000_000), ..config };
    let mut pair = SdrPair::new(&config);
    for _ in 0..4 {
        let (now, buffer) = (pair.now, pair.ends[1].at(0));
        let nic = &mut pair.ends[1].nic;
        let handle = pair.qps[1].recv_post(nic, now, buffer, 256).unwrap();
        pair.qps[1].recv_complete(nic, handle).unwrap();
    }
    // The peer has not sent them yet, and may do so at any time.
    let later = pair.now.plus_nanos(1_000_000_000);
    assert_eq!(pair.qps[1].recv_room_for(later, 1), Err(SdrError::Quarantined));
    for _ in 0..4 {
        let source = pair.ends[0].at(0);
        pair.qps[0].send_post(source, 256, None).unwrap();
    }
    pair.settle();
    assert_eq!(pair.qps[1].peer_retired(), 4);
    assert_eq!(pair.qps[1].recv_room_for(pair.now, 1), Err(SdrError::Quarantined));
    assert_eq!(pair.qps[1].recv_room_for(pair.now.plus_nanos(1_125_000), 1), Ok(()));
}

fn only_so_many_messages_at_a_time(config: SdrConfig) {
    let layout = ImmLayout::new(2, 26, 4).unwrap();
    let mut pair = SdrPair::new(&SdrConfig { layout, ..config });
    let (now, buffer) = (pair.now, pair.ends[1].at(0));
    let nic = &mut pair.ends[1].nic;
    let handles: Vec<_> =
        (0..4).map(|_| pair.qps[1].recv_post(nic, now, buffer, 256).unwrap()).collect();
    let full = pair.qps[1].recv_post(nic, now, buffer, 256);
    assert_eq!(full, Err(SdrError::Full { max: 4 }));
    pair.qps[1].recv_complete(nic, handles[1]).unwrap();
    assert!(pair.qps[1].recv_post(nic, now, buffer, 256).is_err(), "the order is fixed");
    pair.qps[1].recv_complete(nic, handles[0]).unwrap();
    assert!(pair.qps[1].recv_post(nic, now, buffer, 256).is_ok());
    assert_eq!(pair.qps[1].recv_complete(nic, handles[0]), Err(SdrError::Complete));
}

/// Late packets, of a message that was completed, early or not, and whose ID went to newer
/// messages, touch neither memory nor bitmap of a newer one.
fn late_packets_touch_nothing_newer(config: SdrConfig) {
    for seed in 0..60 {
        late_packets(&config, seed);
    }
}

fn late_packets(config: &SdrConfig, seed: u64) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // Few IDs, so that they wrap around all the time: 4 of them in 4 generations.
    let layout = ImmLayout::new(2, 26, 4).unwrap();
    let channels = rng.random_range(1..4);
    let config = SdrConfig { layout, channels, ..config.clone() };
    let mut pair = SdrPair::new(&config);
    // Frames kept back, with the number of the message that they were sent for.
    let mut late: Vec<(u64, Frame)> = Vec::new();
    // Without addresses, nothing may be later than the generations go back.
    let latest = if config.transport == Transport::Uc { u64::MAX } else { 12 };
    for number in 0..120u64 {
        let len = rng.random_range(1..4_000);
        let bytes = fill(&pair, 0, 0, len as usize, seed << 32 | number);
        // A place of its own, with a known surrounding.
        let at = 100_000 + (number % 8) * 8_192;
        pair.ends[1].buffer.fill(at as usize, 8_192, 0xaa);
        let (now, buffer) = (pair.now, pair.ends[1].at(at));
        let handle = pair.qps[1].recv_post(&mut pair.ends[1].nic, now, buffer, len).unwrap();
        let source = pair.ends[0].at(0);
        pair.qps[0].send_post(source, len, None).unwrap();
        for frame in pair.take(1) {
            pair.deliver(&frame);
        }
        let mut landed = vec![false; len.div_ceil(256) as usize];
        let (data, control): (Vec<_>, Vec<_>) = pair.take(0).into_iter().partition(Frame::is_data);
        for (packet, frame) in data.into_iter().enumerate() {
            if rng.random_bool(0.3) {
                late.push((number, frame));
            } else {
                pair.deliver(&frame);
                landed[packet] = true;
            }
            // A late one of an older message in between.
            late.retain(|(of, _)| number - of < latest);
            if !late.is_empty() && rng.random_bool(0.5) {
                let (of, frame) = late.swap_remove(rng.random_range(0..late.len()));
                if of < number {
                    pair.deliver(&frame);
                } else {
                    late.push((of, frame));
                }
            }
        }
        let bitmap = pair.qps[1].recv_bitmap(handle).unwrap();
        for chunk in 0..bitmap.len() {
            let packets = &landed[chunk as usize * 2..(chunk as usize * 2 + 2).min(landed.len())];
            assert_eq!(bitmap.get(chunk), packets.iter().all(|l| *l), "seed {seed}, {number}");
        }
        let got = pair.ends[1].buffer.to_vec(at as usize, 8_192);
        for (packet, landed) in landed.iter().enumerate() {
            let range = packet * 256..(packet * 256 + 256).min(len as usize);
            let expected: Vec<u8> =
                if *landed { bytes[range.clone()].to_vec() } else { vec![0xaa; range.len()] };
            assert_eq!(got[range], expected, "seed {seed}, message {number}, packet {packet}");
        }
        assert!(got[len as usize..].iter().all(|b| *b == 0xaa), "seed {seed}: beyond its end");
        pair.qps[1].recv_complete(&mut pair.ends[1].nic, handle).unwrap();
        pair.now = pair.now.plus_nanos(1_000);
        control.iter().for_each(|frame| pair.deliver(frame));
    }
    assert!(pair.qps[1].landing_stats().late > 100, "seed {seed}: nothing was late");
}
