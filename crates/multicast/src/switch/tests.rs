//! Cases that the paper leaves open, one by one.

use core::net::IpAddr;

use bowline_link::Time;
use bowline_wire::{NakCode, Opcode, Psn, Qpn, Reth, Syndrome};
use proptest::prelude::*;

use crate::testing::{
    GROUP, REGION, Rig, SENDER, Told, ack_packet, data_packet, flow, member_addr, member_id, root,
    table,
};
use crate::{
    Arrival, Branch, Cause, Event, EvictError, GroupKey, InvalidTable, Leaf, Place, Policy,
    RootConfig, Switch, SwitchLimits, Verdict,
};

const MS: u64 = 1_000_000;
const EVICT: Policy = Policy::Evict { after_ns: 10 * MS, least: 1 };
const INVALID: NakCode = NakCode::InvalidRequest;
const ACCESS: NakCode = NakCode::RemoteAccess;
const OPERATIONAL: NakCode = NakCode::RemoteOperational;

/// A rig whose sender has sent some packets from PSN 0 on.
fn sent(members: usize, packets: u32, config: RootConfig) -> Rig {
    let mut rig = Rig::new(members, config);
    for psn in 0..packets {
        assert_eq!(rig.send(psn).len(), members);
    }
    assert_eq!(rig.told(), []);
    rig
}

#[test]
fn the_minimum_is_told_when_it_rises_whoever_makes_it() {
    let mut rig = sent(3, 6, root(Some(0)));
    assert_eq!(rig.ack(0, 4), []);
    assert_eq!(rig.ack(1, 2), []);
    assert_eq!(rig.ack(2, 5), [Told::Ack(2)]);
    assert_eq!(rig.ack(1, 5), [Told::Ack(4)]);
    assert_eq!(rig.ack(1, 3), [], "records do not go back");
    assert_eq!(rig.ack(0, 5), [Told::Ack(5)]);
    assert_eq!(rig.switch.counters().drop_stale, 1);
}

#[test]
fn a_group_of_one_works() {
    let mut rig = sent(1, 2, root(Some(0)));
    assert_eq!(rig.ack(0, 1), [Told::Ack(1)]);
    assert_eq!(rig.nak(0, 2), [], "nothing was sent at 2");
}

#[test]
fn two_members_behind_one_address_are_two() {
    assert_eq!(member_addr(0), member_addr(1));
    let mut rig = sent(2, 1, root(Some(0)));
    assert_eq!(rig.ack(0, 0), []);
    assert_eq!(rig.ack(0, 0), []);
    assert_eq!(rig.ack(1, 0), [Told::Ack(0)]);
}

#[test]
fn numbers_wrap() {
    let mut rig = Rig::new(2, root(Some(0xff_fffe)));
    for psn in [0xff_fffe, 0xff_ffff, 0, 1] {
        assert_eq!(rig.send(psn), [0, 1]);
    }
    assert_eq!(rig.ack(0, 1), []);
    assert_eq!(rig.ack(1, 0xff_ffff), [Told::Ack(0xff_ffff)]);
    assert_eq!(rig.send(0), [1], "only to whom lacks it");
    assert_eq!(rig.nak(1, 1), [Told::Nak(1)]);
    assert_eq!(rig.ack(1, 1), [Told::Ack(1)]);
}

#[test]
fn a_nak_acknowledges_first_and_goes_to_the_sender_once() {
    let mut rig = sent(3, 6, root(Some(0)));
    assert_eq!(rig.ack(0, 3), []);
    assert_eq!(rig.ack(1, 2), []);
    assert_eq!(rig.nak(2, 4), [Told::Nak(3)], "PSN 3 is what member 1 may lack");
    assert_eq!(rig.nak(0, 4), [], "the sender has been asked");
    assert_eq!(rig.send(3), [1], "the others have it");
    assert_eq!(rig.nak(0, 4), [Told::Nak(3)], "it was sent again, and got lost again");
    assert_eq!(rig.switch.counters().naks_in, 3);
    assert_eq!(rig.switch.counters().naks_out, 2);
}

