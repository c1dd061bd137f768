//! Recorded requests come back unchanged.

use core::ptr::{NonNull, null_mut};

use bowline_verbs_types::{
    IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WC_SEND, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_INV, ibv_recv_wr,
    ibv_send_wr, ibv_wr_atomic, ibv_wr_rdma, ibv_wr_target,
};

use super::*;

fn sends(capacity: u32, signals_all: bool) -> SendRing {
    let cursor = NonNull::from(Box::leak(Box::new(SendCursor::EMPTY)));
    // SAFETY: the cursor is leaked, and nothing else uses it.
    unsafe { SendRing::new(capacity, signals_all, cursor) }
}

fn receives(capacity: u32) -> RecvRing {
    let cursor = NonNull::from(Box::leak(Box::new(RecvCursor::EMPTY)));
    // SAFETY: as above.
    unsafe { RecvRing::new(capacity, cursor) }
}

fn posted(ring: &mut SendRing, wr_id: u64, opcode: u32, flags: u32, keys: (u32, u32)) {
    let mut sge = ibv_sge { addr: 0x1000 + wr_id, length: 8, lkey: keys.0 };
    let rdma = ibv_wr_rdma { remote_addr: 0x2000 + wr_id, rkey: keys.1 };
    // SAFETY: all fields may be zero.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    wr.wr_id = wr_id;
    wr.sg_list = &raw mut sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.imm_data = 7;
    wr.wr = ibv_wr_target { rdma };
    // SAFETY: a valid request with its list.
    unsafe { ring.remember(&raw const wr) };
}

fn same(key: u32) -> Option<u32> {
    Some(key)
}

#[test]
fn what_is_outstanding_is_found_from_the_newest_backwards() {
    let mut ring = sends(8, false);
    assert_eq!(ring.head(0), Some(0));
    for wr_id in 0..20 {
        let flags = if wr_id % 4 == 3 { IBV_SEND_SIGNALED } else { 0 };
        posted(&mut ring, wr_id, IBV_WR_RDMA_WRITE, flags, (1, 2));
    }
    // Requests 3, 7, 11, 15, 19 are signaled.
    assert_eq!(ring.head(5), Some(20));
    assert_eq!(ring.head(4), Some(16));
    assert_eq!(ring.head(3), Some(12));
    assert_eq!(ring.head(2), None, "8 are remembered, and 12 would be outstanding");
    assert_eq!(ring.next_signaled(16), Some(19));
    assert_eq!(ring.wr_id(16), 16);
    ring.undo();
    ring.undo();
    assert_eq!((ring.tail(), ring.head(4)), (18, Some(16)));
}

#[test]
fn an_atomic_comes_back_with_its_operands_and_another_key() {
    let mut ring = sends(4, true);
    let mut sge = ibv_sge { addr: 0x1000, length: 8, lkey: 1 };
    for (opcode, swap) in [(IBV_WR_ATOMIC_FETCH_AND_ADD, 0), (IBV_WR_ATOMIC_CMP_AND_SWP, 6)] {
        // SAFETY: all fields may be zero.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        (wr.wr_id, wr.opcode, wr.num_sge, wr.sg_list) = (9, opcode, 1, &raw mut sge);
        wr.wr.atomic = ibv_wr_atomic { remote_addr: 0x2000, compare_add: 5, swap, rkey: 2 };
        // SAFETY: a valid request with its list.
        unsafe { ring.remember(&raw const wr) };
        let number = ring.tail() - 1;
        assert!(ring.is_atomic(number) && ring.is_movable(number));
        assert_eq!(ring.rkeys(), [2], "it is looked up");
        assert!(ring.resend(number, same, |_| None).is_none(), "it waits for its key");
        let other = |key| Some(key + 10);
        let mut again = ring.resend(number, other, other).unwrap();
        let again = again.request();
        // SAFETY: an atomic has these fields.
        let (target, sge) = unsafe { (again.wr.atomic, *again.sg_list) };
        assert_eq!((again.opcode, again.wr_id, again.num_sge), (opcode, 9, 1));
        assert_eq!((target.remote_addr, target.compare_add), (0x2000, 5));
        assert_eq!((target.swap, target.rkey), (swap, 12));
        assert_eq!((sge.addr, sge.length, sge.lkey), (0x1000, 8, 11));
    }
}

