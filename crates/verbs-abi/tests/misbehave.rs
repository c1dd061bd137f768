//! Misbehaving programs get the completion or the error number that the standard requires, their
//! peers get theirs within the retry time, and nothing hangs.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::c_int;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use support::*;

/// Gives up after about 30 ms: 2^(10+2) µs, four times, and some.
const HASTY: Terms = Terms { timeout: 10, retry_cnt: 3, rnr_retry: 2 };

fn write_to(a: &End, qa: *mut ibv_qp, wr_id: u64, len: u32, remote: (u64, u32)) -> c_int {
    let mut sge = a.sge(0, len);
    post_send(qa, &mut write_wr(wr_id, &mut sge, remote))
}

fn to_err(qp: *mut ibv_qp) {
    let attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(modify(qp, attr, IBV_QP_STATE), 0);
}

#[test]
fn posting_in_the_wrong_state_is_refused() {
    let a = End::open(0);
    let qp = a.qp(IBV_QPT_RC);
    let mut wr = send_wr(1, IBV_WR_SEND);
    assert_eq!(post_send(qp, &mut wr), libc::EINVAL);
    assert_eq!(post_recv(qp, 1, None), libc::EINVAL);
    to_init(qp);
    assert_eq!(post_send(qp, &mut wr), libc::EINVAL);
    assert_eq!(post_recv(qp, 1, None), 0);
    to_err(qp);
    assert_eq!(a.completion().status, WR_FLUSH_ERR);
    // In the error state everything is taken, and flushed.
    assert_eq!(post_send(qp, &mut wr), 0);
    assert_eq!(a.completion().status, WR_FLUSH_ERR);
    assert_eq!(post_recv(qp, 2, None), 0);
    let wc = a.completion();
    assert_eq!((wc.wr_id, wc.status), (2, WR_FLUSH_ERR));
    a.close(&[qp]);
}

#[test]
fn a_chain_is_taken_up_to_the_request_that_is_wrong() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let mut sge = a.sge(0, 8);
    let mut third = write_wr(3, &mut sge, (b.addr(0), b.rkey()));
    let mut second = write_wr(2, &mut sge, (b.addr(0), b.rkey()));
    second.num_sge = 5;
    second.next = &mut third;
    let mut first = write_wr(1, &mut sge, (b.addr(0), b.rkey()));
    first.next = &mut second;
    let (code, bad) = post_chain(qa, &mut first);
    assert_eq!((code, bad), (libc::EINVAL, &raw mut second));
    let wc = a.completion();
    assert_eq!((wc.wr_id, wc.status), (1, SUCCESS));
    assert!(poll(a.cq).is_none());
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    // Nobody polls, and 1 MiB takes a while.
    let mut posted = 0;
    let refused = loop {
        match write_to(&a, qa, posted, 1 << 20, (b.addr(0), b.rkey())) {
            0 => posted += 1,
            code => break code,
        }
    };
    assert_eq!(refused, libc::ENOMEM);
    assert!(posted >= 64);
    for wr_id in 0..posted {
        assert_eq!(a.completion().wr_id, wr_id);
    }
    assert_eq!(write_to(&a, qa, 1, 8, (b.addr(0), b.rkey())), 0);
    assert_eq!(a.completion().status, SUCCESS);
    a.close(&[qa]);
    b.close(&[qb]);
}

/// Drains a queue pair's completions: how many succeeded, the first failure, how many were flushed.
fn outcome(end: &End, posted: u64) -> (u64, u32, u64) {
    let (mut good, mut failure, mut flushed) = (0, SUCCESS, 0);
    for _ in 0..posted {
        match end.completion().status {
            SUCCESS => good += 1,
            WR_FLUSH_ERR => flushed += 1,
            status => {
                assert_eq!(failure, SUCCESS, "one failure, the rest is flushed");
                failure = status;
            }
        }
    }
    (good, failure, flushed)
}

#[test]
fn freeing_local_memory_under_traffic_fails_what_needs_it() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    for wr_id in 0..60 {
        assert_eq!(write_to(&a, qa, wr_id, 1 << 20, (b.addr(0), b.rkey())), 0);
    }
    unsafe { assert_eq!(ibv_dereg_mr(a.mr), 0) };
    // Nothing touches it any more: it may go.
    drop(std::mem::take(&mut a.memory));
    let (good, failure, flushed) = outcome(&a, 60);
    assert_eq!(failure, LOC_PROT_ERR);
    assert_eq!(good + 1 + flushed, 60);
    assert_eq!(state(qa), IBV_QPS_ERR);
    unsafe { assert_eq!(ibv_destroy_qp(qa), 0) };
    b.close(&[qb]);
}