#[test]
fn a_lost_acknowledgement_is_repeated_by_the_root() {
    let mut rig = sent(2, 3, root(Some(0)));
    rig.ack(0, 2);
    assert_eq!(rig.ack(1, 2), [Told::Ack(2)]);
    assert_eq!(rig.send(2), []);
    assert_eq!(rig.told(), [Told::Ack(2)]);
    assert_eq!(rig.switch.counters().acks_repeated, 1);
}

#[test]
fn receiver_not_ready_waits_until_it_is_all_that_the_group_waits_for() {
    let mut rig = sent(3, 4, root(Some(0)));
    assert_eq!(rig.rnr(0, 2), []);
    assert_eq!(rig.ack(1, 3), []);
    assert_eq!(rig.ack(2, 0), [Told::Ack(0)]);
    assert_eq!(rig.ack(2, 3), [Told::Ack(1), Told::Rnr(2)]);
    assert_eq!(rig.rnr(0, 2), [], "the sender waits already");
    assert_eq!(rig.send(2), [0]);
    assert_eq!(rig.rnr(0, 2), [Told::Rnr(2)]);
}

#[test]
fn reads_atomics_and_foreign_memory_are_refused_when_all_before_is_acknowledged() {
    let inside = Reth { va: REGION.va, rkey: REGION.rkey, len: 64 };
    let beyond = Reth { va: REGION.va + REGION.len - 63, ..inside };
    let cases = [
        (Opcode::RC_READ_REQ, inside, INVALID),
        (Opcode::RC_FETCH_ADD, inside, INVALID),
        (Opcode::RC_CMP_SWAP, inside, INVALID),
        (Opcode::RC_SEND_ONLY_INV, inside, INVALID),
        (Opcode::RC_WRITE_ONLY, beyond, ACCESS),
        (Opcode::RC_WRITE_ONLY, Reth { rkey: 1, ..inside }, ACCESS),
        (Opcode::RC_WRITE_FIRST, Reth { va: u64::MAX, ..inside }, ACCESS),
    ];
    for (opcode, reth, code) in cases {
        let mut rig = sent(2, 1, root(Some(0)));
        assert_eq!(rig.request(Opcode::RC_WRITE_ONLY, 1, inside), [0, 1]);
        assert_eq!(rig.request(opcode, 2, reth), []);
        assert_eq!(rig.told(), [], "the first two are outstanding");
        assert_eq!(rig.send(3), [], "nothing behind it goes on");
        assert_eq!(rig.ack(0, 1), []);
        assert_eq!(rig.ack(1, 1), [Told::Ack(1), Told::Refused(2, code)]);
    }
}

#[test]
fn a_write_of_nothing_may_name_any_memory() {
    let mut rig = Rig::new(2, root(Some(0)));
    let nowhere = Reth { va: 5, rkey: 5, len: 0 };
    assert_eq!(rig.request(Opcode::RC_WRITE_ONLY, 0, nowhere), [0, 1]);
}

#[test]
fn packets_larger_than_the_least_mtu_are_refused() {
    let mut rig = Rig::new(2, root(Some(0)));
    let from = flow(SENDER, member_addr(0));
    let nowhere = Reth { va: 0, rkey: 0, len: 0 };
    let of = |len| data_packet(&from, Opcode::RC_SEND_ONLY, GROUP.id, Psn::new(0), len, nowhere);
    assert_eq!(rig.frame(&of(257)).len(), 0);
    assert_eq!(rig.told(), [Told::Refused(0, INVALID)]);
    let mut rig = Rig::new(2, root(Some(0)));
    assert_eq!(rig.frame(&of(256)).len(), 2);
}

