//! Devices with a backup, from the side of a program that knows nothing of it.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bowline_io::control;
use support::*;

/// Faults are requested by device name, so only one test at a time has devices.
static ALONE: Mutex<()> = Mutex::new(());

/// Two devices with a backup each, in the mode given.
fn set_up_with(mode: &str) -> MutexGuard<'static, ()> {
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    let net = format!("127.73.{}", pid / 60 % 250);
    let host = pid % 60 * 4 + 1;
    let addr = |i: u32| format!("{net}.{}", host + i);
    let store = std::env::temp_dir().join(format!("bowline-verbs-{pid}"));
    let variables = [
        ("BOWLINE_DEVICES", format!("bl0={},bl1={}", addr(0), addr(1))),
        ("BOWLINE_BACKUP", format!("bl0={},bl1={}", addr(2), addr(3))),
        ("BOWLINE_FAILOVER", mode.to_owned()),
        ("BOWLINE_STORE", format!("file://{}", store.display())),
        ("BOWLINE_LOG", "error".to_owned()),
    ];
    for (name, value) in variables {
        // SAFETY: tests that read the environment hold the same lock.
        unsafe { std::env::set_var(name, value) };
    }
    alone
}

/// Asks a device of this process.
fn ask(device: &str, line: &str) -> String {
    let mine = |peer: &control::Peer| peer.pid == std::process::id() && peer.device == device;
    let peer = control::live().unwrap().into_iter().find(mine).expect("the device is open");
    control::ask(&peer, line, Duration::from_secs(5)).unwrap()
}

fn fault(device: &str, what: &str) {
    let answer = ask(device, &format!("fault {what}"));
    assert!(!answer.is_empty(), "{what} was not taken");
}

/// Waits until the report of a device says so.
fn until_says(device: &str, what: &str) {
    until(what, || ask(device, "counters").contains(what).then_some(()));
}

/// What `ibv_query_port` says of a device's port.
fn port_state(end: &End) -> u32 {
    let mut port = ibv_port_attr::default();
    assert_eq!(unsafe { ibv_query_port(end.ctx, 1, (&raw mut port).cast()) }, 0);
    port.state
}

#[test]
fn a_port_is_down_when_nothing_is_left_of_it() {
    let _alone = set_up_with("exact");
    let end = End::open(0);
    assert_eq!(port_state(&end), IBV_PORT_ACTIVE);
    fault("bl0", "down");
    assert_eq!(port_state(&end), IBV_PORT_ACTIVE, "the backup is there");
    fault("bl0-backup", "down");
    assert_eq!(port_state(&end), IBV_PORT_DOWN);
    fault("bl0", "up");
    assert_eq!(port_state(&end), IBV_PORT_ACTIVE);
    end.close(&[]);
}

#[test]
fn a_port_without_a_backup_is_down_with_its_link() {
    let _alone = set_up_with("off");
    let end = End::open(0);
    fault("bl0", "down");
    assert_eq!(port_state(&end), IBV_PORT_DOWN);
    fault("bl0", "up");
    assert_eq!(port_state(&end), IBV_PORT_ACTIVE);
    end.close(&[]);
}

const QUICK: Terms = Terms { timeout: 9, retry_cnt: 3, rnr_retry: 7 };

/// Two connected ends with backups that know of each other.
fn backed_pair() -> (End, *mut ibv_qp, End, *mut ibv_qp) {
    let made = pair(IBV_QPT_RC, QUICK);
    ready();
    made
}

fn ready() {
    until_says("bl0", "\"ready\":1");
    until_says("bl1", "\"ready\":1");
}

fn write_all(from: &End, qp: *mut ibv_qp, to: &End, count: u64) {
    for wr_id in 0..count {
        let mut sge = from.sge(0, 100_000);
        let mut wr = write_wr(wr_id, &mut sge, (to.addr(0), to.rkey()));
        assert_eq!(post_send(qp, &mut wr), 0);
    }
    for wr_id in 0..count {
        let wc = from.completion();
        assert_eq!((wc.status, wc.wr_id, wc.qp_num), (SUCCESS, wr_id, unsafe { (*qp).qp_num }));
    }
}

