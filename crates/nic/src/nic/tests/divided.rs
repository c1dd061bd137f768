//! WRITEs that leave as one WRITE per packet.

use super::*;

const OK: WcStatus = WcStatus::Success;

#[test]
fn a_write_of_a_few_packets_has_packets_of_one_length() {
    const MTU: usize = 1024;
    for packets in (2..=17).chain([31, 32, 33, 127, 128, 129]) {
        for len in [(packets - 1) * MTU + 1, packets * MTU - 3, packets * MTU] {
            let mut p = Pair::rc();
            let bytes = p.fill(0, 0, len);
            let (sge, remote) = (p.ends[0].sge(0, len as u32), p.ends[1].remote(5));
            p.post(0, 1, SendOp::Write(remote), &[sge]);
            let frames = p.take(0);
            assert_eq!(frames.len(), packets);
            if packets <= 128 {
                assert!(frames.iter().all(|f| f.bytes.len() == frames[0].bytes.len()), "{len}");
                assert!(frames.iter().all(|f| f.opcode() == Opcode::RC_WRITE_ONLY));
            } else {
                assert_eq!(frames[0].opcode(), Opcode::RC_WRITE_FIRST);
            }
            p.deliver_all(&frames);
            p.exchange();
            assert_eq!(p.ends[0].statuses(), [(1, OK)], "{len} bytes");
            assert_eq!(p.ends[1].buffer.to_vec(5, len), bytes);
            assert_eq!(p.ends[1].buffer.to_vec(5 + len, 8), [0; 8], "nothing behind it");
        }
    }
}

/// A WRITE of these many packets, which is divided, and its frames.
fn divided(p: &mut Pair, remote: Remote, packets: u32) -> (Vec<u8>, Vec<Frame>) {
    let bytes = p.fill(0, 0, packets as usize * 1024);
    p.post(0, 1, SendOp::Write(remote), &[p.ends[0].sge(0, packets * 1024)]);
    let frames = p.take(0);
    assert!(frames.iter().all(|frame| frame.opcode() == Opcode::RC_WRITE_ONLY));
    assert_eq!(frames.len(), packets as usize);
    (bytes, frames)
}

#[test]
fn the_packets_of_a_divided_write_are_taken_together() {
    let mut p = Pair::rc();
    let to = p.ends[1].remote(64);
    let (bytes, frames) = divided(&mut p, to, 20);
    p.deliver_together(&frames, &(0..12).collect::<Vec<_>>());
    assert!(p.ends[1].buffer.to_vec(64, 12 * 1024) == bytes[..12 * 1024]);
    // Some of them again, as after a lost acknowledgement, and the rest.
    p.deliver_together(&frames, &(8..20).collect::<Vec<_>>());
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert!(p.ends[1].buffer.to_vec(64, 20 * 1024) == bytes);
    assert_eq!(p.ends[1].nic.counters().rx_message_bytes, 20 * 1024);
}

#[test]
fn a_damaged_packet_among_them_and_those_behind_it_come_again() {
    let mut p = Pair::rc();
    let to = p.ends[1].remote(0);
    let (bytes, frames) = divided(&mut p, to, 16);
    let mut damaged = datagram(&frames, &(0..15).collect::<Vec<_>>());
    // The address in the RETH of one, and the payload of another.
    let each = frames[0].bytes.len();
    damaged[5 * each + 12 + 3] ^= 1;
    damaged[9 * each + 500] ^= 1;
    p.deliver_datagram(&frames, &damaged);
    assert!(p.ends[1].buffer.to_vec(0, 5 * 1024) == bytes[..5 * 1024]);
    assert!(p.ends[1].buffer.to_vec(5 * 1024, 11 * 1024) == [0; 11 * 1024]);
    assert_eq!(p.ends[1].nic.counters().drop_icrc, 2);
    p.run_out();
    assert_eq!(p.ends[0].statuses(), [(1, OK)]);
    assert!(p.ends[1].buffer.to_vec(0, 16 * 1024) == bytes);
}

#[test]
fn packets_that_arrive_together_are_refused_where_the_region_ends() {
    let mut p = Pair::rc();
    let to = p.ends[1].remote((1 << 20) - 5 * 1024);
    let (bytes, frames) = divided(&mut p, to, 8);
    p.deliver_together(&frames, &(0..8).collect::<Vec<_>>());
    assert!(p.ends[1].buffer.to_vec((1 << 20) - 5 * 1024, 5 * 1024) == bytes[..5 * 1024]);
    assert_eq!(p.ends[1].nic.counters().tx_nak_access, 0, "it is not sent yet");
    p.exchange();
    assert_eq!(p.ends[1].nic.counters().tx_nak_access, 1);
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemAccessErr)]);
}

#[test]
fn packets_that_arrive_together_are_refused_for_their_key() {
    let mut p = Pair::rc();
    let to = p.ends[1].remote(0);
    let (_, frames) = divided(&mut p, Remote { rkey: to.rkey ^ 1, ..to }, 8);
    p.deliver_together(&frames, &(0..8).collect::<Vec<_>>());
    assert!(p.ends[1].buffer.to_vec(0, 8 * 1024) == [0; 8 * 1024]);
    p.exchange();
    assert_eq!(p.ends[0].statuses(), [(1, WcStatus::RemAccessErr)]);
}