#[test]
fn damaged_and_foreign_answers_count_for_nothing() {
    let mut rig = sent(2, 3, root(Some(0)));
    rig.ack(0, 2);
    let link = flow(member_addr(1), SENDER);
    let ack = Syndrome::Ack { credits: 31 };
    let good = ack_packet(&link, member_id(1), Psn::new(2), ack, 1);
    for byte in 0..good.len() {
        // The congestion bits, and what no check covers.
        if byte == 4 {
            continue;
        }
        let mut bad = good.clone();
        bad[byte] ^= 1;
        let arrival = Arrival { flow: link, ip_id: Some(0), bytes: &bad };
        rig.switch.handle_frame(rig.now, &arrival);
        assert_eq!(rig.told(), [], "byte {byte}");
    }
    let from_elsewhere = flow(member_addr(7), SENDER);
    let forged = ack_packet(&from_elsewhere, member_id(1), Psn::new(2), ack, 1);
    let arrival = Arrival { flow: from_elsewhere, ip_id: Some(0), bytes: &forged };
    assert_eq!(rig.switch.handle_frame(rig.now, &arrival), Verdict::Taken);
    assert_eq!(rig.told(), []);
    assert_eq!(rig.switch.counters().drop_source, 1);
    assert_eq!(rig.ack(1, 3), [], "never sent");
    assert_eq!(rig.switch.counters().drop_ahead, 1);
    // A driver that does not see the identification accepts any that matches the ICRC.
    let arrival = Arrival { flow: link, ip_id: None, bytes: &good };
    rig.switch.handle_frame(rig.now, &arrival);
    assert_eq!(rig.told(), [Told::Ack(2)]);
}

#[test]
fn a_damaged_jump_of_the_sender_is_not_believed() {
    let mut rig = sent(1, 1, root(Some(0)));
    let link = flow(SENDER, member_addr(0));
    let nowhere = Reth { va: 0, rkey: 0, len: 0 };
    let mut bad = data_packet(&link, Opcode::RC_SEND_ONLY, GROUP.id, Psn::new(1), 8, nowhere);
    bad[10] ^= 0x10;
    assert_eq!(rig.frame(&bad).len(), 0);
    assert_eq!(rig.ack(0, 1), [], "still never sent");
    assert_eq!(rig.switch.counters().drop_icrc, 1);
    // Nor a packet that no sender makes, whatever its ICRC.
    let far = data_packet(&link, Opcode::RC_SEND_ONLY, GROUP.id, Psn::new(1 << 15), 8, nowhere);
    assert_eq!(rig.frame(&far).len(), 0);
    assert_eq!(rig.switch.counters().drop_ahead, 2);
}

#[test]
fn a_refusal_of_a_member_fails_the_group_or_evicts_it() {
    let mut rig = sent(2, 3, root(Some(0)));
    rig.ack(1, 1);
    let refused = rig.answer(0, 1, Syndrome::Nak(ACCESS));
    assert_eq!(refused, [Told::Ack(0), Told::Refused(1, ACCESS)]);
    assert_eq!(rig.ack(1, 2), [], "nothing is acknowledged any more");
    assert_eq!(rig.send(1), []);
    assert_eq!(rig.told(), [Told::Refused(1, ACCESS)], "in case the first got lost");
    let failed =
        Event::Failed { group: GROUP, member: member_id(0), cause: Cause::Refused(ACCESS) };
    assert_eq!(rig.switch.poll_event(), Some(failed));

    let mut rig = sent(2, 3, RootConfig { policy: EVICT, ..root(Some(0)) });
    rig.ack(1, 1);
    let evicted = rig.answer(0, 1, Syndrome::Nak(ACCESS));
    assert_eq!(evicted, [Told::Ack(0), Told::Ack(1)]);
    let event = Event::Evicted {
        group: GROUP,
        member: member_id(0),
        acked: Some(Psn::new(0)),
        cause: Cause::Refused(ACCESS),
    };
    assert_eq!(rig.switch.poll_event(), Some(event));
    assert_eq!(rig.send(3), [1]);
    assert_eq!(rig.ack(0, 3), [], "it does not count any more");
    assert_eq!(rig.ack(1, 3), [Told::Ack(3)]);
    // The last member cannot leave.
    assert_eq!(rig.send(4), [1]);
    assert_eq!(rig.answer(1, 4, Syndrome::Nak(ACCESS)), [Told::Refused(4, OPERATIONAL)]);
}