#[test]
fn what_names_an_object_of_one_device_stays_there() {
    for opcode in [IBV_WR_LOCAL_INV, IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV] {
        let mut ring = sends(4, true);
        posted(&mut ring, 1, opcode, 0, (1, 2));
        assert!(!ring.is_movable(0), "{opcode}");
        posted(&mut ring, 2, IBV_WR_RDMA_WRITE_WITH_IMM, 0, (1, 2));
        assert!(ring.is_movable(1));
    }
}

/// A program may post until its queue is full. A refused request must not replace the oldest.
#[test]
fn what_a_full_queue_refuses_is_not_remembered() {
    let mut ring = sends(2, true);
    // SAFETY: all fields may be zero.
    let mut list: [ibv_send_wr; 4] = unsafe { core::mem::zeroed() };
    let at: [*mut ibv_send_wr; 4] = list.each_mut().map(|wr| &raw mut *wr);
    for (index, wr) in list.iter_mut().enumerate() {
        wr.wr_id = index as u64;
        wr.next = at.get(index + 1).copied().unwrap_or(null_mut());
    }
    // SAFETY: lists of requests without memory.
    unsafe {
        ring.remember_until(at[0], at[2]);
        ring.remember_until(at[2], at[2]);
    }
    assert_eq!((ring.tail(), ring.head(0)), (2, Some(0)));
    assert_eq!([0, 1].map(|number| ring.wr_id(number)), [0, 1]);
    let mut receives = receives(2);
    let mut wr = ibv_recv_wr { wr_id: 7, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
    for _ in 0..2 {
        // SAFETY: a receive without memory.
        unsafe { receives.remember_until(&raw const wr, core::ptr::null()) };
    }
    wr.wr_id = 8;
    // SAFETY: as above.
    unsafe { receives.remember_until(&raw const wr, &raw const wr) };
    assert_eq!((receives.tail(), receives.wr_id(0)), (2, 7));
}

#[test]
fn a_request_is_posted_again_as_it_was_with_other_keys() {
    let mut ring = sends(4, true);
    posted(&mut ring, 1, IBV_WR_RDMA_WRITE_WITH_IMM, 0, (10, 20));
    posted(&mut ring, 2, IBV_WR_RDMA_READ, 0, (11, 21));
    posted(&mut ring, 3, IBV_WR_SEND, 0, (10, 99));
    assert_eq!(ring.rkeys(), [20, 21]);
    let mut first = ring.resend(0, |key| Some(key + 1), |key| Some(key + 2)).unwrap();
    let wr = first.request();
    assert_eq!((wr.wr_id, wr.opcode, wr.imm_data), (1, IBV_WR_RDMA_WRITE_WITH_IMM, 7));
    // SAFETY: a request of this kind has these fields.
    assert_eq!(unsafe { (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) }, (0x2001, 22));
    assert_eq!((first.sges[0].addr, first.sges[0].lkey), (0x1001, 11));
    assert!(ring.resend(1, same, |_| None).is_none(), "a key that is not known yet");
    assert!(ring.resend(2, same, |_| None).is_some(), "a SEND names no memory of the peer");
    assert!(ring.is_signaled(2), "the queue has a completion for each");
}

#[test]
fn inline_bytes_are_kept_and_several_pieces_too() {
    let mut ring = sends(2, false);
    let mut bytes = *b"abcd";
    let piece =
        |from: usize| ibv_sge { addr: bytes.as_ptr() as u64 + from as u64, length: 2, lkey: 0 };
    let mut sges = [piece(2), piece(0)];
    // SAFETY: all fields may be zero.
    let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
    (wr.sg_list, wr.num_sge) = (sges.as_mut_ptr(), 2);
    (wr.opcode, wr.send_flags) = (IBV_WR_SEND, IBV_SEND_INLINE);
    // SAFETY: a valid request with its list.
    unsafe { ring.remember(&raw const wr) };
    bytes.fill(0);
    let mut again = ring.resend(0, |_| None, same).unwrap();
    assert_eq!(again.inline, b"cdab");
    assert_eq!(again.request().num_sge, 1);
}

#[test]
fn what_the_peer_has_counted_completes_without_being_carried_out_again() {
    let mut ring = sends(8, true);
    let kinds = [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND, IBV_WR_RDMA_WRITE];
    for (wr_id, opcode) in kinds.into_iter().enumerate() {
        posted(&mut ring, wr_id as u64, opcode, 0, (1, 2));
    }
    ring.mark_executed(0, 1);
    let opcodes: Vec<u32> = (0..4).map(|n| ring.resend(n, same, same).unwrap().wr.opcode).collect();
    let empty = |n| ring.resend(n, same, same).unwrap().sges.is_empty();
    assert_eq!(
        opcodes,
        [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE]
    );
    assert_eq!([empty(0), empty(1), empty(2), empty(3)], [true, false, true, false]);
    assert_eq!(ring.wc_opcode(2), IBV_WC_SEND, "the program asked for a SEND");
}

#[test]
fn receives_are_remembered_in_order() {
    let mut ring = receives(2);
    for wr_id in 0..3 {
        let mut sge = ibv_sge { addr: 64 * wr_id, length: 64, lkey: 5 };
        let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &raw mut sge, num_sge: 1 };
        if wr_id == 2 {
            (wr.sg_list, wr.num_sge) = (null_mut(), 0);
        }
        // SAFETY: a valid request with its list.
        unsafe { ring.remember(&raw const wr) };
    }
    let (wr_id, sges) = ring.resend(1, |key| Some(key * 2)).unwrap();
    assert_eq!((wr_id, sges[0].addr, sges[0].lkey), (1, 64, 10));
    assert_eq!(ring.resend(2, |_| None).map(|(id, sges)| (id, sges.len())), Some((2, 0)));
}