#[test]
fn freeing_remote_memory_under_traffic_is_told_to_both() {
    let (a, qa, mut b, qb) = pair(IBV_QPT_RC, Terms::default());
    let remote = (b.addr(0), b.rkey());
    for wr_id in 0..60 {
        assert_eq!(write_to(&a, qa, wr_id, 1 << 20, remote), 0);
    }
    unsafe { assert_eq!(ibv_dereg_mr(b.mr), 0) };
    drop(std::mem::take(&mut b.memory));
    assert_eq!(outcome(&a, 60).1, REM_ACCESS_ERR);
    until("the access error", || {
        let (event, about) = async_event(b.ctx);
        (event == IBV_EVENT_QP_ACCESS_ERR).then(|| assert_eq!(about, qb as usize))
    });
    assert_eq!(state(qb), IBV_QPS_ERR);
    a.close(&[qa]);
}

#[test]
fn an_overflowing_queue_fails_its_queue_pairs_and_their_peers_notice() {
    let (a, b) = (End::with_depth(0, 4), End::open(1));
    let (qa, qb) = (a.qp(IBV_QPT_RC), b.qp(IBV_QPT_RC));
    connect((&a, qa), (&b, qb), HASTY);
    for wr_id in 0..8 {
        assert_eq!(write_to(&a, qa, wr_id, 8, (b.addr(0), b.rkey())), 0);
    }
    let mut seen = Vec::new();
    while !seen.contains(&IBV_EVENT_CQ_ERR) || !seen.contains(&IBV_EVENT_QP_FATAL) {
        seen.push(async_event(a.ctx).0);
    }
    assert_eq!(state(qa), IBV_QPS_ERR);
    let start = Instant::now();
    assert_eq!(write_to(&b, qb, 1, 8, (a.addr(0), a.rkey())), 0);
    assert_eq!(b.completion().status, RETRY_EXC_ERR);
    assert!(start.elapsed() < Duration::from_secs(10));
    b.close(&[qb]);
}

#[test]
fn a_peer_that_is_not_there_is_given_up_within_the_retry_time() {
    let a = End::open(0);
    let qp = a.qp(IBV_QPT_RC);
    to_init(qp);
    let mut nobody = a.gid();
    nobody.raw[15] = 250;
    nobody.raw[14] ^= 0x80;
    to_rts(qp, 0x1234, nobody, HASTY);
    let start = Instant::now();
    assert_eq!(write_to(&a, qp, 1, 8, (0, 0)), 0);
    assert_eq!(write_to(&a, qp, 2, 8, (0, 0)), 0);
    let first = a.completion();
    assert_eq!((first.wr_id, first.status), (1, RETRY_EXC_ERR));
    assert_eq!(a.completion().status, WR_FLUSH_ERR);
    let took = start.elapsed();
    // Four waits of 4.2 ms; a loaded machine may need longer, but not for ever.
    assert!(took > Duration::from_millis(10) && took < Duration::from_secs(10), "{took:?}");
    assert_eq!(state(qp), IBV_QPS_ERR);
    a.close(&[qp]);
}

#[test]
fn a_peer_without_receives_is_given_up() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, HASTY);
    assert_eq!(post_send(qa, &mut send_wr(1, IBV_WR_SEND)), 0);
    assert_eq!(a.completion().status, RNR_RETRY_EXC_ERR);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn a_message_longer_than_its_receive_fails_at_both_ends() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    assert_eq!(post_recv(qb, 7, Some(b.sge(0, 16))), 0);
    let mut sge = a.sge(0, 64);
    let mut wr = send_wr(1, IBV_WR_SEND);
    (wr.sg_list, wr.num_sge) = (&mut sge, 1);
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().status, REM_INV_REQ_ERR);
    let wc = b.completion();
    assert_eq!((wc.wr_id, wc.status), (7, LOC_LEN_ERR));
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn what_a_peer_may_not_do_it_cannot() {
    type Crime = fn(&End) -> (u32, u64, u32);
    let crimes: [Crime; 4] = [
        |b| (IBV_WR_RDMA_WRITE, b.addr(0), b.rkey() ^ 1),
        |b| (IBV_WR_RDMA_WRITE, b.addr(0) + (1 << 20) - 4, b.rkey()),
        |b| (IBV_WR_RDMA_READ, b.addr(0).wrapping_sub(8), b.rkey()),
        |b| (IBV_WR_RDMA_WRITE, u64::MAX - 3, b.rkey()),
    ];
    for crime in crimes {
        let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
        let (opcode, addr, rkey) = crime(&b);
        let mut sge = a.sge(0, 8);
        let mut wr = write_wr(1, &mut sge, (addr, rkey));
        wr.opcode = opcode;
        assert_eq!(post_send(qa, &mut wr), 0);
        assert_eq!(a.completion().status, REM_ACCESS_ERR);
        assert_eq!(async_event(b.ctx).0, IBV_EVENT_QP_ACCESS_ERR);
        a.close(&[qa]);
        b.close(&[qb]);
    }
}