#[test]
fn a_silent_member_is_evicted_in_time_and_one_that_gets_on_is_not() {
    let mut rig = sent(3, 8, RootConfig { policy: EVICT, ..root(Some(0)) });
    assert_eq!(rig.switch.poll_timeout(), None, "nobody is ahead");
    rig.ack(0, 7);
    assert_eq!(rig.switch.poll_timeout(), Some(Time::from_millis(10)));
    rig.now = Time::from_millis(6);
    rig.ack(1, 1);
    rig.now = Time::from_millis(10);
    rig.switch.handle_timeout(rig.now);
    assert_eq!(rig.told(), [Told::Ack(1)], "member 2 is gone");
    let event = rig.switch.poll_event();
    assert!(matches!(event, Some(Event::Evicted { cause: Cause::Behind, .. })), "{event:?}");
    assert_eq!(rig.switch.poll_timeout(), Some(Time::from_millis(16)));
    assert_eq!(rig.ack(1, 7), [Told::Ack(7)]);
    assert_eq!(rig.switch.poll_timeout(), None);
}

#[test]
fn a_quorum_tells_what_enough_members_have() {
    let policy = Policy::Quorum { k: 2, after_ns: 10 * MS };
    let mut rig = sent(3, 5, RootConfig { policy, ..root(Some(0)) });
    assert_eq!(rig.ack(0, 4), []);
    assert_eq!(rig.ack(1, 2), [Told::Ack(2)]);
    assert_eq!(rig.send(2), [2], "the third still lacks it");
    assert_eq!(rig.told(), [Told::Ack(2)]);
    assert_eq!(rig.nak(2, 1), [], "the sender does not have PSN 1 any more");
    let event = rig.switch.poll_event();
    assert!(matches!(event, Some(Event::Evicted { cause: Cause::Missed, .. })), "{event:?}");
    assert_eq!(rig.nak(1, 3), [Told::Nak(3)]);
    assert_eq!(
        rig.answer(1, 4, Syndrome::Nak(ACCESS)),
        [Told::Ack(3), Told::Refused(4, OPERATIONAL)]
    );
}

#[test]
fn a_new_table_gives_a_laggard_no_more_time() {
    let config = RootConfig { policy: EVICT, ..root(Some(0)) };
    let mut rig = sent(3, 4, config.clone());
    rig.ack(0, 3);
    rig.now = Time::from_millis(6);
    rig.switch.install(rig.now, table(2, &[0, 2], config)).expect("one has left");
    assert_eq!(rig.switch.poll_timeout(), Some(Time::from_millis(10)));
}

#[test]
fn a_laggard_is_found_when_those_ahead_of_it_have_left() {
    let policy = Policy::Quorum { k: 1, after_ns: 10 * MS };
    let config = RootConfig { policy, ..root(Some(0)) };
    let mut rig = sent(2, 4, config.clone());
    assert_eq!(rig.ack(0, 3), [Told::Ack(3)]);
    rig.switch.install(rig.now, table(2, &[1], config)).expect("one has left");
    rig.now = Time::from_millis(10);
    rig.switch.handle_timeout(rig.now);
    let event = rig.switch.poll_event();
    assert!(matches!(event, Some(Event::Failed { cause: Cause::Behind, .. })), "{event:?}");
}