/// What is checked of a request: opcode, flags, keys.
type Kind = (u32, u32, u32, u32);

/// Requests with changing forms over many laps, some of them too large for the short form, some
/// refused: each of the last `capacity` requests comes back unchanged, and totals are right.
#[test]
fn over_many_laps_every_request_keeps_its_form() {
    let mut ring = sends(7, false);
    let mut model: Vec<Kind> = Vec::new();
    let mut seed = 1_u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut kind = (IBV_WR_RDMA_WRITE, 0, 1, 2);
    for _ in 0..4000 {
        if draw(3) == 0 {
            let opcode = [IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND][draw(3) as usize];
            // The fourth value is a flag that does not fit into the short form; there are more key
            // pairs than forms.
            let flags = [0, IBV_SEND_SIGNALED, 4, 16][draw(4) as usize];
            kind = (opcode, flags, draw(20) as u32, draw(20) as u32);
        }
        posted(&mut ring, model.len() as u64, kind.0, kind.1, (kind.2, kind.3));
        model.push(kind);
        if draw(5) == 0 {
            ring.undo();
            model.pop();
        }
        let tail = model.len() as u64;
        assert_eq!(ring.tail(), tail);
        for number in tail.saturating_sub(7)..tail {
            let mut again = ring.resend(number, same, same).unwrap();
            let (opcode, flags, lkey, rkey) = model[number as usize];
            assert_eq!((again.wr.wr_id, again.wr.opcode), (number, opcode));
            assert_eq!((again.wr.send_flags, again.sges[0].lkey), (flags, lkey));
            let remote = if opcode == IBV_WR_SEND { 0 } else { rkey };
            // SAFETY: a request of this kind has this field, or it is 0.
            assert_eq!(unsafe { again.request().wr.rdma.rkey }, remote);
        }
        let signaled = |kind: &&Kind| kind.1 & IBV_SEND_SIGNALED != 0;
        assert_eq!(ring.head(model.iter().filter(signaled).count() as u64), {
            let last = model.iter().rposition(|kind| signaled(&kind));
            let head = last.map_or(0, |last| last as u64 + 1);
            (head >= tail.saturating_sub(7)).then_some(head).or(Some(tail.saturating_sub(7)))
        });
    }
}