#[test]
fn what_is_not_supported_is_refused_at_once() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    // TSO, atomic writes, and a number that is none.
    for opcode in [10, 15, 99] {
        assert_eq!(post_send(qa, &mut send_wr(1, opcode)), libc::EOPNOTSUPP, "{opcode}");
    }
    let mut checksummed = send_wr(1, IBV_WR_SEND);
    checksummed.send_flags |= 1 << 4;
    assert_eq!(post_send(qa, &mut checksummed), libc::EINVAL);
    // Raw packets, drivers' own.
    for qp_type in [8, 0xff] {
        let mut init = qp_init(qp_type, a.cq);
        assert!(unsafe { ibv_create_qp(a.pd, &mut init) }.is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
    }
    unsafe {
        assert_eq!(ibv_attach_mcast(qa, &a.gid(), 0), libc::EINVAL, "not a group");
        assert_eq!(ibv_read_comp_cntr(), libc::EOPNOTSUPP);
        assert_eq!((ibv_dm_export_dmabuf_fd(), errno()), (-1, libc::EOPNOTSUPP));
        let mut multicast = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        multicast.grh.dgid.raw[0] = 0xff;
        assert!(ibv_create_ah(a.pd, &mut multicast).is_null());
        assert_eq!(errno(), libc::EINVAL, "a group of the other family");
        let vctx = a.ctx.byte_sub(std::mem::offset_of!(verbs_context, context));
        let vctx = vctx.cast::<verbs_context>();
        assert_eq!(((*vctx).modify_cq)(), libc::EOPNOTSUPP);
        assert!(((*vctx).open_qp)().is_null());
    }
    let attr = ibv_qp_attr { alt_port_num: 1, ..Default::default() };
    assert_eq!(modify(qa, attr, IBV_QP_ALT_PATH), libc::EOPNOTSUPP);
    // The connection has not noticed.
    assert_eq!(write_to(&a, qa, 1, 8, (b.addr(0), b.rkey())), 0);
    assert_eq!(a.completion().status, SUCCESS);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn attribute_masks_are_checked() {
    let a = End::open(0);
    let qp = a.qp(IBV_QPT_RC);
    assert_eq!(modify(qp, init_attr(), TO_INIT & !IBV_QP_PORT), libc::EINVAL, "missing");
    assert_eq!(modify(qp, init_attr(), TO_INIT | IBV_QP_SQ_PSN), libc::EINVAL, "surplus");
    assert_eq!(modify(qp, init_attr(), TO_INIT | 1 << 30), libc::EINVAL, "unknown");
    let attr = ibv_qp_attr { port_num: 2, ..init_attr() };
    assert_eq!(modify(qp, attr, TO_INIT), libc::EINVAL, "no such port");
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTS, ..Default::default() };
    assert_eq!(modify(qp, attr, IBV_QP_STATE | IBV_QP_SQ_PSN), libc::EINVAL, "no such way");
    let attr = ibv_qp_attr { qp_state: 42, ..Default::default() };
    assert_eq!(modify(qp, attr, IBV_QP_STATE), libc::EINVAL, "no such state");
    to_init(qp);
    // Without a GID there is no destination on RoCE.
    let attr = ibv_qp_attr { qp_state: IBV_QPS_RTR, path_mtu: 3, ..Default::default() };
    let mask = IBV_QP_STATE
        | IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    assert_eq!(modify(qp, attr, mask), libc::EINVAL);
    assert_eq!(state(qp), IBV_QPS_INIT, "nothing of it was done");
    a.close(&[qp]);
}