#[test]
fn after_a_restart_nobody_is_ahead_by_more_than_a_sender_can_be() {
    for config in [root(None), root(None).as_in_the_paper()] {
        let mut rig = Rig::new(2, config);
        // A forger moves what the root believes was sent, and responds for a member.
        for psn in [1 << 20, 5] {
            rig.send(psn);
        }
        assert_eq!(rig.ack(0, 1 << 19), []);
        assert_eq!(rig.ack(1, 5), [], "the other cannot be so far ahead");
        assert_eq!(rig.ack(0, 5), [Told::Ack(5)]);
    }
}

#[test]
fn one_congestion_notification_passes_per_interval() {
    let mut rig = Rig::new(3, root(Some(0)));
    assert_eq!(rig.cnp(0), [Told::Cnp]);
    assert_eq!(rig.cnp(1), []);
    rig.now = Time::from_micros(49);
    assert_eq!(rig.cnp(2), []);
    rig.now = Time::from_micros(50);
    assert_eq!(rig.cnp(2), [Told::Cnp]);
    let mut rig = Rig::new(2, root(Some(0)).as_in_the_paper());
    assert_eq!((rig.cnp(0), rig.cnp(1)), (vec![Told::Cnp], vec![Told::Cnp]));
}

#[test]
fn a_switch_that_restarted_says_nothing_until_all_have_spoken() {
    let mut rig = Rig::new(3, root(None));
    assert_eq!(rig.ack(0, 6), [], "not even what was sent is known");
    assert_eq!(rig.send(5), [0, 1, 2]);
    assert_eq!(rig.send(6), [0, 1, 2]);
    assert_eq!(rig.ack(0, 6), []);
    assert_eq!(rig.nak(1, 5), []);
    assert_eq!(rig.ack(2, 6), [Told::Ack(4)]);
    assert_eq!(rig.ack(1, 6), [Told::Ack(6)]);
}

#[test]
fn a_root_that_believed_a_stranger_finds_back() {
    let mut rig = Rig::new(2, root(None));
    assert_eq!(rig.send(1 << 20), [0, 1], "forged, and the first that is heard after a restart");
    assert_eq!(rig.answer(0, 1 << 20, Syndrome::Nak(ACCESS)), [], "it could be anybody's");
    rig.ack(0, 1 << 20);
    assert_eq!(rig.ack(1, 3), [], "they cannot both be right");
    assert_eq!(rig.ack(1, 1 << 20), [Told::Ack(1 << 20)], "no sender has this in flight");
    assert_eq!(rig.ack(0, 3), [], "the truth is stale");
    for _ in 0..16 {
        assert_eq!(rig.send(3), []);
    }
    assert_eq!(rig.send(3), [0, 1]);
    assert_eq!(rig.ack(0, 3), []);
    assert_eq!(rig.ack(1, 3), [Told::Ack(3)]);
    // One stray packet has no effect.
    assert_eq!(rig.send(1 << 20), []);
    assert_eq!(rig.send(4), [0, 1]);
    assert_eq!(rig.ack(0, 4), []);
    assert_eq!(rig.ack(1, 4), [Told::Ack(4)]);
}

#[test]
fn a_stranger_far_behind_changes_nothing_either() {
    let mut rig = Rig::new(1, root(Some(0)));
    assert_eq!(rig.send(0xff_ffff - (5 << 20)), []);
    assert_eq!(rig.ack(0, 5 << 20), [], "nothing was sent");
    assert_eq!(rig.send(0), [0]);
    assert_eq!(rig.ack(0, 0), [Told::Ack(0)]);
    let mut paper = sent(2, 2, root(Some(0)).as_in_the_paper());
    assert_eq!(paper.answer(0, 0xf0_0000, Syndrome::Nak(ACCESS)), [], "nobody refuses the past");
}

#[test]
fn the_rules_of_the_paper_are_there_to_compare() {
    let mut rig = sent(2, 8, root(Some(0)).as_in_the_paper());
    assert_eq!(rig.ack(0, 4), []);
    assert_eq!(rig.ack(1, 2), [Told::Ack(2)]);
    assert_eq!(rig.ack(1, 6), [], "although the minimum rose");
    assert_eq!(rig.nak(0, 6), [Told::Nak(5)], "by its stale record");
    assert_eq!(rig.nak(0, 6), [Told::Nak(5)], "each time");
    assert_eq!(rig.send(2), [0, 1], "to all");
}

