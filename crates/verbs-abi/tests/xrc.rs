//! Extended reliable connections from a program's side.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::mem::{offset_of, zeroed};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use support::*;

fn ops(end: &End) -> &'static verbs_context {
    let at = end.ctx.wrapping_byte_sub(offset_of!(verbs_context, context));
    unsafe { &*at.cast::<verbs_context>() }
}

fn xrcd_attr(fd: i32, oflags: i32) -> ibv_xrcd_init_attr {
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    ibv_xrcd_init_attr { comp_mask, fd, oflags }
}

fn open_xrcd(end: &End) -> *mut ibv_xrcd {
    let xrcd = unsafe { (ops(end).open_xrcd)(end.ctx, &xrcd_attr(-1, libc::O_CREAT)) };
    assert!(!xrcd.is_null(), "errno {}", errno());
    xrcd
}

fn xrc_srq(end: &End, xrcd: *mut ibv_xrcd, cq: *mut ibv_cq) -> *mut ibv_srq {
    let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
    init.attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 };
    init.comp_mask = IBV_SRQ_INIT_ATTR_TYPE
        | IBV_SRQ_INIT_ATTR_PD
        | IBV_SRQ_INIT_ATTR_XRCD
        | IBV_SRQ_INIT_ATTR_CQ;
    init.srq_type = IBV_SRQT_XRC;
    (init.pd, init.xrcd, init.cq) = (end.pd, xrcd, cq);
    let srq = unsafe { (ops(end).create_srq_ex)(end.ctx, &mut init) };
    assert!(!srq.is_null(), "errno {}", errno());
    srq
}

fn number(end: &End, srq: *mut ibv_srq) -> u32 {
    let mut number = 0;
    assert_eq!(unsafe { (ops(end).get_srq_num)(srq, &mut number) }, 0);
    number
}

fn post_srq(srq: *mut ibv_srq, wr_id: u64, mut sge: ibv_sge) {
    let mut wr = ibv_recv_wr { wr_id, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
    let mut bad = null_mut();
    unsafe { assert_eq!(((*(*srq).context).ops.post_srq_recv)(srq, &mut wr, &mut bad), 0) };
}

/// The end that sends.
fn sender(end: &End) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    let plain = qp_init(IBV_QPT_XRC_SEND, end.cq);
    (init.send_cq, init.cap, init.qp_type) = (end.cq, plain.cap, plain.qp_type);
    (init.comp_mask, init.pd) = (IBV_QP_INIT_ATTR_PD, end.pd);
    let qp = unsafe { (ops(end).create_qp_ex)(end.ctx, &mut init) };
    assert!(!qp.is_null(), "errno {}", errno());
    qp
}

/// The end that receives: it has neither domain nor queues.
fn receiver(end: &End, xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    init.qp_type = IBV_QPT_XRC_RECV;
    (init.comp_mask, init.xrcd) = (IBV_QP_INIT_ATTR_XRCD, xrcd);
    let qp = unsafe { (ops(end).create_qp_ex)(end.ctx, &mut init) };
    assert!(!qp.is_null(), "errno {}", errno());
    qp
}

/// Connects with the attributes that the kernel asks each of the two for.
fn connect_xrc(a: (&End, *mut ibv_qp), b: (&End, *mut ibv_qp)) {
    for ((_, qp), (peer, peers)) in [(a, b), (b, a)] {
        to_init(qp);
        let receives = unsafe { (*qp).qp_type } == IBV_QPT_XRC_RECV;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: 3,
            dest_qp_num: unsafe { (*peers).qp_num },
            rq_psn: 77,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            ..Default::default()
        };
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = peer.gid();
        let both = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let more = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(modify(qp, attr, if receives { both | more } else { both }), 0);
        let attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: 77,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 16,
            ..Default::default()
        };
        let both = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT;
        let more = IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
        assert_eq!(modify(qp, attr, if receives { both } else { both | more }), 0);
    }
}

fn send_to(qp: *mut ibv_qp, wr_id: u64, mut sge: ibv_sge, srqn: u32) {
    let mut wr = send_wr(wr_id, IBV_WR_SEND);
    (wr.sg_list, wr.num_sge, wr.xrc_remote_srqn) = (&mut sge, 1, srqn);
    assert_eq!(post_send(qp, &mut wr), 0);
}

