use proptest::prelude::*;

use super::*;

const LAYOUT: ImmLayout = ImmLayout::STANDARD;

fn imm(id: u32, packet: u32) -> u32 {
    LAYOUT.series(id, packet, 0xdead_beef).imm(0)
}

proptest! {
    /// Compared with the obvious model: a set of packets, where a chunk needs all its packets.
    #[test]
    fn chunks_are_complete_exactly_when_their_packets_are(
        packets in 1u32..700,
        shift in 0u32..9,
        arrivals in prop::collection::vec(0u32..760, 0..1500),
        one_lane: bool,
    ) {
        let table = RecvTable::new(LAYOUT, 704, shift);
        let table = if one_lane { table.for_one_lane() } else { table };
        table.open(3, 1, packets);
        let mut have = vec![false; packets as usize];
        for packet in arrivals {
            let landed = table.land(1, imm(3, packet));
            match have.get_mut(packet as usize) {
                None => prop_assert_eq!(landed, Landed::Fragment),
                Some(true) => prop_assert_eq!(landed, Landed::Duplicate),
                Some(bit) => {
                    *bit = true;
                    let chunk = (packet >> shift << shift) as usize;
                    let end = (chunk + (1 << shift)).min(packets as usize);
                    let complete = have[chunk..end].iter().all(|b| *b);
                    prop_assert_eq!(landed, if complete { Landed::Chunk } else { Landed::Packet });
                }
            }
        }
        let bitmap = table.chunks(3);
        prop_assert_eq!(bitmap.len(), packets.div_ceil(1 << shift));
        for chunk in 0..bitmap.len() {
            let first = (chunk << shift) as usize;
            let end = (first + (1 << shift)).min(packets as usize);
            prop_assert_eq!(bitmap.get(chunk), have[first..end].iter().all(|b| *b));
        }
        prop_assert_eq!(bitmap.is_complete(), have.iter().all(|b| *b));
    }
}

proptest! {
    #[test]
    fn filling_is_like_landing_each_packet(
        packets in 1u32..700,
        shift in 0u32..9,
        landed in prop::collection::vec(0u32..700, 0..700),
        (from, len) in (0u32..700, 0u32..300),
    ) {
        let tables = [0, 1].map(|_| RecvTable::new(LAYOUT, 704, shift));
        for table in &tables {
            table.open(0, 0, packets);
            for packet in landed.iter().filter(|p| **p < packets) {
                table.land(0, imm(0, *packet));
            }
        }
        tables[0].fill(0, from..from + len);
        for packet in (from..from + len).filter(|p| *p < packets) {
            tables[1].land(0, imm(0, packet));
        }
        let bits = tables.map(|t| (0..11).map(|i| t.chunks(0).word(i)).collect::<Vec<_>>());
        prop_assert_eq!(&bits[0], &bits[1]);
    }
}

#[test]
fn other_generations_and_closed_slots_are_left_alone() {
    let table = RecvTable::new(LAYOUT, 64, 0);
    assert_eq!(table.land(0, imm(5, 0)), Landed::Late, "never opened");
    table.open(5, 2, 10);
    assert_eq!(table.land(1, imm(5, 0)), Landed::Late);
    assert_eq!(table.land(2, imm(5, 0)), Landed::Chunk);
    table.close(5);
    assert_eq!(table.land(2, imm(5, 1)), Landed::Late);
    table.open(5, 3, 10);
    assert_eq!(table.chunks(5).count(), 0, "a new message starts empty");
    assert_eq!(table.user_imm(5), None);
}

#[test]
fn the_users_immediate_is_there_when_all_its_fragments_are() {
    let table = RecvTable::new(LAYOUT, 64, 0);
    table.open(0, 0, 3);
    for packet in [0, 1, 2, 3, 4, 5, 6] {
        table.land(0, imm(0, packet));
        assert_eq!(table.user_imm(0), None);
    }
    assert_eq!(table.land(0, imm(0, 7)), Landed::Fragment);
    assert_eq!(table.user_imm(0), Some(0xdead_beef));
}

#[test]
fn dirty_slots_are_reported_once() {
    let table = RecvTable::new(LAYOUT, 64, 1);
    for id in [0, 63, 64, 1023] {
        table.open(id, 0, 4);
        table.land(0, imm(id, 0));
        table.land(0, imm(id, 1));
    }
    let mut seen = Vec::new();
    table.take_dirty(|id| seen.push(id));
    assert_eq!(seen, [0, 63, 64, 1023]);
    table.take_dirty(|id| panic!("{id} again"));
}

/// Two lanes land the packets of one message between them: no bit and no chunk is lost.
#[test]
fn lanes_may_share_a_message() {
    for shift in [0, 4, 7] {
        let table = RecvTable::new(LAYOUT, 4096, shift);
        table.open(9, 0, 4096);
        let chunks: u32 = std::thread::scope(|scope| {
            let lanes: Vec<_> = (0..2)
                .map(|lane| {
                    let table = &table;
                    scope.spawn(move || {
                        let mine = (0..4096).filter(|p| p % 2 == lane);
                        mine.filter(|p| table.land(0, imm(9, *p)) == Landed::Chunk).count() as u32
                    })
                })
                .collect();
            lanes.into_iter().map(|lane| lane.join().unwrap()).sum()
        });
        assert_eq!(chunks, 4096 >> shift, "each chunk is completed by exactly one lane");
        assert!(table.chunks(9).is_complete());
    }
}
