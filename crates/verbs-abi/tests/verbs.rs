//! The verbs themselves, from a program's side.

#![allow(clippy::undocumented_unsafe_blocks, reason = "see support")]

mod support;

use std::ffi::{CStr, c_int};
use std::mem::zeroed;
use std::ptr::{from_mut, null_mut};
use std::time::Duration;

use support::*;

/// `IBV_WC_REM_ACCESS_ERR`.
const REM_ACCESS_ERR: u32 = 10;

#[test]
fn a_chain_of_writes_arrives_and_completes_in_order() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    for (i, byte) in a.memory.iter_mut().enumerate() {
        *byte = (i * 7 + i / 256) as u8;
    }
    let mut first = a.sge(0, 100_000);
    let mut second = a.sge(100_000, 5);
    let mut tail = write_wr(2, &mut second, (b.addr(100_000), b.rkey()));
    let mut head = write_wr(1, &mut first, (b.addr(0), b.rkey()));
    head.next = &mut tail;
    assert_eq!(post_chain(qa, &mut head).0, 0);
    for wr_id in [1, 2] {
        let wc = a.completion();
        assert_eq!((wc.wr_id, wc.status, wc.opcode), (wr_id, SUCCESS, IBV_WC_RDMA_WRITE));
        assert_eq!(wc.qp_num, unsafe { (*qa).qp_num });
    }
    assert_eq!(bytes(&b, 0, 100_005), a.memory[..100_005]);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn sends_immediates_reads_and_atomics() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..4].copy_from_slice(b"ping");
    assert_eq!(post_recv(qb, 9, Some(b.sge(64, 16))), 0);
    let mut sge = a.sge(0, 4);
    let mut wr = send_wr(1, IBV_WR_SEND_WITH_IMM);
    (wr.sg_list, wr.num_sge, wr.imm_data) = (&mut sge, 1, 0x1122_3344_u32.to_be());
    assert_eq!(post_send(qa, &mut wr), 0);
    let wc = b.completion();
    assert_eq!((wc.wr_id, wc.status, wc.opcode, wc.byte_len), (9, SUCCESS, IBV_WC_RECV, 4));
    assert_eq!((wc.wc_flags, u32::from_be(wc.imm_data)), (IBV_WC_WITH_IMM, 0x1122_3344));
    assert_eq!(bytes(&b, 64, 4), b"ping");
    assert_eq!(a.completion().status, SUCCESS);

    let mut into = a.sge(512, 4);
    let mut wr = write_wr(2, &mut into, (b.addr(64), b.rkey()));
    wr.opcode = IBV_WR_RDMA_READ;
    assert_eq!(post_send(qa, &mut wr), 0);
    let wc = a.completion();
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (SUCCESS, IBV_WC_RDMA_READ, 4));
    assert_eq!(bytes(&a, 512, 4), b"ping");

    let word = b.memory.as_ptr().align_offset(8) + 4096;
    let mut into = a.sge(1024, 8);
    let mut wr = send_wr(3, IBV_WR_ATOMIC_FETCH_AND_ADD);
    (wr.sg_list, wr.num_sge) = (&mut into, 1);
    let (remote_addr, rkey) = (b.addr(word), b.rkey());
    wr.wr.atomic = ibv_wr_atomic { remote_addr, compare_add: 5, swap: 0, rkey };
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().opcode, IBV_WC_FETCH_ADD);
    wr.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
    wr.wr.atomic = ibv_wr_atomic { remote_addr, compare_add: 5, swap: 11, rkey };
    assert_eq!(post_send(qa, &mut wr), 0);
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&a, 1024, 8), 5_u64.to_ne_bytes());
    assert_eq!(bytes(&b, word, 8), 11_u64.to_ne_bytes());
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn inline_bytes_need_no_registration_and_may_change_at_once() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let mut parts = [*b"inl", *b"ine"];
    let sge = |part: &[u8; 3]| ibv_sge { addr: part.as_ptr() as u64, length: 3, lkey: 0 };
    let mut list = [sge(&parts[0]), sge(&parts[1])];
    let mut wr = write_wr(1, &mut list[0], (b.addr(0), b.rkey()));
    (wr.num_sge, wr.send_flags) = (2, IBV_SEND_SIGNALED | IBV_SEND_INLINE);
    assert_eq!(post_send(qa, &mut wr), 0);
    parts = [[0; 3]; 2];
    assert_eq!(a.completion().status, SUCCESS);
    assert_eq!(bytes(&b, 0, 6), b"inline");
    assert_eq!(parts, [[0; 3]; 2]);
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn datagrams_carry_a_header_from_which_to_answer() {
    let (mut a, b) = (End::open(0), End::open(1));
    let (qa, qb) = (a.qp(IBV_QPT_UD), b.qp(IBV_QPT_UD));
    ready_ud(qa);
    ready_ud(qb);
    unsafe {
        let mut attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        attr.grh.dgid = b.gid();
        let ah = ibv_create_ah(a.pd, &mut attr);
        assert!(!ah.is_null());
        a.memory[..5].copy_from_slice(b"query");
        assert_eq!(post_recv(qb, 1, Some(b.sge(0, 256))), 0);
        let mut sge = a.sge(0, 5);
        let mut wr = send_wr(2, IBV_WR_SEND);
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        wr.wr.ud = ibv_wr_ud { ah, remote_qpn: (*qb).qp_num, remote_qkey: 0x1234 };
        assert_eq!(post_send(qa, &mut wr), 0);
        assert_eq!(a.completion().status, SUCCESS);
        let mut wc = b.completion();
        assert_eq!((wc.byte_len, wc.src_qp, wc.wc_flags), (45, (*qa).qp_num, IBV_WC_GRH));
        assert_eq!(bytes(&b, 40, 5), b"query");

        // The answer goes to where the header says that the question came from.
        let grh = b.memory.as_ptr().cast_mut().cast::<ibv_grh>();
        let back = ibv_create_ah_from_wc(b.pd, &mut wc, grh, 1);
        assert!(!back.is_null());
        let mut told = ibv_ah_attr::default();
        assert_eq!(ibv_init_ah_from_wc(b.ctx, 1, &mut wc, grh, &mut told), 0);
        assert_eq!(told.grh.dgid, a.gid());
        assert_eq!(post_recv(qa, 3, Some(a.sge(1024, 256))), 0);
        let mut sge = b.sge(40, 5);
        let mut wr = send_wr(4, IBV_WR_SEND);
        (wr.sg_list, wr.num_sge) = (&mut sge, 1);
        wr.wr.ud = ibv_wr_ud { ah: back, remote_qpn: wc.src_qp, remote_qkey: 0x1234 };
        assert_eq!(post_send(qb, &mut wr), 0);
        assert_eq!(a.completion().wr_id, 3);
        assert_eq!(bytes(&a, 1064, 5), b"query");
        assert_eq!(ibv_destroy_ah(ah), 0);
        assert_eq!(ibv_destroy_ah(back), 0);
    }
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn requests_built_step_by_step_are_posted_together() {
    let (mut a, b) = (End::open(0), End::open(1));
    let ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM;
    let plain = qp_init(IBV_QPT_RC, a.cq);
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    (init.send_cq, init.recv_cq, init.cap) = (plain.send_cq, plain.recv_cq, plain.cap);
    (init.qp_type, init.pd, init.send_ops_flags) = (IBV_QPT_RC, a.pd, ops);
    init.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    a.memory[..8].copy_from_slice(b"built up");
    unsafe {
        let vctx = a.ctx.byte_sub(std::mem::offset_of!(verbs_context, context));
        let create = (*vctx.cast::<verbs_context>()).create_qp_ex;
        let qa = create(a.ctx, &mut init);
        let ex = ibv_qp_to_qp_ex(qa);
        assert!(!ex.is_null());
        let qb = b.qp(IBV_QPT_RC);
        assert!(ibv_qp_to_qp_ex(qb).is_null(), "not made for it");
        connect((&a, qa), (&b, qb), Terms::default());
        assert_eq!(post_recv(qb, 5, Some(b.sge(64, 16))), 0);

        ((*ex).wr_start)(ex);
        ((*ex).wr_id, (*ex).wr_flags) = (1, 0);
        ((*ex).wr_rdma_write)(ex, b.rkey(), b.addr(0));
        ((*ex).wr_set_sge)(ex, (*a.mr).lkey, a.addr(0), 8);
        ((*ex).wr_id, (*ex).wr_flags) = (2, IBV_SEND_SIGNALED);
        ((*ex).wr_send_imm)(ex, 7_u32.to_be());
        ((*ex).wr_set_inline_data)(ex, c"step".as_ptr().cast_mut().cast(), 4);
        assert_eq!(((*ex).wr_complete)(ex), 0);
        assert_eq!(a.completion().wr_id, 2);
        assert_eq!(u32::from_be(b.completion().imm_data), 7);
        assert_eq!((bytes(&b, 0, 8), bytes(&b, 64, 4)), (b"built up".into(), b"step".into()));

        // What the QP was not made for spoils the batch, and nothing of it is posted.
        ((*ex).wr_start)(ex);
        ((*ex).wr_send_imm)(ex, 0);
        ((*ex).wr_rdma_read)(ex, b.rkey(), b.addr(0));
        assert_eq!(((*ex).wr_complete)(ex), libc::EINVAL);
        ((*ex).wr_start)(ex);
        ((*ex).wr_send_imm)(ex, 0);
        ((*ex).wr_abort)(ex);
        assert!(poll(a.cq).is_none());
        a.close(&[qa]);
        b.close(&[qb]);
    }
}

#[test]
fn an_extended_queue_is_read_column_by_column() {
    let (a, b) = (End::open(0), End::open(1));
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    (attr.cqe, attr.wc_flags) = (64, IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP);
    unsafe {
        let vctx = a.ctx.byte_sub(std::mem::offset_of!(verbs_context, context));
        let create = (*vctx.cast::<verbs_context>()).create_cq_ex;
        let cq = create(a.ctx, &mut attr);
        assert!(!cq.is_null());
        let qa = a.qp_with(IBV_QPT_RC, cq.cast(), null_mut());
        let qb = b.qp(IBV_QPT_RC);
        connect((&a, qa), (&b, qb), Terms::default());
        assert_eq!(((*cq).start_poll)(cq, null_mut()), libc::ENOENT);
        let mut sge = a.sge(0, 100);
        for wr_id in 0..20 {
            assert_eq!(post_send(qa, &mut write_wr(wr_id, &mut sge, (b.addr(0), b.rkey()))), 0);
        }
        let mut next = 0;
        while next < 20 {
            if ((*cq).start_poll)(cq, null_mut()) != 0 {
                continue;
            }
            loop {
                assert_eq!(((*cq).wr_id, (*cq).status), (next, SUCCESS));
                assert_eq!(((*cq).read_opcode)(cq), IBV_WC_RDMA_WRITE);
                assert_eq!(((*cq).read_qp_num)(cq), (*qa).qp_num);
                assert!(((*cq).read_completion_ts)(cq) > 0);
                next += 1;
                if ((*cq).next_poll)(cq) != 0 {
                    break;
                }
            }
            ((*cq).end_poll)(cq);
        }
        // A column that does not exist cannot be asked for.
        attr.wc_flags = 1 << 8;
        assert!(create(a.ctx, &mut attr).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!(ibv_destroy_qp(qa), 0);
        assert_eq!(ibv_destroy_cq(cq.cast()), 0);
        a.close(&[]);
        b.close(&[qb]);
    }
}

#[test]
fn registrations_move_and_end() {
    let end = End::open(0);
    let mut other = vec![0_u8; 4096];
    unsafe {
        let addr = other.as_mut_ptr().cast();
        let mr = ibv_reg_mr_iova2(end.pd, addr, 4096, 0x10_0000, ALL_ACCESS | 1 << 20);
        assert!(!mr.is_null());
        let before = (*mr).rkey;
        let flags = IBV_REREG_MR_CHANGE_ACCESS;
        assert_eq!(ibv_rereg_mr(mr, flags, null_mut(), null_mut(), 0, 1), 0);
        assert_eq!((*mr).rkey, before, "other rights alone change no key");
        let flags = IBV_REREG_MR_CHANGE_TRANSLATION;
        assert_eq!(ibv_rereg_mr(mr, flags, null_mut(), addr, 4096, 0), 0);
        assert_ne!((*mr).rkey, before);
        // What cannot be is refused, and the registration stands.
        let flags = IBV_REREG_MR_CHANGE_TRANSLATION;
        let nowhere = 0x1000 as *mut _;
        let code = ibv_rereg_mr(mr, flags, null_mut(), nowhere, 4096, 0);
        assert_eq!((code, errno()), (IBV_REREG_MR_ERR_INPUT, libc::EFAULT));
        assert_eq!((*mr).addr, addr);
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dereg_mr(mr), libc::EINVAL, "twice");
        assert!(ibv_reg_mr(end.pd, nowhere, 4096, 1).is_null());
        assert_eq!(errno(), libc::EFAULT);
        assert!(ibv_reg_mr(end.pd, addr, 4096, REMOTE as c_int).is_null());
        assert_eq!(errno(), libc::EINVAL, "remote writes need local ones");
    }
    end.close(&[]);
}

#[test]
fn queries_agree_with_each_other() {
    let end = End::open(0);
    unsafe {
        let mut device = zeroed::<ibv_device_attr>();
        assert_eq!(ibv_query_device(end.ctx, &mut device), 0);
        assert!(device.max_qp >= 60_000 && device.max_qp_rd_atom >= 1);
        let mut port = ibv_port_attr::default();
        assert_eq!(ibv_query_port(end.ctx, 1, from_mut(&mut port).cast()), 0);
        assert_eq!((port.state, port.link_layer), (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET));
        assert_eq!(ibv_query_port(end.ctx, 2, from_mut(&mut port).cast()), libc::EINVAL);
        let size = size_of::<ibv_gid_entry>();
        let mut table = [ibv_gid_entry::default(); 8];
        let count = _ibv_query_gid_table(end.ctx, table.as_mut_ptr(), 8, 0, size);
        assert_eq!(count, port.gid_tbl_len as isize - 1, "one place is empty");
        let (mut empty, place) = (ibv_gid { raw: [1; 16] }, count as u32);
        assert_eq!(ibv_query_gid(end.ctx, 1, place as i32, &mut empty), 0);
        assert_eq!(empty, ibv_gid::default());
        let nothing = _ibv_query_gid_ex(end.ctx, 1, place, table.as_mut_ptr(), 0, size);
        assert_eq!(nothing, libc::ENODATA);
        assert_eq!(ibv_query_gid(end.ctx, 1, place as i32 + 1, &mut empty), -1);
        for (i, entry) in table[..count as usize].iter().enumerate() {
            let mut same = ibv_gid_entry::default();
            assert_eq!(_ibv_query_gid_ex(end.ctx, 1, i as u32, &mut same, 0, size), 0);
            assert_eq!((same.gid, same.gid_type), (entry.gid, IBV_GID_TYPE_ROCE_V2));
            assert_eq!(same.gid, end.gid());
            let mut text = [0; 64];
            let file = std::ffi::CString::new(format!("ports/1/gid_attrs/types/{i}")).unwrap();
            let dir = (*(*end.ctx).device).ibdev_path.as_ptr();
            assert_eq!(ibv_read_sysfs_file(dir, file.as_ptr(), text.as_mut_ptr(), 64), 7);
            assert_eq!(CStr::from_ptr(text.as_ptr()), c"RoCE v2");
        }
        let mut pkey = 0;
        assert_eq!(ibv_query_pkey(end.ctx, 1, 0, &mut pkey), 0);
        assert_eq!((pkey, ibv_get_pkey_index(end.ctx, 1, pkey)), (0xffff, 0));
    }
    end.close(&[]);
}

#[test]
fn a_shared_receive_queue_serves_several_queue_pairs() {
    let (mut a, b) = (End::open(0), End::open(1));
    a.memory[..4].copy_from_slice(b"each");
    unsafe {
        let attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
        let srq = ibv_create_srq(b.pd, &mut init);
        assert!(!srq.is_null());
        let qps: Vec<_> = (0..3)
            .map(|_| {
                let qa = a.qp(IBV_QPT_RC);
                let qb = b.qp_with(IBV_QPT_RC, b.cq, srq);
                connect((&a, qa), (&b, qb), Terms::default());
                (qa, qb)
            })
            .collect();
        assert_eq!(post_recv(qps[0].1, 1, None), libc::EINVAL, "the receives are elsewhere");
        for i in 0..3 {
            let mut sge = b.sge(i * 64, 64);
            let mut wr =
                ibv_recv_wr { wr_id: i as u64, next: null_mut(), sg_list: &mut sge, num_sge: 1 };
            let mut bad = null_mut();
            assert_eq!(((*b.ctx).ops.post_srq_recv)(srq, &mut wr, &mut bad), 0);
        }
        for (qa, _) in &qps {
            let mut sge = a.sge(0, 4);
            let mut wr = send_wr(1, IBV_WR_SEND);
            (wr.sg_list, wr.num_sge) = (&mut sge, 1);
            assert_eq!(post_send(*qa, &mut wr), 0);
            let wc = b.completion();
            assert_eq!((wc.status, wc.byte_len), (SUCCESS, 4));
            assert_eq!(a.completion().status, SUCCESS);
        }
        assert_eq!(ibv_destroy_srq(srq), libc::EBUSY);
        for (qa, qb) in qps {
            assert_eq!((ibv_destroy_qp(qa), ibv_destroy_qp(qb)), (0, 0));
        }
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
    a.close(&[]);
    b.close(&[]);
}

#[test]
fn queues_change_their_size_and_keep_what_they_hold() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    for n in 0..4 {
        let mut sge = a.sge(0, 8);
        assert_eq!(post_send(qa, &mut write_wr(n, &mut sge, (b.addr(0), b.rkey()))), 0);
    }
    // The last is there, and so are those before it, which nobody has polled.
    std::thread::sleep(Duration::from_millis(50));
    unsafe {
        assert_eq!(ibv_resize_cq(a.cq, 2), libc::EINVAL, "four completions wait");
        assert_eq!(ibv_resize_cq(a.cq, 4096), 0);
        assert_eq!((*a.cq).cqe, 4096);
        assert_eq!(ibv_resize_cq(a.cq, -1), libc::EINVAL);
    }
    for n in 0..4 {
        assert_eq!(a.completion().wr_id, n);
    }
    unsafe { assert_eq!(ibv_resize_cq(a.cq, 2), 0) };
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn other_rights_for_the_same_memory_keep_its_keys() {
    let (a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    let (rkey, flags) = (b.rkey(), IBV_REREG_MR_CHANGE_ACCESS);
    unsafe {
        let local = IBV_ACCESS_LOCAL_WRITE as c_int;
        assert_eq!(ibv_rereg_mr(b.mr, flags, null_mut(), null_mut(), 0, local), 0);
        assert_eq!(b.rkey(), rkey);
        assert_ne!(ibv_rereg_mr(b.mr, flags, null_mut(), null_mut(), 0, REMOTE as c_int), 0);
    }
    let mut sge = a.sge(0, 8);
    assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, (b.addr(0), rkey))), 0);
    assert_eq!(a.completion().status, REM_ACCESS_ERR, "the right is gone, the key is not");
    a.close(&[qa]);
    b.close(&[qb]);
}