#[test]
fn one_connection_serves_several_queues() {
    let (mut a, b) = (End::open(0), End::open(1));
    let xrcd = open_xrcd(&b);
    let cqs = [b.cq, unsafe { ibv_create_cq(b.ctx, 16, null_mut(), null_mut(), 0) }];
    let srqs = cqs.map(|cq| xrc_srq(&b, xrcd, cq));
    assert_eq!(unsafe { ibv_destroy_cq(cqs[1]) }, libc::EBUSY);
    let (qa, qb) = (sender(&a), receiver(&b, xrcd));
    connect_xrc((&a, qa), (&b, qb));
    a.memory[..8].copy_from_slice(b"extended");
    for n in 0..6 {
        let at = 1000 * n;
        post_srq(srqs[n % 2], n as u64, b.sge(at, 64));
        send_to(qa, n as u64, a.sge(0, 8), number(&b, srqs[n % 2]));
        assert_eq!(a.completion().status, SUCCESS);
        let wc = completion(cqs[n % 2]);
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (n as u64, SUCCESS, 8));
        assert_eq!(wc.qp_num, unsafe { (*qb).qp_num });
        assert_eq!(bytes(&b, at, 8), b"extended");
    }
    // One-sided, by way of either queue.
    let mut sge = a.sge(0, 8);
    let mut wr = write_wr(9, &mut sge, (b.addr(9000), b.rkey()));
    wr.xrc_remote_srqn = number(&b, srqs[1]);
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&b, 9000, 8), b"extended");

    // Who receives cannot send.
    assert_ne!(post_send(qb, &mut send_wr(1, IBV_WR_SEND)), 0);
    assert_eq!(unsafe { (ops(&b).close_xrcd)(xrcd) }, libc::EBUSY);
    // A queue that nobody knows.
    send_to(qa, 10, a.sge(0, 8), 0xff_fff0);
    assert_eq!(a.completion().status, REM_INV_REQ_ERR);
    unsafe {
        assert_eq!(ibv_destroy_qp(qa), 0);
        assert_eq!(ibv_destroy_qp(qb), 0);
        srqs.iter().for_each(|srq| assert_eq!(ibv_destroy_srq(*srq), 0));
        assert_eq!((ops(&b).close_xrcd)(xrcd), 0);
        assert_eq!(ibv_destroy_cq(cqs[1]), 0);
    }
    a.close(&[]);
    b.close(&[]);
}

#[test]
fn a_file_stands_for_one_domain() {
    let end = End::open(0);
    let path = std::env::temp_dir().join(format!("bowline-xrcd-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    let again = std::fs::File::open(&path).unwrap();
    let open = |fd: i32, flags| unsafe { (ops(&end).open_xrcd)(end.ctx, &xrcd_attr(fd, flags)) };
    assert!(open(file.as_raw_fd(), 0).is_null(), "there is none yet");
    assert_eq!(errno(), libc::EAGAIN);
    let first = open(file.as_raw_fd(), libc::O_CREAT);
    let second = open(again.as_raw_fd(), libc::O_CREAT);
    assert!(!first.is_null() && !second.is_null());
    assert!(open(again.as_raw_fd(), libc::O_CREAT | libc::O_EXCL).is_null());
    // What is in it by one pointer is in it by the other.
    let qp = receiver(&end, second);
    unsafe {
        assert_eq!((ops(&end).close_xrcd)(first), 0);
        assert_eq!((ops(&end).close_xrcd)(second), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!((ops(&end).close_xrcd)(second), 0);
        assert_eq!((ops(&end).close_xrcd)(second), libc::EINVAL);
    }
    std::fs::remove_file(&path).unwrap();
    end.close(&[]);
}

#[test]
fn what_is_missing_is_asked_for() {
    let end = End::open(0);
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    init.qp_type = IBV_QPT_XRC_RECV;
    (init.comp_mask, init.pd) = (IBV_QP_INIT_ATTR_PD, end.pd);
    assert!(unsafe { (ops(&end).create_qp_ex)(end.ctx, &mut init) }.is_null());
    assert_eq!(errno(), libc::EINVAL, "no XRC domain");
    let mut srq: ibv_srq_init_attr_ex = unsafe { zeroed() };
    srq.attr = ibv_srq_attr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    srq.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
    (srq.srq_type, srq.pd) = (IBV_SRQT_XRC, end.pd);
    assert!(unsafe { (ops(&end).create_srq_ex)(end.ctx, &mut srq) }.is_null());
    assert_eq!(errno(), libc::EINVAL, "neither XRC domain nor completion queue");
    srq.srq_type = IBV_SRQT_BASIC;
    let basic = unsafe { (ops(&end).create_srq_ex)(end.ctx, &mut srq) };
    assert_eq!(unsafe { (ops(&end).get_srq_num)(basic, &mut 0) }, libc::EINVAL);
    // A larger one, too.
    let mut attr = ibv_srq_attr { max_wr: 100, max_sge: 0, srq_limit: 0 };
    assert_eq!(unsafe { ibv_modify_srq(basic, &mut attr, IBV_SRQ_MAX_WR) }, 0);
    assert_eq!(unsafe { ibv_query_srq(basic, &mut attr) }, 0);
    assert_eq!(attr.max_wr, 100);
    assert_eq!(unsafe { ibv_destroy_srq(basic) }, 0);
    end.close(&[]);
}