#[test]
fn a_member_joins_when_all_is_acknowledged_and_leaves_at_any_time() {
    let mut rig = sent(2, 2, root(Some(0)));
    let three = table(2, &[0, 1, 2], root(Some(0)));
    assert_eq!(rig.switch.install(rig.now, three.clone()), Err(InvalidTable::NotDrained));
    rig.ack(0, 1);
    rig.ack(1, 1);
    rig.told();
    rig.switch.install(rig.now, three).expect("drained");
    assert_eq!(rig.send(2), [0, 1, 2]);
    rig.ack(0, 2);
    assert_eq!(rig.ack(1, 2), []);
    let without_last = table(3, &[0, 1], root(Some(0)));
    rig.switch.install(rig.now, without_last).expect("a newer table");
    assert_eq!(rig.told(), [Told::Ack(2)]);
    assert_eq!(rig.send(3), [0, 1]);
    // Its ID is unused now.
    let link = flow(member_addr(2), SENDER);
    let ack = ack_packet(&link, member_id(2), Psn::new(2), Syndrome::Ack { credits: 0 }, 0);
    let arrival = Arrival { flow: link, ip_id: Some(0), bytes: &ack };
    assert_eq!(rig.switch.handle_frame(rig.now, &arrival), Verdict::Pass);
}

#[test]
fn an_evicted_member_stays_away_in_later_epochs() {
    let config = RootConfig { policy: EVICT, ..root(Some(0)) };
    let mut rig = sent(2, 1, config.clone());
    rig.answer(0, 0, Syndrome::Nak(ACCESS));
    rig.ack(1, 0);
    rig.told();
    rig.switch.install(rig.now, table(2, &[0, 1], config)).expect("a newer table");
    assert_eq!(rig.send(1), [1]);
}

#[test]
fn messages_are_counted_as_the_group_counts_them() {
    let mut rig = sent(1, 1, root(Some(0)));
    let msn_of = |rig: &mut Rig, member: usize, psn: u32, msn: u32| {
        let link = flow(member_addr(member), SENDER);
        let ack = Syndrome::Ack { credits: 31 };
        let bytes = ack_packet(&link, member_id(member), Psn::new(psn), ack, msn);
        rig.switch.handle_frame(rig.now, &Arrival { flow: link, ip_id: Some(0), bytes: &bytes });
        let answer = rig.switch.poll_transmit()?;
        bowline_wire::PacketView::parse(answer.bytes()).ok()?.aeth().map(|aeth| aeth.msn)
    };
    assert_eq!(msn_of(&mut rig, 0, 0, 1), Some(1));
    rig.switch.install(rig.now, table(2, &[0, 1], root(Some(0)))).expect("drained");
    rig.send(1);
    assert_eq!(msn_of(&mut rig, 0, 1, 2), None);
    assert_eq!(
        msn_of(&mut rig, 1, 1, 1),
        Some(2),
        "a member that joined counts from its own start"
    );
}