#[test]
fn wrong_and_stale_pointers_are_refused() {
    let a = End::open(0);
    let qp = a.qp(IBV_QPT_RC);
    unsafe {
        assert_eq!(ibv_destroy_qp(null_mut()), libc::EINVAL);
        assert_eq!(ibv_destroy_cq(qp.cast()), libc::EINVAL, "it is no queue");
        assert_eq!(ibv_modify_qp(qp, null_mut(), 0), libc::EINVAL);
        assert!(ibv_create_qp(a.pd, null_mut()).is_null());
        assert!(ibv_alloc_pd(null_mut()).is_null());
        assert!(ibv_open_device(null_mut()).is_null());
        assert_eq!(((*a.ctx).ops.poll_cq)(a.cq, 1, null_mut()), -libc::EINVAL);
        assert_eq!(((*a.ctx).ops.poll_cq)(a.cq, -1, null_mut()), -libc::EINVAL);
        let mut wr = send_wr(1, IBV_WR_SEND);
        wr.num_sge = 1;
        assert_eq!(post_send(qp, &mut wr), libc::EINVAL, "no list");
        assert_eq!(ibv_dealloc_pd(a.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_qp(qp), libc::EINVAL, "twice");
    }
    a.close(&[]);
}

#[test]
fn closing_a_device_under_its_objects_kills_them_softly() {
    let (a, qa, b, qb) = pair_of((End::open(2), End::open(1)), IBV_QPT_RC, HASTY);
    unsafe { assert_eq!(ibv_close_device(a.ctx), 0) };
    let mut wr = send_wr(1, IBV_WR_SEND);
    assert_eq!(post_send(qa, &mut wr), libc::EIO);
    let mut wc = ibv_wc::default();
    assert_eq!(unsafe { ((*a.ctx).ops.poll_cq)(a.cq, 1, &mut wc) }, -libc::EIO);
    assert_eq!(write_to(&b, qb, 1, 8, (a.addr(0), a.rkey())), 0);
    assert_eq!(b.completion().status, RETRY_EXC_ERR);
    b.close(&[qb]);
}

/// Another process of this test, at the other end of a connection.
struct Peer {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn spawn() -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_other_process", "--nocapture", "--test-threads=1"])
            .env("BOWLINE_TEST_PEER", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Peer { child, output }
    }

    /// What the peer says next: the words behind its mark.
    fn hear(&mut self) -> Vec<u64> {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the peer is gone");
            if let Some((_, words)) = line.split_once("peer:") {
                return words.split_whitespace().map(|w| w.parse().unwrap()).collect();
            }
        }
    }

    fn tell(&mut self, words: &[u64]) {
        let line: Vec<String> = words.iter().map(u64::to_string).collect();
        writeln!(self.child.stdin.as_mut().unwrap(), "{}", line.join(" ")).unwrap();
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The peer's part: connects, then writes for ever until it is killed.
#[test]
fn the_other_process() {
    if std::env::var_os("BOWLINE_TEST_PEER").is_none() {
        return;
    }
    let b = End::open(1);
    let qp = b.qp(IBV_QPT_RC);
    to_init(qp);
    println!("\npeer: {} {} {}", unsafe { (*qp).qp_num }, b.addr(0), b.rkey());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let told: Vec<u64> = line.split_whitespace().map(|w| w.parse().unwrap()).collect();
    let mut gid = b.gid();
    gid.raw[12..].copy_from_slice(&(told[3] as u32).to_be_bytes());
    to_rts(qp, told[0] as u32, gid, Terms::default());
    println!("\npeer: 1");
    for wr_id in 0.. {
        if write_to(&b, qp, wr_id, 1 << 20, (told[1], told[2] as u32)) != 0 {
            b.completion();
        }
    }
}

#[test]
fn a_peer_that_is_killed_in_the_middle_of_a_write_harms_nobody_else() {
    let a = End::open(0);
    let qp = a.qp(IBV_QPT_RC);
    to_init(qp);
    let mut peer = Peer::spawn();
    let told = peer.hear();
    let own = a.gid();
    let address = u32::from_be_bytes(*own.raw.last_chunk().unwrap());
    let qpn = unsafe { (*qp).qp_num };
    peer.tell(&[qpn.into(), a.addr(0), a.rkey().into(), address.into()]);
    // The peer is on this host too: its second device, whose address is ours plus one.
    let mut gid = own;
    gid.raw[12..].copy_from_slice(&peer_address(peer.child.id()).to_be_bytes());
    to_rts(qp, told[0] as u32, gid, HASTY);
    assert_eq!(peer.hear(), [1]);
    std::thread::sleep(Duration::from_millis(100));
    peer.child.kill().unwrap();
    peer.child.wait().unwrap();

    // Our own write to the dead one is given up within the retry time.
    let start = Instant::now();
    assert_eq!(write_to(&a, qp, 1, 64, (told[1], told[2] as u32)), 0);
    assert_eq!(a.completion().status, RETRY_EXC_ERR);
    assert!(start.elapsed() < Duration::from_secs(10));
    // And the device is as good as ever.
    let b = End::open(1);
    let (qa, qb) = (a.qp(IBV_QPT_RC), b.qp(IBV_QPT_RC));
    connect((&a, qa), (&b, qb), Terms::default());
    assert_eq!(write_to(&a, qa, 1, 1 << 20, (b.addr(0), b.rkey())), 0);
    assert_eq!(a.completion().status, SUCCESS);
    a.close(&[qp, qa]);
    b.close(&[qb]);
}

/// The address of device 1 of a process of this test; see `support::set_up`.
fn peer_address(_pid: u32) -> u32 {
    // The peer inherits this process's devices.
    let end = End::open(1);
    let gid = end.gid();
    end.close(&[]);
    u32::from_be_bytes(*gid.raw.last_chunk().unwrap())
}