#[test]
fn a_program_does_not_notice() {
    for mode in ["exact", "shift"] {
        let _alone = set_up_with(mode);
        let (mut a, qa, b, qb) = backed_pair();
        let seen = unsafe { ibv_get_device_list(null_mut()) };
        assert!(unsafe { (*seen.add(2)).is_null() }, "backups are not shown");
        a.memory.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 7 + i / 256) as u8);
        let before = query(qa);
        fault("bl1", "down");
        write_all(&a, qa, &b, 10);
        assert_eq!(bytes(&b, 0, 100_000), a.memory[..100_000]);
        until_says("bl0", "\"away\":1");
        let after = query(qa);
        assert_eq!(after.qp_state, IBV_QPS_RTS);
        assert_eq!(after.dest_qp_num, before.dest_qp_num);
        assert_eq!(after.ah_attr.grh.dgid, before.ah_attr.grh.dgid);
        assert_eq!((after.sq_psn, after.rq_psn), (before.sq_psn, before.rq_psn));
        fault("bl1", "up");
        until("the way home", || {
            write_all(&a, qa, &b, 1);
            ask("bl0", "counters").contains("\"away\":0").then_some(())
        });
        write_all(&a, qa, &b, 10);
        a.close(&[qa]);
        b.close(&[qb]);
    }
}

fn query(qp: *mut ibv_qp) -> ibv_qp_attr {
    unsafe {
        let (mut attr, mut init) = (zeroed::<ibv_qp_attr>(), zeroed::<ibv_qp_init_attr>());
        assert_eq!(ibv_query_qp(qp, &mut attr, IBV_QP_STATE, &mut init), 0);
        attr
    }
}

