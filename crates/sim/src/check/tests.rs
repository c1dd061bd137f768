use std::collections::{BTreeSet, VecDeque};

use bowline_nic::{Buffer, Completion, WcOpcode, WcStatus};

use super::atomics::{AddWord, Swap, SwapWord};
use super::bytes::{RegionModel, Write};
use super::completions::{RecvOrder, SendOrder};
use super::delivery::{Delivery, Message};
use super::guards::Guards;
use super::pattern;

#[test]
fn a_pattern_is_the_same_from_every_start() {
    let whole = pattern::message(7, 100);
    for start in 0..40 {
        let mut part = vec![0; 50];
        pattern::fill_from(7, start, &mut part);
        assert_eq!(part, whole[start..start + 50]);
        assert_eq!(pattern::byte_at(7, start), whole[start]);
    }
    assert_ne!(pattern::message(8, 100), whole);
}

#[test]
fn sends_complete_once_in_order_and_silently_if_unsignaled() {
    let mut order = SendOrder::default();
    for (id, signaled) in [(1, false), (2, true), (3, true)] {
        order.post(id, signaled);
    }
    let retired = order.complete(2, WcStatus::Success).expect("in order");
    assert_eq!(retired.silent, [1]);
    assert!(order.complete(2, WcStatus::Success).is_err(), "twice");
}

#[test]
fn an_overtaking_completion_is_a_violation() {
    let mut order = SendOrder::default();
    order.post(1, true);
    order.post(2, true);
    assert!(order.complete(2, WcStatus::Success).is_err());
}

#[test]
fn an_unsignaled_success_does_not_complete() {
    let mut order = SendOrder::default();
    order.post(1, false);
    assert!(order.complete(1, WcStatus::Success).is_err());
}

#[test]
fn everything_behind_a_failure_is_flushed_one_by_one() {
    let mut order = SendOrder::default();
    for id in 1..=4 {
        order.post(id, false);
    }
    order.complete(1, WcStatus::RetryExcErr).expect("a failure completes, signaled or not");
    assert!(!order.is_drained());
    order.complete(2, WcStatus::WrFlushErr).expect("flushed");
    assert!(order.complete(4, WcStatus::WrFlushErr).is_err(), "3 was not flushed");
    let mut order = SendOrder::default();
    order.post(1, true);
    order.post(2, true);
    order.complete(1, WcStatus::RetryExcErr).expect("fails");
    assert!(order.complete(2, WcStatus::Success).is_err(), "success behind a failure");
}

#[test]
fn receives_complete_in_order_unless_shared() {
    let mut own = RecvOrder::Own(VecDeque::new());
    let mut shared = RecvOrder::Shared(BTreeSet::new());
    for id in 1..=2 {
        own.post(id);
        shared.post(id);
    }
    assert!(own.complete(2).is_err());
    assert!(shared.complete(2).is_ok());
    assert!(shared.complete(2).is_err());
}

#[test]
fn messages_are_delivered_once_in_order() {
    let message = |wr_id, len| Message {
        wr_id,
        opcode: WcOpcode::Recv,
        len,
        pattern: wr_id,
        imm: None,
        invalidate: None,
        solicited: false,
    };
    let completion = Completion { byte_len: 10, opcode: WcOpcode::Recv, ..Completion::default() };
    let mut delivery = Delivery::default();
    delivery.sent(message(1, 10));
    delivery.sent(message(2, 11));
    let first = delivery.next_in_order().expect("one is due");
    assert!(first.matches(&completion, 0).is_ok());
    assert!(first.matches_bytes(&pattern::message(1, 10)).is_ok());
    assert!(first.matches_bytes(&pattern::message(2, 10)).is_err());
    let second = delivery.next_in_order().expect("one is due");
    assert!(second.matches(&completion, 0).is_err(), "the first one again");
    assert!(delivery.next_in_order().is_err());
}

#[test]
fn an_unreliable_message_may_come_twice_but_not_from_nowhere() {
    let mut delivery = Delivery::default();
    delivery.sent(Message {
        wr_id: 1,
        opcode: WcOpcode::Recv,
        len: 4,
        pattern: 9,
        imm: Some(5),
        invalidate: None,
        solicited: false,
    });
    let mut completion =
        Completion { byte_len: 44, opcode: WcOpcode::Recv, imm: Some(5), ..Completion::default() };
    let bytes = pattern::message(9, 4);
    for _ in 0..2 {
        assert!(delivery.any_like(&completion, 40, Some(&bytes)).is_ok());
    }
    assert!(delivery.any_like(&completion, 40, Some(&[0; 4])).is_err());
    completion.imm = Some(6);
    assert!(delivery.any_like(&completion, 40, Some(&bytes)).is_err());
}

