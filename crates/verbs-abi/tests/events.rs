//! Completion channels and asynchronous events.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::*;

fn readable(fd: c_int) -> bool {
    let mut ready = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    unsafe { libc::poll(&mut ready, 1, 0) == 1 }
}

/// Whether a descriptor polls as writable, which those of the kernel's verbs never do.
fn writable(fd: c_int) -> bool {
    let mut ready = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    unsafe { libc::poll(&mut ready, 1, 0) == 1 }
}

fn arm(end: &End) {
    assert_eq!(unsafe { ((*end.ctx).ops.req_notify_cq)(end.cq, 0) }, 0);
}

/// A write that completes at `a`.
fn write(a: &End, qa: *mut ibv_qp, b: &End) {
    let mut sge = a.sge(0, 8);
    assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, (b.addr(0), b.rkey()))), 0);
}

fn get_event(end: &End) -> c_int {
    let (mut cq, mut context) = (null_mut(), null_mut());
    let code = unsafe { ibv_get_cq_event(end.channel, &mut cq, &mut context) };
    if code == 0 {
        assert_eq!(cq, end.cq);
    }
    code
}

#[test]
fn a_sleeper_wakes_for_a_completion_and_the_descriptor_says_when() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let fd = unsafe { (*a.channel).fd };
    arm(&a);
    assert!(!readable(fd) && !writable(fd));
    assert!(unsafe { !writable((*a.ctx).async_fd) && !readable((*a.ctx).async_fd) });
    write(&a, qa, &b);
    // Blocks until the completion is there.
    assert_eq!(get_event(&a), 0);
    assert!(!readable(fd), "the only event has been taken");
    assert_eq!(a.completion().status, SUCCESS);

    // Without being armed again, nothing more is told.
    write(&a, qa, &b);
    assert_eq!(a.completion().status, SUCCESS);
    assert!(!readable(fd));

    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!((get_event(&a), errno()), (-1, libc::EAGAIN));
    arm(&a);
    write(&a, qa, &b);
    until("the descriptor", || readable(fd).then_some(()));
    assert_eq!(get_event(&a), 0);
    assert_eq!(a.completion().status, SUCCESS);
    unsafe { ibv_ack_cq_events(a.cq, 2) };
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn a_queue_goes_only_when_its_events_are_acknowledged() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    arm(&a);
    write(&a, qa, &b);
    assert_eq!(get_event(&a), 0);
    unsafe {
        assert_eq!(ibv_destroy_cq(a.cq), libc::EBUSY, "a QP uses it");
        assert_eq!(ibv_destroy_comp_channel(a.channel), libc::EBUSY, "a queue uses it");
        assert_eq!(ibv_destroy_qp(qa), 0);
    }
    let gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let a = &a;
            assert_eq!(unsafe { ibv_destroy_cq(a.cq) }, 0);
            gone.store(true, Ordering::Release);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!gone.load(Ordering::Acquire), "it waits");
        unsafe { ibv_ack_cq_events(a.cq, 1) };
    });
    assert!(gone.load(Ordering::Acquire));
    unsafe { assert_eq!(ibv_destroy_comp_channel(a.channel), 0) };
    b.close(&[qb]);
}

#[test]
fn events_of_a_queue_that_is_gone_vanish() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let fd = unsafe { (*a.channel).fd };
    arm(&a);
    write(&a, qa, &b);
    until("the event", || readable(fd).then_some(()));
    unsafe {
        assert_eq!(ibv_destroy_qp(qa), 0);
        assert_eq!(ibv_destroy_cq(a.cq), 0);
        assert!(!readable(fd));
        assert_eq!(ibv_destroy_comp_channel(a.channel), 0);
    }
    b.close(&[qb]);
}

#[test]
fn solicited_only_wakes_for_solicited_sends() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let fd = unsafe { (*b.channel).fd };
    assert_eq!(unsafe { ((*b.ctx).ops.req_notify_cq)(b.cq, 1) }, 0);
    for (flags, wakes) in [(0, false), (IBV_SEND_SOLICITED, true)] {
        assert_eq!(post_recv(qb, 1, None), 0);
        let mut wr = send_wr(1, IBV_WR_SEND);
        wr.send_flags |= flags;
        assert_eq!(post_send(qa, &mut wr), 0);
        assert_eq!(a.completion().status, SUCCESS);
        assert_eq!(b.completion().status, SUCCESS);
        if wakes {
            until("the event", || readable(fd).then_some(()));
        } else {
            assert!(!readable(fd));
        }
    }
    assert_eq!(get_event(&b), 0);
    unsafe { ibv_ack_cq_events(b.cq, 1) };
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn a_low_shared_receive_queue_says_so_once() {
    let (a, b) = (End::open(0), End::open(1));
    unsafe {
        let attr = ibv_srq_attr { max_wr: 8, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = ibv_create_srq(b.pd, &mut init);
        let (qa, qb) = (a.qp(IBV_QPT_RC), b.qp_with(IBV_QPT_RC, b.cq, srq));
        connect((&a, qa), (&b, qb), Terms::default());
        for wr_id in 0..2 {
            let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: null_mut(), num_sge: 0 };
            let mut bad = null_mut();
            assert_eq!(((*b.ctx).ops.post_srq_recv)(srq, &mut wr, &mut bad), 0);
        }
        let mut limit = ibv_srq_attr { srq_limit: 2, ..Default::default() };
        assert_eq!(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT), 0);
        assert_eq!(ibv_query_srq(srq, &mut limit), 0);
        assert_eq!((limit.srq_limit, limit.max_wr), (2, 8));
        assert_eq!(post_send(qa, &mut send_wr(1, IBV_WR_SEND)), 0);
        assert_eq!(a.completion().status, SUCCESS);
        assert_eq!(async_event(b.ctx), (IBV_EVENT_SRQ_LIMIT_REACHED, srq as usize));
        assert_eq!(ibv_query_srq(srq, &mut limit), 0);
        assert_eq!(limit.srq_limit, 0);
        limit.max_wr = 16;
        assert_eq!(ibv_modify_srq(srq, &mut limit, IBV_SRQ_MAX_WR), 0);
        assert_eq!(ibv_query_srq(srq, &mut limit), 0);
        assert_eq!(limit.max_wr, 16);
        assert_eq!((ibv_destroy_qp(qa), ibv_destroy_qp(qb)), (0, 0));
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
    a.close(&[]);
    b.close(&[]);
}

#[test]
fn a_drained_send_queue_says_so() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    write(&a, qa, &b);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_SQD, en_sqd_async_notify: 1, ..Default::default() };
    assert_eq!(modify(qa, attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
    assert_eq!(async_event(a.ctx), (IBV_EVENT_SQ_DRAINED, qa as usize));
    assert_eq!(a.completion().status, SUCCESS);
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    assert_eq!(modify(qa, attr, IBV_QP_STATE), 0);
    write(&a, qa, &b);
    assert_eq!(a.completion().status, SUCCESS);
    a.close(&[qa]);
    b.close(&[qb]);
}