#[test]
fn everything_can_be_posted_while_away() {
    let _alone = set_up_with("exact");
    let (mut a, qa, b, qb) = backed_pair();
    fault("bl0", "down");
    until_says("bl1", "\"away\":1");
    a.memory[..4].copy_from_slice(b"ping");
    assert_eq!(post_recv(qb, 9, Some(b.sge(64, 16))), 0);
    let mut sge = a.sge(0, 4);
    let mut wr = send_wr(1, IBV_WR_SEND_WITH_IMM);
    (wr.sg_list, wr.num_sge, wr.imm_data) = (&mut sge, 1, 7_u32.to_be());
    assert_eq!(post_send(qa, &mut wr), 0);
    let wc = b.completion();
    assert_eq!((wc.wr_id, wc.status, u32::from_be(wc.imm_data)), (9, SUCCESS, 7));
    assert_eq!(wc.qp_num, unsafe { (*qb).qp_num });
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&b, 64, 4), b"ping");

    let word = b.memory.as_ptr().align_offset(8) + 4096;
    let mut into = a.sge(1024, 8);
    let mut wr = send_wr(3, IBV_WR_ATOMIC_FETCH_AND_ADD);
    (wr.sg_list, wr.num_sge) = (&mut into, 1);
    let (remote_addr, rkey) = (b.addr(word), b.rkey());
    wr.wr.atomic = ibv_wr_atomic { remote_addr, compare_add: 5, swap: 0, rkey };
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().opcode, IBV_WC_FETCH_ADD);
    assert_eq!(bytes(&b, word, 8), 5_u64.to_ne_bytes());

    // Memory that is registered now is there on both.
    let more = vec![7_u8; 4096].into_boxed_slice();
    let flags = ALL_ACCESS as i32;
    let mr = unsafe { ibv_reg_mr(a.pd, more.as_ptr().cast_mut().cast(), 4096, flags) };
    let mut sge = ibv_sge { addr: more.as_ptr() as u64, length: 4096, lkey: unsafe { (*mr).lkey } };
    let mut wr = write_wr(4, &mut sge, (b.addr(8192), b.rkey()));
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&b, 8192, 4096), *more);
    assert_eq!(unsafe { ibv_dereg_mr(mr) }, 0);
    fault("bl0", "clear");
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn one_who_sleeps_on_a_channel_is_woken() {
    let _alone = set_up_with("exact");
    let (a, qa, b, qb) = backed_pair();
    unsafe {
        let notify = (*b.ctx).ops.req_notify_cq;
        assert_eq!(notify(b.cq, 0), 0);
        for i in 0..20 {
            assert_eq!(post_recv(qb, i, Some(b.sge(0, 64))), 0);
        }
        fault("bl1", "blackhole=in");
        let mut got = 0;
        for i in 0..20_u32 {
            let mut sge = a.sge(0, 64);
            let mut wr = send_wr(i.into(), IBV_WR_SEND_WITH_IMM);
            (wr.sg_list, wr.num_sge, wr.imm_data) = (&mut sge, 1, i.to_be());
            assert_eq!(post_send(qa, &mut wr), 0);
            while got == i {
                let (mut cq, mut context) = (null_mut(), null_mut());
                assert_eq!(ibv_get_cq_event(b.channel, &mut cq, &mut context), 0);
                assert_eq!(cq, b.cq);
                ibv_ack_cq_events(cq, 1);
                assert_eq!(notify(b.cq, 0), 0);
                while let Some(wc) = poll(b.cq) {
                    assert_eq!((wc.status, u32::from_be(wc.imm_data)), (SUCCESS, got));
                    got += 1;
                }
            }
            assert_eq!(a.completion().status, SUCCESS);
        }
        fault("bl1", "clear");
    }
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn an_extended_queue_and_built_requests_follow() {
    let _alone = set_up_with("exact");
    let (a, b) = (End::open(0), End::open(1));
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    (attr.cqe, attr.wc_flags) = (64, IBV_WC_STANDARD_FLAGS);
    unsafe {
        let vctx = a.ctx.byte_sub(std::mem::offset_of!(verbs_context, context));
        let vctx = vctx.cast::<verbs_context>();
        let cq = ((*vctx).create_cq_ex)(a.ctx, &mut attr);
        let mut init: ibv_qp_init_attr_ex = zeroed();
        let plain = qp_init(IBV_QPT_RC, cq.cast());
        (init.send_cq, init.recv_cq, init.cap) = (plain.send_cq, plain.recv_cq, plain.cap);
        (init.qp_type, init.pd) = (IBV_QPT_RC, a.pd);
        init.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
        init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let qa = ((*vctx).create_qp_ex)(a.ctx, &mut init);
        let qb = b.qp(IBV_QPT_RC);
        connect((&a, qa), (&b, qb), QUICK);
        ready();
        fault("bl0", "down");
        until_says("bl1", "\"away\":1");
        let ex = ibv_qp_to_qp_ex(qa);
        ((*ex).wr_start)(ex);
        for wr_id in 0..3 {
            ((*ex).wr_id, (*ex).wr_flags) = (wr_id, IBV_SEND_SIGNALED);
            ((*ex).wr_rdma_write)(ex, b.rkey(), b.addr(0));
            ((*ex).wr_set_sge)(ex, (*a.mr).lkey, a.addr(0), 8);
        }
        assert_eq!(((*ex).wr_complete)(ex), 0);
        for wr_id in 0..3 {
            until("a completion", || (((*cq).start_poll)(cq, null_mut()) == 0).then_some(()));
            assert_eq!(((*cq).status, (*cq).wr_id), (SUCCESS, wr_id));
            assert_eq!(((*cq).read_qp_num)(cq), (*qa).qp_num);
            ((*cq).end_poll)(cq);
        }
        fault("bl0", "clear");
        assert_eq!(ibv_destroy_qp(qa), 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        a.close(&[]);
        b.close(&[qb]);
    }
}

#[test]
fn a_connection_that_is_away_can_be_ended_and_made_anew() {
    let _alone = set_up_with("exact");
    let (a, qa, b, qb) = backed_pair();
    fault("bl0", "down");
    until_says("bl1", "\"away\":1");
    // Nobody posts receives, so this one waits; then it is flushed.
    assert_eq!(post_recv(qa, 1, Some(a.sge(0, 64))), 0);
    let err = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(modify(qa, err, IBV_QP_STATE), 0);
    assert_eq!(state(qa), IBV_QPS_ERR);
    let wc = a.completion();
    assert_eq!((wc.wr_id, wc.status), (1, WR_FLUSH_ERR));
    until_says("bl0", "\"away\":0");
    fault("bl0", "clear");
    for qp in [qa, qb] {
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
        assert_eq!(modify(qp, reset, IBV_QP_STATE), 0);
    }
    connect((&a, qa), (&b, qb), QUICK);
    ready();
    write_all(&a, qa, &b, 3);
    fault("bl1", "blackhole=in");
    write_all(&a, qa, &b, 3);
    until_says("bl1", "\"away\":1");
    // Destroyed while they are away.
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn events_of_the_backup_are_about_the_program_s_own_objects() {
    let _alone = set_up_with("exact");
    let (a, qa, b, qb) = backed_pair();
    fault("bl0", "down");
    until_says("bl1", "\"away\":1");
    // A key that does not exist.
    let mut sge = a.sge(0, 64);
    let mut wr = write_wr(1, &mut sge, (b.addr(0), b.rkey() ^ 0x55));
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().status, REM_ACCESS_ERR);
    assert_eq!(async_event(b.ctx), (IBV_EVENT_QP_ACCESS_ERR, qb as usize));
    assert_eq!(state(qa), IBV_QPS_ERR);
    assert_eq!(state(qb), IBV_QPS_ERR);
    fault("bl0", "clear");
    // What failed there can be made anew here.
    for qp in [qa, qb] {
        let reset = ibv_qp_attr { qp_state: IBV_QPS_RESET, ..Default::default() };
        assert_eq!(modify(qp, reset, IBV_QP_STATE), 0);
    }
    until_says("bl0", "\"away\":0");
    connect((&a, qa), (&b, qb), QUICK);
    write_all(&a, qa, &b, 3);
    a.close(&[qa]);
    b.close(&[qb]);
}