#[test]
fn additions_return_every_value_once() {
    let mut word = AddWord::new(100, 7);
    assert!(word.returned(100).is_ok());
    assert!(word.returned(114).is_ok());
    assert!(word.returned(100).is_err(), "done twice");
    assert!(word.check(114).is_err(), "the third value was returned, so it was added to");
    let mut word = AddWord::new(u64::MAX, 3);
    word.returned(u64::MAX).expect("first");
    word.failed();
    assert!(word.check(2).is_ok(), "the failed one did not happen");
    assert!(word.check(5).is_ok(), "it did");
    assert!(word.check(8).is_err(), "twice");
    assert!(word.check(u64::MAX).is_err(), "the good one did not happen");
}

#[test]
fn swaps_make_a_chain() {
    let mut word = SwapWord::new(1);
    assert!(word.returned(Swap { compare: 1, swap: 2 }, 1).is_ok());
    assert!(word.returned(Swap { compare: 1, swap: 3 }, 2).is_ok(), "refused");
    assert_eq!(word.value(), 2);
    assert!(word.returned(Swap { compare: 2, swap: 3 }, 1).is_err());
    word.failed(Swap { compare: 2, swap: 4 });
    word.failed(Swap { compare: 4, swap: 5 });
    assert!(word.settle(3, true).is_err());
    let mut word = SwapWord::new(2);
    word.failed(Swap { compare: 2, swap: 4 });
    word.failed(Swap { compare: 4, swap: 5 });
    assert!(word.settle(4, true).is_ok());
    assert!(word.settle(5, true).is_err(), "what failed before cannot happen any more");
}

fn write(wr_id: u64, range: core::ops::Range<usize>) -> Write {
    Write { wr_id, range, pattern: wr_id }
}

#[test]
fn a_completed_write_is_there() {
    let buffer = Buffer::new(256);
    let mut model = RegionModel::new(&buffer, 10, 200, 1);
    model.posted(write(5, 20..40));
    assert!(model.check(&buffer).is_ok(), "not there yet, which is fine");
    assert!(model.succeeded(&buffer, 5).is_err(), "not there, but completed");

    let mut model = RegionModel::new(&buffer, 10, 200, 1);
    model.posted(write(5, 20..40));
    model.posted(write(6, 30..50));
    buffer.write_at(30, &pattern::message(5, 20));
    buffer.write_at(40, &pattern::message(6, 20)[..7]);
    assert!(model.succeeded(&buffer, 5).is_ok(), "a part of the next one is there already");
    assert!(model.succeeded(&buffer, 6).is_err(), "only a part");
    buffer.fill(209, 1, 0);
    assert!(model.check(&buffer).is_err(), "a byte that nobody wrote");
}

#[test]
fn a_failed_write_may_be_there_and_a_frozen_region_may_not_change() {
    let buffer = Buffer::new(128);
    let mut model = RegionModel::new(&buffer, 0, 128, 1);
    model.posted(write(5, 0..64));
    model.failed(5);
    buffer.write_at(0, &pattern::message(5, 64)[..32]);
    assert!(model.check(&buffer).is_ok());
    model.freeze(&buffer);
    assert!(model.check(&buffer).is_ok());
    buffer.write_at(32, &pattern::message(5, 64)[32..]);
    assert!(model.check(&buffer).is_err());
}

#[test]
fn a_fence_hides_later_writes_from_a_read() {
    let buffer = Buffer::new(64);
    let mut model = RegionModel::new(&buffer, 0, 64, 1);
    model.posted(write(5, 0..8));
    let later = pattern::message(5, 8);
    assert!(model.check_read(0, &later).is_ok());
    assert!(model.check_fenced_read(0, &later, 5).is_err());
}

#[test]
fn an_announced_write_is_there() {
    let buffer = Buffer::new(64);
    let mut model = RegionModel::new(&buffer, 0, 64, 1);
    model.posted(write(5, 0..8));
    assert!(model.landed(&buffer, &write(5, 0..8)).is_err());
    buffer.write_at(0, &pattern::message(5, 8));
    assert!(model.landed(&buffer, &write(5, 0..8)).is_ok());
}

#[test]
fn what_is_announced_is_there_and_is_not_written_again() {
    let buffer = Buffer::new(64);
    let mut model = RegionModel::new(&buffer, 0, 64, 1);
    model.posted(write(5, 0..8));
    model.posted(write(6, 8..16));
    buffer.write_at(0, &pattern::message(5, 8));
    assert!(model.landed_before(&buffer, 6).is_ok());
    assert!(model.landed_before(&buffer, 7).is_err(), "a message overtook a write");

    model.reuse(&buffer, &write(5, 0..8), 99);
    assert!(model.check(&buffer).is_ok(), "the application may use what it was told of");
    buffer.write_at(0, &pattern::message(5, 8));
    assert!(model.succeeded(&buffer, 5).is_err(), "written twice");
}

#[test]
fn guards_see_a_single_byte() {
    let buffer = Buffer::new(64);
    let mut guards = Guards::new(3);
    guards.add(&buffer, 0..16);
    guards.add(&buffer, 48..64);
    buffer.fill(16, 32, 0xff);
    assert!(guards.check(&buffer).is_ok());
    let byte = buffer.to_vec(48, 1)[0];
    buffer.write_at(48, &[!byte]);
    assert!(guards.check(&buffer).is_err());
}