#[test]
fn tables_are_checked() {
    let mut rig = Rig::new(2, root(Some(0)));
    let again = rig.switch.install(rig.now, table(1, &[0, 1], root(Some(0))));
    assert_eq!(again, Err(InvalidTable::Stale { offered: 1, current: 1 }));
    let good = table(2, &[0, 1], root(Some(0)));
    let mut bad = Vec::new();
    let mut change = |wrong: fn(&mut crate::Table), error| {
        let mut table = good.clone();
        wrong(&mut table);
        bad.push((table, error));
    };
    let real = Qpn::new(0x11);
    change(|t| t.key.id = Qpn::new(0x11), InvalidTable::Id(real));
    change(|t| t.branches.clear(), InvalidTable::Members(0));
    change(|t| t.regions.clear(), InvalidTable::Regions(0));
    change(|t| t.branches[0].dst = [0_u16; 8].into(), InvalidTable::Family);
    change(|t| t.root.as_mut().unwrap().members.clear(), InvalidTable::Members(0));
    change(|t| t.root.as_mut().unwrap().members[1].branch = 2, InvalidTable::Branch(2));
    change(|t| t.root.as_mut().unwrap().members[1].id = Qpn::new(0x11), InvalidTable::Id(real));
    // Where answers go to the sender's own address, its queue pair is no member ID.
    change(|t| t.root.as_mut().unwrap().sender_qpn = member_id(0), InvalidTable::Id(member_id(0)));
    change(
        |t| t.root.as_mut().unwrap().policy = Policy::Quorum { k: 3, after_ns: 1 },
        InvalidTable::Policy(3),
    );
    for (table, error) in bad {
        assert_eq!(rig.switch.install(rig.now, table), Err(error));
    }
    let mut other = good.clone();
    other.key.id = Qpn::new(0xfe_0009);
    assert_eq!(rig.switch.install(rig.now, other.clone()), Err(InvalidTable::Id(member_id(0))));
    rig.switch.remove(&GROUP);
    assert_eq!(rig.send(0), [], "nobody's packets pass");
    rig.switch.install(rig.now, other).expect("the IDs are free again");
    assert_eq!(rig.send(0), [], "another group's ID");
    let mut small = Switch::new(SwitchLimits { groups: 0 });
    assert_eq!(small.install(Time::ZERO, good), Err(InvalidTable::Full(0)));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_speak(
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        opcode: u8,
        from_member: bool,
        known: bool,
    ) {
        let policy = Policy::Quorum { k: 1, after_ns: 5 };
        let mut rig = sent(2, 2, RootConfig { policy, ..root(Some(0)) });
        let mut bytes = bytes;
        let id = if from_member { member_id(1) } else { GROUP.id };
        // Sometimes it is for a group; the ICRC is never right.
        if let Some(header) = bytes.first_chunk_mut::<12>() {
            header[0] = opcode;
            header[5..8].copy_from_slice(&id.get().to_be_bytes()[1..]);
        }
        let link =
            if from_member { flow(member_addr(1), SENDER) } else { flow(SENDER, member_addr(0)) };
        let arrival = Arrival { flow: link, ip_id: known.then_some(0), bytes: &bytes };
        if let Verdict::Replicate(replicas) = rig.switch.handle_frame(rig.now, &arrival) {
            for branch in replicas.branches() {
                let mut copy = bytes.clone();
                rig.switch.edit(&replicas, branch).expect("it exists").apply(&mut copy);
            }
        }
        rig.switch.handle_timeout(Time::from_millis(1));
        // Except what is true anyway: that no member has anything yet.
        let told = rig.told();
        prop_assert!(told.iter().all(|told| *told == Told::Ack(0xff_ffff)), "{told:?}");
    }
}

#[test]
fn uc_is_copied_where_nobody_merges() {
    let from = flow(SENDER, member_addr(0));
    let reth = Reth { va: REGION.va, rkey: REGION.rkey, len: 64 };
    let opcode = Opcode::UC_WRITE_ONLY_IMM;
    let bytes = data_packet(&from, opcode, GROUP.id, Psn::new(77), 64, reth);
    for (merges, copies) in [(true, 0), (false, 3)] {
        let mut table = table(1, &[0, 1, 2], root(Some(0)));
        table.root = table.root.filter(|_| merges);
        let mut switch = Switch::new(SwitchLimits::default());
        switch.install(Time::ZERO, table).expect("a right table");
        let arrival = Arrival { flow: from, ip_id: Some(0), bytes: &bytes };
        let count = match switch.handle_frame(Time::ZERO, &arrival) {
            Verdict::Replicate(replicas) => replicas.branches().count(),
            _ => 0,
        };
        assert_eq!((count, switch.counters().copies_out), (copies, copies as u64));
        assert_eq!(switch.poll_transmit(), None, "nobody is told anything");
    }
}