#[test]
fn a_parent_domain_is_the_domain_under_another_pointer() {
    let a = End::open(0);
    let vctx = unsafe { a.ctx.byte_sub(std::mem::offset_of!(verbs_context, context)) };
    let vctx = vctx.cast::<verbs_context>();
    unsafe {
        let td = ((*vctx).alloc_td)(a.ctx, &ibv_td_init_attr { comp_mask: 0 });
        assert!(!td.is_null());
        let pd = ibv_alloc_pd(a.ctx);
        let mut attr = zeroed::<ibv_parent_domain_init_attr>();
        (attr.pd, attr.td) = (pd, td);
        let parent = ((*vctx).alloc_parent_domain)(a.ctx, &attr);
        assert!(!parent.is_null());
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY, "its parent domain stands");
        let mr = ibv_reg_mr(parent, a.addr(0) as *mut _, 64, (IBV_ACCESS_ON_DEMAND | 1) as c_int);
        assert!(!mr.is_null());
        assert_eq!(ibv_dealloc_pd(parent), 0);
        assert_eq!(ibv_dealloc_pd(pd), libc::EBUSY, "memory is registered in it");
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_pd(pd), 0);
        assert_eq!(((*vctx).dealloc_td)(td), 0);
    }
    a.close(&[]);
}