#[test]
fn an_operator_sees_who_holds_the_group_back_and_evicts() {
    let mut rig = sent(3, 6, root(Some(0)));
    assert_eq!(rig.ack(0, 5), []);
    assert_eq!(rig.ack(1, 1), []);
    assert_eq!(rig.ack(2, 3), [Told::Ack(1)]);
    let status = |rig: &Rig| {
        let groups: Vec<_> = rig.switch.groups().collect();
        let [group] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!((group.key, group.epoch, group.branches.len()), (GROUP, 1, 3));
        let root = group.root.clone().expect("it merges");
        assert!(!root.has_failed);
        root
    };
    let seen = status(&rig);
    assert_eq!(seen.outstanding, Some(4));
    let lags: Vec<_> = seen.members.iter().map(|member| member.lag).collect();
    assert_eq!(lags, [Some(0), Some(4), Some(2)]);
    let back: Vec<_> = seen.members.iter().map(|member| member.holds_back).collect();
    assert_eq!(back, [false, true, false]);

    let now = Time::ZERO;
    let nobody = Qpn::new(0xfe_ffff);
    assert_eq!(rig.switch.evict(now, &GROUP, nobody), Err(EvictError::NoMember(nobody)));
    let other = GroupKey { id: nobody, ..GROUP };
    assert_eq!(rig.switch.evict(now, &other, member_id(1)), Err(EvictError::NoGroup(other)));
    rig.switch.evict(now, &GROUP, member_id(1)).expect("two are left");
    assert_eq!(rig.told(), [Told::Ack(3)], "nobody waits for it any more");
    let event = rig.switch.poll_event();
    assert!(matches!(event, Some(Event::Evicted { cause: Cause::Ordered, .. })), "{event:?}");
    assert!(!status(&rig).members[1].is_live && status(&rig).members[2].holds_back);
    assert_eq!(rig.send(6), [0, 2]);
    let again = rig.switch.evict(now, &GROUP, member_id(1));
    assert_eq!(again, Err(EvictError::NoMember(member_id(1))));
    rig.switch.evict(now, &GROUP, member_id(2)).expect("one is left");
    let last = rig.switch.evict(now, &GROUP, member_id(0));
    assert_eq!(last, Err(EvictError::TooFew(1)), "an operator does not fail a group");
    assert!(!status(&rig).has_failed);
}

#[test]
fn after_a_restart_nobody_is_known_to_be_behind() {
    let mut rig = Rig::new(2, root(None));
    rig.send(7);
    let groups: Vec<_> = rig.switch.groups().collect();
    let root = groups[0].root.clone().expect("it merges");
    assert_eq!(root.outstanding, None);
    assert!(root.members.iter().all(|member| member.lag.is_none() && member.holds_back));
}

#[test]
fn a_trunk_stands_for_all_members_or_for_none() {
    let cast: IpAddr = [239, 192, 0, 1].into();
    let with_trunk = |trunk: Option<usize>, leaf: Option<Leaf>| {
        let mut table = table(1, &[0, 1], RootConfig { trunk, ..root(Some(0)) });
        table.branches.push(Branch { dst: cast, src: None, leaf });
        Switch::new(SwitchLimits::default()).install(Time::ZERO, table)
    };
    assert_eq!(with_trunk(Some(2), None), Ok(()));
    assert_eq!(with_trunk(Some(3), None), Err(InvalidTable::Branch(3)), "there is none");
    assert_eq!(with_trunk(Some(1), None), Err(InvalidTable::Branch(1)), "it is a member's");
    let leaf = Leaf { qpn: Qpn::new(5), places: vec![Place { va: 0, rkey: 0 }] };
    assert_eq!(with_trunk(Some(2), Some(leaf)), Err(InvalidTable::Branch(2)), "it is for one");
}