#[test]
fn device_memory_is_copied_to_registered_and_written_by_peers() {
    let (mut a, qa, b, qb) = pair(IBV_QPT_RC, Terms::default());
    a.memory[..8].copy_from_slice(b"from afa");
    let vctx = unsafe { b.ctx.byte_sub(std::mem::offset_of!(verbs_context, context)) };
    let vctx = vctx.cast::<verbs_context>();
    unsafe {
        let attr = ibv_alloc_dm_attr { length: 4096, log_align_req: 0, comp_mask: 0 };
        let dm = ((*vctx).alloc_dm)(b.ctx, &attr);
        assert!(!dm.is_null());
        assert!(
            ((*vctx).reg_dm_mr)(b.pd, dm, 4000, 97, ALL_ACCESS | IBV_ACCESS_ZERO_BASED).is_null()
        );
        assert!(((*vctx).reg_dm_mr)(b.pd, dm, 0, 64, ALL_ACCESS).is_null(), "it has no address");
        let mr = ((*vctx).reg_dm_mr)(b.pd, dm, 64, 64, ALL_ACCESS | IBV_ACCESS_ZERO_BASED);
        assert!(!mr.is_null() && (*mr).addr.is_null());
        assert_eq!(((*dm).memcpy_to_dm)(dm, 64, c"12345678abcd".as_ptr().cast(), 12), 0);
        assert_ne!(((*dm).memcpy_to_dm)(dm, 4090, c"12345678".as_ptr().cast(), 8), 0);

        let mut sge = a.sge(0, 8);
        assert_eq!(post_send(qa, &mut write_wr(1, &mut sge, (0, (*mr).rkey))), 0);
        assert_eq!(a.completion().status, SUCCESS);
        let mut found = [0_u8; 12];
        assert_eq!(((*dm).memcpy_from_dm)(found.as_mut_ptr().cast(), dm, 64, 12), 0);
        assert_eq!(&found, b"from afaabcd");
        assert_ne!(((*dm).memcpy_from_dm)(found.as_mut_ptr().cast(), dm, 66, 4), 0, "no word");
        // Freed first, it stays until nobody has a key to it.
        assert_eq!(((*vctx).free_dm)(dm), 0);
        let mut sge = a.sge(0, 8);
        assert_eq!(post_send(qa, &mut write_wr(2, &mut sge, (0, (*mr).rkey))), 0);
        assert_eq!(a.completion().status, SUCCESS);
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
    a.close(&[qa]);
    b.close(&[qb]);
}
